//! A source inside the engine: the rows that wait for their instant to be complete, and how far the
//! source has come.

use weir_model::{Batch, Declaration, Folded, Shape};

use super::bag::Bag;
use super::fifo::Fifo;
use super::gather::take_batch;

/// A named source of rows.
pub(super) struct Source {
    /// Its name; names are compared without regard to case.
    pub name: String,
    /// Rows that are not processed yet, all after `now`.
    pub queue: Fifo,
    /// Groups of intervals that are not over yet.
    folded: Vec<Folded>,
    /// Of what intervals it may deliver groups.
    interval: Option<i64>,
    /// No row at or before this instant will come.
    pub complete: i64,
    /// The instant of the first row.
    pub first_ts: Option<i64>,
    /// The instant of the last row.
    pub last_ts: Option<i64>,
    /// Whether it has ended.
    pub closed: bool,
    /// Whether a query reads it.
    pub used: bool,
    /// What a relation holds by now, so that a query that comes later finds it.
    pub content: Option<Bag>,
    /// Rows pushed.
    pub rows_in: u64,
    /// Rows dropped because their instant was complete, or out of order, or after the end.
    pub rows_late: u64,
    /// Of a relation: how often a row was to go that was not there.
    pub rows_unmatched: u64,
}

impl Source {
    /// A source that has not been heard of.
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

    /// Learns what it is. From here on the content of a relation is kept.
    pub(super) fn declare(&mut self, declaration: &Declaration) {
        if declaration.shape == Shape::Relation && self.content.is_none() {
            self.content = Some(Bag::new(&declaration.schema));
        }
        self.interval = declaration.fold.as_ref().map(|fold| fold.interval);
    }

    /// The instant up to which rows are too old for a reader that comes at `now`. Groups cannot be
    /// cut: where such come, it reads whole intervals.
    pub(super) fn seen_from(&self, now: i64) -> i64 {
        let from = self.complete.max(now);
        match self.interval {
            Some(interval) if from > i64::MIN => match from.rem_euclid(interval) {
                0 => from,
                rest => from.saturating_add(interval - rest),
            },
            _ => from,
        }
    }

    /// Takes rows in; late ones are dropped and counted.
    pub(super) fn push(&mut self, batch: Batch) {
        self.rows_in += batch.len() as u64;
        let batch = self.in_time(batch);
        let Some(&last) = batch.ts.last() else { return };
        self.first_ts = self.first_ts.or(batch.ts.first().copied());
        self.last_ts = Some(last);
        self.complete = self.complete.max(last.saturating_sub(1));
        self.queue.push(batch);
        self.forget_unread();
    }

    /// Takes groups in; those of an interval that is over are dropped, and the rows that they stand
    /// for counted.
    pub(super) fn push_folded(&mut self, folded: Folded) {
        let rows = folded.requests();
        self.rows_in += rows;
        if self.closed || folded.end <= self.complete {
            self.rows_late += rows;
        } else {
            self.folded.push(folded);
        }
    }

    /// Requests that wait for their instant, or their interval, to be over.
    pub(super) fn waiting(&self) -> u64 {
        self.queue.len() as u64 + self.folded.iter().map(Folded::requests).sum::<u64>()
    }

    /// No more rows at or before `tau` will come.
    pub(super) fn heartbeat(&mut self, tau: i64) {
        self.complete = self.complete.max(tau);
        self.forget_unread();
    }

    /// Nobody reads it any more.
    pub(super) fn abandon(&mut self) {
        self.used = false;
        self.forget_unread();
    }

    /// The rows that are neither late nor behind those before them.
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

    /// Without a reader, complete instants are of interest to a relation's content only.
    fn forget_unread(&mut self) {
        if !self.used {
            self.take(self.complete);
            self.take_folded(self.complete);
        }
    }

    /// Takes out the groups of the intervals that are over with `upto`.
    pub(super) fn take_folded(&mut self, upto: i64) -> Vec<Folded> {
        let (over, open) = self.folded.drain(..).partition(|f| f.end <= upto);
        self.folded = open;
        over
    }

    /// Takes out the rows of the instants up to and including `upto`.
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

/// How many rows come and go, as often as they do.
fn total(batch: &Batch) -> u64 {
    (0..batch.len())
        .map(|row| batch.weight(row).unsigned_abs())
        .sum()
}
