//! [`Plan`]: a checked query, as a tree of relational operators over streams and relations.
//!
//! A plan is plain data. Two plans that are equal compute the same thing, which is how the engine
//! finds the work that queries share. Every node knows its schema, units included, and whether it
//! is a stream or a relation.

mod build;
pub mod codec;
mod memory;
mod print;
mod renamed;
mod shown;
mod slides;
mod window;

use std::sync::Arc;

pub use print::show;
pub use renamed::renamed;
pub use slides::OpenSlide;
pub use window::Window;

use weir_model::{Declaration, Schema, Shape};

use crate::expr::Expr;
use crate::function::AggregateCall;

/// Most slides that a window is put together of ([`Node::Merge`], or groups that a source adds up).
pub const PANES_MAX: i64 = 3_600;

/// A node of a checked query and all below it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// What it does.
    pub node: Node,
    /// Its columns.
    pub schema: Arc<Schema>,
    /// Stream or relation.
    pub shape: Shape,
}

/// What a plan node does. Instants and spans are in the time unit of the sources (nanoseconds, or a
/// script's ticks).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A source of the catalog, all of its columns.
    Source(Declaration),
    /// A stream seen through a window: a relation.
    ///
    /// On a relation only [`Window::Unbounded`] without slide is possible, and changes nothing:
    /// that is what STREAM does with a relation-valued query registered as a stream. The checker
    /// puts [`ToStream::Istream`] under any other window.
    Window {
        /// A stream.
        input: Arc<Plan>,
        /// Which of its rows.
        window: Window,
    },
    /// The rows for which `predicate` is true (not NULL).
    Select {
        /// A stream or relation.
        input: Arc<Plan>,
        /// A boolean.
        predicate: Expr,
    },
    /// For each row, these values. The schema names them.
    Project {
        /// A stream or relation.
        input: Arc<Plan>,
        /// One for each column of the schema.
        exprs: Vec<Expr>,
    },
    /// Pairs of rows that agree.
    ///
    /// The schema is the left columns, then the right ones; for [`JoinKind::Semi`] and
    /// [`JoinKind::Anti`] the left ones only.
    Join {
        /// A relation.
        left: Arc<Plan>,
        /// A relation.
        right: Arc<Plan>,
        /// What becomes of rows without partner.
        kind: JoinKind,
        /// Pairs of expressions, over the left and over the right columns, that must be equal (NULL
        /// equals nothing).
        on: Vec<(Expr, Expr)>,
        /// A further condition over the left columns followed by the right ones.
        residual: Option<Expr>,
    },
    /// One row per group: the keys, then the aggregates. Without keys there is one row.
    Aggregate {
        /// A relation.
        input: Arc<Plan>,
        /// What makes a group; NULLs are one group.
        keys: Vec<Expr>,
        /// What is computed of each.
        calls: Vec<AggregateCall>,
        /// Since when the row of an aggregation without keys exists.
        global: GlobalGroup,
    },
    /// What an aggregation over `[Range .. Slide slide]` needs of its stream, put together once a
    /// slide: a stream. At each multiple τ of `slide` there is a row for each group that had rows in
    /// (τ - slide, τ]: its keys, then a state ([`Type::Partial`](weir_model::Type)) for each of
    /// `calls` that has one of its own ([`Shared`](crate::function::Shared)), and last the number of
    /// requests that it was made of, so that it is known what a lost row stands for.
    ///
    /// All calls split, and none is `DISTINCT`.
    Partial {
        /// A stream.
        input: Arc<Plan>,
        /// How often groups are given.
        slide: i64,
        /// What makes a group; NULLs are one group.
        keys: Vec<Expr>,
        /// What is to be computed of each.
        calls: Vec<AggregateCall>,
    },
    /// The rows of [`Node::Partial`]s of the same keys, calls and slide, of one or of several
    /// engines, merged. Gives exactly what [`Node::Aggregate`] over the window would give of all
    /// their rows.
    Merge {
        /// A stream of such rows.
        input: Arc<Plan>,
        /// How far the window reaches back, a multiple of `slide`; without, it is unbounded.
        size: Option<i64>,
        /// How often the result changes.
        slide: i64,
        /// How many of the input's columns, the first, are keys.
        keys: usize,
        /// What is computed of each group. Arguments are over the columns of the stream that the
        /// partials are of: here they give types and constants, and which calls share a state.
        calls: Vec<AggregateCall>,
        /// As in [`Node::Aggregate`].
        global: GlobalGroup,
    },
    /// Each different row once.
    Distinct {
        /// A relation.
        input: Arc<Plan>,
    },
    /// Two relations of the same types, combined; names come from the left.
    SetOp {
        /// A relation.
        left: Arc<Plan>,
        /// A relation.
        right: Arc<Plan>,
        /// How.
        op: SetOp,
        /// Bags (multiplicities count) instead of sets.
        all: bool,
    },
    /// The first rows by an order. Without `limit` the relation is the input's; the order is for
    /// whoever shows it.
    Order {
        /// A relation.
        input: Arc<Plan>,
        /// By what, most significant first.
        by: Vec<OrderBy>,
        /// At most so many rows.
        limit: Option<u64>,
        /// After skipping so many.
        offset: u64,
    },
    /// A relation turned into a stream.
    ToStream {
        /// A relation.
        input: Arc<Plan>,
        /// Which of its changes.
        kind: ToStream,
    },
}

/// Since when the one row of an aggregation without keys exists. With keys it has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GlobalGroup {
    /// Since the query begins, also over no rows, as in SQL.
    FromStart,
    /// Since the first row of its input, as in STREAM.
    FromFirstRow,
}

impl GlobalGroup {
    /// The same for an aggregation with so many keys: where it has no effect, one value stands for
    /// both, so that equal work has equal plans.
    pub(crate) fn over(self, keys: usize) -> GlobalGroup {
        match keys {
            0 => self,
            _ => GlobalGroup::FromFirstRow,
        }
    }
}

/// What becomes of rows without partner in a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// side holds a NULL in its key, all when it is empty, and never one whose own key is NULL
    /// otherwise.
    NotIn,
}

/// How two relations are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetOp {
    /// Rows of either.
    Union,
    /// Rows of both.
    Intersect,
    /// Rows of the left without those of the right.
    Except,
}

/// One key of ORDER BY.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OrderBy {
    /// By what, over the input's columns.
    pub expr: Expr,
    /// Greatest first.
    pub descending: bool,
    /// NULLs before everything else, whatever the direction.
    pub nulls_first: bool,
}

/// Which changes of a relation make a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToStream {
    /// What came at τ, in the net.
    Istream,
    /// What went at τ, in the net.
    Dstream,
    /// All of it, at every instant at which a row of a source came in or the relation changed; or,
    /// with `every`, at each multiple of that. Through a window with a slide, rows come in at its
    /// multiples.
    Rstream {
        /// The pace.
        every: Option<i64>,
    },
}

impl Plan {
    /// The plans directly below.
    pub fn inputs(&self) -> Vec<&Arc<Plan>> {
        match &self.node {
            Node::Source(_) => vec![],
            Node::Window { input, .. }
            | Node::Select { input, .. }
            | Node::Project { input, .. }
            | Node::Aggregate { input, .. }
            | Node::Partial { input, .. }
            | Node::Merge { input, .. }
            | Node::Distinct { input }
            | Node::Order { input, .. }
            | Node::ToStream { input, .. } => vec![input],
            Node::Join { left, right, .. } | Node::SetOp { left, right, .. } => vec![left, right],
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
