//! [`query`]: the CQL for the load of each disk in each step, from which correlations are computed.

use weir_model::{Batch, Column, Symbol};
use weir_workload::correlation::StepLoad;
use weir_workload::{HostedDisk, SubjectName};

/// Where the steps are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepSource {
    /// This host: the kernel can aggregate them.
    Host,
    /// The hosts of a fleet.
    Fleet,
    /// A recording: the insert of a request may be unknown, and rows may be of several hosts.
    Recording,
}

impl StepSource {
    /// True if they happen now.
    pub fn is_live(self) -> bool {
        self != StepSource::Recording
    }

    fn has_hosts(self) -> bool {
        self != StepSource::Host
    }
}

/// The device in the row of all disks, which marks the end of a step also when all are idle.
const EVERYTHING: &str = "(all)";

/// The query, a stream: host, VM, disk of the VM and device, and the requests, bytes, known
/// latencies and their sum of each step. `step` is a duration in CQL.
pub fn query(step: &str, source: StepSource) -> String {
    let time = match source.is_live() {
        true => "latency",
        false => "coalesce(latency, service)",
    };
    let (host, no_host) = match source.has_hosts() {
        true => ("host, ", "null, "),
        false => ("", ""),
    };
    let load = format!(
        "count(*) as requests, sum(bytes) as bytes, count({time}) as timed,\n    sum({time}) as time"
    );
    let window = format!("from IO [range {step} slide {step}]");
    format!(
        "Rstream(\n  select {host}vm, vdisk, pdisk, {load}\n  {window}\n  group by {host}vm, vdisk, pdisk\n  \
         union all\n  select {no_host}null, null, '{EVERYTHING}', {load}\n  {window}\n)"
    )
}

/// A row of the query for such a source: a disk and its load; `None` for the row of all disks.
///
/// # Panics
/// When the batch has other columns.
pub fn load(batch: &Batch, row: usize, source: StepSource) -> Option<(HostedDisk, StepLoad)> {
    let (host, columns) = match &batch.columns[..] {
        columns if !source.has_hosts() => (None, columns),
        [host, columns @ ..] => (text(host, row), columns),
        [] => (None, &[][..]),
    };
    let [vm, vdisk, pdisk, numbers @ ..] = columns else {
        unreachable!("the query has these columns");
    };
    let [vm, vdisk, pdisk] = [vm, vdisk, pdisk].map(|column| text(column, row));
    if pdisk == Some(EVERYTHING) {
        return None;
    }
    let number = |column: usize| match &numbers[column] {
        Column::Int(values) if !numbers[column].is_null(row) => values.value(row),
        _ => 0,
    };
    let count = |column: usize| u64::try_from(number(column)).unwrap_or(0);
    let load = StepLoad {
        requests: count(0),
        bytes: count(1),
        timed: count(2),
        latency_sum_ns: number(3).max(0),
    };
    let name = SubjectName { vm, vdisk, pdisk };
    Some((HostedDisk { host, name }, load))
}

/// The text in a row.
fn text(column: &Column, row: usize) -> Option<&'static str> {
    match column {
        Column::Text(values) if !column.is_null(row) => {
            Some(Symbol::from_id(values.value(row)).as_str())
        }
        _ => None,
    }
}
