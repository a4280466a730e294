//! `weir advise`: its report over recordings, and wrong input.

use serde_json::Value as Json;

use crate::support::{Scratch, run};

const THREE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/three-disks.parquet"
);

const ONE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

fn report(args: &[&str]) -> Json {
    let out = run(&[&["advise", "--json"], args].concat()).fine();
    serde_json::from_str(&out).unwrap()
}

fn disks(of: &Json) -> Vec<&str> {
    let disks = of.as_array().unwrap().iter();
    disks.map(|disk| disk["pdisk"].as_str().unwrap()).collect()
}

#[test]
fn every_disk_and_device_is_reported_with_its_requests() {
    let found = report(&["--from", THREE]);
    let devices = found["devices"].as_array().unwrap();
    // A device with few requests is listed apart.
    let unmeasured = found["unmeasured"].as_array().unwrap();
    assert_eq!(devices.len() + unmeasured.len(), 3, "{found}");
    for device in devices {
        let name = device["device"]["device"].as_str().unwrap();
        assert_eq!(disks(&device["disks_before"]), [name]);
        let error = device["accuracy"]["mean_factor"].as_f64();
        assert!(error.is_none_or(|factor| factor >= 1.0), "{device}");
        let depths = device["depths"].as_array().unwrap().iter();
        let requests: u64 = depths
            .map(|depth| depth["requests"].as_u64().unwrap())
            .sum();
        assert!(requests > 100, "{device}");
    }
    let requests = run(&[
        "query",
        "--from",
        THREE,
        "--final",
        "--format",
        "csv",
        "select count(*) as n from IO",
    ]);
    let requests = requests.fine();
    let counted: u64 = requests.trim().rsplit(',').next().unwrap().parse().unwrap();
    assert_eq!(found["requests"].as_u64(), Some(counted));
    let text = run(&["advise", "--from", THREE]).fine();
    for part in ["recommend", "DISK", "/dev/loop4"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_recordings_of_several_hosts_are_compared_in_one_time() {
    let apart = run(&["advise", "--from", THREE, "--from", ONE]);
    assert_eq!(apart.code, 2, "{}", apart.err);
    assert!(
        apart.err.contains("do not overlap in time; --align"),
        "{}",
        apart.err
    );
    let found = report(&["--from", THREE, "--from", ONE, "--align"]);
    let disks = found["disks"].as_array().unwrap();
    let hosts: Vec<&str> = disks
        .iter()
        .map(|disk| disk["disk"]["host"].as_str().unwrap())
        .collect();
    assert_eq!(hosts.len(), 4, "{found}");
    assert_eq!(hosts.iter().filter(|host| **host == "vm").count(), 3);
    assert!(hosts.contains(&"fio-loop"), "{hosts:?}");
    // Only the time that both have, 6 of 68 seconds.
    let span = found["end_ns"].as_i64().unwrap() - found["begin_ns"].as_i64().unwrap();
    assert!(span < 10_000_000_000, "{span}");
}

#[test]
fn a_calibrated_device_is_a_target_and_the_page_has_the_report() {
    let scratch = Scratch::new();
    let page = scratch.path().join("advice.html");
    let page = page.to_str().unwrap();
    let calibration = format!("spare:/dev/sdz={THREE}");
    let args = ["--from", ONE, "--calibration", &calibration, "--html", page];
    let found = report(&args);
    let devices = found["devices"].as_array().unwrap();
    let spare = devices
        .iter()
        .find(|device| device["device"]["host"] == "spare");
    let spare = spare.unwrap();
    assert_eq!(spare["device"]["device"], "/dev/sdz");
    assert_eq!(spare["calibrated"], true);
    let html = std::fs::read_to_string(page).unwrap();
    for part in [
        "<h1>Placement of disks</h1>",
        "/dev/sdz of spare",
        "<svg",
        "</html>",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert!(
        !html.contains("http://") || html.contains("xmlns"),
        "no other resource"
    );
}

#[test]
fn wrong_input_is_refused_with_the_remedy() {
    let scratch = Scratch::new();
    let kept = scratch.write("old.html", "old");
    let missing = scratch.path().join("none.parquet");
    let missing = missing.to_str().unwrap();
    for (args, code, part) in [
        (&["--from", missing][..], 1, "none.parquet"),
        (&["--from", missing, "--html", &kept], 1, "none.parquet"),
        (
            &["--from", THREE, "--objective", "iops"],
            2,
            "possible values: mean, p99",
        ),
        (&["--from", THREE, "--changes", "0"], 2, "1..=16"),
        (
            &["--from", THREE, "--calibration", "sda=x"],
            2,
            "DEVICE=FILE",
        ),
        (
            &["--from", THREE, "--calibration", "/dev/sda"],
            2,
            "DEVICE=FILE",
        ),
        (
            &["--from", THREE, "--align"],
            2,
            "recordings of several hosts",
        ),
        (&["--from", "live", "--from", THREE], 2, "weir record"),
        (
            &["--from", THREE, "--html", THREE],
            2,
            "three-disks.parquet",
        ),
        (
            &["--from", THREE, "--html", "/nonexistent/page.html"],
            1,
            "/nonexistent/page.html",
        ),
    ] {
        let refused = run(&[&["advise"], args].concat());
        assert!(
            refused.code == code && refused.err.contains(part),
            "{args:?}: {} {}",
            refused.code,
            refused.err
        );
    }
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "old");
    let query = run(&["advise", "--show-query"]).fine();
    assert_eq!(run(&["check", &query]).code, 0);
}
