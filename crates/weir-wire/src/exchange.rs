//! One exchange with a monitor, as an agent holds it: [`begin`] dials and is welcomed; [`MessageSender`] says
//! words and [`MessageReceiver`] hears what comes down.
//!
//! An agent that must lose nothing has an [`crate::Uplink`], with a thread, an outbox and a spool.
//! This is for whoever drives many agents on one runtime: words that were said on an exchange that
//! breaks are gone.

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
use crate::message::{DOWN_BYTES_MAX, Down, DownBody, Up, UpBody};
use crate::outbox::EncodedMessage;
use crate::protocol::{AgentMessage, ChannelId, Hello, MonitorMessage, Welcome};

/// The longest message that is acked: a word of the monitor and room for Flight's own fields.
const MESSAGE_BYTES_MAX: usize = DOWN_BYTES_MAX + (64 << 10);
/// Messages between us and the network: those that are there together travel together.
const SENDING_MAX: usize = 16;

/// Both ways, and what the monitor said first.
pub(crate) type Streams = (mpsc::Sender<FlightData>, Streaming<FlightData>, Welcome);

/// Connects, says hello and hears the welcome.
pub(crate) async fn open(dial: &Dial, hello: &Hello) -> Result<Streams, WireError> {
    let hello = Up::hello(hello)?;
    let channel = dial.connect().await?;
    let mut flight = FlightServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let (up, messages) = mpsc::channel(SENDING_MAX);
    up.try_send(hello).expect("the channel is empty");
    let call = dial.call(ReceiverStream::new(messages))?;
    let denied = |status: Status| status_error(dial, &status);
    let mut down = flight.do_exchange(call).await.map_err(denied)?.into_inner();
    let first = down.message().await.map_err(denied)?;
    let first = first.ok_or_else(|| broken(dial, "it ended before the welcome"))?;
    match Down::read(&first)?.body {
        Some(DownBody::Welcome(body)) => Ok((up, down, Welcome::try_from(body)?)),
        _ => Err(broken(
            dial,
            "its first word is no welcome; is it a monitor of weir?",
        )),
    }
}

/// What a status of the monitor's means to an agent.
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

/// Dials as the agent that `hello` body, and is welcomed. Word 1 comes next.
///
/// # Errors
/// When nobody answers, we are not let in, or the monitor speaks another version.
pub async fn join(
    dial: &Dial,
    hello: &Hello,
) -> Result<(Welcome, MessageSender, MessageReceiver), WireError> {
    let (up, down, welcome) = open(dial, hello).await?;
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
        .send_data(Up::data(UpBody::Resume(welcome.acked + 1)))
        .await?;
    Ok((welcome, sender, MessageReceiver { dial, down }))
}

/// The way up.
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
    /// Says a word; waits while the monitor does not read. Rows that no frame can carry are told as
    /// lost.
    ///
    /// # Errors
    /// When the exchange is over; [`MessageReceiver::receive`] has the reason.
    pub async fn send(&mut self, message: AgentMessage) -> Result<(), WireError> {
        let encoded = match message {
            AgentMessage::Rows { channel, batch } => {
                match frame::encode(channel, &batch, &mut self.texts, Compression::None) {
                    Ok(frame) => EncodedMessage::rows(frame, self.texts.len()),
                    Err(refused) => lost(channel, batch.len(), &refused),
                }
            }
            message => match UpBody::try_from(message)? {
                body @ UpBody::Status(_) => return self.send_data(Up::data(body)).await,
                body => EncodedMessage::message(body),
            },
        };
        while self.texts_sent < encoded.texts {
            let body = self.texts.from(self.texts_sent);
            self.texts_sent += body.texts.len() as u32;
            self.send_data(Up::data(UpBody::Texts(body))).await?;
        }
        self.number += 1;
        self.send_data(encoded.data(self.number)).await
    }

    async fn send_data(&mut self, data: FlightData) -> Result<(), WireError> {
        let parts = [&data.app_metadata, &data.data_header, &data.data_body];
        self.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let sent = self.up.send(data).await;
        sent.map_err(|_| broken(&self.dial, "the exchange is over"))
    }

    /// The number of the last word that was said.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The bytes of all messages so far, without Flight's and HTTP/2's own.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn lost(channel: ChannelId, rows: usize, refused: &FrameError) -> EncodedMessage {
    let lost = AgentMessage::Lost {
        channel,
        requests: rows as u64,
        cause: refused.cause().to_owned(),
    };
    EncodedMessage::message(UpBody::try_from(lost).expect("it is within the bounds"))
}

/// The way down.
#[derive(Debug)]
pub struct MessageReceiver {
    dial: Arc<Dial>,
    down: Streaming<FlightData>,
}

impl MessageReceiver {
    /// What the monitor says next. Nothing is lost when this is dropped before it is done.
    ///
    /// # Errors
    /// When the exchange is over, with the reason.
    pub async fn receive(&mut self) -> Result<MonitorMessage, WireError> {
        loop {
            let data = self.down.message().await;
            let data = data.map_err(|status| status_error(&self.dial, &status))?;
            let data = data.ok_or_else(|| broken(&self.dial, "it ended the exchange"))?;
            return match Down::read(&data)?.body {
                // We asked for no time; a word of a later release is not for us.
                Some(DownBody::Pong(_)) | None => continue,
                Some(body) => {
                    MonitorMessage::try_from(body).map_err(|e| broken(&self.dial, &e.to_string()))
                }
            };
        }
    }
}
