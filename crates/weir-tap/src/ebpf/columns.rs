//! [`COLUMNS`]: what the live tap does with each column of block I/O, in one table. Its planner's
//! view of it is [`capabilities`].

use std::sync::LazyLock;

use weir_model::capabilities::{Measure as Measured, Select};
use weir_model::event::IO_PAIRS;
use weir_model::{
    Capabilities, ColumnCapabilities, Demand, GroupLimits, Limits, NANOS_PER_SECOND,
    StreamCapabilities,
};

use super::fold::Key;
use super::fold::layout::{CALLS, LIMITS, LOG_BITS, Measure};
use super::layout::{self, CLAUSES, test};
use super::needs::Columns;
use super::rows::Source;

/// What the tap does with one column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name in `IO`.
    pub name: &'static str,
    /// Where its values in rows come from; `None` if another part of the system fills it in.
    pub read: Option<Source>,
    /// What it costs, of a column that costs something.
    pub need: Option<fn(&mut Columns) -> &mut bool>,
    /// How it is tested.
    pub test: Tested,
    /// Rows are sampled by it.
    pub sample: bool,
    /// How groups are told apart by it.
    pub key: Option<Key>,
    /// What is kept of its values in groups.
    pub measure: Option<Measure>,
    /// It is NULL in every row that is grouped.
    pub null_in_groups: bool,
}

/// How a column is tested.
#[derive(Clone, Copy, Debug)]
pub enum Tested {
    /// Not at all.
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
    /// By these bounds, and this bit of `test`.
    Wide(u32, fn(&mut layout::Clause) -> &mut [u64; 2]),
    /// Likewise.
    Narrow(u32, fn(&mut layout::Clause) -> &mut [u32; 2]),
}

/// The columns of `IO` in its order; `IOstream` has the first of them.
pub static COLUMNS: [Column; 28] = [
    Column::new("ts", Source::Ts),
    Column::new("type", Source::Kind)
        .test(Tested::Kind)
        .key(Key::Kind),
    Column::new("op", Source::Op).test(Tested::Op).key(Key::Op),
    Column::new("req_id", Source::Request).need(|c| &mut c.req_id),
    Column::new("sector", Source::Sector)
        .test(Tested::Wide(test::SECTOR, |c| &mut c.sector))
        .sample(),
    Column::new("sectors", Source::Sectors)
        .test(Tested::Narrow(test::SECTORS, |c| &mut c.sectors))
        .measure(Measure::Sectors),
    Column::new("bytes", Source::Bytes).measure(Measure::Bytes),
    Column::new("vm", Source::Vm)
        .need(|c| &mut c.owner)
        .key(Key::Vm),
    Column::new("vdisk", Source::Vdisk)
        .need(|c| &mut c.owner)
        .key(Key::Vdisk),
    Column::new("pdisk", Source::Pdisk)
        .test(Tested::Device)
        .key(Key::Pdisk),
    Column::new("agent_ts", Source::Taken),
    // The monitor fills it in.
    Column {
        read: None,
        ..Column::new("monitor_ts", Source::Taken)
    },
    Column::new("host", Source::Host).key(Key::Host),
    Column::new("level", Source::Level).key(Key::Level),
    Column::new("pid", Source::Pid)
        .need(|c| &mut c.pid)
        .test(Tested::Narrow(test::PID, |c| &mut c.pid))
        .key(Key::Pid),
    Column::new("comm", Source::Comm)
        .need(|c| &mut c.comm)
        .test(Tested::Comm)
        .key(Key::Comm),
    Column::new("cgroup", Source::Cgroup)
        .need(|c| &mut c.cgroup)
        .test(Tested::Cgroup)
        .key(Key::Cgroup),
    Column::new("cpu", Source::Cpu).need(|c| &mut c.cpu),
    Column::new("flags", Source::Flags).need(|c| &mut c.flags),
    // What failed comes as a row.
    Column {
        null_in_groups: true,
        ..Column::new("error", Source::Error)
    },
    Column::new("merges", Source::Merges).need(|c| &mut c.merges),
    Column::new("vsector", Source::Vsector).need(|c| &mut c.owner),
    Column::new("wait", Source::Wait)
        .need(|c| &mut c.wait)
        .test(Tested::Wide(test::WAIT, |c| &mut c.wait_ns))
        .measure(Measure::Wait),
    Column::new("service", Source::Service)
        .need(|c| &mut c.service)
        .test(Tested::Wide(test::SERVICE, |c| &mut c.service_ns))
        .measure(Measure::Service),
    Column::new("latency", Source::Latency)
        .need(|c| &mut c.latency)
        .test(Tested::Wide(test::LATENCY, |c| &mut c.latency_ns))
        .measure(Measure::Latency),
    Column::new("in_flight", Source::InFlight).need(|c| &mut c.in_flight),
    Column::new("seek", Source::Seek).need(|c| &mut c.seek),
    Column::new("issue_ts", Source::IssueTs).need(|c| &mut c.issue_ts),
];

/// Tests in one alternative, and texts in one test, at most.
const TESTS_MAX: usize = 8;
const TEXTS_MAX: usize = 16;

/// What groups the kernel programs make. A shorter interval is over before its groups are taken
/// out; in a longer one 64 bits might not hold the sum of all times (`FOLD_VALUE_MAX` in `fold.h`).
const GROUPS: GroupLimits = GroupLimits {
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

    const fn measure(self, measure: Measure) -> Column {
        Column {
            measure: Some(measure),
            ..self
        }
    }

    fn capabilities(&self) -> ColumnCapabilities {
        ColumnCapabilities {
            select: match self.test {
                Tested::No => Select::No,
                // A cgroup that is new is not known in the kernel.
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
}

/// What the live tap can do with `IO` and `IOstream`.
pub fn capabilities() -> &'static Capabilities {
    static CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| {
        let limits = Limits {
            clauses: CLAUSES,
            tests: TESTS_MAX,
            texts: TEXTS_MAX,
        };
        let of = |name: &str| {
            let column = COLUMNS.iter().find(|column| column.name == name);
            column.map_or_else(ColumnCapabilities::default, Column::capabilities)
        };
        let why = "it is not over finished requests alone, stream IO";
        let mut all = Capabilities::of_io(limits, why, Ok(()), of);
        let finished = |s: &&mut StreamCapabilities| s.declaration.name == IO_PAIRS.finished;
        if let Some(io) = all.streams.iter_mut().find(finished) {
            io.groups = Ok(GROUPS);
        }
        all
    });
    &CAPABILITIES
}

/// What the columns that demands name cost: those of rows, and those of groups.
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
