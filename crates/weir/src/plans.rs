//! What the sinks and taps must know of plans.

use weir_model::{Demand, Shape};
use weir_query::plan::OrderBy;
use weir_query::{Plan, place};
use weir_sink::{Answer, Clock, SortKey};

use crate::run_loop::OWN_STREAM;

/// What a sink is told of a plan's answer. A relation from which no row ever goes is shown as the
/// stream of its rows, unless its rows have an order or only the `last` state is wanted.
pub fn answer(plan: &Plan, clock: Clock, raw: bool, last: bool) -> Answer {
    let key = |(column, by): (usize, &OrderBy)| SortKey {
        column,
        descending: by.descending,
        nulls_first: by.nulls_first,
    };
    let order: Vec<SortKey> = plan.shown_order().into_iter().map(key).collect();
    let rows_only_come = plan.is_growing() && order.is_empty() && !last;
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

/// What the plans need of taps.
pub fn demands(plans: &[&Plan]) -> Vec<Demand> {
    let mut demands = place::demands(plans);
    // The loop makes this one itself.
    demands.retain(|d| !d.stream.eq_ignore_ascii_case(OWN_STREAM));
    demands
}

/// True when a plan reads stream `weir`.
pub fn read_own_stream(plans: &[&Plan]) -> bool {
    let mut sources = plans.iter().flat_map(|p| p.sources());
    sources.any(|d| d.name.eq_ignore_ascii_case(OWN_STREAM))
}
