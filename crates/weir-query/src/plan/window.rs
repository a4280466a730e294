//! [`Window`]: which rows of a stream a relation contains, and the properties that planning uses.

use crate::expr::Expr;

/// Which rows of a stream are in the relation at instant τ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// Those at τ.
    Now,
    /// Those in (τ - size, τ]; with a slide S, τ rounded down to a multiple of S stands for τ.
    Range {
        /// The length.
        size: i64,
        /// The relation changes only at multiples of this.
        slide: Option<i64>,
    },
    /// Those that have arrived by τ and whose `origin`, an instant not after their own, is in
    /// (τ - size, τ]; a row whose origin is NULL is in none. With a slide S, τ rounded down to a
    /// multiple of S stands for τ. A query receives no row whose origin is not after its own start.
    ///
    /// It has no syntax in CQL: it is what remains of a join of requests with their responses.
    Since {
        /// An integer or a time.
        origin: Expr,
        /// The length; `None` is unbounded.
        size: Option<i64>,
        /// The relation changes only at multiples of this.
        slide: Option<i64>,
    },
    /// The last `rows`, ties broken by arrival.
    Rows {
        /// The number of rows, at least 1.
        rows: u64,
    },
    /// The last `rows` of each key.
    Partition {
        /// The partitioning expressions; NULLs are one key.
        keys: Vec<Expr>,
        /// The number of rows, at least 1.
        rows: u64,
    },
    /// All so far; with a slide S, all up to τ rounded down to a multiple of S.
    Unbounded {
        /// The relation changes only at multiples of this.
        slide: Option<i64>,
    },
}

impl Window {
    /// The slide, where the relation changes only at multiples of one.
    pub fn slide(&self) -> Option<i64> {
        match self {
            Window::Range { slide, .. }
            | Window::Since { slide, .. }
            | Window::Unbounded { slide } => *slide,
            Window::Now | Window::Rows { .. } | Window::Partition { .. } => None,
        }
    }

    /// Whether rows leave in the order in which they entered.
    pub fn is_fifo(&self) -> bool {
        !matches!(self, Window::Partition { .. } | Window::Since { .. })
    }

    /// The memory of the window: its content after τ depends only on rows after τ minus this.
    /// `None` where there is no such bound.
    pub fn memory(&self) -> Option<i64> {
        match self {
            // Its content at an instant leaves at the next.
            Window::Now => Some(1),
            // A row of `Since` does not arrive before its origin, by which it leaves.
            Window::Range { size, slide }
            | Window::Since {
                size: Some(size),
                slide,
                ..
            } => Some(size.saturating_add(slide.unwrap_or(0))),
            Window::Since { size: None, .. }
            | Window::Rows { .. }
            | Window::Partition { .. }
            | Window::Unbounded { .. } => None,
        }
    }

    /// The expressions over a row that determine when it enters or leaves.
    pub fn exprs(&self) -> &[Expr] {
        match self {
            Window::Since { origin, .. } => std::slice::from_ref(origin),
            Window::Partition { keys, .. } => keys,
            Window::Now | Window::Range { .. } | Window::Rows { .. } | Window::Unbounded { .. } => {
                &[]
            }
        }
    }

    /// Whether one row never makes another leave, so that rows can be dropped before the window.
    pub fn is_per_row(&self) -> bool {
        !matches!(self, Window::Rows { .. } | Window::Partition { .. })
    }
}
