//! `weir simulate`: what a monitor can take.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Args;

use crate::args::FleetArgs;
use crate::simulate::agents::{Agents, Orders};
use crate::simulate::figures::Measured;
use crate::simulate::process::MonitorProcess;
use crate::simulate::watch::Watchers;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::{Stop, process_usage};

/// The query unless another is given: groups of each VM and operation, once a second.
const QUERY: &str = "select vm, op, count(*), avg(latency) from IO [range 1 s slide 1 s] \
                     group by vm, op";
/// How long agents may take to come, besides the pauses between them.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long is waited between the phases, until memory and windows are as they will be.
const SETTLE: Duration = Duration::from_secs(2);
/// How often it is seen whether something has come.
const LOOK: Duration = Duration::from_millis(20);

/// Drive a monitor with many synthetic agents, to see what it can take
///
/// Each agent has a connection of its own and runs the fragments that the monitor orders, over
/// events that are made up. Printed are rows and bytes per second, the monitor's processor time and
/// memory per agent and query, and how long results take from their instant to their arrival.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir simulate --spawn-monitor --agents 100 --for 10s\n  \
    weir simulate --spawn-monitor --agents 1000 --rate 10 --json\n  \
    weir simulate --spawn-monitor --query \"Istream(select vm, latency from IO [now])\"\n  \
    weir simulate --monitor 10.0.0.5 --monitor-pid 4711 --agents 50\n\n\
    docs/simulate.md has figures, and what they mean.")]
pub struct SimulateArgs {
    /// Agents
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u32).range(1..=2000))]
    agents: u32,
    /// Events of each agent in a second
    #[arg(long, value_name = "EVENTS", default_value = "10", value_parser = rate)]
    rate: f64,
    /// VMs of each agent
    #[arg(long, default_value = "4", value_parser = clap::value_parser!(u32).range(1..=1000))]
    vms: u32,
    /// A query to be placed; may be given more than once [default: groups by vm and op, each second]
    #[arg(long, value_name = "CQL")]
    query: Vec<String>,
    /// Place each query so many times; `{}` in it becomes the number of the copy
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=200))]
    copies: u32,
    /// For how long it is measured, once all is running
    #[arg(long = "for", value_name = "SPAN", default_value = "10s", value_parser = quantity::span)]
    span: Duration,
    /// Start a monitor for this, on this host
    #[arg(long, conflicts_with = "monitor")]
    spawn_monitor: bool,
    /// The heartbeat of the monitor that is started
    #[arg(long, value_name = "SPAN", default_value = "50ms", requires = "spawn_monitor",
          value_parser = quantity::span)]
    heartbeat: Duration,
    /// The number of the monitor's process, if it is on this host and was not started here: its
    /// memory and processor time are measured
    #[arg(long, value_name = "PID", conflicts_with = "spawn_monitor")]
    monitor_pid: Option<u32>,
    /// One JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    fleet: FleetArgs,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.0..=1e6).contains(&rate) => Ok(rate),
        _ => Err("expected a number from 0 to 1000000".to_owned()),
    }
}

pub fn run(args: &SimulateArgs) -> Result<Ending, Failure> {
    let stop = Stop::on_signals()?;
    let queries = queries(args);
    let (process, fleet) = monitor(args, queries.len())?;
    let mut measured = Measured {
        agents: args.agents as usize,
        queries: queries.len(),
        ..Measured::default()
    };
    measured.memory_bytes[0] = process.usage().memory_bytes;
    let agents = Agents::start(Orders {
        agents: args.agents as usize,
        events_per_second: args.rate,
        vms: args.vms as usize,
        dial: fleet.dial()?,
    })?;
    if !come(args, &agents, &stop)? {
        return Ok(ended(&stop));
    }
    stop.wait(SETTLE);
    measured.memory_bytes[1] = process.usage().memory_bytes;

    let watchers = Watchers::start(|| fleet.connect(), &queries)?;
    stop.wait(SETTLE);
    measure(args, &process, &agents, &watchers, &stop, &mut measured);
    if let Some(why) = watchers.seeing.ended() {
        return Err(Failure::world(format_args!(
            "a query came to an end: {why}"
        )));
    }
    match args.json {
        true => output::print(&format!("{}\n", measured.json()))?,
        false => output::print(&measured.text())?,
    }
    Ok(ended(&stop))
}

fn ended(stop: &Stop) -> Ending {
    stop.signal().map_or(Ending::Done, Ending::Signal)
}

/// The queries, copies included.
fn queries(args: &SimulateArgs) -> Vec<String> {
    let given = match args.query.is_empty() {
        true => vec![QUERY.to_owned()],
        false => args.query.clone(),
    };
    let copies = 1..=args.copies;
    copies
        .flat_map(|copy| {
            given
                .iter()
                .map(move |q| q.replace("{}", &copy.to_string()))
        })
        .collect()
}

/// The monitor's process, and how to reach it.
fn monitor(args: &SimulateArgs, queries: usize) -> Result<(MonitorProcess, FleetArgs), Failure> {
    if !args.spawn_monitor {
        return Ok((MonitorProcess::found(args.monitor_pid), args.fleet.clone()));
    }
    let started = MonitorProcess::start(args.heartbeat, args.agents as usize, queries);
    let (process, address) = started.map_err(Failure::World)?;
    let fleet = FleetArgs {
        monitor: Some(address),
        ..FleetArgs::default()
    };
    Ok((process, fleet))
}

/// Waits for the agents. False if it was interrupted.
fn come(args: &SimulateArgs, agents: &Agents, stop: &Stop) -> Result<bool, Failure> {
    let start = Instant::now();
    let mut told = 0;
    let patience = ARRIVAL_TIMEOUT + Duration::from_millis(20) * args.agents;
    loop {
        let here = agents.figures.connected.load(Ordering::Relaxed);
        if here >= u64::from(args.agents) {
            return Ok(true);
        }
        if start.elapsed() > patience {
            let why = agents.figures.last_failure();
            return Err(Failure::world(format_args!(
                "{here} of {} agents came: {}",
                args.agents,
                why.as_deref().unwrap_or("the others still dial")
            )));
        }
        if here >= told + 100 {
            told = here;
            output::say(format_args!("weir: {here} of {} agents", args.agents));
        }
        if !stop.wait(LOOK) {
            return Ok(false);
        }
    }
}

/// Measures for as long as is asked.
fn measure(
    args: &SimulateArgs,
    process: &MonitorProcess,
    agents: &Agents,
    watchers: &Watchers,
    stop: &Stop,
    measured: &mut Measured,
) {
    let figures = &agents.figures;
    let counts = || {
        [
            &figures.events,
            &figures.rows_said,
            &figures.rows_taken,
            &figures.words,
            &figures.bytes,
        ]
        .map(|count| count.load(Ordering::Relaxed))
    };
    figures.behind_ns_max.store(0, Ordering::Relaxed);
    watchers.seeing.noting.store(true, Ordering::Relaxed);
    let (start, before) = (Instant::now(), counts());
    let (cpu, own) = (process.usage().cpu_ns, process_usage("self").1);
    stop.wait(args.span);
    let after = counts();
    measured.seconds = start.elapsed().as_secs_f64();
    let usage = process.usage();
    watchers.seeing.noting.store(false, Ordering::Relaxed);
    let passed = |from: Option<i64>, to: Option<i64>| Some(to? - from?);
    measured.monitor_cpu_ns = passed(cpu, usage.cpu_ns);
    measured.own_cpu_ns = passed(own, process_usage("self").1);
    measured.memory_bytes[2] = usage.memory_bytes;
    let since: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    measured.events = since[0];
    measured.rows_said = since[1];
    measured.rows_taken = since[2];
    measured.words = since[3];
    measured.bytes = since[4];
    measured.connected = figures.connected.load(Ordering::Relaxed);
    measured.failures = figures.failures.load(Ordering::Relaxed);
    measured.fragments = figures.fragments.load(Ordering::Relaxed);
    measured.behind_ns_max = figures.behind_ns_max.load(Ordering::Relaxed);
    measured.results = watchers.seeing.rows.load(Ordering::Relaxed);
    measured.delays = watchers.seeing.delays();
    measured.completeness = watchers.seeing.completeness();
}
