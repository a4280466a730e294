//! A relation that is read at multiples of an interval only need not be updated in between.
//!
//! `Rstream(X) EVERY d` reads X at the multiples of `d` only. Where X is made of the contents of
//! windows, a window may change at those multiples only: at each of them `[Range N Slide d]` holds
//! what `[Range N]` does. Groups are then computed once an interval, and as partial aggregates
//! where the aggregation is split.
//!
//! An aggregation without keys has its row from its first input on, so below one every row must
//! become visible: its window is at least as long as the interval, and the plan has no operation
//! that combines several rows.

use std::sync::Arc;

use weir_model::Shape;

use crate::plan::{Node, Plan, ToStream};

/// Applies the rule everywhere.
pub fn apply(plan: &Arc<Plan>) -> Arc<Plan> {
    super::bottom_up(plan, &|plan| match &plan.node {
        Node::ToStream {
            input,
            kind: ToStream::Rstream { every: Some(every) },
        } => plan.with_inputs(vec![with_slide(input, *every)]),
        _ => plan,
    })
}

/// A relation that is unchanged at the multiples of `every`. Streams are not rewritten: their
/// content depends on every instant.
fn with_slide(plan: &Arc<Plan>, every: i64) -> Arc<Plan> {
    if plan.shape == Shape::Stream {
        return plan.clone();
    }
    if let Node::Window { input, window } = &plan.node
        && input.shape == Shape::Stream
    {
        let window = window.kind().with_slide(every);
        return window.map_or(plan.clone(), |window| Plan::window(input.clone(), window));
    }
    if let Node::Aggregate { input, keys, .. } = &plan.node
        && keys.is_empty()
        && !keeps_every_row(input, every)
    {
        return plan.clone();
    }
    let inputs = plan.inputs().into_iter();
    plan.with_inputs(inputs.map(|input| with_slide(input, every)).collect())
}

/// Whether every row that passes is in the relation at a multiple of `every`.
fn keeps_every_row(plan: &Plan, every: i64) -> bool {
    match &plan.node {
        Node::Select { input, .. } | Node::Project { input, .. } => keeps_every_row(input, every),
        Node::Window { window, .. } => window.kind().contains_all_at_multiples(every),
        _ => false,
    }
}
