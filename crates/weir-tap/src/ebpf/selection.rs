//! Selections in the kernel: converts the demands' predicates to the few clauses that a kernel
//! program can evaluate.
//!
//! Predicates that a program cannot evaluate are loosened: it may pass more than demanded, never
//! less. The engine tests again.

use std::collections::HashSet;

use weir_model::{EventKind, Op, Operand, Predicate, Symbol, Test};

use super::layout::{self, ALTERNATIVES, COMMS, kind, test};
use crate::io_columns::{COLUMNS, Column, Tested};

/// A clause as the kernel side tests it, with the names that only this side can resolve.
#[derive(Clone, Debug, PartialEq)]
pub struct Clause {
    /// The tests on numbers.
    pub raw: layout::Clause,
    /// The kinds of record selected, a bit each.
    pub kinds: u8,
    /// The devices that pass; `None` for any.
    pub devices: Option<HashSet<Symbol>>,
    /// The cgroups that pass; `None` for any.
    pub cgroups: Option<HashSet<Symbol>>,
    /// The demands it serves, a bit each.
    pub demands: u64,
    /// True if nothing was loosened.
    pub exact: bool,
    /// True if it selects no record, but the requests that the programs follow to determine their
    /// order: those of all partitions of a disk of which it names one.
    pub follows: bool,
}

/// Bits of all kinds of record.
pub const KINDS_ALL: u8 = 1 << kind::REQUEST | KINDS_FINISHED;

/// Bits of the kinds that end a request.
pub const KINDS_FINISHED: u8 = 1 << kind::RESPONSE | 1 << kind::ERROR;

/// The clauses of one demand's predicate, and the parts that were loosened.
pub fn clauses(
    demand: usize,
    predicate: &Predicate,
    kinds: u8,
    relaxed: &mut Vec<String>,
) -> Vec<Clause> {
    let mut whole = |c: &weir_model::Clause| {
        let all = Clause {
            raw: layout::Clause::ALL,
            kinds,
            devices: None,
            cgroups: None,
            demands: 1 << demand,
            exact: true,
            follows: false,
        };
        let before = relaxed.len();
        let mut clause = c
            .tests
            .iter()
            .fold(all, |clause, test| clause.with(test, relaxed));
        clause.exact = relaxed.len() == before;
        clause
    };
    let clauses: Vec<Clause> = predicate.clauses.iter().map(&mut whole).collect();
    clauses.into_iter().filter(|c| c.kinds != 0).collect()
}

/// At most [`ALTERNATIVES`] clauses that pass everything that `clauses` pass.
pub fn fit(mut clauses: Vec<Clause>, relaxed: &mut Vec<String>) -> Vec<Clause> {
    clauses.dedup();
    if clauses.len() > ALTERNATIVES {
        relaxed.push(format!(
            "{} alternatives: the kernel tests {ALTERNATIVES}; the others are combined into a wider one",
            clauses.len()
        ));
    }
    while clauses.len() > ALTERNATIVES {
        let last = clauses.pop().expect("more than the limit");
        let before = clauses.pop().expect("more than the limit");
        clauses.push(before.hull(last));
    }
    clauses
}

impl Clause {
    /// The same clause with one more test.
    fn with(mut self, test: &Test, relaxed: &mut Vec<String>) -> Clause {
        let column = &COLUMNS[test.operand().column()];
        match test {
            Test::Between { operand, low, high } => {
                self.narrow(column, *operand, [*low, *high], relaxed);
            }
            Test::In { texts, .. } => self.restrict(column, texts, relaxed),
        }
        self
    }

    fn narrow(
        &mut self,
        column: &Column,
        operand: Operand,
        [low, high]: [i64; 2],
        relaxed: &mut Vec<String>,
    ) {
        if high < 0 || low > high {
            // No value is negative: nothing passes.
            self.kinds = 0;
            return;
        }
        let (low, high) = (low.max(0) as u64, high as u64);
        let within_32 = |bounds: &mut [u32; 2]| {
            let low = u32::try_from(low).unwrap_or(u32::MAX);
            let high = u32::try_from(high).unwrap_or(u32::MAX);
            *bounds = [bounds[0].max(low), bounds[1].min(high)];
        };
        self.raw.tests |= match (operand, column.test) {
            (Operand::Sample(_), _) if column.sample => {
                within_32(&mut self.raw.sector_spread);
                test::SECTOR_SPREAD
            }
            (Operand::Value(_), Tested::Wide(bit, of)) => {
                let bounds = of(&mut self.raw);
                *bounds = [bounds[0].max(low), bounds[1].min(high)];
                bit
            }
            (Operand::Value(_), Tested::Narrow(bit, of)) => {
                within_32(of(&mut self.raw));
                bit
            }
            _ => return relaxed.push(format!("{}: cannot be tested as a number", column.name)),
        };
    }

    fn restrict(&mut self, column: &Column, texts: &[Symbol], relaxed: &mut Vec<String>) {
        match column.test {
            Tested::Kind => self.kinds &= kinds_of(texts),
            Tested::Op => {
                self.raw.ops &= ops_of(texts);
                self.raw.tests |= test::OP;
            }
            Tested::Device => {
                self.devices = Some(meet(self.devices.take(), texts));
                self.raw.tests |= test::DEVICE;
            }
            Tested::Cgroup => {
                self.cgroups = Some(meet(self.cgroups.take(), texts));
                self.raw.tests |= test::CGROUP;
            }
            Tested::Comm => match comms_of(texts) {
                _ if self.raw.tests & test::COMM != 0 => {
                    relaxed.push("comm: tested twice; the kernel applies the first test".into());
                }
                None => relaxed.push(format!(
                    "comm: {} names; the kernel tests {COMMS}",
                    texts.len()
                )),
                Some(comms) => {
                    self.raw.comms = comms.len() as u8;
                    self.raw.comm[..comms.len()].copy_from_slice(&comms);
                    self.raw.tests |= test::COMM;
                }
            },
            Tested::No | Tested::Wide(..) | Tested::Narrow(..) => {
                relaxed.push(format!("{}: cannot be tested as text", column.name));
            }
        }
    }

    /// A clause that passes everything that either passes.
    pub fn hull(self, other: Clause) -> Clause {
        let (a, b) = (&self.raw, &other.raw);
        let wide = |a: [u64; 2], b: [u64; 2]| [a[0].min(b[0]), a[1].max(b[1])];
        let wide_32 = |a: [u32; 2], b: [u32; 2]| [a[0].min(b[0]), a[1].max(b[1])];
        let same_comm = a.comm == b.comm && a.comms == b.comms;
        let union = |a: Option<HashSet<Symbol>>, b: Option<HashSet<Symbol>>| {
            Some(a?.union(&b?).copied().collect())
        };
        let mut tests = a.tests & b.tests;
        if !same_comm {
            tests &= !test::COMM;
        }
        Clause {
            raw: layout::Clause {
                sector: wide(a.sector, b.sector),
                wait_ns: wide(a.wait_ns, b.wait_ns),
                service_ns: wide(a.service_ns, b.service_ns),
                latency_ns: wide(a.latency_ns, b.latency_ns),
                comm: a.comm,
                sectors: wide_32(a.sectors, b.sectors),
                pid: wide_32(a.pid, b.pid),
                sector_spread: wide_32(a.sector_spread, b.sector_spread),
                tests,
                ops: a.ops | b.ops,
                comms: a.comms,
                spare: [0; 2],
            },
            kinds: self.kinds | other.kinds,
            devices: union(self.devices, other.devices),
            cgroups: union(self.cgroups, other.cgroups),
            demands: self.demands | other.demands,
            exact: false,
            follows: self.follows && other.follows,
        }
    }
}

fn kinds_of(texts: &[Symbol]) -> u8 {
    let bit = |text: &Symbol| {
        let kind = EventKind::ALL.into_iter().find(|k| k.symbol() == *text);
        match kind {
            Some(EventKind::Request) => 1 << kind::REQUEST,
            Some(EventKind::Response) => 1 << kind::RESPONSE,
            // To the kernel "not supported" is an error like any other.
            Some(EventKind::Error | EventKind::Unsupported) => 1 << kind::ERROR,
            None => 0,
        }
    };
    texts.iter().map(bit).fold(0, |all, one| all | one)
}

fn ops_of(texts: &[Symbol]) -> u8 {
    let bit = |op: &Op| texts.contains(&op.symbol());
    let ops = Op::ALL.into_iter().filter(bit);
    ops.fold(0, |all, op| all | 1 << op as u8)
}

/// Names in the kernel's representation: 15 bytes and a zero. A longer name never matches and is
/// omitted.
fn comms_of(texts: &[Symbol]) -> Option<Vec<[u64; 2]>> {
    let fitting = texts.iter().filter(|t| t.as_str().len() < 16);
    let comms: Vec<[u64; 2]> = fitting.map(|t| comm_words(t.as_str())).collect();
    (comms.len() <= COMMS).then_some(comms)
}

fn comm_words(name: &str) -> [u64; 2] {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let (low, high) = bytes.split_at(8);
    [low, high].map(|half| u64::from_ne_bytes(half.try_into().expect("half of 16 bytes")))
}

fn meet(held: Option<HashSet<Symbol>>, texts: &[Symbol]) -> HashSet<Symbol> {
    let texts: HashSet<Symbol> = texts.iter().copied().collect();
    match held {
        None => texts,
        Some(held) => held.intersection(&texts).copied().collect(),
    }
}
