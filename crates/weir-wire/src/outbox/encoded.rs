//! [`EncodedMessage`]: a word as it waits, encoded but for its number.

use prost::Message;
use prost::bytes::Bytes;
use weir_model::Nanos;

use crate::frame::Frame;
use crate::message::{FlightData, Up, UpBody, encode_body};
use crate::protocol::ChannelId;

/// What a word costs besides its bytes.
const OVERHEAD_BYTES: usize = 160;

/// A word as it waits: all but its number is encoded.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedMessage {
    /// What it is, as far as that matters while it waits.
    pub kind: MessageKind,
    /// Its message without the number.
    pub envelope: Bytes,
    /// The header of its rows, if it has rows.
    pub header: Bytes,
    /// Their body.
    pub body: Bytes,
    /// The texts that must have been sent before: all with smaller numbers.
    pub texts: u32,
}

/// What matters of a word while it waits.
#[derive(Clone, Debug, PartialEq)]
pub enum MessageKind {
    /// Rows of a channel that stand for so many requests.
    Rows(ChannelId, u64),
    /// Time has come so far.
    Watermark(Nanos),
    /// Anything else: it is kept when rows are dropped.
    Other(Box<UpBody>),
}

impl EncodedMessage {
    /// A word other than rows.
    pub fn message(body: UpBody) -> EncodedMessage {
        let envelope = encode_body(body.clone()).into();
        EncodedMessage {
            kind: match body {
                UpBody::Watermark(at) => MessageKind::Watermark(at),
                body => MessageKind::Other(Box::new(body)),
            },
            envelope,
            header: Bytes::new(),
            body: Bytes::new(),
            texts: 0,
        }
    }

    /// Rows, which refer to none but the first `texts` texts.
    pub fn rows(frame: Frame, texts: u32) -> EncodedMessage {
        let channel = ChannelId(frame.head.channel);
        EncodedMessage {
            kind: MessageKind::Rows(channel, frame.head.requests()),
            envelope: encode_body(UpBody::Rows(frame.head)).into(),
            header: frame.header,
            body: frame.body,
            texts,
        }
    }

    /// Its bytes on the wire.
    pub fn bytes(&self) -> usize {
        self.envelope.len() + self.header.len() + self.body.len()
    }

    /// What it takes of the room for words.
    pub(super) fn cost(&self) -> usize {
        self.bytes() + OVERHEAD_BYTES
    }

    /// As it travels under that number. Protocol buffers are joined by joining their bytes.
    pub fn data(&self, number: u64) -> FlightData {
        let mut bytes = Vec::with_capacity(self.envelope.len() + 11);
        bytes.extend_from_slice(&self.envelope);
        let number = Up { number, body: None };
        number.encode(&mut bytes).expect("a vector has room");
        FlightData {
            app_metadata: bytes.into(),
            data_header: self.header.clone(),
            data_body: self.body.clone(),
            ..FlightData::default()
        }
    }
}
