//! [`Agent`]: the loop of a live agent: orders come down, taps open and close, rows go through the
//! core, and what comes of them goes up.
//!
//! One thread owns everything here; each tap has one of its own, and so has the wire.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use weir_model::{NANOS_PER_SECOND, Nanos, Symbol};
use weir_query::engine::EngineOptions;
use weir_query::plan::Plan;
use weir_wire::{AgentWord, ChannelId, MonitorWord, Tally};

use super::core::AgentCore;
use super::demands::{Wanted, refusal, wanted};
use super::drill::DrillClock;
use super::outlet::Outlet;
use super::own::{Load, Own};
use super::service::{Service, Told};
use super::shedding::{self, Budget, Shedding};
use super::tally_file::TallyFile;
use super::tap::{Ground, OpenTap};
use super::wire::{Heard, Wire};
use crate::output;
use crate::plans;
use crate::run_loop::{Stop, wall_clock};

/// How long the loop sleeps when nobody has anything to say.
const NAP: Duration = Duration::from_millis(10);

/// How often counters, the status and the budget are looked after.
const CHORES_EVERY: Duration = Duration::from_secs(1);

/// A tap that is silent for so long holds nobody up; what it then tells of this time is late.
const IDLE: Duration = Duration::from_secs(1);

/// How often the agent says how far it has come, until the monitor wishes it otherwise; and what the
/// monitor may wish.
const HEARTBEAT: Nanos = 50_000_000;
const HEARTBEAT_RANGE: (Nanos, Nanos) = (5_000_000, 10 * NANOS_PER_SECOND);

/// After the end what waits is given so long to be taken by the monitor.
const FAREWELL: Duration = Duration::from_secs(3);

/// How an agent is set up.
pub struct Options {
    /// Where events come from.
    pub ground: Ground,
    /// The agent's own clock.
    pub clock: DrillClock,
    /// Memory of one fragment, bytes.
    pub query_bytes: usize,
    /// What the agent may take.
    pub budget: Budget,
    /// Reads a fragment, or says why it is none.
    pub decode: fn(&[u8]) -> Result<Plan, String>,
    /// Where produced rows are written down, if they are.
    pub tallies: Option<TallyFile>,
    /// Ends when a recording has ended and the monitor has taken everything.
    pub once: bool,
}

/// What a reload changes while the agent runs.
pub struct Reload<W> {
    /// What the agent may take.
    pub budget: Budget,
    /// Another way to the monitor, if that changed.
    pub wire: Option<W>,
}

/// A running agent.
pub struct Agent<W: Wire> {
    options: Options,
    wire: W,
    core: AgentCore,
    /// What is to run, whether it runs already or not.
    plans: BTreeMap<ChannelId, Arc<Plan>>,
    /// Those of them that wait for their taps.
    pending: Vec<ChannelId>,
    services: BTreeMap<String, Service>,
    shedding: Shedding,
    own: Own,
    heartbeat: Duration,
    stepped: Instant,
    chores_done: Instant,
    /// A recording has come to its end.
    replayed: bool,
    /// What earlier processes left is the monitor's from the first welcome on.
    earlier: Vec<u64>,
    welcomed: bool,
}

impl<W: Wire> Agent<W> {
    /// An agent that runs nothing yet. `earlier` are the processes whose tallies the monitor hears
    /// of in the first words.
    pub fn new(options: Options, wire: W, earlier: Vec<u64>) -> Agent<W> {
        Agent {
            core: AgentCore::new(EngineOptions {
                query_bytes_max: options.query_bytes,
                ..EngineOptions::default()
            }),
            shedding: Shedding::new(options.budget),
            own: Own::new(),
            options,
            wire,
            plans: BTreeMap::new(),
            pending: Vec::new(),
            services: BTreeMap::new(),
            heartbeat: Duration::from_nanos(HEARTBEAT as u64),
            stepped: Instant::now(),
            chores_done: Instant::now(),
            replayed: false,
            earlier,
            welcomed: false,
        }
    }

    /// Runs until `stop` says so, or what was to be replayed has ended. `reload` is asked now and
    /// then whether something is to change.
    pub fn run(&mut self, stop: &Stop, mut reload: impl FnMut() -> Option<Reload<W>>) {
        while stop.signal().is_none() && !stop.is_abandoned() && !self.is_over() {
            if let Some(reload) = reload() {
                self.take_over(reload);
            }
            self.turn();
        }
        self.say_farewell();
    }

    /// One turn: hears orders and taps, and says what is due.
    fn turn(&mut self) {
        let mut heard = false;
        while let Some(down) = self.wire.hear() {
            heard = true;
            self.obey(down);
        }
        heard |= self.listen();
        self.serve();
        if self.stepped.elapsed() >= self.heartbeat {
            self.step();
        }
        if self.chores_done.elapsed() >= CHORES_EVERY {
            self.do_chores();
        }
        if !heard {
            let due = self.heartbeat.saturating_sub(self.stepped.elapsed());
            thread::park_timeout(due.min(NAP));
        }
    }

    fn take_over(&mut self, reload: Reload<W>) {
        self.options.budget = reload.budget;
        self.shedding.set_budget(reload.budget);
        if let Some(wire) = reload.wire {
            self.wire = wire;
        }
    }

    /// True once a recording has been replayed and the monitor has all of it.
    fn is_over(&self) -> bool {
        self.options.once && self.replayed && self.wire.waiting().words == 0
    }

    // ---- Orders ---------------------------------------------------------------------------

    fn obey(&mut self, heard: Heard) {
        match heard {
            Heard::Welcome {
                channels,
                heartbeat,
            } => {
                self.set_heartbeat(heartbeat);
                let over: Vec<ChannelId> = self.plans.keys().copied().collect();
                let over = over.into_iter().filter(|c| !channels.contains(c));
                over.for_each(|channel| self.stop(channel));
                self.greet();
            }
            Heard::Word(MonitorWord::Start { channel, fragment }) => {
                self.start(channel, &fragment);
            }
            Heard::Word(MonitorWord::Stop { channel }) => self.stop(channel),
            Heard::Word(MonitorWord::Heartbeat(every)) => self.set_heartbeat(every),
            // The wire sees to that.
            Heard::Word(MonitorWord::Taken { .. }) => {}
            Heard::Gone(why) => output::say(format_args!("weir agent: {why}")),
        }
    }

    fn greet(&mut self) {
        if let Some(tallies) = &self.options.tallies {
            tallies.forget(&std::mem::take(&mut self.earlier));
        }
        if !std::mem::replace(&mut self.welcomed, true) {
            let at = self.to_monitor(wall_clock());
            let note = self.own.event(at, "agent", "up", None, None);
            self.wire.say(AgentWord::Note(note));
        }
    }

    fn set_heartbeat(&mut self, every: Nanos) {
        let (least, most) = HEARTBEAT_RANGE;
        self.heartbeat = Duration::from_nanos(every.clamp(least, most) as u64);
    }

    fn start(&mut self, channel: ChannelId, fragment: &[u8]) {
        if self.plans.contains_key(&channel) {
            return;
        }
        let plan = match (self.options.decode)(fragment) {
            Ok(plan) => plan,
            Err(why) => return self.refuse(channel, why),
        };
        if let Some(why) = refusal(&plan) {
            return self.refuse(channel, why);
        }
        // What the host's tap has paired need not be joined.
        let paired = plans::paired(&Arc::new(plan), &self.options.ground.args);
        self.plans.insert(channel, paired.plan);
        self.pending.push(channel);
        self.touch();
    }

    fn stop(&mut self, channel: ChannelId) {
        self.plans.remove(&channel);
        self.pending.retain(|c| *c != channel);
        self.core.stop(channel);
        self.touch();
    }

    /// A fragment that cannot run, or not any more.
    fn refuse(&mut self, channel: ChannelId, why: String) {
        let at = self.to_monitor(wall_clock());
        let note = self
            .own
            .event(at, "agent", "fragment_failed", Some(&why), None);
        self.wire.say(AgentWord::Note(note));
        self.stop(channel);
        self.core.refuse(channel, why);
    }

    // ---- Taps -----------------------------------------------------------------------------

    fn touch(&mut self) {
        self.services.values_mut().for_each(Service::touch);
    }

    /// What all fragments need.
    fn wanted(&self) -> Wanted {
        let mut seen = HashSet::new();
        let plans = self.plans.values().map(|plan| &**plan);
        wanted(plans.filter(|plan| seen.insert(*plan)))
    }

    /// Opens and closes taps as is needed, and starts fragments whose taps are there.
    fn serve(&mut self) {
        // Before it is known how far the clock is off, rows would have the wrong time.
        if self.wire.offset().is_none() {
            return;
        }
        let wanted = self.wanted();
        self.services.retain(|name, _| wanted.contains_key(name));
        for (name, demands) in &wanted {
            match self.services.get_mut(name) {
                Some(service) => drop(service.serve(&self.options.ground, demands)),
                None => {
                    let service = Service::begin(&self.options.ground, demands.clone());
                    self.services.insert(name.clone(), service);
                }
            }
        }
        self.start_pending();
    }

    /// Starts the fragments that have waited for their taps.
    fn start_pending(&mut self) {
        for channel in std::mem::take(&mut self.pending) {
            let plan = self.plans[&channel].clone();
            let needed = wanted(std::iter::once(&*plan));
            let served = needed.iter().all(|(name, demands)| {
                self.services
                    .get_mut(name)
                    .is_some_and(|s| s.gives(demands))
            });
            match served {
                true => {
                    // It begins now, not where time was when the last one left.
                    self.reach();
                    self.core.start(channel, &plan);
                }
                false => self.pending.push(channel),
            }
        }
    }

    fn listen(&mut self) -> bool {
        let now = wall_clock();
        let mut heard = false;
        let names: Vec<String> = self.services.keys().cloned().collect();
        for name in names {
            // It is taken out meanwhile, since what it says changes the rest.
            let Some(mut service) = self.services.remove(&name) else {
                continue;
            };
            let mut over = None;
            heard |= service.listen(now, &mut |tap, told| match told {
                Told::Rows { demand, batch } => self.push(tap, demand, &batch),
                Told::Switched { at } => {
                    let at = self.to_monitor(at);
                    for (outlet, demand) in tap.outlets.iter_mut().zip(&tap.demands) {
                        let at = outlet.reached(at, |at| at);
                        self.core.told(&demand.stream, at);
                    }
                    self.start_after_switch(&name, &tap.demands);
                }
                Told::NotOpened(why) => self.fail(&name, &why, true),
                Told::Over(why) => over = Some(why),
            });
            match over {
                None => drop(self.services.insert(name, service)),
                Some(None) => {
                    self.replayed = true;
                    self.services.insert(name, service);
                }
                Some(Some(why)) => self.fail(&name, &why, false),
            }
        }
        heard
    }

    /// Starts what has waited for the tap that now serves: it sees what comes after the cut.
    fn start_after_switch(&mut self, name: &str, demands: &[weir_model::Demand]) {
        for channel in std::mem::take(&mut self.pending) {
            let plan = self.plans[&channel].clone();
            let served =
                |(needed, wanted): (&String, &Vec<weir_model::Demand>)| match needed == name {
                    true => super::demands::covers(demands, wanted),
                    false => {
                        let service = self.services.get_mut(needed);
                        service.is_some_and(|s| s.gives(wanted))
                    }
                };
            match wanted(std::iter::once(&*plan)).iter().all(served) {
                true => self.core.start(channel, &plan),
                false => self.pending.push(channel),
            }
        }
    }

    /// A tap does not serve, or no more: those that need it fail.
    fn fail(&mut self, name: &str, why: &str, pending_only: bool) {
        let at = self.to_monitor(wall_clock());
        let note = self
            .own
            .event(at, "tap", "probe_failed", Some(why), Some(name));
        self.wire.say(AgentWord::Note(note));
        let needs = |plan: &Plan| wanted(std::iter::once(plan)).contains_key(name);
        let concerned = self.plans.iter().filter(|(channel, plan)| {
            needs(plan) && (!pending_only || self.pending.contains(channel))
        });
        let concerned: Vec<ChannelId> = concerned.map(|(channel, _)| *channel).collect();
        for channel in concerned {
            self.refuse(channel, why.to_owned());
        }
    }

    /// Hands rows of a tap to the core: in the monitor's time, those that are kept.
    fn push(&mut self, tap: &OpenTap, demand: usize, batch: &weir_model::Batch) {
        let now = self.to_monitor(wall_clock());
        let outlet: &Outlet = &tap.outlets[demand];
        let rows = outlet.rows(batch, now, |at| self.to_monitor(at));
        let kept = match rows.weights {
            Some(_) => rows,
            None => {
                let keep = self.shedding.keep_one_in();
                let kept = shedding::kept(&rows, outlet.req_id_column(), keep);
                self.own.shed(rows.len() - kept.len());
                kept
            }
        };
        self.core.push(&tap.demands[demand].stream, kept);
    }

    // ---- Time -----------------------------------------------------------------------------

    /// An instant of a right clock as the monitor's: by what our own clock shows then.
    fn to_monitor(&self, at: Nanos) -> Nanos {
        self.wire.to_monitor(self.options.clock.shown(at))
    }

    /// Tells the core up to when the taps have told everything.
    fn reach(&mut self) {
        if self.wire.offset().is_none() {
            return;
        }
        let now = wall_clock();
        let idle = now - IDLE.as_nanos() as Nanos;
        let mut at = now;
        for service in self.services.values_mut() {
            // A tap that has not said a word yet serves nobody.
            let Some(reached) = service.reached() else {
                continue;
            };
            let reached = match service.tap().ended {
                true => now,
                false => reached,
            };
            let (wire, clock) = (&self.wire, &self.options.clock);
            for outlet in &mut service.tap().outlets {
                outlet.reached(reached, |at| wire.to_monitor(clock.shown(at)));
            }
            at = at.min(reached.max(idle));
        }
        let at = self.to_monitor(at);
        self.core.reached(at);
    }

    /// Goes on to where the taps have come, and says what comes of it.
    fn step(&mut self) {
        self.stepped = Instant::now();
        for (channel, rows) in self.wire.dropped() {
            self.core.lost(channel, rows);
        }
        self.reach();
        let mut words = Vec::new();
        self.core.step(&mut |word| words.push(word));
        self.write_tallies();
        for word in words {
            if let AgentWord::Failed { channel, why } = &word
                && self.plans.remove(channel).is_some()
            {
                let at = self.core.now();
                let note = self
                    .own
                    .event(at, "engine", "fragment_failed", Some(why), None);
                self.wire.say(AgentWord::Note(note));
            }
            self.wire.say(word);
        }
    }

    /// What is about to be said is written down before, so that it is never said and unknown.
    fn write_tallies(&mut self) {
        let Some(tallies) = &mut self.options.tallies else {
            return;
        };
        if let Err(error) = tallies.write(self.core.tallies()) {
            output::say(format_args!(
                "weir agent: the tallies are not written down any more: {error}; rows lost by a crash from here on are not counted"
            ));
            self.options.tallies = None;
            let at = self.core.now();
            let why = error.to_string();
            let note = self
                .own
                .event(at, "agent", "tallies_failed", Some(&why), None);
            self.wire.say(AgentWord::Note(note));
        }
    }

    // ---- Itself ---------------------------------------------------------------------------

    fn do_chores(&mut self) {
        self.chores_done = Instant::now();
        let Load {
            cpu_share,
            memory_bytes,
        } = self.own.load();
        let load = shedding::Load {
            cpu_share,
            memory_bytes,
        };
        let Some(offset) = self.wire.offset() else {
            return;
        };
        let at = self.to_monitor(wall_clock());
        if let Some(cause) = self.shedding.observe(load) {
            let keep = i64::from(self.shedding.keep_one_in());
            let note = self.own.state(at, "agent", "shedding", Some(cause), keep);
            self.wire.say(AgentWord::Note(note));
        }
        let waiting = self.wire.waiting();
        let notes = self.own.notes(at, self.services.values_mut(), &self.core);
        for note in notes {
            self.wire.say(AgentWord::Note(note));
        }
        let tallies: Vec<Tally> = self.core.tallies().collect();
        let mut status = self.own.status(offset, waiting);
        status.kept_share = self.shedding.kept_share();
        status.channels = self.core.costs();
        status.tallies = tallies;
        self.wire.say(AgentWord::Status(status));
    }

    /// The last words: what the taps told up to now, and time for the monitor to take it.
    fn say_farewell(&mut self) {
        self.listen();
        self.step();
        let until = Instant::now() + FAREWELL;
        while self.wire.waiting().words > 0 && Instant::now() < until {
            while self.wire.hear().is_some() {}
            thread::sleep(NAP);
        }
        self.services.clear();
    }

    /// The host's name.
    pub fn host(&self) -> Symbol {
        self.options.ground.host
    }
}
