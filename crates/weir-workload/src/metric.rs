//! [`Metric`]: what is measured of each request, with vscsiStats' names and bins.
//!
//! The limits are those of a real `vscsiStats -p all -c`. A bin has the values above the previous
//! limit up to its own, also for negative values; one more bin has the values above the last limit.
//! Times are in nanoseconds, so a limit of 100 µs is 100,000.

use weir_model::Op;

/// A distribution's subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    /// Length of the request, bytes (paper, section 3.2).
    Length,
    /// First sector minus last sector of the previous request, sectors; sequential is 1 (section
    /// 3.1). The rows of one operation measure from the previous request of that operation.
    Seek,
    /// The least such distance in magnitude from any of the last N requests; of all operations
    /// together only.
    SeekClosest,
    /// Time since the previous request, ns (section 3.2); each operation has its own predecessor.
    Interarrival,
    /// Requests in flight when it was issued, itself included, of any operation (section 3.3).
    Outstanding,
    /// Insert to issue, ns.
    Wait,
    /// Issue to complete, ns.
    Service,
    /// Insert to complete, ns (section 3.5).
    Latency,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Bytes.
    Bytes,
    /// Sectors of 512 bytes.
    Sectors,
    /// Nanoseconds.
    Nanoseconds,
    /// Requests.
    Requests,
}

/// The class of requests in a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// All operations.
    All,
    /// One operation.
    Of(Op),
}

/// Bytes.
static LENGTH: [i64; 17] = [
    512, 1024, 2048, 4095, 4096, 8191, 8192, 16383, 16384, 32768, 49152, 65535, 65536, 81920,
    131_072, 262_144, 524_288,
];

/// Sectors.
static SEEK: [i64; 33] = [
    -500_000, -100_000, -50_000, -10_000, -5_000, -1_000, -500, -128, -64, -32, -16, -8, -6, -4,
    -2, -1, 0, 1, 2, 4, 6, 8, 16, 32, 64, 128, 500, 1_000, 5_000, 10_000, 50_000, 100_000, 500_000,
];

/// Requests.
static OUTSTANDING: [i64; 12] = [1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 64];

/// 1 10 100 500 1000 5000 15000 30000 50000 100000 µs, in ns.
static TIME: [i64; 10] = [
    1_000,
    10_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    15_000_000,
    30_000_000,
    50_000_000,
    100_000_000,
];

impl Metric {
    /// All, in display order.
    pub const ALL: [Metric; 8] = [
        Metric::Length,
        Metric::Seek,
        Metric::SeekClosest,
        Metric::Interarrival,
        Metric::Outstanding,
        Metric::Latency,
        Metric::Wait,
        Metric::Service,
    ];

    /// Its index in [`Metric::ALL`].
    pub fn index(self) -> usize {
        match self {
            Metric::Length => 0,
            Metric::Seek => 1,
            Metric::SeekClosest => 2,
            Metric::Interarrival => 3,
            Metric::Outstanding => 4,
            Metric::Latency => 5,
            Metric::Wait => 6,
            Metric::Service => 7,
        }
    }

    /// Its name on the command line, vscsiStats' where that has one.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Length => "ioLength",
            Metric::Seek => "seekDistance",
            Metric::SeekClosest => "seekDistanceWindowed",
            Metric::Interarrival => "interarrival",
            Metric::Outstanding => "outstandingIOs",
            Metric::Latency => "latency",
            Metric::Wait => "wait",
            Metric::Service => "service",
        }
    }

    /// Its unit.
    pub fn measure(self) -> MetricUnit {
        match self {
            Metric::Length => MetricUnit::Bytes,
            Metric::Seek | Metric::SeekClosest => MetricUnit::Sectors,
            Metric::Outstanding => MetricUnit::Requests,
            Metric::Interarrival | Metric::Latency | Metric::Wait | Metric::Service => {
                MetricUnit::Nanoseconds
            }
        }
    }

    /// vscsiStats' upper limits, ascending; one more bin is above the last.
    pub fn limits(self) -> &'static [i64] {
        match self.measure() {
            MetricUnit::Bytes => &LENGTH,
            MetricUnit::Sectors => &SEEK,
            MetricUnit::Requests => &OUTSTANDING,
            MetricUnit::Nanoseconds => &TIME,
        }
    }

    /// Whether it is collected for `class`.
    pub fn is_of(self, class: Class) -> bool {
        self != Metric::SeekClosest || class == Class::All
    }
}

impl Class {
    /// All, in display order.
    pub const ALL: [Class; 6] = [
        Class::All,
        Class::Of(Op::Read),
        Class::Of(Op::Write),
        Class::Of(Op::Flush),
        Class::Of(Op::Discard),
        Class::Of(Op::WriteZeroes),
    ];

    /// The operation; `None` for all of them.
    pub fn op(self) -> Option<Op> {
        match self {
            Class::All => None,
            Class::Of(op) => Some(op),
        }
    }

    /// Its index in [`Class::ALL`].
    pub fn index(self) -> usize {
        match self {
            Class::All => 0,
            Class::Of(op) => 1 + op as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_the_position_in_the_list() {
        let metrics = Metric::ALL.map(Metric::index);
        assert_eq!(metrics, [0, 1, 2, 3, 4, 5, 6, 7]);
        let classes = Class::ALL.map(Class::index);
        assert_eq!(classes, [0, 1, 2, 3, 4, 5]);
    }
}
