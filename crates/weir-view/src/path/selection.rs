//! [`PathSelection`]: which rows of which stream with levels are read, and the query for them.

use std::time::Duration;

use weir_runtime::question::quoted;
/// The levels of a host: the columns of `IOpath` with the time at each.
use weir_workload::outliers::LEVELS;

/// A stream with the time of its requests at each level.
#[derive(Debug)]
pub struct LevelStream {
    /// Its name.
    pub name: &'static str,
    /// The columns with the time at each level, in the order of the levels.
    pub levels: &'static [&'static str],
    /// The column by which a disk is selected.
    pub disk: &'static str,
    /// The column that names a disk beside its VM and its virtual disk.
    pub place: &'static str,
    /// Its heading in a table.
    pub heading: &'static str,
    /// The column with the reason why a level is not known.
    pub cause: &'static str,
    /// The columns that identify a request, for those that are printed one by one.
    pub identity: &'static [&'static str],
}

/// The levels of a host.
pub static HOST_LEVELS: LevelStream = LevelStream {
    name: "IOpath",
    levels: &LEVELS,
    disk: "pdisk",
    place: "pdisk",
    heading: "DISK",
    cause: "untied",
    identity: &[
        "op",
        "bytes",
        "path",
        "offset",
        "flags",
        "pid",
        "comm",
        "user_data",
    ],
};

/// The levels of guests and their virtual disks, in a fleet.
pub static GUEST_LEVELS: LevelStream = LevelStream {
    name: "GuestIO",
    levels: &[
        "guest_wait",
        "guest_queue",
        "vdisk_wait",
        "vdisk_service",
        "guest_return",
    ],
    disk: "vdisk",
    place: "host",
    heading: "HOST",
    cause: "unmatched",
    identity: &["op", "bytes", "sector", "pid", "comm", "req_id"],
};

/// Most levels of a stream.
pub const LEVELS_MAX: usize = LEVELS.len();

/// The selected requests.
#[derive(Clone, Debug)]
pub struct PathSelection {
    /// Whose levels.
    pub stream: &'static LevelStream,
    /// Those of this VM only.
    pub vm: Option<String>,
    /// Those of this disk only: the device of a host, the virtual disk of a guest.
    pub disk: Option<String>,
    /// The number of slowest requests that are printed one by one.
    pub slowest: usize,
}

impl PathSelection {
    /// The CQL for the rows: VM, virtual disk and place, why a level is not known, the latency, the
    /// time at each level; then, if single requests are printed, what identifies them.
    pub fn rows(&self) -> String {
        let stream = self.stream;
        let mut columns = vec!["vm", "vdisk", stream.place, stream.cause, "latency"];
        columns.extend(stream.levels);
        if self.slowest > 0 {
            columns.extend(stream.identity);
        }
        let test = |column: &str, value: &Option<String>| {
            let value = value.as_deref()?;
            Some(format!("{column} = {}", quoted(value)))
        };
        let tests = [test("vm", &self.vm), test(stream.disk, &self.disk)];
        let tests: Vec<String> = tests.into_iter().flatten().collect();
        let condition = match tests.is_empty() {
            true => String::new(),
            false => format!(" where {}", tests.join(" and ")),
        };
        format!(
            "select {} from {}{condition}",
            columns.join(", "),
            stream.name
        )
    }
}

/// The CQL for a row at the end of each interval, also of one without requests.
pub fn ends(interval: Duration) -> String {
    let nanos = interval.as_nanos();
    format!("Rstream(select count(*) as counters from weir) every {nanos} ns")
}
