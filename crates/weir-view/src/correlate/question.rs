//! [`query`]: the CQL for the load of each disk in each step.

use std::time::Duration;

use weir_model::Batch;
use weir_runtime::quantity;
use weir_workload::correlation::StepLoad;
use weir_workload::{HostedDisk, SubjectName};

use crate::workload::rows::{int, text};

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

/// The query: host, VM, disk of the VM and device, and the requests, bytes, known latencies and
/// their sum of each step.
pub fn query(step: Duration, source: StepSource) -> String {
    let step = quantity::span_text(step);
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
pub fn load(batch: &Batch, row: usize, source: StepSource) -> Option<(HostedDisk, StepLoad)> {
    let (host, columns) = match &batch.columns[..] {
        columns if !source.has_hosts() => (None, columns),
        [host, columns @ ..] => (text(host, row).map(|name| name.as_str()), columns),
        [] => (None, &[][..]),
    };
    let [vm, vdisk, pdisk, numbers @ ..] = columns else {
        unreachable!("the query has these columns");
    };
    let [vm, vdisk, pdisk] = [vm, vdisk, pdisk].map(|c| text(c, row).map(|name| name.as_str()));
    if pdisk == Some(EVERYTHING) {
        return None;
    }
    let number = |column: usize| int(&numbers[column], row).unwrap_or(0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Catalog;
    use weir_query::compile;

    #[test]
    fn all_queries_are_correct() {
        for source in [StepSource::Host, StepSource::Fleet, StepSource::Recording] {
            let text = query(Duration::from_secs(1), source);
            let options = weir_runtime::question::options(source.is_live());
            let checked = compile(&text, &Catalog::builtin(), &options);
            assert!(checked.is_ok(), "{text}: {:?}", checked.err());
        }
    }
}
