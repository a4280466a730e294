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
    /// Records in timestamp order, of which the first `returned` were returned.
    held: Vec<TraceRecord>,
    returned: usize,
    /// The records that were read since, in the order of the file.
    read: Vec<TraceRecord>,
    /// The timestamp of the last record returned.
    given: Nanos,
}

impl ReorderBuffer {
    /// An empty buffer that corrects displacements of up to `slack` records.
    pub fn new(slack: usize) -> ReorderBuffer {
        ReorderBuffer {
            slack,
            held: Vec::new(),
            returned: 0,
            read: Vec::new(),
            given: Nanos::MIN,
        }
    }

    /// The buffer to which a reader appends its records.
    pub fn input(&mut self) -> &mut Vec<TraceRecord> {
        &mut self.read
    }

    /// True if [`ReorderBuffer::give`] would return records.
    pub fn is_full(&self) -> bool {
        self.len() > 2 * self.slack
    }

    /// Passes the records whose order is final to `take`, in timestamp order, or all of them at the
    /// end. Returns the number of late records, which are not passed.
    pub fn give(&mut self, at_end: bool, take: impl FnMut(&TraceRecord)) -> usize {
        self.sort();
        let retained = if at_end { 0 } else { self.slack };
        self.pass(self.len().saturating_sub(retained), take)
    }

    /// The same with the records until `ts`, whose order is final for another reason.
    pub fn give_until(&mut self, ts: Nanos, take: impl FnMut(&TraceRecord)) -> usize {
        self.sort();
        let until = |records: &[TraceRecord]| records.partition_point(|r| r.ts <= ts);
        let ready = until(&self.held[self.returned..]) + until(&self.read);
        self.pass(ready, take)
    }

    /// The latest timestamp among the records in the buffer.
    pub fn latest(&self) -> Option<Nanos> {
        let held = self.held[self.returned..].iter();
        held.chain(&self.read).map(|r| r.ts).max()
    }

    fn len(&self) -> usize {
        self.held.len() - self.returned + self.read.len()
    }

    /// Brings the records in timestamp order. Those of most files are: they are not moved.
    fn sort(&mut self) {
        let (held, read) = (&self.held[self.returned..], &self.read);
        let follows = |last: &TraceRecord| read.first().is_none_or(|first| last.ts <= first.ts);
        if read.is_sorted_by_key(|r| r.ts) && held.last().is_none_or(follows) {
            return;
        }
        self.held.drain(..self.returned);
        self.returned = 0;
        self.held.append(&mut self.read);
        self.held.sort_by_key(|r| r.ts);
    }

    /// Passes the first `ready` records, which are in timestamp order.
    fn pass(&mut self, ready: usize, mut take: impl FnMut(&TraceRecord)) -> usize {
        let of_held = ready.min(self.held.len() - self.returned);
        let held = &self.held[self.returned..self.returned + of_held];
        let read = &self.read[..ready - of_held];
        let mut late = 0;
        for record in held.iter().chain(read) {
            if record.ts < self.given {
                late += 1;
                continue;
            }
            self.given = record.ts;
            take(record);
        }
        self.returned += of_held;
        if self.returned == self.held.len() {
            self.held.clear();
            self.returned = ready - of_held;
            std::mem::swap(&mut self.held, &mut self.read);
        }
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

    /// The records that are ready at each call, as a sorted list of all that are held gives them.
    struct Sorted {
        held: Vec<Nanos>,
        given: Nanos,
    }

    impl Sorted {
        fn give(&mut self, ready: impl Fn(&[Nanos]) -> usize) -> (Vec<Nanos>, usize) {
            self.held.sort();
            let ready: Vec<Nanos> = self.held.drain(..ready(&self.held)).collect();
            let (late, given): (Vec<Nanos>, _) = ready.iter().partition(|ts| **ts < self.given);
            self.given = given.last().copied().unwrap_or(self.given);
            (given, late.len())
        }
    }

    #[test]
    fn random_disorder_gives_what_sorting_gives() {
        for seed in 0..300 {
            let mut random = fastrand::Rng::with_seed(seed);
            let slack = random.usize(0..6);
            let mut order = ReorderBuffer::new(slack);
            let mut sorted = Sorted {
                held: Vec::new(),
                given: Nanos::MIN,
            };
            // Some of the files are in order.
            let disorder = random.i64(0..3) * random.i64(1..12);
            for now in 0..60 {
                for _ in 0..random.usize(0..4) {
                    let ts = now - random.i64(0..=disorder);
                    order.input().push(record(ts));
                    sorted.held.push(ts);
                }
                assert_eq!(order.is_full(), sorted.held.len() > 2 * slack);
                assert_eq!(order.latest(), sorted.held.iter().max().copied());
                let mut given = Vec::new();
                let (late, expected) = match random.u8(0..4) {
                    0 => {
                        let until = now - random.i64(0..8);
                        let late = order.give_until(until, |r| given.push(r.ts));
                        let ready = |held: &[Nanos]| held.partition_point(|ts| *ts <= until);
                        (late, sorted.give(ready))
                    }
                    kind => {
                        let at_end = kind == 1 && now % 16 == 0;
                        let late = order.give(at_end, |r| given.push(r.ts));
                        let retained = if at_end { 0 } else { slack };
                        let ready = |held: &[Nanos]| held.len().saturating_sub(retained);
                        (late, sorted.give(ready))
                    }
                };
                assert_eq!((given, late), expected, "seed {seed}, {now}");
            }
        }
    }

    #[test]
    fn what_lies_beyond_the_slack_is_counted_late() {
        let (given, late) = ordered(&[10, 20, 30, 40, 50, 60, 70, 1]);
        assert_eq!(given, [10, 20, 30, 40, 50, 60, 70]);
        assert_eq!(late, 1);
    }
}
