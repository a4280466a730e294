//! Requests and bytes per operation match those of fio and the kernel, for every engine, size and
//! scheduler; nothing is lost.

use std::fs;

use crate::load::{DiskStats, Fio, fio};
use crate::watch::{Rows, Seen, Watch, demand, only};
use crate::{bench, skip};
use weir_model::event::value;
use weir_model::{Symbol, Test};
use weir_testing::{LoopDisk, is_full, unseen_max};

/// Loads that bypass the page cache: each of fio's calls is a bio of its own, but one of 1 MiB
/// exceeds the maximum size of the device and is split.
const DIRECT: &[&str] = &[
    "--direct=1 --ioengine=libaio --iodepth=16 --rw=randread --bs=4k --io_size=64m --size=64m",
    "--direct=1 --ioengine=libaio --iodepth=8 --rw=randrw --bs=4k --io_size=32m --size=64m",
    "--direct=1 --ioengine=io_uring --iodepth=16 --rw=randwrite --bs=16k --io_size=64m --size=64m",
    "--direct=1 --ioengine=io_uring --iodepth=4 --rw=read --bs=64k --io_size=64m --size=64m",
    "--direct=1 --ioengine=psync --rw=write --bs=1m --io_size=128m --size=64m",
    "--direct=1 --ioengine=psync --rw=randread --bs=128k --io_size=64m --size=64m",
    "--direct=1 --ioengine=libaio --iodepth=4 --rw=randtrim --bs=64k --io_size=32m --size=64m",
    "--direct=1 --ioengine=psync --rw=randwrite --bs=4k --io_size=2m --size=64m --fsync=8",
];

/// Loads through the page cache, where the kernel determines the sizes.
const BUFFERED: &[&str] = &[
    "--ioengine=psync --rw=randwrite --bs=4k --io_size=16m --size=64m --end_fsync=1",
    "--ioengine=psync --rw=write --bs=1m --io_size=64m --size=64m --end_fsync=1",
    "--ioengine=psync --rw=read --bs=64k --io_size=64m --size=64m --invalidate=1",
];

const SCHEDULERS: &[&str] = &["none", "mq-deadline", "bfq", "kyber"];

/// The schedulers of the small version of the test.
const SCHEDULERS_SMALL: usize = 2;

#[test]
fn finished_requests_are_what_fio_and_the_kernel_count() {
    const TEST: &str = "finished_requests_are_what_fio_and_the_kernel_count";
    let Some(bench) = bench(TEST, 64) else {
        return;
    };
    let schedulers = match is_full() {
        true => SCHEDULERS,
        false => &SCHEDULERS[..SCHEDULERS_SMALL],
    };
    for scheduler in schedulers {
        if !has(&bench.disk, scheduler) {
            skip::<()>(TEST, format!("this kernel has no scheduler {scheduler}"));
            continue;
        }
        bench.disk.set("scheduler", scheduler).unwrap();
        for load in DIRECT {
            let (seen, report, kernel) =
                watched(&bench.disk, "IO", "op sectors merges latency", load);
            let rows = seen.all();
            let what = format!("{scheduler}: {load}: {:?}", seen.counts);
            agrees_with_kernel(rows, &seen, kernel, &what);
            // A scheduler may merge adjacent requests; each of fio's calls is then one of the bios.
            let calls = |op: &str| {
                let rows = rows.with("op", op);
                rows.len() as i64 + rows.sum("merges")
            };
            let slack = seen.count("unseen", None, None);
            let bytes = |op: &str| rows.with("op", op).sum("sectors") * 512;
            for (op, direction) in [
                ("r", &report.read),
                ("w", &report.write),
                ("d", &report.trim),
            ] {
                let missing = direction.ios - calls(op);
                let split = load.contains("--bs=1m") && missing < 0;
                assert!(
                    split || (0..=slack).contains(&missing),
                    "{op}: {missing} calls; {what}"
                );
                assert!(
                    slack > 0 || bytes(op) == direction.bytes,
                    "{op}: bytes; {what}"
                );
            }
            assert_eq!(
                rows.with("op", "f").len() as i64,
                report.syncs,
                "flushes; {what}"
            );
        }
        for load in BUFFERED {
            let (seen, report, kernel) = watched(&bench.disk, "IO", "op sectors latency", load);
            let rows = seen.all();
            let what = format!("{scheduler}: {load}: {:?}", seen.counts);
            agrees_with_kernel(rows, &seen, kernel, &what);
            let written = rows.with("op", "w").sum("sectors") * 512;
            // A page that is written twice is written to the device once.
            assert!(
                written <= report.write.bytes,
                "more was written than asked; {what}"
            );
            assert!(
                (written > 0) == (report.write.bytes > 0),
                "writeback was not seen; {what}"
            );
        }
    }
}

#[test]
fn each_response_has_its_request() {
    let Some(bench) = bench("each_response_has_its_request", 64) else {
        return;
    };
    for load in DIRECT.iter().chain(BUFFERED) {
        let columns = "type op req_id sector sectors";
        let (seen, _, kernel) = watched(&bench.disk, "IOstream", columns, load);
        let rows = seen.all();
        let what = format!("{load}: {:?}", seen.counts);
        let (requests, responses) = (rows.with("type", "Q"), rows.with("type", "R"));
        let unseen = seen.count("unseen", None, None);
        assert_eq!(requests.len() as i64, kernel.requests(), "requests; {what}");
        assert_eq!(
            responses.len() as i64 + unseen,
            kernel.requests(),
            "responses; {what}"
        );
        // Per operation and length, both sides are equal, except for unseen requests.
        for op in ["r", "w", "d", "f"] {
            let (asked, done) = (requests.with("op", op), responses.with("op", op));
            let missing = asked.sum("sectors") - done.sum("sectors");
            assert!(
                missing == 0 || unseen > 0,
                "{op}: {missing} sectors unanswered; {what}"
            );
        }
        let mut open = std::collections::HashSet::new();
        let ids = rows.ints("req_id");
        let kinds = rows.column("type");
        for (id, kind) in ids.iter().zip(kinds) {
            match kind.to_string().as_str() {
                "Q" => assert!(
                    open.insert(*id) || unseen > 0,
                    "{id} is asked twice; {what}"
                ),
                _ => assert!(open.remove(id), "{id} is answered unasked; {what}"),
            }
        }
        assert!(
            open.len() as i64 <= unseen,
            "{} stay unanswered; {what}",
            open.len()
        );
    }
}

#[test]
fn requests_alone_are_complete_without_a_completion_probe() {
    let Some(bench) = bench("requests_alone_are_complete_without_a_completion_probe", 64) else {
        return;
    };
    for load in DIRECT.iter().chain(BUFFERED) {
        let asked = Test::In {
            operand: value("type"),
            texts: vec![Symbol::new("Q")],
        };
        let watch = Watch::start(
            vec![demand("IOstream", "type op sectors", vec![asked])],
            &only(bench.disk.path()),
        );
        let before = DiskStats::of(&bench.disk);
        fio(&bench.disk, load);
        let kernel = DiskStats::of(&bench.disk).since(before);
        let seen = watch.stop();
        let what = format!("{load}: {:?}", seen.counts);
        assert_eq!(seen.all().len() as i64, kernel.requests(), "{what}");
        assert_eq!(seen.all().with("type", "Q").len(), seen.all().len());
    }
}

#[test]
fn responses_alone_are_complete_without_an_issue_probe() {
    let Some(bench) = bench("responses_alone_are_complete_without_an_issue_probe", 64) else {
        return;
    };
    for load in DIRECT.iter().chain(BUFFERED) {
        let (seen, _, kernel) = watched(&bench.disk, "IO", "op sectors", load);
        let what = format!("{load}: {:?}", seen.counts);
        assert_eq!(
            seen.described[0], "live tap: attached to block_rq_complete",
            "{what}"
        );
        agrees_with_kernel(seen.all(), &seen, kernel, &what);
    }
}

/// 12,288 requests are 24,576 events. A CPU's ring has room for 32,768 records of 120 bytes, so
/// that nothing can be lost however late the consumer is scheduled.
#[test]
fn a_burst_that_fits_into_the_rings_is_received_whole() {
    let Some(bench) = bench("a_burst_that_fits_into_the_rings_is_received_whole", 64) else {
        return;
    };
    let load =
        "--direct=1 --ioengine=io_uring --iodepth=64 --rw=randrw --bs=4k --io_size=48m --size=64m";
    let (seen, report, kernel) = watched(&bench.disk, "recording", "", load);
    let unseen = seen.count("unseen", None, None);
    assert!(
        unseen <= unseen_max(kernel.requests() as u64) as i64,
        "{unseen} of {kernel:?} were not seen"
    );
    let rows = seen.all();
    let requests = rows.with("type", "Q");
    // Adjacent bios that are submitted together become one request.
    let calls = requests.len() as i64 + requests.sum("merges");
    assert_eq!(calls, report.read.ios + report.write.ios);
    assert_eq!(requests.len() as i64, kernel.requests());
    assert_eq!(
        rows.with("type", "R").len() as i64 + unseen,
        kernel.requests()
    );
}

/// Whether the consumer keeps up depends on the machine; each event must be either received or
/// counted as lost.
#[test]
fn at_full_speed_each_event_is_received_or_counted_as_lost() {
    let Some(bench) = bench(
        "at_full_speed_each_event_is_received_or_counted_as_lost",
        64,
    ) else {
        return;
    };
    let load = "--direct=1 --ioengine=io_uring --iodepth=64 --rw=randrw --bs=4k --time_based --runtime=2 --size=64m";
    let (seen, _, kernel) = watched(&bench.disk, "recording", "", load);
    let unseen = seen.count("unseen", None, None);
    assert!(
        unseen <= unseen_max(kernel.requests() as u64) as i64,
        "{unseen} of {kernel:?} were not seen"
    );
    let lost = seen.count("events_lost", None, None);
    assert_eq!(
        seen.count("events_lost", Some("slow_consumer"), None),
        lost,
        "{:?}",
        seen.counts
    );
    let received = seen.rows[0].len() as i64;
    assert_eq!(
        received + lost + unseen,
        2 * kernel.requests(),
        "{:?}",
        seen.counts
    );
}

/// Runs fio while a tap reads events: the results of the tap, of fio and of the kernel.
fn watched(disk: &LoopDisk, stream: &str, columns: &str, load: &str) -> (Seen, Fio, DiskStats) {
    let watch = Watch::start(
        vec![demand(stream, columns, Vec::new())],
        &only(disk.path()),
    );
    let before = DiskStats::of(disk);
    let report = fio(disk, load);
    let kernel = DiskStats::of(disk).since(before);
    (watch.stop(), report, kernel)
}

/// The rows match the kernel's counts, except for those counted as unseen.
fn agrees_with_kernel(rows: &Rows, seen: &Seen, kernel: DiskStats, what: &str) {
    let unseen = seen.count("unseen", None, None);
    let all = kernel.requests();
    assert_eq!(rows.len() as i64 + unseen, all, "requests; {what}");
    assert!(
        unseen <= unseen_max(all as u64) as i64,
        "too much was not seen; {what}"
    );
    let of = |ops: &[&str]| {
        let rows: Vec<Rows> = ops.iter().map(|op| rows.with("op", op)).collect();
        let count: usize = rows.iter().map(Rows::len).sum();
        let sectors: i64 = rows.iter().map(|r| r.sum("sectors")).sum();
        (count as i64, sectors)
    };
    if unseen == 0 {
        assert_eq!(of(&["r"]), kernel.read, "reads; {what}");
        assert_eq!(of(&["w", "z", "f"]), kernel.write, "writes; {what}");
        assert_eq!(of(&["d"]), kernel.discard, "discards; {what}");
    }
    assert_eq!(
        seen.count("flush_commands", None, None),
        kernel.flushes,
        "flushes; {what}"
    );
}

fn has(disk: &LoopDisk, scheduler: &str) -> bool {
    let path = disk.sysfs().join("queue/scheduler");
    fs::read_to_string(path).is_ok_and(|all| all.contains(scheduler))
}
