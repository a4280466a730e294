//! `weir probes PATTERN`: the probes of this host and of programs, with their fields.

use clap::Args;
use serde_json::json;

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
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
    weir probes usdt:/lib/x86_64-linux-gnu/libc.so.6 --json")]
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
    /// Print JSON, including the fields
    #[arg(short = 'j', long)]
    json: bool,
}

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
