//! [`Fold`]: a group-by over a stream that its source computes itself, and [`Folded`], what it gives.
//!
//! A source that is asked to fold need not fold every row: what it has no room for, or cannot tell where
//! it folds, it delivers as a row. So an interval's result is that of its rows and its folded groups
//! together, each request in exactly one of the two. Rows with negative values in what is kept are
//! among those that come as rows.

use crate::{Column, Nanos};

/// Rows grouped by `keys` over `[Range interval Slide interval]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fold {
    /// An interval ends at each multiple of this, and holds the rows after the multiple before.
    pub interval: Nanos,
    /// Columns of the stream, by position.
    pub keys: Vec<usize>,
    /// What is kept of each group. The first one counts all rows.
    pub calls: Vec<FoldCall>,
}

/// Something kept of a group's rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FoldCall {
    /// The column it is of, by position; rows where that is NULL do not count. `None`: all rows count.
    pub column: Option<usize>,
    /// What is kept.
    pub keep: Keep,
}

/// What is kept of a group's values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// How many, their sum, the least and the greatest.
    Moments,
    /// How many lie under each of these ascending limits and above the one before, and last above all.
    Limits(Vec<i64>),
    /// Counts in bins of equal relative width, 2^`bits` to a power of two, numbered as in
    /// `weir_sketch::LogLinear`, each with how far its values lie in it added up.
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
    /// The groups' keys, as [`Fold::keys`] orders them. A group may occur more than once.
    pub keys: Vec<Column>,
    /// By call as in [`Fold::calls`], then by group.
    pub kept: Vec<Vec<Kept>>,
}

impl Folded {
    /// How many requests the groups stand for, which a fold's first call counts.
    pub fn requests(&self) -> u64 {
        let counts = self.kept.first().into_iter().flatten();
        let count = |kept: &Kept| match kept {
            Kept::Moments { count, .. } => *count,
            Kept::Limits(_) | Kept::LogLinear(_) => 0,
        };
        counts.map(count).sum()
    }

    /// How many groups there are.
    pub fn groups(&self) -> usize {
        self.kept.first().map_or(0, Vec::len)
    }
}

/// What was kept of a group's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// [`Keep::Moments`]
    Moments {
        /// How many.
        count: u64,
        /// Their sum.
        sum: i128,
        /// The least; of no meaning without values.
        min: i64,
        /// The greatest; likewise.
        max: i64,
    },
    /// [`Keep::Limits`]: one count a limit, and the last.
    Limits(Vec<u64>),
    /// [`Keep::LogLinear`]: bins that are not empty, ascending: number, count, sum of offsets.
    LogLinear(Vec<(i32, u64, u64)>),
}
