//! [`Rates`]: the values that sysstat computes from two states of a disk's counters.

use super::{DiskCounters, OpCounters};

/// A disk between two readings of its counters. The formulas are those of iostat(1), section
/// "Device Utilization Report".
#[derive(Clone, Copy)]
pub(super) struct Rates {
    before: DiskCounters,
    now: DiskCounters,
    interval_cs: f64,
    /// The number of disks whose counters these are.
    disks: f64,
}

/// The kinds of requests that have merges and sectors.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Read,
    Write,
    Discard,
}

/// The kinds that a column sums.
pub(super) const ALL: &[Kind] = &[Kind::Read, Kind::Write, Kind::Discard];

impl Rates {
    /// From `before` to `now` in `interval_cs` hundredths of a second. A disk whose counters have
    /// decreased is a new disk, whose counters started at 0.
    pub fn new(before: DiskCounters, now: DiskCounters, interval_cs: u64) -> Rates {
        let began = now.ios() < before.ios();
        Rates {
            before: if began {
                DiskCounters::default()
            } else {
                before
            },
            now,
            interval_cs: interval_cs.max(1) as f64,
            disks: 1.0,
        }
    }

    /// Those of all disks together; `None` without disks.
    pub fn of_all<'r>(disks: impl Iterator<Item = &'r Rates>) -> Option<Rates> {
        disks.fold(None, |sum, disk| {
            Some(sum.map_or(*disk, |sum: Rates| Rates {
                before: sum.before + disk.before,
                now: sum.now + disk.now,
                interval_cs: disk.interval_cs,
                disks: sum.disks + disk.disks,
            }))
        })
    }

    /// Requests per second.
    pub fn ios(&self, kinds: &[Kind]) -> f64 {
        self.per_second(self.sum(kinds, |op| op.ios))
    }

    /// Merges per second.
    pub fn merges(&self, kinds: &[Kind]) -> f64 {
        self.per_second(self.sum(kinds, |op| op.merges))
    }

    /// Merges in percent of all bios.
    pub fn merged_percent(&self, kind: Kind) -> f64 {
        let merges = self.sum(&[kind], |op| op.merges);
        ratio(merges * 100.0, merges + self.sum(&[kind], |op| op.ios))
    }

    /// Sectors per second.
    pub fn sectors(&self, kinds: &[Kind]) -> f64 {
        self.per_second(self.sum(kinds, |op| op.sectors))
    }

    /// Sectors in the whole interval.
    pub fn sectors_total(&self, kinds: &[Kind]) -> u64 {
        self.sum(kinds, |op| op.sectors) as u64
    }

    /// Mean time of a request, ms.
    pub fn await_ms(&self, kinds: &[Kind]) -> f64 {
        let ios = self.sum(kinds, |op| op.ios);
        ratio(self.sum(kinds, |op| op.time_ms), ios)
    }

    /// Mean size of a request, kB.
    pub fn size_kb(&self, kinds: &[Kind]) -> f64 {
        let ios = self.sum(kinds, |op| op.ios);
        ratio(self.sum(kinds, |op| op.sectors), ios) / 2.0
    }

    /// Flushes per second.
    pub fn flushes(&self) -> f64 {
        self.per_second(delta(self.before.flushes.ios, self.now.flushes.ios))
    }

    /// Mean time of a flush, ms.
    pub fn flush_await_ms(&self) -> f64 {
        let time_ms = delta(self.before.flushes.time_ms, self.now.flushes.time_ms);
        ratio(
            time_ms,
            delta(self.before.flushes.ios, self.now.flushes.ios),
        )
    }

    /// Mean number of requests in flight.
    pub fn queue(&self) -> f64 {
        self.per_second(delta(self.before.queue_ms, self.now.queue_ms)) / 1000.0
    }

    /// Share of the time with requests in flight, percent; the mean of several disks.
    pub fn busy_percent(&self) -> f64 {
        self.per_second(delta(self.before.busy_ms, self.now.busy_ms)) / 10.0 / self.disks
    }

    /// Whether the disk had a request since boot.
    pub fn is_used(&self) -> bool {
        self.now.ios() > 0
    }

    /// Whether the disk was idle.
    pub fn idle(&self) -> bool {
        self.before.ios() == self.now.ios()
    }

    fn sum(&self, kinds: &[Kind], of: impl Fn(&OpCounters) -> u64) -> f64 {
        let one = |kind: &Kind| delta(of(op(&self.before, *kind)), of(op(&self.now, *kind)));
        kinds.iter().map(one).sum()
    }

    fn per_second(&self, delta: f64) -> f64 {
        delta / self.interval_cs * 100.0
    }
}

fn op(counters: &DiskCounters, kind: Kind) -> &OpCounters {
    match kind {
        Kind::Read => &counters.reads,
        Kind::Write => &counters.writes,
        Kind::Discard => &counters.discards,
    }
}

fn delta(before: u64, now: u64) -> f64 {
    now.saturating_sub(before) as f64
}

fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_sums_and_means_of_its_disks() {
        let disk = |ios, time_ms, busy_ms| {
            let reads = OpCounters {
                ios,
                time_ms,
                sectors: 16 * ios,
                ..OpCounters::default()
            };
            let now = DiskCounters {
                reads,
                busy_ms,
                queue_ms: time_ms,
                ..DiskCounters::default()
            };
            Rates::new(DiskCounters::default(), now, 100)
        };
        assert!(Rates::of_all([].into_iter()).is_none());
        let disks = [disk(100, 300, 400), disk(300, 100, 200)];
        let group = Rates::of_all(disks.iter()).unwrap();
        assert_eq!(group.ios(ALL), 400.0);
        assert_eq!(group.await_ms(&[Kind::Read]), 1.0);
        assert_eq!(group.size_kb(&[Kind::Read]), 8.0);
        assert_eq!(group.queue(), 0.4);
        assert_eq!(group.busy_percent(), 30.0);
    }
}
