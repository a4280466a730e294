//! The selection of a kernel stream: the clauses that its programs test, derived from the demands.

use weir_model::{Demand, Operand, Symbol, Test};

use super::layout::{self, CLAUSES, TESTS, TEXT_BYTES, TEXTS, TestKind};
use super::{FieldValue, StreamColumn};
use crate::ebpf::explain::range;

/// A clause that the programs test.
#[derive(Clone, Debug)]
pub struct Clause {
    /// Its tests.
    pub tests: Vec<layout::Test>,
    /// The tests, as text.
    pub text: Vec<String>,
    /// The demands that it serves, a bit each.
    pub demands: u64,
    /// Whether it passes exactly the demanded rows.
    pub exact: bool,
    /// Whether it tests only the beginning of a text.
    begins: bool,
}

/// The clauses of all demands.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// At most [`CLAUSES`].
    pub clauses: Vec<Clause>,
    /// What the programs do not test, as text.
    pub relaxed: Vec<String>,
}

impl Selection {
    /// The selection for `demands`. If there are more clauses than the programs hold, the demands
    /// that do not fit share one that every event passes.
    pub fn of(columns: &[StreamColumn], demands: &[Demand]) -> Selection {
        let mut all = Selection::default();
        let mut rest = 0;
        for (i, demand) in demands.iter().enumerate() {
            let clauses = demand.predicate.clauses.iter();
            let own: Vec<Clause> = clauses
                .filter_map(|clause| Clause::of(columns, i, &clause.tests))
                .collect();
            match all.clauses.len() + own.len() < CLAUSES {
                true => all.clauses.extend(own),
                false => rest |= 1 << i,
            }
        }
        if all.clauses.iter().any(|c| c.begins) {
            let most = TEXT_BYTES - 1;
            all.relaxed
                .push(format!("a kernel program tests {most} bytes of a text"));
        }
        let relaxed = all.clauses.iter().filter(|c| !c.exact && !c.begins);
        if relaxed.count() > 0 {
            let most = format!("{TESTS} tests, {TEXTS} texts of {TEXT_BYTES} bytes");
            all.relaxed.push(format!("a kernel program holds {most}"));
        }
        if rest != 0 {
            all.relaxed
                .push(format!("a kernel program holds {CLAUSES} alternatives"));
            all.clauses.push(Clause {
                tests: Vec::new(),
                text: Vec::new(),
                demands: rest,
                exact: false,
                begins: false,
            });
        }
        all
    }

    /// The clauses of a demand, a bit each.
    pub fn bits(&self, demand: usize) -> u8 {
        let clauses = self.clauses.iter().enumerate();
        clauses.fold(0, |all, (i, c)| {
            all | ((c.demands >> demand & 1) as u8) << i
        })
    }
}

impl Clause {
    /// The clause with these tests; `None` if no event passes them.
    fn of(columns: &[StreamColumn], demand: usize, tests: &[Test]) -> Option<Clause> {
        let mut clause = Clause {
            tests: Vec::new(),
            text: Vec::new(),
            demands: 1 << demand,
            exact: true,
            begins: false,
        };
        for test in tests {
            let column = &columns[test.operand().column()];
            match converted(column, test) {
                Converted::Test(..) if clause.tests.len() == TESTS => clause.exact = false,
                Converted::Test(test, text) => {
                    clause.begins |= matches!(column.value, FieldValue::LongText(_));
                    clause.tests.push(test);
                    clause.text.push(text);
                }
                Converted::NeverPasses => return None,
                Converted::NotTested => clause.exact = false,
            }
        }
        clause.exact &= !clause.begins;
        Some(clause)
    }
}

/// A test of a demand, as the programs test it.
enum Converted {
    /// The test, and its text.
    Test(layout::Test, String),
    /// No value passes it.
    NeverPasses,
    /// The programs cannot test it.
    NotTested,
}

fn converted(column: &StreamColumn, test: &Test) -> Converted {
    let slot = match column.slots().first() {
        Some(slot) => *slot,
        None => return Converted::NotTested,
    };
    let name = column.name;
    let of = |kind, values: Vec<u64>, text| match values.len() {
        0 => Converted::NeverPasses,
        _ => Converted::Test(layout::Test { slot, kind, values }, text),
    };
    match (test, column.value) {
        (Test::Between { operand, low, high }, FieldValue::Number(_)) => {
            let (kind, name) = match operand {
                Operand::Value(_) if column.select => (TestKind::Range, name.to_owned()),
                Operand::Sample(_) if column.sample => {
                    (TestKind::Sample, format!("the sample number of {name}"))
                }
                _ => return Converted::NotTested,
            };
            if low > high {
                return Converted::NeverPasses;
            }
            of(
                kind,
                vec![*low as u64, *high as u64],
                bounds(&name, *low, *high),
            )
        }
        (Test::In { texts, .. }, value) if column.select && texts.len() <= TEXTS => {
            let text = format!("{name} in ({})", list(texts));
            match value {
                FieldValue::Name(_, names) => {
                    let number = |text: &Symbol| {
                        let mut names = names.iter();
                        names.find(|(_, name)| *name == text.as_str())
                    };
                    let numbers = texts.iter().filter_map(number);
                    of(
                        TestKind::Numbers,
                        numbers.map(|(n, _)| *n as u64).collect(),
                        text,
                    )
                }
                FieldValue::Text(_) => {
                    let fitting = texts.iter().filter(|t| t.as_str().len() <= TEXT_BYTES);
                    of(
                        TestKind::Texts,
                        fitting
                            .flat_map(|text| words(text.as_str().as_bytes()))
                            .collect(),
                        text,
                    )
                }
                // Longer texts that begin in the same way pass as well.
                FieldValue::LongText(_) => {
                    let text = format!("{name} begins with ({})", list(texts));
                    of(
                        TestKind::Texts,
                        texts.iter().flat_map(beginning).collect(),
                        text,
                    )
                }
                _ => Converted::NotTested,
            }
        }
        _ => Converted::NotTested,
    }
}

/// The text of a test on numbers, which may be negative.
fn bounds(name: &str, low: i64, high: i64) -> String {
    match (u64::try_from(low), u64::try_from(high)) {
        (Ok(low), Ok(high)) => range(name, [low, high], i64::MAX as u64),
        _ if low == i64::MIN => format!("{name} <= {high}"),
        _ if high == i64::MAX => format!("{name} >= {low}"),
        _ if low == high => format!("{name} = {low}"),
        _ => format!("{name} between {low} and {high}"),
    }
}

fn list(texts: &[Symbol]) -> String {
    let texts: Vec<&str> = texts.iter().map(|text| text.as_str()).collect();
    texts.join(", ")
}

/// The beginning of a text as in an event. The kernel's copy of a longer text ends with a zero.
fn beginning(text: &Symbol) -> [u64; 2] {
    let bytes = text.as_str().as_bytes();
    words(&bytes[..bytes.len().min(TEXT_BYTES - 1)])
}

/// A text as in an event: padded with zeros.
fn words(text: &[u8]) -> [u64; 2] {
    let mut bytes = [0; TEXT_BYTES];
    bytes[..text.len()].copy_from_slice(text);
    let (first, second) = bytes.split_at(8);
    [first, second].map(|half| u64::from_ne_bytes(half.try_into().expect("half of the bytes")))
}

#[cfg(test)]
mod tests {
    use weir_model::Predicate;

    use super::super::{FieldNumber, KernelStream};
    use super::*;

    static STREAM: KernelStream = KernelStream {
        name: "test",
        doc: "",
        object: &[],
        event_bytes: 48,
        columns: &[
            StreamColumn::new("ts", FieldValue::Time),
            StreamColumn::new("n", FieldValue::Number(FieldNumber::signed(24, 4)))
                .null(7)
                .tested()
                .sampled(),
            StreamColumn::new(
                "name",
                FieldValue::Name(FieldNumber::unsigned(28, 1), &[(3, "c")]),
            )
            .tested(),
            StreamColumn::new("text", FieldValue::Text(32)).tested(),
            StreamColumn::new("other", FieldValue::Number(FieldNumber::CPU)),
        ],
        counters: &[],
        probes: |_| Err("tracepoints".into()),
        flush: None,
    };

    fn demand(clauses: &[&[Test]]) -> Demand {
        let clauses = clauses.iter().map(|tests| weir_model::Clause {
            tests: tests.to_vec(),
        });
        Demand {
            stream: "test".into(),
            columns: Vec::new(),
            predicate: Predicate {
                clauses: clauses.collect(),
            },
            fold: None,
        }
    }

    fn between(column: usize, low: i64, high: i64) -> Test {
        let operand = Operand::Value(column);
        Test::Between { operand, low, high }
    }

    fn one_of(column: usize, texts: &[&str]) -> Test {
        Test::In {
            operand: Operand::Value(column),
            texts: texts.iter().map(|text| Symbol::new(text)).collect(),
        }
    }

    #[test]
    fn tests_are_those_of_the_table() {
        assert_eq!(STREAM.fault(), None);
        let tests = [
            between(1, -5, 5),
            one_of(2, &["c", "d"]),
            one_of(3, &["fio"]),
        ];
        let selection = Selection::of(STREAM.columns, &[demand(&[&tests])]);
        let [clause] = &selection.clauses[..] else {
            panic!("{selection:?}");
        };
        let kinds: Vec<TestKind> = clause.tests.iter().map(|test| test.kind).collect();
        assert_eq!(kinds, [TestKind::Range, TestKind::Numbers, TestKind::Texts]);
        assert_eq!(clause.tests[0].values, [-5_i64 as u64, 5]);
        assert_eq!(
            (clause.tests[0].slot.null, clause.tests[0].slot.offset),
            (Some(7), 24)
        );
        assert_eq!(clause.tests[1].values, [3]);
        assert!(clause.exact && selection.relaxed.is_empty());
        let text = "n between -5 and 5, name in (c, d), text in (fio)";
        assert_eq!(clause.text.join(", "), text);
    }

    #[test]
    fn untestable_clauses_are_relaxed_and_false_clauses_are_dropped() {
        let loose = [between(4, 1, 1), between(1, 3, 3)];
        let never = [one_of(2, &["unknown"])];
        let selection = Selection::of(STREAM.columns, &[demand(&[&loose, &never])]);
        assert_eq!((selection.clauses.len(), selection.bits(0)), (1, 1));
        assert!(!selection.clauses[0].exact && selection.relaxed.len() == 1);
        assert_eq!(selection.clauses[0].text, ["n = 3"]);
    }

    #[test]
    fn demands_beyond_the_clauses_of_a_program_share_one() {
        let one = |n| demand(&[&[between(1, n, n)], &[between(1, n + 1, n + 1)]]);
        let demands: Vec<Demand> = (0..6).map(one).collect();
        let selection = Selection::of(STREAM.columns, &demands);
        let bits: Vec<u8> = (0..6).map(|i| selection.bits(i)).collect();
        assert_eq!(
            bits,
            [0b11, 0b1100, 0b11_0000, 0b100_0000, 0b100_0000, 0b100_0000]
        );
        assert!(!selection.clauses[6].exact);
    }
}
