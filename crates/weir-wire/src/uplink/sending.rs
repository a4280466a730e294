//! [`Sending`]: the order of messages on a connection: resume first, pings when due, the newest
//! status, and messages, each after the texts that it refers to.

use std::collections::VecDeque;
use std::time::Duration;

use arrow_flight::FlightData;
use tokio::time::Instant;
use weir_model::Nanos;

use super::{State, UplinkTime};
use crate::message::{AgentBody, FromAgent, Ping};

/// The number of pings at the start of a connection, and the pause between them.
const FIRST_PINGS: u32 = 6;
const FIRST_PING_PAUSE: Duration = Duration::from_millis(40);
/// The pause between pings later on.
const PING_PAUSE: Duration = Duration::from_secs(2);
/// Pings whose replies may still arrive.
const PINGS_MAX: usize = 16;

/// The state of sending on a connection.
pub(super) struct Sending {
    /// The number of the first message, until it was sent in `resume`.
    resume: Option<u64>,
    /// The monitor reads capabilities.
    has_capabilities: bool,
    /// The capabilities that were sent: how often they had changed.
    capabilities_sent: Option<u64>,
    /// How many texts were sent, and how many the pending message needs.
    texts_sent: u32,
    texts_needed: u32,
    message: Option<FlightData>,
    now: UplinkTime,
    ping_at: Instant,
    pings_sent: u32,
    /// When the unanswered pings were sent, by the agent's clock.
    pings: VecDeque<Nanos>,
}

impl Sending {
    /// For a new connection that starts with message `resume`.
    pub fn new(resume: u64, has_capabilities: bool, now: UplinkTime) -> Sending {
        Sending {
            resume: Some(resume),
            has_capabilities,
            capabilities_sent: None,
            texts_sent: 0,
            texts_needed: 0,
            message: None,
            now,
            ping_at: Instant::now(),
            pings_sent: 0,
            pings: VecDeque::new(),
        }
    }

    /// When the next ping is due.
    pub fn ping_at(&self) -> Instant {
        self.ping_at
    }

    /// Removes the ping sent at `left`; false if there is no such ping.
    pub fn take_ping(&mut self, left: Nanos) -> bool {
        match self.pings.iter().position(|ping| *ping == left) {
            Some(place) => {
                self.pings.remove(place);
                true
            }
            None => false,
        }
    }

    /// Whether the capabilities are to be sent.
    fn wants_capabilities(&self, state: &State) -> bool {
        let (encoded, changes) = &state.capabilities;
        self.has_capabilities && !encoded.is_empty() && self.capabilities_sent != Some(*changes)
    }

    /// Whether there is something to send.
    pub fn has_next(&self, state: &mut State) -> bool {
        self.resume.is_some()
            || self.wants_capabilities(state)
            || self.ping_at <= Instant::now()
            || state.status.is_some()
            || self.message.is_some()
            || state.outbox.has_next()
    }

    /// The next message to be sent.
    pub fn next(&mut self, state: &mut State) -> Option<FlightData> {
        if let Some(number) = self.resume.take() {
            return Some(FromAgent::data(AgentBody::Resume(number)));
        }
        if self.wants_capabilities(state) {
            let (encoded, changes) = &state.capabilities;
            self.capabilities_sent = Some(*changes);
            return Some(FromAgent::data(AgentBody::Capabilities(encoded.clone())));
        }
        if self.ping_at <= Instant::now() {
            return Some(self.ping());
        }
        if let Some(status) = state.status.take() {
            return Some(FromAgent::data(status));
        }
        if self.message.is_none() {
            let (number, message) = state.outbox.next_message()?;
            self.texts_needed = message.texts;
            self.message = Some(message.data(number));
        }
        if self.texts_sent < self.texts_needed {
            let body = state.texts.from(self.texts_sent);
            self.texts_sent += body.texts.len() as u32;
            return Some(FromAgent::data(AgentBody::Texts(body)));
        }
        self.message.take()
    }

    fn ping(&mut self) -> FlightData {
        self.pings_sent += 1;
        let pause = match self.pings_sent < FIRST_PINGS {
            true => FIRST_PING_PAUSE,
            false => PING_PAUSE,
        };
        self.ping_at = Instant::now() + pause;
        let origin_ns = (self.now)();
        self.pings.push_back(origin_ns);
        if self.pings.len() > PINGS_MAX {
            self.pings.pop_front();
        }
        FromAgent::data(AgentBody::Ping(Ping { origin_ns }))
    }
}
