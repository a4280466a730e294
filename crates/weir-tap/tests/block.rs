//! Requests through the block layer, written as lines of blkparse: merges, splits, requeues,
//! partial completions, flushes, errors.

mod traces;

use traces::{CollectedEvents, read_bytes};
use weir_model::Value;

/// The result of lines of `time-in-us action operation extent [bracket]`, all of device 8,0.
fn follow(lines: &str) -> CollectedEvents {
    let mut text = String::new();
    for (number, line) in lines
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .enumerate()
    {
        let (us, rest) = line.split_once(' ').unwrap();
        let us: u64 = us.parse().unwrap();
        text += &format!(
            "  8,0    0 {number:8} {:5}.{:09} 77  {rest}\n",
            us / 1_000_000,
            us % 1_000_000 * 1000
        );
    }
    let collected = read_bytes("blkparse", text.as_bytes()).unwrap();
    assert_eq!(collected.messages, Vec::<String>::new());
    collected
}

/// Sector, sectors, wait, service, latency (in us) and merges of each completed request; -1 for
/// NULL.
fn finished(collected: &CollectedEvents) -> Vec<[i64; 6]> {
    let number = |row: usize, name: &str| match collected.io.column(name)[row] {
        Value::Int(x) => x,
        _ => -1,
    };
    let us = |row: usize, name: &str| match number(row, name) {
        -1 => -1,
        ns => ns / 1000,
    };
    let rows = (0..collected.io.len()).map(|row| {
        [
            number(row, "sector"),
            number(row, "sectors"),
            us(row, "wait"),
            us(row, "service"),
            us(row, "latency"),
            number(row, "merges"),
        ]
    });
    rows.collect()
}

#[test]
fn a_merged_request_counts_once_and_waits_since_its_first_bio() {
    let collected = follow(
        "0 Q W 100 + 8 [dd]
         1 G W 100 + 8 [dd]
         2 I W 100 + 8 [dd]
         3 Q W 108 + 8 [dd]
         3 M W 108 + 8 [dd]
         4 Q W 92 + 8 [dd]
         4 F W 92 + 8 [dd]
         10 D W 92 + 24 [kworker/0:1H]
         30 C W 92 + 24 [0]",
    );
    assert_eq!(finished(&collected), [[92, 24, 10, 20, 30, 2]]);
    assert_eq!(collected.iostream.len(), 2);
    assert_eq!(
        collected.io.column("comm"),
        [Value::text("dd")],
        "the submitter, not the issuer"
    );
    assert_eq!(collected.iostream.ts, [10_000, 30_000], "Q is at issue");
}

#[test]
fn requests_that_are_merged_take_their_merges_along() {
    let collected = follow(
        "0 Q W 0 + 8 [dd]
         1 Q W 8 + 8 [dd]
         2 Q W 16 + 8 [dd]
         3 M W 16 + 8 [dd]
         4 M W 8 + 16 [dd]
         5 D W 0 + 24 [dd]
         6 C W 0 + 24 [0]",
    );
    assert_eq!(finished(&collected), [[0, 24, 5, 1, 6, 2]]);
}

#[test]
fn a_split_bio_becomes_two_requests_that_wait_since_it_came() {
    let collected = follow(
        "0 Q R 0 + 512 [fio]
         1 X R 0 / 256 [fio]
         1 G R 0 + 256 [fio]
         2 G R 256 + 256 [fio]
         3 D R 0 + 256 [fio]
         4 D R 256 + 256 [fio]
         10 C R 0 + 256 [0]
         12 C R 256 + 256 [0]",
    );
    assert_eq!(
        finished(&collected),
        [[0, 256, 3, 7, 10, 0], [256, 256, 4, 8, 12, 0]]
    );
    assert_eq!(collected.io.ints("in_flight"), [1, 2]);
    assert_eq!(
        collected.io.ints("seek"),
        [1],
        "the second part follows the first"
    );
    assert_eq!(collected.io.ints("interarrival"), [1_000]);
}

#[test]
fn a_requeued_request_is_one_request() {
    let collected = follow(
        "0 Q W 0 + 8 [fio]
         2 D W 0 + 8 [fio]
         3 R W 0 + 8 [fio]
         5 I W 0 + 8 [fio]
         7 D W 0 + 8 [fio]
         9 C W 0 + 8 [0]",
    );
    assert_eq!(finished(&collected), [[0, 8, 7, 2, 9, 0]]);
    assert_eq!(collected.iostream.ts, [2_000, 9_000]);
    assert_eq!(collected.io.ints("in_flight"), [1]);
}

#[test]
fn a_request_ends_with_its_last_part() {
    let collected = follow(
        "0 Q R 0 + 24 [fio]
         1 D R 0 + 24 [fio]
         5 C R 0 + 8 [0]
         9 C R 8 + 16 [0]",
    );
    assert_eq!(finished(&collected), [[0, 24, 1, 8, 9, 0]]);
}

#[test]
fn a_failed_request_is_an_error_with_its_number() {
    for errno in ["-5", "65531"] {
        let collected = follow(&format!(
            "0 Q R 0 + 8 [fio]\n1 D R 0 + 8 [fio]\n2 C R 0 + 8 [{errno}]"
        ));
        assert_eq!(collected.io.column("type"), [Value::text("E")]);
        assert_eq!(collected.io.ints("error"), [5]);
    }
}

#[test]
fn a_flush_has_no_sector_and_moves_no_head() {
    let collected = follow(
        "0 Q W 0 + 8 [fio]
         1 D W 0 + 8 [fio]
         2 C W 0 + 8 [0]
         3 Q FN [fio]
         4 D FN [kworker/0:1H]
         6 C FN 0 [0]
         7 Q WFS 8 + 8 [fio]
         8 D WFS 8 + 8 [fio]
         9 C WFS 8 + 8 [0]",
    );
    let ops = [Value::text("w"), Value::text("f"), Value::text("w")];
    assert_eq!(collected.io.column("op"), ops);
    assert_eq!(
        collected.io.column("sector"),
        [Value::Int(0), Value::Null, Value::Int(8)]
    );
    assert_eq!(
        collected.io.column("seek"),
        [Value::Null, Value::Null, Value::Int(1)]
    );
    assert_eq!(
        collected.io.column("interarrival"),
        [Value::Null, Value::Int(3_000), Value::Int(4_000)],
        "a flush is a request"
    );
    assert_eq!(collected.io.column("flags")[2], Value::text("FS"));
}

#[test]
fn a_bio_based_device_completes_what_it_never_issued() {
    let collected = follow("0 Q R 0 + 8 [fio]\n9 C R 0 + 8 [0]");
    assert_eq!(finished(&collected), [[0, 8, -1, -1, 9, 0]]);
    assert_eq!(collected.iostream.count("type", "Q"), 0);
}

#[test]
fn times_that_are_not_known_are_null() {
    let collected = follow("1 D R 0 + 8 [fio]\n5 C R 0 + 8 [0]\n6 C R 64 + 8 [0]");
    assert_eq!(finished(&collected), [[0, 8, -1, 4, -1, -1]]);
    assert_eq!(collected.total("unpaired no_request"), 1);
    assert_eq!(
        collected.io.column("pid"),
        [Value::Null],
        "the issuer is not the submitter"
    );
}

#[test]
fn requests_of_one_sector_are_distinguished() {
    let collected = follow(
        "0 Q R 0 + 8 [a]
         1 Q R 0 + 16 [b]
         2 D R 0 + 16 [a]
         3 D R 0 + 8 [b]
         4 C R 0 + 16 [0]
         6 C R 0 + 8 [0]",
    );
    assert_eq!(
        finished(&collected),
        [[0, 16, 1, 2, 3, 0], [0, 8, 3, 3, 6, 0]]
    );
    assert_eq!(
        collected.io.column("comm"),
        [Value::text("b"), Value::text("a")]
    );
}
