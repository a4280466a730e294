//! [`Order`]: puts records that are a little out of order back into time order, in bounded memory.

use weir_model::Nanos;

use super::record::Record;

/// How many records a record may lie behind its place. What lies further behind is late.
pub const SLACK_RECORDS: usize = 16 << 10;

/// A buffer that gives records in time order, as long as none lies more than [`SLACK_RECORDS`]
/// behind its place. Records of one instant keep the order of the file.
#[derive(Debug)]
pub struct Order {
    slack: usize,
    held: Vec<Record>,
    /// The time of the last record given.
    given: Nanos,
}

impl Order {
    /// An empty buffer that makes up for `slack` records of disorder.
    pub fn new(slack: usize) -> Order {
        Order {
            slack,
            held: Vec::new(),
            given: Nanos::MIN,
        }
    }

    /// Where a reader puts its records.
    pub fn input(&mut self) -> &mut Vec<Record> {
        &mut self.held
    }

    /// True when [`Order::give`] would give something.
    pub fn is_full(&self) -> bool {
        self.held.len() > 2 * self.slack
    }

    /// Hands over the records whose place is certain, in time order, or all of them at the end.
    /// Returns how many were late: they are not handed over.
    pub fn give(&mut self, at_end: bool, mut take: impl FnMut(Record)) -> usize {
        if !self.held.is_sorted_by_key(|r| r.ts) {
            self.held.sort_by_key(|r| r.ts);
        }
        let ready = if at_end {
            self.held.len()
        } else {
            self.held.len().saturating_sub(self.slack)
        };
        let late = self.held[..ready].partition_point(|r| r.ts < self.given);
        for record in self.held.drain(..ready).skip(late) {
            self.given = record.ts;
            take(record);
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Extent, Request, What};
    use super::*;
    use weir_model::{Level, Op};

    fn record(ts: Nanos) -> Record {
        let request = Request::new(Op::Read, Extent::NONE, Level::Block);
        Record {
            ts,
            what: What::Request(request),
        }
    }

    /// The times given and how many were late, for a buffer that makes up for 2 records of
    /// disorder.
    fn ordered(times: &[Nanos]) -> (Vec<Nanos>, usize) {
        let mut order = Order::new(2);
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
