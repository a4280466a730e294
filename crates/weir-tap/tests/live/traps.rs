//! Cases that simple taps get wrong: flush sequences, partial completions, requeues, errors,
//! partitions, merges, disabled statistics, requests in flight at the start.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use weir_model::event::value;
use weir_model::{Symbol, Test, Value};
use weir_tap::ebpf::LiveOptions;

use crate::load::{DiskStats, fio};
use crate::watch::{Watch, demand, only};
use crate::{bench, skip};

#[test]
fn a_synchronous_write_is_one_request_until_its_flush_completes() {
    let Some(bench) = bench(
        "a_synchronous_write_is_one_request_until_its_flush_completes",
        64,
    ) else {
        return;
    };
    // O_DSYNC turns each write into a sequence: the data, a flush command of the kernel, and the
    // completion.
    let load =
        "--direct=1 --ioengine=psync --sync=dsync --rw=randwrite --bs=4k --io_size=4m --size=64m";
    for columns in [
        "type op sectors",
        "type op sectors service",
        "type op sectors flags latency",
    ] {
        let watch = Watch::start(
            vec![demand("recording", columns, Vec::new())],
            &only(bench.disk.path()),
        );
        let report = fio(&bench.disk, load);
        let seen = watch.stop();
        let unseen = seen.count("unseen", None, None);
        // After the writes, the kernel flushes once more for the call.
        let writes = seen.all().with("op", "w");
        let (asked, done) = (writes.with("type", "Q"), writes.with("type", "R"));
        assert_eq!(asked.len() as i64, report.write.ios, "{columns}");
        assert!(report.write.ios - done.len() as i64 <= unseen, "{columns}");
        assert!(done.len() as i64 <= report.write.ios, "{columns}");
        assert!(
            done.ints("sectors").iter().all(|s| *s == 8),
            "{columns}: each is of 8 sectors"
        );
        assert!(seen.count("flush_commands", None, None) > 0, "{columns}");
        if columns.contains("flags") {
            assert!(
                writes.texts("flags").iter().all(|f| f.contains('F')),
                "{:?}",
                writes.texts("flags")
            );
        }
    }
}

#[test]
fn a_synchronous_write_is_one_row_of_responses_alone() {
    let Some(bench) = bench("a_synchronous_write_is_one_row_of_responses_alone", 64) else {
        return;
    };
    let load =
        "--direct=1 --ioengine=psync --sync=dsync --rw=randwrite --bs=4k --io_size=4m --size=64m";
    let watch = Watch::start(
        vec![demand("IO", "op sector sectors", Vec::new())],
        &only(bench.disk.path()),
    );
    let report = fio(&bench.disk, load);
    let seen = watch.stop();
    let rows = seen.all().with("op", "w");
    let missing = report.write.ios - rows.len() as i64;
    assert!(
        (0..=seen.count("unseen", None, None)).contains(&missing),
        "{missing}"
    );
    assert_eq!(
        rows.ints("sector").len(),
        rows.len(),
        "each says where it began"
    );
    assert!(rows.ints("sectors").iter().all(|s| *s == 8));
}

#[test]
fn request_and_response_of_a_flush_have_its_submitter() {
    let Some(bench) = bench("request_and_response_of_a_flush_have_its_submitter", 64) else {
        return;
    };
    let columns = "type op sector sectors pid comm wait service latency";
    let watch = Watch::start(
        vec![demand("recording", columns, Vec::new())],
        &only(bench.disk.path()),
    );
    let report = fio(
        &bench.disk,
        "--direct=1 --ioengine=psync --rw=randwrite --bs=4k --io_size=1m --size=64m --fsync=4",
    );
    let seen = watch.stop();
    let flushes = seen.all().with("op", "f");
    assert_eq!(flushes.with("type", "Q").len() as i64, report.syncs);
    let done = flushes.with("type", "R");
    assert_eq!(
        done.len() as i64 + seen.count("unseen", None, None),
        report.syncs
    );
    assert_eq!(flushes.texts("comm"), ["fio"]);
    assert_eq!(flushes.texts("sector"), ["NULL"]);
    assert_eq!(
        done.ints("latency").len(),
        done.len(),
        "what it took is known"
    );
    assert_eq!(done.ints("service").len(), 0, "it is not issued itself");
}

#[test]
fn what_a_short_file_answers_in_parts_is_one_failed_request() {
    const TEST: &str = "what_a_short_file_answers_in_parts_is_one_failed_request";
    for columns in [
        "type op sector sectors error service",
        "type op sector sectors error",
    ] {
        let Some(bench) = bench(TEST, 16) else {
            return;
        };
        // The image ends after 1 MiB and 16 KiB: a read across that end is completed in part,
        // requeued, and fails.
        let image = OpenOptions::new()
            .write(true)
            .open(bench.disk.image())
            .unwrap();
        image.set_len((1 << 20) + (16 << 10)).unwrap();
        let demands = vec![
            demand("recording", columns, Vec::new()),
            demand("IO", "type op sector sectors error", Vec::new()),
        ];
        for demand in demands {
            let watch = Watch::start(vec![demand], &only(bench.disk.path()));
            let before = DiskStats::of(&bench.disk);
            read_direct(bench.disk.path(), 1 << 20, 64 << 10);
            let kernel = DiskStats::of(&bench.disk).since(before);
            let seen = watch.stop();
            let rows = seen.all().with("op", "r");
            let failed = rows.with("type", "E");
            assert_eq!(
                failed.len(),
                1,
                "{columns}: {:?} {:?}",
                seen.counts,
                rows.column("sectors")
            );
            assert_eq!(failed.ints("sector"), [2048], "where it began");
            assert_eq!(
                failed.ints("sectors"),
                [128],
                "what was asked, not what remained"
            );
            assert_eq!(failed.ints("error"), [i64::from(libc::EIO)]);
            let asked = rows.with("type", "Q").len();
            assert!(asked <= 1, "the requeue is no second request");
            assert_eq!(
                (rows.len() - asked) as i64,
                kernel.read.0,
                "as often as the kernel counts"
            );
        }
    }
}

/// Reads with direct I/O; dd's error messages are ignored.
pub fn read_direct(device: &str, offset: u64, bytes: u64) {
    let (input, size) = (format!("if={device}"), format!("bs={bytes}"));
    let skip = format!("skip={}", offset / bytes);
    let mut dd = Command::new("dd");
    dd.args([
        &input,
        "of=/dev/null",
        &size,
        &skip,
        "count=1",
        "iflag=direct",
    ]);
    dd.stderr(Stdio::null()).status().expect("dd starts");
}

#[test]
fn requests_are_reported_without_the_kernels_statistics() {
    let Some(bench) = bench("requests_are_reported_without_the_kernels_statistics", 64) else {
        return;
    };
    bench.disk.set("iostats", "0").unwrap();
    let watch = Watch::start(
        vec![demand("IO", "op pdisk latency wait service", Vec::new())],
        &only(bench.disk.path()),
    );
    let report = fio(
        &bench.disk,
        "--direct=1 --ioengine=libaio --iodepth=4 --rw=randread --bs=4k --io_size=8m --size=64m",
    );
    let seen = watch.stop();
    let rows = seen.all();
    let missing = report.read.ios - rows.len() as i64;
    assert!(
        (0..=64).contains(&missing),
        "{missing} of {} are missing",
        report.read.ios
    );
    assert_eq!(rows.texts("pdisk"), [bench.disk.path()]);
    assert_eq!(rows.ints("latency").len(), rows.len());
    assert!(
        rows.ints("latency")
            .iter()
            .all(|ns| (0..60_000_000_000).contains(ns))
    );
    assert_eq!(
        seen.count("seen", None, None),
        0,
        "there is nothing to check against"
    );
}

#[test]
fn a_partition_is_named_and_its_disk_checked() {
    const TEST: &str = "a_partition_is_named_and_its_disk_checked";
    let Some(bench) = bench(TEST, 64) else {
        return;
    };
    // A partition of sectors 2048 to 67583.
    let partition = match bench.disk.partition(1, 2048, 65_536) {
        Ok(partition) => partition,
        Err(why) => {
            skip::<()>(TEST, why);
            return;
        }
    };
    let named = vec![Test::In {
        operand: value("pdisk"),
        texts: vec![Symbol::new(&partition)],
    }];
    // Only the selection names the device here.
    let watch = Watch::start(
        vec![demand("IO", "pdisk sector sectors", named)],
        &only("/dev/nothing"),
    );
    thread::sleep(Duration::from_millis(100));
    read_direct(&partition, 0, 4096);
    read_direct(bench.disk.path(), 0, 4096);
    read_direct(&partition, 8192, 4096);
    let seen = watch.stop();
    let rows = seen.all();
    assert_eq!(rows.texts("pdisk"), [partition]);
    let firsts: Vec<i64> = rows.ints("sector");
    assert!(
        firsts.contains(&2048) && firsts.contains(&2064),
        "{firsts:?}"
    );
    assert!(!firsts.contains(&0), "the whole disk was not asked for");
}

#[test]
fn merged_neighbours_are_one_request_with_a_merge_count() {
    let Some(bench) = bench("merged_neighbours_are_one_request_with_a_merge_count", 64) else {
        return;
    };
    // Sixteen adjacent writes of one submission, which the plug merges.
    let load = "--direct=1 --ioengine=libaio --iodepth=16 --iodepth_batch=16 --iodepth_batch_complete_min=16 \
                --rw=write --bs=4k --io_size=4m --size=64m";
    for columns in ["op sectors merges", "op sectors merges latency"] {
        let watch = Watch::start(
            vec![demand("IO", columns, Vec::new())],
            &only(bench.disk.path()),
        );
        let report = fio(&bench.disk, load);
        let seen = watch.stop();
        let rows = seen.all().with("op", "w");
        assert!(rows.sum("merges") > 0, "nothing was merged: {columns}");
        let sectors: Vec<(i64, i64)> = rows
            .ints("sectors")
            .into_iter()
            .zip(rows.ints("merges"))
            .collect();
        assert!(
            sectors.iter().all(|(s, m)| *s == 8 * (m + 1)),
            "{sectors:?}"
        );
        if seen.count("unseen", None, None) == 0 {
            assert_eq!(
                rows.len() as i64 + rows.sum("merges"),
                report.write.ios,
                "{columns}"
            );
        }
        assert_eq!(
            seen.count("requests_untracked", None, None),
            0,
            "{:?}",
            seen.counts
        );
    }
}

#[test]
fn requests_in_flight_at_the_start_are_reported_without_times() {
    let Some(bench) = bench(
        "requests_in_flight_at_the_start_are_reported_without_times",
        64,
    ) else {
        return;
    };
    let load = "--name=before --direct=1 --ioengine=libaio --iodepth=32 --rw=randread --bs=64k \
                --time_based --runtime=2 --norandommap --size=64m";
    let mut busy = Command::new("fio")
        .args(load.split_whitespace())
        .arg(format!("--filename={}", bench.disk.path()))
        .stdout(Stdio::null())
        .spawn()
        .expect("fio starts");
    thread::sleep(Duration::from_millis(700));
    let watch = Watch::start(
        vec![demand("IO", "op service latency", Vec::new())],
        &only(bench.disk.path()),
    );
    busy.wait().expect("fio ends");
    let seen = watch.stop();
    let rows = seen.all();
    let timeless = rows
        .column("service")
        .iter()
        .filter(|v| **v == Value::Null)
        .count() as i64;
    let orphans = seen.count("requests_untracked", Some("begun_unseen"), None);
    assert_eq!(timeless, orphans, "{:?}", seen.counts);
    assert!(orphans <= 64, "only what was in flight: {orphans}");
    assert!(rows.len() as i64 > orphans);
}

#[test]
fn another_writer_keeps_its_identity_through_writeback() {
    let Some(bench) = bench("another_writer_keeps_its_identity_through_writeback", 64) else {
        return;
    };
    let watch = Watch::start(
        vec![demand("IO", "op pid comm cgroup cpu sectors", Vec::new())],
        &LiveOptions {
            ..only(bench.disk.path())
        },
    );
    let mut device: File = OpenOptions::new()
        .write(true)
        .open(bench.disk.path())
        .unwrap();
    device.write_all(&vec![7; 1 << 20]).unwrap();
    device.sync_all().unwrap();
    let seen = watch.stop();
    let rows = seen.all();
    let written = rows.with("op", "w");
    assert_eq!(written.sum("sectors") * 512, 1 << 20);
    // fsync writes in the context of the caller.
    let own = i64::from(std::process::id());
    assert!(
        written.ints("pid").contains(&own),
        "{:?}",
        written.texts("pid")
    );
    assert_eq!(written.ints("cpu").len(), written.len());
    assert!(
        written.texts("cgroup").iter().all(|c| c.starts_with('/')),
        "{:?}",
        written.texts("cgroup")
    );
}
