//! `weir probes PATTERN`: the probes of this host and of programs, with their fields.

use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::probe_cost::CostMeter;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::Stop;
use weir_tap::probe::list::{ListedField, ListedProbe, list};

/// List the probes that CREATE STREAM can attach to
///
/// A pattern has the form of a probe; `*` stands for any text: tp:CATEGORY:NAME, tp_btf:NAME,
/// fentry:FUNCTION, kprobe:FUNCTION, uprobe:FILE:SYMBOL or usdt:FILE:PROVIDER:NAME. Without a kind,
/// tracepoints whose names contain the text are listed.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir probes tp:sched:*\n  \
    weir probes block_rq --fields\n  \
    weir probes uprobe:/usr/bin/qemu-system-x86_64:blk_aio_*\n  \
    weir probes usdt:/lib/x86_64-linux-gnu/libc.so.6 --json\n  \
    weir probes tp:block:* --cost")]
pub struct ProbesArgs {
    /// Pattern of the probes
    #[arg(value_name = "PATTERN", default_value = "*")]
    pattern: String,
    /// Print the fields of each probe with their types
    #[arg(long)]
    fields: bool,
    /// Print the names alone, also that of a single probe
    #[arg(long, conflicts_with = "fields")]
    names: bool,
    /// Attach each probe for some time and print its hits per second and the time of a hit, as the
    /// kernel measures them; at most 64 probes
    #[arg(long, conflicts_with_all = ["fields", "names"])]
    cost: bool,
    /// How long each probe is measured
    #[arg(long = "for", value_name = "DURATION", default_value = "1s", value_parser = quantity::span)]
    #[arg(requires = "cost")]
    span: Duration,
    /// Print JSON, including the fields
    #[arg(short = 'j', long)]
    json: bool,
}

/// Maximum number of probes that are measured.
const MEASURED_MAX: usize = 64;

pub fn run(args: &ProbesArgs) -> Result<Ending, Failure> {
    let found = list(&args.pattern).map_err(|error| {
        let help = error.help.map_or(String::new(), |help| format!("; {help}"));
        Failure::world(format!("{}{help}", error.message))
    })?;
    if found.is_empty() && !args.json {
        return Err(Failure::world(format!(
            "no probe matches `{}`; `weir probes` lists all tracepoints",
            args.pattern
        )));
    }
    if args.cost {
        return costs(&found, args);
    }
    let text = match args.json {
        true => {
            let all: Vec<_> = found.iter().map(probe_json).collect();
            format!("{}\n", json!(all))
        }
        // A single probe is listed for its fields.
        false => {
            let fields = args.fields || found.len() == 1 && !args.names;
            found
                .iter()
                .map(|probe| probe_text(probe, fields))
                .collect()
        }
    };
    output::print(&text)?;
    Ok(Ending::Done)
}

/// Measures the probes, one after the other, and prints each at once.
fn costs(found: &[ListedProbe], args: &ProbesArgs) -> Result<Ending, Failure> {
    if found.len() > MEASURED_MAX {
        return Err(Failure::words(format_args!(
            "--cost: `{}` matches {} probes, and at most {MEASURED_MAX} are measured; name fewer",
            args.pattern,
            found.len()
        )));
    }
    let stop = Stop::on_signals()?;
    let meter = CostMeter::new(args.span)?;
    let widest = found.iter().map(|probe| probe.probe.len()).max();
    let width = widest.unwrap_or(0);
    if !args.json {
        output::print(&format!(
            "{:width$}  {:>10}  {:>8}\n",
            "PROBE", "HITS/S", "NS/HIT"
        ))?;
    }
    for probe in found {
        let Some(measured) = meter.measure(&probe.probe, &stop)? else {
            return Ok(stop.signal().map_or(Ending::Done, Ending::Signal));
        };
        let name = &probe.probe;
        output::print(&match (args.json, measured) {
            (true, Ok(cost)) => {
                let row = json!({
                    "probe": name,
                    "hits": cost.hits,
                    "span_ns": cost.span.as_nanos() as u64,
                    "program_ns": cost.program_ns,
                    "per_hit_ns": cost.per_hit_ns(),
                });
                format!("{row}\n")
            }
            (true, Err(why)) => format!("{}\n", json!({ "probe": name, "error": why })),
            (false, Ok(cost)) => {
                let per_hit = cost.per_hit_ns();
                let per_hit = per_hit.map_or("-".to_owned(), |ns| format!("{ns:.0}"));
                let rate = cost.hits_per_second();
                format!("{name:width$}  {rate:>10.0}  {per_hit:>8}\n")
            }
            (false, Err(why)) => format!("{name:width$}  {why}\n"),
        })?;
    }
    Ok(Ending::Done)
}

fn probe_text(probe: &ListedProbe, fields: bool) -> String {
    let mut text = format!("{}\n", probe.probe);
    if fields && !probe.fields.is_empty() {
        let row = |field: &ListedField| {
            let remark = if field.is_readable {
                ""
            } else {
                "not readable"
            };
            vec![format!("  {}", field.name), field.ty.clone(), remark.into()]
        };
        text += &weir_sink::text::aligned(&probe.fields.iter().map(row).collect::<Vec<_>>());
    }
    text
}

fn probe_json(probe: &ListedProbe) -> serde_json::Value {
    let field = |field: &ListedField| json!({ "name": field.name, "type": field.ty, "readable": field.is_readable });
    let fields: Vec<_> = probe.fields.iter().map(field).collect();
    json!({ "probe": probe.probe, "fields": fields })
}
