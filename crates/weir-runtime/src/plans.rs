//! Properties of plans that sinks and taps need.

use std::sync::Arc;

use weir_model::event::IO_PAIRS;
use weir_model::{Capabilities, Demand, Shape};
use weir_query::Plan;
use weir_query::place::pairing::{self, Paired, PairingGuarantee};
use weir_query::place::{self, Placement};
use weir_query::plan::OrderBy;
use weir_sink::{Answer, Clock, SortKey};

use crate::run_loop::OWN_STREAM;
use crate::source::SourceOptions;

/// The description of a plan's answer for a sink. A relation from which no row is ever retracted is
/// shown as the stream of its rows, unless its rows have an order or only the `last` state is
/// wanted.
pub fn answer(plan: &Plan, clock: Clock, raw: bool, last: bool) -> Answer {
    let key = |(column, by): (usize, &OrderBy)| SortKey {
        column,
        descending: by.descending,
        nulls_first: by.nulls_first,
    };
    let order: Vec<SortKey> = plan.display_order().into_iter().map(key).collect();
    let rows_only_come = plan.is_append_only() && order.is_empty() && !last;
    Answer {
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

/// A plan whose joins of requests with responses are computed from the pairs of the sources.
pub fn paired(plan: &Arc<Plan>, args: &SourceOptions) -> Paired {
    let guarantee = args.capabilities().pairs(&IO_PAIRS);
    pairing::pair(plan, &[PairingGuarantee::new(&IO_PAIRS, 1, guarantee)])
}

/// The plans as the engine runs them on those sources, and the demands on the taps.
pub fn placed(plans: &[&Plan], args: &SourceOptions) -> Placement {
    without_own_stream(place::place(plans, &args.capabilities()))
}

/// As [`placed`], with secondary plans `rows` that only single rows can answer; they do not prevent
/// folds for the others. With [`SourceOptions::optional_rows`] their rows may be left out. The
/// plans are in the order of both.
pub fn placed_beside(plans: &[&Plan], rows: &[&Plan], args: &SourceOptions) -> Placement {
    let mut placement = placed(plans, args);
    let beside = of_rows(rows, &args.capabilities());
    let come_anyway = |demand: &Demand| {
        let same = |rows: &Demand| rows.stream.eq_ignore_ascii_case(&demand.stream);
        demand.fold.is_none() && beside.demands.iter().any(same)
    };
    if placement.demands.iter().any(come_anyway) {
        return placed(&[plans, rows].concat(), args);
    }
    placement.plans.extend(beside.plans);
    placement.demands.extend(beside.demands);
    placement.sources.extend(beside.sources);
    placement
}

/// As [`placed`], where every row is wanted.
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
