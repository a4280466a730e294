//! What a live source can do, as far as tests of the planner need it: about what `weir_tap::live`
//! reports of itself.

use weir_model::capabilities::{Measure, Rate, Select};
use weir_model::{Capabilities, ColumnCapabilities, GroupLimits, Limits, NANOS_PER_SECOND};

/// A host's taps.
pub fn live() -> Capabilities {
    let limits = Limits {
        clauses: 4,
        tests: 8,
        texts: 16,
    };
    let select = [
        "type", "op", "pdisk", "sector", "sectors", "pid", "comm", "cgroup", "wait", "service",
        "latency",
    ];
    let group = [
        "op", "pdisk", "pid", "comm", "cgroup", "vm", "vdisk", "type", "host", "level",
    ];
    let measure = ["sectors", "bytes", "wait", "service", "latency"];
    let why = "it is not on stream IO, which contains completed requests only";
    let mut all = Capabilities::of_io(limits, why, Ok(()), |name| ColumnCapabilities {
        select: match select.contains(&name) {
            true => Select::Exact,
            false => Select::No,
        },
        sample: name == "sector",
        group: group.contains(&name),
        measure: match name {
            "error" => Measure::Null,
            name if measure.contains(&name) => Measure::Kept,
            _ => Measure::No,
        },
        product: None,
    });
    all.streams[0].groups = Ok(GroupLimits {
        interval_min_ns: 1,
        interval_max_ns: 600 * NANOS_PER_SECOND,
        kept_max: 64,
        limits_max: 64,
        log_linear_bits: None,
    });
    let polled = ["blockstats", "blocklatency", "vms", "disks", "devices"];
    let polled = Capabilities::of_rows(&polled, Rate::Polled, "what is polled is not folded");
    all.and(polled)
}
