//! [`Network`]: connections that delay messages, queue them during a partition, and break.
//!
//! A connection delivers messages in order. The order between connections is random.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;
use weir_model::Nanos;
use weir_wire::message::FlightData;

use crate::MS;

/// Maximum number of messages in flight in one direction; the others wait at the sender.
pub const IN_FLIGHT_MAX: usize = 24;

/// The identifier of a connection, which is not reused.
pub type LinkId = u64;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The host's end.
    Agent,
    /// The monitor's end.
    Monitor,
}

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    messages: VecDeque<(Nanos, FlightData)>,
    /// When the last message arrives.
    last_arrival: Nanos,
    /// When the receiver detects that the connection is closed.
    closes_at: Option<Nanos>,
}

/// A connection of a host's agent to the monitor.
struct Link {
    host: usize,
    up: Direction,
    down: Direction,
    /// Messages are no longer delivered.
    is_broken: bool,
}

/// What an end receives.
pub enum Arrival {
    /// A message, at this end.
    Message(LinkId, End, FlightData),
    /// The connection is closed.
    Closed(LinkId, End),
}

/// All connections.
#[derive(Default)]
pub struct Network {
    links: BTreeMap<LinkId, Link>,
    links_ever: LinkId,
    /// The end of the partition of each host; until then it neither sends nor receives.
    partitioned_until: BTreeMap<usize, Nanos>,
    /// Maximum delay of a message without a partition.
    latency_max: Nanos,
}

impl Network {
    /// A network without connections.
    pub fn new(latency_max: Nanos) -> Network {
        Network {
            latency_max,
            ..Network::default()
        }
    }

    /// Opens a connection of a host.
    pub fn open(&mut self, host: usize) -> LinkId {
        self.links_ever += 1;
        let link = Link {
            host,
            up: Direction::default(),
            down: Direction::default(),
            is_broken: false,
        };
        self.links.insert(self.links_ever, link);
        self.links_ever
    }

    /// Queues the messages between a host and the monitor until `until`.
    pub fn partition(&mut self, host: usize, until: Nanos) {
        let end = self.partitioned_until.entry(host).or_insert(until);
        *end = until.max(*end);
        for link in self.links.values_mut().filter(|l| l.host == host) {
            for direction in [&mut link.up, &mut link.down] {
                direction.hold(until);
            }
        }
    }

    /// Whether the sender at `from` may send another message.
    pub fn has_room(&self, id: LinkId, from: End) -> bool {
        let link = self.links.get(&id);
        link.is_none_or(|link| link.way(from).messages.len() < IN_FLIGHT_MAX)
    }

    /// Sends a message. A closed connection discards it.
    pub fn send(&mut self, id: LinkId, from: End, data: FlightData, now: Nanos, random: &mut Rng) {
        let latency = MS / 10 + random.i64(0..=self.latency_max);
        let Some(link) = self.links.get_mut(&id).filter(|l| !l.is_broken) else {
            return;
        };
        let healed = self.partitioned_until.get(&link.host).copied();
        let direction = link.way_mut(from);
        let arrival = (now.max(healed.unwrap_or(now)) + latency).max(direction.last_arrival);
        direction.last_arrival = arrival;
        direction.messages.push_back((arrival, data));
    }

    /// Breaks a connection: a random part of the messages in flight is delivered, and each end
    /// detects it within `delay_max`.
    pub fn cut(&mut self, id: LinkId, now: Nanos, delay_max: Nanos, random: &mut Rng) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        link.is_broken = true;
        for direction in [&mut link.up, &mut link.down] {
            let stays = random.usize(0..=direction.messages.len());
            direction.close(stays, now + random.i64(0..=delay_max));
        }
    }

    /// Breaks all connections of the monitor; a random part of its messages is delivered.
    pub fn cut_all(&mut self, now: Nanos, delay_max: Nanos, random: &mut Rng) {
        let ids: Vec<LinkId> = self.links.keys().copied().collect();
        for id in ids {
            self.cut(id, now, delay_max, random);
            let link = self.links.get_mut(&id).expect("it was listed");
            link.up.messages.clear();
            link.up.closes_at = None;
            self.forget_if_over(id);
        }
    }

    /// One end closes the connection; all messages that it sent before are delivered.
    pub fn close(&mut self, id: LinkId, by: End, now: Nanos, random: &mut Rng) {
        let delay = random.i64(0..=self.latency_max);
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        link.is_broken = true;
        let healed = self.partitioned_until.get(&link.host).copied();
        let sent = link.way_mut(by);
        let all = sent.messages.len();
        sent.close(all, now.max(healed.unwrap_or(now)) + delay);
        let received = link.way_mut(match by {
            End::Agent => End::Monitor,
            End::Monitor => End::Agent,
        });
        received.messages.clear();
        received.closes_at = None;
        self.forget_if_over(id);
    }

    /// The next of the arrivals that are due at `now`, of a random connection.
    pub fn next(&mut self, now: Nanos, random: &mut Rng) -> Option<Arrival> {
        let mut due = Vec::new();
        for (id, link) in &self.links {
            for from in [End::Agent, End::Monitor] {
                if link.way(from).is_due(now) {
                    due.push((*id, from));
                }
            }
        }
        if due.is_empty() {
            return None;
        }
        let (id, from) = due[random.usize(..due.len())];
        let to = match from {
            End::Agent => End::Monitor,
            End::Monitor => End::Agent,
        };
        let link = self.links.get_mut(&id).expect("it was listed");
        let direction = link.way_mut(from);
        let arrival = match direction.messages.pop_front() {
            Some((_, data)) => Arrival::Message(id, to, data),
            None => {
                direction.closes_at = None;
                Arrival::Closed(id, to)
            }
        };
        self.forget_if_over(id);
        Some(arrival)
    }

    fn forget_if_over(&mut self, id: LinkId) {
        let over = |d: &Direction| d.messages.is_empty() && d.closes_at.is_none();
        let is_over = |link: &Link| link.is_broken && over(&link.up) && over(&link.down);
        if self.links.get(&id).is_some_and(is_over) {
            self.links.remove(&id);
        }
    }
}

impl Link {
    fn way(&self, from: End) -> &Direction {
        match from {
            End::Agent => &self.up,
            End::Monitor => &self.down,
        }
    }

    fn way_mut(&mut self, from: End) -> &mut Direction {
        match from {
            End::Agent => &mut self.up,
            End::Monitor => &mut self.down,
        }
    }
}

impl Direction {
    fn is_due(&self, now: Nanos) -> bool {
        match self.messages.front() {
            Some((at, _)) => *at <= now,
            None => self.closes_at.is_some_and(|at| at <= now),
        }
    }

    fn close(&mut self, messages: usize, at: Nanos) {
        self.messages.truncate(messages);
        let last = self.messages.back().map_or(at, |(at, _)| *at);
        self.closes_at = Some(last.max(at));
    }

    fn hold(&mut self, until: Nanos) {
        for (at, _) in &mut self.messages {
            *at = until.max(*at);
        }
        self.last_arrival = until.max(self.last_arrival);
        self.closes_at = self.closes_at.map(|at| until.max(at));
    }
}
