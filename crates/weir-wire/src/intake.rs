//! The monitor's side of one connection of an agent: what comes is read, checked and taken once.
//!
//! Pure: it neither reads from the network nor looks at a clock. Whoever has the connection gives it
//! each message and the time at which it came.

use std::sync::Arc;

use arrow_flight::FlightData;
use weir_model::Nanos;

use crate::error::Malformed;
use crate::frame::texts::{KnownTexts, TextBudget};
use crate::frame::{self, Decoded};
use crate::message::{AgentSays, Down, Pong, Up};
use crate::word::{AgentWord, ChannelId, Welcome};

/// What a message was.
#[derive(Debug)]
pub enum Heard {
    /// A word: for [`crate::Event::Said`], with its number if it has one.
    Word(Option<u64>, AgentWord),
    /// A question about the time; the answer goes back at once, before anything that waits.
    Answer(Box<FlightData>),
    /// The agent no longer has so many words that were not taken, from `first` on: the monitor has
    /// forgotten what it had taken.
    Missing {
        /// The number of the first that is missing.
        first: u64,
        /// How many.
        words: u64,
    },
    /// Nothing that concerns anybody else.
    Nothing,
}

/// One connection of an agent, from its welcome on.
#[derive(Debug)]
pub struct Intake {
    /// The number of the last word that was taken.
    taken: u64,
    texts: KnownTexts,
    resumed: bool,
}

impl Intake {
    /// For an agent that was welcomed so; texts that are new to this process are charged to
    /// `budget`, its host's.
    pub fn new(welcome: &Welcome, budget: Arc<TextBudget>) -> Intake {
        Intake {
            taken: welcome.taken,
            texts: KnownTexts::new(budget),
            resumed: false,
        }
    }

    /// Takes a message that came at `now`, by the monitor's clock.
    ///
    /// # Errors
    /// When the agent breaks the protocol; its connection must end then. What it said before stands.
    pub fn hear(&mut self, data: &FlightData, now: Nanos) -> Result<Heard, Malformed> {
        let up = Up::read(data)?;
        match (up.says, up.number) {
            (Some(AgentSays::Ping(ping)), 0) => {
                let pong = Pong {
                    left_ns: ping.left_ns,
                    came_ns: now,
                    answered_ns: now,
                };
                Ok(Heard::Answer(Box::new(Down::from(pong).data())))
            }
            (Some(AgentSays::Texts(body)), 0) => {
                self.texts.learn(&body)?;
                Ok(Heard::Nothing)
            }
            (Some(AgentSays::Resume(next)), 0) => self.resume(next),
            (Some(AgentSays::Status(body)), 0) => {
                let status = AgentSays::Status(body);
                Ok(Heard::Word(None, AgentWord::try_from(status)?))
            }
            (Some(_), 0) => Err(Malformed("a word without its number".into())),
            (None, 0) => Ok(Heard::Nothing),
            (says, number) => self.numbered(number, says, data),
        }
    }

    fn resume(&mut self, next: u64) -> Result<Heard, Malformed> {
        if self.resumed || next == 0 {
            return Err(Malformed("resume: a second time, or with number 0".into()));
        }
        self.resumed = true;
        let first = self.taken + 1;
        if next <= first {
            return Ok(Heard::Nothing);
        }
        self.taken = next - 1;
        Ok(Heard::Missing {
            first,
            words: next - first,
        })
    }

    fn numbered(
        &mut self,
        number: u64,
        says: Option<AgentSays>,
        data: &FlightData,
    ) -> Result<Heard, Malformed> {
        if number <= self.taken {
            return Ok(Heard::Nothing);
        }
        if number != self.taken + 1 {
            return Err(Malformed(format!(
                "word {number} came where {} comes next",
                self.taken + 1
            )));
        }
        let word = match says {
            Some(AgentSays::Rows(head)) => {
                let channel = ChannelId(head.channel);
                match frame::decode(&head, &data.data_header, &data.data_body, &self.texts)? {
                    Decoded::Rows(batch) => AgentWord::Rows { channel, batch },
                    Decoded::TextBudget(requests) => AgentWord::Lost {
                        channel,
                        requests,
                        cause: frame::CAUSE_TEXTS.into(),
                    },
                }
            }
            Some(AgentSays::Status(_)) => return Err(Malformed("status has no number".into())),
            Some(says) => AgentWord::try_from(says)?,
            // A word of a later release. It is taken, or it would come again and again.
            None => {
                self.taken = number;
                return Ok(Heard::Nothing);
            }
        };
        self.taken = number;
        Ok(Heard::Word(Some(number), word))
    }
}
