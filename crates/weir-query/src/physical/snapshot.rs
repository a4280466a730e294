//! `Rstream` without a pace: it also reads the sources below, to see when rows arrive.

use std::sync::Arc;

use super::{Choice, Operation};
use crate::plan::{Node, Plan, ToStream};
use crate::window::Entrance;

/// The relation, and each source below with the entrances on the way.
pub(super) fn on_arrival(plan: &Arc<Plan>) -> Option<Choice> {
    let Node::ToStream {
        input,
        kind: ToStream::Rstream { every: None },
    } = &plan.node
    else {
        return None;
    };
    let (sources, entrances) = arrivals(input).into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
    let inputs = std::iter::once(input.clone()).chain(sources).collect();
    Some(Choice {
        operation: Operation::SnapshotsOnArrival(entrances),
        inputs,
    })
}

/// The sources below a relation, each with the entrances of the windows on the way, innermost
/// first.
fn arrivals(plan: &Arc<Plan>) -> Vec<(Arc<Plan>, Vec<Entrance>)> {
    if let Node::Source(_) = &plan.node {
        return vec![(plan.clone(), Vec::new())];
    }
    let entrance = match &plan.node {
        Node::Partial { slide, .. } => Some(Entrance {
            delay: 0,
            slide: Some(*slide),
        }),
        Node::Window { window, .. } => Some(window.kind().entrance()),
        _ => None,
    };
    let mut found: Vec<(Arc<Plan>, Vec<Entrance>)> = Vec::new();
    for mut arrival in plan.inputs().into_iter().flat_map(arrivals) {
        arrival.1.extend(entrance);
        if !found.contains(&arrival) {
            found.push(arrival);
        }
    }
    found
}
