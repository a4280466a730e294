//! [`Folds`]: fragments whose aggregations run in the kernel. Each demand for groups has a tap that
//! is opened and closed with it.
//!
//! The kernel's intervals end at multiples of the monitor's time, as estimated when they began.
//! When an interval ends, the estimate differs by some microseconds from the multiple; a group is
//! assigned to the nearest multiple.

use std::sync::Arc;

use weir_model::capabilities::FLEET_CLOCK_CHANGE_NS_MAX as CLOCK_CHANGE_NS_MAX;
use weir_model::{Capabilities, Demand, Nanos};
use weir_query::place;
use weir_query::plan::Plan;

/// Maximum number of open taps for groups; fragments beyond them read rows. Each tap runs at every
/// request, so more of them would cost more than the rows.
const TAPS_MAX: usize = 4;

/// The demands for groups, by the name of their source in the engine.
#[derive(Debug, Default)]
pub struct Folds {
    known: Vec<(String, Demand)>,
    /// The number of demands created so far.
    count: u64,
}

impl Folds {
    /// The plan as the engine runs it on sources with these capabilities: over groups where the
    /// kernel can compute them.
    pub fn rewrite(&mut self, plan: &Arc<Plan>, capabilities: &Capabilities) -> Arc<Plan> {
        let mut placement = place::place(&[plan], capabilities);
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
                    // Names in queries cannot contain this character.
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
        Arc::new(placement.rewrite(plan))
    }

    /// The demand for the groups of this source, if it is a source of groups.
    pub fn demand(&self, source: &str) -> Option<&Demand> {
        let known = self.known.iter().find(|(name, _)| name == source);
        known.map(|(_, demand)| demand)
    }

    /// Removes the sources that no fragment reads.
    pub fn retain(&mut self, reads: impl Fn(&str) -> bool) {
        self.known.retain(|(source, _)| reads(source));
    }
}

/// The end of the interval that was reported to end at `at`, in the monitor's time.
pub fn end_of(interval: Nanos, at: Nanos) -> Nanos {
    (at + interval / 2).div_euclid(interval) * interval
}

/// The watermark of the groups at the time `at`: groups of an interval that has just ended may
/// still arrive.
pub fn over(interval: Nanos, at: Nanos) -> Nanos {
    match at.rem_euclid(interval) {
        since if since <= CLOCK_CHANGE_NS_MAX => at - since - 1,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Catalog;
    use weir_query::{CheckOptions, compile};
    use weir_runtime::source::SourceOptions;

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
        let args = weir_tap::live::capabilities().in_a_fleet();
        let mut all = Folds::default();
        let mut source = |slide: &str| sources(&all.rewrite(&grouped(slide), &args)).remove(0);
        assert_eq!([source("1 s"), source("1 s")], ["IO#1", "IO#1"]);
        assert_eq!(source("10 ms"), "IO", "too short where clocks differ");
        let others = ["2 s", "3 s", "4 s"].map(&mut source);
        assert_eq!(others, ["IO#2", "IO#3", "IO#4"]);
        assert_eq!(source("5 s"), "IO", "there are four");
        let rows = plan("select op from IO");
        assert_eq!(all.rewrite(&rows, &args), rows);
        all.retain(|source| source == "IO#2");
        assert!(all.demand("IO#1").is_none() && all.demand("IO#2").is_some());
    }

    #[test]
    fn a_recording_is_delivered_row_by_row() {
        let sample = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../samples/fio-loop.parquet"
        );
        let args = SourceOptions::of(sample, &[], false, &[]).unwrap();
        let args = args.capabilities().unwrap();
        let plan = grouped("1 s");
        assert_eq!(Folds::default().rewrite(&plan, &args), plan);
    }

    #[test]
    fn an_interval_ends_at_the_nearest_multiple_and_is_over_a_little_later() {
        let second = 1_000_000_000;
        assert_eq!(end_of(second, 3 * second - 4_000), 3 * second);
        assert_eq!(end_of(second, 3 * second + 4_000), 3 * second);
        assert_eq!(over(second, 3 * second + 4_000), 3 * second - 1);
        assert_eq!(over(second, 3 * second - 4_000), 3 * second - 4_000);
        let later = 3 * second + CLOCK_CHANGE_NS_MAX + 1;
        assert_eq!(over(second, later), later);
    }
}
