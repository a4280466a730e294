//! The histograms that the kernel keeps are those that anybody counts who reads the records of the same
//! requests: every metric, every class, to the last count.

use std::collections::BTreeMap;

use weir_guest::LoopDisk;
use weir_model::{Op, Value};
use weir_tap::ebpf::{self, DeviceChoice};
use weir_tap::hist::{By, HistOptions, HistSnapshot};
use weir_workload::{Class, Counter, Distribution, Event, Histograms, Metric, Request, Response};

use crate::load::fio;
use crate::watch::{Seen, Watch, demand, only};
use crate::{bench, skip};

const COLUMNS: &str = "ts type op req_id sector sectors wait service latency pid vm pdisk";

/// Reads, writes, flushes and discards of several sizes by several processes at once, on all processors.
const JOBS: &[&str] = &[
    "--ioengine=libaio --iodepth=16 --rw=randrw --bsrange=4k-16k --numjobs=2 --io_size=24m",
    "--ioengine=libaio --iodepth=4 --rw=randtrim --bs=16k --io_size=16m",
    "--ioengine=psync --rw=randwrite --bs=4k --fsync=4 --io_size=2m",
    "--ioengine=psync --rw=read --bs=8k --offset=8m --size=32m --io_size=24m",
];

/// Runs all of them at once.
fn mixed(disk: &LoopDisk) {
    let mut options = String::new();
    for (i, job) in JOBS.iter().enumerate() {
        // The first one has a name and a file already.
        if i > 0 {
            options += &format!(" --name=job{i} --filename={}", disk.path());
        }
        options += &format!(" --direct=1 --size=64m {job}");
    }
    fio(disk, &options);
}

/// What both counted.
struct Both {
    kernel: HistSnapshot,
    seen: Seen,
}

/// Runs `load` under a tap that tells every request and counts them as well.
fn both(device: &str, options: &HistOptions, load: impl FnOnce()) -> Both {
    let live = ebpf::LiveOptions {
        inventory: options.inventory.clone(),
        ..only(device)
    };
    let demands = vec![demand("recording", COLUMNS, Vec::new())];
    let tap =
        ebpf::open_with_histograms(&demands, &live, options).unwrap_or_else(|e| panic!("{e}"));
    let watch = Watch::read(tap, &demands);
    load();
    let (mut tap, seen) = watch.stop_open();
    let kernel = tap.histograms().expect("histograms were asked for");
    for counter in ["events_lost", "events_late"] {
        assert_eq!(seen.count(counter, None, None), 0, "{:?}", seen.counts);
    }
    assert_eq!(kernel.not_entered.total(), 0, "{:?}", kernel.not_entered);
    Both { kernel, seen }
}

/// The rows of a recording, counted by whom `key` says they are of.
fn counted(
    seen: &Seen,
    closest_of: usize,
    key: impl Fn(&dyn Fn(&str) -> Value) -> String,
) -> BTreeMap<String, Histograms> {
    let rows = seen.all();
    let mut counters: BTreeMap<String, Counter> = BTreeMap::new();
    for row in 0..rows.len() {
        let value = |column: &str| rows.value(row, column);
        let counter = counters.entry(key(&value));
        let counter = counter.or_insert_with(|| Counter::new(closest_of));
        counter.take(&event(&value));
    }
    let counted = counters.into_iter();
    counted.map(|(k, c)| (k, c.histograms().clone())).collect()
}

fn event(value: &dyn Fn(&str) -> Value) -> Event {
    let int = |column: &str| match value(column) {
        Value::Int(x) => Some(x),
        _ => None,
    };
    let id = int("req_id").expect("each has a number");
    let ts = int("ts").expect("each has a time");
    let op = Op::ALL
        .into_iter()
        .find(|op| value("op") == Value::text(op.as_str()));
    let op = op.expect("each has an operation");
    if value("type") == Value::text("Q") {
        return Event::Issued(Request {
            ts,
            id,
            op,
            sector: int("sector"),
            sectors: int("sectors").expect("each has a length"),
        });
    }
    Event::Finished(Response {
        ts,
        id,
        op,
        wait_ns: int("wait"),
        service_ns: int("service"),
        latency_ns: int("latency"),
        failed: value("type") == Value::text("E"),
    })
}

/// Holds the kernel's histograms against those counted from records. `kernel` and `records` are told
/// apart by the same keys.
fn agree(
    kernel: &BTreeMap<String, Histograms>,
    records: &BTreeMap<String, Histograms>,
    metrics: &[Metric],
    what: &str,
) {
    let keys = |of: &BTreeMap<String, Histograms>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(kernel), keys(records), "{what}");
    for (key, counted) in records {
        for &metric in metrics {
            for class in Class::ALL {
                let (kernel, records) = (kernel[key].of(metric, class), counted.of(metric, class));
                assert!(
                    kernel == records,
                    "{what}: {key}: {metric:?} {class:?}: the kernel has {}, the records {}",
                    short(kernel),
                    short(records)
                );
            }
        }
    }
}

/// What can be compared. How many are in flight is known to neither side once an end was not seen.
fn comparable(test: &str, complete: bool) -> Vec<Metric> {
    let mut metrics = Metric::ALL.to_vec();
    if !complete {
        skip::<()>(test, "outstanding requests: some completions were not seen");
        metrics.retain(|m| *m != Metric::Outstanding);
    }
    metrics
}

fn short(d: &Distribution) -> String {
    let log: Vec<(i32, u64)> = d.log.bins().collect();
    format!(
        "count {} sum {} min {} max {} bins {:?} log {log:?}",
        d.count, d.sum, d.min, d.max, d.bins
    )
}

/// The kernel's histograms by pdisk, process and VM.
fn by_key(snapshot: &HistSnapshot) -> BTreeMap<String, Histograms> {
    let name = |s: Option<weir_model::Symbol>| s.map_or("NULL".into(), |s| s.to_string());
    let subjects = snapshot.subjects.iter().map(|(subject, histograms)| {
        let pid = subject.pid.map_or("NULL".into(), |pid| pid.to_string());
        let key = format!("{} {pid} {}", name(subject.pdisk), name(subject.vm));
        (key, histograms.clone())
    });
    subjects.collect()
}

fn whole(device: &str, closest_of: usize) -> HistOptions {
    HistOptions {
        devices: DeviceChoice::Named(vec![device.into()]),
        by: By::Device,
        closest_of,
        waits: true,
        ..HistOptions::default()
    }
}

/// A run in which the kernel let every completion be seen, if there is one among a few: there is a thread
/// in which it does not. `false` with a run in which some were not.
fn complete(disk: &LoopDisk, options: &HistOptions, load: &dyn Fn()) -> (Both, bool) {
    const ATTEMPTS: usize = 4;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let both = both(disk.path(), options, load);
        let unseen = both.seen.count("unseen", None, None)
            + both.seen.count("requests_untracked", None, None);
        if unseen == 0 {
            return (both, true);
        }
        last = Some(both);
    }
    (last.expect("there were attempts"), false)
}

#[test]
fn bins_of_the_kernel_are_those_of_a_recording() {
    const TEST: &str = "bins_of_the_kernel_are_those_of_a_recording";
    let Some(bench) = bench(TEST, 64) else {
        return;
    };
    for (scheduler, closest_of) in [("none", 16), ("mq-deadline", 1), ("bfq", 32), ("none", 5)] {
        if bench.disk.set("scheduler", scheduler).is_err() {
            skip::<()>(TEST, format!("this kernel has no scheduler {scheduler}"));
            continue;
        }
        let options = whole(bench.disk.path(), closest_of);
        let load = || mixed(&bench.disk);
        let (both, complete) = complete(&bench.disk, &options, &load);
        let metrics = comparable(TEST, complete);
        let records = counted(&both.seen, closest_of, |value| {
            format!("{} NULL NULL", value("pdisk"))
        });
        let kernel = by_key(&both.kernel);
        let what = format!("{scheduler}, closest of {closest_of}");
        agree(&kernel, &records, &metrics, &what);
        let of_disk = kernel.values().next().expect("one disk");
        for op in [Op::Read, Op::Write, Op::Flush, Op::Discard] {
            let count = of_disk.of(Metric::Outstanding, Class::Of(op)).count;
            assert!(count > 50, "{scheduler}: {count} of {op:?}");
        }
    }
}
