//! [`Operator`]: what every operator of a running query can do, and how each plan node becomes one.

use weir_model::{Batch, Folded};

use super::aggregate::{Aggregate, Growing, Tumbling, own_interval};
use super::consolidate::is_net;
use super::join::Join;
use super::order::Order;
use super::project::Project;
use super::select::Select;
use super::set_op::{Combine, UnionAll};
use super::to_stream::{Changes, Content};
use super::window::window;
use crate::function::EvalError;
use crate::place::fold::reading;
use crate::plan::{Node, Plan, SetOp, ToStream};

/// The instants a step covers, and what it may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Everything up to and including this instant is done.
    pub after: i64,
    /// The last instant of the step.
    pub upto: i64,
    /// Most bytes that the results of one operator may take.
    pub bytes_max: usize,
}

/// The rows that a first-in-first-out window holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    /// Arrived, but not yet in the relation (they wait for a multiple of the slide).
    pub pending: usize,
    /// In the relation.
    pub inside: usize,
}

/// An operator with its state.
pub(super) trait Operator: Send {
    /// Takes the inputs' deltas at the instants of `span`, all of them and in time order, and gives
    /// its own.
    ///
    /// # Errors
    /// When a value cannot be computed; the operator is not used again.
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError>;

    /// Takes groups that the source at `input` folded; they are of intervals that end in the next
    /// step. Operators that do not look at groups leave them alone.
    fn take_folded(&mut self, input: usize, folded: &[Folded]) {
        let _ = (input, folded);
    }

    /// The last instant up to which `span` may go without more than about `rows_max` rows coming
    /// out by time alone.
    fn reach(&self, span: Span, rows_max: usize) -> i64 {
        let _ = rows_max;
        span.upto
    }

    /// What a first-in-first-out window holds, so that a query that comes later can share it.
    fn held(&self) -> Held {
        Held::default()
    }

    /// About how many bytes its state takes.
    fn bytes(&self) -> usize;
}

/// The operator of a plan node that is neither a source nor without effect.
///
/// `wanted` are the columns of its result that anyone looks at, ascending; the others may be NULL.
/// Without, all are. What was up to instant `after` is too old for whoever asks.
pub(super) fn operator(plan: &Plan, wanted: Option<&[usize]>, after: i64) -> Box<dyn Operator> {
    match &plan.node {
        Node::Source(_) => unreachable!("a source is read, not computed"),
        Node::Window {
            input,
            window: which,
        } => window(which, &input.schema, after).expect("a window without effect is no operator"),
        Node::Select { predicate, .. } => Box::new(Select::new(predicate.clone())),
        Node::Project { exprs, .. } => Box::new(Project::new(exprs.clone())),
        Node::ToStream { input, kind } => match kind {
            ToStream::Istream => Box::new(Changes::new(1, &input.schema, is_net(input))),
            ToStream::Dstream => Box::new(Changes::new(-1, &input.schema, is_net(input))),
            ToStream::Rstream { every: Some(every) } => {
                Box::new(Content::every(*every, &input.schema, is_net(input)))
            }
            ToStream::Rstream { every: None } => {
                Box::new(Content::at_arrivals(input, is_net(input)))
            }
        },
        Node::Join {
            left,
            right,
            kind,
            on,
            residual,
        } => Box::new(Join::new(
            [left, right],
            *kind,
            on,
            residual.as_ref(),
            wanted,
        )),
        Node::Aggregate { input, keys, calls } => match (reading(plan), own_interval(input)) {
            (Some(reading), _) => Box::new(Tumbling::of_groups(keys, calls, reading, &plan.schema)),
            (None, Some((_, interval))) => {
                Box::new(Tumbling::new(keys, calls, interval, &plan.schema))
            }
            (None, None) => Box::new(Aggregate::new(keys, calls, input.is_growing())),
        },
        Node::Partial {
            slide, keys, calls, ..
        } => Box::new(match reading(plan) {
            Some(reading) => Tumbling::of_groups(keys, calls, reading, &plan.schema).partials(),
            None => Tumbling::new(keys, calls, *slide, &plan.schema).partials(),
        }),
        Node::Merge {
            input,
            size,
            slide,
            keys,
            calls,
        } => match size {
            Some(size) => {
                let window = (*slide, size / slide);
                let (from, to) = (&input.schema, &plan.schema);
                Box::new(Tumbling::merged(from, *keys, calls, window, to))
            }
            None => {
                let (from, to) = (&input.schema, &plan.schema);
                Box::new(Growing::new(from, *keys, calls, *slide, to))
            }
        },
        Node::Distinct { input } => Box::new(Aggregate::distinct(&input.schema)),
        Node::SetOp {
            op: SetOp::Union,
            all: true,
            ..
        } => Box::new(UnionAll),
        Node::SetOp { left, op, all, .. } => Box::new(Combine::new(*op, *all, &left.schema)),
        Node::Order {
            input,
            by,
            limit,
            offset,
        } => Box::new(Order::new(by, *limit, *offset, &input.schema)),
    }
}
