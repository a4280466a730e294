//! [`DiskCounters`]: one line of /proc/diskstats.

use std::fmt::Write;
use std::ops::Add;

/// The kernel's counters of a block device since boot, in the order and units of
/// Documentation/admin-guide/iostats.rst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Reads.
    pub reads: OpCounters,
    /// Writes.
    pub writes: OpCounters,
    /// Requests in flight.
    pub in_flight: u64,
    /// Time during which the device had a request, ms.
    pub busy_ms: u64,
    /// The total time of all requests, ms.
    pub queue_ms: u64,
    /// Discards.
    pub discards: OpCounters,
    /// Flushes; they have neither merges nor sectors.
    pub flushes: OpCounters,
}

/// Counters of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounters {
    /// Completed requests.
    pub ios: u64,
    /// Bios that were merged into existing requests.
    pub merges: u64,
    /// Sectors of 512 bytes.
    pub sectors: u64,
    /// The total time of the requests, ms.
    pub time_ms: u64,
}

impl Add for DiskCounters {
    type Output = DiskCounters;

    fn add(self, other: DiskCounters) -> DiskCounters {
        DiskCounters {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            in_flight: self.in_flight + other.in_flight,
            busy_ms: self.busy_ms + other.busy_ms,
            queue_ms: self.queue_ms + other.queue_ms,
            discards: self.discards + other.discards,
            flushes: self.flushes + other.flushes,
        }
    }
}

impl Add for OpCounters {
    type Output = OpCounters;

    fn add(self, other: OpCounters) -> OpCounters {
        OpCounters {
            ios: self.ios + other.ios,
            merges: self.merges + other.merges,
            sectors: self.sectors + other.sectors,
            time_ms: self.time_ms + other.time_ms,
        }
    }
}

/// A line that is not valid in /proc/diskstats.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{line}` is not a line of diskstats, which has 14 fields or more: {what}")]
pub struct BadLine {
    line: String,
    what: &'static str,
}

impl DiskCounters {
    /// Parses a line of /proc/diskstats: major, minor, name, and 11, 15 or 17 counters (kernels
    /// before 4.18 and before 5.5 have fewer).
    ///
    /// # Errors
    /// If the line is invalid.
    pub fn parse(line: &str) -> Result<(&str, DiskCounters), BadLine> {
        let bad = |what| BadLine {
            line: line.trim().to_owned(),
            what,
        };
        let mut fields = line.split_ascii_whitespace();
        let name = fields.nth(2).ok_or_else(|| bad("it has no name"))?;
        let number = |field: &str| field.parse::<u64>().ok();
        let numbers: Option<Vec<u64>> = fields.map(number).collect();
        let numbers = numbers.ok_or_else(|| bad("a counter is not a number"))?;
        if numbers.len() < 11 {
            return Err(bad("it has too few counters"));
        }
        let at = |i: usize| numbers.get(i).copied().unwrap_or(0);
        let op = |i: usize| OpCounters {
            ios: at(i),
            merges: at(i + 1),
            sectors: at(i + 2),
            time_ms: at(i + 3),
        };
        let counters = DiskCounters {
            reads: op(0),
            writes: op(4),
            in_flight: at(8),
            busy_ms: at(9),
            queue_ms: at(10),
            discards: op(11),
            flushes: OpCounters {
                ios: at(15),
                time_ms: at(16),
                ..OpCounters::default()
            },
        };
        Ok((name, counters))
    }

    /// The 17 counters as /sys/block/X/stat has them, with a line feed.
    pub fn stat_line(&self) -> String {
        let mut line = String::new();
        for op in [&self.reads, &self.writes] {
            push(&mut line, &[op.ios, op.merges, op.sectors, op.time_ms]);
        }
        push(&mut line, &[self.in_flight, self.busy_ms, self.queue_ms]);
        let op = &self.discards;
        push(&mut line, &[op.ios, op.merges, op.sectors, op.time_ms]);
        push(&mut line, &[self.flushes.ios, self.flushes.time_ms]);
        line.push('\n');
        line
    }

    /// All requests.
    pub fn ios(&self) -> u64 {
        self.reads.ios + self.writes.ios + self.discards.ios + self.flushes.ios
    }
}

fn push(line: &mut String, numbers: &[u64]) {
    for number in numbers {
        let space = if line.is_empty() { "" } else { " " };
        write!(line, "{space}{number}").expect("a String takes all");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_round_trips() {
        let line = "   8  16 sdb 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
        let (name, counters) = DiskCounters::parse(line).unwrap();
        assert_eq!((name, counters.ios()), ("sdb", 1 + 5 + 12 + 16));
        assert_eq!(counters.flushes.time_ms, 17);
        let again = counters.stat_line();
        assert_eq!(again, "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n");
    }

    #[test]
    fn older_kernels_have_fewer_counters() {
        let (_, counters) = DiskCounters::parse("8 0 sda 1 2 3 4 5 6 7 8 9 10 11").unwrap();
        assert_eq!((counters.queue_ms, counters.discards.ios), (11, 0));
    }

    #[test]
    fn an_invalid_line_is_reported() {
        for line in [
            "",
            "8 0",
            "8 0 sda 1 2 3",
            "8 0 sda 1 2 3 4 5 x 7 8 9 10 11",
        ] {
            assert!(DiskCounters::parse(line).is_err(), "{line}");
        }
    }
}
