//! Recordings with missing completions: what `weir hist` and `weir characterise` report of the
//! number of requests in flight.

use std::path::Path;

use serde_json::Value;
use weir_model::{Event, EventKind, IoBatch, IoEvent, Op, Symbol};
use weir_tap::format::{Header, for_writing};

use crate::support::{Scratch, run};

/// Requests to a disk, one after the other: each is in flight for 3 ms of every 10 ms.
const REQUESTS: i64 = 1_000;

/// Writes a recording of disks with one request in flight at a time. Every fortieth completion is
/// missing. Request numbers are unique over all disks, as those of a live tap. `counts` selects
/// whether it has the column `in_flight`.
fn record(path: &Path, disks: i64, counts: bool) {
    let mut rows = Vec::new();
    for number in 0..disks * REQUESTS {
        let (disk, place) = (number % disks, number / disks);
        let issued = 1_800_000_000_000_000_000 + place * 10_000_000 + disk * 1_000;
        let event = Event {
            pdisk: Some(Symbol::new(&format!("/dev/loop{disk}"))),
            ..Event::new(
                issued,
                EventKind::Request,
                Op::Read,
                number,
                Some(place * 8),
                8,
            )
        };
        let request = IoEvent {
            in_flight: counts.then_some(1),
            ..IoEvent::new(event)
        };
        rows.push(request);
        if place % 40 != 7 {
            rows.push(IoEvent {
                event: Event {
                    ts: issued + 3_000_000,
                    kind: EventKind::Response,
                    ..event
                },
                wait_ns: Some(0),
                service_ns: Some(3_000_000),
                latency_ns: Some(3_000_000),
                ..request
            });
        }
    }
    rows.sort_by_key(|row| row.event.ts);
    let format = for_writing(path, None).unwrap();
    let mut writer = format.writer(path, &Header::default()).unwrap();
    for rows in rows.chunks(1_000) {
        writer.write(&IoBatch::new(None).build(rows)).unwrap();
    }
    writer.finish().unwrap();
}

fn json(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_request_without_a_completion_is_not_in_flight_for_ever() {
    let scratch = Scratch::new();
    for disks in [1, 2] {
        let path = scratch.path().join(format!("{disks}.parquet"));
        record(&path, disks, true);
        let path = path.to_str().unwrap();
        let hist = run(&["hist", "--from", path, "-p", "outstandingIOs", "--json"]);
        assert!(!hist.err.contains("unreliable"), "{}", hist.err);
        let lines = json(&hist.fine());
        assert_eq!(lines.len() as i64, disks + 1);
        for line in &lines[..disks as usize] {
            let of = &line["histograms"]["outstandingIOs"]["all"];
            assert_eq!(
                (&of["count"], &of["mean"]),
                (&REQUESTS.into(), &1.0.into()),
                "{line}"
            );
        }
        let one = ["characterise", "--from", path, "--json", "-d", "/dev/loop0"];
        let report = &json(&run(&one).fine())[0];
        let profiles = report["profiles"].as_array().unwrap();
        assert_eq!(profiles.len(), 1);
        let parallelism = &profiles[0]["parallelism"];
        assert_eq!(parallelism["at_issue_mean"], 1.0, "{parallelism}");
        // One of 40 requests is counted for 7 ms too long, until the next request shows that it has
        // ended.
        let busy = parallelism["busy_share"].as_f64().unwrap();
        assert!((0.30..0.33).contains(&busy), "{busy}");
    }
}

#[test]
fn a_number_in_flight_that_fails_its_check_is_omitted() {
    let scratch = Scratch::new();
    let path = scratch.path().join("uncounted.parquet");
    record(&path, 1, false);
    let path = path.to_str().unwrap();
    let check = "Little's-law check failed (ratio 0.";
    for more in [&["--json"][..], &["-c"], &["--against", path], &[]] {
        let hist = run(&[&["hist", "--from", path, "-p", "outstandingIOs"], more].concat());
        assert!(hist.err.contains(check), "{more:?}: {}", hist.err);
        assert!(
            hist.err.contains("outstandingIOs is unreliable"),
            "{}",
            hist.err
        );
        if more == ["--json"] {
            let line = &json(&hist.fine())[0];
            assert_eq!(line["histograms"]["outstandingIOs"]["all"]["count"], 0);
            let ratio = line["outstandingIOs_unreliable_little_ratio"].as_f64();
            assert!(ratio.unwrap() < 0.8, "{line}");
        }
    }
    let map = run(&[
        "hist",
        "--from",
        path,
        "--2d",
        "outstandingIOs:latency",
        "--json",
    ]);
    assert!(map.err.contains(check), "{}", map.err);
    assert!(!map.out.contains("/dev/loop0"), "{}", map.out);
    let others = run(&["hist", "--from", path, "-p", "latency", "--json"]);
    assert!(!others.err.contains("unreliable"), "{}", others.err);
    let text = run(&["characterise", "--from", path]).fine();
    assert!(!text.contains("queue depth:"), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let missing = format!("queue depth and utilisation: {check}");
    assert!(words.contains(&missing), "{text}");
    let report = &json(&run(&["characterise", "--from", path, "--json"]).fine())[0];
    let profile = &report["profiles"][0];
    assert!(profile["parallelism"].is_null(), "{profile}");
    assert_eq!(profile["load"]["by_depth"], Value::Array(Vec::new()));
    assert_eq!(profile["histograms"]["outstandingIOs"]["all"]["count"], 0);
}
