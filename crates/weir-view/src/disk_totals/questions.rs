//! [`Questions`]: the CQL behind `weir iostat`, `weir diskstats` and `weir exporter`.

use std::fmt::Write;

use weir_model::Nanos;
use weir_runtime::question::quoted;

/// The update intervals of a live tap's counters, ms, in ascending order. The rings are read four
/// times in each, so a longer one costs less.
pub const SLIDES_MS: [u64; 2] = [100, 500];

const NANOS_PER_MILLISECOND: Nanos = 1_000_000;

/// The op of the row of the grand total in the counters' query.
pub const EVERYTHING: &str = "all";

/// The selection of counters of disks.
#[derive(Clone, Debug, Default)]
pub struct CounterSelection {
    /// The events happen now; then the counters are reported in slices of `slide_ms`, idle times
    /// included. Those of a recording are reported at each instant that has a row.
    pub live: bool,
    /// One of [`SLIDES_MS`].
    pub slide_ms: u64,
    /// Only this VM.
    pub vm: Option<String>,
    /// Also the busy times of each disk.
    pub busy: bool,
    /// The upper limits of the buckets in which latencies are counted as well, ns, ascending; with
    /// any, failures and the times by stage too.
    pub limits_ns: Vec<i64>,
    /// How partitions of this host's devices are counted.
    pub devices: Devices,
}

/// The longest update interval of which an interval is a multiple; the shortest one if it is of none.
pub fn slide_ms(interval_ns: Nanos) -> u64 {
    let divides = |slide: &&u64| interval_ns % (**slide as Nanos * NANOS_PER_MILLISECOND) == 0;
    let longest = SLIDES_MS.iter().rev().find(divides);
    *longest.unwrap_or(&SLIDES_MS[0])
}

/// The aggregation of I/O rows without a known virtual disk, which taps report by partition where
/// there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// As the taps report them. Also for a recording: the partitions of its host are unknown.
    #[default]
    AsReported,
    /// By whole device.
    Whole,
    /// By whole device, and additionally by partition.
    WholeAndPartitions,
}

/// The queries.
pub struct Questions {
    /// Counters by disk and op, in the order of [`Column`].
    pub counters: String,
    /// The interval in which each request was in flight: its disk, and [`SPAN_TIME_NS`].
    pub spans: Option<String>,
}

/// The columns of the counters' query.
#[derive(Clone, Copy)]
pub enum Column {
    Vm,
    Vdisk,
    Device,
    Op,
    Ios,
    Sectors,
    Merges,
    TimeNs,
    WaitNs,
    ServiceNs,
    Errors,
    Buckets,
}

/// The column of the query for busy times after those that identify the disk.
pub const SPAN_TIME_NS: usize = Column::Device as usize + 1;

/// The key of the counters. The device is in it only if the virtual disk is unknown: otherwise
/// there is one row, wherever the disk's blocks are.
const DISK: &str = "vm, vdisk, case when vdisk is null then pdisk end";

impl Questions {
    /// The queries for the requested counters.
    pub fn new(wanted: &CounterSelection) -> Questions {
        let vm = wanted.vm.as_deref().map(quoted);
        let only = vm.map_or(String::new(), |vm| format!("\n  where vm = {vm}"));
        let window = match wanted.live {
            true => format!("[range {0} ms slide {0} ms]", wanted.slide_ms),
            false => "[now]".to_owned(),
        };
        // Live, the insert of every request is known, and a tap without `service` is cheaper; some
        // trace files contain only the issue.
        let time = match wanted.live {
            true => "latency",
            false => "coalesce(latency, service)",
        };
        let aggregates = aggregates(time, &wanted.limits_ns);
        let mut counters = format!(
            "Rstream(\n  select {DISK} as device, op, {aggregates}\n  \
             from IO {window}{only}\n  group by {DISK}, op"
        );
        if wanted.live {
            write!(
                counters,
                "\n  union all\n  select null, null, null, '{EVERYTHING}', {aggregates}\n  from IO {window}{only}"
            )
            .expect("a String takes all");
        }
        counters += "\n)";
        let spans = format!("select vm, vdisk, pdisk as device, {time}\n  from IO{only}");
        Questions {
            counters,
            spans: wanted.busy.then_some(spans),
        }
    }

    /// The queries as `--show-query` prints them.
    pub fn text(&self) -> String {
        let spans = self.spans.as_ref();
        let spans = spans.map_or(String::new(), |spans| format!("{spans};\n"));
        format!("{};\n{spans}", self.counters)
    }
}

fn aggregates(time: &str, limits_ns: &[i64]) -> String {
    let mut text = format!(
        "count(*) as ios, sum(sectors) as sectors,\n    sum(merges) as merges, sum({time}) as time"
    );
    if !limits_ns.is_empty() {
        let limits: Vec<String> = limits_ns.iter().map(|ns| format!("{ns} ns")).collect();
        let limits = limits.join(", ");
        write!(
            text,
            ", sum(wait) as wait, sum(service) as service,\n    count(error) as errors, histogram({time}, {limits}) as latencies"
        )
        .expect("a String takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Catalog;
    use weir_query::compile;

    #[test]
    fn an_interval_has_the_longest_slide_that_divides_it() {
        let of = |ms: Nanos| slide_ms(ms * NANOS_PER_MILLISECOND);
        assert_eq!(
            [1000, 1500, 700, 100, 250].map(of),
            [500, 500, 100, 100, 100]
        );
    }

    #[test]
    fn every_variant_is_a_correct_query() {
        for live in [false, true] {
            for (vm, limits_ns) in [
                (None, vec![]),
                (Some("it's".to_owned()), vec![1_000, 2_000]),
            ] {
                let wanted = CounterSelection {
                    live,
                    slide_ms: SLIDES_MS[0],
                    vm,
                    busy: true,
                    limits_ns,
                    devices: Devices::AsReported,
                };
                let questions = Questions::new(&wanted);
                for text in [&questions.counters, &questions.spans.unwrap()] {
                    let options = weir_runtime::question::options(live);
                    let checked = compile(text, &Catalog::builtin(), &options);
                    assert!(checked.is_ok(), "{text}: {:?}", checked.err());
                }
            }
        }
    }
}
