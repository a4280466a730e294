//! [`query`]: the CQL for the load of each disk in each step.

use std::time::Duration;

use weir_model::Batch;
use weir_runtime::quantity;
use weir_workload::SubjectName;
use weir_workload::correlation::StepLoad;

use crate::workload::rows::{int, text};

/// The device in the row of all disks, which marks the end of a step also when all are idle.
const EVERYTHING: &str = "(all)";

/// The query: VM, disk of the VM and device, and the requests, bytes, known latencies and their sum
/// of each step. The kernel can aggregate it; only of a recording the insert may be unknown.
pub fn query(step: Duration, live: bool) -> String {
    let step = quantity::span_text(step);
    let time = match live {
        true => "latency",
        false => "coalesce(latency, service)",
    };
    let load = format!(
        "count(*) as requests, sum(bytes) as bytes, count({time}) as timed,\n    sum({time}) as time"
    );
    let window = format!("from IO [range {step} slide {step}]");
    format!(
        "Rstream(\n  select vm, vdisk, pdisk, {load}\n  {window}\n  group by vm, vdisk, pdisk\n  \
         union all\n  select null, null, '{EVERYTHING}', {load}\n  {window}\n)"
    )
}

/// A row: a disk and its load; `None` for the row of all disks.
pub fn load(batch: &Batch, row: usize) -> Option<(SubjectName, StepLoad)> {
    let [vm, vdisk, pdisk, numbers @ ..] = &batch.columns[..] else {
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
    Some((SubjectName { vm, vdisk, pdisk }, load))
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
