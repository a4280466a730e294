//! The monitor: one engine over a fleet of agents.
//!
//! One thread owns everything; it takes [`ServerEvent`]s of the network one after the other and moves
//! time on. No locks, and no order of events but the one in which they came.
//!
//! 1. Agents come and go ([`join`]). Each runs the fragments of the monitor's queries; queries whose
//!    fragments are equal share a [`channels::Channel`].
//! 2. What agents say is checked, counted ([`account`]) and waits ([`words`], [`gather`]).
//! 3. When an instant is over in the whole fleet ([`time`]), its rows go to the engine, and what
//!    comes of them to whoever asked ([`advance`], [`publish`]), together with how complete it is
//!    ([`completeness`]).
//! 4. How far standing queries are is written down ([`checkpoint`]); after a kill they go on from
//!    there with what agents say again ([`recovery`]).
//!
//! Work is linear in rows, in words of agents, and in channels: what an agent says is looked at
//! once, however many queries read it.

mod account;
mod advance;
mod agents;
mod book;
mod channels;
mod checkpoint;
pub mod client;
mod completeness;
pub mod config;
mod content;
mod files;
mod forgotten;
mod gather;
mod join;
mod lock;
mod own_stream;
mod publish;
mod question;
mod rates;
mod readings;
mod recovery;
pub mod registry;
mod requests;
mod run;
mod state;
#[cfg(test)]
mod tests;
mod time;
mod watcher;
mod words;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use weir_model::{Catalog, Declaration, Host, NANOS_PER_SECOND, Nanos, Shape, Symbol};
use weir_query::engine::{Engine, EngineOptions, QueryId};
use weir_query::function::EvalError;
use weir_query::place::fleet::Cut;
use weir_wire::{ChannelId, MonitorMessage, ServerEvent, SessionId};

pub use account::Account;
pub use agents::{Agent, AgentId};
pub use channels::Channels;
pub use files::FileSink;
pub use lock::hold;
pub use publish::{Bounds, Publisher};
pub use question::check_queries;
pub use run::run;
pub use state::StateError;

use content::Content;
use forgotten::ForgottenAgents;
use own_stream::OwnStream;
use recovery::Recovery;
use state::{Saved, State};
use weir_runtime::run_loop::Counters;

/// The stream of what agents and monitor note.
const OWN_STREAM: &str = "weir";

/// The relation of the fleet's hosts.
const HOSTS: &str = "hosts";

/// How the monitor runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often agents say how far they have come.
    pub heartbeat: Nanos,
    /// Nobody waits longer for an agent that is behind.
    pub overtake_after: Nanos,
    /// How far ahead of the monitor's clock an agent's words may be.
    pub ahead_max: Nanos,
    /// Most agents.
    pub agents_max: usize,
    /// An agent that has been away for so long is forgotten.
    pub forget_after: Nanos,
    /// An agent that does not take what it is told for so long is let go; also how long an agent
    /// that broke the rules is not let in again.
    pub patience: Nanos,
    /// Most bytes of rows that wait for slow agents; then those are overtaken earlier. One agent may
    /// have a quarter of that.
    pub waiting_bytes_max: usize,
    /// What the engine may use.
    pub engine: EngineOptions,
    /// How often it is written down how far standing queries are.
    pub checkpoint_every: Nanos,
    /// How far back a standing query may look and still go on after a restart as if nothing had
    /// happened; agents hold their rows for so long.
    pub hold_max: Nanos,
    /// Most bytes of words that one agent holds for that, or half of what it has room for if that is
    /// less. It is half of what agents have room for by their defaults.
    pub hold_bytes_max: usize,
    /// How long after a restart agents are waited for that send again what they said.
    pub recovery: Nanos,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            heartbeat: NANOS_PER_SECOND / 20,
            overtake_after: 2 * NANOS_PER_SECOND,
            ahead_max: 10 * NANOS_PER_SECOND,
            agents_max: 10_000,
            forget_after: 3_600 * NANOS_PER_SECOND,
            patience: 10 * NANOS_PER_SECOND,
            waiting_bytes_max: 512 << 20,
            engine: EngineOptions::default(),
            checkpoint_every: NANOS_PER_SECOND,
            hold_max: 60 * NANOS_PER_SECOND,
            hold_bytes_max: 4 << 20,
            recovery: 30 * NANOS_PER_SECOND,
        }
    }
}

/// A query that runs.
pub struct Running {
    /// What users call it.
    pub name: String,
    /// Where its results go.
    pub publisher: Publisher,
    /// Since when.
    pub since: Nanos,
    /// It goes on after a restart.
    pub standing: bool,
    /// The monitor was restarted then, and what the query held is lost, because it looks back
    /// farther than agents hold their rows, or they held less of them than it needs.
    pub anew_from: Option<Nanos>,
    /// Results up to this instant were given before a restart.
    shown_to: Nanos,
    /// How far it looks back.
    memory: Option<Nanos>,
    /// It reads stream `weir`.
    reads_own: bool,
    /// What it reads of agents, and what had become of those rows when it began.
    channels: Vec<(ChannelId, Account)>,
}

impl Running {
    /// The channels that it reads, in the order of its fragments.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.channels.iter().map(|(id, _)| *id)
    }
}

/// A query that came to an end by its own fault.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Its name.
    pub name: String,
    /// Why.
    pub error: EvalError,
}

/// How much the monitor has done; a measure of cost that does not depend on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Words of agents taken in.
    pub words: u64,
    /// Rows taken in.
    pub rows: u64,
    /// Pieces of channels that were merged.
    pub pieces: u64,
    /// Batches given to the engine.
    pub batches: u64,
    /// Instants to which the engine was moved.
    pub steps: u64,
    /// Agents looked at when time moved.
    pub agents_looked_at: u64,
    /// Channels looked at when time moved, once for each query that reads them.
    pub channels_looked_at: u64,
}

/// The monitor. See the module's documentation.
pub struct Monitor {
    options: Options,
    /// A random number that agents know this monitor by.
    identity: u64,
    engine: Engine,
    agents: BTreeMap<AgentId, Agent>,
    agents_ever: u32,
    hosts: HashMap<Symbol, AgentId>,
    /// Agents that have been away for long, in case they return.
    forgotten: ForgottenAgents,
    sessions: HashMap<SessionId, AgentId>,
    channels: Channels,
    queries: BTreeMap<QueryId, Running>,
    own: OwnStream,
    /// For how long agents' notes are needed again should the monitor be restarted.
    own_hold: Option<Nanos>,
    /// Something of what agents say may be needed again.
    holds: bool,
    /// The rows of relation `hosts` as they were told last, and when.
    hosts_told: (HashMap<Symbol, Host>, Nanos),
    /// All instants up to this one are over.
    frontier: Nanos,
    waiting_bytes: usize,
    failed: Vec<Failed>,
    work: Work,
    /// What was counted, as it was read last, and when.
    counters: Counters,
    counters_read_at: Nanos,
    state: Option<State>,
    /// What the word did that is being taken in.
    effect: words::Effect,
    /// When it was last begun to save how far standing queries are.
    saved_at: Nanos,
    /// How long it took until that was on the disk.
    save_took: Nanos,
    /// The checkpoint on the disk has standing queries.
    saved_any: bool,
    /// The next checkpoint is not to wait: queries began or ended, or an agent holds all it may.
    save_soon: bool,
    /// What is left of the time before a restart.
    recovery: Recovery,
}

impl Monitor {
    /// A monitor without agents and queries, whose time begins at `now`.
    pub fn new(identity: u64, options: Options, now: Nanos) -> Monitor {
        let mut engine = Engine::new(options.engine.clone());
        let catalog = Catalog::builtin();
        for name in [OWN_STREAM, HOSTS] {
            engine.declare(catalog.find(name).expect("the catalog has it"));
        }
        engine.heartbeat_all(now);
        engine.step(&mut |_| unreachable!("no query runs yet"));
        Monitor {
            options,
            identity,
            engine,
            agents: BTreeMap::new(),
            agents_ever: 0,
            hosts: HashMap::new(),
            forgotten: ForgottenAgents::default(),
            sessions: HashMap::new(),
            channels: Channels::new(1),
            queries: BTreeMap::new(),
            own: OwnStream::default(),
            own_hold: None,
            holds: false,
            hosts_told: (HashMap::new(), Nanos::MIN),
            frontier: now,
            waiting_bytes: 0,
            failed: Vec::new(),
            work: Work::default(),
            counters: Counters::default(),
            counters_read_at: now,
            state: None,
            effect: words::Effect::default(),
            saved_at: now,
            save_took: 0,
            saved_any: false,
            save_soon: false,
            recovery: Recovery::none(),
        }
    }

    /// The monitor whose state is in `dir`, as it was left there, or a new one. Standing queries are
    /// to be started again before anything happens.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn open(dir: &Path, options: Options, now: Nanos) -> Result<Monitor, StateError> {
        Monitor::with_state(State::open(dir)?, options, now)
    }

    /// As [`Monitor::open`], without a thread: checkpoints reach the disk by
    /// [`Monitor::write_checkpoint`], so that a simulation decides when.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn open_without_thread(
        dir: &Path,
        options: Options,
        now: Nanos,
    ) -> Result<Monitor, StateError> {
        Monitor::with_state(State::open_for_caller(dir)?, options, now)
    }

    fn with_state(
        (mut state, saved): (State, Option<Saved>),
        options: Options,
        now: Nanos,
    ) -> Result<Monitor, StateError> {
        // Which of the numbers ahead were given is not known.
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

    /// Writes the checkpoint that waits, of a monitor without a thread.
    pub fn write_checkpoint(&mut self) {
        if let Some(state) = &mut self.state {
            state.write_waiting();
        }
    }

    /// The agents.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.agents.values()
    }

    /// The queries that run.
    pub fn queries(&self) -> impl Iterator<Item = (QueryId, &Running)> {
        self.queries.iter().map(|(id, running)| (*id, running))
    }

    /// The instant up to which all is over.
    pub fn frontier(&self) -> Nanos {
        self.frontier
    }

    /// Takes in what happened on the network, at `now` by the monitor's clock. What a client asks is
    /// given back: it is answered elsewhere.
    pub fn take(&mut self, event: ServerEvent, now: Nanos) -> Option<ServerEvent> {
        self.end_restore();
        match event {
            ServerEvent::Joined(joined) => self.join(joined, now),
            ServerEvent::Message {
                session,
                number,
                message,
            } => self.hear(session, number, message, now),
            ServerEvent::Left { session, why } => self.leave(session, &why, now),
            other @ (ServerEvent::Request { .. } | ServerEvent::Refused { .. }) => {
                return Some(other);
            }
        }
        None
    }

    /// Runs a query that was cut. Its results go to `publisher`.
    ///
    /// A standing query goes on after a restart if it is cut as it was before, so whoever starts it
    /// again gives the way with it.
    ///
    /// # Errors
    /// When it cannot be written down which channels were given.
    pub fn start(
        &mut self,
        name: &str,
        cut: &Cut,
        standing: bool,
        publisher: Publisher,
        now: Nanos,
    ) -> Result<QueryId, StateError> {
        if let Some(state) = &mut self.state {
            state.reserve(self.channels.next() + cut.fragments.len() as u64)?;
        }
        let restored = self.recovery.take_query(name).filter(|_| standing);
        let wanted: Vec<(ChannelId, bool)> = cut
            .fragments
            .iter()
            .map(|f| self.channels.want(f))
            .collect();
        let since = self.unled(now);
        for &(id, _) in wanted.iter().filter(|(_, is_new)| *is_new) {
            let channel = self.channels.get(id).expect("it was just made");
            for agent in self.agents.values_mut() {
                agent.start(channel, since);
            }
        }
        let channels = wanted.iter().filter_map(|(id, _)| self.channels.get(*id));
        let (sources, accounts): (Vec<String>, Vec<(ChannelId, Account)>) = channels
            .map(|c| (c.source.clone(), (c.id, c.account)))
            .unzip();
        let plan = cut.monitor_over(&sources);
        let kept = |declaration: &Declaration| {
            let mut fields = declaration.schema.fields.iter();
            let relation = declaration.shape == Shape::Relation;
            !relation || declaration.name != HOSTS && fields.all(|f| state::Cell::keeps(f.ty))
        };
        let memory = plan.memory().filter(|memory| {
            *memory <= self.options.hold_max && plan.sources().into_iter().all(kept)
        });
        let query = self.engine.add(&plan);
        let instant = self.recovery.instant;
        let whole = |id: &ChannelId| {
            let channel = self.channels.get(*id).expect("it was just wanted");
            channel.restored && channel.given_up <= instant
        };
        let anew =
            restored.is_some() && (memory.is_none() || !wanted.iter().all(|(id, _)| whole(id)));
        if anew {
            self.own.tell(now, None, "query_anew", name, 1);
        }
        let mut running = Running {
            name: name.into(),
            publisher,
            since: now,
            standing,
            anew_from: anew.then_some(now),
            shown_to: self.recovery.shown_to(),
            memory,
            reads_own: plan.sources().iter().any(|d| d.name == OWN_STREAM),
            channels: accounts,
        };
        if let Some(restored) = restored {
            running.since = restored.since;
            for (channel, account) in &mut running.channels {
                let before = restored.before.iter().find(|(id, _)| *id == channel.0);
                *account = before.map_or(*account, |(_, before)| *before);
            }
        }
        self.queries.insert(query, running);
        if standing {
            self.hold(now);
        }
        Ok(query)
    }

    /// Finds anew for how long each channel's rows are needed, and saves as soon as possible which
    /// queries stand.
    fn hold(&mut self, now: Nanos) {
        self.save_soon = true;
        let restoring = self.recovery.is_open();
        let before: HashMap<ChannelId, bool> = self
            .channels
            .iter_mut()
            .map(|c| (c.id, c.hold.take().is_some() || c.restored && restoring))
            .collect();
        self.own_hold = None;
        self.holds = self.state.is_some() && self.queries.values().any(|q| q.standing);
        for running in self.queries.values().filter(|q| q.standing) {
            if running.reads_own {
                self.own_hold = self.own_hold.max(Some(running.memory.unwrap_or(0)));
            }
            for (id, _) in &running.channels {
                if let Some(channel) = self.channels.get_mut(*id) {
                    channel.hold = channel.hold.max(Some(running.memory.unwrap_or(0)));
                }
            }
        }
        // Which of its changes were safe was not kept until now.
        for channel in self.channels.iter_mut().filter(|c| c.is_relation()) {
            let held = channel.hold.is_some();
            if held == before[&channel.id] {
                continue;
            }
            for run in self
                .agents
                .values_mut()
                .filter_map(|a| a.runs.get_mut(&channel.id))
            {
                run.safe_content = match held {
                    true => run.content.clone(),
                    false => Content::default(),
                };
                channel.given_up = channel.given_up.max(now);
            }
        }
    }

    /// Ends a query, because of `why`. What only it needed ends at the agents too.
    pub fn stop(&mut self, query: QueryId, why: &str) {
        let Some(mut running) = self.queries.remove(&query) else {
            return;
        };
        running.publisher.end(why);
        self.engine.remove(query);
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
                agent.order(MonitorMessage::Stop { channel: id });
            }
        }
        if running.standing {
            self.hold(self.frontier);
        }
        self.count_heard();
    }

    /// A query that runs.
    pub fn query_mut(&mut self, query: QueryId) -> Option<&mut Running> {
        self.queries.get_mut(&query)
    }

    /// Notes in stream `weir` what the monitor saw at `at`.
    pub fn note(&mut self, at: Nanos, counter: &str, cause: &str) {
        self.own.tell(at, None, counter, cause, 1);
    }

    /// Another pace from now on: how often agents say how far they have come, and how long others
    /// wait for one that does not.
    pub fn set_pace(&mut self, heartbeat: Nanos, overtake_after: Nanos) {
        if heartbeat != self.options.heartbeat {
            self.order_all(&MonitorMessage::HeartbeatInterval(heartbeat));
        }
        self.options.heartbeat = heartbeat;
        self.options.overtake_after = overtake_after;
    }

    /// The queries that failed since this was asked last; they run no more.
    pub fn take_failed(&mut self) -> Vec<Failed> {
        std::mem::take(&mut self.failed)
    }

    /// The hosts as they are at `now`.
    pub fn hosts(&self, now: Nanos) -> Vec<Host> {
        self.agents.values().map(|agent| agent.row(now)).collect()
    }

    /// Some of an agent's rows do not wait any more.
    fn free(&mut self, agent: AgentId, bytes: usize) {
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
        if let Some(agent) = self.agents.get_mut(&agent) {
            agent.waiting_bytes = agent.waiting_bytes.saturating_sub(bytes);
        }
    }

    /// Counts anew which agents are heard in which channel, where that has changed.
    fn count_heard(&mut self) {
        let ids: Vec<AgentId> = self.agents.keys().copied().collect();
        for id in ids {
            self.count_agent(id);
        }
    }
}
