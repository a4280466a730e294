//! The monitor's side of one connection of an agent: messages are decoded, checked and accepted
//! once.
//!
//! Does no I/O and reads no clock: the owner of the connection passes each message and its arrival
//! time.

use std::sync::Arc;

use arrow_flight::FlightData;
use weir_model::Nanos;

use crate::error::Malformed;
use crate::frame::texts::{ReceivedTexts, TextBudget};
use crate::frame::{self, Decoded};
use crate::message::{
    AgentBody, AgentMessage, ChannelId, FromAgent, FromMonitor, MonitorMessage, Pong, Welcome,
};

/// The result of reading a message.
#[derive(Debug)]
pub enum Incoming {
    /// A message for [`crate::ServerEvent::Message`], with its number if it has one.
    Message(Option<u64>, AgentMessage),
    /// The reply to a ping, to be sent at once, before anything that is queued.
    Pong(Box<FlightData>),
    /// The agent no longer has these unacknowledged messages: the monitor lost the state that had
    /// acknowledged them.
    Missing {
        /// The number of the first missing message.
        first: u64,
        /// The number of missing messages.
        messages: u64,
    },
    /// No action is needed.
    Ignored,
}

/// One connection of an agent, after its welcome.
#[derive(Debug)]
pub struct Intake {
    /// The number of the last message received.
    acked: u64,
    texts: ReceivedTexts,
    resumed: bool,
    unknown: u64,
}

impl Intake {
    /// For an agent with this welcome; texts that are new to this process are charged to `budget`,
    /// the budget of its host.
    pub fn new(welcome: &Welcome, budget: Arc<TextBudget>) -> Intake {
        Intake {
            acked: welcome.acked,
            texts: ReceivedTexts::new(budget),
            resumed: false,
            unknown: 0,
        }
    }

    /// The number of messages so far of an unknown type or with an unknown field.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Reads a message that arrived at `now`, by the monitor's clock.
    ///
    /// # Errors
    /// If the agent violates the protocol; its connection must end then. Earlier messages remain
    /// valid.
    pub fn receive(&mut self, data: &FlightData, now: Nanos) -> Result<Incoming, Malformed> {
        let received = FromAgent::read(data)?;
        self.unknown += u64::from(received.has_unknown);
        match (received.message.body, received.message.number) {
            (Some(AgentBody::Ping(ping)), 0) => {
                let pong = Pong {
                    origin_ns: ping.origin_ns,
                    receive_ns: now,
                    transmit_ns: now,
                };
                Ok(Incoming::Pong(Box::new(FromMonitor::data(
                    MonitorMessage::Pong(pong),
                ))))
            }
            (Some(AgentBody::Texts(body)), 0) => {
                self.texts.add(&body)?;
                Ok(Incoming::Ignored)
            }
            (Some(AgentBody::Resume(next)), 0) => self.resume(next),
            (Some(body @ (AgentBody::Status(_) | AgentBody::Capabilities(_))), 0) => {
                Ok(Incoming::Message(None, AgentMessage::try_from(body)?))
            }
            (Some(_), 0) => Err(Malformed("a message without its number".into())),
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
        body: Option<AgentBody>,
        data: &FlightData,
    ) -> Result<Incoming, Malformed> {
        if number <= self.acked {
            return Ok(Incoming::Ignored);
        }
        if number != self.acked + 1 {
            return Err(Malformed(format!(
                "message {number}, expected {}",
                self.acked + 1
            )));
        }
        let message = match body {
            Some(AgentBody::Rows(head)) => {
                let channel = ChannelId(head.channel);
                match frame::decode(&head, &data.data_header, &data.data_body, &self.texts)? {
                    Decoded::Rows(batch) => AgentMessage::Rows { channel, batch },
                    Decoded::TextBudget(requests) => {
                        AgentMessage::lost(channel, requests, frame::CAUSE_TEXTS)
                    }
                }
            }
            Some(AgentBody::Status(_) | AgentBody::Capabilities(_)) => {
                return Err(Malformed("a message must not have a number".into()));
            }
            Some(body) => AgentMessage::try_from(body)?,
            // A message of a later release is acknowledged, or the agent would send it again
            // forever.
            None => {
                self.acked = number;
                return Ok(Incoming::Ignored);
            }
        };
        self.acked = number;
        Ok(Incoming::Message(Some(number), message))
    }
}
