//! Nodes that become one operator each, over the operators of their inputs.

use std::sync::Arc;

use super::{Choice, Operation};
use crate::plan::{Node, Plan, SetOp, ToStream};

/// The operator of any node that has an effect.
///
/// # Panics
/// For nodes that a rule before this one handles: joins, partial aggregates, and `Rstream` without
/// a pace.
pub(super) fn operator(plan: &Arc<Plan>) -> Option<Choice> {
    let operation = match &plan.node {
        Node::Source(declaration) => Operation::Source(declaration.clone()),
        Node::Window { window, .. } => Operation::Window(window.clone()),
        Node::Select { predicate, .. } => Operation::Filter(predicate.clone()),
        Node::Project { exprs, .. } => Operation::Project(exprs.clone()),
        Node::Aggregate {
            input,
            keys,
            calls,
            global,
        } => Operation::Group {
            keys: keys.clone(),
            calls: calls.clone(),
            append_only: input.is_append_only(),
            global: *global,
        },
        Node::Merge {
            size: Some(size),
            slide,
            keys,
            calls,
            global,
            ..
        } => Operation::MergeWindows {
            keys: *keys,
            calls: calls.clone(),
            slide: *slide,
            slides: size / slide,
            global: *global,
        },
        Node::Merge {
            size: None,
            slide,
            keys,
            calls,
            global,
            ..
        } => Operation::MergeUnbounded {
            keys: *keys,
            calls: calls.clone(),
            slide: *slide,
            global: *global,
        },
        Node::Over { by, calls, .. } => Operation::Over {
            by: by.clone(),
            calls: calls.clone(),
        },
        Node::Match { by, .. } => Operation::Match(by.clone()),
        Node::Correlate { by, .. } => Operation::Correlate(by.clone()),
        Node::Distinct { .. } => Operation::Distinct,
        Node::SetOp {
            op: SetOp::Union,
            all: true,
            ..
        } => Operation::UnionAll,
        Node::SetOp { op, all, .. } => Operation::SetOperation { op: *op, all: *all },
        Node::Order {
            input,
            by,
            limit,
            offset,
        } => Operation::Top {
            by: by.clone(),
            limit: *limit,
            offset: *offset,
            append_only: input.is_append_only(),
        },
        Node::ToStream { kind, .. } => match kind {
            ToStream::Istream => Operation::Insertions,
            ToStream::Dstream => Operation::Retractions,
            ToStream::Rstream { every: Some(every) } => Operation::SnapshotsEvery(*every),
            ToStream::Rstream { every: None } => unreachable!("`on_arrival` handles it"),
        },
        Node::Join(_) => unreachable!("`own_windows` handles it"),
        Node::Partial { .. } => unreachable!("`tumbling` handles it"),
    };
    Some(Choice {
        operation,
        inputs: plan.inputs().into_iter().cloned().collect(),
    })
}
