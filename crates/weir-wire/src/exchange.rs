//! One exchange with a monitor, as an agent holds it: [`begin`] dials and is welcomed; [`Voice`] says
//! words and [`Ear`] hears what comes down.
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
use crate::frame::{self, Compression, Refused};
use crate::message::{AgentSays, DOWN_BYTES_MAX, Down, MonitorSays, Up};
use crate::outbox::Packed;
use crate::word::{AgentWord, ChannelId, Hello, MonitorWord, Welcome};

/// The longest message that is taken: a word of the monitor and room for Flight's own fields.
const MESSAGE_BYTES_MAX: usize = DOWN_BYTES_MAX + (64 << 10);
/// Messages between us and the network: those that are there together travel together.
const SENDING_MAX: usize = 16;

/// Both ways, and what the monitor said first.
pub(crate) type Ways = (mpsc::Sender<FlightData>, Streaming<FlightData>, Welcome);

/// Connects, says hello and hears the welcome.
pub(crate) async fn begin(dial: &Dial, hello: &Hello) -> Result<Ways, WireError> {
    let hello = Up::hello(hello)?;
    let channel = dial.connect().await?;
    let mut flight = FlightServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let (up, words) = mpsc::channel(SENDING_MAX);
    up.try_send(hello).expect("the channel is empty");
    let call = dial.call(ReceiverStream::new(words))?;
    let denied = |status: Status| ended(dial, &status);
    let mut down = flight.do_exchange(call).await.map_err(denied)?.into_inner();
    let first = down.message().await.map_err(denied)?;
    let first = first.ok_or_else(|| broken(dial, "it ended before the welcome"))?;
    match Down::read(&first)?.says {
        Some(MonitorSays::Welcome(body)) => Ok((up, down, Welcome::try_from(body)?)),
        _ => Err(broken(
            dial,
            "its first word is no welcome; is it a monitor of weir?",
        )),
    }
}

/// What a status of the monitor's means to an agent.
pub(crate) fn ended(dial: &Dial, status: &Status) -> WireError {
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

/// Dials as the agent that `hello` says, and is welcomed. Word 1 comes next.
///
/// # Errors
/// When nobody answers, we are not let in, or the monitor speaks another version.
pub async fn join(dial: &Dial, hello: &Hello) -> Result<(Welcome, Voice, Ear), WireError> {
    let (up, down, welcome) = begin(dial, hello).await?;
    let dial = Arc::new(dial.clone());
    let mut voice = Voice {
        dial: dial.clone(),
        up,
        number: welcome.taken,
        texts: TextTable::default(),
        texts_sent: 0,
        bytes: 0,
    };
    voice
        .send(Up::data(AgentSays::Resume(welcome.taken + 1)))
        .await?;
    Ok((welcome, voice, Ear { dial, down }))
}

/// The way up.
#[derive(Debug)]
pub struct Voice {
    dial: Arc<Dial>,
    up: mpsc::Sender<FlightData>,
    number: u64,
    texts: TextTable,
    texts_sent: u32,
    bytes: u64,
}

impl Voice {
    /// Says a word; waits while the monitor does not read. Rows that no frame can carry are told as
    /// lost.
    ///
    /// # Errors
    /// When the exchange is over; [`Ear::hear`] has the reason.
    pub async fn say(&mut self, word: AgentWord) -> Result<(), WireError> {
        let packed = match word {
            AgentWord::Rows { channel, batch } => {
                match frame::encode(channel, &batch, &mut self.texts, Compression::None) {
                    Ok(frame) => Packed::rows(frame, self.texts.len()),
                    Err(refused) => lost(channel, batch.len(), &refused),
                }
            }
            word => match AgentSays::try_from(word)? {
                says @ AgentSays::Status(_) => return self.send(Up::data(says)).await,
                says => Packed::word(says),
            },
        };
        while self.texts_sent < packed.texts {
            let body = self.texts.from(self.texts_sent);
            self.texts_sent += body.texts.len() as u32;
            self.send(Up::data(AgentSays::Texts(body))).await?;
        }
        self.number += 1;
        self.send(packed.data(self.number)).await
    }

    async fn send(&mut self, data: FlightData) -> Result<(), WireError> {
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

fn lost(channel: ChannelId, rows: usize, refused: &Refused) -> Packed {
    let lost = AgentWord::Lost {
        channel,
        requests: rows as u64,
        cause: refused.cause().to_owned(),
    };
    Packed::word(AgentSays::try_from(lost).expect("it is within the bounds"))
}

/// The way down.
#[derive(Debug)]
pub struct Ear {
    dial: Arc<Dial>,
    down: Streaming<FlightData>,
}

impl Ear {
    /// What the monitor says next. Nothing is lost when this is dropped before it is done.
    ///
    /// # Errors
    /// When the exchange is over, with the reason.
    pub async fn hear(&mut self) -> Result<MonitorWord, WireError> {
        loop {
            let data = self.down.message().await;
            let data = data.map_err(|status| ended(&self.dial, &status))?;
            let data = data.ok_or_else(|| broken(&self.dial, "it ended the exchange"))?;
            return match Down::read(&data)?.says {
                // We asked for no time; a word of a later release is not for us.
                Some(MonitorSays::Pong(_)) | None => continue,
                Some(says) => {
                    MonitorWord::try_from(says).map_err(|e| broken(&self.dial, &e.to_string()))
                }
            };
        }
    }
}
