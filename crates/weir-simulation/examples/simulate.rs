//! `cargo xtask simulate`: a load test of a monitor with many synthetic agents.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::run_loop::Stop;
use weir_runtime::{output, quantity};
use weir_simulation::load_test::{LoadTarget, LoadTest};
use weir_wire::{Dial, read_token};

/// The default query: groups by VM and operation, once per second.
const QUERY: &str = "select vm, op, count(*), avg(latency) from IO [range 1 s slide 1 s] \
                     group by vm, op";

/// Load a monitor with many synthetic agents, and measure it
///
/// Each agent has a connection of its own and runs the fragments that the monitor sends, over
/// generated events. The output is rows and bytes per second, the monitor's processor time and
/// memory per agent and query, and the delay of results from their instant to their arrival.
#[derive(Parser, Debug)]
#[command(
    name = "cargo xtask simulate",
    after_help = "docs/simulate.md has measurements and explains the figures."
)]
struct SimulateArgs {
    /// The number of agents
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u32).range(1..=65_000))]
    agents: u32,
    /// Events of each agent per second
    #[arg(long, value_name = "EVENTS", default_value = "10", value_parser = rate)]
    rate: f64,
    /// VMs of each agent
    #[arg(long, default_value = "4", value_parser = clap::value_parser!(u32).range(1..=1000))]
    vms: u32,
    /// A query; may be repeated [default: groups by vm and op, once per second]
    #[arg(long, value_name = "CQL")]
    query: Vec<String>,
    /// Submit each query this many times; `{}` in it is replaced by the number of the copy
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=200))]
    copies: u32,
    /// How long to measure, once all agents and queries run
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = quantity::span)]
    span: Duration,
    /// The program whose monitor is started for the test
    #[arg(long, value_name = "FILE", default_value = "target/release/weir")]
    weir: PathBuf,
    /// The heartbeat of the monitor that is started
    #[arg(long, value_name = "TIME", default_value = "50ms", conflicts_with = "monitor",
          value_parser = quantity::span)]
    heartbeat: Duration,
    /// Load this monitor instead of one that is started for the test
    #[arg(long, value_name = "ADDRESS")]
    monitor: Option<String>,
    /// The process of that monitor, if it is on this host: its memory and processor time are
    /// measured
    #[arg(long, value_name = "PID", requires = "monitor")]
    monitor_pid: Option<u32>,
    /// The file with a token for that monitor
    #[arg(long, value_name = "FILE", requires = "monitor")]
    token_file: Option<PathBuf>,
    /// The authority that signed that monitor's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "monitor")]
    ca: Option<PathBuf>,
    /// A certificate for that monitor (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["monitor", "key"])]
    certificate: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.0..=1e6).contains(&rate) => Ok(rate),
        _ => Err("expected a number from 0 to 1000000".to_owned()),
    }
}

fn main() -> ExitCode {
    match run(&SimulateArgs::parse()) {
        Ok(ending) => ending.code(),
        Err(failure) => failure.report(false),
    }
}

fn run(args: &SimulateArgs) -> Result<Ending, Failure> {
    let stop = Stop::on_signals()?;
    let test = LoadTest {
        agents: args.agents as usize,
        events_per_second: args.rate,
        vms: args.vms as usize,
        queries: args.queries(),
        span: args.span,
    };
    if let Some(measured) = test.run(&args.target()?, &stop)? {
        output::print(&match args.json {
            true => format!("{}\n", measured.json()),
            false => measured.text(),
        })?;
    }
    Ok(stop.signal().map_or(Ending::Done, Ending::Signal))
}

impl SimulateArgs {
    /// The queries, copies included.
    fn queries(&self) -> Vec<String> {
        let given = match self.query.is_empty() {
            true => vec![QUERY.to_owned()],
            false => self.query.clone(),
        };
        let copy = |n: u32| given.iter().map(move |q| q.replace("{}", &n.to_string()));
        (1..=self.copies).flat_map(copy).collect()
    }

    fn target(&self) -> Result<LoadTarget, Failure> {
        let Some(monitor) = &self.monitor else {
            return Ok(LoadTarget::Started {
                weir: self.weir.clone(),
                heartbeat: self.heartbeat,
            });
        };
        let dial = Dial {
            token: self.token_file.as_deref().map(read_token).transpose()?,
            authority: self.ca.clone(),
            identity: self.certificate.clone().zip(self.key.clone()),
            ..Dial::new(monitor.parse()?)
        };
        let pid = self.monitor_pid;
        Ok(LoadTarget::Running { dial, pid })
    }
}
