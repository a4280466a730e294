//! What the live tap does in place of the engine, in words, for `weir explain`.

use weir_model::{KernelField, Op};

use super::devices::Devices;
use super::layout::test;
use super::needs::Needs;
use super::programs::Probe;
use super::selection::Clause;

/// One line for each thing that is done in the kernel, or could not be.
pub fn lines(needs: &Needs, probes: &[Probe], devices: &Devices) -> Vec<String> {
    if !needs.is_any() {
        return vec!["live tap: no row is wanted, nothing is attached".into()];
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
    for clause in &needs.clauses {
        let tests = tests(clause);
        if !tests.is_empty() {
            lines.push(format!("kernel: selects {}", tests.join(" and ")));
        }
    }
    let loosened = needs.loosened.iter();
    lines.extend(loosened.map(|what| format!("agent: selects again; {what}")));
    lines
}

/// The tests of a clause that run in the kernel.
fn tests(clause: &Clause) -> Vec<String> {
    let raw = &clause.raw;
    let mut tests = Vec::new();
    let range = |field: KernelField, low: u64, high: u64, max: u64| {
        let name = match field {
            KernelField::SectorSpread => "the sample number of sector",
            field => field.column(),
        };
        match (low, high) {
            (low, high) if low == high => format!("{name} = {low}"),
            (low, high) if high >= max => format!("{name} >= {low}"),
            (0, high) => format!("{name} <= {high}"),
            (low, high) => format!("{name} between {low} and {high}"),
        }
    };
    if raw.tests & test::OP != 0 {
        let ops = Op::ALL
            .into_iter()
            .filter(|op| raw.ops >> *op as u8 & 1 == 1);
        let ops: Vec<&str> = ops.map(Op::as_str).collect();
        tests.push(format!("op in ({})", ops.join(", ")));
    }
    let sets = [
        (KernelField::Pdisk, &clause.devices),
        (KernelField::Cgroup, &clause.cgroups),
    ];
    for (field, set) in sets {
        if let Some(set) = set {
            let mut texts: Vec<&str> = set.iter().map(|t| t.as_str()).collect();
            texts.sort_unstable();
            tests.push(format!("{} in ({})", field.column(), texts.join(", ")));
        }
    }
    if raw.tests & test::COMM != 0 {
        tests.push(format!("comm in {} names", raw.comms));
    }
    let narrow = [
        (test::SECTORS, KernelField::Sectors, raw.sectors),
        (test::PID, KernelField::Pid, raw.pid),
        (
            test::SECTOR_SPREAD,
            KernelField::SectorSpread,
            raw.sector_spread,
        ),
    ];
    for (bit, field, [low, high]) in narrow {
        if raw.tests & bit != 0 {
            tests.push(range(field, low.into(), high.into(), u32::MAX.into()));
        }
    }
    let wide = [
        (test::SECTOR, KernelField::Sector, raw.sector),
        (test::WAIT, KernelField::Wait, raw.wait_ns),
        (test::SERVICE, KernelField::Service, raw.service_ns),
        (test::LATENCY, KernelField::Latency, raw.latency_ns),
    ];
    for (bit, field, [low, high]) in wide {
        if raw.tests & bit != 0 {
            tests.push(range(field, low, high, i64::MAX as u64));
        }
    }
    tests
}
