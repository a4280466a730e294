//! The rows of a partition that are in an open attempt, and the attempts.

use std::collections::VecDeque;

use weir_model::Value;

use super::Compiled;
use super::attempt::{Advance, Attempt, Conditions, MatchedRow, State, StoredRow};
use crate::function::EvalError;
use crate::plan::row_match::AfterMatch;

/// A match that is complete.
pub(super) struct Found {
    /// The instant.
    pub ts: i64,
    /// Its partition.
    pub partition: u32,
    /// Its number in its partition, where matches are numbered.
    pub number: i64,
    /// Its rows.
    pub rows: Vec<FoundRow>,
}

/// A row of a match.
pub(super) struct FoundRow {
    pub slot: u32,
    /// Its number in its partition.
    pub row: u64,
    pub variable: usize,
}

/// The state of a partition.
#[derive(Default)]
pub(super) struct Partition {
    rows: VecDeque<StoredRow>,
    /// The number of the first stored row; rows are numbered in their order.
    first: u64,
    /// The number of the row at which the next attempt begins.
    begin: u64,
    /// The open attempts, in the order of their first rows.
    attempts: VecDeque<Attempt>,
    /// For each value of PREV those of the last rows.
    previous: Vec<VecDeque<Value>>,
    /// The number of matches, where they are numbered.
    matches: i64,
}

impl Partition {
    /// Stores a row, after all others.
    pub fn push(&mut self, row: StoredRow) {
        self.rows.push_back(row);
    }

    /// The value of PREV number `which`, which is `rows` rows back, for a row with this value.
    pub fn replace_previous(&mut self, which: usize, rows: usize, value: Value) -> Value {
        if self.previous.len() <= which {
            self.previous.resize_with(which + 1, VecDeque::new);
        }
        let values = &mut self.previous[which];
        let found = match values.len() < rows {
            true => Value::Null,
            false => values.pop_front().expect("rows are counted from 1"),
        };
        values.push_back(value);
        found
    }

    /// Advances the attempts over the stored rows; at `now` the time of those whose deadline this
    /// is, or was, has passed. Returns the rows of the matches that are complete.
    pub fn settle<C: Conditions>(
        &mut self,
        pattern: &Compiled,
        advance: &Advance<'_, C>,
        now: i64,
    ) -> Result<Vec<Vec<FoundRow>>, EvalError> {
        let mut found = Vec::new();
        match pattern.by.after {
            AfterMatch::ToNextRow => {
                while self.begin_attempt(pattern) {}
                let mut open = VecDeque::with_capacity(self.attempts.len());
                for mut attempt in std::mem::take(&mut self.attempts) {
                    match self.advance(&mut attempt, advance, now)? {
                        State::Open => open.push_back(attempt),
                        State::Matched(rows) => found.push(self.stored(rows)),
                        State::Failed => {}
                    }
                }
                self.attempts = open;
            }
            AfterMatch::PastLastRow => {
                while !self.attempts.is_empty() || self.begin_attempt(pattern) {
                    let mut attempt = self.attempts.pop_front().expect("it was begun");
                    match self.advance(&mut attempt, advance, now)? {
                        State::Open => {
                            self.attempts.push_front(attempt);
                            break;
                        }
                        State::Matched(rows) => {
                            self.begin = rows.last().map_or(self.begin, |last| last.0 + 1);
                            found.push(self.stored(rows));
                        }
                        State::Failed => {}
                    }
                }
            }
        }
        Ok(found)
    }

    /// Begins the next attempt, if there is a row with which a match can begin.
    fn begin_attempt(&mut self, pattern: &Compiled) -> bool {
        while let Some(row) = self.rows.get((self.begin - self.first) as usize) {
            let start = self.begin;
            self.begin += 1;
            if pattern.can_begin(row) {
                let within = pattern.by.within;
                let deadline = within.map(|within| row.ts.saturating_add(within));
                let referred = pattern.referred.len();
                let attempt = Attempt::new(start, deadline, &pattern.automaton, referred);
                self.attempts.push_back(attempt);
                return true;
            }
        }
        false
    }

    /// Reads the rows that an attempt has not read.
    fn advance<C: Conditions>(
        &self,
        attempt: &mut Attempt,
        advance: &Advance<'_, C>,
        now: i64,
    ) -> Result<State, EvalError> {
        while attempt.ways() > 0 {
            match self.rows.get((attempt.next - self.first) as usize) {
                Some(row) => attempt.read(row, advance)?,
                None => break,
            }
        }
        Ok(attempt.state(attempt.deadline.is_some_and(|end| end <= now)))
    }

    fn stored(&self, rows: Vec<MatchedRow>) -> Vec<FoundRow> {
        let stored = rows.into_iter().map(|(row, variable)| FoundRow {
            slot: self.rows[(row - self.first) as usize].slot,
            row,
            variable,
        });
        stored.collect()
    }

    /// The number of the next match.
    pub fn next_number(&mut self) -> i64 {
        self.matches += 1;
        self.matches
    }

    /// Discards the rows that no attempt can read.
    pub fn discard(&mut self, mut retire: impl FnMut(u32)) {
        let needed = self
            .attempts
            .front()
            .map_or(self.begin, |first| first.start);
        while self.first < needed {
            let row = self.rows.pop_front().expect("rows are read in their order");
            retire(row.slot);
            self.first += 1;
        }
    }

    /// The instant at which the time of the first open attempt has passed.
    pub fn end(&self) -> Option<i64> {
        self.attempts.front()?.deadline
    }

    /// The number of ways in which its attempts can continue.
    pub fn ways(&self) -> usize {
        self.attempts.iter().map(Attempt::ways).sum()
    }

    /// Whether its state is the same as that of a partition without rows.
    pub fn is_forgettable(&self) -> bool {
        self.rows.is_empty()
            && self.attempts.is_empty()
            && self.previous.is_empty()
            && self.matches == 0
    }

    /// Approximate size in bytes.
    pub fn bytes(&self) -> usize {
        let attempts = self.attempts.iter().map(Attempt::bytes).sum::<usize>();
        let previous = self.previous.iter().map(VecDeque::capacity).sum::<usize>();
        self.rows.capacity() * size_of::<StoredRow>() + attempts + previous * size_of::<Value>()
    }
}
