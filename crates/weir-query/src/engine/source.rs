//! A source inside the engine: the rows that wait for their instant to be complete, and its
//! watermark.

use weir_model::{Batch, Declaration, Folded, Shape};

use super::bag::Bag;
use crate::synopsis::fifo::Fifo;
use crate::synopsis::gather::take_batch;

/// A named source of rows.
pub(super) struct Source {
    /// Its name; names are compared without regard to case.
    pub name: String,
    /// Rows that are not processed yet, all after `now`.
    pub queue: Fifo,
    /// Groups of intervals that have not ended yet.
    folded: Vec<Folded>,
    /// The interval of the groups that it may deliver.
    interval: Option<i64>,
    /// The watermark: no row at or before this instant will arrive.
    pub complete: i64,
    /// The instant of the first row.
    pub first_ts: Option<i64>,
    /// The instant of the last row.
    pub last_ts: Option<i64>,
    /// Whether it is closed.
    pub closed: bool,
    /// Whether a query reads it.
    pub used: bool,
    /// The current content of a relation, for queries that start later.
    pub content: Option<Bag>,
    /// Rows pushed.
    pub rows_in: u64,
    /// Rows dropped because their instant was complete, or they were out of order, or after the
    /// end.
    pub rows_late: u64,
    /// Of a relation: retractions of absent rows.
    pub rows_unmatched: u64,
}

impl Source {
    /// A source that is not declared yet.
    pub(super) fn new(name: &str) -> Source {
        Source {
            name: name.into(),
            queue: Fifo::default(),
            folded: Vec::new(),
            interval: None,
            complete: i64::MIN,
            first_ts: None,
            last_ts: None,
            closed: false,
            used: false,
            content: None,
            rows_in: 0,
            rows_late: 0,
            rows_unmatched: 0,
        }
    }

    /// Sets the declaration. From here on the content of a relation is kept.
    pub(super) fn declare(&mut self, declaration: &Declaration) {
        if declaration.shape == Shape::Relation && self.content.is_none() {
            self.content = Some(Bag::new(&declaration.schema));
        }
        self.interval = declaration.fold.as_ref().map(|fold| fold.interval);
    }

    /// The current content of a relation, its rows at the instant `ts`.
    pub(super) fn content(&self, ts: i64) -> Option<Batch> {
        let content = self.content.as_ref()?;
        Some(Batch::deltas(
            vec![ts; content.len()],
            vec![1; content.len()],
            content.rows(),
        ))
    }

    /// The instant up to which rows are too old for a reader that starts at `now`. Groups cannot be
    /// cut: where the source delivers groups, a reader receives whole intervals.
    pub(super) fn visible_after(&self, now: i64) -> i64 {
        let from = self.complete.max(now);
        match self.interval {
            Some(interval) if from > i64::MIN => match from.rem_euclid(interval) {
                0 => from,
                rest => from.saturating_add(interval - rest),
            },
            _ => from,
        }
    }

    /// Adds rows; late ones are dropped and counted.
    pub(super) fn push(&mut self, batch: Batch) {
        self.rows_in += batch.len() as u64;
        let batch = self.in_time(batch);
        let Some(&last) = batch.ts.last() else { return };
        self.first_ts = self.first_ts.or(batch.ts.first().copied());
        self.last_ts = Some(last);
        self.complete = self.complete.max(last.saturating_sub(1));
        self.queue.push(batch);
        self.discard_unread();
    }

    /// Adds groups; those of an interval that has ended are dropped, and the rows that they stand
    /// for counted.
    pub(super) fn push_folded(&mut self, folded: Folded) -> bool {
        let rows = folded.requests();
        self.rows_in += rows;
        let is_late = self.closed || folded.end <= self.complete;
        match is_late {
            true => self.rows_late += rows,
            false => self.folded.push(folded),
        }
        !is_late
    }

    /// Requests that wait for the end of their instant or interval.
    pub(super) fn waiting(&self) -> u64 {
        self.queue.len() as u64 + self.folded.iter().map(Folded::requests).sum::<u64>()
    }

    /// Advances the watermark to `tau`.
    pub(super) fn heartbeat(&mut self, tau: i64) {
        self.complete = self.complete.max(tau);
        self.discard_unread();
    }

    /// Registers that no query reads it any more.
    pub(super) fn mark_unused(&mut self) {
        self.used = false;
        self.discard_unread();
    }

    /// The rows that are neither late nor out of order.
    fn in_time(&mut self, batch: Batch) -> Batch {
        let first = batch.ts.first().copied().unwrap_or(i64::MAX);
        if !self.closed && first > self.complete && batch.ts.is_sorted() {
            return batch;
        }
        let mut newest = i64::MIN;
        let in_time = |&row: &u32| {
            let ts = batch.ts[row as usize];
            let keep = !self.closed && ts > self.complete && ts >= newest;
            newest = newest.max(ts);
            keep
        };
        let rows: Vec<u32> = (0..batch.len() as u32).filter(in_time).collect();
        self.rows_late += (batch.len() - rows.len()) as u64;
        take_batch(&batch, &rows)
    }

    /// Discards complete instants that no query reads; a relation's content is kept.
    fn discard_unread(&mut self) {
        if !self.used {
            self.take(self.complete);
            self.take_folded(self.complete);
        }
    }

    /// Removes and returns the groups of the intervals that end by `upto`.
    pub(super) fn take_folded(&mut self, upto: i64) -> Vec<Folded> {
        let (over, open) = self.folded.drain(..).partition(|f| f.end <= upto);
        self.folded = open;
        over
    }

    /// Removes and returns the rows of the instants up to and including `upto`.
    pub(super) fn take(&mut self, upto: i64) -> Vec<Batch> {
        let batches = self.queue.take_until(upto);
        let Some(content) = &mut self.content else {
            return batches;
        };
        let possible = batches.iter().map(|batch| {
            let possible = content.apply_possible(batch);
            self.rows_unmatched += total(batch) - total(&possible);
            possible
        });
        possible.collect()
    }
}

/// The number of insertions and retractions, counted by weight.
fn total(batch: &Batch) -> u64 {
    (0..batch.len())
        .map(|row| batch.weight(row).unsigned_abs())
        .sum()
}
