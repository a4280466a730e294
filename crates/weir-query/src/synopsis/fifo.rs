//! A queue of rows in timestamp order, held as the batches in which they arrived: the rows that
//! wait in a source, the rows inside a window.

use std::collections::VecDeque;

use weir_model::Batch;

use super::gather::batch_bytes;

/// Rows in timestamp order, first in first out. Dequeued rows share memory with the batches that
/// were pushed.
#[derive(Debug, Default)]
pub(crate) struct Fifo {
    batches: VecDeque<Batch>,
    /// Rows of the first batch that are dequeued.
    removed: usize,
    rows: usize,
    bytes: usize,
}

impl Fifo {
    /// Appends rows, none older than the last.
    pub(crate) fn push(&mut self, batch: Batch) {
        if !batch.is_empty() {
            self.rows += batch.len();
            self.bytes += batch_bytes(&batch);
            self.batches.push_back(batch);
        }
    }

    /// How many rows wait.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// Approximate size of the rows in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The instant of row `index`, counted from the oldest.
    pub(crate) fn ts(&self, index: usize) -> Option<i64> {
        let mut index = index + self.removed;
        for batch in &self.batches {
            if index < batch.len() {
                return Some(batch.ts[index]);
            }
            index -= batch.len();
        }
        None
    }

    /// Dequeues the rows at or before `ts`.
    pub(crate) fn take_until(&mut self, ts: i64) -> Vec<Batch> {
        let mut out = Vec::new();
        while let Some(first) = self.batches.front() {
            let rest = &first.ts[self.removed..];
            let rows = match rest.last() {
                Some(&last) if last <= ts => rest.len(),
                _ => rest.partition_point(|&t| t <= ts),
            };
            if !self.take_front(rows, &mut out) {
                break;
            }
        }
        out
    }

    /// Dequeues the `rows` oldest.
    pub(crate) fn take_rows(&mut self, rows: usize) -> Vec<Batch> {
        let mut left = rows;
        let mut out = Vec::new();
        while let Some(first) = self.batches.front()
            && left > 0
        {
            let rows = left.min(first.len() - self.removed);
            left -= rows;
            self.take_front(rows, &mut out);
        }
        out
    }

    /// Dequeues `rows` rows of the first batch; true when the batch is used up.
    fn take_front(&mut self, rows: usize, out: &mut Vec<Batch>) -> bool {
        let first = self.batches.front().expect("a batch is there to take from");
        let all = self.removed + rows == first.len();
        if rows > 0 {
            out.push(if rows == first.len() {
                first.clone()
            } else {
                first.slice(self.removed, rows)
            });
        }
        self.rows -= rows;
        self.removed += rows;
        if all {
            let first = self.batches.pop_front().expect("the batch is still there");
            self.bytes -= batch_bytes(&first);
            self.removed = 0;
        }
        all
    }
}
