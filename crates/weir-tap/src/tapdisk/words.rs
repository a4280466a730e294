//! [`Tapdisk`]: the requests at a tapdisk's control socket and its responses, over the control
//! protocol.
//!
//! ```text
//! > {"service":"tapdisk","version":1,"body":{"request":"status"}}
//! < {"service":"tapdisk","version":1,"body":{"response":{"status":{"pid":4711,...}}}}
//! > {.. "body":{"request":{"records":{"clauses":[{"kinds":"REN","ops":"w"}],"ring_bytes":67108864}}}}
//! < {.. "body":{"response":{"records":{"layout":1,"ring_records":65536,...}}}}  and a memfd beside it
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_model::capabilities::{RequestRows, recording};
use weir_model::{Clause, Demand, Operand, Predicate, Symbol, Test};

use crate::control::Service;
use crate::control::message::encode_request;
use crate::io_columns::{COLUMNS, TapdiskTest};

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
    /// Maximum size of all rings together, for the current number of rings.
    pub ring_bytes: u64,
}

/// A conjunction of tests. A tapdisk may ignore a test that it does not have: the consumer tests
/// its records again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClauseWord {
    /// One of these kinds, by letters of `QREN`.
    pub kinds: String,
    /// One of these operations, by letters of `rwfdz`.
    pub ops: String,
    /// A disk with one of these names on the host; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdisks: Option<Vec<String>>,
    /// Numbers in ranges, both bounds inclusive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub between: Vec<(FieldWord, i64, i64)>,
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
            let tests = |c: &ClauseWord| {
                let names = c.pdisks.as_ref().map_or(0, Vec::len);
                names.max(c.between.len())
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

/// The letters of all kinds.
const KINDS: &str = "QREN";

/// The letters of all operations.
const OPS: &str = "rwfdz";

impl Wanted {
    /// The request that covers all of `demands`: those records, or more.
    pub fn of(demands: &[Demand], ring_bytes: u64) -> Wanted {
        let mut clauses: Vec<ClauseWord> = Vec::new();
        for demand in demands {
            let Some(kinds) = kinds_of(&demand.stream) else {
                continue;
            };
            for clause in of_predicate(kinds, &demand.predicate) {
                if !clauses.contains(&clause) {
                    clauses.push(clause);
                }
            }
        }
        if clauses.len() > CLAUSES_MAX {
            let kind = |k: &char| clauses.iter().any(|c| c.kinds.contains(*k));
            let kinds: String = KINDS.chars().filter(kind).collect();
            clauses = vec![ClauseWord::all(&kinds)];
        }
        let wanted = Wanted {
            clauses,
            ring_bytes,
        };
        if encode_request::<Tapdisk>(&Ask::Records(wanted.clone())).is_ok() {
            return wanted;
        }
        // Names of disks may be paths of up to 4 KiB.
        let any_disk = |clause| ClauseWord {
            pdisks: None,
            ..clause
        };
        Wanted {
            clauses: wanted.clauses.into_iter().map(any_disk).collect(),
            ring_bytes,
        }
    }
}

/// The kinds of events that are rows of a stream.
fn kinds_of(stream: &str) -> Option<&'static str> {
    Some(match RequestRows::of(stream)? {
        RequestRows::Finished => &KINDS[1..],
        RequestRows::Events | RequestRows::All => KINDS,
    })
}

fn of_predicate(kinds: &str, predicate: &Predicate) -> Vec<ClauseWord> {
    let clauses = predicate.clauses.iter();
    clauses
        .filter_map(|clause| of_clause(kinds, clause))
        .collect()
}

/// `None` if no event can pass. Tests that are omitted here are applied by the consumer.
fn of_clause(kinds: &str, clause: &Clause) -> Option<ClauseWord> {
    let mut word = ClauseWord::all(kinds);
    for test in &clause.tests {
        let operand = test.operand();
        match (COLUMNS[operand.column()].tapdisk, test) {
            (TapdiskTest::Null, _) => return None,
            (TapdiskTest::Number(field), Test::Between { low, high, .. }) => {
                let field = match operand {
                    Operand::Value(_) => field,
                    Operand::Sample(_) => FieldWord::SectorSpread,
                };
                let between = (field, *low, *high);
                if !word.between.contains(&between) {
                    word.between.push(between);
                }
            }
            (tested, Test::In { texts, .. }) => word.narrow(tested, texts),
            _ => {}
        }
    }
    let empty = word.kinds.is_empty() || word.ops.is_empty();
    word.between.truncate(TESTS_MAX);
    let fits = |names: &Vec<String>| names.len() <= TESTS_MAX;
    word.pdisks = word.pdisks.filter(fits);
    (!empty).then_some(word)
}

impl ClauseWord {
    /// Every event of these kinds.
    pub fn all(kinds: &str) -> ClauseWord {
        ClauseWord {
            kinds: kinds.into(),
            ops: OPS.into(),
            ..ClauseWord::default()
        }
    }

    /// Restricts it to events with one of `texts` in that column.
    fn narrow(&mut self, tested: TapdiskTest, texts: &[Symbol]) {
        let is = |letter: char| texts.iter().any(|t| t.as_str().chars().eq([letter]));
        match tested {
            TapdiskTest::Kind => self.kinds.retain(is),
            TapdiskTest::Op => self.ops.retain(is),
            TapdiskTest::Pdisk => {
                let names = texts.iter().map(|t| t.as_str().to_owned());
                self.pdisks = Some(match self.pdisks.take() {
                    None => names.collect(),
                    Some(before) => names.filter(|n| before.contains(n)).collect(),
                });
            }
            TapdiskTest::Number(_) | TapdiskTest::Null | TapdiskTest::No => {}
        }
    }
}

/// The letters, separated.
fn listed(letters: &str) -> String {
    letters
        .chars()
        .map(String::from)
        .collect::<Vec<_>>()
        .join(", ")
}

impl fmt::Display for ClauseWord {
    /// Prints it in CQL syntax.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "type in ({})", listed(&self.kinds))?;
        if self.ops != OPS {
            write!(f, " and op in ({})", listed(&self.ops))?;
        }
        if let Some(names) = &self.pdisks {
            write!(f, " and pdisk in ({})", names.join(", "))?;
        }
        for (field, low, high) in &self.between {
            let name = field.name();
            match (*low, *high) {
                (low, high) if low == high => write!(f, " and {name} = {low}")?,
                (low, i64::MAX) => write!(f, " and {name} >= {low}")?,
                (i64::MIN, high) => write!(f, " and {name} <= {high}")?,
                (low, high) => write!(f, " and {name} between {low} and {high}")?,
            }
        }
        Ok(())
    }
}

impl FieldWord {
    fn name(self) -> &'static str {
        match self {
            FieldWord::Sector => "sector",
            FieldWord::SectorSpread => "the sample number of sector",
            FieldWord::Sectors => "sectors",
            FieldWord::Wait => "wait",
            FieldWord::Service => "service",
            FieldWord::Latency => "latency",
        }
    }
}

/// A demand for everything, as for a recording.
pub fn everything() -> Demand {
    Demand::whole(&recording())
}

#[cfg(test)]
mod tests {
    use weir_model::event::io_schema;
    use weir_model::{EventKind, Op};

    use super::*;

    #[test]
    fn letters_are_those_of_the_model() {
        let kinds: String = EventKind::ALL.map(EventKind::as_str).concat();
        let ops: String = Op::ALL.map(Op::as_str).concat();
        assert_eq!((kinds.as_str(), ops.as_str()), (KINDS, OPS));
    }

    #[test]
    fn a_request_has_its_limits() {
        let clauses = |n| {
            let clauses = vec![ClauseWord::all("Q"); n];
            Ask::Records(Wanted {
                clauses,
                ring_bytes: 0,
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
                ring_bytes: 0,
            })
        };
        assert!(narrow(TESTS_MAX).checked().is_ok());
        assert!(narrow(TESTS_MAX + 1).checked().is_err());
    }

    fn demand(stream: &str, tests: Vec<Test>) -> Demand {
        Demand {
            stream: stream.into(),
            predicate: Predicate {
                clauses: vec![Clause { tests }],
            },
            ..everything()
        }
    }

    fn is_one_of(column: &str, texts: &[&str]) -> Test {
        Test::In {
            operand: Operand::Value(io_schema().index(column)),
            texts: texts.iter().map(|t| Symbol::new(t)).collect(),
        }
    }

    #[test]
    fn an_unsatisfiable_selection_is_not_requested() {
        let wanted = |demand: Demand| Wanted::of(&[demand], 0).clauses;
        assert_eq!(wanted(demand("IO", vec![])), [ClauseWord::all("REN")]);
        let requests = is_one_of("type", &["Q"]);
        assert_eq!(wanted(demand("IO", vec![requests.clone()])), []);
        assert_eq!(
            wanted(demand("IOstream", vec![requests])),
            [ClauseWord::all("Q")]
        );
        assert_eq!(
            wanted(demand("IO", vec![is_one_of("comm", &["fio"])])),
            [],
            "who submitted it is not known"
        );
        assert_eq!(wanted(demand("vms", vec![])), []);
        let disks = |names: &[&str]| is_one_of("pdisk", names);
        let both = wanted(demand("IO", vec![disks(&["a", "b"]), disks(&["b", "c"])]));
        assert_eq!(both[0].pdisks, Some(vec!["b".to_owned()]));
    }
}
