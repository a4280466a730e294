//! `weir info`: the contents of recordings and traces, against queries of the same files.

use std::fs;
use std::path::Path;

use serde_json::Value;
use weir_tap::format::FORMATS;

use crate::pipes::{REQUESTS, REQUESTS_RECORDED, piped, specimen};
use crate::support::{Scratch, requests, run};
use crate::traces::{recorded, sensors};

/// The contents of a file, as JSON.
fn contents(file: &str) -> Value {
    let output = run(&["info", "--json", file]).fine();
    assert_eq!(output.lines().count(), 1, "{output}");
    serde_json::from_str(&output).unwrap()
}

#[test]
fn the_contents_of_a_recording_are_those_of_queries() {
    let sample = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../samples/fio-loop.parquet"
    );
    let found = contents(sample);
    let query = "select op, count(*) as requests, sum(bytes) as bytes from IO group by op";
    let rows = run(&[
        "query", "--from", sample, "--final", "--format", "json", query,
    ])
    .fine();
    assert_eq!(
        rows.lines().count(),
        found["ops"].as_object().unwrap().len()
    );
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        let totals = &found["ops"][row["op"].as_str().unwrap()];
        for figure in ["requests", "bytes"] {
            assert_eq!(totals[figure], row[figure], "{figure}: {found}");
        }
        let of_disk = &found["disks"][0]["ops"][row["op"].as_str().unwrap()];
        assert_eq!(of_disk, totals, "there is one disk");
    }
    let query = "select min(ts) as oldest, max(ts) as newest from IOstream";
    let row = run(&[
        "query", "--from", sample, "--final", "--format", "json", query,
    ])
    .fine();
    let row: Value = serde_json::from_str(&row).unwrap();
    assert_eq!(
        (&found["begin"], &found["end"]),
        (&row["oldest"], &row["newest"])
    );
    assert_eq!(found["ended"], "closed");
    assert_eq!(found["disks"][0]["pdisk"], "/dev/loop1");
}

#[test]
fn every_format_is_described_alike_from_a_file_and_a_pipe() {
    for format in FORMATS {
        let scratch = Scratch::new();
        let path = specimen(format.name, &scratch);
        let found = contents(&path);
        assert_eq!(found["format"], format.name);
        let made = match format.name {
            "recording" => REQUESTS_RECORDED,
            _ => REQUESTS,
        };
        assert_eq!(found["issued"], made, "{found}");
        let number = |totals: &Value| totals["requests"].as_u64().unwrap();
        let by_op = found["ops"].as_object().unwrap().values().map(number);
        assert_eq!(by_op.sum::<u64>(), made, "{found}");
        let disks = found["disks"].as_array().unwrap().iter();
        let by_disk = disks.map(|disk| number(&disk["totals"]));
        assert_eq!(by_disk.sum::<u64>(), made, "{found}");
        let output = piped(&["info", "--json", "-"], &fs::read(&path).unwrap());
        let mut of_pipe: Value = serde_json::from_str(&output.fine()).unwrap();
        assert_eq!(of_pipe["file"], "/dev/stdin");
        of_pipe["file"] = found["file"].clone();
        assert_eq!(of_pipe, found);
    }
}

#[test]
fn a_recording_reports_its_host_and_losses_and_how_it_ended() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(50));
    let path = |name: &str| scratch.path().join(name);
    recorded(&trace, &path("closed.parquet"), 3, true);
    recorded(&trace, &path("killed.parquet"), 3, false);
    let closed = contents(&scratch.file("closed.parquet"));
    assert_eq!(
        (&closed["host"], &closed["ended"]),
        (&"alpha".into(), &"closed".into())
    );
    assert_eq!(closed["kernel"], "6.1.0-test");
    let lost = &closed["counts"][0];
    assert_eq!(
        (&lost["cause"], &lost["total"]),
        (&"ring_full".into(), &3.into())
    );
    let killed = contents(&scratch.file("killed.parquet"));
    assert_eq!(killed["ended"], "interrupted");
    assert_eq!(killed["ops"], closed["ops"]);
    let whole = fs::read(path("killed.parquet")).unwrap();
    fs::write(
        path("cut.parquet"),
        [&whole[..], b"the begin of a row group"].concat(),
    )
    .unwrap();
    let text = run(&["info", &scratch.file("cut.parquet")]).fine();
    assert!(
        text.contains("24 bytes of an incomplete row group"),
        "{text}"
    );
    assert!(
        text.contains("3 events lost (ring full) of /dev/sda"),
        "{text}"
    );
    // A conversion keeps the host, and that the end is missing.
    let (from, to) = (
        scratch.file("killed.parquet"),
        scratch.file("converted.parquet"),
    );
    run(&["convert", &from, &to]).fine();
    let converted = contents(&to);
    assert_eq!(converted["ended"], "converted_interrupted");
    assert_eq!(converted["host"], "alpha");
}

#[test]
fn a_recording_of_another_stream_has_its_rows_and_interval() {
    let scratch = Scratch::new();
    let file = scratch.file("sensors.parquet");
    sensors(Path::new(&file));
    let found = contents(&file);
    assert_eq!(found["streams"], serde_json::json!(["sensors"]));
    assert_eq!(found["rows"], 100);
    assert_eq!(found["duration_s"], 0.099);
    let both = run(&["info", &file, &file]).fine();
    assert_eq!(both.matches("\nrows ").count(), 2, "{both}");
    assert!(!both.contains("OP "), "{both}");
}
