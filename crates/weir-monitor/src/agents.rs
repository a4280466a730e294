//! [`AgentState`]: the monitor's state of one host's agent.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use weir_model::{Capabilities, Host, HostState, Nanos, Symbol};
use weir_sink::RelationView;
use weir_tap::ebpf::CheckStatus;
use weir_wire::message::EARLIER_MAX;
use weir_wire::{ChannelHosts, ChannelId, EarlierProcess, MonitorMessage, Peer, SessionId, Status};

use super::account::{Account, Instants};
use super::channels::{Channel, Channels};
use super::checkpoint::Unsafe;
use super::rates::Readings;
use super::recovery::Before;
use super::removed_agents::RemovedAgent;
use super::site::Site;

/// Identifies an agent in this monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentId(pub u32);

/// When this number of messages has become safe, they are acknowledged immediately.
const ACK_MESSAGES: u64 = 16;

/// Maximum number of ended processes of an agent whose rows are remembered: the last one, and as
/// many as an agent reports.
const PAST_MAX: usize = EARLIER_MAX + 1;

/// An agent, connected or not.
pub struct AgentState {
    /// The name of its host.
    pub host: Symbol,
    /// The address from which it connects.
    pub peer: Peer,
    /// Its version.
    pub version: Symbol,
    /// The capabilities of its sources, if it has sent them.
    pub capabilities: Option<Capabilities>,
    /// The result of its self-test, once it is known.
    pub self_test: Option<CheckStatus>,
    /// The random number of its process.
    pub instance: u64,
    /// Its connection, if any.
    pub session: Option<Session>,
    /// When its last message was received.
    pub received_at: Nanos,
    /// Its watermark: there will be no more rows at or before this instant.
    pub reached: Nanos,
    /// The fleet's watermark has advanced without it.
    pub excluded: bool,
    /// It is behind, and others wait for it.
    pub lagging: bool,
    /// It has announced its end.
    pub ended: bool,
    /// Its process was perhaps connected to this monitor and forgotten.
    pub is_unknown: bool,
    /// How it is counted in its channels.
    pub counted: Option<Counted>,
    /// Channels that it was ordered to start while it ran none, and has not confirmed yet.
    expected: BTreeSet<ChannelId>,
    /// The time of these orders; its rows will be later.
    expected_since: Nanos,
    /// The number of the last message that was processed.
    pub seen: u64,
    /// The number up to which messages are safe, and were or will be acknowledged.
    pub safe: u64,
    /// The number up to which messages will be safe once the current results are on disk.
    pub settled: u64,
    /// The same for the results that are being saved.
    pub saving: u64,
    /// Messages that are not safe yet, in order.
    pub unsafe_words: VecDeque<Unsafe>,
    /// Their approximate size in bytes.
    pub unsafe_bytes: usize,
    /// Its limit of bytes in messages that are not safe; above it, it stops sending.
    pub held_bytes_max: usize,
    /// Rows in messages that were released before the results contained them, by channel.
    pub given_up: Vec<(ChannelId, Instants)>,
    /// Its messages before the restart of the monitor.
    pub before: Option<Before>,
    /// The channels that it runs.
    pub runs: BTreeMap<ChannelId, Run>,
    /// The outcome of all its requests since the monitor first received from it.
    pub account: Account,
    /// Requests of channels that no longer run.
    pub requests_stray: u64,
    /// The hosts behind it, if it is the monitor of a site.
    pub site: Option<Site>,
    /// The last status that it reported.
    pub status: Option<Status>,
    /// The costs that it reported.
    pub readings: Readings,
    /// Bytes of its rows that wait for other agents.
    pub waiting_bytes: usize,
    /// The number of texts that its notes added to the process.
    pub texts: usize,
    /// The end of the ban, and its reason.
    pub banned: Option<(Nanos, String)>,
    /// The state, and when it last changed.
    pub state: (HostState, Nanos),
    /// Earlier processes, by instance.
    past: VecDeque<(u64, PastProcess)>,
}

/// An earlier process of an agent. Only its accounts survive a restart of the monitor.
#[derive(Default)]
struct PastProcess {
    /// Its processed requests by outcome.
    accounts: HashMap<ChannelId, Account>,
    /// [`AgentState::seen`] and [`AgentState::safe`] of it.
    seen: u64,
    safe: u64,
    /// [`Run::started`] of the channels that it ran.
    started: HashMap<ChannelId, Nanos>,
    /// A later process has reported it as an earlier one.
    has_ended: bool,
}

/// How an agent is counted in the channels that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Others wait for it.
    Live,
    /// It has ended, and all its messages have arrived.
    Ended,
}

/// A connection.
pub struct Session {
    /// Its number.
    pub id: SessionId,
    orders: mpsc::Sender<MonitorMessage>,
    unsent: VecDeque<MonitorMessage>,
    /// The last acknowledged number, and when it was sent.
    last_ack: (u64, Nanos),
    /// The time since which its queue of orders is full.
    stuck_since: Option<Nanos>,
    /// Its version has actions of alerts.
    pub knows_actions: bool,
}

/// A channel at an agent.
#[derive(Default)]
pub struct Run {
    /// The instant from which rows arrive; `None` until the agent has reported it.
    pub started: Option<Nanos>,
    /// It failed at the agent.
    pub failed: bool,
    /// The outcome of the requests of the agent's current process.
    pub account: Account,
    /// The requests that the process had received when it last reported, including those of current
    /// intervals.
    pub reported: u64,
    /// For a relation: the process runs the channel, and changes of its content were not received.
    pub lacks_content: bool,
    /// For a relation: the rows that the agent has inserted.
    pub content: RelationView,
    /// For a relation: changes are discarded until the channel starts again, since the content is
    /// unknown or too large.
    pub discards: bool,
    /// The same two for safe messages.
    pub safe_content: RelationView,
    pub safe_discards: bool,
}

impl AgentState {
    /// An agent that connects for the first time.
    pub fn new(host: Symbol, peer: Peer, instance: u64, now: Nanos) -> AgentState {
        AgentState {
            host,
            peer,
            version: Symbol::default(),
            capabilities: None,
            self_test: None,
            instance,
            session: None,
            received_at: now,
            reached: Nanos::MIN,
            excluded: false,
            lagging: false,
            ended: false,
            is_unknown: false,
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
            site: None,
            status: None,
            readings: Readings::default(),
            waiting_bytes: 0,
            texts: 0,
            banned: None,
            state: (HostState::Down, now),
            past: VecDeque::new(),
        }
    }

    /// The limit of bytes of its unsafe messages where the limit of others is `most`: half of what
    /// it can store, which by default equals `most`.
    pub fn hold_bytes_max(&self, most: usize) -> usize {
        most.min(self.held_bytes_max / 2)
    }

    /// True if others wait for it: it runs a channel, has not ended, and is not too far behind.
    pub fn is_waited_for(&self) -> bool {
        !self.excluded && !self.ended && self.runs_any()
    }

    fn runs_any(&self) -> bool {
        self.runs.values().any(Run::is_running)
    }

    /// How it is to be counted.
    pub fn counts_as(&self) -> Option<Counted> {
        match self.ended {
            true => self.runs_any().then_some(Counted::Ended),
            false => self.is_waited_for().then_some(Counted::Live),
        }
    }

    /// Orders it to start a channel. If it runs none yet, others wait at `since` for its start:
    /// otherwise its first rows would be late.
    pub fn start(&mut self, channel: &Channel, since: Nanos) {
        if self.session.is_some() && !self.ended && !self.runs_any() {
            if self.expected.is_empty() {
                self.expected_since = since;
            }
            self.expected.insert(channel.id);
        }
        self.order(channel.start());
    }

    /// Whether a process that runs the channel must start it again, since the content of its
    /// relation, or all about the process, is unknown.
    pub fn lacks_content(&self, channel: &Channel) -> bool {
        let run = self.runs.get(&channel.id);
        let lacks = |run: &Run| channel.is_relation() && run.lacks_content;
        run.map_or(self.is_unknown, lacks)
    }

    /// Ends the wait for its start: its messages are in order, or the wait was too long.
    pub fn has_started(&mut self) {
        self.expected.clear();
    }

    /// It will not run this channel.
    pub fn expects_not(&mut self, channel: ChannelId) {
        self.expected.remove(&channel);
    }

    /// The instant up to which this agent allows time to advance; `None` if others do not wait for
    /// it.
    pub fn awaited_at(&self) -> Option<Nanos> {
        if self.is_waited_for() {
            return Some(self.reached);
        }
        let begins = self.session.is_some() && !self.ended && !self.expected.is_empty();
        begins.then_some(self.expected_since)
    }

    /// True if it is disconnected and has not announced its end.
    pub fn is_away(&self) -> bool {
        self.session.is_none() && !self.ended
    }

    /// The hosts of its site in the results of a channel, if it is the monitor of one.
    pub fn site_in(&self, channel: ChannelId) -> Option<ChannelHosts> {
        let site = self.site.as_ref()?;
        let reported = site.in_channel(channel).unwrap_or_default();
        let run = self.runs.get(&channel);
        let runs = run.is_some_and(Run::is_running) && self.is_waited_for();
        let (missing, failed) = match run {
            Some(run) if run.failed => (site.hosts(), site.hosts()),
            _ if !runs => (site.hosts(), reported.failed),
            _ => (reported.missing, reported.failed),
        };
        Some(ChannelHosts {
            missing,
            failed,
            ..reported
        })
    }

    /// Its state.
    pub fn host_state(&self) -> HostState {
        match (&self.session, self.ended) {
            (_, true) => HostState::Ended,
            (None, false) => HostState::Down,
            (Some(_), false) if self.excluded => HostState::Excluded,
            (Some(_), false) => HostState::Up,
        }
    }

    /// Restarts with another process of the agent. The rows of the earlier process are retained. If
    /// it is one of the earlier processes, it continues.
    pub fn begin(&mut self, instance: u64, channels: &Channels) {
        self.remember_present();
        for run in self.runs.values_mut() {
            *run = Run {
                content: std::mem::take(&mut run.content),
                safe_content: std::mem::take(&mut run.safe_content),
                // Another process sends its start before its rows.
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
        if let Some(process) = self.take_past(instance) {
            self.resume(process, channels);
        }
    }

    /// Continues with a process that was present before: it does not send acknowledged messages
    /// again, and reports what it has received since its start. Rows of relations are missing, so
    /// it is not counted as running their channels until it has started them again.
    fn resume(&mut self, process: PastProcess, channels: &Channels) {
        let PastProcess { seen, safe, .. } = process;
        (self.seen, self.safe, self.settled, self.saving) = (seen, safe, safe, safe);
        for (id, account) in process.accounts {
            let Some(channel) = channels.get(id) else {
                continue;
            };
            let started = process.started.get(&id).copied();
            let run = self.runs.entry(id).or_default();
            run.account = account;
            run.started = started.filter(|_| !channel.is_relation());
            if channel.is_relation() {
                run.lacks_content = true;
                run.discards = true;
                run.safe_discards = true;
            }
        }
        // The watermark has advanced without it.
        self.excluded = self.runs_any();
    }

    /// The state to retain when it is forgotten; its process is treated as ended.
    pub fn forgotten(&mut self) -> RemovedAgent {
        self.remember_present();
        let running = self.runs.iter().filter(|(_, run)| run.is_running());
        let started = running.filter_map(|(id, run)| Some((id.0, run.started?)));
        RemovedAgent {
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

    /// Restores the state of a forgotten agent. The same process continues. Requests that were
    /// counted as lost when it was forgotten stay so, even if they arrive later.
    pub fn recall(&mut self, before: RemovedAgent, channels: &Channels) {
        self.account = before.account;
        self.requests_stray = before.requests_stray;
        self.set_past(before.past);
        if before.instance != self.instance {
            return;
        }
        if let Some(process) = self.take_past(self.instance) {
            let started = before.started.into_iter();
            let process = PastProcess {
                seen: before.seen,
                safe: before.safe,
                started: started.map(|(id, at)| (ChannelId(id), at)).collect(),
                ..process
            };
            self.resume(process, channels);
        }
    }

    /// The requests that an earlier process produced in each channel and that are not accounted
    /// for: they are lost. Each process is reported once.
    pub fn lost_by(&mut self, earlier: &EarlierProcess) -> Vec<(ChannelId, u64)> {
        let is_it = |(past, _): &&mut (u64, PastProcess)| *past == earlier.instance;
        let Some((_, process)) = self.past.iter_mut().find(is_it) else {
            return Vec::new();
        };
        let mut lost = Vec::new();
        for tally in &earlier.tallies {
            let channel = ChannelId(tally.channel);
            let account = process.accounts.entry(channel).or_default();
            let requests = tally.produced.saturating_sub(account.produced());
            account.lost = account.lost.saturating_add(requests);
            if requests > 0 {
                lost.push((channel, requests));
            }
        }
        lost
    }

    /// Records a process that the current one reports as an earlier one. Perhaps no message of it
    /// was processed.
    pub fn add_process(&mut self, instance: u64) {
        if instance == self.instance {
            return;
        }
        let mut process = self.take_past(instance).unwrap_or_default();
        process.has_ended = true;
        self.remember_past(instance, process);
    }

    /// Whether a later process has reported that this one has ended.
    pub fn has_ended(&self, instance: u64) -> bool {
        let is_it = |(past, process): &(u64, PastProcess)| *past == instance && process.has_ended;
        self.past.iter().any(is_it)
    }

    /// Adds the current process to the earlier ones.
    fn remember_present(&mut self) {
        let running = self.runs.iter().filter(|(_, run)| run.is_running());
        let process = PastProcess {
            accounts: self
                .runs
                .iter()
                .map(|(id, run)| (*id, run.account))
                .collect(),
            seen: self.seen,
            safe: self.safe,
            started: running
                .filter_map(|(id, run)| Some((*id, run.started?)))
                .collect(),
            has_ended: false,
        };
        self.remember_past(self.instance, process);
    }

    /// Adds an earlier process; above the limit, one without processed messages is removed, or else
    /// the oldest.
    fn remember_past(&mut self, instance: u64, process: PastProcess) {
        if self.past.len() >= PAST_MAX {
            let is_empty = |(_, process): &(u64, PastProcess)| process.accounts.is_empty();
            let empty = self.past.iter().position(is_empty);
            self.past.remove(empty.unwrap_or(0));
        }
        self.past.push_back((instance, process));
    }

    /// Removes an earlier process.
    fn take_past(&mut self, instance: u64) -> Option<PastProcess> {
        let at = self.past.iter().position(|(past, _)| *past == instance)?;
        self.past.remove(at).map(|(_, process)| process)
    }

    /// The outcome of the rows of earlier processes.
    pub fn past(&self) -> Vec<(u64, Vec<(u64, Account)>)> {
        let past = self.past.iter().map(|(instance, process)| {
            let accounts = process.accounts.iter();
            let accounts = accounts.map(|(id, account)| (id.0, *account));
            (*instance, accounts.collect())
        });
        past.collect()
    }

    /// Restores the same from before the restart of the monitor.
    pub fn set_past(&mut self, past: Vec<(u64, Vec<(u64, Account)>)>) {
        let past = past.into_iter().map(|(instance, accounts)| {
            let accounts = accounts.into_iter();
            let accounts = accounts.map(|(id, account)| (ChannelId(id), account));
            let process = PastProcess {
                accounts: accounts.collect(),
                ..PastProcess::default()
            };
            (instance, process)
        });
        self.past = past.collect();
    }

    /// Queues an order for it; while it is disconnected, orders are sent when it connects.
    pub fn order(&mut self, word: MonitorMessage) {
        if let Some(session) = &mut self.session {
            session.unsent.push_back(word);
        }
    }

    /// Its row of relation `hosts` at `now`.
    pub fn row(&self, now: Nanos) -> Host {
        let status = self.status.clone().unwrap_or_default();
        let known = self.status.is_some();
        // An agent that has ended is not behind: no more rows are expected.
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
            self_test: self.self_test.map(CheckStatus::as_str),
        }
    }
}

/// A count as a column value.
pub fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Run {
    /// Requests that the agent's process has reported and that have not arrived.
    pub fn outstanding(&self) -> u64 {
        self.reported.saturating_sub(self.account.produced())
    }

    /// True if its rows arrive.
    pub fn is_running(&self) -> bool {
        self.started.is_some() && !self.failed
    }
}

impl Session {
    /// A connection with a queue of orders to the agent.
    pub fn new(
        id: SessionId,
        orders: mpsc::Sender<MonitorMessage>,
        last_ack: (u64, Nanos),
        knows_actions: bool,
    ) -> Session {
        Session {
            id,
            orders,
            unsent: VecDeque::new(),
            last_ack,
            stuck_since: None,
            knows_actions,
        }
    }

    /// Sends queued orders, and the ack of `safe`, at most once per `pause` unless many messages
    /// became safe; false if the agent has accepted nothing for longer than `timeout`, or is
    /// disconnected.
    pub fn send(&mut self, safe: u64, now: Nanos, pause: Nanos, timeout: Nanos) -> bool {
        let (last_ack, acked_at) = self.last_ack;
        let many = safe.saturating_sub(last_ack) >= ACK_MESSAGES;
        let due = safe > last_ack && (many || now.saturating_sub(acked_at) >= pause);
        if due && self.stuck_since.is_none() {
            self.last_ack = (safe, now);
            self.unsent.push_back(MonitorMessage::Ack(safe));
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
                    return now.saturating_sub(since) <= timeout;
                }
            }
        }
    }
}
