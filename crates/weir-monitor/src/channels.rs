//! [`Channels`]: the fragments that the agents run for the monitor's queries. Queries with equal
//! fragments share one channel.

use std::collections::BTreeMap;

use weir_model::{Batch, Column, Nanos, Shape};
use weir_query::place::fleet::Fragment;
use weir_query::plan::wire;
use weir_wire::{ChannelId, MonitorMessage, frame};

use super::account::Account;
use super::agents::Counted;
use super::checkpoint::{Unsafe, hexadecimal};
use super::gather::Waiting;
use super::state::SavedChannel;

/// A fragment that all agents run, and its rows.
pub struct Channel {
    /// Its identifier in the protocol.
    pub id: ChannelId,
    /// The fragment that the agents run.
    pub fragment: Fragment,
    /// The fragment as encoded in the protocol.
    pub encoded: Vec<u8>,
    /// The name of its source in the monitor's engine.
    pub source: String,
    /// The number of queries that read it.
    users: usize,
    /// Rows that wait for the watermark.
    pub waiting: Waiting,
    /// The column that contains the number of requests per row, if it is not one.
    pub counts: Option<usize>,
    /// The outcome of the requests of all agents.
    pub account: Account,
    /// The number of agents that run it and for which others wait.
    pub live: usize,
    /// The number of agents that ran it when they ended.
    pub ended: usize,
    /// The number of agents at which it failed.
    pub failed: usize,
    /// How long after their instant rows are needed again if the monitor restarts; `None` if they
    /// are not.
    pub hold: Option<Nanos>,
    /// The instant from which all agents that run it deliver all rows.
    pub complete_from: Nanos,
    /// Agents have discarded rows that results up to this instant need.
    pub given_up: Nanos,
    /// It ran before the restart of the monitor.
    pub restored: bool,
}

/// All running channels.
pub struct Channels {
    by_id: BTreeMap<ChannelId, Channel>,
    next: u64,
    /// Channels from before the restart of the monitor that no query has requested yet.
    restored: Vec<SavedChannel>,
}

impl Channels {
    /// No channels; numbers from `next` on are unused.
    pub fn new(next: u64) -> Channels {
        Channels {
            by_id: BTreeMap::new(),
            next,
            restored: Vec::new(),
        }
    }

    /// The channel of `fragment`, for one more query; true if it is new.
    pub fn want(&mut self, fragment: &Fragment) -> (ChannelId, bool) {
        // As agents receive it: a plan of this monitor's catalog has texts that one of an upstream
        // monitor does not have.
        let encoded = wire::encode(&fragment.plan);
        let is_same =
            |c: &&mut Channel| c.encoded == encoded && c.fragment.intake == fragment.intake;
        if let Some(channel) = self.by_id.values_mut().find(is_same) {
            channel.users += 1;
            return (channel.id, false);
        }
        let digits = hexadecimal(&encoded);
        let saved = self.restored.iter().position(|c| c.fragment == digits);
        let saved = saved.map(|at| self.restored.swap_remove(at));
        let id = ChannelId(saved.as_ref().map_or(self.next, |c| c.id));
        self.next = self.next.max(id.0 + 1);
        let channel = Channel {
            id,
            fragment: fragment.clone(),
            encoded,
            source: format!("channel {}", id.0),
            users: 1,
            waiting: Waiting::counting(fragment.plan.requests_column()),
            counts: fragment.plan.requests_column(),
            account: saved.as_ref().map_or(Account::default(), |c| c.account),
            live: 0,
            ended: 0,
            failed: 0,
            hold: None,
            complete_from: saved.as_ref().map_or(Nanos::MIN, |c| c.complete_from),
            given_up: saved.as_ref().map_or(Nanos::MIN, |c| c.given_up),
            restored: saved.is_some(),
        };
        self.by_id.insert(id, channel);
        (id, true)
    }

    /// Adds a channel from before the restart of the monitor.
    pub fn restore(&mut self, channel: SavedChannel) {
        self.restored.push(channel);
    }

    /// Removes those that no query has requested.
    pub fn forget_restored(&mut self) {
        self.restored.clear();
    }

    /// Removes one query from the channel, which is returned and removed if that was the last.
    pub fn release(&mut self, id: ChannelId) -> Option<Channel> {
        let channel = self.by_id.get_mut(&id)?;
        channel.users -= 1;
        match channel.users {
            0 => self.by_id.remove(&id),
            _ => None,
        }
    }

    /// The channel of that number, if it runs.
    pub fn get(&self, id: ChannelId) -> Option<&Channel> {
        self.by_id.get(&id)
    }

    /// The same, mutable.
    pub fn get_mut(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.by_id.get_mut(&id)
    }

    /// All channels, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.by_id.values()
    }

    /// All channels, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Channel> {
        self.by_id.values_mut()
    }

    /// Handles an unsafe message that is discarded although results may need it again.
    pub fn give_up(&mut self, word: &Unsafe) {
        if let Some((id, _)) = word.last_row()
            && let Some(channel) = self.by_id.get_mut(&id)
        {
            channel.given_up = channel.given_up.max(word.until);
        }
    }

    /// The number of the next new channel.
    pub fn next(&self) -> u64 {
        self.next
    }
}

impl Channel {
    /// The order that starts it at an agent.
    pub fn start(&self) -> MonitorMessage {
        MonitorMessage::start(self.id, self.encoded.clone())
    }

    /// Adds or removes one agent of this kind.
    pub fn count(&mut self, counted: Option<Counted>, more: bool) {
        let number = match counted {
            Some(Counted::Live) => &mut self.live,
            Some(Counted::Ended) => &mut self.ended,
            None => return,
        };
        *number = match more {
            true => *number + 1,
            false => number.saturating_sub(1),
        };
    }

    /// True if its rows are the changes of a relation.
    pub fn is_relation(&self) -> bool {
        self.fragment.plan.shape == Shape::Relation
    }

    /// The reason why a batch does not belong to this channel. The protocol decoder has checked
    /// each row.
    pub fn fault(&self, batch: &Batch) -> Option<String> {
        if batch.weights.is_some() && !self.is_relation() {
            return Some("retractions of a stream".into());
        }
        let checked = frame::check(batch, &self.fragment.plan.schema);
        checked.err().map(|malformed| malformed.0)
    }

    /// The batch as the monitor accepts it at `now`.
    pub fn taken_in(&self, mut batch: Batch, now: Nanos) -> Batch {
        for &at in &self.fragment.intake {
            batch.columns[at] = Column::ints(vec![now; batch.len()]);
        }
        batch
    }
}
