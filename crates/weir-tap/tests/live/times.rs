//! Wait, service and latency, compared with fio's own measurements; seek distances of requests.
//!
//! fio's `lat` begins before the request is created and ends after the caller has been woken, so it
//! includes the tap's latency: the tap's is never longer, and both fall into the same or
//! neighbouring buckets of a histogram.

use weir_model::Value;

use crate::bench;
use crate::load::fio;
use crate::watch::{Watch, demand, only};
use weir_testing::LoopDisk;

#[test]
fn latency_lies_within_what_fio_measures() {
    let Some(bench) = bench("latency_lies_within_what_fio_measures", 64) else {
        return;
    };
    // Large requests, so that the device's time is most of the caller's.
    for load in [
        "--direct=1 --ioengine=psync --rw=randread --bs=256k --io_size=128m --size=64m",
        "--direct=1 --ioengine=psync --rw=randwrite --bs=256k --io_size=128m --size=64m",
        "--direct=1 --ioengine=libaio --iodepth=1 --rw=randread --bs=256k --io_size=128m --size=64m",
        "--direct=1 --ioengine=io_uring --iodepth=1 --rw=randread --bs=256k --io_size=128m --size=64m",
    ] {
        // If another process runs before the caller wakes up, only fio's time increases: the
        // minimum of several runs is used.
        let mut furthest = Vec::new();
        for _ in 0..8 {
            furthest.push(compare(&bench.disk, load));
            if furthest.last().is_some_and(|times| *times <= BUCKETS) {
                break;
            }
        }
        let least = furthest.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(
            least <= BUCKETS,
            "{load}: fio's quantiles are {furthest:?} times ours"
        );
    }
}

/// Two values in the same or in neighbouring buckets of powers of two differ by less than this
/// factor.
const BUCKETS: f64 = 4.0;

/// Runs a load and compares the tap's times with fio's: the maximum ratio of fio's to the tap's,
/// over the quantiles.
fn compare(disk: &LoopDisk, load: &str) -> f64 {
    let watch = Watch::start(
        vec![demand("IO", "op wait service latency", Vec::new())],
        &only(disk.path()),
    );
    let report = fio(disk, load);
    let seen = watch.stop();
    let rows = seen.all();
    let fios = if report.read.ios > 0 {
        report.read
    } else {
        report.write
    };
    let (waits, services) = (rows.ints("wait"), rows.ints("service"));
    let mut latencies = rows.ints("latency");
    assert_eq!(latencies.len(), rows.len(), "each has a latency");
    for ((wait, service), latency) in waits.iter().zip(&services).zip(&latencies) {
        assert!(*wait >= 0 && *service > 0, "{wait} {service}");
        assert_eq!(wait + service, *latency);
    }
    latencies.sort_unstable();
    let mean = latencies.iter().sum::<i64>() as f64 / latencies.len() as f64;
    assert!(
        mean <= fios.mean_ns,
        "{load}: mean {mean} of {}",
        fios.mean_ns
    );
    let quantiles = [0.5, 0.9, 0.99].into_iter().zip(fios.quantiles_ns);
    let times = quantiles.map(|(q, fios)| {
        let ours = latencies[((latencies.len() - 1) as f64 * q) as usize] as f64;
        // fio rounds to one part in 64.
        assert!(
            ours <= fios * (1.0 + 1.0 / 64.0),
            "{load}: {q}: {ours} of {fios}"
        );
        fios / ours
    });
    times.fold(0.0, f64::max)
}

#[test]
fn one_at_a_time_is_alone_in_flight_and_sequential_is_one_apart() {
    let Some(bench) = bench(
        "one_at_a_time_is_alone_in_flight_and_sequential_is_one_apart",
        64,
    ) else {
        return;
    };
    let watch = Watch::start(
        vec![demand("IO", "op sectors in_flight seek", Vec::new())],
        &only(bench.disk.path()),
    );
    fio(
        &bench.disk,
        "--direct=1 --ioengine=psync --rw=read --bs=16k --io_size=16m --size=64m",
    );
    let seen = watch.stop();
    let rows = seen.all();
    // Opening a device may read its beginning.
    let reads = rows.with("op", "r");
    let apart = reads.ints("seek").iter().filter(|s| **s == 1).count();
    assert!(
        apart + 8 >= reads.len(),
        "{apart} of {} are sequential",
        reads.len()
    );
    let alone = reads.ints("in_flight").iter().filter(|n| **n == 1).count();
    let unseen = seen.count("unseen", None, None) as usize;
    assert!(
        alone + unseen >= reads.len(),
        "{alone} of {} are alone",
        reads.len()
    );
}

#[test]
fn no_more_are_in_flight_than_were_submitted_at_once() {
    let Some(bench) = bench("no_more_are_in_flight_than_were_submitted_at_once", 64) else {
        return;
    };
    let watch = Watch::start(
        vec![demand(
            "recording",
            "type op in_flight seek sectors",
            Vec::new(),
        )],
        &only(bench.disk.path()),
    );
    let load =
        "--direct=1 --ioengine=libaio --iodepth=16 --rw=randread --bs=4k --io_size=16m --size=64m";
    fio(&bench.disk, load);
    let seen = watch.stop();
    let rows = seen.all();
    let unseen = seen.count("unseen", None, None);
    let most = rows.ints("in_flight").into_iter().max().unwrap_or_default();
    assert!((2..=16 + unseen).contains(&most), "{most}");
    let requests = rows.with("type", "Q");
    let firsts = requests
        .column("seek")
        .iter()
        .filter(|s| **s == Value::Null)
        .count();
    assert_eq!(firsts, 1, "only the first has none before it");
}
