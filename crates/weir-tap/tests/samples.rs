//! Traces from real systems, read in place: counts, bytes and times are those that their authors or other tools give.

mod traces;

use traces::{Heard, read, sample};
use weir_model::Value;

/// Requests, reads, writes and bytes; and that nothing was bad.
fn check(heard: &Heard, requests: usize, reads: usize, writes: usize, bytes: i64) {
    assert_eq!(heard.messages, Vec::<String>::new());
    assert_eq!(heard.total("bad_records") + heard.total("events_lost"), 0);
    assert_eq!(heard.io.len(), requests);
    assert_eq!(heard.io.count("op", "r"), reads);
    assert_eq!(heard.io.count("op", "w"), writes);
    assert_eq!(heard.io.ints("bytes").iter().sum::<i64>(), bytes);
    assert_eq!(heard.iostream.count("type", "Q"), requests);
}

fn distinct(mut values: Vec<i64>) -> usize {
    values.sort_unstable();
    values.dedup();
    values.len()
}

fn span(times: &[i64]) -> i64 {
    times.last().unwrap() - times.first().unwrap()
}

#[test]
fn vscsi_agrees_with_libcachesim_on_two_hours_of_a_vm() {
    let Some(file) = sample("vscsi_agrees", "cloudphysics/cloudPhysicsIO.vscsi") else {
        return;
    };
    let heard = read(&file);
    check(&heard, 113_872, 46_974, 66_898, 4_205_978_112);
    assert_eq!(distinct(heard.io.ints("sector")), 48_974);
    assert_eq!(span(&heard.io.ts), 7_200_089_885_000);
    assert_eq!(heard.io.ints("latency"), Vec::<i64>::new());
    assert_eq!(heard.io.ints("seek").len(), 113_871);
    assert_eq!(heard.iostream.len(), 113_872);
    assert_eq!(heard.recording.len(), 2 * 113_872);
    assert!(
        heard
            .io
            .column("vdisk")
            .iter()
            .all(|v| *v == Value::text("cloudPhysicsIO"))
    );
}

#[test]
fn the_csv_of_the_same_trace_says_the_same() {
    let csv = sample("the_csv", "cloudphysics/cloudPhysicsIO.head20000.csv");
    let binary = sample("the_csv", "cloudphysics/cloudPhysicsIO.vscsi");
    let (Some(csv), Some(binary)) = (csv, binary) else {
        return;
    };
    let (csv, binary) = (read(&csv), read(&binary));
    assert_eq!(csv.messages, Vec::<String>::new());
    let rows = csv.io.len();
    assert!(rows >= 19_999, "{rows}");
    for column in ["sector", "sectors", "op"] {
        assert_eq!(csv.io.column(column), binary.io.column(column)[..rows]);
    }
    let seconds: Vec<i64> = binary.io.ts[..rows]
        .iter()
        .map(|ts| ts / 1_000_000_000)
        .collect();
    assert_eq!(
        csv.io
            .ts
            .iter()
            .map(|ts| ts / 1_000_000_000)
            .collect::<Vec<_>>(),
        seconds
    );
}

#[test]
fn cydonia_agrees_with_its_authors_statistics() {
    let Some(file) = sample("cydonia", "cloudphysics-cydonia/test_cp.csv") else {
        return;
    };
    let heard = read(&file);
    check(&heard, 1000, 47, 953, 357_376 + 5_877_248);
    let mut inter_arrival_us = [0, 0];
    let ops = heard.io.column("op");
    for (pair, op) in heard.io.ts.windows(2).zip(&ops[1..]) {
        inter_arrival_us[usize::from(*op == Value::text("w"))] += (pair[1] - pair[0]) / 1000;
    }
    assert_eq!(inter_arrival_us, [38_045_785, 822_235_892]);
}

#[test]
fn disksim_agrees_with_its_published_counts() {
    let Some(file) = sample("disksim", "disksim/ascii.trace") else {
        return;
    };
    let heard = read(&file);
    check(&heard, 100_000, 79_634, 20_366, 520_539_136);
    assert_eq!(span(&heard.io.ts), 1_532_935_854_228);
    let disks = heard.io.column("pdisk");
    let mut names: Vec<String> = disks.iter().map(Value::to_string).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 14);
}

#[test]
fn real_drives_have_their_service_times() {
    for (name, requests, reads, bytes, span_us) in [
        ("cheetah9LP", 10_000, 6_594, 32_356_352, 497_607_519),
        ("hp_c2247a", 9_999, 5_115, 84_466_688, 294_845_476),
    ] {
        let Some(file) = sample("real_drives", &format!("disksim/{name}.trace")) else {
            return;
        };
        let heard = read(&file);
        check(&heard, requests, reads, requests - reads, bytes);
        assert_eq!(heard.io.ints("latency").len(), requests);
        assert_eq!(
            heard.io.ints("in_flight").iter().max(),
            Some(&1),
            "a closed loop"
        );
        let issued = heard.iostream.only("type", "Q");
        assert_eq!(span(&issued.ts) / 1000, span_us);
        if name == "cheetah9LP" {
            assert_eq!(heard.io.ints("latency")[0], 15_362_000);
        }
    }
}

#[test]
fn mqsim_excerpts_have_all_their_requests() {
    for (name, requests, reads, bytes, span_us) in [
        ("tpcc-small", 6_999, 4_381, 59_718_656, 136_489),
        ("wsrch-small", 24_783, 24_779, 382_117_888, 60_055_212),
    ] {
        let Some(file) = sample("mqsim", &format!("mqsim/{name}.trace")) else {
            return;
        };
        let heard = read(&file);
        check(&heard, requests, reads, requests - reads, bytes);
        assert_eq!(span(&heard.io.ts) / 1000, span_us);
    }
}
