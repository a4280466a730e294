//! [`Folds`]: fragments whose aggregations the kernel does. Each demand for groups has a tap of its
//! own, which comes and goes with it.
//!
//! The kernel's intervals end at the multiples of the monitor's time, as far as that was known when
//! they began. What they are told by then is some microseconds beside the multiple; a group belongs
//! to the multiple that is nearest.

use std::sync::Arc;

use weir_model::{Capabilities, Demand, Nanos};
use weir_query::place;
use weir_query::plan::Plan;

use weir_runtime::source::SourceOptions;

/// Taps for groups that are open at a time; of fragments beyond them the rows are asked for. Each one
/// is run at every request, so that many cost more than the rows do.
const TAPS_MAX: usize = 4;

/// By how much the monitor's time may be known better at the end of an interval than at its
/// beginning.
const BESIDE_NS: Nanos = 10_000_000;

/// Shorter intervals are not the kernel's: which one is nearest has to be clear.
const INTERVAL_NS_MIN: Nanos = 10 * BESIDE_NS;

/// The demands for groups, by what the engine calls their source.
#[derive(Debug, Default)]
pub struct Folds {
    known: Vec<(String, Demand)>,
    /// Demands that there ever were.
    count: u64,
}

impl Folds {
    /// A plan as the engine runs it here: over groups where the kernel can make them.
    pub fn admit(&mut self, plan: &Arc<Plan>, args: &SourceOptions) -> Arc<Plan> {
        let mut placement = place::place(&[plan], &capabilities(args));
        let mut come = Vec::new();
        for (demand, source) in placement.demands.iter().zip(&mut placement.sources) {
            if demand.fold.is_none() {
                continue;
            }
            let known = self.known.iter().chain(&come).find(|(_, d)| d == demand);
            *source = match known {
                Some((source, _)) => source.clone(),
                None => {
                    self.count += 1;
                    // No name in a query has this sign.
                    let source = format!("{}#{}", demand.stream, self.count);
                    come.push((source.clone(), demand.clone()));
                    source
                }
            };
        }
        if self.known.len() + come.len() > TAPS_MAX {
            return plan.clone();
        }
        self.known.extend(come);
        Arc::new(placement.admit(plan))
    }

    /// The demand for the groups of this source, if it is one of groups.
    pub fn demand(&self, source: &str) -> Option<&Demand> {
        let known = self.known.iter().find(|(name, _)| name == source);
        known.map(|(_, demand)| demand)
    }

    /// Forgets the sources that no fragment reads.
    pub fn retain(&mut self, reads: impl Fn(&str) -> bool) {
        self.known.retain(|(source, _)| reads(source));
    }
}

/// What the sources can do, with groups of intervals that are long enough for clocks that differ.
pub fn capabilities(args: &SourceOptions) -> Capabilities {
    let mut capabilities = args.capabilities();
    for stream in &mut capabilities.streams {
        if let Ok(limits) = &mut stream.groups {
            limits.interval_min_ns = limits.interval_min_ns.max(INTERVAL_NS_MIN);
        }
    }
    capabilities
}

/// The end of the interval that was told to end at `at`, in the monitor's time.
pub fn end_of(interval: Nanos, at: Nanos) -> Nanos {
    (at + interval / 2).div_euclid(interval) * interval
}

/// Up to when all groups have come where time has come to `at`: of an interval that has just ended
/// they may be about to.
pub fn over(interval: Nanos, at: Nanos) -> Nanos {
    match at.rem_euclid(interval) {
        since if since <= BESIDE_NS => at - since - 1,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Catalog;
    use weir_query::{CheckOptions, compile};

    fn plan(text: &str) -> Arc<Plan> {
        let checked = compile(text, &Catalog::builtin(), &CheckOptions::live());
        checked.expect("the query is sound").plan
    }

    fn grouped(slide: &str) -> Arc<Plan> {
        plan(&format!(
            "select op, count(*) from IO [range {slide} slide {slide}] group by op"
        ))
    }

    fn sources(plan: &Plan) -> Vec<String> {
        plan.sources().iter().map(|d| d.name.clone()).collect()
    }

    #[test]
    fn equal_groups_have_one_source_and_few_have_one_at_all() {
        let args = SourceOptions::of("live", &[], false, &[]).unwrap();
        let mut all = Folds::default();
        let mut source = |slide: &str| sources(&all.admit(&grouped(slide), &args)).remove(0);
        assert_eq!([source("1 s"), source("1 s")], ["IO#1", "IO#1"]);
        assert_eq!(source("10 ms"), "IO", "too short where clocks differ");
        let others = ["2 s", "3 s", "4 s"].map(&mut source);
        assert_eq!(others, ["IO#2", "IO#3", "IO#4"]);
        assert_eq!(source("5 s"), "IO", "there are four");
        let rows = plan("select op from IO");
        assert_eq!(all.admit(&rows, &args), rows);
        all.retain(|source| source == "IO#2");
        assert!(all.demand("IO#1").is_none() && all.demand("IO#2").is_some());
    }

    #[test]
    fn a_recording_is_told_row_by_row() {
        let args = SourceOptions::of("x.parquet", &[], false, &[]).unwrap();
        let plan = grouped("1 s");
        assert_eq!(Folds::default().admit(&plan, &args), plan);
    }

    #[test]
    fn an_interval_ends_at_the_nearest_multiple_and_is_over_a_little_later() {
        let second = 1_000_000_000;
        assert_eq!(end_of(second, 3 * second - 4_000), 3 * second);
        assert_eq!(end_of(second, 3 * second + 4_000), 3 * second);
        assert_eq!(over(second, 3 * second + 4_000), 3 * second - 1);
        assert_eq!(over(second, 3 * second - 4_000), 3 * second - 4_000);
        let later = 3 * second + BESIDE_NS + 1;
        assert_eq!(over(second, later), later);
    }
}
