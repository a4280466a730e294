//! `weir characterise`: its reports on recordings and traces with known properties.

use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::live::{on_disk, run_under_writes, watchable};
use crate::support::{CommandOutput, Scratch, interrupt, run, shared, weir};

/// The bundled recording.
const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

/// The report, as JSON.
fn report(args: &[&str]) -> Value {
    let stdout = run(&[&["characterise", "--json"], args].concat()).fine();
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

/// A request of an MSR Cambridge trace; `at` and `lasting` are in ms.
fn line(at: f64, host: &str, write: bool, sector: i64, sectors: i64, lasting: f64) -> String {
    let ts = 128_166_372_030_000_000 + (at * 1e4) as u64;
    let op = if write { "Write" } else { "Read" };
    let (offset, size) = (512 * sector, 512 * sectors);
    format!(
        "{ts},{host},0,{op},{offset},{size},{}\n",
        (lasting * 1e4) as u64
    )
}

#[test]
fn the_report_of_a_recording_has_the_counts_of_a_query() {
    let words = run(&["characterise", "--from", SAMPLE]).fine();
    for part in ["/dev/loop", "requests", "parallelism", "latency", "regions"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    let report = report(&["--from", SAMPLE]);
    let query = "select op, count(*), sum(bytes), avg(latency) from IO group by op";
    let stdout = run(&[
        "query", "--from", SAMPLE, "--final", "--format", "csv", query,
    ])
    .fine();
    let mix = &report["profiles"][0]["mix"];
    for (op, count, bytes) in [
        ("r", "reads", "read_bytes"),
        ("w", "writes", "written_bytes"),
    ] {
        let row = stdout
            .lines()
            .find(|l| l.contains(&format!("{op},")))
            .unwrap();
        let cells: Vec<&str> = row.split(',').collect();
        let at = cells.iter().position(|c| *c == op).unwrap();
        assert_eq!(mix[count].to_string(), cells[at + 1], "{stdout}");
        assert_eq!(mix[bytes].to_string(), cells[at + 2], "{stdout}");
    }
    let profile = &report["profiles"][0];
    assert_eq!(profile["load"]["reads"]["requests"], mix["reads"]);
    assert_eq!(
        profile["histograms"]["ioLength"]["r"]["count"],
        mix["reads"]
    );
    let grids = profile["addresses"]["ops"].as_array().unwrap();
    let written = grids.iter().find(|g| g["op"] == "w").unwrap();
    let cells = written["cells"].as_array().unwrap().iter();
    let sectors: u64 = cells.map(|cell| cell[2].as_u64().unwrap()).sum();
    assert_eq!(Some(sectors * 512), mix["written_bytes"].as_u64());
}

#[test]
fn the_page_of_a_recording_has_its_words_and_plots() {
    let scratch = Scratch::new();
    let path = scratch.path().join("report.html");
    let page = path.display().to_string();
    let words = run(&["characterise", "--from", SAMPLE, "--html", &page]).fine();
    let text = std::fs::read_to_string(&path).unwrap();
    let verdict = words.lines().next().unwrap().split_once(": ").unwrap().1;
    assert!(text.contains(verdict), "{verdict}");
    assert!(text.matches("<svg").count() >= 10, "it has its plots");
    assert!(text.ends_with("</html>\n"));
    let over = run(&["characterise", "--from", SAMPLE, "--html", SAMPLE]);
    assert_eq!(over.code, 2, "a recording is not written over");
    let nowhere = run(&[
        "characterise",
        "--from",
        SAMPLE,
        "--html",
        "/nowhere/x.html",
    ]);
    assert_eq!(nowhere.code, 1, "{}", nowhere.err);
    assert!(nowhere.err.contains("/nowhere/x.html"), "{}", nowhere.err);
}

#[test]
fn the_page_names_the_fields_that_are_there() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = std::fs::read_to_string(format!("{root}/docs/characterise.md")).unwrap();
    let table = page
        .split("Of a profile:")
        .nth(1)
        .expect("the page has the table");
    let rows = table.lines().filter(|l| l.starts_with("| `"));
    let named = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let mut keys = Vec::new();
    collect_keys(&report(&["--from", SAMPLE]), &mut keys);
    // These are values, not names of fields.
    let values = [
        "regular",
        "poisson",
        "bursty",
        "closed",
        "open",
        "weir hist --json",
    ];
    let mut checked = 0;
    for name in named.filter(|name| !values.contains(name)) {
        let name = name.trim_end_matches("[]");
        assert!(keys.iter().any(|key| key == name), "{name}");
        checked += 1;
    }
    assert!(checked > 80, "{checked}");
}

fn collect_keys(value: &Value, keys: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            keys.push(key.clone());
            collect_keys(value, keys);
        }),
        Value::Array(values) => values.iter().for_each(|v| collect_keys(v, keys)),
        _ => {}
    }
}

#[test]
fn a_page_stands_alone_and_an_earlier_one_stays_when_there_is_no_source() {
    let scratch = Scratch::new();
    let path = scratch.write("report.html", "earlier");
    let output = run(&["characterise", "--from", "/nowhere", "--html", &path]);
    assert_eq!(
        (output.code, scratch.read("report.html").as_str()),
        (1, "earlier")
    );
    run(&["characterise", "--from", SAMPLE, "--html", &path]).fine();
    let page = scratch.read("report.html");
    assert!(page.contains("</html>") && page.contains("<svg"), "{page}");
    assert!(page.contains("log-structured"), "the verdict");
    for loading in ["<script src", "<link", "url(http", "<img src=\"http"] {
        assert!(!page.contains(loading), "{loading}");
    }
    let over = run(&[
        "characterise",
        "--from",
        &path,
        "--from-format",
        "msr",
        "--html",
        &path,
    ]);
    assert_eq!(over.code, 2, "{}", over.err);
    assert_eq!(
        scratch.read("report.html"),
        page,
        "what is read is not written over"
    );
}

#[test]
fn streams_of_a_trace_are_counted_and_a_vm_narrows_the_report() {
    let scratch = Scratch::new();
    // Host `a` reads three files in turn, host `b` writes one backward.
    let lines = (0..3_000).map(|i| {
        let three = line(
            f64::from(i),
            "a",
            false,
            i64::from(i % 3) << 24 | i64::from(i / 3 * 16),
            16,
            0.3,
        );
        let back = line(
            f64::from(i) + 0.5,
            "b",
            true,
            1 << 30 | (80_000 - 8 * i64::from(i)),
            8,
            0.2,
        );
        three + &back
    });
    let path = scratch.write("two.csv", &lines.collect::<String>());
    let all = report(&["--from", &path]);
    let labels: Vec<&Value> = all["profiles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["verdict"]["label"])
        .collect();
    assert_eq!(labels, ["3 interleaved sequential streams", "reverse scan"]);
    let verdict = &all["profiles"][0]["verdict"];
    assert_eq!(verdict["pattern"], "interleaved_streams");
    assert_eq!(verdict["streams"], 3);
    let vm = all["profiles"][1]["subject"]["vm"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let disk = all["profiles"][1]["subject"]["pdisk"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let choice = if vm.is_empty() {
        ["-d", &disk]
    } else {
        ["-w", &vm]
    };
    let one = report(&["--from", &path, choice[0], choice[1]]);
    assert_eq!(one["profiles"].as_array().unwrap().len(), 1, "{choice:?}");
    assert_eq!(one["profiles"][0]["verdict"]["pattern"], "reverse_scan");
    assert_eq!(one["requests"], 3_000);
    // Only the first second of the trace.
    let short = report(&["--from", &path, "--for", "1s"]);
    assert_eq!(short["requests"], 2_000);
}

#[test]
fn requests_before_the_failure_of_a_source_are_reported() {
    let scratch = Scratch::new();
    let lines = (0..50_000).map(|i| line(f64::from(i), "a", false, i64::from(i) * 8, 8, 0.3));
    let text = lines.collect::<String>() + "cut off\n";
    let path = scratch.write("cut.csv", &text);
    let output = run(&["characterise", "--from", &path, "--strict"]);
    assert_eq!(output.code, 1, "{}", output.err);
    assert!(output.err.contains("cut.csv"), "{}", output.err);
    assert!(output.out.contains("sequential"), "{}", output.out);
}

#[test]
fn topics_without_data_are_omitted() {
    let none = run(&["characterise", "--from", SAMPLE, "-w", "nobody"]).fine();
    assert_eq!(none, "no requests\n");
    // MQSim's traces have no responses.
    let scratch = Scratch::new();
    let lines = (0..500).map(|i| format!("{} 0 {} 8 1\n", i * 1_000_000, i * 8));
    let path = scratch.write("requests.trace", &lines.collect::<String>());
    let report = report(&["--from", &path]);
    let profile = &report["profiles"][0];
    assert_eq!(profile["verdict"]["label"], "sequential");
    assert!(
        profile["load"].is_null() && profile["parallelism"].is_null(),
        "{profile}"
    );
    assert!(run(&["characterise", "--from", "/nowhere"]).code == 1);
}

#[test]
fn the_cloudphysics_trace_has_the_published_counts() {
    let name = "the_cloudphysics_trace_has_the_published_counts";
    let Some(folder) = shared(name, "cloudphysics") else {
        return;
    };
    let path = folder.join("cloudPhysicsIO.vscsi");
    let report = report(&["--from", path.to_str().unwrap()]);
    let profile = &report["profiles"][0];
    assert_eq!(profile["requests"], 113_872);
    assert_eq!(profile["mix"]["reads"], 46_974);
    assert_eq!(profile["mix"]["writes"], 66_898);
    let bytes = |name: &str| profile["mix"][name].as_i64().unwrap();
    assert_eq!(bytes("read_bytes") + bytes("written_bytes"), 4_205_978_112);
    assert_eq!(
        profile["span_ns"].as_f64().map(|ns| (ns / 1e7).round()),
        Some(720_009.0)
    );
}

#[test]
fn live_writes_are_in_the_report_with_their_latencies() {
    let test = "live_writes_are_in_the_report_with_their_latencies";
    let scratch = Scratch::new();
    if !watchable(test) || !on_disk(test, scratch.path()) {
        return;
    }
    let stdout = run_under_writes(&["characterise", "--for", "6s", "--json"], &scratch).fine();
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let profiles = report["profiles"].as_array().unwrap();
    let bytes = |p: &Value| p["mix"]["written_bytes"].as_u64().unwrap();
    assert!(
        profiles.iter().map(bytes).sum::<u64>() >= 8 << 20,
        "{stdout}"
    );
    let written = profiles.iter().max_by_key(|p| bytes(p)).unwrap();
    assert!(written["load"]["writes"]["mean_ns"].as_f64() > Some(0.0));
    // A busy host may lose too many events for it.
    let missing = written["missing"].as_array().unwrap();
    let unreliable = missing.iter().any(|m| m["topic"] == "queue_depth");
    assert!(unreliable || written["parallelism"]["little_ratio"].as_f64() > Some(0.0));
}

#[test]
fn an_interrupt_ends_it_with_the_report() {
    let test = "an_interrupt_ends_it_with_the_report";
    if !watchable(test) {
        return;
    }
    let mut command = weir(&["characterise", "--json"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until_it_handles_interrupts(&child);
    interrupt(&child);
    let output = CommandOutput::of(child.wait_with_output().unwrap());
    assert_eq!(output.code, 130, "{}", output.err);
    let report: Value = serde_json::from_str(&output.out).unwrap();
    assert!(report["profiles"].is_array(), "{}", output.out);
}

/// Waits until SIGINT, number 2, is among the signals that the process catches (proc(5), `SigCgt`).
fn until_it_handles_interrupts(child: &Child) {
    let path = format!("/proc/{}/status", child.id());
    for _ in 0..600 {
        let status = std::fs::read_to_string(&path).unwrap();
        let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
        if caught & 1 << 1 != 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("it never caught SIGINT");
}
