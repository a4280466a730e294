//! Joins that keep the windows of their inputs themselves.

use std::sync::Arc;

use super::{Choice, Operation};
use crate::plan::{Node, Plan, Window};
use crate::window::Range;

/// A join, with the windows directly below it where each row stays for a fixed time: the join then
/// finds an expiring row by its position instead of by its values.
pub(super) fn own_windows(plan: &Arc<Plan>) -> Option<Choice> {
    let join = plan.as_join()?;
    let sides = [&join.left, &join.right].map(|side| match window(side) {
        Some((stream, size)) => (stream.clone(), Some(size)),
        None => (side.clone(), None),
    });
    Some(Choice {
        operation: Operation::Join {
            kind: join.kind,
            on: join.on.clone(),
            residual: join.residual.clone(),
            windows: [sides[0].1, sides[1].1],
        },
        inputs: sides.into_iter().map(|(input, _)| input).collect(),
    })
}

/// The stream and the size of a window without slide.
fn window(plan: &Plan) -> Option<(&Arc<Plan>, i64)> {
    match &plan.node {
        Node::Window {
            input,
            window: Window::Now(_),
        } => Some((input, 1)),
        Node::Window {
            input,
            window: Window::Range(Range { size, slide: None }),
        } => Some((input, *size)),
        _ => None,
    }
}
