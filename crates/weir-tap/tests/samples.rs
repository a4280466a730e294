//! Traces from real systems, read in place: counts, bytes and times match those of their authors or
//! of other tools.

mod traces;

use traces::{CollectedEvents, read, sample};
use weir_model::Value;

/// Checks the numbers of requests, reads, writes and bytes; and that there are no bad records.
fn check(collected: &CollectedEvents, requests: usize, reads: usize, writes: usize, bytes: i64) {
    assert_eq!(collected.messages, Vec::<String>::new());
    assert_eq!(
        collected.total("bad_records") + collected.total("events_lost"),
        0
    );
    assert_eq!(collected.io.len(), requests);
    assert_eq!(collected.io.count("op", "r"), reads);
    assert_eq!(collected.io.count("op", "w"), writes);
    assert_eq!(collected.io.ints("bytes").iter().sum::<i64>(), bytes);
    assert_eq!(collected.iostream.count("type", "Q"), requests);
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
    let collected = read(&file);
    check(&collected, 113_872, 46_974, 66_898, 4_205_978_112);
    assert_eq!(distinct(collected.io.ints("sector")), 48_974);
    assert_eq!(span(&collected.io.ts), 7_200_089_885_000);
    assert_eq!(collected.io.ints("latency"), Vec::<i64>::new());
    assert_eq!(collected.io.ints("seek").len(), 113_871);
    // As many as gaps, and together the whole time.
    let since = collected.io.ints("interarrival");
    assert_eq!(since.len(), 113_871);
    assert_eq!(since.iter().sum::<i64>(), 7_200_089_885_000);
    assert_eq!(collected.iostream.len(), 113_872);
    assert_eq!(collected.recording.len(), 2 * 113_872);
    assert!(
        collected
            .io
            .column("vdisk")
            .iter()
            .all(|v| *v == Value::text("cloudPhysicsIO"))
    );
}

#[test]
fn the_csv_of_the_same_trace_yields_the_same_rows() {
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
    let collected = read(&file);
    check(&collected, 1000, 47, 953, 357_376 + 5_877_248);
    let mut inter_arrival_us = [0, 0];
    let ops = collected.io.column("op");
    let since = collected.io.ints("interarrival");
    assert_eq!(
        since.len(),
        ops.len() - 1,
        "the first request has none before it"
    );
    for (since, op) in since.iter().zip(&ops[1..]) {
        inter_arrival_us[usize::from(*op == Value::text("w"))] += since / 1000;
    }
    assert_eq!(inter_arrival_us, [38_045_785, 822_235_892]);
}

#[test]
fn disksim_agrees_with_its_published_counts() {
    let Some(file) = sample("disksim", "disksim/ascii.trace") else {
        return;
    };
    let collected = read(&file);
    check(&collected, 100_000, 79_634, 20_366, 520_539_136);
    assert_eq!(span(&collected.io.ts), 1_532_935_854_228);
    let disks = collected.io.column("pdisk");
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
        let collected = read(&file);
        check(&collected, requests, reads, requests - reads, bytes);
        assert_eq!(collected.io.ints("latency").len(), requests);
        assert_eq!(
            collected.io.ints("in_flight").iter().max(),
            Some(&1),
            "a closed loop"
        );
        let issued = collected.iostream.only("type", "Q");
        assert_eq!(span(&issued.ts) / 1000, span_us);
        if name == "cheetah9LP" {
            assert_eq!(collected.io.ints("latency")[0], 15_362_000);
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
        let collected = read(&file);
        check(&collected, requests, reads, requests - reads, bytes);
        assert_eq!(span(&collected.io.ts) / 1000, span_us);
    }
}

/// Minimum, mean and maximum of some nanoseconds, in whole nanoseconds.
fn summary(values: &[i64]) -> [i64; 3] {
    let mean = values.iter().sum::<i64>() as f64 / values.len() as f64;
    [
        *values.iter().min().unwrap(),
        mean.round() as i64,
        *values.iter().max().unwrap(),
    ]
}

#[test]
fn blktrace_agrees_with_btt() {
    let Some(file) = sample("blktrace_agrees", "blktrace-takeoverjp/sample.blktrace.0") else {
        return;
    };
    let collected = read(&file);
    check(&collected, 963, 963, 0, 3852 * 1024);
    assert_eq!(collected.iostream.len(), 2 * 963);
    assert_eq!(
        summary(&collected.io.ints("service")),
        [52_471, 55_949, 102_460],
        "D2C"
    );
    assert_eq!(
        summary(&collected.io.ints("latency")),
        [53_029, 56_609, 103_591],
        "Q2C"
    );
    assert_eq!(collected.io.ints("wait").len(), 963);
    assert_eq!(collected.io.ints("in_flight"), [1; 963], "queue depth 1");
    assert_eq!(collected.io.count("flags", "A"), 963, "read-ahead");
    assert_eq!(collected.io.count("pdisk", "259,0"), 963);
    assert_eq!(collected.io.ints("pid"), [21_279; 963]);
}

#[test]
fn blkparse_text_and_the_binary_yield_the_same_rows() {
    let file = "blktrace-takeoverjp/expected/sample.blkparse.txt.gz";
    let text = sample("blkparse_text", file);
    let binary = sample("blkparse_text", "blktrace-takeoverjp/sample.blktrace.0");
    let (Some(text), Some(binary)) = (text, binary) else {
        return;
    };
    let (text, binary) = (read(&text), read(&binary));
    check(&text, 963, 963, 0, 3852 * 1024);
    // blkparse's times are relative to the first event, and missing names are printed as "(null)".
    let start = binary.recording.ts[0] - text.recording.ts[0];
    let times: Vec<i64> = binary.recording.ts.iter().map(|ts| ts - start).collect();
    assert_eq!(text.recording.ts, times);
    for column in [
        "type",
        "op",
        "req_id",
        "sector",
        "sectors",
        "pid",
        "cpu",
        "flags",
        "wait",
        "service",
        "seek",
        "interarrival",
    ] {
        assert_eq!(
            text.recording.column(column),
            binary.recording.column(column),
            "{column}"
        );
    }
}

#[test]
fn fio_s_own_log_has_its_trims_and_writes() {
    let Some(file) = sample("fio_s_own_log", "fio-iolog/t0038.iolog") else {
        return;
    };
    let collected = read(&file);
    assert_eq!(collected.messages, Vec::<String>::new());
    assert_eq!(
        (collected.io.count("op", "d"), collected.io.count("op", "w")),
        (10, 10)
    );
    assert_eq!(collected.io.only("op", "w").ints("bytes"), [4096; 10]);
    assert_eq!(
        collected.io.only("op", "d").ints("bytes"),
        [2_147_483_648; 10]
    );
    assert_eq!(
        (collected.io.ts[0], collected.io.ts[19]),
        (10_736_000, 10_809_000)
    );
    assert_eq!(collected.io.count("pdisk", "/dev/null"), 20);
}

#[test]
fn stream_s_source_files_fit_their_declarations() {
    let Some(file) = sample("stream_s_source_files", "stream-cql/test/data/S3.dat") else {
        return;
    };
    use weir_model::{Field, Schema, Shape, Type};
    let types = [Type::Int, Type::Float, Type::Text, Type::Text];
    let fields = types.map(|ty| Field::new("x", ty)).to_vec();
    let schema = Schema::new(fields);
    use weir_tap::format::{Input, TraceInput, stream_source};
    let input = Input::open(&TraceInput::file(file)).unwrap();
    let mut source = stream_source::open(input, &schema, Shape::Stream, false).unwrap();
    let batch = source.next_batch(1024).unwrap().unwrap();
    assert_eq!(batch.ts.to_vec(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let last = [
        Value::Int(4),
        Value::Float(4.4),
        Value::text("d"),
        Value::text("def"),
    ];
    assert_eq!(batch.row(3), last);
    assert!(source.next_batch(1024).unwrap().is_none());
    assert_eq!(source.faults().bad_records(), 0);
}
