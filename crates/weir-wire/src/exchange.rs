//! One exchange with a monitor, from the agent's side: [`join`] connects and reads the welcome,
//! [`MessageSender`] sends messages and [`MessageReceiver`] receives them.
//!
//! An agent that must not lose messages uses an [`crate::Uplink`], with a thread, an outbox and a
//! spool. This module is for a process that simulates many agents on one runtime: messages sent on
//! an exchange that breaks are lost.

use std::sync::Arc;

use arrow_flight::FlightData;
use arrow_flight::flight_service_client::FlightServiceClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::client::refused;
use crate::dial::Dial;
use crate::error::WireError;
use crate::frame::texts::TextTable;
use crate::frame::{self, Compression, FrameError};
use crate::message::{
    AgentBody, AgentMessage, ChannelId, DOWN_BYTES_MAX, FromAgent, FromMonitor, Hello,
    MonitorMessage, Version, Welcome,
};
use crate::outbox::EncodedMessage;

/// The longest accepted message: one of the monitor and room for Flight's own fields.
const MESSAGE_BYTES_MAX: usize = DOWN_BYTES_MAX + (64 << 10);
/// Capacity of the queue to the network; queued messages are sent together.
const SENDING_MAX: usize = 16;

/// Both directions, and the monitor's first message.
pub(crate) type Streams = (
    mpsc::Sender<FlightData>,
    Streaming<FlightData>,
    Welcome,
    Version,
);

/// Connects, sends the hello and receives the welcome.
pub(crate) async fn open(dial: &Dial, hello: &Hello) -> Result<Streams, WireError> {
    let hello = FromAgent::hello(hello.clone())?;
    let channel = dial.connect().await?;
    let mut flight = FlightServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let (up, messages) = mpsc::channel(SENDING_MAX);
    up.try_send(hello).expect("the channel is empty");
    let call = dial.call(ReceiverStream::new(messages))?;
    let denied = |status: Status| status_error(dial, &status);
    let mut down = flight.do_exchange(call).await.map_err(denied)?.into_inner();
    let first = down.message().await.map_err(denied)?;
    let first = first.ok_or_else(|| broken(dial, "it ended before the welcome"))?;
    match FromMonitor::read(&first)?.message.body {
        Some(MonitorMessage::Welcome(welcome)) => {
            let version = welcome.version()?;
            Ok((up, down, welcome, version))
        }
        _ => Err(broken(
            dial,
            "its first message is not a welcome; check that it is a monitor of weir",
        )),
    }
}

/// The error for a status of the monitor.
pub(crate) fn status_error(dial: &Dial, status: &Status) -> WireError {
    match refused(dial, status) {
        WireError::Refused(refusal) => WireError::Denied {
            address: dial.address.to_string(),
            why: refusal.to_string(),
        },
        other => other,
    }
}

fn broken(dial: &Dial, why: &str) -> WireError {
    WireError::Broken {
        address: dial.address.to_string(),
        why: why.to_owned(),
    }
}

/// Joins as the agent that `hello` describes. The next message has number 1.
///
/// # Errors
/// If no monitor answers, access is denied, or the monitor uses another version.
pub async fn join(
    dial: &Dial,
    hello: &Hello,
) -> Result<(Welcome, MessageSender, MessageReceiver), WireError> {
    let (up, down, welcome, _) = open(dial, hello).await?;
    let dial = Arc::new(dial.clone());
    let mut sender = MessageSender {
        dial: dial.clone(),
        up,
        number: welcome.acked,
        texts: TextTable::default(),
        texts_sent: 0,
        bytes: 0,
    };
    sender
        .send_data(FromAgent::data(AgentBody::Resume(welcome.acked + 1)))
        .await?;
    Ok((welcome, sender, MessageReceiver { dial, down }))
}

/// The direction to the monitor.
#[derive(Debug)]
pub struct MessageSender {
    dial: Arc<Dial>,
    up: mpsc::Sender<FlightData>,
    number: u64,
    texts: TextTable,
    texts_sent: u32,
    bytes: u64,
}

impl MessageSender {
    /// Sends a message; waits while the monitor does not read. Rows that do not fit a frame are
    /// reported as lost.
    ///
    /// # Errors
    /// If the exchange has ended; [`MessageReceiver::receive`] returns the reason.
    pub async fn send(&mut self, message: AgentMessage) -> Result<(), WireError> {
        let encoded = match message {
            AgentMessage::Rows { channel, batch } => {
                match frame::encode(channel, &batch, &mut self.texts, Compression::None) {
                    Ok(frame) => EncodedMessage::rows(frame, self.texts.len()),
                    Err(refused) => lost(channel, batch.len(), &refused),
                }
            }
            message => match AgentBody::try_from(message)? {
                body @ (AgentBody::Status(_) | AgentBody::Capabilities(_)) => {
                    return self.send_data(FromAgent::data(body)).await;
                }
                body => EncodedMessage::message(body),
            },
        };
        while self.texts_sent < encoded.texts {
            let body = self.texts.from(self.texts_sent);
            self.texts_sent += body.texts.len() as u32;
            self.send_data(FromAgent::data(AgentBody::Texts(body)))
                .await?;
        }
        self.number += 1;
        self.send_data(encoded.data(self.number)).await
    }

    async fn send_data(&mut self, data: FlightData) -> Result<(), WireError> {
        let parts = [&data.app_metadata, &data.data_header, &data.data_body];
        self.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let sent = self.up.send(data).await;
        sent.map_err(|_| broken(&self.dial, "the exchange has ended"))
    }

    /// The number of the last message.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The bytes of all messages so far, without the overhead of Flight and HTTP/2.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn lost(channel: ChannelId, rows: usize, refused: &FrameError) -> EncodedMessage {
    let lost = AgentMessage::lost(channel, rows as u64, refused.cause());
    EncodedMessage::message(AgentBody::try_from(lost).expect("it is within the bounds"))
}

/// The direction from the monitor.
#[derive(Debug)]
pub struct MessageReceiver {
    dial: Arc<Dial>,
    down: Streaming<FlightData>,
}

impl MessageReceiver {
    /// Receives the next message. Cancel-safe: no message is lost if the future is dropped.
    ///
    /// # Errors
    /// When the exchange has ended, with the reason.
    pub async fn receive(&mut self) -> Result<MonitorMessage, WireError> {
        loop {
            let data = self.down.message().await;
            let data = data.map_err(|status| status_error(&self.dial, &status))?;
            let data = data.ok_or_else(|| broken(&self.dial, "it ended the exchange"))?;
            return match FromMonitor::read(&data)?.message.body {
                // No ping was sent; messages of later versions are ignored.
                Some(MonitorMessage::Pong(_)) | None => continue,
                Some(MonitorMessage::Welcome(_)) => Err(broken(&self.dial, "a second welcome")),
                Some(message) => Ok(message),
            };
        }
    }
}
