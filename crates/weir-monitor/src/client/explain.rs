//! `weir explain --fleet`: how a query is split between agents and the monitor in a fleet of hosts
//! like this one, and with `--analyze` the measured costs of each placement strategy on this host.

use std::time::Duration;

use serde_json::{Value, json};
use weir_query::Plan;
use weir_query::place::fleet::{
    self, Cut, CutOptions, FleetExplanation, MeasuredFragment, PlacementStrategy, Rates, cost,
};
use weir_query::plan::Node;

use super::measured::{self, Answers};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::plans;
use weir_runtime::run_loop::Stop;
use weir_runtime::source;
use weir_runtime::source::SourceOptions;

/// The default duration for which a query runs to be measured.
pub const SPAN: Duration = Duration::from_secs(5);

/// The shortest interval of rows for a rate, in seconds.
const SECONDS_MIN: f64 = 1e-3;

/// Less processor time is dominated by the start of the process.
const CPU_NS_MIN: i64 = 100_000_000;

/// The split of a query and its costs.
pub struct Explained {
    explanation: FleetExplanation,
    /// Whether the costs were measured on this host.
    analyzed: bool,
    /// How the run ended, if there was one.
    pub ending: Ending,
}

/// Splits a query for a fleet of `hosts` hosts; with `analyze` each placement strategy is run here
/// first, one after the other, and the measured costs decide.
///
/// # Errors
/// If the requested strategy makes no difference, or a source fails.
pub fn explain(
    plan: &Plan,
    hosts: u32,
    place: Option<&str>,
    source: &SourceOptions,
    analyze: bool,
) -> Result<Explained, Failure> {
    let hint = place.map(str::parse::<PlacementStrategy>).transpose();
    let mut options = CutOptions {
        hint: hint.map_err(Failure::words)?,
        rates: Rates {
            hosts: f64::from(hosts),
            ..Rates::default()
        },
        capabilities: source.capabilities()?.in_a_fleet(),
        ..CutOptions::default()
    };
    let mut ending = Ending::Done;
    if analyze {
        (options.rates, ending) = measured_rates(plan, source, &options)?;
    }
    let cut = fleet::cut(plan, &options).map_err(Failure::words)?;
    let mut explanation = fleet::explain_cut(&cut, &options);
    explanation.plan = explanation.plan.at_source(source.part());
    Ok(Explained {
        explanation,
        analyzed: analyze,
        ending,
    })
}

/// The measured costs of the fragments of every placement strategy.
fn measured_rates(
    plan: &Plan,
    source: &SourceOptions,
    options: &CutOptions,
) -> Result<(Rates, Ending), Failure> {
    let asked = |strategy| CutOptions {
        hint: Some(strategy),
        ..options.clone()
    };
    let cuts = PlacementStrategy::ALL.into_iter();
    let cuts: Vec<Cut> = cuts
        .filter_map(|strategy| fleet::cut(plan, &asked(strategy)).ok())
        .collect();
    let stop = Stop::on_signals()?;
    let mut runs = Vec::new();
    for (number, cut) in cuts.iter().enumerate() {
        let mut args = source.clone();
        args.span = args.span.or(args.is_live().then_some(SPAN));
        // A process that has dropped its privileges cannot attach probes again.
        args.keep_privileges |= number + 1 < cuts.len();
        let fragments: Vec<&Plan> = cut.fragments.iter().map(|f| &f.plan).collect();
        let placement = plans::placed(&fragments, &options.capabilities);
        let stop = stop.restarted();
        let inputs = source::open(&args, &placement, &stop)?;
        let (taken, ending) = measured::measure(
            &fragments,
            &placement,
            &args,
            inputs,
            Answers::Packed,
            &stop,
        )?;
        runs.push((fragments, taken));
        if ending != Ending::Done {
            return Ok((rates_of(&runs, options), ending));
        }
    }
    Ok((rates_of(&runs, options), Ending::Done))
}

/// The rates of fragments that ran, all scaled to the mean number of requests, since live load
/// varies.
fn rates_of(runs: &[(Vec<&Plan>, measured::Measured)], options: &CutOptions) -> Rates {
    let per_second = |run: &measured::Measured| run.requests as f64 / run.seconds.max(SECONDS_MIN);
    let requests: f64 = runs.iter().map(|(_, run)| per_second(run)).sum();
    let mut options = options.clone();
    options.rates.requests_per_second = requests / runs.len() as f64;
    for (fragments, taken) in runs {
        let factor = match per_second(taken) {
            0.0 => 1.0,
            requests => options.rates.requests_per_second / requests,
        };
        add(&mut options, fragments, taken, factor);
    }
    options.rates
}

/// Adds the measured total cost of the fragments of one split, scaled to `factor` times the
/// requests.
fn add(options: &mut CutOptions, fragments: &[&Plan], taken: &measured::Measured, factor: f64) {
    let Some(rows_out) = taken.rows_out_each() else {
        return;
    };
    let seconds = taken.seconds.max(SECONDS_MIN);
    let estimate = |plan: &&Plan| cost::estimated_process_ns(plan, options);
    let estimates: Vec<f64> = fragments.iter().map(estimate).collect();
    let all: f64 = estimates.iter().sum();
    let mut known = Vec::new();
    for (at, plan) in fragments.iter().enumerate() {
        // The total is divided in the ratio of the estimates.
        let share = if all > 0.0 { estimates[at] / all } else { 1.0 };
        let process_ns = share * taken.cpu_ns as f64 * factor / seconds;
        let kernel_ns = cost::estimated_kernel_ns(plan, options);
        // The number of groups does not depend on the number of their rows.
        let grows = if is_grouped(plan) { 1.0 } else { factor };
        known.push(MeasuredFragment {
            plan: (*plan).clone(),
            rows_in: taken.rows_in() as f64 * factor / seconds,
            rows_out: rows_out[at] as f64 * grows / seconds,
            bytes_out: taken.bytes[at] as f64 * grows / seconds,
            cpu_ns: (taken.cpu_ns >= CPU_NS_MIN).then_some(kernel_ns + process_ns),
        });
    }
    let is_new = |old: &MeasuredFragment| known.iter().all(|new| new.plan != old.plan);
    options.rates.measured.retain(is_new);
    options.rates.measured.extend(known);
}

fn is_grouped(plan: &Plan) -> bool {
    let here = matches!(plan.node, Node::Partial { .. } | Node::Aggregate { .. });
    here || plan.inputs().into_iter().any(|input| is_grouped(input))
}

impl Explained {
    /// The output of `weir explain --fleet`.
    pub fn text(&self) -> String {
        let analyzed = match self.analyzed {
            true => {
                "\nMeasured on this host, one strategy after the other, and scaled to the same \
                 number of requests. The time of BPF programs is estimated, and so is all \
                 processor time below 100 ms.\n"
            }
            false => {
                "\nEstimated for hosts with 10,000 requests per second and 100 groups; --analyze \
                 measures on this host, and a monitor uses the measurements of its agents.\n"
            }
        };
        format!("{}{analyzed}", self.explanation)
    }

    /// The output of `--json`: `{"plan": ..}` as of [`FleetExplanation::to_json`].
    ///
    /// # Errors
    /// Never: the generated text is valid JSON.
    pub fn to_json(&self) -> Result<Value, Failure> {
        let plan: Value =
            serde_json::from_str(&self.explanation.to_json()).map_err(Failure::world)?;
        Ok(json!({ "plan": plan, "analyzed": self.analyzed }))
    }
}
