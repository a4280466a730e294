//! `weir hist` of recordings and of files of histograms: its output, and the input it rejects.

use serde_json::Value;

use crate::support::{Scratch, requests, run, run_in, shared};

/// The bundled recording.
const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

/// The lines of JSON, each parsed.
fn lines(text: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap();
    text.lines().map(parse).collect()
}

/// A number of the first disk in the JSON output.
fn number(line: &Value, metric: &str, class: &str, key: &str) -> i64 {
    let value = &line["histograms"][metric][class][key];
    value
        .as_i64()
        .unwrap_or_else(|| panic!("{metric} {class} {key}: {line}"))
}

#[test]
fn a_trace_is_counted_by_the_rules() {
    let scratch = Scratch::new();
    let trace = scratch.write("a.csv", &requests(100));
    let text = run(&["hist", "--from", &trace, "-j"]).fine();
    let [disk, end] = &lines(&text)[..] else {
        panic!("{text}");
    };
    assert_eq!(disk["vm"], "vm1", "{disk}");
    assert_eq!(end["subjects"], 1);
    // Every fourth request is a write of 8 KiB, the others are reads of 4 KiB, 4 KiB apart.
    for (metric, class, key, value) in [
        ("ioLength", "all", "count", 100),
        ("ioLength", "r", "max", 4_096),
        ("ioLength", "w", "min", 8_192),
        ("seekDistance", "all", "count", 99),
        ("seekDistance", "all", "max", 1),
        ("seekDistance", "all", "min", -7),
        ("seekDistance", "w", "min", 17),
        ("seekDistanceWindowed", "all", "count", 99),
        ("interarrival", "all", "p50", 1_000_000),
        ("interarrival", "w", "max", 4_000_000),
        ("outstandingIOs", "all", "max", 1),
        ("latency", "all", "sum", 100 * 500_000),
    ] {
        let found = number(disk, metric, class, key);
        let near = if key == "p50" { value / 32 } else { 0 };
        assert!(
            (found - value).abs() <= near,
            "{metric} {class} {key}: {found}"
        );
    }
    let bins = disk["histograms"]["latency"]["all"]["bins"]
        .as_array()
        .unwrap();
    let filled: Vec<&Value> = bins.iter().filter(|b| b[1] != 0).collect();
    assert_eq!(
        filled,
        [&serde_json::json!([500_000, 100])],
        "a limit is in its bin"
    );
}

#[test]
fn json_can_be_read_again_with_the_same_result() {
    let scratch = Scratch::new();
    let json = run(&["hist", "--from", SAMPLE, "--json"]).fine();
    let kept = scratch.write("kept.json", &json);
    for form in [
        &["-j"][..],
        &["-c"],
        &["-p", "latency"],
        &["-p", "wait", "-c"],
    ] {
        let of = |from: &str| run(&[&["hist", "--from", from], form].concat()).fine();
        assert_eq!(of(&kept), of(SAMPLE), "{form:?}");
    }
    // The intervals of a recording add up to the whole.
    let parts = run(&["hist", "--from", SAMPLE, "-j", "1"]).fine();
    let parts = scratch.write("parts.json", &parts);
    let whole = |from: &str| {
        let text = run(&["hist", "--from", from, "-j"]).fine();
        let line = lines(&text).remove(0);
        ["ioLength", "seekDistance", "latency", "outstandingIOs"]
            .map(|metric| line["histograms"][metric].clone())
    };
    assert_eq!(whole(&parts), whole(&kept));
    let cut = &json[..json.len() / 2];
    let output = run(&["hist", "--from", &scratch.write("cut.json", cut)]);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("cut.json: line 1"), "{}", output.err);
}

#[test]
fn the_csv_of_a_real_trace_counts_its_requests() {
    let Some(folder) = shared(
        "the_csv_of_a_real_trace_counts_its_requests",
        "cloudphysics",
    ) else {
        return;
    };
    let trace = folder.join("cloudPhysicsIO.vscsi");
    let csv = run(&["hist", "-c", "--from", trace.to_str().unwrap()]).fine();
    let sections: Vec<&str> = csv.split("Histogram: ").skip(1).collect();
    assert_eq!(sections.len(), 16);
    let figure = |section: usize, name: &str| -> i64 {
        let line = sections[section].lines().find_map(|l| l.strip_prefix(name));
        line.unwrap().parse().unwrap()
    };
    // The ground truth that is published with the trace.
    assert_eq!(figure(0, "count,"), 113_872);
    assert_eq!((figure(1, "count,"), figure(2, "count,")), (46_974, 66_898));
    assert_eq!(figure(0, "mean,"), 4_205_978_112 / 113_872);
}

#[test]
fn bars_are_those_of_bcc_with_the_figures_below() {
    let scratch = Scratch::new();
    scratch.write("a.csv", &requests(100));
    let shown = |args: &[&str]| {
        let args = [&["hist", "--from", "a.csv"], args].concat();
        run_in(scratch.path(), &args).fine()
    };
    assert_eq!(
        shown(&["-p", "latency", "-w", "vm1"]),
        "\
vm1:0: latency (insert to complete)
         latency : all                        read                       write
100 us -> 500 us : 100  100.0 % |**********| 75   100.0 % |**********| 25   100.0 % |**********|
         count    mean     min     p50     p90     p99   p99.9     max
    all    100  500 us  500 us  500 us  500 us  500 us  500 us  500 us
   read     75  500 us  500 us  500 us  500 us  500 us  500 us  500 us
  write     25  500 us  500 us  500 us  500 us  500 us  500 us  500 us

"
    );
    assert_eq!(
        shown(&["--2d", "outstandingIOs:latency"]),
        "\
vm1:0: latency (insert to complete) against outstanding requests
latency (insert to complete)
524 us |@@@|
        1
        outstanding requests
        requests: . 1 : 2 - 3 = 6 + 10 * 18 # 32 % 56 @ 100

"
    );
    scratch.write("b.csv", &requests(1_000));
    let args = ["hist", "--from", "b.csv", "--heatmap", "100ms", "3"];
    let map = run_in(scratch.path(), &args).fine();
    assert!(map.contains("524 us |@@@@@@@@@|\n"), "three columns: {map}");
    assert!(map.contains("@ 100\n"), "{map}");
    let svg = scratch.path().join("a.svg");
    let file = svg.to_str().unwrap();
    for args in [
        &["-p", "latency"][..],
        &["--heatmap"],
        &["--2d", "time:address"],
    ] {
        let printed = shown(&[args, &["--svg", file]].concat());
        assert_eq!(printed, "", "{args:?}");
        let picture = scratch.read("a.svg");
        assert!(
            picture.starts_with("<svg") && picture.ends_with("</svg>\n"),
            "{args:?}"
        );
        assert!(picture.contains("vm1:0"), "{args:?}");
    }
}

#[test]
fn the_cells_of_two_dimensions_hold_every_request() {
    let scratch = Scratch::new();
    let trace = scratch.write("a.csv", &requests(100));
    for (two, count) in [
        ("seekDistance:latency", 99),
        ("ioLength:latency", 100),
        ("outstandingIOs:latency", 100),
        ("time:address", 100),
    ] {
        let of = |form| run(&["hist", "--from", &trace, "--2d", two, form]).fine();
        let line = lines(&of("-j")).remove(0);
        let cells = line["cells"].as_array().unwrap();
        let sum: u64 = cells.iter().map(|c| c[4].as_u64().unwrap()).sum();
        assert_eq!(sum, count, "{two}: {line}");
        let rows = of("-c");
        let rows: Vec<&str> = rows.lines().skip(1).collect();
        assert_eq!(rows.len(), cells.len(), "{two}");
        let last = |row: &&str| row.rsplit(',').next().unwrap().parse::<u64>().unwrap();
        assert_eq!(rows.iter().map(last).sum::<u64>(), count, "{two}");
    }
    let line = lines(&run(&["hist", "--from", &trace, "--2d", "ioLength:latency", "-j"]).fine());
    let latency = serde_json::json!([4096, 4096, 458_753, 524_288, 75]);
    assert_eq!(
        line[0]["cells"][0], latency,
        "500 us, between 448 and 512 times 1,024 ns"
    );
}

#[test]
fn two_recordings_stand_side_by_side_in_shares() {
    let scratch = Scratch::new();
    scratch.write("few.csv", &requests(10));
    scratch.write("many.csv", &requests(1000));
    let against = |other: &str| {
        let args = [
            "hist",
            "--from",
            "few.csv",
            "--against",
            other,
            "-p",
            "ioLength",
        ];
        run_in(scratch.path(), &args)
    };
    let text = against("many.csv").fine();
    let all = text.split("\n\n").next().unwrap();
    assert_eq!(
        all,
        "\
I/O length
      I/O length : few.csv                                  many.csv
           4 KiB : 8     80.0 % |************************| 750   75.0 % |*********************** |
4 KiB -> 8,191 B : 0      0.0 % |                        | 0      0.0 % |                        |
           8 KiB : 2     20.0 % |******                  | 250   25.0 % |********                |
            count     mean    min       p50    p90    p99  p99.9    max
   few.csv     10  4.8 KiB  4 KiB  4.12 KiB  8 KiB  8 KiB  8 KiB  8 KiB
  many.csv  1,000    5 KiB  4 KiB  4.12 KiB  8 KiB  8 KiB  8 KiB  8 KiB"
    );
    // A file of histograms is accepted as well.
    let json = run_in(scratch.path(), &["hist", "--from", "many.csv", "-j"]).fine();
    scratch.write("many.dat", &json);
    let again = against("many.dat").fine();
    assert_eq!(text.replace("many.csv", "many.dat"), again);
    let none = against("other:vdz");
    assert_eq!(none.code, 1);
    assert!(
        none.err.contains("no requests of disk vdz of VM other"),
        "{}",
        none.err
    );
}

#[test]
fn invalid_options_are_refused() {
    for (args, words) in [
        (&["-s", "-x"][..], "cannot be used with"),
        (&["-s", "1"], "cannot be used with"),
        (&["-c", "-j", "--for", "1s"], "cannot be used with"),
        (&["-p", "size"], "ioLength"),
        (&["0.01"], "at least 100ms"),
        (&["-s", "--from", SAMPLE], "omit --from"),
        (&["--from", SAMPLE, "--by", "process"], "--by process"),
        (&["-i", "4711", "-p", "all"], "weir hist -l"),
        (&["-w", "999999999", "--for", "1s"], "weir hist -l"),
    ] {
        let output = run(&[&["hist"], args].concat());
        assert_eq!(output.code, 2, "{args:?}: {}", output.err);
        assert!(output.err.contains(words), "{args:?}: {}", output.err);
        assert!(output.out.is_empty(), "{args:?}");
    }
    let scratch = Scratch::new();
    let json = run(&["hist", "--from", SAMPLE, "-j"]).fine();
    let kept = scratch.write("kept.json", &json);
    let output = run(&["hist", "--from", &kept, "1"]);
    assert_eq!(output.code, 2, "{}", output.err);
    assert!(
        output.err.contains("cannot be divided into intervals"),
        "{}",
        output.err
    );
}
