//! [`Grouping`]: ROLLUP, CUBE and GROUPING SETS.

/// By which keys of GROUP BY the rows are grouped.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Grouping {
    /// By all.
    #[default]
    All,
    /// `ROLLUP (a, b)`: by all, by all but the last, and so on to none.
    Rollup,
    /// `CUBE (a, b)`: by each subset.
    Cube,
    /// `GROUPING SETS ((a, b), a, ())`: by these, as positions of keys.
    Sets(Vec<Vec<usize>>),
}

impl Grouping {
    /// The sets of this number of keys, at most one more than [`SETS_MAX`] of a ROLLUP or CUBE;
    /// `None` of a plain GROUP BY.
    pub fn sets(&self, keys: usize) -> Option<Vec<Vec<usize>>> {
        match self {
            Grouping::All => None,
            Grouping::Rollup => {
                let sets = (0..=keys).rev().map(|n| (0..n).collect());
                Some(sets.take(SETS_MAX + 1).collect())
            }
            Grouping::Cube => {
                let left_out = |sets: u32, i: usize| sets.checked_shr(i as u32).unwrap_or(0) & 1;
                let subset = |sets: u32| (0..keys).filter(|i| left_out(sets, *i) == 0).collect();
                let subsets = 1_u32.checked_shl(keys as u32).unwrap_or(u32::MAX);
                Some((0..subsets).take(SETS_MAX + 1).map(subset).collect())
            }
            Grouping::Sets(sets) => Some(sets.clone()),
        }
    }
}

/// Maximum number of grouping sets of a block.
pub const SETS_MAX: usize = 64;
