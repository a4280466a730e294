//! `weir doctor`: which features of the live tap work on this host, the effects of missing ones,
//! and the remedies.

use clap::Args;
use serde_json::json;
use weir_sink::text::shown;
use weir_tap::ebpf::{self, CheckStatus, DeviceChoice, Fact, LiveOptions};
use weir_tap::inventory::{self, WatchOptions};
use weir_wire::Client;

use crate::command::agent;
use weir_agent::config::{self, AgentConfig};
use weir_runtime::config::load;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::source;

/// The effect of an unreachable monitor.
const COSTS_NO_MONITOR: &str =
    "messages of an agent on this host wait in its spool, up to its limits";

/// Check which features work on this host
///
/// Attaches the probes briefly, reads a few blocks of each disk with direct I/O, and compares the
/// observed requests with these reads and with the kernel's counters. Nothing is written. For each
/// feature that does not work, the effect and the remedy are printed. The exit status is 0 if live
/// I/O can be observed, otherwise 1.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir doctor\n  weir doctor --json\n  sudo weir doctor --device /dev/sda\n  weir doctor --monitor monitor.example"
)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
    /// Read only from this disk, such as /dev/sda; may be repeated [default: all disks with a
    /// medium, except loop devices and RAM disks]
    #[arg(long, value_name = "DEVICE", value_parser = source::device)]
    device: Vec<String>,
    /// Address of the monitor whose connection is checked [default: that of /etc/weir/agent.toml if
    /// it exists]
    #[arg(long, value_name = "ADDRESS")]
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
    let works = facts.iter().all(|fact| fact.status != CheckStatus::Missing);
    let text = match args.json {
        true => {
            let facts: Vec<_> = facts.iter().map(fact_json).collect();
            format!("{}\n", json!({ "live": works, "facts": facts }))
        }
        false => format!("{}\n{}\n", page(&facts), verdict(&facts)),
    };
    output::print(&text)?;
    Ok(if works { Ending::Done } else { Ending::Failed })
}

/// Whether the monitor of this host's agent can be reached; `None` if no monitor is configured.
fn monitor(args: &DoctorArgs) -> Option<Fact> {
    let fact = |found: String, failure: Option<&str>| Fact {
        name: "monitor".into(),
        status: failure.map_or(CheckStatus::Ok, |_| CheckStatus::Degraded),
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
        Ok(_) => fact(format!("{address}: connected"), None),
        Err(failure) => fact(
            failure.text(),
            Some("start `weir monitor` there, or change the address in /etc/weir/agent.toml"),
        ),
    })
}

fn page(facts: &[Fact]) -> String {
    let row = |fact: &Fact| {
        vec![
            fact.status.as_str().to_owned(),
            fact.name.clone(),
            shown(&fact.found).into_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = facts.iter().map(row).collect();
    let lines = weir_sink::text::aligned(&rows);
    let indent = " ".repeat(CheckStatus::Degraded.as_str().len() + 2);
    let mut page = String::new();
    for (line, fact) in lines.lines().zip(facts) {
        page += &format!("{line}\n");
        for (what, text) in [("effect", &fact.costs), ("remedy", &fact.remedy)] {
            if !text.is_empty() {
                page += &format!("{indent}{what}: {}\n", shown(text));
            }
        }
    }
    page
}

fn verdict(facts: &[Fact]) -> String {
    let mut missing = facts.iter().filter(|f| f.status == CheckStatus::Missing);
    if let Some(first) = missing.next() {
        let (found, remedy) = (shown(&first.found), shown(&first.remedy));
        return format!(
            "live I/O cannot be observed: {found}; {remedy}; recordings can be queried with \
             --from FILE"
        );
    }
    let degraded = facts.iter().filter(|f| f.status == CheckStatus::Degraded);
    let names: Vec<&str> = degraded.map(|f| f.name.as_str()).collect();
    match names.is_empty() {
        true => "live I/O can be observed".into(),
        false => format!("live I/O can be observed; degraded: {}", names.join(", ")),
    }
}

fn fact_json(fact: &Fact) -> serde_json::Value {
    json!({
        "name": fact.name,
        "status": fact.status.as_str(),
        "found": fact.found,
        "costs": fact.costs,
        "remedy": fact.remedy,
    })
}
