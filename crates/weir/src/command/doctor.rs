//! `weir doctor`: what of the live tap works on this host, what is lost without the rest, and what
//! to do about it.

use clap::Args;
use serde_json::json;
use weir_sink::text::shown;
use weir_tap::ebpf::{self, DeviceChoice, Fact, LiveOptions, Status};
use weir_tap::inventory::{self, WatchOptions};
use weir_wire::Client;

use crate::command::agent;
use weir_agent::config::{self, AgentConfig};
use weir_runtime::config::load;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::source;

/// What it costs an agent not to reach its monitor.
const COSTS_NO_MONITOR: &str = "what an agent here has to say waits, within its bounds";

/// Report what works on this host, and why not
///
/// Attaches the probes for a moment, reads a few blocks of each disk directly, and compares what is
/// reported with what was read and with the kernel's counters. It writes nothing. Exit code 0 when
/// live I/O can be watched, 1 when not.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir doctor\n  weir doctor --json\n  sudo weir doctor --device /dev/sda\n  weir doctor --monitor monitor.example"
)]
pub struct DoctorArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Read from this disk only, as /dev/sda; may be repeated [default: every disk with a medium,
    /// except loop devices and disks in memory]
    #[arg(long, value_name = "DEV", value_parser = source::device)]
    device: Vec<String>,
    /// The monitor that an agent here is to reach [default: of /etc/weir/agent.toml, where it
    /// exists]
    #[arg(long, value_name = "HOST[:PORT]")]
    monitor: Option<String>,
}

pub fn run(args: &DoctorArgs) -> Result<Ending, Failure> {
    let mut options = LiveOptions::default();
    if !args.device.is_empty() {
        options.devices = DeviceChoice::Named(args.device.clone());
    }
    let mut facts = ebpf::doctor(&options);
    facts.extend(inventory::doctor(&WatchOptions::default()));
    facts.extend(monitor(args));
    let works = facts.iter().all(|fact| fact.status != Status::Missing);
    let text = match args.json {
        true => {
            let facts: Vec<_> = facts.iter().map(fact_json).collect();
            format!("{}\n", json!({ "live": works, "facts": facts }))
        }
        false => format!("{}\n{}\n", page(&facts), verdict(works, &facts)),
    };
    output::print(&text)?;
    Ok(if works { Ending::Done } else { Ending::Failed })
}

/// Whether the monitor of an agent on this host can be reached, if there is to be one.
fn monitor(args: &DoctorArgs) -> Option<Fact> {
    let fact = |found: String, failure: Option<&str>| Fact {
        name: "monitor".into(),
        status: failure.map_or(Status::Ok, |_| Status::Degraded),
        found,
        costs: failure.map_or("", |_| COSTS_NO_MONITOR).into(),
        remedy: failure.unwrap_or_default().into(),
    };
    let mut config = match load::<AgentConfig>(None, config::FILE) {
        Ok(loaded) => loaded.config,
        Err(failure) => return Some(fact(failure.text(), Some("weir agent --check"))),
    };
    config.monitor = args.monitor.clone().or(config.monitor);
    let address = config.monitor.clone()?;
    let reached = agent::dial(&config).and_then(|dial| Ok(Client::connect(dial)?));
    Some(match reached {
        Ok(_) => fact(format!("{address} answers"), None),
        Err(failure) => fact(
            failure.text(),
            Some("start `weir monitor` there, or name another in /etc/weir/agent.toml"),
        ),
    })
}

fn page(facts: &[Fact]) -> String {
    let row = |fact: &Fact| {
        vec![
            status(fact.status).to_owned(),
            fact.name.clone(),
            shown(&fact.found).into_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = facts.iter().map(row).collect();
    let lines = output::aligned(&rows);
    let indent = " ".repeat(status(Status::Degraded).len() + 2);
    let mut page = String::new();
    for (line, fact) in lines.lines().zip(facts) {
        page += &format!("{line}\n");
        for (what, text) in [("costs", &fact.costs), ("remedy", &fact.remedy)] {
            if !text.is_empty() {
                page += &format!("{indent}{what}: {}\n", shown(text));
            }
        }
    }
    page
}

fn verdict(works: bool, facts: &[Fact]) -> String {
    if !works {
        return "live I/O cannot be watched; recordings can: weir query --from FILE ..".into();
    }
    let degraded = facts.iter().filter(|f| f.status == Status::Degraded);
    let names: Vec<&str> = degraded.map(|f| f.name.as_str()).collect();
    match names.is_empty() {
        true => "live I/O can be watched".into(),
        false => format!("live I/O can be watched; degraded: {}", names.join(", ")),
    }
}

fn status(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Degraded => "degraded",
        Status::Missing => "missing",
    }
}

fn fact_json(fact: &Fact) -> serde_json::Value {
    json!({
        "name": fact.name,
        "status": status(fact.status),
        "found": fact.found,
        "costs": fact.costs,
        "remedy": fact.remedy,
    })
}
