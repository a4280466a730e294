//! Groups computed by the kernel programs: together with the rows that they do not fold, they are
//! exactly equal to the groups of the rows of a second demand of the same tap.

use std::fs::{self, OpenOptions};
use std::thread;
use std::time::Duration;

use weir_model::event::{io_schema, value};
use weir_model::{Clause, Demand, Fold, FoldCall, PartialKind, Symbol, Test, Value};
use weir_tap::ebpf::{DeviceChoice, LiveOptions};
use weir_tap::live;
use weir_testing::{LoopDisk, run};

use crate::bench;
use crate::groups_by_definition::{Groups, column, merge, of_folded, of_rows, rows_in};
use crate::images::{Fake, fio_as, prepared, raw, with_inventory, write_lazily, write_stamped};
use crate::load::fio;
use crate::skip;
use crate::traps::read_direct;
use crate::watch::{Seen, Watch, demand, only};

/// Several processes on all CPUs; reads, writes, flushes; different sizes.
const MIXED: &str = "--direct=1 --ioengine=libaio --iodepth=8 --numjobs=4 --rw=randrw --fsync=64 \
                     --bssplit=4k/60:12k/30:64k/10 --time_based --runtime=1 --size=48m";

const MILLISECOND: i64 = 1_000_000;

/// The vscsiStats limits of I/O lengths, and of latencies, in weir's units.
const LENGTHS: &[i64] = &[512, 1024, 2048, 4095, 4096, 8191, 8192, 16383, 16384, 32768];
const TIMES: &[i64] = &[
    -5, 1000, 10_000, 100_000, 500_000, 1_000_000, 5_000_000, 15_000_000,
];

/// Limits of distances on both sides.
const SEEKS: &[i64] = &[-100_000, -1_000, -1, 0, 1, 9, 1_000, 100_000];

fn call(name: &str, keep: PartialKind) -> FoldCall {
    let column = (!name.is_empty()).then(|| column(name));
    FoldCall { column, keep }
}

/// As many limits as a histogram may have, less a few.
fn many() -> Vec<i64> {
    (1..=500).map(|number| number * number * 37).collect()
}

/// All supported calls, on all columns that support calls.
fn all_calls() -> Vec<FoldCall> {
    vec![
        call("", PartialKind::Moments),
        call("bytes", PartialKind::Moments),
        call("sectors", PartialKind::Moments),
        call("latency", PartialKind::Moments),
        call("wait", PartialKind::Moments),
        call("bytes", PartialKind::Limits(LENGTHS.to_vec())),
        call("latency", PartialKind::Limits(TIMES.to_vec())),
        call("latency", PartialKind::LogLinear { bits: 7 }),
        call("interarrival", PartialKind::LogLinear { bits: 7 }),
        call("service", PartialKind::Limits(many())),
        call("merges", PartialKind::Moments),
        call("in_flight", PartialKind::Moments),
        call("in_flight", PartialKind::Limits(vec![1, 2, 4, 8, 16])),
        call("seek", PartialKind::Moments),
        call("seek", PartialKind::Limits(SEEKS.to_vec())),
        call("seek", PartialKind::LogLinear { bits: 7 }),
    ]
}

/// A demand for groups of the rows that pass the tests, and one for all rows.
fn demands(interval: i64, keys: &str, calls: &[FoldCall], tests: Vec<Test>) -> Vec<Demand> {
    let names = keys.split_whitespace().map(str::to_owned);
    let schema = io_schema();
    let of_calls = calls.iter().filter_map(|c| c.column);
    let names: Vec<String> = names
        .chain(of_calls.map(|at| schema[at].name.clone()))
        .chain(["ts", "op", "sectors", "latency"].map(str::to_owned))
        .collect();
    let names = names.join(" ");
    let mut folding = demand("IO", &names, tests);
    folding.columns.sort_unstable();
    folding.columns.dedup();
    let mut all = folding.clone();
    all.predicate = weir_model::Predicate::all();
    folding.fold = Some(Fold {
        interval,
        keys: keys.split_whitespace().map(column).collect(),
        calls: calls.to_vec(),
    });
    vec![folding, all]
}

/// Only the intervals that were complete when reading ended.
fn complete(mut groups: Groups, upto: i64) -> Groups {
    groups.retain(|(end, _), _| *end <= upto);
    groups
}

/// The sum over all intervals.
fn whole(groups: Groups) -> Groups {
    let mut all = Groups::new();
    for ((_, key), sums) in groups {
        all = merge(all, Groups::from([((0, key), sums)]));
    }
    all
}

/// The number of requests that were folded, and of those delivered as rows of the folding demand.
#[derive(Debug)]
struct Share {
    folded: u64,
    rows: u64,
}

/// Compares the groups and rows of demand `number` with the rows of the last demand.
fn holds(
    seen: &Seen,
    demands: &[Demand],
    number: usize,
    passes: &dyn Fn(&[Value]) -> bool,
) -> Share {
    let fold = demands[number].fold.as_ref().unwrap();
    assert_eq!(
        seen.count("events_lost", None, None),
        0,
        "{:?}",
        seen.counts
    );
    let folded_rows = seen.folded.iter().filter(|(demand, _)| *demand == number);
    let folded = of_folded(folded_rows.map(|(_, folded)| folded), fold);
    let rows = of_rows(seen.rows[number].iter(), fold, passes);
    let all = of_rows(seen.rows.last().unwrap().iter(), fold, passes);
    let upto = seen.upto;
    let [folded, rows, all] = [folded, rows, all].map(|groups| complete(groups, upto));
    let share = Share {
        folded: rows_in(&folded),
        rows: rows_in(&rows),
    };
    let mut merged = merge(folded, rows);
    let mut expected = all;
    assert!(
        rows_in(&expected) > 500,
        "there was load: {}",
        rows_in(&expected)
    );
    if seen.count("events_late", None, None) > 0 {
        // A program was preempted, and its record was received after its interval: it has another
        // time than in the fold. The sums over all intervals are still equal.
        skip::<()>(
            "holds",
            "records came late, so that not every interval is compared",
        );
        merged = whole(merged);
        expected = whole(expected);
    }
    let keys = |groups: &Groups| groups.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&merged), keys(&expected));
    for (key, sums) in &expected {
        assert_eq!(&merged[key], sums, "{key:?}");
    }
    share
}

/// Runs a load, and reads until all its intervals are complete.
fn watched(disk: &LoopDisk, demands: &[Demand], options: &LiveOptions, load: &str) -> Seen {
    let watch = Watch::start(demands.to_vec(), options);
    fio(disk, load);
    let longest = demands
        .iter()
        .filter_map(|d| d.fold.as_ref())
        .map(|f| f.interval);
    thread::sleep(Duration::from_nanos(longest.max().unwrap() as u64));
    watch.stop()
}

fn everything(_: &[Value]) -> bool {
    true
}

#[test]
fn groups_made_in_the_kernel_are_those_of_the_rows() {
    let Some(bench) = bench("groups_made_in_the_kernel_are_those_of_the_rows", 64) else {
        return;
    };
    let demands = demands(100 * MILLISECOND, "op pdisk", &all_calls(), Vec::new());
    let seen = watched(&bench.disk, &demands, &only(bench.disk.path()), MIXED);
    let share = holds(&seen, &demands, 0, &everything);
    assert!(share.folded > 10 * share.rows, "{share:?}");
    let intervals = seen.folded.len();
    assert!(intervals >= 8, "{intervals} intervals");
    let described = seen.described.join("\n");
    assert!(
        described.contains("kernel: groups by op, pdisk"),
        "{described}"
    );
}

#[test]
fn many_processes_and_short_intervals_lose_nothing() {
    let Some(bench) = bench("many_processes_and_short_intervals_lose_nothing", 64) else {
        return;
    };
    let keys = "pid comm cgroup op level host type";
    let demands = demands(7 * MILLISECOND, keys, &all_calls(), Vec::new());
    let load = format!("{MIXED} --numjobs=24 --iodepth=2");
    let seen = watched(&bench.disk, &demands, &only(bench.disk.path()), &load);
    let share = holds(&seen, &demands, 0, &everything);
    assert!(share.folded > 0, "{share:?}");
    let pids = seen.rows[1]
        .column("pid")
        .into_iter()
        .map(|v| v.to_string());
    let pids = pids.collect::<std::collections::BTreeSet<String>>();
    assert!(pids.len() >= 24, "{pids:?}");
}

#[test]
fn what_finds_no_room_comes_as_rows() {
    let Some(bench) = bench("what_finds_no_room_comes_as_rows", 64) else {
        return;
    };
    let options = LiveOptions {
        fold_bytes: 0,
        ..only(bench.disk.path())
    };
    let demands = demands(50 * MILLISECOND, "pid op", &all_calls(), Vec::new());
    let load = format!("{MIXED} --numjobs=24 --iodepth=2");
    let seen = watched(&bench.disk, &demands, &options, &load);
    let share = holds(&seen, &demands, 0, &everything);
    assert!(share.folded > 0 && share.rows > 0, "{share:?}");
}

#[test]
fn only_what_is_selected_is_folded_and_each_for_its_own_demand() {
    let Some(bench) = bench(
        "only_what_is_selected_is_folded_and_each_for_its_own_demand",
        64,
    ) else {
        return;
    };
    let clause = |tests| Clause { tests };
    let ops = |ops: &[&str]| Test::In {
        operand: value("op"),
        texts: ops.iter().map(|op| Symbol::new(op)).collect(),
    };
    let large = Test::Between {
        operand: value("sectors"),
        low: 9,
        high: i64::MAX,
    };
    let slow = Test::Between {
        operand: value("latency"),
        low: 100_000,
        high: i64::MAX,
    };
    let calls = all_calls();
    // Reads, and large writes; long latencies; and everything.
    let mut first = demands(100 * MILLISECOND, "op", &calls, Vec::new());
    first[0].predicate.clauses = vec![clause(vec![ops(&["r"])]), clause(vec![ops(&["w"]), large])];
    let second = demands(30 * MILLISECOND, "", &calls[..4], vec![slow]);
    let all = first.pop().unwrap();
    let demands = vec![first[0].clone(), second[0].clone(), all];
    let seen = watched(&bench.disk, &demands, &only(bench.disk.path()), MIXED);
    let (op, sectors, latency) = (column("op"), column("sectors"), column("latency"));
    let int = |value: &Value| match value {
        Value::Int(x) => *x,
        _ => i64::MIN,
    };
    let passes = |row: &[Value]| {
        row[op] == Value::text("r") || row[op] == Value::text("w") && int(&row[sectors]) > 8
    };
    let share = holds(&seen, &demands, 0, &passes);
    assert!(share.folded > share.rows, "{share:?}");
    let share = holds(&seen, &demands, 1, &|row| int(&row[latency]) >= 100_000);
    assert!(share.folded > share.rows, "{share:?}");
    assert_eq!(seen.rows[1].len(), seen.rows[1].ints("latency").len());
}

#[test]
fn what_fails_comes_as_a_row() {
    let Some(bench) = bench("what_fails_comes_as_a_row", 64) else {
        return;
    };
    let demands = demands(100 * MILLISECOND, "type op", &all_calls(), Vec::new());
    let watch = Watch::start(demands.clone(), &only(bench.disk.path()));
    fio(&bench.disk, MIXED);
    // The image ends after 1 MiB.
    let image = OpenOptions::new().write(true).open(bench.disk.image());
    image.unwrap().set_len(1 << 20).unwrap();
    read_direct(bench.disk.path(), 1 << 20, 64 << 10);
    thread::sleep(Duration::from_millis(100));
    let seen = watch.stop();
    holds(&seen, &demands, 0, &everything);
    assert_eq!(seen.rows[0].with("type", "E").len(), 1);
    let fold = demands[0].fold.as_ref().unwrap();
    let folded = of_folded(seen.folded.iter().map(|(_, folded)| folded), fold);
    assert!(folded.keys().all(|(_, key)| key[0] == "R"));
}

#[test]
fn demands_without_fold_are_served_as_rows_with_the_reason() {
    let Some(bench) = bench(
        "demands_without_fold_are_served_as_rows_with_the_reason",
        64,
    ) else {
        return;
    };
    let count = vec![call("", PartialKind::Moments)];
    let numbers = vec![
        call("", PartialKind::Moments),
        call("req_id", PartialKind::Moments),
    ];
    for (keys, calls, why) in [
        ("flags", &count, "`flags` is not a key of groups"),
        ("op", &numbers, "`req_id` is not aggregated"),
    ] {
        let demands = demands(100 * MILLISECOND, keys, calls, Vec::new());
        let result = live::capabilities().folds(&demands[0]);
        assert_eq!(result, Err(why.to_owned()));
        let seen = watched(&bench.disk, &demands, &only(bench.disk.path()), MIXED);
        let share = holds(&seen, &demands, 0, &everything);
        assert_eq!(share.folded, 0);
        let described = seen.described.join("\n");
        assert!(described.contains(why), "{described}");
    }
}

/// The sum over the groups of a VM and its disk.
fn of_owner(groups: &Groups, vm: &str, vdisk: &str) -> u64 {
    let own = groups
        .iter()
        .filter(|((_, key), _)| key[0] == vm && key[1] == vdisk);
    rows_in(&own.map(|(key, sums)| (key.clone(), sums.clone())).collect())
}

#[test]
fn groups_of_vms_that_share_a_disk_are_made_in_the_kernel() {
    const TEST: &str = "groups_of_vms_that_share_a_disk_are_made_in_the_kernel";
    let Some((bench, images)) = prepared(TEST, 96) else {
        return;
    };
    let own = match LoopDisk::new(32) {
        Ok(own) => own,
        Err(why) => return skip(TEST, &why).unwrap_or(()),
    };
    // Written alternately, so that their extents are interleaved.
    for part in 0..24 {
        write_stamped(&images.path("a.raw"), part << 20, 1 << 20, 1);
        write_stamped(&images.path("b.raw"), part << 20, 1 << 20, 2);
    }
    let (a, b) = (raw(images.path("a.raw")), raw(images.path("b.raw")));
    let vm = |name, vdisk, image| Fake {
        name,
        disks: vec![(vdisk, vec![image])],
    };
    let vms = vec![
        vm("vm-a", "/dev/vda", a.clone()),
        vm("vm-b", "/dev/sdb", b.clone()),
        vm("vm-disk", "/dev/vdb", raw(own.path())),
    ];
    let options = LiveOptions {
        devices: DeviceChoice::Named(vec![own.path().into(), bench.disk.path().into()]),
        ..with_inventory(&[own.path(), bench.disk.path()], vms)
    };
    let calls = all_calls();
    let demands = demands(100 * MILLISECOND, "vm vdisk pdisk op", &calls, Vec::new());
    let watch = Watch::start(demands.clone(), &options);
    let load = "--direct=1 --ioengine=libaio --iodepth=4 --rw=randrw --bsrange=4k-64k --time_based \
                --runtime=1 --rate_iops=1500 --size=24m";
    fio_as("vm-a", &a.path, load);
    fio_as("vm-b", &b.path, load);
    fio_as("vm-disk", own.path().as_ref(), &load.replace("24m", "16m"));
    // Writeback by kernel threads, which belongs to the image; and load of no VM.
    write_lazily(&a.path, 0, &fs::read(&a.path).unwrap());
    fs::write(images.path("other"), vec![0; 1 << 20]).unwrap();
    run("sync", &[]).unwrap();
    fio(&own, &load.replace("24m", "16m"));
    thread::sleep(Duration::from_millis(200));
    let seen = watch.stop();
    let share = holds(&seen, &demands, 0, &everything);
    assert!(share.folded > 0 && share.rows > 0, "{share:?}");
    let fold = demands[0].fold.as_ref().unwrap();
    let folded = of_folded(seen.folded.iter().map(|(_, folded)| folded), fold);
    let rows = of_rows(seen.rows[0].iter(), fold, &everything);
    for (vm, vdisk) in [
        ("vm-a", "/dev/vda"),
        ("vm-b", "/dev/sdb"),
        ("vm-disk", "/dev/vdb"),
    ] {
        let [folded, rows] = [&folded, &rows].map(|groups| of_owner(groups, vm, vdisk));
        // Rows are the first ones of a new process, and those across the boundary of two files.
        assert!(
            folded > 200 && folded > 2 * rows,
            "{vm}: {folded}, rows {rows}"
        );
    }
    assert!(of_owner(&folded, "NULL", "NULL") > 100);
    // Where a file of a VM may have grown, only the current inventory shows whose the requests are.
    assert!(of_owner(&rows, "NULL", "NULL") > 0);
    let described = seen.described.join("\n");
    assert!(
        described.contains("outside of the known extents"),
        "{described}"
    );
}

#[test]
fn an_image_that_grows_is_in_the_groups_of_its_vm() {
    const TEST: &str = "an_image_that_grows_is_in_the_groups_of_its_vm";
    let Some((bench, images)) = prepared(TEST, 96) else {
        return;
    };
    let path = images.path("thin.raw");
    fs::File::create(&path).unwrap().set_len(32 << 20).unwrap();
    let vms = vec![Fake {
        name: "vm-a",
        disks: vec![("/dev/vda", vec![raw(&path)])],
    }];
    let options = with_inventory(&[bench.disk.path()], vms);
    let calls = all_calls();
    let demands = demands(100 * MILLISECOND, "vm vdisk op", &calls, Vec::new());
    let watch = Watch::start(demands.clone(), &options);
    let write = "--direct=1 --ioengine=psync --rw=write --bs=64k --size=16m --zero_buffers";
    let again = "--direct=1 --ioengine=psync --rw=randread --bs=4k --size=16m --time_based --runtime=1 \
                 --rate_iops=1500";
    fio_as("vm-a", &path, write);
    // The programs know its extents by now.
    thread::sleep(Duration::from_millis(300));
    fio_as("vm-a", &path, again);
    thread::sleep(Duration::from_millis(200));
    let seen = watch.stop();
    holds(&seen, &demands, 0, &everything);
    let fold = demands[0].fold.as_ref().unwrap();
    let folded = of_folded(seen.folded.iter().map(|(_, folded)| folded), fold);
    let own = of_owner(&folded, "vm-a", "/dev/vda");
    assert!(own > 1000, "{own} of some 1,500 reads are in groups");
}
