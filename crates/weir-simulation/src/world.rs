//! [`World`]: hosts, network and monitor, and the faults that are injected.

use std::path::Path;

use fastrand::Rng;
use tempfile::TempDir;
use weir_model::Nanos;
use weir_monitor::Monitor;
use weir_wire::message::FlightData;

use crate::host::Host;
use crate::network::{Arrival, End, IN_FLIGHT_MAX, LinkId, Network};
use crate::queries::{self, Query};
use crate::scenario::Scenario;
use crate::server::{Action, Server};
use crate::{MS, SECOND, START};

/// The interval at which events and faults may occur.
const STEP: Nanos = 10 * MS;

/// The interval at which the monitor advances its time.
const TICK: Nanos = 20 * MS;

/// The maximum time until the state of the monitor is in a checkpoint.
const CHECKPOINT: Nanos = 2 * SECOND;

/// The mean number of steps between two faults of one kind on a host.
const RARITY: u32 = 300;

/// The maximum duration of the run without faults at the end.
const SETTLE_MAX: Nanos = 60 * SECOND;

/// The time for which all hosts have nothing to send before the end.
const SETTLE: Nanos = 3 * SECOND;

/// The number of faults of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Connections that broke.
    pub cuts: u32,
    /// Partitions of a host.
    pub partitions: u32,
    /// Agents that were killed.
    pub agents_killed: u32,
    /// Agents that were stopped.
    pub agents_ended: u32,
    /// Kills of the monitor.
    pub monitor_killed: u32,
}

/// The state of a simulation.
pub struct World {
    /// What happens.
    pub scenario: Scenario,
    /// What runs.
    pub queries: Vec<Query>,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The monitor, if it runs. Dropped before the directory, where it writes.
    pub server: Option<Server>,
    /// The number of faults so far.
    pub faults: FaultCounts,
    /// Its state directory, and the queries' results.
    dir: TempDir,
    network: Network,
    random: Rng,
    now: Nanos,
    ticks_at: Nanos,
    monitor_begins_at: Nanos,
    processes: usize,
    /// Since when the monitor knows every process that runs.
    known_since: Option<Nanos>,
    /// Rows and faults are generated.
    is_wild: bool,
}

impl World {
    /// The world of a seed.
    pub fn new(seed: u64) -> World {
        let mut random = Rng::with_seed(seed);
        let scenario = Scenario::draw(seed, &mut random);
        let queries = queries::draw(scenario.kind, scenario.options.hold_max, &mut random);
        // Checkpoints are synchronised with the disk; in memory that costs nothing.
        let memory = Path::new("/dev/shm");
        let prefix = "weir-simulation-";
        let dir = TempDir::with_prefix_in(prefix, memory);
        let dir = dir.or_else(|_| TempDir::with_prefix(prefix));
        let dir = dir.expect("a temporary directory");
        let server = Server::start(dir.path(), &scenario, &queries, START);
        let hosts = 0..scenario.hosts;
        World {
            hosts: hosts
                .map(|number| Host::new(number, &scenario, START, &mut random))
                .collect(),
            network: Network::new(scenario.latency_max),
            queries,
            server: Some(server),
            faults: FaultCounts::default(),
            dir,
            random,
            now: START,
            ticks_at: START,
            monitor_begins_at: START,
            processes: 0,
            known_since: None,
            is_wild: true,
            scenario,
        }
    }

    /// The file with the result of a query.
    pub fn result(&self, query: usize) -> String {
        let path = self.dir.path().join(format!("q{query}"));
        std::fs::read_to_string(path).expect("the query has a file")
    }

    /// The monitor, which runs at the end.
    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs at the end")
    }

    /// Runs the simulation: first with faults, then without, until everything is delivered.
    pub fn run(&mut self) {
        let end = START + self.scenario.duration;
        while self.now < end {
            self.step();
            self.break_something();
        }
        self.is_wild = false;
        let until = self.now + SETTLE_MAX;
        let mut settled_at = None;
        while self.now < until && settled_at.is_none_or(|at| self.now < at + SETTLE) {
            self.step();
            settled_at = match self.is_settled(end) {
                true => settled_at.or(Some(self.now)),
                false => None,
            };
        }
    }

    /// True if all hosts run and have sent all messages, the monitor has those up to `at`, and
    /// results up to `at` are published.
    fn is_settled(&mut self, at: Nanos) -> bool {
        let up = |host: &mut Host| {
            let process = host.process.as_mut();
            process.is_some_and(|(_, p)| p.is_running() && p.has_sent_all())
        };
        let server = self.server.as_ref();
        let is_received = |monitor: &Monitor| monitor.agents().all(|agent| agent.reached > at);
        self.hosts.iter_mut().all(up)
            && server.is_some_and(|s| s.monitor.watermark() > at && is_received(&s.monitor))
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        if self.server.is_none() && self.monitor_begins_at <= now {
            let server = Server::start(self.dir.path(), &self.scenario, &self.queries, now);
            self.server = Some(server);
        }
        while let Some(arrival) = self.network.next(now, &mut self.random) {
            match arrival {
                Arrival::Message(link, End::Monitor, data) => {
                    self.at_monitor(link, |server| server.receive(link, &data, now));
                }
                Arrival::Closed(link, End::Monitor) => {
                    self.at_monitor(link, |server| server.leave(link, now));
                }
                Arrival::Message(link, End::Agent, data) => self.at_agent(link, Some(&data)),
                Arrival::Closed(link, End::Agent) => self.at_agent(link, None),
            }
        }
        if self.ticks_at <= now && self.server.is_some() {
            self.ticks_at = now + TICK;
            let server = self.server.as_mut().expect("it runs");
            if self.random.u32(0..3) == 0 {
                server.monitor.write_checkpoint();
            }
            let actions = server.tick(now);
            self.act(actions);
        }
        for host in 0..self.hosts.len() {
            self.step_host(host);
        }
        self.note_known();
    }

    fn step_host(&mut self, number: usize) {
        let (now, host) = (self.now, &mut self.hosts[number]);
        if host.process.is_none() && host.begins_at <= now {
            host.begin(self.processes, &self.scenario, now);
            self.processes += 1;
        }
        if self.server.is_some() && host.dials(now, &mut self.random) {
            let link = self.network.open(number);
            let name = host.name.clone();
            let (_, process) = host.process.as_mut().expect("it dials");
            let hello = process.dial(&name, link, &self.scenario);
            self.network
                .send(link, End::Agent, hello, now, &mut self.random);
        }
        host.run(now, self.is_wild, &mut self.random);
        let shown = host.shown(now);
        let Some((_, process)) = &mut host.process else {
            return;
        };
        if let Some(link) = process.link()
            && self.network.has_room(link, End::Agent)
        {
            for data in process.send(shown, IN_FLIGHT_MAX) {
                self.network
                    .send(link, End::Agent, data, now, &mut self.random);
            }
        }
        if process.is_ending && process.is_delivered() {
            if let Some(link) = process.link() {
                self.network.close(link, End::Agent, now, &mut self.random);
            }
            host.kill(now + self.random.i64(100 * MS..self.scenario.away_max));
        }
    }

    fn at_monitor(&mut self, link: LinkId, act: impl FnOnce(&mut Server) -> Vec<Action>) {
        if let Some(server) = &mut self.server {
            let actions = act(server);
            self.act(actions);
        } else {
            self.network.cut(link, self.now, SECOND, &mut self.random);
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(link, data) => {
                    self.network
                        .send(link, End::Monitor, data, self.now, &mut self.random);
                }
                Action::Close(link) => {
                    self.network
                        .close(link, End::Monitor, self.now, &mut self.random);
                }
            }
        }
    }

    /// Delivers a message or the end of the connection to an agent.
    fn at_agent(&mut self, link: LinkId, data: Option<&FlightData>) {
        for host in &mut self.hosts {
            let shown = host.shown(self.now);
            if let Some((_, process)) = &mut host.process
                && process.link() == Some(link)
            {
                match data {
                    Some(data) => process.receive(data, shown),
                    None => process.disconnect(),
                }
            }
        }
    }

    /// True if the monitor waits for the process of a host. It does not wait for a process whose
    /// connection breaks before it reports a running channel.
    fn is_waited_for(&self, host: usize) -> bool {
        let instance = self.hosts[host].process.as_ref().map(|(_, p)| p.instance);
        self.server.as_ref().is_some_and(|server| {
            let mut agents = server.monitor.agents();
            agents.any(|agent| Some(agent.instance) == instance && agent.is_waited_for())
        })
    }

    fn happens(&mut self) -> bool {
        self.random.u32(0..RARITY) == 0
    }

    /// Since when the monitor knows every process that runs.
    fn note_known(&mut self) {
        let Some(server) = &self.server else {
            self.known_since = None;
            return;
        };
        let agents = server.monitor.agents();
        let known: Vec<u64> = agents
            .filter(|agent| agent.is_waited_for())
            .map(|agent| agent.instance)
            .collect();
        let mut running = self.hosts.iter().filter_map(|host| host.process.as_ref());
        if !running.all(|(_, process)| known.contains(&process.instance)) {
            self.known_since = None;
        } else if self.known_since.is_none() {
            self.known_since = Some(self.now);
        }
    }

    /// True if a checkpoint has every process that runs. The next monitor does not wait for a
    /// process that is not in the checkpoint.
    fn is_saved(&self) -> bool {
        self.known_since
            .is_some_and(|since| self.now - since > CHECKPOINT)
    }

    fn break_something(&mut self) {
        let kind = self.scenario.kind;
        for number in 0..self.hosts.len() {
            if self.happens() {
                let until = self.now + self.random.i64(0..self.scenario.partition_max);
                self.network.partition(number, until);
                self.faults.partitions += 1;
            }
            let link = self.hosts[number]
                .process
                .as_ref()
                .and_then(|(_, p)| p.link());
            if let Some(link) = link
                && self.happens()
                && (kind.is_hasty() || self.is_waited_for(number))
            {
                self.network.cut(link, self.now, SECOND, &mut self.random);
                self.faults.cuts += 1;
            }
            if kind.kills_agents() && self.hosts[number].process.is_some() && self.happens() {
                if let Some(link) = link {
                    self.network.cut(link, self.now, SECOND, &mut self.random);
                }
                let begins_at = self.now + self.random.i64(0..self.scenario.away_max);
                self.hosts[number].kill(begins_at);
                self.faults.agents_killed += 1;
            }
            if kind.ends_agents() && self.happens() {
                self.hosts[number].end(self.now);
                self.faults.agents_ended += 1;
            }
        }
        if kind.kills_monitor()
            && self.server.is_some()
            && self.happens()
            && (kind.is_hasty() || self.is_saved())
        {
            self.server = None;
            self.network.cut_all(self.now, SECOND, &mut self.random);
            self.monitor_begins_at = self.now + self.random.i64(0..self.scenario.away_max);
            self.faults.monitor_killed += 1;
        }
    }
}
