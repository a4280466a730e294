//! [`ReorderBuffer`]: sorts records that are slightly out of order by timestamp, in bounded memory.

use weir_model::Nanos;

use super::record::TraceRecord;

/// Maximum displacement of a record, in records. Records displaced further are late.
pub const SLACK_RECORDS: usize = 16 << 10;

/// A buffer that returns records in timestamp order if none is displaced by more than
/// [`SLACK_RECORDS`]. Records with equal timestamps keep the order of the file.
#[derive(Debug)]
pub struct ReorderBuffer {
    slack: usize,
    held: Vec<TraceRecord>,
    /// The timestamp of the last record returned.
    given: Nanos,
}

impl ReorderBuffer {
    /// An empty buffer that corrects displacements of up to `slack` records.
    pub fn new(slack: usize) -> ReorderBuffer {
        ReorderBuffer {
            slack,
            held: Vec::new(),
            given: Nanos::MIN,
        }
    }

    /// The buffer to which a reader appends its records.
    pub fn input(&mut self) -> &mut Vec<TraceRecord> {
        &mut self.held
    }

    /// True if [`ReorderBuffer::give`] would return records.
    pub fn is_full(&self) -> bool {
        self.held.len() > 2 * self.slack
    }

    /// Passes the records whose order is final to `take`, in timestamp order, or all of them at the
    /// end. Returns the number of late records, which are not passed.
    pub fn give(&mut self, at_end: bool, mut take: impl FnMut(&TraceRecord)) -> usize {
        let ready = if at_end {
            self.held.len()
        } else {
            self.held.len().saturating_sub(self.slack)
        };
        self.pass(|_| ready, &mut take)
    }

    /// The same with the records until `ts`, whose order is final for another reason.
    pub fn give_until(&mut self, ts: Nanos, mut take: impl FnMut(&TraceRecord)) -> usize {
        self.pass(|held| held.partition_point(|r| r.ts <= ts), &mut take)
    }

    /// The latest timestamp among the records in the buffer.
    pub fn latest(&self) -> Option<Nanos> {
        self.held.iter().map(|r| r.ts).max()
    }

    fn pass(
        &mut self,
        ready: impl Fn(&[TraceRecord]) -> usize,
        take: &mut impl FnMut(&TraceRecord),
    ) -> usize {
        if !self.held.is_sorted_by_key(|r| r.ts) {
            self.held.sort_by_key(|r| r.ts);
        }
        let ready = ready(&self.held);
        let late = self.held[..ready].partition_point(|r| r.ts < self.given);
        for record in &self.held[late..ready] {
            self.given = record.ts;
            take(record);
        }
        self.held.drain(..ready);
        late
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Extent, TraceRequest, What};
    use super::*;
    use weir_model::{Level, Op};

    fn record(ts: Nanos) -> TraceRecord {
        let request = TraceRequest::new(Op::Read, Extent::NONE, Level::Block);
        TraceRecord {
            ts,
            what: What::Request(request),
        }
    }

    /// The returned timestamps and the number of late records, for a buffer that corrects
    /// displacements of up to 2 records.
    fn ordered(times: &[Nanos]) -> (Vec<Nanos>, usize) {
        let mut order = ReorderBuffer::new(2);
        let (mut given, mut late) = (Vec::new(), 0);
        for &ts in times {
            order.input().push(record(ts));
            if order.is_full() {
                late += order.give(false, |r| given.push(r.ts));
            }
        }
        late += order.give(true, |r| given.push(r.ts));
        (given, late)
    }

    #[test]
    fn disorder_within_the_slack_is_undone() {
        assert_eq!(ordered(&[3, 1, 2, 4, 6, 5]), (vec![1, 2, 3, 4, 5, 6], 0));
    }

    #[test]
    fn what_lies_beyond_the_slack_is_counted_late() {
        let (given, late) = ordered(&[10, 20, 30, 40, 50, 60, 70, 1]);
        assert_eq!(given, [10, 20, 30, 40, 50, 60, 70]);
        assert_eq!(late, 1);
    }
}
