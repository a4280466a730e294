//! [`Channels`]: what the agents run for the monitor's queries. Queries whose fragments are equal
//! share one channel.

use std::collections::BTreeMap;

use weir_model::{Batch, Column, Nanos, Shape};
use weir_query::place::fleet::Fragment;
use weir_query::plan::codec;
use weir_wire::{ChannelId, MonitorMessage, frame};

use super::account::Account;
use super::agents::Counted;
use super::checkpoint::{Unsafe, hexadecimal};
use super::gather::Waiting;
use super::state::SavedChannel;

/// A fragment that all agents run, and what comes of it.
pub struct Channel {
    /// What agent and monitor call it.
    pub id: ChannelId,
    /// What the agents run.
    pub fragment: Fragment,
    /// The fragment as it goes over the wire.
    pub encoded: Vec<u8>,
    /// What the monitor's engine calls it.
    pub source: String,
    /// How many queries read it.
    users: usize,
    /// Rows that wait for their instant to be over.
    pub waiting: Waiting,
    /// The column of its rows that says how many requests each stands for, if not one.
    pub counts: Option<usize>,
    /// What became of the requests of all agents.
    pub account: Account,
    /// How many agents run it and are waited for.
    pub heard: usize,
    /// How many agents ran it when they ended.
    pub ended: usize,
    /// At how many agents it failed.
    pub failed: usize,
    /// For how long after their instant rows are needed again should the monitor be restarted;
    /// `None` if they never are.
    pub hold: Option<Nanos>,
    /// From when on all agents that run it have seen everything.
    pub complete_from: Nanos,
    /// Agents hold no longer all that results up to this instant need.
    pub given_up: Nanos,
    /// It ran already before the monitor was restarted.
    pub restored: bool,
}

/// All channels that run.
pub struct Channels {
    by_id: BTreeMap<ChannelId, Channel>,
    next: u64,
    /// Of before the monitor was restarted, until queries want them again.
    restored: Vec<SavedChannel>,
}

impl Channels {
    /// No channels; numbers from `next` on were never given.
    pub fn new(next: u64) -> Channels {
        Channels {
            by_id: BTreeMap::new(),
            next,
            restored: Vec::new(),
        }
    }

    /// The channel that gives what `fragment` gives, for one more query; true if it is new.
    pub fn want(&mut self, fragment: &Fragment) -> (ChannelId, bool) {
        let known = self.by_id.values_mut().find(|c| c.fragment == *fragment);
        if let Some(channel) = known {
            channel.users += 1;
            return (channel.id, false);
        }
        let encoded = codec::encode(&fragment.plan);
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
            waiting: Waiting::default(),
            counts: fragment.plan.requests_column(),
            account: saved.as_ref().map_or(Account::default(), |c| c.account),
            heard: 0,
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

    /// Remembers a channel of before the monitor was restarted.
    pub fn restore(&mut self, channel: SavedChannel) {
        self.restored.push(channel);
    }

    /// Forgets those that no query wants again.
    pub fn forget_restored(&mut self) {
        self.restored.clear();
    }

    /// One query less reads the channel, which is taken out if that was the last.
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

    /// The same to be changed.
    pub fn get_mut(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.by_id.get_mut(&id)
    }

    /// All, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.by_id.values()
    }

    /// All, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Channel> {
        self.by_id.values_mut()
    }

    /// A word is not held any more, though results may need it again.
    pub fn give_up(&mut self, word: &Unsafe) {
        if let Some((id, _)) = word.effect
            && let Some(channel) = self.by_id.get_mut(&id)
        {
            channel.given_up = channel.given_up.max(word.until);
        }
    }

    /// The number that the next new channel gets.
    pub fn next(&self) -> u64 {
        self.next
    }
}

impl Channel {
    /// What an agent is told to run.
    pub fn start(&self) -> MonitorMessage {
        MonitorMessage::Start {
            channel: self.id,
            fragment: self.encoded.clone(),
        }
    }

    /// One agent more or less is counted so.
    pub fn count(&mut self, counted: Option<Counted>, more: bool) {
        let number = match counted {
            Some(Counted::Heard) => &mut self.heard,
            Some(Counted::Ended) => &mut self.ended,
            None => return,
        };
        *number = match more {
            true => *number + 1,
            false => number.saturating_sub(1),
        };
    }

    /// True if what comes are the changes of a relation.
    pub fn is_relation(&self) -> bool {
        self.fragment.plan.shape == Shape::Relation
    }

    /// Why a batch cannot be of this channel, in words. That it is sound in itself the wire has seen
    /// to, row by row.
    pub fn fault(&self, batch: &Batch) -> Option<String> {
        if batch.weights.is_some() && !self.is_relation() {
            return Some("changes came of a stream".into());
        }
        let checked = frame::check(batch, &self.fragment.plan.schema);
        checked.err().map(|malformed| malformed.0)
    }

    /// The batch as the monitor takes it in at `now`.
    pub fn taken_in(&self, mut batch: Batch, now: Nanos) -> Batch {
        for &at in &self.fragment.intake {
            batch.columns[at] = Column::ints(vec![now; batch.len()]);
        }
        batch
    }
}
