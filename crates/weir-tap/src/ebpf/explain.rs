//! The operations that the live tap performs instead of the engine, as text, for `weir explain`.

use std::collections::HashSet;

use weir_model::{Op, Symbol};

use super::devices::Devices;
use super::layout::test;
use super::needs::Needs;
use super::programs::Probe;
use super::selection::Clause;
use crate::io_columns::{COLUMNS, Tested};

/// One line for each operation that is done in the kernel, or could not be.
pub fn lines(needs: &Needs, probes: &[Probe], devices: &Devices) -> Vec<String> {
    if !needs.is_any() {
        return vec!["live tap: no rows are requested, no probes are attached".into()];
    }
    let names: Vec<&str> = probes.iter().map(|p| p.tracepoint).collect();
    let disks: Vec<&str> = devices
        .wanted_disks()
        .iter()
        .map(|d| d.path.as_str())
        .collect();
    let mut lines = vec![
        format!("live tap: attached to {}", names.join(", ")),
        format!("live tap: devices {}", disks.join(", ")),
    ];
    for clause in needs.clauses.iter().filter(|clause| clause.kinds != 0) {
        let tests = tests(clause);
        if !tests.is_empty() {
            lines.push(format!("kernel: selects {}", tests.join(" and ")));
        }
    }
    if needs.order {
        lines.push(
            "kernel: determines in_flight, seek and interarrival from every request of a disk"
                .into(),
        );
    }
    let relaxed = needs.relaxed.iter();
    lines.extend(relaxed.map(|what| format!("agent: repeats the selection; {what}")));
    lines
}

/// The tests of a clause that run in the kernel.
fn tests(clause: &Clause) -> Vec<String> {
    let mut raw = clause.raw;
    let mut tests = Vec::new();
    for column in &COLUMNS {
        let name = column.name;
        let set = |set: &Option<HashSet<Symbol>>| {
            let mut texts: Vec<&str> = set.iter().flatten().map(|t| t.as_str()).collect();
            texts.sort_unstable();
            set.is_some()
                .then(|| format!("{name} in ({})", texts.join(", ")))
        };
        let used = |bit: u32| raw.tests & bit != 0;
        tests.extend(match column.test {
            Tested::No | Tested::Kind => None,
            Tested::Op => used(test::OP).then(|| {
                let ops = Op::ALL.into_iter();
                let ops = ops.filter(|op| raw.ops >> *op as u8 & 1 == 1);
                let ops: Vec<&str> = ops.map(Op::as_str).collect();
                format!("op in ({})", ops.join(", "))
            }),
            Tested::Device => set(&clause.devices),
            Tested::Cgroup => set(&clause.cgroups),
            Tested::Comm => used(test::COMM).then(|| format!("comm in {} names", raw.comms)),
            Tested::Wide(bit, of) => used(bit).then(|| range(name, *of(&mut raw), i64::MAX as u64)),
            Tested::Narrow(bit, of) => {
                used(bit).then(|| range(name, of(&mut raw).map(u64::from), u32::MAX.into()))
            }
        });
        if column.sample && raw.tests & test::SECTOR_SPREAD != 0 {
            let name = format!("the sample number of {name}");
            tests.push(range(
                &name,
                raw.sector_spread.map(u64::from),
                u32::MAX.into(),
            ));
        }
    }
    tests
}

/// A test on the numbers from `low` to `high`, of which `max` is the greatest.
pub fn range(name: &str, [low, high]: [u64; 2], max: u64) -> String {
    match (low, high) {
        (low, high) if low == high => format!("{name} = {low}"),
        (low, high) if high >= max => format!("{name} >= {low}"),
        (0, high) => format!("{name} <= {high}"),
        (low, high) => format!("{name} between {low} and {high}"),
    }
}
