//! [`PathSelection`]: which rows of `IOpath` are read, and the query for them.

use std::time::Duration;

use weir_runtime::question::quoted;
/// The levels: the columns of `IOpath` with the time at each.
pub use weir_workload::outliers::LEVELS;

/// The columns that identify a request, for those that are printed one by one.
const IDENTITY: [&str; 8] = [
    "op",
    "bytes",
    "path",
    "offset",
    "flags",
    "pid",
    "comm",
    "user_data",
];

/// The selected requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathSelection {
    /// Those of this VM only.
    pub vm: Option<String>,
    /// Those of this device of the host only.
    pub pdisk: Option<String>,
    /// The number of slowest requests that are printed one by one.
    pub slowest: usize,
}

impl PathSelection {
    /// The CQL for the rows: VM, virtual disk and disk, why the file is not known, the latency, the
    /// time at each level; then, if single requests are printed, what identifies them.
    pub fn rows(&self) -> String {
        let mut columns = vec!["vm", "vdisk", "pdisk", "untied", "latency"];
        columns.extend(LEVELS);
        if self.slowest > 0 {
            columns.extend(IDENTITY);
        }
        let test = |column: &str, value: &Option<String>| {
            let value = value.as_deref()?;
            Some(format!("{column} = {}", quoted(value)))
        };
        let tests = [test("vm", &self.vm), test("pdisk", &self.pdisk)];
        let tests: Vec<String> = tests.into_iter().flatten().collect();
        let condition = match tests.is_empty() {
            true => String::new(),
            false => format!(" where {}", tests.join(" and ")),
        };
        format!("select {} from IOpath{condition}", columns.join(", "))
    }
}

/// The CQL for a row at the end of each interval, also of one without requests.
pub fn ends(interval: Duration) -> String {
    let nanos = interval.as_nanos();
    format!("Rstream(select count(*) as counters from weir) every {nanos} ns")
}
