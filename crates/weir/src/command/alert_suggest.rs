//! `weir alert suggest`: thresholds for rules, from the values that their queries had.

use std::sync::{Arc, Mutex};

use clap::Args;
use serde_json::{Value, json};
use weir_alert::run::{self, AlertRunOptions};
use weir_alert::suggestion::{self, Suggestion, Suggestions};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::{ProgressKind, Stop, conclude};
use weir_sink::text::aligned;
use weir_tap::ebpf::Files;

use super::alert::{AlertFileArgs, ReadAlerts};
use crate::args::{LimitArgs, SourceArgs};

/// Propose thresholds from a recording of normal operation
///
/// Runs the queries of the rules over a recording, or over this host for the time of --for. For
/// each comparison of a column with a number in WHEN, it prints the median, the 99th percentile and
/// the largest value of that column (for < the smallest one), and proposes a threshold beyond that
/// by the factor of --margin.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir alert suggest --from recording.parquet\n  \
    weir alert suggest -f alerts.cql --from recording.parquet --margin 1.5\n  \
    weir alert suggest --rule queue_saturated --for 10m --json")]
pub struct SuggestArgs {
    #[command(flatten)]
    file: AlertFileArgs,
    /// Factor between the largest value and the threshold
    #[arg(long, value_name = "FACTOR", default_value = "1.2", value_parser = margin)]
    margin: f64,
    /// Print a JSON array: name, rows, instances and suggestions of each rule
    #[arg(short = 'j', long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

fn margin(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok();
    let factor = factor.filter(|factor| (1.0..=100.0).contains(factor));
    factor.ok_or_else(|| "expected a factor from 1 to 100".to_owned())
}

pub fn run(args: &SuggestArgs, verbose: bool) -> Result<Ending, Failure> {
    if args.source.is_live() && args.source.span.is_none() {
        return Err(Failure::words(
            "weir alert suggest needs a recording with --from, or a time with --for",
        ));
    }
    let ReadAlerts { file, left_out } = args.file.read(&args.source)?;
    for (rule, reason) in &left_out {
        output::notice(format_args!("weir: {rule} is left out: {reason}"));
    }
    let stop = Stop::on_signals()?;
    let collected = file.rules.iter().map(Suggestions::new);
    let collected: Vec<_> = collected.map(|s| Arc::new(Mutex::new(s))).collect();
    let options = AlertRunOptions {
        source: &args.source,
        query_bytes_max: args.limits.limit_memory,
        saved: Default::default(),
        progress: ProgressKind::Files,
        files: Files::Open,
    };
    let sinks = suggestion::sinks(&collected);
    let report = run::run_into(&file.rules, options, sinks, &stop)?;
    let mut objects = Vec::new();
    for suggestions in &collected {
        let suggestions = suggestions.lock().expect("no panic while held");
        match args.json {
            true => objects.push(object(&suggestions, args.margin)),
            false => output::print(&section(&suggestions, args.margin))?,
        }
    }
    if args.json {
        output::print(&format!("{}\n", json!(objects)))?;
    }
    conclude(report, verbose)
}

fn section(suggestions: &Suggestions, margin: f64) -> String {
    let (rows, instances) = (suggestions.rows(), suggestions.instances());
    let title = format!(
        "{}: {rows} rows of {instances} instances",
        suggestions.name()
    );
    if !suggestions.compares() {
        return format!("{title}; WHEN compares no column with a number\n");
    }
    let all = suggestions.all(margin);
    if all.is_empty() {
        return format!("{title}\n");
    }
    let head = ["  RULE", "MEDIAN", "P99", "EXTREME", "SUGGESTED"].map(str::to_owned);
    let row = |one: &Suggestion| {
        vec![
            format!("  {}", one.text),
            one.shown(one.median),
            one.shown(one.p99),
            one.shown(one.extreme),
            one.suggested.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = [head.to_vec()]
        .into_iter()
        .chain(all.iter().map(row))
        .collect();
    format!("{title}\n{}", aligned(&rows))
}

fn object(suggestions: &Suggestions, margin: f64) -> Value {
    let one = |one: &Suggestion| {
        json!({
            "rule": one.text,
            "median": one.median,
            "p99": one.p99,
            "extreme": one.extreme,
            "threshold": one.threshold,
            "suggested": one.suggested,
        })
    };
    let all: Vec<Value> = suggestions.all(margin).iter().map(one).collect();
    json!({
        "name": suggestions.name(),
        "rows": suggestions.rows(),
        "instances": suggestions.instances(),
        "suggestions": all,
    })
}
