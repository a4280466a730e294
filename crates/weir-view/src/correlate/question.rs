//! [`query`]: the CQL for the load of each disk in each step.

use std::time::Duration;

use weir_model::Batch;
use weir_runtime::quantity;
use weir_workload::correlation::StepLoad;
use weir_workload::{HostedDisk, SubjectName};

use crate::workload::rows::{int, text};

/// The device in the row of all disks, which marks the end of a step also when all are idle.
const EVERYTHING: &str = "(all)";

/// The query: host, VM, disk of the VM and device, and the requests, bytes, known latencies and
/// their sum of each step. The kernel can aggregate it; only of a recording the insert may be
/// unknown, and only there rows may be of several hosts.
pub fn query(step: Duration, live: bool) -> String {
    let step = quantity::span_text(step);
    let (host, time) = match live {
        true => ("", "latency"),
        false => ("host, ", "coalesce(latency, service)"),
    };
    let no_host = if live { "" } else { "null, " };
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
pub fn load(batch: &Batch, row: usize, live: bool) -> Option<(HostedDisk, StepLoad)> {
    let (host, columns) = match &batch.columns[..] {
        columns if live => (None, columns),
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
    fn both_queries_are_correct() {
        for live in [false, true] {
            let text = query(Duration::from_secs(1), live);
            let options = weir_runtime::question::options(live);
            let checked = compile(&text, &Catalog::builtin(), &options);
            assert!(checked.is_ok(), "{text}: {:?}", checked.err());
        }
    }
}
