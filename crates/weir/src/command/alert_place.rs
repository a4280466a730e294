//! `weir alert place`, `list` and `remove`: the alerts that run at a monitor.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;
use weir_alert::shipped::ShippedRule;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::question::QueryText;
use weir_sink::text::{aligned, shown};

use super::alert::rule;
use crate::args::FleetArgs;

/// Run alerts at the monitor
///
/// The alerts run until `weir alert remove`, also over restarts of the monitor; one of the same name
/// that was placed before is replaced. That requires role place; alerts with ACT, which are carried
/// out on the hosts of their label host, role act. Prints the names.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir alert place -f alerts.cql --monitor monitor.example\n  \
    weir alert place --rule agent_gone --rule disk_errors\n\n\
    The monitor is that of --monitor, otherwise that of WEIR_MONITOR, otherwise that of this host.")]
pub struct PlaceArgs {
    /// File of alerts; `-` is standard input [default: none]
    #[arg(short, long, value_name = "FILE", required_unless_present = "rules")]
    file: Option<PathBuf>,
    /// Place this one of the rules that come with weir; may be repeated
    #[arg(long = "rule", value_name = "RULE", conflicts_with = "file")]
    rules: Vec<String>,
    #[command(flatten)]
    fleet: FleetArgs,
}

/// List the alerts that run at the monitor
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  weir alert list --monitor monitor.example\n  \
    weir alert list --json"
)]
pub struct ListArgs {
    /// Print a JSON array: name, text, acts, placed_by, placed_at, instances
    #[arg(short = 'j', long)]
    json: bool,
    #[command(flatten)]
    fleet: FleetArgs,
}

/// End alerts that were placed at the monitor
///
/// Their instances clear, and what they do on hosts ends.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  weir alert remove slow_disk --monitor monitor.example")]
pub struct RemoveArgs {
    /// Names of the alerts, as listed by `weir alert list`
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    fleet: FleetArgs,
}

pub fn place(args: &PlaceArgs) -> Result<Ending, Failure> {
    let text = match &args.file {
        Some(path) => QueryText::read(path)?.text,
        None => {
            let rules = args.rules.iter().map(|name| rule(name));
            let rules = rules.collect::<Result<Vec<&ShippedRule>, _>>()?;
            let texts: Vec<&str> = rules.iter().map(|rule| rule.text).collect();
            texts.join("\n")
        }
    };
    let names = args.fleet.connect()?.place_alerts(&text)?;
    let names = names.as_array().into_iter().flatten();
    let names: String = names
        .map(|name| format!("{}\n", shown(name.as_str().unwrap_or_default())))
        .collect();
    output::print(&names)?;
    Ok(Ending::Done)
}

pub fn list(args: &ListArgs) -> Result<Ending, Failure> {
    let alerts = args.fleet.connect()?.alerts()?;
    if args.json {
        output::print(&format!("{alerts}\n"))?;
        return Ok(Ending::Done);
    }
    let alerts = alerts.as_array().cloned().unwrap_or_default();
    if alerts.is_empty() {
        output::print("no alerts\n")?;
        return Ok(Ending::Done);
    }
    let head = ["ALERT", "FIRING", "PENDING", "UNKNOWN", "ACTS", "PLACED BY"];
    let rows = [head.map(str::to_owned).to_vec()];
    let rows = rows.into_iter().chain(alerts.iter().map(row));
    output::print(&aligned(&rows.collect::<Vec<_>>()))?;
    Ok(Ending::Done)
}

/// An alert as a row of the table.
fn row(alert: &Value) -> Vec<String> {
    let count = |state: &str| {
        let instances = alert["instances"].as_array().into_iter().flatten();
        let count = instances.filter(|i| i["state"] == state).count();
        count.to_string()
    };
    let acts = alert["acts"].as_bool().unwrap_or_default();
    vec![
        shown(alert["name"].as_str().unwrap_or_default()).into_owned(),
        count("firing"),
        count("pending"),
        count("unknown"),
        if acts { "yes" } else { "no" }.to_owned(),
        shown(
            alert["placed_by"]
                .as_str()
                .unwrap_or("the file of the monitor"),
        )
        .into_owned(),
    ]
}

pub fn remove(args: &RemoveArgs) -> Result<Ending, Failure> {
    let mut client = args.fleet.connect()?;
    for name in &args.names {
        client.remove_alert(name)?;
    }
    Ok(Ending::Done)
}
