//! The capabilities of a live source, for tests of the planner: those that `weir_tap::live`
//! reports.
//!
//! A test of `weir-runtime`, which uses both crates, compares them.

use weir_model::capabilities::{Measure, Rate, Select};
use weir_model::{
    Capabilities, ColumnCapabilities, GroupLimits, NANOS_PER_SECOND, SelectionLimits,
};

/// This host.
pub fn live() -> Capabilities {
    let limits = SelectionLimits {
        clauses: 4,
        tests: 8,
        texts: 16,
    };
    let select = [
        "type", "op", "pdisk", "sector", "sectors", "pid", "comm", "wait", "service", "latency",
    ];
    let group = [
        "op", "pdisk", "pid", "comm", "cgroup", "vm", "vdisk", "type", "host", "level",
    ];
    let measure = [
        "sectors",
        "bytes",
        "wait",
        "service",
        "latency",
        "merges",
        "in_flight",
        "seek",
        "interarrival",
    ];
    let why = "it is not on stream IO, which contains completed requests only";
    let mut all = Capabilities::of_io(limits, why, Ok(()), |name| ColumnCapabilities {
        select: match name {
            "cgroup" => Select::AtLeast,
            name if select.contains(&name) => Select::Exact,
            _ => Select::No,
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
        interval_min_ns: 1_000_000,
        interval_max_ns: 600 * NANOS_PER_SECOND,
        kept_max: 16,
        limits_max: 512,
        log_linear_bits: Some(7),
    });
    let relations = ["vms", "disks", "devices"];
    let relations = Capabilities::of_rows(&relations, Rate::Polled, "a relation is not folded");
    let polled = ["blockstats", "blocklatency"];
    let polled = Capabilities::of_rows(&polled, Rate::Polled, "what is polled is not folded");
    all.or(relations).or(polled)
}

/// A source that computes groups of any interval and size, and selects exactly by every column that
/// [`live`] tests: test cases have instants of single nanoseconds.
#[allow(dead_code, reason = "not every test binary has such cases")]
pub fn of_any_groups() -> Capabilities {
    let mut all = live();
    for stream in &mut all.streams {
        for column in &mut stream.columns {
            if column.select == Select::AtLeast {
                column.select = Select::Exact;
            }
        }
        if let Ok(groups) = &mut stream.groups {
            *groups = GroupLimits {
                interval_min_ns: 1,
                kept_max: 64,
                log_linear_bits: None,
                ..*groups
            };
        }
    }
    all
}
