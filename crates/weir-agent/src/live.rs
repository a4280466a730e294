//! [`Agent`]: the loop of a live agent: receives orders, opens and closes taps, passes rows to the
//! core and sends the results to the monitor.
//!
//! One thread owns all state; each tap has a thread ([`taps`]), and so has the uplink.

mod taps;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};
use weir_model::{Declaration, Nanos};
use weir_query::engine::EngineOptions;
use weir_query::plan::{Plan, restricted, wire};
use weir_tap::ebpf::Fact;
use weir_wire::message::Feature;
use weir_wire::{
    AgentMessage, AlertAction, ChannelId, MonitorMessage, SELF_TEST, Uplink, UplinkEvent,
};

use super::actions::{ActionReport, HostActions};
use super::clock::AgentClock;
use super::core::AgentCore;
use super::demands::{DemandSet, Served, wanted};
use super::folds::{self, Folds};
use super::own_stream::Own;
use super::service::Service;
use super::shedding::{Budget, Shedding};
use super::tap::SourceConfig;
use weir_runtime::device_names;
use weir_runtime::leader_file::LeaderFile;
use weir_runtime::logged_reasons::LoggedReasons;
use weir_runtime::plans;
use weir_runtime::run_loop::{CounterReading, Stop};
use weir_runtime::service::ServiceStatus;
use weir_runtime::tally_file::TallyFile;
use weir_sink::metrics::Family;

/// The maximum sleep of the loop; taps and the uplink wake it when they have something.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The interval at which counters, the status and the budget are processed; that of the status is
/// at least a heartbeat.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// The interval of heartbeats until the monitor sets another one.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// At this number of waiting rows the loop does not wait for the next heartbeat.
const WAITING_ROWS_MAX: usize = 1 << 16;

/// How long an agent that ends waits for the remaining rows of the taps.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The options of an agent.
pub struct AgentOptions {
    /// The source configuration.
    pub source_config: SourceConfig,
    /// The only VM whose rows the monitor may read.
    pub only_vm: Option<String>,
    /// Memory of one fragment, bytes.
    pub query_bytes: usize,
    /// The resource limits.
    pub budget: Budget,
    /// The file of the tallies of emitted rows.
    pub tallies: TallyFile,
    /// The monitor's highest term.
    pub leader: LeaderFile,
    /// The processes whose tallies are part of the hello.
    pub earlier: Vec<u64>,
    /// The reason why this host cannot be observed, if known.
    pub probe_failed: Option<String>,
    /// Where the result of the self-test arrives; no sender if there is none.
    pub self_test: Receiver<Fact>,
    /// Whether the agent ends at the end of a recording.
    pub once: bool,
    /// What it reports about itself outside of the fleet.
    pub status: Arc<ServiceStatus>,
    /// The socket of `weir act serve`.
    pub act_socket: PathBuf,
}

/// A running agent.
pub struct Agent {
    options: AgentOptions,
    clock: AgentClock,
    uplink: Uplink,
    core: AgentCore,
    /// The plans to run, whether they run already or not.
    plans: BTreeMap<ChannelId, Arc<Plan>>,
    /// The channels that wait for their taps.
    pending: Vec<ChannelId>,
    /// The streams of the agent; none before the first fragment.
    served: Served,
    /// The demands of all plans on the host's taps.
    wanted: DemandSet,
    /// The demands for groups among them.
    folds: Folds,
    /// The time of the last order that changed the plans.
    ordered: Instant,
    /// The demands have not been computed since.
    is_stale: bool,
    services: BTreeMap<String, Service>,
    shedding: Shedding,
    own: Own,
    heartbeat: Duration,
    stepped: Instant,
    /// Rows that have arrived since the last step.
    rows_waiting: usize,
    /// The losses of each tap when they were last reported, by cause.
    missed: HashMap<(String, &'static str), i64>,
    maintained_at: Instant,
    reported_at: Instant,
    /// The result of the self-test, once it has ended.
    self_test: Option<Fact>,
    /// A recording has ended.
    replayed: bool,
    /// The monitor of the last welcome.
    monitor: Option<u64>,
    /// The reasons for the missing connection that were logged.
    gone: LoggedReasons,
    /// The tallies can no longer be written.
    tallies_failed: bool,
    /// The actions of the monitor's alerts.
    actions: HostActions,
}

impl Agent {
    /// An agent without fragments.
    pub fn new(options: AgentOptions, uplink: Uplink) -> Agent {
        Agent {
            core: core(options.query_bytes),
            shedding: Shedding::new(options.budget),
            own: Own::new(),
            clock: options.source_config.clock,
            actions: HostActions::new(options.act_socket.clone()),
            options,
            uplink,
            plans: BTreeMap::new(),
            pending: Vec::new(),
            served: Served::default(),
            wanted: DemandSet::new(),
            folds: Folds::default(),
            ordered: Instant::now(),
            is_stale: false,
            services: BTreeMap::new(),
            heartbeat: HEARTBEAT,
            stepped: Instant::now(),
            rows_waiting: 0,
            missed: HashMap::new(),
            maintained_at: Instant::now(),
            reported_at: Instant::now(),
            self_test: None,
            replayed: false,
            monitor: None,
            gone: LoggedReasons::default(),
            tallies_failed: false,
        }
    }

    /// Runs until `stop` is set or the recording has ended. `reload` is called periodically and may
    /// return another budget. True if the monitor has acknowledged all messages.
    pub fn run(mut self, stop: &Stop, mut reload: impl FnMut() -> Option<Budget>) -> bool {
        while stop.signal().is_none() && !(self.options.once && self.replayed) {
            if let Some(budget) = reload() {
                self.shedding.set_budget(budget);
            }
            self.turn();
            self.options.status.turned();
        }
        self.options.status.stopping();
        self.shut_down()
    }

    /// One iteration: processes orders and taps, and sends what is due.
    fn turn(&mut self) {
        let mut received = false;
        while let Some(order) = self.uplink.receive(Duration::ZERO) {
            received = true;
            self.apply_command(order);
        }
        if self.listen() {
            received = true;
            // The process may be killed at any time.
            self.write_tallies();
        }
        self.serve();
        if self.stepped.elapsed() >= self.heartbeat || self.rows_waiting > WAITING_ROWS_MAX {
            self.step();
        }
        if self.maintained_at.elapsed() >= MAINTENANCE_INTERVAL {
            self.run_maintenance();
        }
        if !received {
            let due = self.heartbeat.saturating_sub(self.stepped.elapsed());
            thread::park_timeout(due.min(POLL_INTERVAL));
        }
    }

    // ---- Orders ---------------------------------------------------------------------------

    fn apply_command(&mut self, order: UplinkEvent) {
        match order {
            UplinkEvent::Welcome {
                channels,
                heartbeat,
            } => {
                self.set_heartbeat(heartbeat);
                self.on_welcome();
                let over: Vec<ChannelId> = self.plans.keys().copied().collect();
                let over = over.into_iter().filter(|c| !channels.contains(c));
                over.for_each(|channel| self.stop(channel));
            }
            UplinkEvent::Message(MonitorMessage::Start(start)) => {
                self.start(ChannelId(start.channel), &start.fragment);
            }
            UplinkEvent::Message(MonitorMessage::Stop(channel)) => {
                debug!(channel, "the fragment is stopped");
                self.stop(ChannelId(channel));
            }
            UplinkEvent::Message(MonitorMessage::HeartbeatInterval(every)) => {
                self.set_heartbeat(every)
            }
            UplinkEvent::Message(MonitorMessage::Actions(actions)) => {
                let actions = self.permitted(actions.actions);
                let reports = self.actions.set(actions, self.now());
                self.report_actions(reports);
            }
            // Handled by the uplink.
            UplinkEvent::Message(
                MonitorMessage::Welcome(_) | MonitorMessage::Ack(_) | MonitorMessage::Pong(_),
            ) => {}
            UplinkEvent::Disconnected(why) => self.disconnected(why),
        }
    }

    fn on_welcome(&mut self) {
        let monitor = self.uplink.state().monitor;
        let before = std::mem::replace(&mut self.monitor, monitor);
        if before.is_some() && before != monitor {
            // Another monitor has another clock and other channels.
            self.plans.clear();
            self.pending.clear();
            self.services.clear();
            self.core = core(self.options.query_bytes);
            self.folds.retain(|_| false);
            self.changed();
        }
        self.gone.clear();
        self.options.leader.store(self.uplink.state().leader);
        let at = self.clock.now();
        let clock = self.uplink.clock();
        let seconds = |ns: Nanos| ns as f64 / 1e9;
        info!(
            clock_offset_s = %format_args!("{:+.6}", seconds(clock.offset_ns(at))),
            clock_error_s = %format_args!("{:.6}", seconds(clock.error_ns(at))),
            "connected to the monitor"
        );
        let version = self.uplink.state().version;
        let has_actions = version.is_some_and(|version| version.has(Feature::Actions));
        self.actions.welcomed(has_actions);
        if before.is_none() {
            self.note("agent", "up", None);
            if let Some(why) = self.options.probe_failed.take() {
                self.note("tap", "probe_failed", Some(&why));
            }
        }
        // A restarted monitor has not received it.
        self.report_self_test();
    }

    /// Reports the result of the self-test, if it has ended.
    fn report_self_test(&mut self) {
        if let Some(fact) = &self.self_test {
            let (at, cause) = (self.now(), Some(fact.found.as_str()));
            let note = self
                .own
                .state(at, "tap", SELF_TEST, cause, fact.status as i64);
            self.uplink.send(AgentMessage::Note(note));
        }
    }

    /// Logs why there is no connection, unless that is logged already. With several addresses the
    /// reasons alternate.
    fn disconnected(&mut self, why: String) {
        self.actions.disconnected();
        if self.gone.add(&why) {
            warn!(reason = %why, "not connected to the monitor, retrying");
        }
    }

    /// The actions on VMs that the monitor may read.
    fn permitted(&mut self, mut actions: Vec<AlertAction>) -> Vec<AlertAction> {
        let Some(vm) = self.options.only_vm.clone() else {
            return actions;
        };
        let wanted = actions.len();
        actions.retain(|action| action.vm == vm);
        if actions.len() < wanted {
            let why = format!("actions of its monitor on other VMs than {vm} are refused");
            self.report_actions(vec![ActionReport::Failed(why)]);
        }
        actions
    }

    /// Logs what has happened to the actions of alerts, and informs the monitor.
    fn report_actions(&mut self, reports: Vec<ActionReport>) {
        for report in reports {
            match report {
                ActionReport::Step(step) => {
                    let text = |name: &str| step[name].as_str().unwrap_or_default().to_owned();
                    let (event, vm, disk) = (text("event"), text("vm"), text("disk"));
                    info!(
                        alert = text("alert"),
                        vm,
                        disk,
                        "action {event}: {}",
                        text("text")
                    );
                }
                ActionReport::Failed(why) => {
                    warn!("{why}");
                    self.note("agent", "actions_failed", Some(&why));
                }
            }
        }
    }

    fn set_heartbeat(&mut self, every: Nanos) {
        // The protocol limits its range.
        self.heartbeat = Duration::from_nanos(every as u64);
    }

    fn start(&mut self, channel: ChannelId, fragment: &[u8]) {
        if self.plans.contains_key(&channel) {
            return;
        }
        // Requested once, when the recording can be read.
        if self.served.capabilities.streams.is_empty() {
            match self.options.source_config.served() {
                Ok(served) => self.served = served,
                Err(error) => return self.refuse(channel, error.text()),
            }
        }
        let plan = match wire::decode(fragment, &self.served.capabilities.catalog()) {
            Ok(plan) => Arc::new(plan),
            Err(error) => return self.refuse(channel, error.to_string()),
        };
        let plan = match &self.options.only_vm {
            Some(vm) => match restricted(&plan, vm) {
                Ok(plan) => plan,
                Err(why) => return self.refuse(channel, why),
            },
            None => plan,
        };
        if let Some(why) = self.served.refusal(&plan) {
            return self.refuse(channel, why);
        }
        debug!(channel = channel.0, "the fragment is started");
        // Pairs that the host's tap provides need not be joined.
        let (plan, _) = device_names::resolve(&plan, &self.options.source_config.args);
        let capabilities = &self.served.capabilities;
        let paired = plans::paired(&plan, capabilities);
        let plan = self.folds.rewrite(&paired.plan, capabilities);
        self.uplink.set_counts(channel, plan.requests_column());
        self.plans.insert(channel, plan);
        self.pending.push(channel);
        self.changed();
    }

    fn stop(&mut self, channel: ChannelId) {
        self.remove_channel(channel);
        self.core.stop(channel);
    }

    /// Removes a fragment from the plans to run; false if it was not present.
    fn remove_channel(&mut self, channel: ChannelId) -> bool {
        if self.plans.remove(&channel).is_none() {
            return false;
        }
        self.pending.retain(|c| *c != channel);
        let plans = &self.plans;
        let reads = |plan: &Plan, source: &str| plan.sources().iter().any(|d| d.name == source);
        self.folds
            .retain(|source| plans.values().any(|plan| reads(plan, source)));
        self.changed();
        true
    }

    /// Fails a fragment that cannot run, or can no longer run.
    fn refuse(&mut self, channel: ChannelId, why: String) {
        warn!(channel = channel.0, reason = %why, "the fragment cannot run");
        self.note("agent", "fragment_failed", Some(&why));
        self.stop(channel);
        self.core.refuse(channel, why);
    }

    /// Marks the demands as stale after a change of the plans.
    fn changed(&mut self) {
        self.ordered = Instant::now();
        self.is_stale = true;
    }

    /// Computes the demands of all fragments, once for all orders that arrived together.
    fn find_wanted(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        let mut seen = HashSet::new();
        let plans = self.plans.values().map(|plan| &**plan);
        let plans = plans.filter(|plan| seen.insert(*plan));
        self.wanted = wanted(plans, &self.served, &self.folds);
        self.services.values_mut().for_each(Service::touch);
    }

    // ---- Time -----------------------------------------------------------------------------

    /// Converts a time of the agent to the monitor's time.
    fn to_monitor(&self, at: Nanos) -> Nanos {
        self.uplink.clock().to_monitor(at)
    }

    /// The current time of the monitor.
    fn now(&self) -> Nanos {
        self.to_monitor(self.clock.now())
    }

    fn is_synchronised(&self) -> bool {
        self.uplink.clock().is_synchronised()
    }

    /// Passes the watermark of the taps to the core.
    fn reach(&mut self) {
        if !self.is_synchronised() {
            return;
        }
        let now = self.clock.now();
        let clock = self.uplink.clock();
        let to_monitor = |at| clock.to_monitor(at);
        let mut at = to_monitor(now);
        let shift_ns = &self.options.source_config.args.interval_shift_ns;
        shift_ns.store(at - now, Ordering::Relaxed);
        for service in self.services.values_mut() {
            let reached = service.reached(now);
            for conversion in service.conversions() {
                conversion.reached(reached, to_monitor);
            }
            let reached = to_monitor(reached);
            at = at.min(match service.interval() {
                Some(interval) => folds::over(interval, reached),
                None => reached,
            });
        }
        self.core.reached(at);
    }

    /// Advances the core to the watermark of the taps and sends the results.
    fn step(&mut self) {
        self.stepped = Instant::now();
        self.rows_waiting = 0;
        for (channel, requests) in self.uplink.dropped() {
            self.core.lost(channel, requests);
        }
        for channel in self.uplink.incomplete() {
            self.core.resend(channel);
        }
        self.report_missed();
        self.reach();
        let mut words = Vec::new();
        self.core.step(&mut |word| words.push(word));
        self.send(words);
    }

    /// Sets the number of requests that each tap has aggregated and whose groups have not arrived.
    /// A group that has arrived waits in the core and must not be counted here as well.
    fn count_folding(&mut self) {
        for service in self.services.values() {
            if service.interval().is_some()
                && let Some(source) = service.sources().next()
            {
                self.core.set_folding(source, service.folding());
            }
        }
    }

    /// Sends the messages of a step after their tallies are written.
    fn send(&mut self, words: Vec<AgentMessage>) {
        self.write_tallies();
        for word in &words {
            if let AgentMessage::Failed(failed) = word
                && self.remove_channel(ChannelId(failed.channel))
            {
                self.note("engine", "fragment_failed", Some(&failed.why));
            }
        }
        if !words.is_empty() {
            self.uplink.send_all(words);
        }
    }

    /// Writes the tallies of messages before these are sent, so that a sent row is never unknown.
    fn write_tallies(&mut self) {
        if self.tallies_failed {
            return;
        }
        if let Err(error) = self.options.tallies.write(self.core.tallies()) {
            error!(
                reason = %error,
                "tallies are no longer written: rows lost in a crash are not counted"
            );
            self.tallies_failed = true;
            self.note("agent", "tallies_failed", Some(&error.to_string()));
        }
    }

    // ---- Own status -----------------------------------------------------------------------

    /// Records an event in the agent's own counters.
    fn note(&mut self, place: &'static str, counter: &'static str, cause: Option<&str>) {
        let note = self.own.event(self.now(), place, counter, cause);
        self.uplink.send(AgentMessage::Note(note));
    }

    fn run_maintenance(&mut self) {
        self.maintained_at = Instant::now();
        let load = self.own.load();
        let readings = self.own.readings(self.services.values(), &self.core);
        self.publish(readings.clone());
        let reports = self.actions.poll(self.now());
        self.report_actions(reports);
        if self.uplink.state().has_acks {
            // Before, the tallies of earlier processes may be in no checkpoint: if monitor and
            // agent were killed, these requests would be in no count.
            let options = &mut self.options;
            options
                .tallies
                .forget(&std::mem::take(&mut options.earlier));
        }
        if !self.is_synchronised() {
            return;
        }
        if let Ok(fact) = self.options.self_test.try_recv() {
            self.self_test = Some(fact);
            self.report_self_test();
        }
        if let Some(cause) = self.shedding.observe(load) {
            let keep = i64::from(self.shedding.keep_one_in());
            let at = self.now();
            let note = self.own.state(at, "agent", "shedding", Some(cause), keep);
            self.uplink.send(AgentMessage::Note(note));
            warn!(%cause, "one request in {keep} is sampled");
        }
        if self.reported_at.elapsed() + MAINTENANCE_INTERVAL / 2 >= self.heartbeat {
            self.report_status(readings);
        }
    }

    /// Sends the counters and the status.
    fn report_status(&mut self, readings: Vec<CounterReading>) {
        self.reported_at = Instant::now();
        let notes = self.own.notes(self.now(), readings);
        let (own_time, clock) = (self.clock.now(), self.uplink.clock());
        let mut status = self.own.status(self.uplink.state().waiting);
        status.offset_ns = clock.offset_ns(own_time);
        status.offset_error_ns = clock.error_ns(own_time);
        status.kept_share = self.shedding.kept_share();
        status.channels = self.core.costs(|channel| self.uplink.bytes_out(channel));
        status.tallies = self.core.tallies().collect();
        let notes = notes.into_iter().map(AgentMessage::Note);
        let messages = notes.chain([AgentMessage::Status(status)]);
        self.uplink.send_all(messages);
    }

    /// Publishes the counters and the readiness: an agent is ready while it is connected to its
    /// monitor.
    fn publish(&self, readings: Vec<CounterReading>) {
        let uplink = self.uplink.state();
        let number = |name: &str, unit, help, value: f64| Family::gauge(name, unit, help, value);
        let families = vec![
            number(
                "weir_agent_connected",
                "",
                "1 while the agent is connected to its monitor.",
                f64::from(u8::from(uplink.connected)),
            ),
            number(
                "weir_agent_unacknowledged_bytes",
                "bytes",
                "Messages that the monitor has not acknowledged.",
                uplink.waiting.bytes as f64,
            ),
            number(
                "weir_agent_spooled_bytes",
                "bytes",
                "Those of them that are on disk.",
                uplink.waiting.spooled_bytes as f64,
            ),
            number(
                "weir_agent_fragments",
                "",
                "Fragments of queries that the agent runs.",
                self.plans.len() as f64,
            ),
            number(
                "weir_agent_kept_share",
                "",
                "The share of the events that is delivered; less than 1 while it samples.",
                self.shedding.kept_share(),
            ),
        ];
        let readiness = match uplink.connected {
            true => Ok(format!(
                "connected to the monitor, {} fragments",
                self.plans.len()
            )),
            false => Err(format!(
                "not connected to the monitor: {}",
                uplink.last_failure.as_deref().unwrap_or("connecting")
            )),
        };
        self.options.status.publish(readings, families, readiness);
    }

    /// Ends the agent: sends what the taps have delivered up to now, and the state of open slides.
    /// True if the monitor has acknowledged everything.
    fn shut_down(mut self) -> bool {
        if self.is_synchronised() {
            self.drain_uplink();
            self.step();
            let (now, mut words) = (self.now(), Vec::new());
            self.core.end(now, &mut |word| words.push(word));
            self.send(words);
        }
        let reports = self.actions.close();
        self.report_actions(reports);
        self.heartbeat = Duration::ZERO;
        self.run_maintenance();
        self.services.clear();
        // There are no more rows, so the monitor need not wait for any.
        self.uplink.send(AgentMessage::Watermark(Nanos::MAX));
        self.uplink.close()
    }

    /// Receives the remaining rows of the taps up to now. Groups that the kernel computes are
    /// delivered at the end of the slide.
    fn drain_uplink(&mut self) {
        let now = self.now();
        let (mut until, mut incomplete) = (now, 0);
        for plan in self.plans.values() {
            let folded = |d: &Declaration| self.folds.demand(&d.name).is_some();
            let end = match plan.sources().into_iter().any(folded) {
                true => plan.emitted_by(now),
                false => now,
            };
            match end - now <= DRAIN_TIMEOUT.as_nanos() as Nanos {
                true => until = until.max(end),
                false => incomplete += 1,
            }
        }
        if incomplete > 0 {
            warn!(
                fragments = incomplete,
                "the groups that the kernel computed since the last slide are lost"
            );
            self.note("agent", "slide_lost", Some("agent_ended"));
        }
        let began = Instant::now();
        self.turn();
        while self.core.time() < until && began.elapsed() < DRAIN_TIMEOUT {
            self.turn();
        }
        self.listen();
    }
}

/// A core without fragments.
fn core(query_bytes: usize) -> AgentCore {
    AgentCore::new(EngineOptions {
        query_bytes_max: query_bytes,
        ..EngineOptions::default()
    })
}
