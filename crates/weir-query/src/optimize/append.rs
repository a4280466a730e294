//! The stream of insertions into a relation to which rows are only added is the stream that the
//! relation was made of.
//!
//! `Istream(select .. from S where ..)` needs no memory of S, nor does `Rstream(select .. from S
//! [Now] where ..)`, which emits at every instant the rows of that instant (STREAM 0.6 rewrites it
//! in the same way, see its `cql-queries`).

use std::sync::Arc;

use weir_model::Shape;

use crate::plan::{Node, Plan, ToStream, Window};

/// Applies the rule everywhere.
pub fn apply(plan: &Arc<Plan>) -> Arc<Plan> {
    super::bottom_up(plan, &|plan| {
        let stream = match &plan.node {
            Node::ToStream {
                input,
                kind: ToStream::Istream,
            } => input.as_stream(),
            Node::ToStream {
                input,
                kind: ToStream::Rstream { every: None },
            } => of_now(input),
            _ => None,
        };
        stream.unwrap_or(plan)
    })
}

/// Selections and projections of the rows of one instant, as a stream.
fn of_now(plan: &Arc<Plan>) -> Option<Arc<Plan>> {
    match &plan.node {
        Node::Window {
            input,
            window: Window::Now(_),
        } if input.shape == Shape::Stream => Some(input.clone()),
        Node::Select { input, .. } | Node::Project { input, .. } => {
            Some(plan.with_inputs(vec![of_now(input)?]))
        }
        _ => None,
    }
}
