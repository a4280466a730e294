//! `Rstream` without a pace: it also reads the sources below, to see when rows arrive.

use std::sync::Arc;

use super::{Choice, Operation};
use crate::plan::{Node, Plan, ToStream};

/// The relation, and each source below with the slides on the way.
pub(super) fn on_arrival(plan: &Arc<Plan>) -> Option<Choice> {
    let Node::ToStream {
        input,
        kind: ToStream::Rstream { every: None },
    } = &plan.node
    else {
        return None;
    };
    let (sources, slides): (Vec<Arc<Plan>>, Vec<Vec<i64>>) = arrivals(input).into_iter().unzip();
    let inputs = std::iter::once(input.clone()).chain(sources).collect();
    Some(Choice {
        operation: Operation::SnapshotsOnArrival(slides),
        inputs,
    })
}

/// The sources below a relation, each with the slides of the windows on the way, innermost first.
fn arrivals(plan: &Arc<Plan>) -> Vec<(Arc<Plan>, Vec<i64>)> {
    if let Node::Source(_) = &plan.node {
        return vec![(plan.clone(), Vec::new())];
    }
    let slide = match &plan.node {
        Node::Partial { slide, .. } => Some(*slide),
        Node::Window { window, .. } => window.kind().slide(),
        _ => None,
    };
    let mut found: Vec<(Arc<Plan>, Vec<i64>)> = Vec::new();
    for mut arrival in plan.inputs().into_iter().flat_map(arrivals) {
        arrival.1.extend(slide);
        if !found.contains(&arrival) {
            found.push(arrival);
        }
    }
    found
}
