//! The physical plan: which operator runs each node of a plan, chosen once by ordered [`RULES`].
//!
//! A logical plan ([`Plan`]) states what a query computes. Several nodes of it may become one
//! operator, and nodes without effect become none. The engine builds its operators from the
//! physical plan alone and never looks at a node's logical neighbours.

mod group;
mod join;
mod last;
mod plain;
mod print;
mod snapshot;

use std::sync::Arc;

use weir_model::{Declaration, Shape};

pub use self::last::final_content;

use crate::expr::Expr;
use crate::function::AggregateCall;
pub use crate::place::fold::{FoldArgument, FoldedInput, ValueLocation};
use crate::plan::{
    Correlation, GlobalGroup, JoinKind, Node, OrderBy, OverCall, Partitioning, Plan, RowMatch,
    SetOp, Window,
};
use crate::window::{Entrance, Unbounded};

/// An operator of the physical plan, and the operators that it reads.
#[derive(Debug)]
pub struct Physical {
    /// The logical node whose deltas the operator emits. Operators of equal logical plans are
    /// equal.
    pub logical: Arc<Plan>,
    /// What the operator does.
    pub operation: Operation,
    /// The operators that it reads.
    pub inputs: Vec<Arc<Physical>>,
    /// Which queries can share the operator.
    pub sharing: Sharing,
    /// Whether no two deltas of one instant cancel.
    pub is_net: bool,
}

/// What an operator does. Instants and intervals are in the time unit of the sources.
#[derive(Debug)]
pub enum Operation {
    /// Reads a source.
    Source(Declaration),
    /// Keeps the rows of a window and emits their insertions and retractions.
    Window(Window),
    /// Passes the rows for which the predicate is true.
    Filter(Expr),
    /// Computes columns.
    Project(Vec<Expr>),
    /// Joins by hash tables on both sides.
    Join {
        /// What happens to rows without a partner.
        kind: JoinKind,
        /// Expressions over the left and the right columns that must be equal.
        on: Vec<(Expr, Expr)>,
        /// A further condition over the left columns followed by the right ones.
        residual: Option<Expr>,
        /// Per side the size of a window that the join keeps itself: the input is the window's
        /// stream then.
        windows: [Option<i64>; 2],
    },
    /// Groups a relation; rows may be retracted unless the input is append-only.
    Group {
        /// The grouping expressions.
        keys: Vec<Expr>,
        /// The aggregates.
        calls: Vec<AggregateCall>,
        /// Whether no row of the input is ever retracted.
        append_only: bool,
        /// Since when the one row of an aggregation without keys exists.
        global: GlobalGroup,
    },
    /// Groups append-only input, and emits the groups once, at the end.
    FinalGroup {
        /// The grouping expressions.
        keys: Vec<Expr>,
        /// The aggregates.
        calls: Vec<AggregateCall>,
        /// Since when the one row of an aggregation without keys exists.
        global: GlobalGroup,
    },
    /// Groups each interval of a stream, without keeping rows.
    TumblingGroup {
        /// The grouping expressions.
        keys: Vec<Expr>,
        /// The aggregates.
        calls: Vec<AggregateCall>,
        /// The length of an interval.
        interval: i64,
        /// How to read groups that the source made; then the second input is that source.
        preaggregated: Option<FoldedInput>,
        /// Since when the one row of an aggregation without keys exists; `None` where partial
        /// aggregates are emitted for another engine instead of results.
        global: Option<GlobalGroup>,
    },
    /// Merges partial aggregates into those of windows.
    MergeWindows {
        /// How many of the input's columns, the first ones, are keys.
        keys: usize,
        /// The aggregates.
        calls: Vec<AggregateCall>,
        /// How often the result changes.
        slide: i64,
        /// How many slides a window has.
        slides: i64,
        /// Since when the one row of an aggregation without keys exists.
        global: GlobalGroup,
    },
    /// Merges partial aggregates of everything so far.
    MergeUnbounded {
        /// How many of the input's columns, the first ones, are keys.
        keys: usize,
        /// The aggregates.
        calls: Vec<AggregateCall>,
        /// How often the result changes.
        slide: i64,
        /// Since when the one row of an aggregation without keys exists.
        global: GlobalGroup,
    },
    /// Emits each row with the results of window functions.
    Over {
        /// Partitions and their order.
        by: Partitioning,
        /// The window functions.
        calls: Vec<OverCall>,
    },
    /// Emits the matches of a pattern.
    Match(Box<RowMatch>),
    /// Emits the pairs of disks that correlate.
    Correlate(Correlation),
    /// Emits each distinct row once.
    Distinct,
    /// Passes the rows of both inputs.
    UnionAll,
    /// Combines two relations.
    SetOperation {
        /// Union, intersection or difference.
        op: SetOp,
        /// Whether multiplicities count.
        all: bool,
    },
    /// Keeps the first rows in an order.
    Top {
        /// The sort keys, most significant first.
        by: Vec<OrderBy>,
        /// The maximum number of rows.
        limit: Option<u64>,
        /// The number of rows to skip.
        offset: u64,
        /// Whether no row of the input is ever retracted: then only the first rows are kept.
        append_only: bool,
    },
    /// `Istream`: the net insertions.
    Insertions,
    /// `Dstream`: the net retractions.
    Retractions,
    /// `Rstream .. EVERY d`: the relation at each multiple of an interval.
    SnapshotsEvery(i64),
    /// `Rstream`: the relation whenever it changes or a row enters it. Inputs after the first are
    /// the sources below, each with the entrances of the windows on the way, innermost first.
    SnapshotsOnArrival(Vec<Vec<Entrance>>),
}

/// Which queries can share an operator. Queries that start at the same time share any operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// All: it keeps no state and cannot fail.
    Stateless,
    /// All: rows leave in the order in which they entered, so older rows can be skipped.
    FifoWindow,
    /// All: a query receives the relation's content first.
    Relation,
    /// Only queries that start at the same time.
    SameStart,
}

/// The operation for a logical node, and the plans that it reads.
struct Choice {
    operation: Operation,
    inputs: Vec<Arc<Plan>>,
}

/// Chooses an operation for some kinds of logical nodes.
pub struct OperatorRule {
    /// Its name in tests and documentation.
    pub name: &'static str,
    choose: fn(&Arc<Plan>) -> Option<Choice>,
}

/// Every rule, in order: the first that applies to a node chooses its operation.
pub static RULES: &[OperatorRule] = &[
    OperatorRule {
        name: "groups that the source made",
        choose: group::preaggregated,
    },
    OperatorRule {
        name: "groups of one interval at a time",
        choose: group::tumbling,
    },
    OperatorRule {
        name: "joins that keep their windows",
        choose: join::own_windows,
    },
    OperatorRule {
        name: "snapshots on arrival",
        choose: snapshot::on_arrival,
    },
    OperatorRule {
        name: "one operator per node",
        choose: plain::operator,
    },
];

/// The operators that run `plan`.
pub fn physical(plan: &Arc<Plan>) -> Arc<Physical> {
    let logical = with_effect(plan);
    let choice = RULES.iter().find_map(|rule| (rule.choose)(logical));
    let Choice { operation, inputs } = choice.expect("the last rule applies to every node");
    let inputs: Vec<Arc<Physical>> = inputs.iter().map(physical).collect();
    Arc::new(Physical {
        sharing: sharing(&operation, &inputs),
        is_net: logical.shape == Shape::Stream || is_net(&operation, logical, &inputs),
        logical: logical.clone(),
        operation,
        inputs,
    })
}

/// The plan below nodes that have no effect on rows.
fn with_effect(plan: &Arc<Plan>) -> &Arc<Plan> {
    match &plan.node {
        Node::Window {
            input,
            window: Window::Unbounded(Unbounded { slide: None }),
        }
        | Node::Order {
            input,
            limit: None,
            offset: 0,
            ..
        } => with_effect(input),
        Node::Project { input, exprs } if is_identity(exprs, input.schema.len()) => {
            with_effect(input)
        }
        _ => plan,
    }
}

/// Whether these are all of `width` columns, in order.
fn is_identity(exprs: &[Expr], width: usize) -> bool {
    let mut each = exprs.iter().enumerate();
    exprs.len() == width
        && each.all(|(i, e)| matches!(e, Expr::Column { index, .. } if *index == i))
}

fn sharing(operation: &Operation, inputs: &[Arc<Physical>]) -> Sharing {
    let over_stateless = || inputs[0].sharing == Sharing::Stateless;
    match operation {
        Operation::Source(source) if source.shape == Shape::Stream => Sharing::Stateless,
        Operation::Source(_) => Sharing::Relation,
        Operation::Filter(predicate) if over_stateless() && !predicate.may_fail() => {
            Sharing::Stateless
        }
        Operation::Project(exprs) if over_stateless() && !exprs.iter().any(Expr::may_fail) => {
            Sharing::Stateless
        }
        Operation::Window(window) if over_stateless() && window.kind().is_fifo() => {
            Sharing::FifoWindow
        }
        _ => Sharing::SameStart,
    }
}

/// Whether the deltas of a relation are net by construction.
fn is_net(operation: &Operation, logical: &Plan, inputs: &[Arc<Physical>]) -> bool {
    match operation {
        Operation::Group { .. }
        | Operation::FinalGroup { .. }
        | Operation::TumblingGroup { .. }
        | Operation::MergeWindows { .. }
        | Operation::MergeUnbounded { .. }
        | Operation::Match(_)
        | Operation::Correlate(_)
        | Operation::Distinct
        | Operation::Top { .. }
        | Operation::Insertions
        | Operation::Retractions
        | Operation::SnapshotsEvery(_)
        | Operation::SnapshotsOnArrival(_) => true,
        Operation::SetOperation { all, .. } => !all,
        Operation::Filter(_) | Operation::Window(Window::Unbounded(_)) => inputs[0].is_net,
        // Rows that differ still differ when every column is kept.
        Operation::Project(exprs) => {
            let is_column = |e: &Expr, i| matches!(e, Expr::Column { index, .. } if *index == i);
            let kept = |i: usize| exprs.iter().any(|e| is_column(e, i));
            let width = logical.inputs()[0].schema.len();
            inputs[0].is_net && (0..width).all(kept)
        }
        Operation::Source(_)
        | Operation::Window(_)
        | Operation::Join { .. }
        | Operation::Over { .. }
        | Operation::UnionAll => false,
    }
}

impl Physical {
    /// The columns of its inputs that the operator reads, ascending; `None` for all.
    pub fn columns_read(&self) -> Option<Vec<usize>> {
        let (keys, calls): (&[Expr], &[AggregateCall]) = match &self.operation {
            Operation::Project(exprs) => (exprs, &[]),
            Operation::Group { keys, calls, .. }
            | Operation::FinalGroup { keys, calls, .. }
            | Operation::TumblingGroup { keys, calls, .. } => (keys, calls),
            _ => return None,
        };
        let mut read = std::collections::BTreeSet::new();
        for expr in keys.iter().chain(calls.iter().flat_map(|c| &c.args)) {
            expr.visit_columns(&mut |i| {
                read.insert(i);
            });
        }
        Some(read.into_iter().collect())
    }

    /// Whether the operator can leave out columns of its result that no reader needs.
    pub fn omits_columns(&self) -> bool {
        matches!(self.operation, Operation::Join { .. })
    }

    /// Calls `visit` with every source below, once per use.
    pub fn visit_sources(&self, visit: &mut impl FnMut(&Declaration)) {
        if let Operation::Source(declaration) = &self.operation {
            visit(declaration);
        }
        for input in &self.inputs {
            input.visit_sources(visit);
        }
    }
}
