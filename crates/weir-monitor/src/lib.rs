//! The monitor: one engine for the rows of a fleet of agents.
//!
//! One thread owns all state; it processes the [`ServerEvent`]s of the network one after the other
//! and advances time. There are no locks, and events are processed in the order of arrival.
//!
//! 1. Agents connect and disconnect ([`join`]). Each runs the fragments of the monitor's queries;
//!    queries with equal fragments share a [`channels::Channel`].
//! 2. Messages of agents are checked and counted ([`account`]), and their rows wait ([`messages`],
//!    [`gather`]).
//! 3. When the watermark of the fleet passes an instant ([`time`]), its rows go to the engine, and
//!    the results to the clients ([`advance`], [`publish`]), with their completeness
//!    ([`completeness`]).
//! 4. What alerts do on the hosts of agents is sent to these ([`actions`]).
//! 5. The rows of standing queries are forwarded to Kafka, if there is one ([`forward`]).
//! 6. It may be the agent of another monitor ([`upstream`]).
//! 7. The state of standing queries is saved ([`checkpoint`]); after a kill they continue from
//!    there with messages that the agents send again ([`recovery`]).
//! 8. Of several monitors with the same state, one leads; another one takes over in the same way
//!    ([`leader`]).
//! 9. An agent without a monitor has one in its process, which forwards to Kafka ([`local`]).
//!
//! Work is linear in rows, in messages of agents, and in channels: a message is processed once,
//! however many queries read its rows.

mod account;
mod actions;
mod advance;
mod agents;
mod alert_rows;
mod channels;
mod checkpoint;
pub mod client;
mod completeness;
pub mod config;
mod files;
mod forward;
mod gather;
mod guest;
mod join;
pub mod leader;
pub mod local;
mod messages;
mod observer;
mod own_stream;
mod publish;
mod query_store;
mod question;
mod rates;
mod readings;
mod recovery;
pub mod registry;
mod removed_agents;
mod requests;
mod run;
mod site;
mod state;
#[cfg(test)]
mod tests;
mod time;
pub mod upstream;
mod view_store;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use weir_model::alert::{AlertChange, AlertInstance};
use weir_model::guest::GUEST_IO;
use weir_model::inventory::Row;
use weir_model::{Catalog, Declaration, Host, NANOS_PER_SECOND, Nanos, Shape, Symbol};
use weir_query::engine::{Engine, EngineOptions, QueryId};
use weir_query::function::EvalError;
use weir_query::place::fleet::{Cut, Fragment};
use weir_query::plan::Plan;
use weir_wire::{ChannelId, MonitorMessage, ServerEvent, SessionId};

pub use account::Account;
pub use agents::{AgentId, AgentState};
pub use channels::Channels;
pub use completeness::FleetCompleteness;
pub use files::FileSink;
pub use observer::ResultObserver;
pub use publish::{Publisher, PublisherLimits};
pub use question::{Prepared, check_queries};
pub use run::{LoopEvent, run};
pub use state::StateError;

use actions::HostActions;
use alert_rows::AlertRows;
use forward::Forwarding;
use guest::GuestStream;
use own_stream::OwnStream;
use recovery::Recovery;
use removed_agents::RemovedAgents;
use state::{Saved, State};
use weir_runtime::run_loop::Counters;

/// The stream of the notes of agents and monitor.
const OWN_STREAM: &str = "weir";

/// The relation of the fleet's hosts.
const HOSTS: &str = "hosts";

/// The stream of the changes of alerts that run at the monitor.
const ALERTS: &str = AlertChange::RELATION;

/// The relation of their instances.
const ALERT_STATES: &str = AlertInstance::RELATION;

/// The sources whose rows agents do not send again after a restart of the monitor.
const NOT_REPEATED: [&str; 3] = [HOSTS, ALERTS, ALERT_STATES];

/// The options of the monitor.
#[derive(Clone, Debug)]
pub struct MonitorOptions {
    /// The interval of the agents' heartbeats.
    pub heartbeat: Nanos,
    /// The maximum wait for an agent that is behind.
    pub exclude_after: Nanos,
    /// The maximum by which timestamps of an agent may be ahead of the monitor's clock.
    pub ahead_max: Nanos,
    /// Maximum number of agents.
    pub agents_max: usize,
    /// An agent that has been away for this time is forgotten.
    pub forget_after: Nanos,
    /// An agent that accepts no orders for this time is disconnected; also the duration of the ban
    /// of an agent that violated the protocol.
    pub timeout: Nanos,
    /// Maximum bytes of rows that wait for slow agents; above it those are excluded earlier. One
    /// agent may use a quarter of it.
    pub waiting_bytes_max: usize,
    /// The limits of the engine.
    pub engine: EngineOptions,
    /// The interval of checkpoints.
    pub checkpoint_every: Nanos,
    /// Standing queries whose windows reach back at most this far continue after a restart without
    /// loss; agents store their rows for this time.
    pub hold_max: Nanos,
    /// Maximum bytes of messages that one agent stores for that, or half of what it can store if
    /// that is less. The default is half of the agents' default.
    pub hold_bytes_max: usize,
    /// How long the monitor waits after a restart for agents that send messages again.
    pub recovery: Nanos,
}

impl Default for MonitorOptions {
    fn default() -> MonitorOptions {
        MonitorOptions {
            heartbeat: NANOS_PER_SECOND / 20,
            exclude_after: 2 * NANOS_PER_SECOND,
            ahead_max: 10 * NANOS_PER_SECOND,
            agents_max: 10_000,
            forget_after: 3_600 * NANOS_PER_SECOND,
            timeout: 10 * NANOS_PER_SECOND,
            waiting_bytes_max: 512 << 20,
            engine: EngineOptions::default(),
            checkpoint_every: NANOS_PER_SECOND,
            hold_max: 60 * NANOS_PER_SECOND,
            hold_bytes_max: 4 << 20,
            recovery: 30 * NANOS_PER_SECOND,
        }
    }
}

/// A running query.
pub struct Running {
    /// What users call it.
    pub name: String,
    /// The publisher of its results.
    pub publisher: Publisher,
    /// The time at which it started.
    pub since: Nanos,
    /// It continues after a restart.
    pub standing: bool,
    /// The monitor restarted then, and the query lost its state, because its windows are longer
    /// than agents store their rows, or they stored fewer of them than it needs.
    pub restarted_at: Option<Nanos>,
    /// Results up to this instant were emitted before a restart.
    shown_to: Nanos,
    /// It receives what is later than this instant.
    from: Nanos,
    /// Its plan, until time has reached that instant: after a restart, time continues from an
    /// earlier one.
    pending: Option<Plan>,
    /// How far back its windows reach.
    memory: Option<Nanos>,
    /// It reads stream `weir`.
    reads_own: bool,
    /// It reads stream `GuestIO`.
    reads_guests: bool,
    /// The channels that it reads, and the outcome of their requests when it started.
    channels: Vec<(ChannelId, Account)>,
}

impl Running {
    /// The channels that it reads, in the order of its fragments, then those of `GuestIO`.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.channels.iter().map(|(id, _)| *id)
    }

    /// What is forwarded for it is later than this instant.
    fn forwards_after(&self) -> Nanos {
        self.from.max(self.shown_to)
    }
}

/// A query that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Its name.
    pub name: String,
    /// The error.
    pub error: EvalError,
}

/// Counts of the monitor's work; a measure of cost that does not depend on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Messages of agents processed.
    pub words: u64,
    /// Rows processed.
    pub rows: u64,
    /// Pieces of channels that were merged.
    pub pieces: u64,
    /// Batches passed to the engine.
    pub batches: u64,
    /// Instants to which the engine was advanced.
    pub steps: u64,
    /// Agents visited when time advanced.
    pub agents_looked_at: u64,
    /// Channels visited when time advanced, once for each query that reads them.
    pub channels_looked_at: u64,
}

/// Stream `GuestIO`, and the channels from which it is formed.
struct Guests {
    stream: GuestStream,
    requests: ChannelId,
    vms: ChannelId,
    /// The queries that read it.
    queries: usize,
}

/// The monitor. See the module's documentation.
pub struct Monitor {
    options: MonitorOptions,
    /// A random number by which agents identify this monitor.
    identity: u64,
    /// The term in which it leads; 0 without a lease.
    term: u64,
    /// Other monitors can take over.
    has_standbys: bool,
    /// Hosts of the monitor's earlier process whose agents have not connected yet, and how long
    /// they count as missing.
    expected: BTreeSet<String>,
    expected_until: Nanos,
    engine: Engine,
    agents: BTreeMap<AgentId, AgentState>,
    agents_ever: u32,
    hosts: HashMap<Symbol, AgentId>,
    /// Agents that have been away for long, in case they return.
    forgotten: RemovedAgents,
    sessions: HashMap<SessionId, AgentId>,
    channels: Channels,
    queries: BTreeMap<QueryId, Running>,
    own: OwnStream,
    /// The rows of the alerts that run here.
    alerts: AlertRows,
    /// What they do on the hosts.
    actions: HostActions,
    /// The rows of standing queries, forwarded.
    forwarding: Option<Forwarding>,
    /// Stream `GuestIO`, while a query reads it.
    guest: Option<Guests>,
    /// How long agents' notes are needed again if the monitor restarts.
    own_hold: Option<Nanos>,
    /// Some messages of agents may be needed again.
    holds: bool,
    /// The rows of relation `hosts` as last emitted, and when.
    hosts_updated: (HashMap<Symbol, Host>, Nanos),
    /// The watermark of the fleet.
    watermark: Nanos,
    waiting_bytes: usize,
    failed: Vec<Failed>,
    work: Work,
    /// The counters as last read, and when.
    counters: Counters,
    counters_read_at: Nanos,
    state: Option<State>,
    /// The effect of the message that is being processed.
    effect: messages::Effect,
    /// The start of the last checkpoint.
    saved_at: Nanos,
    /// The duration of the last checkpoint.
    save_took: Nanos,
    /// The instant of the checkpoint on disk, and of the one that is being saved.
    saved_to: [Nanos; 2],
    /// The checkpoint on disk contains standing queries.
    saved_any: bool,
    /// The next checkpoint is due at once: queries started or ended, or an agent has no room left.
    save_soon: bool,
    /// The state of the recovery after a restart.
    recovery: Recovery,
    /// When the next step of time is due at the latest, for what its caller has to send.
    step_by: Option<Nanos>,
}

impl Monitor {
    /// A monitor without agents and queries, whose time starts at `now`.
    pub fn new(identity: u64, options: MonitorOptions, now: Nanos) -> Monitor {
        let mut engine = Engine::new(options.engine.clone());
        let catalog = Catalog::builtin();
        for name in [OWN_STREAM, HOSTS, ALERTS, ALERT_STATES, GUEST_IO] {
            engine.declare(catalog.find(name).expect("the catalog has it"));
        }
        engine.heartbeat_all(now);
        engine.step(&mut |_| unreachable!("no query runs yet"));
        Monitor {
            options,
            identity,
            term: 0,
            has_standbys: false,
            expected: BTreeSet::new(),
            expected_until: Nanos::MIN,
            engine,
            agents: BTreeMap::new(),
            agents_ever: 0,
            hosts: HashMap::new(),
            forgotten: RemovedAgents::default(),
            sessions: HashMap::new(),
            channels: Channels::new(1),
            queries: BTreeMap::new(),
            own: OwnStream::default(),
            alerts: AlertRows::default(),
            actions: HostActions::default(),
            forwarding: None,
            guest: None,
            own_hold: None,
            holds: false,
            hosts_updated: (HashMap::new(), Nanos::MIN),
            watermark: now,
            waiting_bytes: 0,
            failed: Vec::new(),
            work: Work::default(),
            counters: Counters::default(),
            counters_read_at: now,
            state: None,
            effect: messages::Effect::default(),
            saved_at: now,
            save_took: 0,
            saved_to: [now; 2],
            saved_any: false,
            save_soon: false,
            recovery: Recovery::none(),
            step_by: None,
        }
    }

    /// The monitor with the saved state in `dir`, or a new one. Standing queries are to be
    /// restarted before any event is processed.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn open(dir: &Path, options: MonitorOptions, now: Nanos) -> Result<Monitor, StateError> {
        Monitor::with_state(State::open(dir)?, options, now)
    }

    /// As [`Monitor::open`], without a thread: checkpoints are written to disk by
    /// [`Monitor::write_checkpoint`], at times that a simulation chooses.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn open_without_thread(
        dir: &Path,
        options: MonitorOptions,
        now: Nanos,
    ) -> Result<Monitor, StateError> {
        Monitor::with_state(State::open_for_caller(dir)?, options, now)
    }

    fn with_state(
        (mut state, saved): (State, Option<Saved>),
        options: MonitorOptions,
        now: Nanos,
    ) -> Result<Monitor, StateError> {
        // It is unknown which of the reserved numbers are in use.
        let next = state.channels();
        state.reserve(next + 1)?;
        let begin = saved.as_ref().map_or(now, |s| s.resume_from);
        let mut monitor = Monitor::new(state.monitor(), options, begin);
        monitor.channels = Channels::new(next);
        monitor.saved_at = now;
        monitor.state = Some(state);
        if let Some(saved) = saved {
            monitor.restore(saved, now);
        }
        Ok(monitor)
    }

    /// Sets the term in which this monitor leads, and whether others can take over. To be called
    /// before any event is processed.
    pub fn lead(&mut self, term: u64, has_standbys: bool) {
        (self.term, self.has_standbys) = (term, has_standbys);
    }

    /// Writes the pending checkpoint of a monitor without a thread.
    pub fn write_checkpoint(&mut self) {
        if let Some(state) = &mut self.state {
            state.write_waiting();
        }
    }

    /// The agents.
    pub fn agents(&self) -> impl Iterator<Item = &AgentState> {
        self.agents.values()
    }

    /// The running queries.
    pub fn queries(&self) -> impl Iterator<Item = (QueryId, &Running)> {
        self.queries.iter().map(|(id, running)| (*id, running))
    }

    /// The watermark of the fleet.
    pub fn watermark(&self) -> Nanos {
        self.watermark
    }

    /// Processes an event of the network, at `now` by the monitor's clock. A client's request is
    /// returned: another component answers it.
    pub fn take(&mut self, event: ServerEvent, now: Nanos) -> Option<ServerEvent> {
        self.end_restore();
        match event {
            ServerEvent::Joined(joined) => self.join(joined, now),
            ServerEvent::Message {
                session,
                number,
                message,
            } => self.receive(session, number, message, now),
            ServerEvent::Left { session, why } => self.leave(session, &why, now),
            other @ (ServerEvent::Request { .. } | ServerEvent::Refused { .. }) => {
                return Some(other);
            }
        }
        None
    }

    /// Adds a change of an alert that runs here, for stream `alerts` and relation `alert_states`.
    pub fn report_alert(&mut self, change: AlertChange) {
        let at = change.ts;
        if !self.alerts.report(change) {
            self.own.record(at, None, "alerts_lost", "too_many", 1);
        }
    }

    /// Removes all instances of alerts, without changes in stream `alerts`.
    pub fn clear_alerts(&mut self) {
        self.alerts.clear();
    }

    /// Adds an instance of an alert that was present before a restart.
    pub fn restore_alert(&mut self, instance: AlertInstance) {
        self.alerts.set(instance);
    }

    /// Runs a query that was split into fragments. Its results go to `publisher`.
    ///
    /// A standing query continues after a restart if it is split as before, so the caller passes
    /// the earlier placement strategy when it starts the query again.
    ///
    /// # Errors
    /// If the used channel numbers cannot be saved.
    pub fn start(
        &mut self,
        name: &str,
        cut: &Cut,
        standing: bool,
        publisher: Publisher,
        now: Nanos,
    ) -> Result<QueryId, StateError> {
        let reads_guests = cut.monitor.sources().iter().any(|d| d.name == GUEST_IO);
        let of_guests = match reads_guests {
            true => guest::fragments(),
            false => Vec::new(),
        };
        let fragments = || cut.fragments.iter().chain(&of_guests);
        if let Some(state) = &mut self.state {
            state.reserve(self.channels.next() + fragments().count() as u64)?;
        }
        let restored = self.recovery.take_query(name).filter(|_| standing);
        let wanted: Vec<(ChannelId, bool)> = fragments().map(|f| self.channels.want(f)).collect();
        let since = self.unled(now);
        for &(id, _) in wanted.iter().filter(|(_, is_new)| *is_new) {
            let channel = self.channels.get(id).expect("it was just made");
            // Also if no query of the engine reads it yet.
            self.engine
                .declare(&channel.fragment.declaration(&channel.source));
            for agent in self.agents.values_mut() {
                agent.start(channel, since);
            }
        }
        if let [.., (requests, _), (vms, _)] = wanted[..]
            && reads_guests
        {
            self.read_guests(&of_guests, requests, vms);
        }
        let channels = wanted.iter().filter_map(|(id, _)| self.channels.get(*id));
        let (sources, accounts): (Vec<String>, Vec<(ChannelId, Account)>) = channels
            .map(|c| (c.source.clone(), (c.id, c.account)))
            .unzip();
        let plan = cut.monitor_over(&sources);
        let kept = |declaration: &Declaration| {
            let mut fields = declaration.schema.fields.iter();
            let relation = declaration.shape == Shape::Relation;
            let is_repeated = !NOT_REPEATED.contains(&declaration.name.as_str());
            is_repeated && (!relation || fields.all(|f| state::Cell::keeps(f.ty)))
        };
        let before_guests = if reads_guests { guest::MEMORY } else { 0 };
        let memory = plan
            .memory()
            .map(|memory| memory.saturating_add(before_guests));
        let memory = memory.filter(|memory| {
            *memory <= self.options.hold_max && plan.sources().into_iter().all(kept)
        });
        let instant = self.recovery.instant;
        let whole = |id: &ChannelId| {
            let channel = self.channels.get(*id).expect("it was just wanted");
            channel.restored && channel.given_up <= instant
        };
        let restarts =
            restored.is_some() && (memory.is_none() || !wanted.iter().all(|(id, _)| whole(id)));
        if restarts {
            self.own.record(now, None, "query_restarted", name, 1);
        }
        let (shown_to, from) = match &restored {
            Some(saved) if memory.is_some() => (instant, saved.from),
            Some(saved) => (Nanos::MIN, self.next_start().max(saved.from)),
            None => (Nanos::MIN, self.next_start()),
        };
        let mut running = Running {
            name: name.into(),
            publisher,
            since: now,
            standing,
            restarted_at: restarts.then_some(now),
            shown_to,
            from,
            memory,
            reads_guests,
            reads_own: plan.sources().iter().any(|d| d.name == OWN_STREAM),
            channels: accounts,
            pending: Some(plan),
        };
        if let Some(restored) = restored {
            running.since = restored.since;
            for (channel, account) in &mut running.channels {
                let before = restored.before.iter().find(|(id, _)| *id == channel.0);
                *account = before.map_or(*account, |(_, before)| *before);
            }
        }
        let query = self.engine.reserve();
        self.queries.insert(query, running);
        self.start_pending();
        if standing {
            let channels: Vec<ChannelId> = wanted.iter().map(|(id, _)| *id).collect();
            self.forward_query(query, name, cut, &channels[..cut.fragments.len()], now);
            self.hold(now);
        }
        Ok(query)
    }

    /// Starts the queries in the engine that receive what is later than the watermark.
    fn start_pending(&mut self) {
        for (id, running) in &mut self.queries {
            if running.from <= self.watermark
                && let Some(plan) = running.pending.take()
            {
                self.engine.start(*id, &plan);
            }
        }
    }

    /// Adds a query of stream `GuestIO`, whose requests and VMs are those of these channels.
    fn read_guests(&mut self, fragments: &[Fragment], requests: ChannelId, vms: ChannelId) {
        let guests = self.guest.get_or_insert_with(|| {
            let mut stream = GuestStream::new(fragments);
            let channel = self.channels.get(vms).expect("it was just wanted");
            // Another query may have the channel already, which does not send it again.
            if let Some(known) = self.engine.content(&channel.source, self.watermark) {
                stream.vms(&known);
            }
            Guests {
                stream,
                requests,
                vms,
                queries: 0,
            }
        });
        guests.queries += 1;
    }

    /// Ends a query with the reason `why`. Fragments that only it needed end at the agents too.
    pub fn stop(&mut self, query: QueryId, why: &str) {
        let Some(mut running) = self.queries.remove(&query) else {
            return;
        };
        running.publisher.end(why);
        self.engine.remove(query);
        if let Some(guests) = self.guest.as_mut().filter(|_| running.reads_guests) {
            guests.queries -= 1;
            if guests.queries == 0 {
                self.guest = None;
            }
        }
        self.forward_no_more(query);
        for (id, _) in std::mem::take(&mut running.channels) {
            let Some(mut channel) = self.channels.release(id) else {
                continue;
            };
            self.engine.remove_source(&channel.source);
            for (agent, bytes) in channel.waiting.clear() {
                self.free(agent, bytes);
            }
            for agent in self.agents.values_mut() {
                agent.runs.remove(&id);
                agent.expects_not(id);
                agent.order(MonitorMessage::Stop(id.0));
            }
        }
        if running.standing {
            self.hold(self.watermark);
        }
        self.count_hosts();
    }

    /// A running query.
    pub fn query_mut(&mut self, query: QueryId) -> Option<&mut Running> {
        self.queries.get_mut(&query)
    }

    /// Adds a note of the monitor to stream `weir`, with the time `at`.
    pub fn note(&mut self, at: Nanos, counter: &str, cause: &str) {
        self.own.record(at, None, counter, cause, 1);
    }

    /// Changes the interval of heartbeats, and the maximum wait for an agent that sends none.
    pub fn set_pace(&mut self, heartbeat: Nanos, exclude_after: Nanos) {
        if heartbeat != self.options.heartbeat {
            self.order_all(&MonitorMessage::HeartbeatInterval(heartbeat));
        }
        self.options.heartbeat = heartbeat;
        self.options.exclude_after = exclude_after;
    }

    /// The queries that failed since the last call; they have been removed.
    pub fn take_failed(&mut self) -> Vec<Failed> {
        std::mem::take(&mut self.failed)
    }

    /// The hosts with their state at `now`.
    pub fn hosts(&self, now: Nanos) -> Vec<Host> {
        self.agents.values().map(|agent| agent.row(now)).collect()
    }

    /// Subtracts waiting bytes of an agent.
    fn free(&mut self, agent: AgentId, bytes: usize) {
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        if let Some(agent) = self.agents.get_mut(&agent) {
            agent.waiting_bytes = agent.waiting_bytes.saturating_sub(bytes);
        }
    }

    /// Counts again which agents are included in which channel, where that has changed.
    fn count_hosts(&mut self) {
        let ids: Vec<AgentId> = self.agents.keys().copied().collect();
        for id in ids {
            self.count_agent(id);
        }
    }
}
