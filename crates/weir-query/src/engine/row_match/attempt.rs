//! An attempt to match a pattern from one row on: all ways in which it can continue, advanced
//! together by one row at a time, in the order of preference.
//!
//! Two ways at the same position whose conditions can read the same rows continue alike, so that
//! only the preferred one is kept. Where no condition reads rows of the match there are therefore
//! at most as many ways as the pattern has positions.

use std::collections::HashSet;

use super::automaton::{Automaton, Target};
use crate::function::EvalError;
use crate::plan::row_match::MatchEnd;

/// No row, or no earlier row of the way.
const NONE: u32 = u32::MAX;

/// Rows of a match to which conditions can refer: the first or the last one of a variable, or of
/// all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Referred {
    pub end: MatchEnd,
    pub variable: Option<usize>,
}

impl Referred {
    /// The row to which this refers once the row in `slot` is one of `variable`; before, it was
    /// `known`.
    pub fn after(self, known: u32, slot: u32, variable: usize) -> u32 {
        let concerns = self.variable.is_none_or(|own| own == variable);
        match (concerns, self.end) {
            (false, _) => known,
            (true, MatchEnd::First) if known != NONE => known,
            (true, _) => slot,
        }
    }
}

/// A stored row.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredRow {
    pub slot: u32,
    pub ts: i64,
    /// The variables whose condition is true, where it reads no row of the match.
    pub variables: u64,
}

/// Whether a row in a slot can be one of a variable, given the slots to which conditions refer.
pub(super) trait Conditions {
    fn holds(&self, row: &StoredRow, variable: usize, referred: &[u32]) -> Result<bool, EvalError>;
}

/// One way to continue.
#[derive(Debug)]
struct Way {
    /// The next position, or [`ABSENT`].
    at: u32,
    /// The last run of the way, in `Attempt::runs`.
    last: u32,
    /// The number of its last row.
    end: u64,
    /// The slots to which conditions refer, or [`NONE`].
    referred: Box<[u32]>,
}

/// The position of a way that waits for the end of WITHIN.
const ABSENT: u32 = u32::MAX;

/// Consecutive rows of one variable in a way, up to the next run or the end of the way. The rows of
/// a way follow each other, so that a run that continues takes no memory.
#[derive(Clone, Copy, Debug)]
struct Run {
    before: u32,
    variable: u32,
    /// The number of its first row in its partition.
    first: u64,
}

/// The number of a row of a match in its partition, and its variable.
pub(super) type MatchedRow = (u64, usize);

/// The state of an attempt.
#[derive(Debug)]
pub(super) enum State {
    /// A preferred way is open.
    Open,
    /// The rows of the match.
    Matched(Vec<MatchedRow>),
    /// There is no match.
    Failed,
}

/// The ways of one attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The number of its first row.
    pub start: u64,
    /// From this instant on no row is in the match.
    pub deadline: Option<i64>,
    /// The number of the next row to read.
    pub next: u64,
    ways: Vec<Way>,
    runs: Vec<Run>,
    /// The last run and the last row of the preferred complete way.
    best: Option<(u32, u64)>,
}

/// What the ways of a pattern are advanced with.
pub(super) struct Advance<'a, C> {
    pub automaton: &'a Automaton,
    pub referred: &'a [Referred],
    pub absent: Option<usize>,
    pub conditions: &'a C,
}

impl Attempt {
    /// The attempt that begins with row number `start`, which is not read yet.
    pub fn new(
        start: u64,
        deadline: Option<i64>,
        automaton: &Automaton,
        referred: usize,
    ) -> Attempt {
        let mut ways = Vec::new();
        for target in &automaton.first {
            if let Target::Position(at) = *target {
                let referred = vec![NONE; referred].into();
                ways.push(Way {
                    at,
                    last: NONE,
                    end: start,
                    referred,
                });
            }
        }
        Attempt {
            start,
            deadline,
            next: start,
            ways,
            runs: Vec::new(),
            best: None,
        }
    }

    /// Reads the next row.
    pub fn read<C: Conditions>(
        &mut self,
        row: &StoredRow,
        advance: &Advance<'_, C>,
    ) -> Result<(), EvalError> {
        let number = self.next;
        self.next += 1;
        let mut kept = Kept::default();
        for way in std::mem::take(&mut self.ways) {
            if way.at == ABSENT {
                let absent = advance.absent.expect("the pattern ends with an absence");
                if !advance.conditions.holds(row, absent, &way.referred)? {
                    kept.push(way);
                }
                continue;
            }
            let variable = advance.automaton.variables[way.at as usize];
            if !advance.conditions.holds(row, variable, &way.referred)? {
                continue;
            }
            let last = self.run(way.last, variable as u32, number);
            let pairs = advance.referred.iter().zip(&way.referred);
            let referred = pairs.map(|(to, known)| to.after(*known, row.slot, variable));
            let referred: Box<[u32]> = referred.collect();
            for target in &advance.automaton.follow[way.at as usize] {
                let at = match *target {
                    Target::Position(at) => at,
                    Target::Absence => ABSENT,
                    Target::Accept => {
                        self.best = Some((last, number));
                        // The other ways are less preferred.
                        self.ways = kept.ways;
                        return Ok(());
                    }
                };
                let referred = referred.clone();
                kept.push(Way {
                    at,
                    last,
                    end: number,
                    referred,
                });
            }
        }
        self.ways = kept.ways;
        Ok(())
    }

    /// The state after the rows that were read; `has_ended`: time has reached the deadline.
    pub fn state(&self, has_ended: bool) -> State {
        if !has_ended && !self.ways.is_empty() {
            return State::Open;
        }
        let absent = self.ways.iter().find(|way| way.at == ABSENT);
        match absent.map(|way| (way.last, way.end)).or(self.best) {
            Some((last, end)) => State::Matched(self.rows(last, end)),
            None => State::Failed,
        }
    }

    /// The run of a row of `variable` after the run `last`.
    fn run(&mut self, last: u32, variable: u32, row: u64) -> u32 {
        let continues = |run: &Run| run.variable == variable;
        if self.runs.get(last as usize).is_some_and(continues) {
            return last;
        }
        self.runs.push(Run {
            before: last,
            variable,
            first: row,
        });
        self.runs.len() as u32 - 1
    }

    fn rows(&self, mut last: u32, mut end: u64) -> Vec<MatchedRow> {
        let mut rows = Vec::new();
        while let Some(run) = self.runs.get(last as usize) {
            let variable = run.variable as usize;
            rows.extend((run.first..=end).rev().map(|row| (row, variable)));
            // The first row of a match may have number 0.
            end = run.first.saturating_sub(1);
            last = run.before;
        }
        rows.reverse();
        rows
    }

    /// The number of open ways.
    pub fn ways(&self) -> usize {
        self.ways.len()
    }

    /// Approximate size in bytes.
    pub fn bytes(&self) -> usize {
        let referred = self.ways.first().map_or(0, |way| way.referred.len() * 4);
        size_of::<Attempt>()
            + self.ways.capacity() * (size_of::<Way>() + referred)
            + self.runs.capacity() * size_of::<Run>()
    }
}

/// The ways after a row: of those that continue alike the preferred one.
#[derive(Default)]
struct Kept {
    ways: Vec<Way>,
    seen: HashSet<(u32, Box<[u32]>)>,
}

/// Up to this number of ways they are compared with each other.
const COMPARED_MAX: usize = 8;

impl Kept {
    fn push(&mut self, way: Way) {
        if self.ways.len() < COMPARED_MAX {
            let same = |other: &Way| other.at == way.at && other.referred == way.referred;
            if !self.ways.iter().any(same) {
                self.ways.push(way);
            }
            return;
        }
        if self.seen.is_empty() {
            let known = self.ways.iter().map(|way| (way.at, way.referred.clone()));
            self.seen.extend(known);
        }
        if self.seen.insert((way.at, way.referred.clone())) {
            self.ways.push(way);
        }
    }
}

/// The slot of a row to which a condition refers, if there is one.
pub(super) fn known(slot: u32) -> Option<u32> {
    Some(slot).filter(|slot| *slot != NONE)
}
