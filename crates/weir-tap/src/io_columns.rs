//! [`COLUMNS`]: how the live tap and a tapdisk provide each column of `IO`: how it is read, tested,
//! sampled, grouped, measured, and its cost. With `weir_model::event`, which has the columns'
//! names, types, units and meaning at the same positions, it is the table of the columns of block
//! I/O. The planner uses it as [`live_capabilities`] and [`tapdisk_capabilities`].

use std::sync::LazyLock;

use weir_model::capabilities::{Measure as Measured, Select};
use weir_model::event::IO_PAIRS;
use weir_model::{
    Capabilities, ColumnCapabilities, Demand, GroupLimits, NANOS_PER_SECOND, SelectionLimits,
    StreamCapabilities,
};

use crate::ebpf::fold::Key;
use crate::ebpf::fold::layout::{BlockMeasure, CALLS, LIMITS, LOG_BITS};
use crate::ebpf::layout::{self, ALTERNATIVES, test};
use crate::ebpf::rows::Source;
use crate::tapdisk::words::{self, FieldWord};

/// How the taps provide one column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name in `IO`.
    pub name: &'static str,
    /// Source of its values in rows; `None` if another component sets it.
    pub read: Option<Source>,
    /// The cost of reading it, if it has one.
    pub need: Option<fn(&mut Columns) -> &mut bool>,
    /// How the kernel tests it.
    pub test: Tested,
    /// How a tapdisk tests it.
    pub tapdisk: TapdiskTest,
    /// True if rows are sampled by it.
    pub sample: bool,
    /// How it is used as a key of groups.
    pub key: Option<Key>,
    /// The measure that groups keep of its values.
    pub measure: Option<BlockMeasure>,
    /// True if it is NULL in every row that is grouped.
    pub null_in_groups: bool,
}

/// How the kernel tests a column.
#[derive(Clone, Copy, Debug)]
pub enum Tested {
    /// No test.
    No,
    /// By the kinds of record.
    Kind,
    /// By a bit for each operation.
    Op,
    /// By the set of devices.
    Device,
    /// By the set of cgroups.
    Cgroup,
    /// By command names.
    Comm,
    /// By these bounds, and this bit of `test`; 64-bit values.
    Wide(u32, fn(&mut layout::Clause) -> &mut [u64; 2]),
    /// By these bounds, and this bit of `test`; 32-bit values.
    Narrow(u32, fn(&mut layout::Clause) -> &mut [u32; 2]),
}

/// How a tapdisk tests a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapdiskTest {
    /// No test.
    No,
    /// Compares the letters of events.
    Kind,
    /// Compares the letters of operations.
    Op,
    /// Compares the names of disks on the host.
    Pdisk,
    /// Compares the names of VMs.
    Vm,
    /// Compares the names of disks in their VM.
    Vdisk,
    /// Compares a number.
    Number(FieldWord),
    /// The column is NULL in every event, which passes no test.
    Null,
}

/// Columns with a cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Insert to issue.
    pub wait: bool,
    /// Issue to complete.
    pub service: bool,
    /// Insert to complete.
    pub latency: bool,
    /// Thread group.
    pub pid: bool,
    /// Command name.
    pub comm: bool,
    /// Cgroup.
    pub cgroup: bool,
    /// Processor of issue.
    pub cpu: bool,
    /// Flag letters.
    pub flags: bool,
    /// Bios beyond the first.
    pub merges: bool,
    /// The request's number.
    pub req_id: bool,
    /// Requests in flight.
    pub in_flight: bool,
    /// Distance from the previous request.
    pub seek: bool,
    /// Time since the previous request.
    pub interarrival: bool,
    /// VM, virtual disk and the sector there.
    pub owner: bool,
    /// The time at which it was reported as issued.
    pub issue_ts: bool,
    /// The path of the file.
    pub file: bool,
    /// The number of the file.
    pub inode: bool,
}

impl Columns {
    /// True if the relation of a request to the others of its disk is read.
    pub fn has_relation(&self) -> bool {
        self.in_flight || self.seek || self.interarrival
    }
}

/// The columns of `IO` in its order; `IOstream` has the first of them.
pub static COLUMNS: [Column; 31] = [
    Column::new("ts", Source::Ts),
    Column::new("type", Source::Kind)
        .test(Tested::Kind)
        .key(Key::Kind)
        .tapdisk(TapdiskTest::Kind),
    Column::new("op", Source::Op)
        .test(Tested::Op)
        .key(Key::Op)
        .tapdisk(TapdiskTest::Op),
    Column::new("req_id", Source::Request).need(|c| &mut c.req_id),
    Column::new("sector", Source::Sector)
        .test(Tested::Wide(test::SECTOR, |c| &mut c.sector))
        .sample()
        .tapdisk(TapdiskTest::Number(FieldWord::Sector)),
    Column::new("sectors", Source::Sectors)
        .test(Tested::Narrow(test::SECTORS, |c| &mut c.sectors))
        .measure(BlockMeasure::Sectors)
        .tapdisk(TapdiskTest::Number(FieldWord::Sectors)),
    Column::new("bytes", Source::Bytes).measure(BlockMeasure::Bytes),
    Column::new("vm", Source::Vm)
        .need(|c| &mut c.owner)
        .key(Key::Vm)
        .tapdisk(TapdiskTest::Vm),
    Column::new("vdisk", Source::Vdisk)
        .need(|c| &mut c.owner)
        .key(Key::Vdisk)
        .tapdisk(TapdiskTest::Vdisk),
    Column::new("pdisk", Source::Pdisk)
        .test(Tested::Device)
        .key(Key::Pdisk)
        .tapdisk(TapdiskTest::Pdisk),
    Column::new("agent_ts", Source::Taken),
    // Set by the monitor.
    Column {
        read: None,
        ..Column::new("monitor_ts", Source::Taken)
    },
    Column::new("host", Source::Host).key(Key::Host),
    Column::new("level", Source::Level).key(Key::Level),
    Column::new("pid", Source::Pid)
        .need(|c| &mut c.pid)
        .test(Tested::Narrow(test::PID, |c| &mut c.pid))
        .key(Key::Pid)
        .tapdisk(TapdiskTest::Null),
    Column::new("comm", Source::Comm)
        .need(|c| &mut c.comm)
        .test(Tested::Comm)
        .key(Key::Comm)
        .tapdisk(TapdiskTest::Null),
    Column::new("cgroup", Source::Cgroup)
        .need(|c| &mut c.cgroup)
        .test(Tested::Cgroup)
        .key(Key::Cgroup)
        .tapdisk(TapdiskTest::Null),
    Column::new("cpu", Source::Cpu)
        .need(|c| &mut c.cpu)
        .tapdisk(TapdiskTest::Null),
    Column::new("flags", Source::Flags).need(|c| &mut c.flags),
    // Requests with errors are delivered as rows.
    Column {
        null_in_groups: true,
        ..Column::new("error", Source::Error)
    },
    Column::new("merges", Source::Merges)
        .need(|c| &mut c.merges)
        .measure(BlockMeasure::Merges)
        .tapdisk(TapdiskTest::Null),
    Column::new("vsector", Source::Vsector)
        .need(|c| &mut c.owner)
        .tapdisk(TapdiskTest::Number(FieldWord::Sector)),
    Column::new("wait", Source::Wait)
        .need(|c| &mut c.wait)
        .test(Tested::Wide(test::WAIT, |c| &mut c.wait_ns))
        .measure(BlockMeasure::Wait)
        .tapdisk(TapdiskTest::Number(FieldWord::Wait)),
    Column::new("service", Source::Service)
        .need(|c| &mut c.service)
        .test(Tested::Wide(test::SERVICE, |c| &mut c.service_ns))
        .measure(BlockMeasure::Service)
        .tapdisk(TapdiskTest::Number(FieldWord::Service)),
    Column::new("latency", Source::Latency)
        .need(|c| &mut c.latency)
        .test(Tested::Wide(test::LATENCY, |c| &mut c.latency_ns))
        .measure(BlockMeasure::Latency)
        .tapdisk(TapdiskTest::Number(FieldWord::Latency)),
    Column::new("in_flight", Source::InFlight)
        .need(|c| &mut c.in_flight)
        .measure(BlockMeasure::InFlight),
    Column::new("seek", Source::Seek)
        .need(|c| &mut c.seek)
        .measure(BlockMeasure::Seek),
    Column::new("interarrival", Source::Interarrival)
        .need(|c| &mut c.interarrival)
        .measure(BlockMeasure::Interarrival),
    Column::new("issue_ts", Source::IssueTs).need(|c| &mut c.issue_ts),
    Column::new("file", Source::File)
        .need(|c| &mut c.file)
        .tapdisk(TapdiskTest::Null),
    Column::new("inode", Source::Inode)
        .need(|c| &mut c.inode)
        .tapdisk(TapdiskTest::Null),
];

/// Maximum number of tests in one alternative, and of texts in one test.
const TESTS_MAX: usize = 8;
const TEXTS_MAX: usize = 16;

/// Limits of groups in kernel programs. A shorter interval would end before its groups are read; in
/// a longer one the sum of all times might exceed 64 bits (`FOLD_VALUE_MAX` in `fold.h`).
pub const GROUPS: GroupLimits = GroupLimits {
    interval_min_ns: 1_000_000,
    interval_max_ns: 600 * NANOS_PER_SECOND,
    kept_max: CALLS,
    limits_max: LIMITS,
    log_linear_bits: Some(LOG_BITS),
};

impl Column {
    const fn new(name: &'static str, read: Source) -> Column {
        Column {
            name,
            read: Some(read),
            need: None,
            test: Tested::No,
            tapdisk: TapdiskTest::No,
            sample: false,
            key: None,
            measure: None,
            null_in_groups: false,
        }
    }

    const fn need(self, of: fn(&mut Columns) -> &mut bool) -> Column {
        Column {
            need: Some(of),
            ..self
        }
    }

    const fn test(self, test: Tested) -> Column {
        Column { test, ..self }
    }

    const fn tapdisk(self, test: TapdiskTest) -> Column {
        Column {
            tapdisk: test,
            ..self
        }
    }

    const fn sample(self) -> Column {
        Column {
            sample: true,
            ..self
        }
    }

    const fn key(self, key: Key) -> Column {
        Column {
            key: Some(key),
            ..self
        }
    }

    const fn measure(self, measure: BlockMeasure) -> Column {
        Column {
            measure: Some(measure),
            ..self
        }
    }

    fn of_live_tap(&self) -> ColumnCapabilities {
        ColumnCapabilities {
            select: match self.test {
                Tested::No => Select::No,
                // A new cgroup is not known in the kernel.
                Tested::Cgroup => Select::AtLeast,
                _ => Select::Exact,
            },
            sample: self.sample,
            group: self.key.is_some(),
            measure: match self.measure {
                Some(_) => Measured::Kept,
                None if self.null_in_groups => Measured::Null,
                None => Measured::No,
            },
            product: None,
        }
    }

    fn of_tapdisk(&self) -> ColumnCapabilities {
        let is_null = self.tapdisk == TapdiskTest::Null;
        ColumnCapabilities {
            select: match self.tapdisk {
                TapdiskTest::No => Select::No,
                _ => Select::Exact,
            },
            sample: self.tapdisk == TapdiskTest::Number(FieldWord::Sector),
            group: self.key.is_some(),
            measure: match self.measure {
                Some(_) if !is_null => Measured::Kept,
                _ if is_null || self.null_in_groups => Measured::Null,
                _ => Measured::No,
            },
            product: None,
        }
    }
}

/// The column with this name.
fn named(name: &str) -> &'static Column {
    let found = COLUMNS.iter().find(|column| column.name == name);
    found.expect("the table has every column of IO")
}

/// The capabilities of a tapdisk for `IO` and `IOstream`. A sector of the virtual disk is a sector
/// of the image.
pub fn tapdisk_capabilities() -> Capabilities {
    let limits = SelectionLimits {
        clauses: words::CLAUSES_MAX,
        tests: words::TESTS_MAX,
        texts: words::TESTS_MAX,
    };
    with_groups(limits, Column::of_tapdisk)
}

/// The capabilities of a source of requests that makes groups of the finished ones.
fn with_groups(limits: SelectionLimits, of: fn(&Column) -> ColumnCapabilities) -> Capabilities {
    let why = "it is not on stream IO, which contains completed requests only";
    let mut all = Capabilities::of_io(limits, why, Ok(()), |name| of(named(name)));
    let finished = |s: &&mut StreamCapabilities| s.declaration.name == IO_PAIRS.finished;
    if let Some(io) = all.streams.iter_mut().find(finished) {
        io.groups = Ok(GROUPS);
    }
    all
}

/// The capabilities of the live tap for `IO` and `IOstream`.
pub fn live_capabilities() -> &'static Capabilities {
    static CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| {
        let limits = SelectionLimits {
            clauses: ALTERNATIVES,
            tests: TESTS_MAX,
            texts: TEXTS_MAX,
        };
        with_groups(limits, Column::of_live_tap)
    });
    &CAPABILITIES
}

/// The costs of the columns that demands name, in rows and in groups.
pub fn needed<'a>(demands: impl IntoIterator<Item = &'a Demand>) -> Columns {
    let mut needed = Columns::default();
    for demand in demands {
        let folded = demand.fold.iter().flat_map(|fold| {
            let calls = fold.calls.iter().filter_map(|call| call.column);
            fold.keys.iter().copied().chain(calls)
        });
        let columns = demand.columns.iter().copied().chain(folded);
        for need in columns.filter_map(|at| COLUMNS[at].need) {
            *need(&mut needed) = true;
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use weir_model::event::io_schema;

    use super::*;

    #[test]
    fn the_table_has_the_columns_of_io_in_their_order() {
        let schema = io_schema();
        let declared: Vec<&str> = schema.fields.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(COLUMNS.map(|column| column.name), declared[..]);
    }
}
