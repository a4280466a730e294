//! The monitor's side of one connection of an agent: what comes is read, checked and taken once.
//!
//! Pure: it neither reads from the network nor looks at a clock. Whoever has the connection gives it
//! each message and the time at which it came.

use std::sync::Arc;

use arrow_flight::FlightData;
use weir_model::Nanos;

use crate::error::Malformed;
use crate::frame::texts::{ReceivedTexts, TextBudget};
use crate::frame::{self, Decoded};
use crate::message::{Down, Pong, Up, UpBody};
use crate::protocol::{AgentMessage, ChannelId, Welcome};

/// What a message was.
#[derive(Debug)]
pub enum Incoming {
    /// A word: for [`crate::ServerEvent::Message`], with its number if it has one.
    Message(Option<u64>, AgentMessage),
    /// A question about the time; the answer goes back at once, before anything that waits.
    Pong(Box<FlightData>),
    /// The agent no longer has so many messages that were not taken, from `first` on: the monitor has
    /// forgotten what it had taken.
    Missing {
        /// The number of the first that is missing.
        first: u64,
        /// How many.
        messages: u64,
    },
    /// Nothing that concerns anybody else.
    Ignored,
}

/// One connection of an agent, from its welcome on.
#[derive(Debug)]
pub struct Intake {
    /// The number of the last word that was taken.
    acked: u64,
    texts: ReceivedTexts,
    resumed: bool,
}

impl Intake {
    /// For an agent that was welcomed so; texts that are new to this process are charged to
    /// `budget`, its host's.
    pub fn new(welcome: &Welcome, budget: Arc<TextBudget>) -> Intake {
        Intake {
            acked: welcome.acked,
            texts: ReceivedTexts::new(budget),
            resumed: false,
        }
    }

    /// Takes a message that came at `now`, by the monitor's clock.
    ///
    /// # Errors
    /// When the agent breaks the protocol; its connection must end then. What it said before stands.
    pub fn receive(&mut self, data: &FlightData, now: Nanos) -> Result<Incoming, Malformed> {
        let up = Up::read(data)?;
        match (up.body, up.number) {
            (Some(UpBody::Ping(ping)), 0) => {
                let pong = Pong {
                    origin_ns: ping.origin_ns,
                    receive_ns: now,
                    transmit_ns: now,
                };
                Ok(Incoming::Pong(Box::new(Down::from(pong).data())))
            }
            (Some(UpBody::Texts(body)), 0) => {
                self.texts.add(&body)?;
                Ok(Incoming::Ignored)
            }
            (Some(UpBody::Resume(next)), 0) => self.resume(next),
            (Some(UpBody::Status(body)), 0) => {
                let status = UpBody::Status(body);
                Ok(Incoming::Message(None, AgentMessage::try_from(status)?))
            }
            (Some(_), 0) => Err(Malformed("a word without its number".into())),
            (None, 0) => Ok(Incoming::Ignored),
            (body, number) => self.numbered(number, body, data),
        }
    }

    fn resume(&mut self, next: u64) -> Result<Incoming, Malformed> {
        if self.resumed || next == 0 {
            return Err(Malformed("resume: a second time, or with number 0".into()));
        }
        self.resumed = true;
        let first = self.acked + 1;
        if next <= first {
            return Ok(Incoming::Ignored);
        }
        self.acked = next - 1;
        Ok(Incoming::Missing {
            first,
            messages: next - first,
        })
    }

    fn numbered(
        &mut self,
        number: u64,
        body: Option<UpBody>,
        data: &FlightData,
    ) -> Result<Incoming, Malformed> {
        if number <= self.acked {
            return Ok(Incoming::Ignored);
        }
        if number != self.acked + 1 {
            return Err(Malformed(format!(
                "word {number} came where {} comes next",
                self.acked + 1
            )));
        }
        let message = match body {
            Some(UpBody::Rows(head)) => {
                let channel = ChannelId(head.channel);
                match frame::decode(&head, &data.data_header, &data.data_body, &self.texts)? {
                    Decoded::Rows(batch) => AgentMessage::Rows { channel, batch },
                    Decoded::TextBudget(requests) => AgentMessage::Lost {
                        channel,
                        requests,
                        cause: frame::CAUSE_TEXTS.into(),
                    },
                }
            }
            Some(UpBody::Status(_)) => return Err(Malformed("status has no number".into())),
            Some(body) => AgentMessage::try_from(body)?,
            // A word of a later release. It is taken, or it would come again and again.
            None => {
                self.acked = number;
                return Ok(Incoming::Ignored);
            }
        };
        self.acked = number;
        Ok(Incoming::Message(Some(number), message))
    }
}
