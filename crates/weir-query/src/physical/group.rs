//! Aggregations over windows that end all at once: no row is kept, and a source may deliver groups.

use std::sync::Arc;

use super::{Choice, Operation};
use crate::place::fold::{groups, reading};
use crate::plan::{Node, Plan, Window};
use crate::window::Range;

/// An aggregation whose source delivers groups in place of some rows, or of all.
pub(super) fn preaggregated(plan: &Arc<Plan>) -> Option<Choice> {
    let source = groups(plan)?.clone();
    let reading = reading(plan)?;
    let input = plan.inputs()[0];
    let (keys, calls, rows, global) = match &plan.node {
        Node::Partial { keys, calls, .. } => (keys, calls, input, None),
        Node::Aggregate {
            keys,
            calls,
            global,
            ..
        } => (keys, calls, input.inputs()[0], Some(*global)),
        _ => return None,
    };
    Some(Choice {
        inputs: vec![rows.clone(), source],
        operation: Operation::TumblingGroup {
            keys: keys.clone(),
            calls: calls.clone(),
            interval: reading.slide,
            preaggregated: Some(reading),
            global,
        },
    })
}

/// An aggregation over `[Range S Slide S]`, and partial aggregates of each slide.
pub(super) fn tumbling(plan: &Arc<Plan>) -> Option<Choice> {
    let (rows, interval, keys, calls, global) = match &plan.node {
        Node::Partial {
            input,
            slide,
            keys,
            calls,
        } => (input, *slide, keys, calls, None),
        Node::Aggregate {
            input,
            keys,
            calls,
            global,
        } => {
            let (stream, interval) = tumbling_window(input)?;
            (stream, interval, keys, calls, Some(*global))
        }
        _ => return None,
    };
    Some(Choice {
        inputs: vec![rows.clone()],
        operation: Operation::TumblingGroup {
            keys: keys.clone(),
            calls: calls.clone(),
            interval,
            preaggregated: None,
            global,
        },
    })
}

/// The stream below a window that is exactly one slide long, and that slide.
fn tumbling_window(plan: &Plan) -> Option<(&Arc<Plan>, i64)> {
    match &plan.node {
        Node::Window {
            input,
            window:
                Window::Range(Range {
                    size,
                    slide: Some(slide),
                }),
        } if size == slide => Some((input, *size)),
        _ => None,
    }
}
