//! [`Tapdisk`]: the requests at a tapdisk's control socket and its responses, over the control
//! protocol.
//!
//! ```text
//! > {"service":"tapdisk","version":1,"body":{"request":"status"}}
//! < {"service":"tapdisk","version":1,"body":{"response":{"status":{"pid":4711,...}}}}
//! > {.. "body":{"request":{"records":{"clauses":[{"kinds":"REN","ops":"w"}],"ring_bytes":67108864}}}}
//! < {.. "body":{"response":{"records":{"layout":1,"ring_records":65536,...}}}}  and a memfd beside it
//! ```

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layout::GroupTables;
use crate::control::Service;
use crate::ebpf::fold::Plan;
use crate::ebpf::fold::layout::{BlockMeasure, CALLS, Call, FOLDS, LIMITS, LIMITS_ALL, keep};
use crate::io_columns::GROUPS;

/// The service of a tapdisk's control socket.
#[derive(Debug)]
pub struct Tapdisk;

impl Service for Tapdisk {
    const NAME: &'static str = "tapdisk";
    const VERSION: u32 = 1;
    const REQUEST_BYTES_MAX: usize = 64 << 10;
    const RESPONSE_BYTES_MAX: usize = 64 << 20;
    type Request = Ask;
    type Response = Answer;
}

/// Maximum number of clauses of a selection.
pub const CLAUSES_MAX: usize = 64;

/// Maximum number of numeric tests in a clause, and of names of disks.
pub const TESTS_MAX: usize = 32;

/// The requests to a tapdisk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// What it serves and its counters.
    Status,
    /// The disks that it serves, by number.
    Disks,
    /// Records of events from now on, until the connection ends.
    Records(Wanted),
    /// The histograms of all disks since the first such request on this connection, which starts
    /// the counting.
    Histograms,
    /// Resets the counts.
    Reset,
    /// Sets the limits of a disk. Only root and the user of the tapdisk may.
    Limit {
        /// Its number.
        disk: u16,
        /// The limits; those that are 0 are removed.
        limits: DiskLimits,
    },
}

/// The limits of a disk, of reads and writes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskLimits {
    /// Requests per second; 0 is no limit.
    pub iops: u64,
    /// Bytes of reads and writes per second; 0 is no limit.
    pub bytes_per_second: u64,
    /// For how long a disk that was idle may exceed them by as much again, in milliseconds: the
    /// size of the token buckets is this time multiplied by the limit. From [`BURST_MS_MIN`] to
    /// [`BURST_MS_MAX`].
    pub burst_ms: u64,
}

/// The shortest burst.
pub const BURST_MS_MIN: u64 = 1;

/// The longest burst.
pub const BURST_MS_MAX: u64 = 60_000;

impl Default for DiskLimits {
    /// No limits; the burst is that of QEMU's throttling, a tenth of a second.
    fn default() -> DiskLimits {
        DiskLimits {
            iops: 0,
            bytes_per_second: 0,
            burst_ms: 100,
        }
    }
}

impl DiskLimits {
    /// Whether it limits nothing.
    pub fn is_unlimited(&self) -> bool {
        self.iops == 0 && self.bytes_per_second == 0
    }
}

impl fmt::Display for DiskLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DiskLimits {
            iops,
            bytes_per_second,
            burst_ms,
        } = self;
        match (iops, bytes_per_second) {
            (0, 0) => return f.write_str("no limit"),
            (_, 0) => write!(f, "{iops} requests/s")?,
            (0, _) => write!(f, "{bytes_per_second} bytes/s")?,
            _ => write!(f, "{iops} requests/s, {bytes_per_second} bytes/s")?,
        }
        write!(f, ", bursts of {burst_ms} ms")
    }
}

/// The requested records, and the size of the rings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Records that match any of these clauses.
    pub clauses: Vec<ClauseWord>,
    /// Groups that are to be computed instead of records, as far as there is room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folds: Vec<FoldWord>,
    /// Maximum size of all rings together, for the current number of rings, and up to an eighth
    /// more.
    pub ring_bytes: u64,
    /// The latest [`super::layout::VERSION`] that the consumer reads; consumers of version 1 do not
    /// state it.
    #[serde(default)]
    pub layout: u32,
}

/// A group-by over intervals of time. A tapdisk that does not know it writes records only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldWord {
    /// Intervals end at its multiples, which the windows in shared memory have.
    pub interval_ns: u64,
    /// A group for each disk.
    pub by_disk: bool,
    /// A group for each operation.
    pub by_op: bool,
    /// The clauses of its rows by position; they select records for nothing else.
    pub clauses: Vec<usize>,
    /// What is kept for each group.
    pub calls: Vec<CallWord>,
}

/// A value kept for each group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallWord {
    /// What is aggregated.
    pub measure: BlockMeasure,
    /// How.
    pub keep: KeepWord,
}

/// A kind of aggregate, as `weir_model::PartialKind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepWord {
    /// Count, sum, minimum and maximum.
    Moments,
    /// Counts by these ascending limits.
    Limits(Vec<i64>),
    /// Counts in 128 bins per power of two.
    LogLinear,
}

/// A conjunction of tests. A tapdisk may ignore a test that it does not have: the consumer tests
/// its records again. Only those of group-bys are not tested again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClauseWord {
    /// One of these kinds, by letters of `QREN`.
    pub kinds: String,
    /// One of these operations, by letters of `rwfdz`.
    pub ops: String,
    /// A disk with one of these names on the host; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdisks: Option<Vec<String>>,
    /// A disk of one of these VMs; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vms: Option<Vec<String>>,
    /// A disk with one of these names in its VM; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vdisks: Option<Vec<String>>,
    /// Numbers in ranges, both bounds inclusive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub between: Vec<(FieldWord, i64, i64)>,
    /// Tests of a later version.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// A number that can be tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldWord {
    /// First sector.
    Sector,
    /// [`weir_model::spread::spread`] of it.
    SectorSpread,
    /// Length in sectors.
    Sectors,
    /// Receipt to submission, ns.
    Wait,
    /// Submission to completion, ns.
    Service,
    /// Receipt to completion, ns.
    Latency,
}

/// The responses of a tapdisk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Ask::Status`].
    Status(StatusWord),
    /// To [`Ask::Disks`].
    Disks(Vec<DiskWord>),
    /// To [`Ask::Records`]; sent with the descriptor of the memory.
    Records(RecordsWord),
    /// To [`Ask::Histograms`] and [`Ask::Reset`].
    Histograms(HistogramsWord),
    /// To [`Ask::Limit`]: it is done.
    Limited,
}

/// The layout of the memory that a consumer received.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordsWord {
    /// [`super::layout::VERSION`].
    pub layout: u32,
    /// See [`super::layout::Layout::ring_records`].
    pub ring_records: u64,
    /// The tables of the requested groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<GroupTables>,
    /// The disks so far.
    pub disks: Vec<DiskWord>,
}

/// A disk's names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskWord {
    /// Its number in records.
    pub number: u16,
    /// The VM.
    pub vm: Option<String>,
    /// The name of the disk in the VM.
    pub vdisk: Option<String>,
    /// The file or device with its data.
    pub pdisk: Option<String>,
}

/// The histograms of all disks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistogramsWord {
    /// Start of the counts, ns since the epoch.
    pub since_ns: i64,
    /// End of the counts, ns since the epoch.
    pub until_ns: i64,
    /// The number of previous requests among which the closest seek distance is determined.
    pub closest_of: usize,
    /// By disk: the output of [`weir_workload::json`].
    pub disks: Vec<(DiskWord, Value)>,
    /// Events that could not be counted.
    pub lost: u64,
}

/// What a tapdisk serves, and its counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusWord {
    /// The version of the program.
    pub program: String,
    /// Its process.
    pub pid: u32,
    /// Start time, ns since the epoch.
    pub since_ns: i64,
    /// Its disks.
    pub disks: Vec<DiskStatus>,
    /// The consumers of records.
    pub consumers: Vec<ConsumerStatus>,
}

/// A disk and its counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its names.
    #[serde(flatten)]
    pub disk: DiskWord,
    /// Number of open queues and connections.
    pub queues: usize,
    /// Properties and counters.
    #[serde(flatten)]
    pub figures: DiskFigures,
}

/// Properties of a disk, and its counters since the tapdisk started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskFigures {
    /// Its size.
    pub size_bytes: u64,
    /// Its logical block size.
    pub block_bytes: u32,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Its serial number.
    pub serial: String,
    /// The I/O method for its data: `io_uring`, `sync`, ...
    pub engine: String,
    /// The sockets on which guests connect.
    pub sockets: Vec<String>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Its limits.
    #[serde(default)]
    pub limits: DiskLimits,
    /// Requests of those in flight that wait because of the limits.
    #[serde(default)]
    pub held: u64,
    /// Counters by operation.
    pub ops: Vec<OpFigures>,
}

/// Counters of the requests of one operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpFigures {
    /// Its letter, as in column `op`.
    pub op: String,
    /// Completed requests, including failed ones.
    pub requests: u64,
    /// Bytes of successful requests.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The sum of their latencies.
    pub latency_ns: u64,
}

/// A consumer of records, and its counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConsumerStatus {
    /// Its process; `None` for histograms that the tapdisk counts itself.
    pub pid: Option<i32>,
    /// Start time, ns since the epoch.
    pub since_ns: i64,
    /// Records that were written for it.
    pub records: u64,
    /// Events that it did not request, which were not recorded.
    pub avoided: u64,
    /// Events that groups contain, which were not recorded either.
    #[serde(default)]
    pub grouped: u64,
    /// Records lost because its ring was full.
    pub lost: u64,
}

impl Ask {
    /// The request, if it is within the limits.
    ///
    /// # Errors
    /// The limit that it exceeds.
    pub fn checked(self) -> Result<Ask, String> {
        if let Ask::Limit { limits, .. } = &self
            && !(BURST_MS_MIN..=BURST_MS_MAX).contains(&limits.burst_ms)
        {
            return Err(format!(
                "a burst is of {BURST_MS_MIN} to {BURST_MS_MAX} ms, not {}",
                limits.burst_ms
            ));
        }
        if let Ask::Records(wanted) = &self {
            wanted.check_folds()?;
            let tests = |c: &ClauseWord| {
                let names = c.names().map(|names| names.as_ref().map_or(0, Vec::len));
                names.into_iter().fold(c.between.len(), usize::max)
            };
            let fits = wanted.clauses.len() <= CLAUSES_MAX
                && wanted.clauses.iter().all(|c| tests(c) <= TESTS_MAX);
            if !fits {
                return Err(format!(
                    "the limit is {CLAUSES_MAX} clauses of {TESTS_MAX} tests"
                ));
            }
        }
        Ok(self)
    }
}

impl Wanted {
    /// Whether the folds are within the limits of their tables.
    fn check_folds(&self) -> Result<(), String> {
        if self.folds.len() > FOLDS {
            return Err(format!("the limit is {FOLDS} group-bys"));
        }
        let mut limits = 0;
        for fold in &self.folds {
            let interval = i64::try_from(fold.interval_ns).unwrap_or(i64::MAX);
            if !(GROUPS.interval_min_ns..=GROUPS.interval_max_ns).contains(&interval) {
                return Err(format!("an interval of groups cannot have {interval} ns"));
            }
            if fold.calls.len() > CALLS {
                return Err(format!("the limit is {CALLS} values of a group"));
            }
            if fold.clauses.iter().any(|at| *at >= self.clauses.len()) {
                return Err("a group-by refers to a clause that does not exist".into());
            }
            for call in &fold.calls {
                let KeepWord::Limits(own) = &call.keep else {
                    continue;
                };
                limits += own.len();
                if own.len() > LIMITS || !own.is_sorted() {
                    return Err(format!(
                        "a histogram has at most {LIMITS} limits, in ascending order"
                    ));
                }
            }
        }
        match limits > LIMITS_ALL {
            true => Err(format!("the limit is {LIMITS_ALL} limits of histograms")),
            false => Ok(()),
        }
    }
}

impl FoldWord {
    /// The fold of a plan; its clauses are to be added.
    pub fn of(plan: &Plan, by_disk: bool, by_op: bool) -> FoldWord {
        let call = |call: &Call| CallWord {
            measure: call.measure(),
            keep: match call.keep {
                keep::MOMENTS => KeepWord::Moments,
                keep::LIMITS => KeepWord::Limits(call.limits.clone()),
                _ => KeepWord::LogLinear,
            },
        };
        FoldWord {
            interval_ns: plan.kernel.interval_ns,
            by_disk,
            by_op,
            clauses: Vec::new(),
            calls: plan.kernel.calls.iter().map(call).collect(),
        }
    }

    /// Its calls, as the tables of groups have them.
    pub fn kernel_calls(&self) -> Vec<Call> {
        let mut place = 0;
        let call = |word: &CallWord| {
            let (keep, limits) = match &word.keep {
                KeepWord::Moments => (keep::MOMENTS, Vec::new()),
                KeepWord::Limits(limits) => (keep::LIMITS, limits.clone()),
                KeepWord::LogLinear => (keep::LOG_LINEAR, Vec::new()),
            };
            let own = if keep == keep::MOMENTS { place } else { 0 };
            place += u8::from(keep == keep::MOMENTS);
            Call {
                measure: word.measure as u8,
                keep,
                place: own,
                is_signed: word.measure.is_signed(),
                limits,
            }
        };
        self.calls.iter().map(call).collect()
    }
}

impl Wanted {
    /// Whether its groups have values of this measure.
    pub fn groups_have(&self, measure: BlockMeasure) -> bool {
        let mut calls = self.folds.iter().flat_map(|fold| &fold.calls);
        calls.any(|call| call.measure == measure)
    }

    /// The tables that its groups need, with about `bytes` for the bins of each ring; `None` without
    /// groups, and if a clause of theirs has a test that this version does not have: no other
    /// program tests the requests in groups.
    pub fn group_tables(&self, bytes: usize) -> Option<GroupTables> {
        let clauses = self.folds.iter().flat_map(|fold| &fold.clauses);
        let mut clauses = clauses.filter_map(|at| self.clauses.get(*at));
        if clauses.any(|clause| !clause.unknown.is_empty()) {
            return None;
        }
        let calls = |fold: &FoldWord| {
            let moments = fold
                .calls
                .iter()
                .filter(|call| call.keep == KeepWord::Moments);
            (moments.count(), fold.calls.len())
        };
        let counts: Vec<(usize, usize)> = self.folds.iter().map(calls).collect();
        let moments = counts.iter().map(|(moments, _)| *moments).max()?;
        let has_bins = counts.iter().any(|(moments, calls)| calls > moments);
        Some(GroupTables::new(moments as u32, has_bins, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_limits() {
        let clauses = |n| {
            let clauses = vec![ClauseWord::all("Q"); n];
            Ask::Records(Wanted {
                clauses,
                ..Wanted::default()
            })
        };
        assert!(clauses(CLAUSES_MAX).checked().is_ok());
        let error = clauses(CLAUSES_MAX + 1).checked().unwrap_err();
        assert!(error.contains("the limit is"), "{error}");
        let narrow = |tests| {
            let between = vec![(FieldWord::Sector, 0, 1); tests];
            let clause = ClauseWord {
                between,
                ..ClauseWord::all("Q")
            };
            let clauses = vec![clause];
            Ask::Records(Wanted {
                clauses,
                ..Wanted::default()
            })
        };
        assert!(narrow(TESTS_MAX).checked().is_ok());
        assert!(narrow(TESTS_MAX + 1).checked().is_err());
    }
}
