//! The histograms that the kernel maintains are equal to those computed from the records of the
//! same requests: every metric, every class, exactly.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use weir_model::{Op, Value};
use weir_tap::ebpf::{self, DeviceChoice};
use weir_tap::hist::{By, HistOptions, HistSnapshot, HistTap};
use weir_tap::inventory::{self, Declared, WatchOptions};
use weir_testing::{LoopDisk, run, tried_again};
use weir_workload::{
    Class, Counter, Distribution, Histograms, IssuedRequest, Metric, RequestEvent, Response,
};

use crate::load::{DiskStats, fio};
use crate::stacked::Zram;
use crate::watch::{Seen, Watch, demand, only};
use crate::{bench, skip};

const COLUMNS: &str = "ts type op req_id sector sectors wait service latency pid vm pdisk";

/// Concurrent reads, writes, flushes and discards of several sizes by several processes, on all
/// CPUs.
const JOBS: &[&str] = &[
    "--ioengine=libaio --iodepth=16 --rw=randrw --bsrange=4k-16k --numjobs=2 --io_size=24m",
    "--ioengine=libaio --iodepth=4 --rw=randtrim --bs=16k --io_size=16m",
    "--ioengine=psync --rw=randwrite --bs=4k --fsync=4 --io_size=2m",
    "--ioengine=psync --rw=read --bs=8k --offset=8m --size=32m --io_size=24m",
];

/// Runs all of them concurrently.
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

/// The results of both methods.
struct Both {
    kernel: HistSnapshot,
    seen: Seen,
}

/// Runs `load` under a tap that delivers every request and also maintains histograms.
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

/// Histograms of the rows of a recording, by `key`.
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

fn event(value: &dyn Fn(&str) -> Value) -> RequestEvent {
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
        return RequestEvent::Issued(IssuedRequest {
            ts,
            id,
            op,
            sector: int("sector"),
            sectors: int("sectors").expect("each has a length"),
        });
    }
    RequestEvent::Finished(Response {
        ts,
        id,
        op,
        wait_ns: int("wait"),
        service_ns: int("service"),
        latency_ns: int("latency"),
        failed: value("type") == Value::text("E"),
    })
}

/// Compares the kernel's histograms with those computed from records. `kernel` and `records` have
/// the same keys.
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

/// The metrics that can be compared. After an unseen completion neither side knows the number in
/// flight.
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

/// A run without unseen completions, if one of a few is: completions in a certain kernel thread are
/// not observable. `false` with a run in which some were unseen.
fn complete(test: &str, disk: &LoopDisk, options: &HistOptions, load: &dyn Fn()) -> (Both, bool) {
    const ATTEMPTS: usize = 4;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let both = both(disk.path(), options, load);
        let unseen = both.seen.count("unseen", None, None)
            + both.seen.count("requests_untracked", None, None);
        if unseen == 0 {
            return (both, true);
        }
        tried_again(test, format_args!("{unseen} completions were not seen"));
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
        let (both, complete) = complete(TEST, &bench.disk, &options, &load);
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

#[test]
fn two_processes_on_one_device_are_distinguished() {
    const TEST: &str = "two_processes_on_one_device_are_distinguished";
    let Some(bench) = bench(TEST, 64) else {
        return;
    };
    let options = HistOptions {
        by: By::Process,
        ..whole(bench.disk.path(), 16)
    };
    let (both, complete) = complete(TEST, &bench.disk, &options, &|| mixed(&bench.disk));
    let metrics = comparable(TEST, complete);
    let records = counted(&both.seen, 16, |value| {
        format!("{} {} NULL", value("pdisk"), value("pid"))
    });
    let kernel = by_key(&both.kernel);
    agree(&kernel, &records, &metrics, "by process");
    assert!(kernel.len() > JOBS.len(), "{:?}", kernel.keys());
}

#[test]
fn a_device_without_requests_counts_by_its_bios() {
    const TEST: &str = "a_device_without_requests_counts_by_its_bios";
    let Some(_bench) = bench(TEST, 8) else {
        return;
    };
    let zram = match Zram::new() {
        Ok(zram) => zram,
        Err(why) => {
            skip::<()>(TEST, why);
            return;
        }
    };
    let device = zram.path();
    let both = both(&device, &whole(&device, 16), || {
        let (from, to) = (format!("if={device}"), format!("of={device}"));
        for bs in ["bs=4k", "bs=16k"] {
            run(
                "dd",
                &["if=/dev/zero", &to, bs, "count=300", "oflag=direct"],
            )
            .unwrap();
            run(
                "dd",
                &[&from, "of=/dev/null", bs, "count=300", "iflag=direct"],
            )
            .unwrap();
        }
    });
    let records = counted(&both.seen, 16, |value| {
        format!("{} NULL NULL", value("pdisk"))
    });
    let kernel = by_key(&both.kernel);
    agree(&kernel, &records, &Metric::ALL, "zram");
    let lengths = kernel
        .values()
        .next()
        .expect("one disk")
        .of(Metric::Length, Class::All);
    assert!(lengths.count >= 1200, "{}", lengths.count);
}

/// A process that runs a load on request, declared to be a VM.
fn declared(name: &str, device: &str, load: &str) -> (Child, Declared) {
    // The shell executes dd, so that its process id is the declared one.
    let script = format!("read go; exec {}", load.replace("DEVICE", device));
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", &script]).stdin(Stdio::piped());
    let shell = shell.stderr(Stdio::null()).spawn().expect("sh starts");
    let declared = format!("{name}=pid:{}", shell.id());
    (shell, declared.parse().expect("a declaration"))
}

fn go(child: &mut Child) {
    let stdin = child.stdin.take().expect("it has one");
    (&stdin).write_all(b"go\n").expect("it listens");
    assert!(child.wait().expect("it is ours").success());
}

#[test]
fn io_of_a_vm_counts_for_it_and_other_io_for_no_vm() {
    let Some(bench) = bench("io_of_a_vm_counts_for_it_and_other_io_for_no_vm", 64) else {
        return;
    };
    let device = bench.disk.path();
    let (mut a, vm_a) = declared(
        "vm-a",
        device,
        "dd if=DEVICE of=/dev/null bs=4k count=300 iflag=direct",
    );
    let (mut b, vm_b) = declared(
        "vm-b",
        device,
        "dd if=/dev/zero of=DEVICE bs=8k count=200 seek=100 oflag=direct",
    );
    let watch = inventory::InventoryWatch::start(&WatchOptions {
        declared: vec![vm_a, vm_b],
        ..WatchOptions::default()
    });
    let options = HistOptions {
        by: By::Disk,
        inventory: Some(watch.unwrap_or_else(|e| panic!("{e}"))),
        ..whole(device, 16)
    };
    let mut tap = HistTap::open(&options).unwrap_or_else(|e| panic!("{e}"));
    go(&mut a);
    go(&mut b);
    let from_device = format!("if={device}");
    run(
        "dd",
        &[
            &from_device,
            "of=/dev/null",
            "bs=16k",
            "count=50",
            "iflag=direct",
        ],
    )
    .unwrap();
    let snapshot = tap.snapshot();
    assert_eq!(
        snapshot.not_entered.total(),
        0,
        "{:?}",
        snapshot.not_entered
    );
    let of = |vm: Option<&str>, op: Op| {
        let found = snapshot
            .subjects
            .iter()
            .find(|(s, _)| s.vm.map(|v| v.as_str()) == vm);
        let (subject, histograms) = found.unwrap_or_else(|| panic!("{vm:?} has histograms"));
        assert_eq!(subject.pdisk.map(|p| p.as_str()), Some(device));
        let lengths = histograms.of(Metric::Length, Class::Of(op));
        (lengths.count, lengths.min, lengths.max)
    };
    assert_eq!(of(Some("vm-a"), Op::Read), (300, 4096, 4096));
    assert_eq!(of(Some("vm-a"), Op::Write).0, 0);
    assert_eq!(of(Some("vm-b"), Op::Write), (200, 8192, 8192));
    let (count, _, longest) = of(None, Op::Read);
    assert!(count >= 50 && longest >= 16_384, "{count} {longest}");
}

fn requests(tap: &mut HistTap) -> u64 {
    let subjects = tap.snapshot().subjects;
    let each = subjects
        .iter()
        .map(|(_, h)| h.of(Metric::Outstanding, Class::All).count);
    each.sum()
}

const READS: &str = "--direct=1 --ioengine=psync --rw=read --bs=4k --io_size=4m --size=64m";

#[test]
fn a_reset_while_io_runs_loses_nothing_and_keeps_the_one_before() {
    let Some(bench) = bench(
        "a_reset_while_io_runs_loses_nothing_and_keeps_the_one_before",
        64,
    ) else {
        return;
    };
    let mut tap = HistTap::open(&whole(bench.disk.path(), 16)).unwrap_or_else(|e| panic!("{e}"));
    let finished = |path: &Path| DiskStats::read(path).requests() as u64;
    let stat = bench.disk.sysfs().join("stat");
    let begin = finished(&stat);
    let (early, late) = thread::scope(|scope| {
        let looking = scope.spawn(|| {
            while finished(&stat) < begin + 2000 {
                thread::sleep(Duration::from_millis(5));
                tap.snapshot();
            }
            let early = finished(&stat);
            tap.reset();
            (early, finished(&stat))
        });
        mixed(&bench.disk);
        looking.join().expect("looking does not fail")
    });
    let end = finished(&stat);
    let counted = requests(&mut tap);
    // The disk counts completions, the histograms count issues; the difference is the number in
    // flight.
    let in_flight = 64;
    let range = (end - late).saturating_sub(in_flight)..=end - early + in_flight;
    assert!(range.contains(&counted), "{counted} is not in {range:?}");
    tap.reset();
    assert_eq!(requests(&mut tap), 0);
    let file = format!("if={}", bench.disk.path());
    let read = |at: &str| {
        run(
            "dd",
            &[
                &file,
                "of=/dev/null",
                "bs=4k",
                "count=1",
                "iflag=direct",
                at,
            ],
        )
    };
    read("skip=1000").unwrap();
    let snapshot = tap.snapshot();
    let (_, histograms) = &snapshot.subjects[0];
    let seeks = histograms.of(Metric::Seek, Class::All);
    let all = histograms.of(Metric::Length, Class::All);
    assert_eq!(seeks.count, all.count, "the first one has one before it");
    assert_eq!((all.min, all.bins.iter().sum::<u64>()), (4096, all.count));
    assert!(snapshot.since <= snapshot.at);
}

#[test]
fn histograms_end_in_time_and_leave_nothing_behind() {
    let Some(bench) = bench("histograms_end_in_time_and_leave_nothing_behind", 64) else {
        return;
    };
    let options = HistOptions {
        until: Some(Instant::now() + Duration::from_secs(3)),
        ..whole(bench.disk.path(), 16)
    };
    let mut tap = HistTap::open(&options).unwrap_or_else(|e| panic!("{e}"));
    fio(&bench.disk, READS);
    while tap.is_counting() {
        thread::sleep(Duration::from_millis(50));
    }
    let counted = requests(&mut tap);
    fio(&bench.disk, READS);
    assert_eq!(requests(&mut tap), counted, "nothing counts after its time");
    drop(tap);
    let mut tap = HistTap::open(&whole(bench.disk.path(), 16)).unwrap_or_else(|e| panic!("{e}"));
    fio(&bench.disk, READS);
    assert!(requests(&mut tap) >= 1024);
    tap.stop();
    assert!(!tap.is_counting());
    let stopped = requests(&mut tap);
    fio(&bench.disk, READS);
    assert_eq!(requests(&mut tap), stopped);
}

#[test]
fn what_finds_no_room_is_counted() {
    let Some(bench) = bench("what_finds_no_room_is_counted", 64) else {
        return;
    };
    let tight = |entries_max: usize, bins_bytes_max: usize| {
        let options = HistOptions {
            by: By::Process,
            entries_max,
            bins_bytes_max,
            ..whole(bench.disk.path(), 16)
        };
        let mut tap = HistTap::open(&options).unwrap_or_else(|e| panic!("{e}"));
        let before = DiskStats::of(&bench.disk);
        mixed(&bench.disk);
        let kernel = DiskStats::of(&bench.disk).since(before).requests() as u64;
        let snapshot = tap.snapshot();
        let each = snapshot
            .subjects
            .iter()
            .map(|(_, h)| h.of(Metric::Outstanding, Class::All));
        let entered: u64 = each.map(|d| d.count).sum();
        let lost = snapshot.not_entered;
        assert_eq!(
            entered + lost.subjects_full + lost.blocks_full,
            kernel,
            "{lost:?}"
        );
        (snapshot.subjects.len(), lost)
    };
    let (subjects, lost) = tight(1, 64 << 20);
    assert_eq!(subjects, 1);
    assert!(lost.subjects_full > 0 && lost.blocks_full == 0, "{lost:?}");
    let (_, lost) = tight(64, 128 << 10);
    assert!(lost.blocks_full > 0 && lost.subjects_full == 0, "{lost:?}");
}

#[test]
fn numbers_that_cannot_be_are_refused_with_what_can() {
    for options in [
        HistOptions {
            closest_of: 0,
            ..HistOptions::default()
        },
        HistOptions {
            entries_max: 0,
            ..HistOptions::default()
        },
        HistOptions {
            bins_bytes_max: 1,
            ..HistOptions::default()
        },
    ] {
        let error = HistTap::open(&options)
            .expect_err("it cannot be")
            .to_string();
        assert!(
            error.contains("use 1 to") || error.contains("use at least 1 MiB"),
            "{error}"
        );
    }
}
