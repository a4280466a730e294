//! [`Fold`]: a group-by over a stream that its source computes, and [`Folded`], its result.
//!
//! A source need not fold every row: a row that exceeds its capacity, or that it cannot assign to a
//! group, is delivered as a row. So an interval's result is that of its rows and its folded groups
//! together, each request in exactly one of the two.

use crate::{Column, Nanos};

/// Rows grouped by `keys` over `[Range interval Slide interval]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fold {
    /// An interval ends at each multiple of this, and includes the rows after the previous
    /// multiple.
    pub interval: Nanos,
    /// Columns of the stream, by position.
    pub keys: Vec<usize>,
    /// The values kept for each group. The first one counts all rows.
    pub calls: Vec<FoldCall>,
}

/// A value kept for a group's rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FoldCall {
    /// The column, by position; rows where it is NULL do not count. `None`: all rows count.
    pub column: Option<usize>,
    /// The kind of value.
    pub keep: PartialKind,
}

/// The kinds of values kept for a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PartialKind {
    /// Count, sum, minimum and maximum.
    Moments,
    /// The counts of values up to each of these ascending limits and above the previous one; the
    /// last count is of those above all limits.
    Limits(Vec<i64>),
    /// Counts in bins of equal relative width, 2^`bits` to a power of two, numbered as in
    /// `weir_sketch::LogLinear`, each with the sum of the offsets of its values in the bin.
    LogLinear {
        /// Bins per power of two, as a power of two.
        bits: u32,
    },
}

/// Groups that a source folded.
#[derive(Clone, Debug)]
pub struct Folded {
    /// The end of the interval.
    pub end: Nanos,
    /// The groups' keys, in the order of [`Fold::keys`]. A group may occur more than once.
    pub keys: Vec<Column>,
    /// By call as in [`Fold::calls`], then by group.
    pub kept: Vec<Vec<PartialState>>,
}

impl Folded {
    /// The number of requests in the groups, from a fold's first call.
    pub fn requests(&self) -> u64 {
        let counts = self.kept.first().into_iter().flatten();
        let count = |kept: &PartialState| match kept {
            PartialState::Moments { count, .. } => *count,
            PartialState::Limits(_) | PartialState::LogLinear(_) => 0,
        };
        counts.map(count).sum()
    }

    /// The number of groups.
    pub fn groups(&self) -> usize {
        self.kept.first().map_or(0, Vec::len)
    }
}

/// The values kept for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartialState {
    /// [`PartialKind::Moments`]
    Moments {
        /// The number of values.
        count: u64,
        /// Their sum.
        sum: i128,
        /// The minimum; undefined without values.
        min: i64,
        /// The maximum; undefined without values.
        max: i64,
    },
    /// [`PartialKind::Limits`]: one count for each limit, and the last.
    Limits(Vec<u64>),
    /// [`PartialKind::LogLinear`]: bins that are not empty, ascending: number, count, sum of
    /// offsets.
    LogLinear(Vec<(i32, u64, u64)>),
}
