//! Properties of plans that sinks and taps need.

use std::sync::Arc;

use weir_model::event::IO_PAIRS;
use weir_model::{Capabilities, Demand, Shape};
use weir_query::Plan;
use weir_query::place::pairing::{self, Paired, PairingGuarantee};
use weir_query::place::{self, Placement};
use weir_query::plan::OrderBy;
use weir_sink::{InstantUnit, ResultSchema, SortKey};

use crate::run_loop::OWN_STREAM;

/// The description of a plan's answer for a sink. A relation from which no row is ever retracted is
/// shown as the stream of its rows, unless its rows have an order or only the `last` state is
/// requested.
pub fn answer(plan: &Plan, clock: InstantUnit, raw: bool, last: bool) -> ResultSchema {
    let key = |(column, by): (usize, &OrderBy)| SortKey {
        column,
        descending: by.descending,
        nulls_first: by.nulls_first,
    };
    let order: Vec<SortKey> = plan.display_order().into_iter().map(key).collect();
    let rows_only_come = plan.is_append_only() && order.is_empty() && !last;
    ResultSchema {
        schema: plan.schema.clone(),
        shape: match rows_only_come {
            true => Shape::Stream,
            false => plan.shape,
        },
        clock,
        order,
        raw,
    }
}

/// The demands of the plans on taps, row by row.
pub fn demands(plans: &[&Plan], capabilities: &Capabilities) -> Vec<Demand> {
    of_rows(plans, capabilities).demands
}

/// A plan whose joins of requests with responses are computed from the pairs of sources with these
/// capabilities.
pub fn paired(plan: &Arc<Plan>, capabilities: &Capabilities) -> Paired {
    let guarantee = capabilities.pairs(&IO_PAIRS);
    pairing::pair(plan, &[PairingGuarantee::new(&IO_PAIRS, 1, guarantee)])
}

/// The plans as the engine runs them on sources with these capabilities, and the demands on the
/// taps.
pub fn placed(plans: &[&Plan], capabilities: &Capabilities) -> Placement {
    without_own_stream(place::place(plans, capabilities))
}

/// As [`placed`], with secondary plans `rows` that only single rows can answer; they do not prevent
/// folds for the others. With [`crate::source::SourceOptions::optional_rows`] their rows may be
/// left out. The plans are in the order of both.
pub fn placed_beside(plans: &[&Plan], rows: &[&Plan], capabilities: &Capabilities) -> Placement {
    let mut placement = placed(plans, capabilities);
    let beside = of_rows(rows, capabilities);
    let come_anyway = |demand: &Demand| {
        let same = |rows: &Demand| rows.stream.eq_ignore_ascii_case(&demand.stream);
        demand.fold.is_none() && beside.demands.iter().any(same)
    };
    if placement.demands.iter().any(come_anyway) {
        return placed(&[plans, rows].concat(), capabilities);
    }
    placement.plans.extend(beside.plans);
    placement.demands.extend(beside.demands);
    placement.sources.extend(beside.sources);
    placement
}

/// As [`placed`], with every row demanded.
pub fn of_rows(plans: &[&Plan], capabilities: &Capabilities) -> Placement {
    without_own_stream(Placement::of_rows(plans, capabilities))
}

fn without_own_stream(mut placement: Placement) -> Placement {
    let mut sources = std::mem::take(&mut placement.sources).into_iter();
    placement.demands.retain(|demand| {
        let source = sources.next().expect("one for each demand");
        let kept = !demand.stream.eq_ignore_ascii_case(OWN_STREAM);
        placement.sources.extend(kept.then_some(source));
        kept
    });
    placement
}

/// True when a plan reads stream `weir`.
pub fn read_own_stream(plans: &[&Plan]) -> bool {
    let mut sources = plans.iter().flat_map(|p| p.sources());
    sources.any(|d| d.name.eq_ignore_ascii_case(OWN_STREAM))
}

#[cfg(test)]
#[path = "../../weir-query/tests/support/capabilities.rs"]
mod fixture;

#[cfg(test)]
mod tests {
    use weir_tap::ebpf::streams::{fileio, iopath, pagecache};

    use super::fixture;

    #[test]
    fn the_planners_tests_use_the_capabilities_of_the_live_source() {
        let (fixture, mut live) = (fixture::live(), weir_tap::live::capabilities());
        let name = |s: &weir_model::StreamCapabilities| s.declaration.name.clone();
        // A kernel stream is planned by its table of columns, which is tested with the stream.
        let planned_by_table = [
            fileio::STREAM.name,
            iopath::STREAM.name,
            pagecache::STREAM.name,
        ];
        // Journals are read whole: nothing of a plan is placed in them.
        let of_journals = ["alerts", "alert_states", "actions", "leases"];
        let others = [&planned_by_table[..], &of_journals].concat();
        live.streams.retain(|s| !others.contains(&&*name(s)));
        let names = |c: &weir_model::Capabilities| c.streams.iter().map(name).collect::<Vec<_>>();
        assert_eq!(names(&fixture), names(&live));
        for (of_tests, real) in fixture.streams.iter().zip(&live.streams) {
            for (at, field) in real.declaration.schema.fields.iter().enumerate() {
                let columns = (of_tests.columns[at], real.columns[at]);
                assert_eq!(columns.0, columns.1, "{}.{}", name(real), field.name);
            }
            assert_eq!(of_tests, real, "{}", name(real));
        }
    }
}
