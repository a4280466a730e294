//! [`Agent`]: what the monitor knows of one host's agent.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use weir_model::{Host, HostState, Nanos, Symbol};
use weir_wire::message::EARLIER_MAX;
use weir_wire::{ChannelId, ChannelTally, MonitorMessage, Peer, SessionId, Status};

use super::account::{Account, Instants};
use super::channels::{Channel, Channels};
use super::checkpoint::Unsafe;
use super::content::Content;
use super::forgotten::Forgotten;
use super::rates::Readings;
use super::recovery::Before;

/// Names an agent while the monitor knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentId(pub u32);

/// So many words that became safe are told at once.
const TAKEN_WORDS: u64 = 16;

/// Processes of an agent that ended and whose rows are still remembered, at most: the one that just
/// ended and as many as an agent tells of.
const PAST_MAX: usize = EARLIER_MAX + 1;

/// An agent, connected or not.
pub struct Agent {
    /// The name of its host.
    pub host: Symbol,
    /// From where it dials.
    pub peer: Peer,
    /// Its version.
    pub version: Symbol,
    /// The random number of its process.
    pub instance: u64,
    /// Its connection, if there is one.
    pub session: Option<Session>,
    /// When it last said anything.
    pub heard_at: Nanos,
    /// No more rows at or before this instant will come of it.
    pub reached: Nanos,
    /// Time went on without it.
    pub overtaken: bool,
    /// It is behind, and others wait for it.
    pub lagging: bool,
    /// It said that it ends.
    pub ended: bool,
    /// As what it is counted in its channels.
    pub counted: Option<Counted>,
    /// What it was told to run while it ran nothing, and has not answered yet.
    expected: BTreeSet<ChannelId>,
    /// Since when; what it will say is of the time after that.
    expected_since: Nanos,
    /// The number of the last word that was taken in.
    pub seen: u64,
    /// The number up to which words are safe, and were or will be acknowledged.
    pub safe: u64,
    /// The number up to which words would be safe, were the results of now on the disk.
    pub settled: u64,
    /// The same of the results that are being saved.
    pub saving: u64,
    /// Words that are not safe yet, in order.
    pub unsafe_words: VecDeque<Unsafe>,
    /// Bytes of them, about.
    pub unsafe_bytes: usize,
    /// How many bytes of words it has room for that are not safe; beyond, it sends nothing.
    pub held_bytes_max: usize,
    /// Rows in words that were given up before results had them, by channel.
    pub given_up: Vec<(ChannelId, Instants)>,
    /// What it had said before the monitor was restarted.
    pub before: Option<Before>,
    /// What it runs.
    pub runs: BTreeMap<ChannelId, Run>,
    /// What became of all its requests since the monitor knows it.
    pub account: Account,
    /// Requests of channels that do not run any more.
    pub requests_stray: u64,
    /// What it said last of itself.
    pub status: Option<Status>,
    /// What it said of its costs.
    pub readings: Readings,
    /// Bytes of its rows that wait for others.
    pub waiting_bytes: usize,
    /// Texts that its notes brought into the process.
    pub texts: usize,
    /// Until then it is not let in, and why.
    pub barred: Option<(Nanos, String)>,
    /// What the state is, and since when.
    pub state: (HostState, Nanos),
    /// What became of the requests of earlier processes, as far as they were taken in.
    past: VecDeque<(u64, HashMap<ChannelId, Account>)>,
}

/// As what an agent is counted in the channels that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// It is waited for.
    Heard,
    /// It ended, and all that it had to say is in.
    Ended,
}

/// A connection.
pub struct Session {
    /// Its number.
    pub id: SessionId,
    orders: mpsc::Sender<MonitorMessage>,
    unsent: VecDeque<MonitorMessage>,
    /// The number up to which it was told that words are safe, and when.
    told: (u64, Nanos),
    /// Since when it takes nothing.
    stuck_since: Option<Nanos>,
}

/// A channel at an agent.
#[derive(Default)]
pub struct Run {
    /// From when on rows come; `None` until the agent says so.
    pub started: Option<Nanos>,
    /// It failed there.
    pub failed: bool,
    /// What became of the requests of the agent's present process.
    pub account: Account,
    /// How many requests the process had taken in when it last reported that, those of intervals
    /// under way included.
    pub reported: u64,
    /// Of a relation, what of it the agent has brought.
    pub content: Content,
    /// The same in words that are safe, if a standing query reads it.
    pub safe_content: Content,
}

impl Agent {
    /// An agent that is seen for the first time.
    pub fn new(host: Symbol, peer: Peer, instance: u64, now: Nanos) -> Agent {
        Agent {
            host,
            peer,
            version: Symbol::default(),
            instance,
            session: None,
            heard_at: now,
            reached: Nanos::MIN,
            overtaken: false,
            lagging: false,
            ended: false,
            counted: None,
            expected: BTreeSet::new(),
            expected_since: Nanos::MIN,
            seen: 0,
            safe: 0,
            settled: 0,
            saving: 0,
            unsafe_words: VecDeque::new(),
            unsafe_bytes: 0,
            held_bytes_max: usize::MAX,
            given_up: Vec::new(),
            before: None,
            runs: BTreeMap::new(),
            account: Account::default(),
            requests_stray: 0,
            status: None,
            readings: Readings::default(),
            waiting_bytes: 0,
            texts: 0,
            barred: None,
            state: (HostState::Down, now),
            past: VecDeque::new(),
        }
    }

    /// How many bytes of its words are left unsafe where others' are up to `most`: half of what it has
    /// room for, as is `most` by default.
    pub fn hold_bytes_max(&self, most: usize) -> usize {
        most.min(self.held_bytes_max / 2)
    }

    /// True if others wait for it: it runs something, has not ended, and is not too far behind.
    pub fn is_waited_for(&self) -> bool {
        !self.overtaken && !self.ended && self.runs_any()
    }

    fn runs_any(&self) -> bool {
        self.runs.values().any(Run::is_running)
    }

    /// As what it is to be counted.
    pub fn counts_as(&self) -> Option<Counted> {
        match self.ended {
            true => self.runs_any().then_some(Counted::Ended),
            false => self.is_waited_for().then_some(Counted::Heard),
        }
    }

    /// Tells it to run a channel. If it runs nothing yet, others wait at `since` for it to begin: its
    /// first rows would come when their time is over.
    pub fn start(&mut self, channel: &Channel, since: Nanos) {
        if self.session.is_some() && !self.ended && !self.runs_any() {
            if self.expected.is_empty() {
                self.expected_since = since;
            }
            self.expected.insert(channel.id);
        }
        self.order(channel.start());
    }

    /// Nobody waits any more for it to begin: what it says is in order, or it took too long.
    pub fn has_begun(&mut self) {
        self.expected.clear();
    }

    /// It will not run this channel.
    pub fn expects_not(&mut self, channel: ChannelId) {
        self.expected.remove(&channel);
    }

    /// Up to when time may go on as far as it is concerned; `None` if it is not waited for.
    pub fn awaited_at(&self) -> Option<Nanos> {
        if self.is_waited_for() {
            return Some(self.reached);
        }
        let begins = self.session.is_some() && !self.ended && !self.expected.is_empty();
        begins.then_some(self.expected_since)
    }

    /// True if it was connected and is not, without having said that it ends.
    pub fn is_away(&self) -> bool {
        self.session.is_none() && !self.ended
    }

    /// How it is.
    pub fn host_state(&self) -> HostState {
        match (&self.session, self.ended) {
            (_, true) => HostState::Ended,
            (None, false) => HostState::Down,
            (Some(_), false) if self.overtaken => HostState::Overtaken,
            (Some(_), false) => HostState::Up,
        }
    }

    /// Begins anew with another process of the agent. What the earlier one brought stays.
    pub fn begin(&mut self, instance: u64) {
        self.remember_present();
        for run in self.runs.values_mut() {
            *run = Run {
                content: std::mem::take(&mut run.content),
                safe_content: std::mem::take(&mut run.safe_content),
                ..Run::default()
            };
        }
        self.instance = instance;
        (self.seen, self.safe, self.settled, self.saving) = (0, 0, 0, 0);
        self.before = None;
        self.ended = false;
        self.expected.clear();
        self.status = None;
        self.readings = Readings::default();
    }

    /// What is kept of it when it is forgotten: as if its process had ended.
    pub fn forgotten(&mut self) -> Forgotten {
        self.remember_present();
        let running = self.runs.iter().filter(|(_, run)| run.is_running());
        let started = running.filter_map(|(id, run)| Some((id.0, run.started?)));
        Forgotten {
            host: self.host.as_str().to_owned(),
            instance: self.instance,
            seen: self.seen,
            safe: self.safe,
            account: self.account,
            requests_stray: self.requests_stray,
            started: started.collect(),
            past: self.past(),
        }
    }

    /// Returns after it was forgotten. The same process goes on: it does not send again what was
    /// acknowledged, and reports what it has taken in since it began. What of it was counted as lost
    /// when it was forgotten stays so, also if it still comes. Rows of relations are gone until the
    /// agent begins such a channel anew, so that it does not count as running it.
    pub fn recall(&mut self, before: Forgotten, channels: &Channels) {
        self.account = before.account;
        self.requests_stray = before.requests_stray;
        self.set_past(before.past);
        let present = self.instance;
        if before.instance != present {
            return;
        }
        let at = self.past.iter().position(|(past, _)| *past == present);
        let Some((_, accounts)) = at.and_then(|at| self.past.remove(at)) else {
            return;
        };
        self.seen = before.seen;
        (self.safe, self.settled, self.saving) = (before.safe, before.safe, before.safe);
        let started: HashMap<u64, Nanos> = before.started.into_iter().collect();
        for (id, account) in accounts {
            let Some(channel) = channels.get(id) else {
                continue;
            };
            let started = started.get(&id.0).copied();
            let run = Run {
                started: started.filter(|_| !channel.is_relation()),
                account,
                ..Run::default()
            };
            self.runs.insert(id, run);
        }
        // Time went on without it.
        self.overtaken = self.runs_any();
    }

    /// What an earlier process produced of each channel and nobody accounted for: it is lost. Of
    /// each process this is told once.
    pub fn lost_by(&mut self, instance: u64, tallies: &[ChannelTally]) -> Vec<(ChannelId, u64)> {
        let Some((_, taken)) = self.past.iter_mut().find(|(past, _)| *past == instance) else {
            return Vec::new();
        };
        let mut lost = Vec::new();
        for tally in tallies {
            let account = taken.entry(tally.channel).or_default();
            let requests = tally.produced.saturating_sub(account.produced());
            account.lost = account.lost.saturating_add(requests);
            if requests > 0 {
                lost.push((tally.channel, requests));
            }
        }
        lost
    }

    /// Remembers that there was a process of which nothing was taken in.
    pub fn remember(&mut self, instance: u64) {
        let known = self.past.iter().any(|(past, _)| *past == instance);
        if !known && instance != self.instance {
            self.remember_past((instance, HashMap::new()));
        }
    }

    /// Remembers the present process among those that ended.
    fn remember_present(&mut self) {
        let accounts = self.runs.iter().map(|(id, run)| (*id, run.account));
        let ended = (self.instance, accounts.collect());
        self.remember_past(ended);
    }

    /// Remembers one more process that ended; if they are too many, one of which nothing was taken
    /// in goes, or else the one that was remembered first.
    fn remember_past(&mut self, process: (u64, HashMap<ChannelId, Account>)) {
        if self.past.len() >= PAST_MAX {
            let empty = self.past.iter().position(|(_, taken)| taken.is_empty());
            self.past.remove(empty.unwrap_or(0));
        }
        self.past.push_back(process);
    }

    /// What became of the rows of earlier processes.
    pub fn past(&self) -> Vec<(u64, Vec<(u64, Account)>)> {
        let past = self.past.iter().map(|(instance, accounts)| {
            let accounts = accounts.iter().map(|(id, account)| (id.0, *account));
            (*instance, accounts.collect())
        });
        past.collect()
    }

    /// The same, as it was before the monitor was restarted.
    pub fn set_past(&mut self, past: Vec<(u64, Vec<(u64, Account)>)>) {
        let past = past.into_iter().map(|(instance, accounts)| {
            let accounts = accounts
                .into_iter()
                .map(|(id, account)| (ChannelId(id), account));
            (instance, accounts.collect())
        });
        self.past = past.collect();
    }

    /// Tells it what to do; while it is not connected, it will be told when it comes.
    pub fn order(&mut self, word: MonitorMessage) {
        if let Some(session) = &mut self.session {
            session.unsent.push_back(word);
        }
    }

    /// Its row of relation `hosts` at `now`.
    pub fn row(&self, now: Nanos) -> Host {
        let status = self.status.clone().unwrap_or_default();
        let known = self.status.is_some();
        // One that has ended is not behind: nothing more is expected of it.
        let awaited = self.reached > Nanos::MIN && !self.ended;
        let reached = awaited.then_some(self.reached);
        Host {
            host: self.host,
            address: Symbol::try_new(&self.peer.address()).unwrap_or_default(),
            version: self.version,
            state: self.state.0,
            since: self.state.1,
            offset_ns: known.then_some(status.offset_ns),
            offset_error_ns: known.then_some(status.offset_error_ns),
            lag_ns: reached.map(|reached| now.saturating_sub(reached).max(0)),
            rows_in: count(self.account.in_time),
            rows_lost: count(self.account.lost),
            rows_late: count(self.account.late),
            waiting_bytes: status.waiting_bytes,
            spooled_bytes: status.spooled_bytes,
            cpu_ns: status.cpu_ns,
            memory_bytes: status.memory_bytes,
            requests_per_second: status.requests_per_second,
            kept_share: if known { status.kept_share } else { 1.0 },
        }
    }
}

/// A count as columns hold it.
pub fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Run {
    /// Requests that the agent's process has reported and that have not arrived.
    pub fn outstanding(&self) -> u64 {
        self.reported.saturating_sub(self.account.produced())
    }

    /// Rows come.
    pub fn is_running(&self) -> bool {
        self.started.is_some() && !self.failed
    }
}

impl Session {
    /// A connection on which the agent can be told what to do.
    pub fn new(id: SessionId, orders: mpsc::Sender<MonitorMessage>, told: (u64, Nanos)) -> Session {
        Session {
            id,
            orders,
            unsent: VecDeque::new(),
            told,
            stuck_since: None,
        }
    }

    /// Sends what waits, and how far words are safe, that once in `pause` or when they are many;
    /// false when the agent has not taken anything for longer than `patience`, or is gone.
    pub fn send(&mut self, safe: u64, now: Nanos, pause: Nanos, patience: Nanos) -> bool {
        let (told, told_at) = self.told;
        let many = safe.saturating_sub(told) >= TAKEN_WORDS;
        let due = safe > told && (many || now.saturating_sub(told_at) >= pause);
        if due && self.stuck_since.is_none() {
            self.told = (safe, now);
            self.unsent.push_back(MonitorMessage::Ack { number: safe });
        }
        loop {
            let next = match self.unsent.pop_front() {
                Some(word) => word,
                None => return true,
            };
            match self.orders.try_send(next) {
                Ok(()) => self.stuck_since = None,
                Err(TrySendError::Closed(_)) => return false,
                Err(TrySendError::Full(word)) => {
                    self.unsent.push_front(word);
                    let since = *self.stuck_since.get_or_insert(now);
                    return now.saturating_sub(since) <= patience;
                }
            }
        }
    }
}
