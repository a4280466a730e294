//! [`Demand`]: what the running queries need of a source, so that nobody makes what nobody asked
//! for.
//!
//! The planner derives it (`weir-query`), the tap acts on it (`weir-tap`); neither knows the other.

use crate::spread::spread;
use crate::{Fold, Symbol};

/// What is wanted of one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The stream: `IO`, `IOstream` or another of the catalog.
    pub stream: String,
    /// Positions of the columns in use, ascending.
    pub columns: Vec<usize>,
    /// The rows wanted. The tap may deliver more: the engine tests again whatever was not promised
    /// to be exact.
    pub predicate: Predicate,
    /// What may come in place of the rows: the source folds them into groups, or delivers them, or
    /// does the one with some and the other with others, but never both with the same row. With a
    /// fold the predicate is exact: no row is wanted for which it does not hold.
    pub fold: Option<Fold>,
}

/// A selection that a kernel program can test: any of the clauses holds. Without clauses nothing is
/// wanted.
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

/// One test of one field; a row where the field is NULL does not pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// `low <= field <= high`.
    Between {
        /// The field.
        field: KernelField,
        /// The least value that passes.
        low: i64,
        /// The greatest value that passes.
        high: i64,
    },
    /// The field, a text, is one of these.
    In {
        /// The field.
        field: KernelField,
        /// The texts that pass.
        texts: Vec<Symbol>,
    },
}

/// A column that is known where a request is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelField {
    /// `type`, a text.
    Kind,
    /// `op`, a text.
    Op,
    /// `pdisk`, a text: the device.
    Pdisk,
    /// `sector`.
    Sector,
    /// `sectors`.
    Sectors,
    /// `pid`.
    Pid,
    /// `comm`, a text.
    Comm,
    /// `cgroup`, a text: the path.
    Cgroup,
    /// `wait`, ns.
    Wait,
    /// `service`, ns.
    Service,
    /// `latency`, ns.
    Latency,
    /// The number by which `sector` is sampled; see [`spread`].
    SectorSpread,
}

impl KernelField {
    /// Each field with the column it tests.
    pub const ALL: [(KernelField, &'static str); 12] = [
        (KernelField::Kind, "type"),
        (KernelField::Op, "op"),
        (KernelField::Pdisk, "pdisk"),
        (KernelField::Sector, "sector"),
        (KernelField::Sectors, "sectors"),
        (KernelField::Pid, "pid"),
        (KernelField::Comm, "comm"),
        (KernelField::Cgroup, "cgroup"),
        (KernelField::Wait, "wait"),
        (KernelField::Service, "service"),
        (KernelField::Latency, "latency"),
        (KernelField::SectorSpread, "sector"),
    ];

    /// The column it tests.
    pub fn column(self) -> &'static str {
        KernelField::ALL[self as usize].1
    }

    /// What is tested of that column's number.
    pub fn of(self, number: i64) -> i64 {
        match self {
            KernelField::SectorSpread => spread(number),
            _ => number,
        }
    }
}

impl Test {
    /// The field it tests.
    pub fn field(&self) -> KernelField {
        match self {
            Test::Between { field, .. } | Test::In { field, .. } => *field,
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

    /// Rows that pass either.
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
    /// What serves both.
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
