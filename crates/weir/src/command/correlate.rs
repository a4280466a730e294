//! `weir correlate`: which disks move together, and which one slows another.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use weir_query::engine::{Engine, EngineOptions};
use weir_view::correlate::question::{self, StepSource};
use weir_view::correlate::run::{self, CorrelateOptions, FleetCorrelation};
use weir_workload::correlation::{CorrelatedMetric, CorrelationOptions, WINDOW_STEPS};

use super::fleet_rows;
use crate::args::{FleetArgs, SourceArgs};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::{Stop, conclude};

/// With shorter steps, weir's own load would dominate.
const STEP_MIN: Duration = Duration::from_millis(100);

/// Show which disks move together, and which one slows another
///
/// The load or latency of all disks is compared step by step: pairs whose correlation over the
/// window reaches the threshold at any lag, and that chance does not explain. For each pair: the
/// coefficient, the disk that leads and by how much, and whether both move together or the load of
/// one raises the latency of the other at equal load of its own. Live, the pairs are printed at
/// each step, and a summary at Ctrl-C or after the time of --for; of a recording, the summary. With
/// --monitor, the disks are those of all hosts of a fleet.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir correlate\n  \
    weir correlate --metric latency --window 5m --lag 30s --for 20m\n  \
    weir correlate --monitor monitor.example --metric latency\n  \
    weir correlate --from recording.parquet --threshold 0.9 --html pairs.html\n  \
    weir correlate --from recording.parquet --step 100ms --window 10s --lag 1s --json")]
pub struct CorrelateArgs {
    /// Metric to compare: mean latency, requests per second, bytes per second, or mean number of
    /// requests in flight
    #[arg(long, value_name = "METRIC", default_value = "iops", value_parser = metrics())]
    metric: CorrelatedMetric,
    /// Greatest lag between two disks, a multiple of the step
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = lag)]
    lag: Duration,
    /// Length of the compared windows: 16 to 4096 steps
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = quantity::span)]
    window: Duration,
    /// Time of one value of each disk, at least 100ms
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = step)]
    step: Duration,
    /// Least coefficient of correlation, positive or negative, above 0 and up to 1
    #[arg(long, value_name = "COEFFICIENT", default_value = "0.8", value_parser = threshold)]
    threshold: f64,
    /// Maximum number of pairs to print, the strongest first
    #[arg(long, value_name = "COUNT", default_value = "20", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    top: u16,
    /// Print JSON: live an object per step, and the summary as the last object
    #[arg(short = 'j', long)]
    json: bool,
    /// Also write the summary to this file as an HTML page with a heat map and a graph of the
    /// pairs; the page loads no other files
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the query of this command and exit
    #[arg(long)]
    show_query: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    fleet: FleetArgs,
}

fn metrics() -> impl TypedValueParser<Value = CorrelatedMetric> {
    let names = CorrelatedMetric::ALL.map(CorrelatedMetric::as_str);
    PossibleValuesParser::new(names).map(|name| {
        let mut all = CorrelatedMetric::ALL.into_iter();
        all.find(|metric| metric.as_str() == name)
            .expect("the name of a metric")
    })
}

fn lag(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        _ => quantity::span(text),
    }
}

fn step(text: &str) -> Result<Duration, String> {
    let step = quantity::span(text)?;
    match step < STEP_MIN {
        true => Err(format!("a step must be at least {STEP_MIN:?}")),
        false => Ok(step),
    }
}

fn threshold(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| *number > 0.0 && *number <= 1.0);
    number.ok_or_else(|| "expected a number above 0 and up to 1".to_owned())
}

pub fn run(args: &CorrelateArgs, verbose: bool) -> Result<Ending, Failure> {
    let options = CorrelateOptions {
        metric: args.metric,
        step: args.step,
        correlation: correlation(args)?,
        top: args.top.into(),
        json: args.json,
        html: args.html.clone(),
    };
    let in_fleet = args.fleet.monitor.is_some();
    if args.show_query {
        let source = match args.source.is_live() {
            true if in_fleet => StepSource::Fleet,
            true => StepSource::Host,
            false => StepSource::Recording,
        };
        let query = question::query(args.step, source);
        output::print(&format!("{query}\n"))?;
        return Ok(Ending::Done);
    }
    if let Some(path) = &args.html {
        output::never_over(path, args.source.files())?;
        output::writable(path)?;
    }
    let stop = Stop::on_signals()?;
    if in_fleet {
        return of_fleet(args, &options, &stop);
    }
    let engine = Engine::new(EngineOptions::default());
    let report = run::run(&args.source, engine, &options, &stop)?;
    conclude(report, verbose)
}

/// Compares the disks of a fleet.
fn of_fleet(
    args: &CorrelateArgs,
    options: &CorrelateOptions,
    stop: &Stop,
) -> Result<Ending, Failure> {
    let mut correlation = None;
    let query = question::query(args.step, StepSource::Fleet);
    let open = || {
        let opened = correlation.insert(FleetCorrelation::new(options)?);
        Ok(opened.sink())
    };
    let ending = fleet_rows::read(&args.fleet, &args.source, query, open, stop);
    match correlation {
        Some(correlation) => correlation.conclude(ending),
        None => ending,
    }
}

/// Window and lag in steps.
fn correlation(args: &CorrelateArgs) -> Result<CorrelationOptions, Failure> {
    let steps = |option: &str, span: Duration| {
        let (span, step) = (span.as_nanos(), args.step.as_nanos());
        let steps = span.is_multiple_of(step).then_some(span / step);
        let steps = steps.and_then(|steps| usize::try_from(steps).ok());
        let wrong = || Failure::words(format_args!("{option}: expected a multiple of --step"));
        steps.ok_or_else(wrong)
    };
    let (window, lag) = (steps("--window", args.window)?, steps("--lag", args.lag)?);
    if !WINDOW_STEPS.contains(&window) {
        return Err(Failure::words(format_args!(
            "--window: expected {} to {} steps of --step, not {window}",
            WINDOW_STEPS.start(),
            WINDOW_STEPS.end()
        )));
    }
    if lag > window {
        return Err(Failure::words(
            "--lag: expected at most the length of --window",
        ));
    }
    Ok(CorrelationOptions {
        window,
        lag,
        threshold: args.threshold,
    })
}
