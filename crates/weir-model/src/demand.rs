//! [`Demand`]: the columns and rows that the running queries need of a source; nothing else is
//! produced.
//!
//! The planner (`weir-query`) derives it, the tap (`weir-tap`) applies it; neither depends on the
//! other.

use crate::spread::spread;
use crate::{Declaration, Fold, Symbol};

/// The demand for one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The stream: `IO`, `IOstream` or another of the catalog.
    pub stream: String,
    /// Positions of the columns in use, ascending.
    pub columns: Vec<usize>,
    /// The demanded rows. The tap may deliver more: the engine tests again unless the selection is
    /// exact.
    pub predicate: Predicate,
    /// The groups that may be delivered in place of the rows: the source may fold some rows and
    /// deliver others, but never both for the same row. With a fold the predicate is exact: only
    /// rows for which it holds are demanded.
    pub fold: Option<Fold>,
}

/// A selection that a source can test: any of the clauses holds. Without clauses no row is
/// demanded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Predicate {
    /// The alternatives; a clause without tests is always true.
    pub clauses: Vec<Clause>,
}

/// All of the tests hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Clause {
    /// The tests.
    pub tests: Vec<Test>,
}

/// One test; a row where the operand is NULL does not pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// `low <= operand <= high`.
    Between {
        /// A number.
        operand: Operand,
        /// The lowest value that passes.
        low: i64,
        /// The highest value that passes.
        high: i64,
    },
    /// The operand is one of these.
    In {
        /// A text.
        operand: Operand,
        /// The texts that pass.
        texts: Vec<Symbol>,
    },
}

/// The tested value of a row. Columns are those of the demand's stream, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The value of a column.
    Value(usize),
    /// The number by which rows are sampled by an integer column; see [`spread`].
    Sample(usize),
}

impl Operand {
    /// The column.
    pub fn column(self) -> usize {
        match self {
            Operand::Value(column) | Operand::Sample(column) => column,
        }
    }

    /// The tested number for the column's number.
    pub fn of(self, number: i64) -> i64 {
        match self {
            Operand::Value(_) => number,
            Operand::Sample(_) => spread(number),
        }
    }
}

impl Test {
    /// The operand.
    pub fn operand(&self) -> Operand {
        match self {
            Test::Between { operand, .. } | Test::In { operand, .. } => *operand,
        }
    }
}

impl Predicate {
    /// Every row.
    pub fn all() -> Predicate {
        Predicate {
            clauses: vec![Clause::default()],
        }
    }

    /// No row.
    pub fn none() -> Predicate {
        Predicate {
            clauses: Vec::new(),
        }
    }

    /// True when every row passes.
    pub fn is_all(&self) -> bool {
        self.clauses.iter().any(|c| c.tests.is_empty())
    }

    /// Rows that pass any of the two.
    pub fn or(self, other: Predicate) -> Predicate {
        if self.is_all() || other.is_all() {
            return Predicate::all();
        }
        let mut clauses = self.clauses;
        for clause in other.clauses {
            if !clauses.contains(&clause) {
                clauses.push(clause);
            }
        }
        Predicate { clauses }
    }

    /// Rows that pass both.
    pub fn and(self, other: Predicate) -> Predicate {
        let both = |a: &Clause, b: &Clause| Clause {
            tests: [a.tests.clone(), b.tests.clone()].concat(),
        };
        let clauses = self
            .clauses
            .iter()
            .flat_map(|a| other.clauses.iter().map(move |b| both(a, b)))
            .collect();
        Predicate { clauses }
    }
}

impl Demand {
    /// Every row and column of a stream or relation.
    pub fn whole(source: &Declaration) -> Demand {
        Demand {
            stream: source.name.clone(),
            columns: (0..source.schema.len()).collect(),
            predicate: Predicate::all(),
            fold: None,
        }
    }

    /// The demand that includes both.
    ///
    /// # Panics
    /// When the streams or the folds differ.
    pub fn or(self, other: Demand) -> Demand {
        assert_eq!(self.stream, other.stream, "demands of one stream");
        assert_eq!(self.fold, other.fold, "a fold is of exact rows");
        let mut columns = [self.columns, other.columns].concat();
        columns.sort_unstable();
        columns.dedup();
        Demand {
            stream: self.stream,
            columns,
            predicate: self.predicate.or(other.predicate),
            fold: self.fold,
        }
    }
}
