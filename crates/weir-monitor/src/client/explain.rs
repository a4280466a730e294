//! `weir explain --fleet`: how a query is cut between agents and the monitor where hosts are like
//! this one, and with `--analyze` what each way takes here.

use std::time::Duration;

use serde_json::{Value, json};
use weir_query::Plan;
use weir_query::place::fleet::{
    self, Cut, CutOptions, FleetExplanation, Measured, Rates, Way, cost,
};
use weir_query::plan::Node;

use super::measured::{self, Answers};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::plans;
use weir_runtime::run_loop::Stop;
use weir_runtime::source;
use weir_runtime::source::SourceOptions;

/// How long a query runs to be measured, unless told otherwise.
pub const SPAN: Duration = Duration::from_secs(5);

/// The least span of rows that makes a rate, in seconds.
const SECONDS_MIN: f64 = 1e-3;

/// Less processor time tells nothing but how a process begins.
const CPU_NS_MIN: i64 = 100_000_000;

/// A query's cut with what it costs.
pub struct Explained {
    explanation: FleetExplanation,
    /// Whether the costs were measured here.
    analyzed: bool,
    /// How it ended, if something ran.
    pub ending: Ending,
}

/// Cuts a query for a fleet of `hosts` hosts; with `analyze` each way is run here first, one after
/// the other, and what that takes decides.
///
/// # Errors
/// When the way that is asked for makes no difference, or a source fails.
pub fn explain(
    plan: &Plan,
    hosts: u32,
    place: Option<&str>,
    source: &SourceOptions,
    analyze: bool,
) -> Result<Explained, Failure> {
    let hint = place.map(str::parse::<Way>).transpose();
    let mut options = CutOptions {
        hint: hint.map_err(Failure::words)?,
        rates: Rates {
            hosts: f64::from(hosts),
            ..Rates::default()
        },
        capabilities: source.capabilities(),
        ..CutOptions::default()
    };
    let mut ending = Ending::Done;
    if analyze {
        (options.rates, ending) = measured_rates(plan, source, &options)?;
    }
    let cut = fleet::cut(plan, &options).map_err(Failure::words)?;
    let explanation = fleet::explain_cut(&cut, &options);
    Ok(Explained {
        explanation,
        analyzed: analyze,
        ending,
    })
}

/// What the fragments of every way take here.
fn measured_rates(
    plan: &Plan,
    source: &SourceOptions,
    options: &CutOptions,
) -> Result<(Rates, Ending), Failure> {
    let asked = |way| CutOptions {
        hint: Some(way),
        ..options.clone()
    };
    let cuts = Way::ALL.into_iter();
    let cuts: Vec<Cut> = cuts
        .filter_map(|way| fleet::cut(plan, &asked(way)).ok())
        .collect();
    let stop = Stop::on_signals()?;
    let mut runs = Vec::new();
    for (number, cut) in cuts.iter().enumerate() {
        let mut args = source.clone();
        args.span = args.span.or(args.is_live().then_some(SPAN));
        // Whoever gave them up could not attach probes again.
        args.keep_privileges |= number + 1 < cuts.len();
        let fragments: Vec<&Plan> = cut.fragments.iter().map(|f| &f.plan).collect();
        let placement = plans::placed(&fragments, &args);
        let stop = stop.anew();
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

/// The rates of fragments that ran, all at the mean number of requests: live, more happens at one
/// time than at another.
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

/// Remembers what the fragments of one cut took together, for so many times the requests.
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
        // What they took together is divided as estimated.
        let share = if all > 0.0 { estimates[at] / all } else { 1.0 };
        let process_ns = share * taken.cpu_ns as f64 * factor / seconds;
        let kernel_ns = cost::estimated_kernel_ns(plan, options);
        // There are as many groups, however many rows they are of.
        let grows = if is_grouped(plan) { 1.0 } else { factor };
        known.push(Measured {
            plan: (*plan).clone(),
            rows_in: taken.rows_in() as f64 * factor / seconds,
            rows_out: rows_out[at] as f64 * grows / seconds,
            bytes_out: taken.bytes[at] as f64 * grows / seconds,
            cpu_ns: (taken.cpu_ns >= CPU_NS_MIN).then_some(kernel_ns + process_ns),
        });
    }
    let is_new = |old: &Measured| known.iter().all(|new| new.plan != old.plan);
    options.rates.measured.retain(is_new);
    options.rates.measured.extend(known);
}

fn is_grouped(plan: &Plan) -> bool {
    let here = matches!(plan.node, Node::Partial { .. } | Node::Aggregate { .. });
    here || plan.inputs().into_iter().any(|input| is_grouped(input))
}

impl Explained {
    /// As `weir explain --fleet` shows it.
    pub fn text(&self) -> String {
        let analyzed = match self.analyzed {
            true => {
                "\nMeasured on this host, as which each agent is taken to be, way after way; put to the same number \
                 of requests. Estimated are the time of \
                 programs in the kernel, and all processor time where it was less than 100 ms.\n"
            }
            false => {
                "\nEstimated for hosts of 10,000 requests per second and 100 groups; --analyze measures \
                 here, and a monitor knows what its agents measure.\n"
            }
        };
        format!("{}{analyzed}", self.explanation)
    }

    /// As `--json` shows it: `{"plan": ..}` as of [`FleetExplanation::to_json`].
    ///
    /// # Errors
    /// Never: what is written can be read.
    pub fn to_json(&self) -> Result<Value, Failure> {
        let plan: Value =
            serde_json::from_str(&self.explanation.to_json()).map_err(Failure::world)?;
        Ok(json!({ "plan": plan, "analyzed": self.analyzed }))
    }
}
