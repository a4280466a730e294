//! [`Lost`]: the records that were lost because a ring was full.

use super::Live;
use crate::ebpf::layout::count;

/// Lost records per row of counters, by cause.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// The ring was full although it was read in time.
    pub(super) ring_full: Vec<i64>,
    /// The ring was full while the consumer of the rows was busy.
    pub(super) slow_consumer: Vec<i64>,
    /// The total.
    pub(super) total: i64,
}

impl Lost {
    /// No losses yet.
    pub(super) fn new(rows: u32) -> Lost {
        Lost {
            ring_full: vec![0; rows as usize],
            slow_consumer: vec![0; rows as usize],
            total: 0,
        }
    }

    /// Adds the losses since the last call.
    pub(super) fn add(&mut self, live: &Live, consumer_was_late: bool) {
        for row in 0..self.ring_full.len() {
            let booked = self.ring_full[row] + self.slow_consumer[row];
            let more = live.count(row as u32, count::RING_FULL) - booked;
            self.total += more;
            if consumer_was_late {
                self.slow_consumer[row] += more;
            } else {
                self.ring_full[row] += more;
            }
        }
    }
}
