//! [`Wanted::of`]: the records and groups that demands need, as a request to a tapdisk.

use std::fmt;

use weir_model::capabilities::{RequestRows, recording};
use weir_model::{Clause, Demand, Operand, Predicate, Symbol, Test};

use super::layout::VERSION;
use super::words::{Ask, CLAUSES_MAX, ClauseWord, FieldWord, FoldWord, TESTS_MAX, Tapdisk, Wanted};
use crate::control::message::encode_request;
use crate::io_columns::{COLUMNS, TapdiskTest};

/// The letters of all kinds.
const KINDS: &str = "QREN";

/// The letters of all operations.
const OPS: &str = "rwfdz";

impl Wanted {
    /// The request that covers all of `demands`, without groups: those records, or more.
    pub fn of(demands: &[Demand], ring_bytes: u64) -> Wanted {
        let demanded = demands.iter().map(|demand| (demand, None));
        Wanted::with_groups(&demanded.collect::<Vec<_>>(), ring_bytes)
    }

    /// The request that covers all of these demands: those records, or more. A demand with a fold
    /// has clauses of its own, whose positions are added to the fold; if that takes more room than
    /// a request has, there are no folds.
    pub fn with_groups(demands: &[(&Demand, Option<FoldWord>)], ring_bytes: u64) -> Wanted {
        let mut clauses: Vec<ClauseWord> = Vec::new();
        let mut folds = Vec::new();
        for (demand, _) in demands.iter().filter(|(_, fold)| fold.is_none()) {
            for clause in clauses_of(demand) {
                if !clauses.contains(&clause) {
                    clauses.push(clause);
                }
            }
        }
        let without_groups = || {
            let rows = demands.iter().map(|(demand, _)| (*demand, None));
            Wanted::with_groups(&rows.collect::<Vec<_>>(), ring_bytes)
        };
        for (demand, fold) in demands {
            let Some(fold) = fold else { continue };
            let own = clauses_of(demand);
            folds.push(FoldWord {
                clauses: (clauses.len()..clauses.len() + own.len()).collect(),
                ..fold.clone()
            });
            clauses.extend(own);
        }
        if clauses.len() > CLAUSES_MAX && !folds.is_empty() {
            return without_groups();
        }
        if clauses.len() > CLAUSES_MAX {
            let kind = |k: &char| clauses.iter().any(|c| c.kinds.contains(*k));
            let kinds: String = KINDS.chars().filter(kind).collect();
            clauses = vec![ClauseWord::all(&kinds)];
        }
        let wanted = Wanted {
            clauses,
            folds,
            ring_bytes,
            layout: VERSION,
        };
        if encode_request::<Tapdisk>(&Ask::Records(wanted.clone())).is_ok() {
            return wanted;
        }
        if !wanted.folds.is_empty() {
            return without_groups();
        }
        // Names of disks may be paths of up to 4 KiB.
        let any_disk = |clause| ClauseWord {
            pdisks: None,
            vms: None,
            vdisks: None,
            ..clause
        };
        Wanted {
            clauses: wanted.clauses.into_iter().map(any_disk).collect(),
            ..wanted
        }
    }
}

/// The kinds of events that are rows of a stream.
fn kinds_of(stream: &str) -> Option<&'static str> {
    Some(match RequestRows::of(stream)? {
        RequestRows::Finished => &KINDS[1..],
        RequestRows::Events | RequestRows::All => KINDS,
    })
}

fn clauses_of(demand: &Demand) -> Vec<ClauseWord> {
    let Some(kinds) = kinds_of(&demand.stream) else {
        return Vec::new();
    };
    let clauses = demand.predicate.clauses.iter();
    clauses
        .filter_map(|clause| of_clause(kinds, clause))
        .collect()
}

/// Whether a tapdisk tests everything in a predicate, so that the selected records are exactly its
/// rows.
pub(super) fn selects_exactly(predicate: &Predicate) -> bool {
    predicate.clauses.iter().all(|clause| {
        let tests = clause.tests.iter().all(|test| {
            let tested = COLUMNS[test.operand().column()].tapdisk;
            match test {
                _ if tested == TapdiskTest::Null => true,
                Test::Between { .. } => matches!(tested, TapdiskTest::Number(_)),
                Test::In { texts, .. } => {
                    !matches!(tested, TapdiskTest::Number(_) | TapdiskTest::No)
                        && texts.len() <= TESTS_MAX
                }
            }
        });
        tests && clause.tests.len() <= TESTS_MAX
    })
}

/// `None` if no event can pass. Tests that are omitted here are applied by the consumer.
fn of_clause(kinds: &str, clause: &Clause) -> Option<ClauseWord> {
    let mut word = ClauseWord::all(kinds);
    for test in &clause.tests {
        let operand = test.operand();
        match (COLUMNS[operand.column()].tapdisk, test) {
            (TapdiskTest::Null, _) => return None,
            (TapdiskTest::Number(field), Test::Between { low, high, .. }) => {
                let field = match operand {
                    Operand::Value(_) => field,
                    Operand::Sample(_) => FieldWord::SectorSpread,
                };
                let between = (field, *low, *high);
                if !word.between.contains(&between) {
                    word.between.push(between);
                }
            }
            (tested, Test::In { texts, .. }) => word.narrow(tested, texts),
            _ => {}
        }
    }
    let empty = word.kinds.is_empty() || word.ops.is_empty();
    word.between.truncate(TESTS_MAX);
    for names in [&mut word.pdisks, &mut word.vms, &mut word.vdisks] {
        names.take_if(|names| names.len() > TESTS_MAX);
    }
    (!empty).then_some(word)
}

impl ClauseWord {
    /// Every event of these kinds.
    pub fn all(kinds: &str) -> ClauseWord {
        ClauseWord {
            kinds: kinds.into(),
            ops: OPS.into(),
            ..ClauseWord::default()
        }
    }

    /// The names that it tests: on the host, of VMs, in VMs.
    pub fn names(&self) -> [&Option<Vec<String>>; 3] {
        [&self.pdisks, &self.vms, &self.vdisks]
    }

    /// Restricts it to events with one of `texts` in that column.
    fn narrow(&mut self, tested: TapdiskTest, texts: &[Symbol]) {
        let is = |letter: char| texts.iter().any(|t| t.as_str().chars().eq([letter]));
        match tested {
            TapdiskTest::Kind => self.kinds.retain(is),
            TapdiskTest::Op => self.ops.retain(is),
            TapdiskTest::Pdisk => narrow_names(&mut self.pdisks, texts),
            TapdiskTest::Vm => narrow_names(&mut self.vms, texts),
            TapdiskTest::Vdisk => narrow_names(&mut self.vdisks, texts),
            TapdiskTest::Number(_) | TapdiskTest::Null | TapdiskTest::No => {}
        }
    }
}

/// Restricts names to those that `texts` has as well.
fn narrow_names(names: &mut Option<Vec<String>>, texts: &[Symbol]) {
    let new = texts.iter().map(|t| t.as_str().to_owned());
    *names = Some(match names.take() {
        None => new.collect(),
        Some(before) => new.filter(|n| before.contains(n)).collect(),
    });
}

/// The letters, separated.
fn listed(letters: &str) -> String {
    letters
        .chars()
        .map(String::from)
        .collect::<Vec<_>>()
        .join(", ")
}

impl fmt::Display for ClauseWord {
    /// Prints it in CQL syntax.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "type in ({})", listed(&self.kinds))?;
        if self.ops != OPS {
            write!(f, " and op in ({})", listed(&self.ops))?;
        }
        for (column, names) in ["pdisk", "vm", "vdisk"].iter().zip(self.names()) {
            if let Some(names) = names {
                write!(f, " and {column} in ({})", names.join(", "))?;
            }
        }
        for (field, low, high) in &self.between {
            let name = field.name();
            match (*low, *high) {
                (low, high) if low == high => write!(f, " and {name} = {low}")?,
                (low, i64::MAX) => write!(f, " and {name} >= {low}")?,
                (i64::MIN, high) => write!(f, " and {name} <= {high}")?,
                (low, high) => write!(f, " and {name} between {low} and {high}")?,
            }
        }
        Ok(())
    }
}

impl FieldWord {
    fn name(self) -> &'static str {
        match self {
            FieldWord::Sector => "sector",
            FieldWord::SectorSpread => "the sample number of sector",
            FieldWord::Sectors => "sectors",
            FieldWord::Wait => "wait",
            FieldWord::Service => "service",
            FieldWord::Latency => "latency",
        }
    }
}

/// A demand for everything, as for a recording.
pub fn everything() -> Demand {
    Demand::whole(&recording())
}

#[cfg(test)]
mod tests {
    use weir_model::event::io_schema;
    use weir_model::{EventKind, Op};

    use super::*;

    #[test]
    fn letters_are_those_of_the_model() {
        let kinds: String = EventKind::ALL.map(EventKind::as_str).concat();
        let ops: String = Op::ALL.map(Op::as_str).concat();
        assert_eq!((kinds.as_str(), ops.as_str()), (KINDS, OPS));
    }

    fn demand(stream: &str, tests: Vec<Test>) -> Demand {
        Demand {
            stream: stream.into(),
            predicate: Predicate {
                clauses: vec![Clause { tests }],
            },
            ..everything()
        }
    }

    fn is_one_of(column: &str, texts: &[&str]) -> Test {
        Test::In {
            operand: Operand::Value(io_schema().index(column)),
            texts: texts.iter().map(|t| Symbol::new(t)).collect(),
        }
    }

    #[test]
    fn an_unsatisfiable_selection_is_not_requested() {
        let wanted = |demand: Demand| Wanted::of(&[demand], 0).clauses;
        assert_eq!(wanted(demand("IO", vec![])), [ClauseWord::all("REN")]);
        let requests = is_one_of("type", &["Q"]);
        assert_eq!(wanted(demand("IO", vec![requests.clone()])), []);
        assert_eq!(
            wanted(demand("IOstream", vec![requests])),
            [ClauseWord::all("Q")]
        );
        assert_eq!(
            wanted(demand("IO", vec![is_one_of("comm", &["fio"])])),
            [],
            "who submitted it is not known"
        );
        assert_eq!(wanted(demand("vms", vec![])), []);
        let disks = |names: &[&str]| is_one_of("pdisk", names);
        let both = wanted(demand("IO", vec![disks(&["a", "b"]), disks(&["b", "c"])]));
        assert_eq!(both[0].pdisks, Some(vec!["b".to_owned()]));
    }
}
