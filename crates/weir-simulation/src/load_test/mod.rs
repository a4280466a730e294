//! A load test of a monitor: many synthetic agents with real connections.
//!
//! Each agent runs the fragments that the monitor sends, over generated events; the protocol, the
//! monitor and the clients are the product's. `cargo xtask simulate` runs it.
//!
//! | module | contains |
//! | --- | --- |
//! | `load` | the events that all agents share |
//! | `agents` | the agents: real connections, real fragments, one thread |
//! | `process` | the process of the monitor, and what it uses |
//! | `watch` | the clients of the queries, and the delay of results |
//! | `figures` | what was measured, as text and as JSON |

mod agents;
mod figures;
mod load;
mod process;
mod watch;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::run_loop::{Stop, process_usage};
use weir_wire::{Client, Dial};

use agents::{Agents, Orders};
use process::MonitorProcess;
use watch::Watchers;

pub use figures::MeasuredLoad;

/// How long agents may take to connect, besides the pauses between them.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause between the phases, until memory and windows have their final sizes.
const SETTLE: Duration = Duration::from_secs(2);
/// The interval at which the number of connected agents is read.
const POLL: Duration = Duration::from_millis(20);

/// What is run.
#[derive(Clone, Debug)]
pub struct LoadTest {
    /// The number of agents.
    pub agents: usize,
    /// Events of each agent per second.
    pub events_per_second: f64,
    /// VMs of each agent.
    pub vms: usize,
    /// The queries.
    pub queries: Vec<String>,
    /// How long it is measured, once all agents and queries run.
    pub span: Duration,
}

/// The monitor that is measured.
#[derive(Clone, Debug)]
pub enum LoadTarget {
    /// A process of the program `weir`, started for the test with this heartbeat.
    Started {
        /// The program.
        weir: PathBuf,
        /// The interval of heartbeats.
        heartbeat: Duration,
    },
    /// A monitor that runs already.
    Running {
        /// How to reach it.
        dial: Dial,
        /// Its process, if it is on this host: memory and processor time are measured.
        pid: Option<u32>,
    },
}

impl LoadTest {
    /// Runs the test; `None` if a signal ended it before it was measured.
    ///
    /// # Errors
    /// When the monitor does not start or cannot be reached, or a query is rejected or ends.
    pub fn run(&self, target: &LoadTarget, stop: &Stop) -> Result<Option<MeasuredLoad>, Failure> {
        let (process, dial) = self.monitor(target)?;
        let mut measured = MeasuredLoad {
            agents: self.agents,
            queries: self.queries.len(),
            ..MeasuredLoad::default()
        };
        measured.memory_bytes[0] = process.usage().memory_bytes;
        let agents = Agents::start(Orders {
            agents: self.agents,
            events_per_second: self.events_per_second,
            vms: self.vms,
            dial: dial.clone(),
        })?;
        if !self.connected(&agents, stop)? {
            return Ok(None);
        }
        stop.wait(SETTLE);
        measured.memory_bytes[1] = process.usage().memory_bytes;

        let connect = || Ok(Client::connect(dial.clone())?);
        let watchers = Watchers::start(connect, &self.queries)?;
        stop.wait(SETTLE);
        self.measure(&process, &agents, &watchers, stop, &mut measured);
        match watchers.seen.ended() {
            Some(why) => Err(Failure::world(format_args!("a query ended: {why}"))),
            None => Ok(Some(measured)),
        }
    }

    /// The monitor's process, and how to reach it.
    fn monitor(&self, target: &LoadTarget) -> Result<(MonitorProcess, Dial), Failure> {
        match target {
            LoadTarget::Running { dial, pid } => Ok((MonitorProcess::found(*pid), dial.clone())),
            LoadTarget::Started { weir, heartbeat } => {
                let queries = self.queries.len();
                let started = MonitorProcess::start(weir, *heartbeat, self.agents, queries);
                let (process, address) = started.map_err(Failure::World)?;
                Ok((process, Dial::new(address.parse()?)))
            }
        }
    }

    /// Waits until all agents are connected. False if it was interrupted.
    fn connected(&self, agents: &Agents, stop: &Stop) -> Result<bool, Failure> {
        let start = Instant::now();
        let mut reported = 0;
        let timeout = ARRIVAL_TIMEOUT + Duration::from_millis(20) * self.agents as u32;
        loop {
            let count = agents.figures.connected.load(Ordering::Relaxed);
            if count >= self.agents as u64 {
                return Ok(true);
            }
            if start.elapsed() > timeout {
                let why = agents.figures.last_failure();
                return Err(Failure::world(format_args!(
                    "{count} of {} agents are connected: {}",
                    self.agents,
                    why.as_deref().unwrap_or("the others still dial")
                )));
            }
            if count >= reported + 100 {
                reported = count;
                output::notice(format_args!("{count} of {} agents", self.agents));
            }
            if !stop.wait(POLL) {
                return Ok(false);
            }
        }
    }

    fn measure(
        &self,
        process: &MonitorProcess,
        agents: &Agents,
        watchers: &Watchers,
        stop: &Stop,
        measured: &mut MeasuredLoad,
    ) {
        let figures = &agents.figures;
        let counts = || {
            [
                &figures.events,
                &figures.rows_emitted,
                &figures.rows_acked,
                &figures.messages,
                &figures.bytes,
            ]
            .map(|count| count.load(Ordering::Relaxed))
        };
        figures.behind_ns_max.store(0, Ordering::Relaxed);
        watchers.seen.recording.store(true, Ordering::Relaxed);
        let (start, before) = (Instant::now(), counts());
        let (cpu, own) = (process.usage().cpu_ns, process_usage("self").1);
        stop.wait(self.span);
        let after = counts();
        measured.seconds = start.elapsed().as_secs_f64();
        let usage = process.usage();
        watchers.seen.recording.store(false, Ordering::Relaxed);
        let passed = |from: Option<i64>, to: Option<i64>| Some(to? - from?);
        measured.monitor_cpu_ns = passed(cpu, usage.cpu_ns);
        measured.own_cpu_ns = passed(own, process_usage("self").1);
        measured.memory_bytes[2] = usage.memory_bytes;
        let since: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        measured.events = since[0];
        measured.rows_emitted = since[1];
        measured.rows_acked = since[2];
        measured.messages = since[3];
        measured.bytes = since[4];
        measured.connected = figures.connected.load(Ordering::Relaxed);
        measured.failures = figures.failures.load(Ordering::Relaxed);
        measured.fragments = figures.fragments.load(Ordering::Relaxed);
        measured.behind_ns_max = figures.behind_ns_max.load(Ordering::Relaxed);
        measured.results = watchers.seen.rows.load(Ordering::Relaxed);
        measured.delays = watchers.seen.delays();
        measured.completeness = watchers.seen.completeness();
    }
}
