//! What is shown at the multiples of a span need not be kept up to date in between.
//!
//! `Rstream(X) EVERY d` looks at X at the multiples of `d` only. Where X is made of what windows
//! hold, a window may as well change at those multiples only: at each of them `[Range N Slide d]`
//! holds what `[Range N]` does. Then groups are put together once an interval, in parts where they
//! are made in parts.
//!
//! An aggregation without keys has its row from when it was first given something, so below such a
//! one every row must come to be seen: through a window that is as long as the span at least, and
//! nothing that several rows must meet in.

use std::sync::Arc;

use weir_model::Shape;

use crate::plan::{Node, Plan, ToStream, Window};

/// Applies the rule everywhere.
pub fn apply(plan: &Arc<Plan>) -> Arc<Plan> {
    super::bottom_up(plan, &|plan| match &plan.node {
        Node::ToStream {
            input,
            kind: ToStream::Rstream { every: Some(every) },
        } => plan.with_inputs(vec![paced(input, *every)]),
        _ => plan,
    })
}

/// A relation that is as it was at the multiples of `every`. Streams are not touched: what is in
/// them depends on every instant.
fn paced(plan: &Arc<Plan>, every: i64) -> Arc<Plan> {
    if plan.shape == Shape::Stream {
        return plan.clone();
    }
    if let Node::Window { input, window } = &plan.node
        && input.shape == Shape::Stream
    {
        let slide = Some(every);
        let window = match window {
            Window::Range { size, slide: None } => Window::Range { size: *size, slide },
            Window::Unbounded { slide: None } => Window::Unbounded { slide },
            Window::Since {
                origin,
                size,
                slide: None,
            } => Window::Since {
                origin: origin.clone(),
                size: *size,
                slide,
            },
            other => other.clone(),
        };
        return Plan::window(input.clone(), window);
    }
    if let Node::Aggregate { input, keys, .. } = &plan.node
        && keys.is_empty()
        && !shows_every_row(input, every)
    {
        return plan.clone();
    }
    let inputs = plan.inputs().into_iter();
    plan.with_inputs(inputs.map(|input| paced(input, every)).collect())
}

/// Whether every row that passes is there at a multiple of `every`.
fn shows_every_row(plan: &Plan, every: i64) -> bool {
    match &plan.node {
        Node::Select { input, .. } | Node::Project { input, .. } => shows_every_row(input, every),
        Node::Window { window, .. } => match window {
            Window::Range { size, .. } => *size >= every,
            Window::Unbounded { .. } => true,
            // A row may be too old by then, however long the window is.
            Window::Since { .. } => false,
            Window::Now | Window::Rows { .. } | Window::Partition { .. } => false,
        },
        _ => false,
    }
}
