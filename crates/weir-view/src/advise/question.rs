//! [`QUERY`]: the CQL for the completed requests of all disks.

use weir_model::{Batch, Symbol};
use weir_workload::colocation::{RecordedRequest, StreamCollector};
use weir_workload::{HostedDisk, SubjectName};

use crate::workload::rows::{int, operation, text};

/// The query: a row for each completed request. Where a source does not know when a request was
/// inserted, it arrives when it was issued.
pub const QUERY: &str = "select op, coalesce(vsector, sector) as sector, sectors, vm, vdisk, \
    pdisk, host,\n  coalesce(latency, service) as latency, wait\nfrom IO";

/// Adds the requests of a batch. `host` is used where a row names none.
pub fn collect(batch: &Batch, host: Option<Symbol>, collector: &mut StreamCollector) {
    let [
        op,
        sector,
        sectors,
        vm,
        vdisk,
        pdisk,
        of_host,
        latency,
        wait,
    ] = &batch.columns[..]
    else {
        unreachable!("the query has these columns");
    };
    for row in 0..batch.len() {
        let name = |column| text(column, row).map(|name| name.as_str());
        let subject = SubjectName {
            vm: name(vm),
            vdisk: name(vdisk),
            pdisk: name(pdisk),
        };
        let Some(op) = text(op, row).and_then(operation) else {
            continue;
        };
        let latency = int(latency, row).filter(|latency| *latency >= 0);
        let request = latency.map(|latency_ns| RecordedRequest {
            arrival_ns: batch.ts[row].saturating_sub(latency_ns),
            latency_ns,
            wait_ns: int(wait, row).filter(|wait| (0..=latency_ns).contains(wait)),
            op,
            sector: int(sector, row),
            sectors: int(sectors, row).unwrap_or_default(),
        });
        let disk = HostedDisk {
            host: text(of_host, row).or(host).map(Symbol::as_str),
            name: subject,
        };
        collector.add(disk, request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Catalog;
    use weir_query::compile;

    #[test]
    fn the_query_is_correct() {
        for live in [false, true] {
            let options = weir_runtime::question::options(live);
            let checked = compile(QUERY, &Catalog::builtin(), &options);
            assert!(checked.is_ok(), "{:?}", checked.err());
        }
    }
}
