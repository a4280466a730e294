//! [`Sending`]: what is sent next on a connection: the resumption first, pings when they are due, the
//! newest status, and words, each behind the texts that it refers to.

use std::collections::VecDeque;
use std::time::Duration;

use arrow_flight::FlightData;
use tokio::time::Instant;
use weir_model::Nanos;

use super::{Now, State};
use crate::message::{Ping, Up, UpBody};

/// Pings at the beginning of a connection, and the pause between them.
const FIRST_PINGS: u32 = 6;
const FIRST_PING_PAUSE: Duration = Duration::from_millis(40);
/// The pause between pings later on.
const PING_PAUSE: Duration = Duration::from_secs(2);
/// Pings whose answers may still come.
const PINGS_MAX: usize = 16;

/// What is sent next on a connection.
pub(super) struct Sending {
    /// The number of the first word that comes, until that was said.
    resume: Option<u64>,
    /// How many texts the monitor has, and how many it needs for the word that waits for them.
    texts_sent: u32,
    texts_needed: u32,
    message: Option<FlightData>,
    now: Now,
    ping_at: Instant,
    pings_sent: u32,
    /// When pings left whose answers may come, by the agent's clock.
    pings: VecDeque<Nanos>,
}

impl Sending {
    /// On a new connection, on which word `resume` comes first.
    pub fn new(resume: u64, now: Now) -> Sending {
        Sending {
            resume: Some(resume),
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

    /// True if this ping was sent and not answered yet.
    pub fn take_ping(&mut self, left: Nanos) -> bool {
        match self.pings.iter().position(|ping| *ping == left) {
            Some(place) => {
                self.pings.remove(place);
                true
            }
            None => false,
        }
    }

    /// True if something is to be sent.
    pub fn has_next(&self, state: &mut State) -> bool {
        self.resume.is_some()
            || self.ping_at <= Instant::now()
            || state.status.is_some()
            || self.message.is_some()
            || state.outbox.has_next()
    }

    /// What is to be sent next.
    pub fn next(&mut self, state: &mut State) -> Option<FlightData> {
        if let Some(number) = self.resume.take() {
            return Some(Up::data(UpBody::Resume(number)));
        }
        if self.ping_at <= Instant::now() {
            return Some(self.ping());
        }
        if let Some(status) = state.status.take() {
            return Some(Up::data(status));
        }
        if self.message.is_none() {
            let (number, message) = state.outbox.next_message()?;
            self.texts_needed = message.texts;
            self.message = Some(message.data(number));
        }
        if self.texts_sent < self.texts_needed {
            let body = state.texts.from(self.texts_sent);
            self.texts_sent += body.texts.len() as u32;
            return Some(Up::data(UpBody::Texts(body)));
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
        Up::data(UpBody::Ping(Ping { origin_ns }))
    }
}
