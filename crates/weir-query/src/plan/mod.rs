//! [`Plan`]: a checked query, as a tree of relational operators over streams and relations.
//!
//! A plan is plain data. Equal plans compute the same result, by which the engine shares operators
//! between queries. Every node has its schema, units included, and is a stream or a relation.

mod build;
mod correlation;
mod display;
mod memory;
pub mod over;
mod print;
mod renamed;
mod restricted;
pub mod row_match;
mod slides;
mod validate;
pub mod wire;

use std::sync::Arc;

pub use correlation::Correlation;
pub use over::{OverCall, Partitioning};
pub use print::show;
pub use renamed::renamed;
pub use restricted::{has_vm, restricted};
pub use row_match::RowMatch;
pub use slides::OpenSlide;
pub(crate) use slides::{greatest_common_divisor, sliding_windows};

pub use crate::window::{PANES_MAX, Window};

use serde::{Deserialize, Serialize};
use weir_model::{Declaration, Schema, Shape};

use crate::expr::Expr;
use crate::function::AggregateCall;

/// A node of a checked query and its inputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The operation.
    pub node: Node,
    /// Its columns.
    pub schema: Arc<Schema>,
    /// Stream or relation.
    pub shape: Shape,
}

/// The operation of a plan node, serialised without its inputs. Instants and durations are in the
/// time unit of the sources (nanoseconds, or a script's ticks).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Node {
    /// A source of the catalog, all of its columns.
    Source(Declaration),
    /// A window over a stream: a relation.
    ///
    /// On a relation only [`Window::Unbounded`] without slide is possible, and changes nothing:
    /// that is what STREAM does with a relation-valued query registered as a stream. The checker
    /// puts [`ToStream::Istream`] under any other window.
    Window {
        /// A stream.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// The window.
        window: Window,
    },
    /// The rows for which `predicate` is true (not NULL).
    Select {
        /// A stream or relation.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// A boolean.
        predicate: Expr,
    },
    /// Computed columns, which the schema names.
    Project {
        /// A stream or relation.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// One for each column of the schema.
        exprs: Vec<Expr>,
    },
    /// Pairs of rows that satisfy the condition.
    ///
    /// The schema is the left columns, then the right ones; for [`JoinKind::Semi`] and
    /// [`JoinKind::Anti`] the left ones only.
    Join(JoinNode),
    /// One row per group: the keys, then the aggregates. Without keys there is one row.
    Aggregate {
        /// A relation.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// The grouping expressions; NULLs are one group.
        keys: Vec<Expr>,
        /// The aggregates.
        calls: Vec<AggregateCall>,
        /// Since when the row of an aggregation without keys exists.
        global: GlobalGroup,
    },
    /// The partial aggregates of an aggregation over `[Range .. Slide slide]`, emitted once a
    /// slide: a stream. At each multiple τ of `slide` there is a row for each group that had rows
    /// in (τ - slide, τ]: its keys, then a state ([`Type::Partial`](weir_model::Type)) for each of
    /// `calls` that has one of its own ([`Shared`](crate::function::Shared)), and last the number
    /// of its requests, so that the loss of a row can be counted in requests.
    ///
    /// All calls split, and none is `DISTINCT`.
    Partial {
        /// A stream.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// How often groups are emitted.
        slide: i64,
        /// The grouping expressions; NULLs are one group.
        keys: Vec<Expr>,
        /// The aggregates.
        calls: Vec<AggregateCall>,
    },
    /// Merges the rows of [`Node::Partial`]s of the same keys, calls and slide, of one or of
    /// several engines. The result is exactly that of [`Node::Aggregate`] over the window of all
    /// their rows.
    Merge {
        /// A stream of such rows.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// The size of the window, a multiple of `slide`; `None` is unbounded.
        size: Option<i64>,
        /// How often the result changes.
        slide: i64,
        /// How many of the input's columns, the first ones, are keys.
        keys: usize,
        /// The aggregates. Arguments refer to the columns of the stream that the partials are of:
        /// here they only determine types, constants, and which calls share a state.
        calls: Vec<AggregateCall>,
        /// As in [`Node::Aggregate`].
        global: GlobalGroup,
    },
    /// The rows, each with the results of window functions: the columns of the input, then one for
    /// each of `calls`.
    Over {
        /// A relation.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// Partitions and their order.
        by: Partitioning,
        /// The window functions.
        calls: Vec<OverCall>,
    },
    /// The matches of a pattern in the rows of a stream: a stream of the keys and then the results
    /// of each match, at the instant at which it is complete.
    Match {
        /// A stream.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// The pattern and the results.
        by: Box<RowMatch>,
    },
    /// The pairs of disks that correlate: a stream of those of the windows that end at the instant
    /// of a step.
    Correlate {
        /// The load of each disk in each step: the stream of
        /// [`disk_load::query`](crate::disk_load::query), with hosts.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// What is compared.
        by: Correlation,
    },
    /// Each distinct row once.
    Distinct {
        /// A relation.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
    },
    /// A set operation on two relations of the same types; names come from the left.
    SetOp {
        /// A relation.
        #[serde(skip, default = "unread")]
        left: Arc<Plan>,
        /// A relation.
        #[serde(skip, default = "unread")]
        right: Arc<Plan>,
        /// The operation.
        op: SetOp,
        /// Bags (multiplicities count) instead of sets.
        all: bool,
    },
    /// The first rows in an order. Without `limit` the relation is the input's; the order only
    /// affects how it is shown.
    Order {
        /// A relation.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// The sort keys, most significant first.
        by: Vec<OrderBy>,
        /// The maximum number of rows.
        limit: Option<u64>,
        /// The number of rows to skip.
        offset: u64,
    },
    /// A relation turned into a stream.
    ToStream {
        /// A relation.
        #[serde(skip, default = "unread")]
        input: Arc<Plan>,
        /// The operation.
        kind: ToStream,
    },
}

/// The input of a node that was read without its inputs.
fn unread() -> Arc<Plan> {
    let nothing = Declaration::new("", Shape::Stream, Schema::default());
    Plan::source(nothing)
}

/// From when on the one row of an aggregation without keys exists. With keys it has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GlobalGroup {
    /// From the start of the query, also over no rows, as in SQL.
    FromStart,
    /// From the first row of its input, as in STREAM.
    FromFirstRow,
}

impl GlobalGroup {
    /// The value for an aggregation with this number of keys: where it has no effect, one value
    /// represents both, so that equivalent plans are equal.
    pub(crate) fn over(self, keys: usize) -> GlobalGroup {
        match keys {
            0 => self,
            _ => GlobalGroup::FromFirstRow,
        }
    }
}

/// How a join treats rows without partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JoinKind {
    /// They are dropped.
    Inner,
    /// Left ones are kept, with NULLs on the right.
    Left,
    /// Right ones are kept, with NULLs on the left.
    Right,
    /// Both are kept.
    Full,
    /// Left rows that have a partner, once each (`IN`, `EXISTS`).
    Semi,
    /// Left rows that have none (`NOT EXISTS`).
    Anti,
    /// `x NOT IN (...)`: left rows for which the test is true in SQL's logic. None when the right
    /// side contains a NULL key, all when it is empty, and otherwise never one whose own key is
    /// NULL.
    NotIn,
}

/// A set operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SetOp {
    /// Rows of either.
    Union,
    /// Rows of both.
    Intersect,
    /// Rows of the left without those of the right.
    Except,
}

/// One key of ORDER BY.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OrderBy {
    /// The expression, over the input's columns.
    pub expr: Expr,
    /// Whether the greatest value is first.
    pub descending: bool,
    /// NULLs before all values, in either direction.
    pub nulls_first: bool,
}

/// How a relation becomes a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToStream {
    /// The net insertions at τ.
    Istream,
    /// The net retractions at τ.
    Dstream,
    /// All of it, at every instant at which a row of a source entered or the relation changed; or,
    /// with `every`, at each multiple of that. Through a window with a slide, rows enter at its
    /// multiples.
    Rstream {
        /// The interval.
        every: Option<i64>,
    },
}

/// A join; see [`Node::Join`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JoinNode {
    /// A relation.
    #[serde(skip, default = "unread")]
    pub left: Arc<Plan>,
    /// A relation.
    #[serde(skip, default = "unread")]
    pub right: Arc<Plan>,
    /// How rows without partner are treated.
    pub kind: JoinKind,
    /// Pairs of expressions, over the left and over the right columns, that must be equal (NULL
    /// equals nothing).
    pub on: Vec<(Expr, Expr)>,
    /// A further condition over the left columns followed by the right ones.
    pub residual: Option<Expr>,
}

impl Plan {
    /// The inputs.
    pub fn inputs(&self) -> Vec<&Arc<Plan>> {
        match &self.node {
            Node::Source(_) => vec![],
            Node::Window { input, .. }
            | Node::Select { input, .. }
            | Node::Project { input, .. }
            | Node::Aggregate { input, .. }
            | Node::Partial { input, .. }
            | Node::Merge { input, .. }
            | Node::Over { input, .. }
            | Node::Match { input, .. }
            | Node::Correlate { input, .. }
            | Node::Distinct { input }
            | Node::Order { input, .. }
            | Node::ToStream { input, .. } => vec![input],
            Node::Join(JoinNode { left, right, .. }) | Node::SetOp { left, right, .. } => {
                vec![left, right]
            }
        }
    }

    /// Its parts, if it is a join.
    pub fn as_join(&self) -> Option<&JoinNode> {
        match &self.node {
            Node::Join(join) => Some(join),
            _ => None,
        }
    }

    /// The names of the sources it reads, each once, in order of first use.
    pub fn sources(&self) -> Vec<&Declaration> {
        let mut found: Vec<&Declaration> = Vec::new();
        self.visit_sources(&mut |d| {
            if !found.iter().any(|f| f.name == d.name) {
                found.push(d);
            }
        });
        found
    }

    pub(crate) fn visit_sources<'a>(&'a self, visit: &mut impl FnMut(&'a Declaration)) {
        if let Node::Source(declaration) = &self.node {
            visit(declaration);
        }
        for input in self.inputs() {
            input.visit_sources(visit);
        }
    }
}
