//! [`EncodedMessage`]: a queued message, encoded except for its number.

use prost::Message;
use prost::bytes::Bytes;
use weir_model::Nanos;

use crate::frame::Frame;
use crate::message::{AgentBody, ChannelId, FlightData, FromAgent, encode_body};

/// Memory per message in addition to its bytes.
const OVERHEAD_BYTES: usize = 160;

/// A queued message, encoded except for its number.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedMessage {
    /// Its kind, as far as the outbox needs it.
    pub kind: MessageKind,
    /// Its protocol buffer without the number.
    pub envelope: Bytes,
    /// The header of its rows, if any.
    pub header: Bytes,
    /// The body of its rows.
    pub body: Bytes,
    /// The number of texts that must be sent before it.
    pub texts: u32,
}

/// The kind of a queued message.
#[derive(Clone, Debug, PartialEq)]
pub enum MessageKind {
    /// Rows of a channel, and the number of requests they represent.
    Rows(ChannelId, u64),
    /// A watermark.
    Watermark(Nanos),
    /// Anything else: it is retained when rows are dropped.
    Other(Box<AgentBody>),
}

impl EncodedMessage {
    /// A message other than rows.
    pub fn message(body: AgentBody) -> EncodedMessage {
        let envelope = encode_body(body.clone()).into();
        EncodedMessage {
            kind: match body {
                AgentBody::Watermark(at) => MessageKind::Watermark(at),
                body => MessageKind::Other(Box::new(body)),
            },
            envelope,
            header: Bytes::new(),
            body: Bytes::new(),
            texts: 0,
        }
    }

    /// Rows that refer only to the first `texts` texts.
    pub fn rows(frame: Frame, texts: u32) -> EncodedMessage {
        let channel = ChannelId(frame.head.channel);
        EncodedMessage {
            kind: MessageKind::Rows(channel, frame.head.represented()),
            envelope: encode_body(AgentBody::Rows(frame.head)).into(),
            header: frame.header,
            body: frame.body,
            texts,
        }
    }

    /// Its bytes on the wire.
    pub fn bytes(&self) -> usize {
        self.envelope.len() + self.header.len() + self.body.len()
    }

    /// Its memory in the outbox.
    pub(super) fn cost(&self) -> usize {
        self.bytes() + OVERHEAD_BYTES
    }

    /// Encodes it with a number. Protocol buffers are concatenated by concatenating their bytes.
    pub fn data(&self, number: u64) -> FlightData {
        let mut bytes = Vec::with_capacity(self.envelope.len() + 11);
        bytes.extend_from_slice(&self.envelope);
        let number = FromAgent { number, body: None };
        number.encode(&mut bytes).expect("a vector has room");
        FlightData {
            app_metadata: bytes.into(),
            data_header: self.header.clone(),
            data_body: self.body.clone(),
            ..FlightData::default()
        }
    }
}
