//! `weir outliers`: the levels of slow requests, from recordings of `IOpath` and live, and the bars
//! of the picture.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value as Json;
use weir_model::{Batch, Column, Value};
use weir_tap::ebpf::streams::iopath;
use weir_tap::format::recording::RecordingWriter;
use weir_tap::format::{Header, TraceWriter};

use crate::live::loop_disk;
use crate::path::has_levels;
use crate::support::{Scratch, run};

const LEVELS: [&str; 6] = [
    "vdisk_wait",
    "app_wait",
    "file",
    "block_wait",
    "device",
    "completion",
];

/// A row of `IOpath`: when it ended, its device, and its time at each level.
struct Made {
    ts: i64,
    pdisk: &'static str,
    levels: [Option<i64>; 6],
    bytes: i64,
}

impl Made {
    fn latency(&self) -> i64 {
        self.levels.iter().flatten().sum()
    }

    /// When the device received it.
    fn issued(&self) -> i64 {
        self.ts - self.levels[4..].iter().flatten().sum::<i64>()
    }
}

/// Rows in the order of their ends, many of which overlap; each with another latency.
fn load(random: &mut fastrand::Rng) -> Vec<Made> {
    let mut rows: Vec<Made> = (0..600)
        .map(|i| {
            let slow = random.usize(..12);
            let levels = std::array::from_fn(|level| {
                let most = if level == slow { 40_000 } else { 4_000 };
                let is_crossed = level == 4 || random.u8(..) > 60;
                is_crossed.then(|| random.i64(1..most))
            });
            Made {
                ts: 1_700_000_000_000_000_000 + 1_500 * i + random.i64(0..3_000),
                pdisk: ["/dev/sda", "/dev/sdb"][random.usize(..2)],
                levels,
                bytes: 512 * random.i64(1..64),
            }
        })
        .collect();
    rows.sort_by_key(|row| row.ts);
    rows
}

/// A recording of these rows. Columns of which nothing is known are NULL.
fn recorded(path: &Path, rows: &[Made]) {
    let stream = iopath::STREAM.declaration();
    let number = |n: Option<i64>| n.map_or(Value::Null, Value::Int);
    let columns = stream.schema.fields.iter().map(|field| {
        let value = |row: &Made| match field.name.as_str() {
            "ts" => Value::Int(row.ts),
            "pdisk" => Value::text(row.pdisk),
            "op" => Value::text("w"),
            "comm" => Value::text("fio"),
            "bytes" => Value::Int(row.bytes),
            "sector" => Value::Int(8),
            "latency" => Value::Int(row.latency()),
            name => match LEVELS.iter().position(|level| *level == name) {
                Some(level) => number(row.levels[level]),
                None => Value::Null,
            },
        };
        Column::from_values(field.ty, rows.iter().map(value))
    });
    let ts: Vec<i64> = rows.iter().map(|row| row.ts).collect();
    let batch = Batch::stream(ts, columns.collect());
    let header = Header {
        stream,
        ..Header::default()
    };
    let mut writer = RecordingWriter::create(path, &header).unwrap();
    writer.write(&batch).unwrap();
    Box::new(writer).finish().unwrap();
}

fn outliers(args: &[&str]) -> Json {
    let out = run(&[&["outliers", "--json"], args].concat()).fine();
    serde_json::from_str(&out).unwrap()
}

/// The levels of a request in a report.
fn levels(request: &Json) -> Vec<(String, i64)> {
    let levels = request["levels"].as_array().unwrap().iter();
    let level = |l: &Json| (l[0].as_str().unwrap().to_owned(), l[1].as_i64().unwrap());
    levels.map(level).collect()
}

#[test]
fn levels_and_overlaps_of_a_recording_of_iopath_equal_a_recomputation() {
    let scratch = Scratch::new();
    let file = scratch.file("paths.parquet");
    let rows = load(&mut fastrand::Rng::with_seed(7));
    recorded(Path::new(&file), &rows);
    let report = outliers(&["--from", &file, "--slowest", "80"]);
    assert_eq!(report["finished"], rows.len());
    let mut slowest: Vec<&Made> = rows.iter().collect();
    slowest.sort_by_key(|row| -row.latency());
    let found = report["outliers"].as_array().unwrap();
    assert_eq!(found.len(), 80);
    let (mut overlaps, mut named) = (0, std::collections::BTreeSet::new());
    for (outlier, row) in found.iter().zip(slowest) {
        let request = &outlier["request"];
        let ns = |name: &str| request[name].as_i64().unwrap();
        assert_eq!(ns("latency_ns"), row.latency());
        assert_eq!((ns("issued_ns"), ns("finished_ns")), (row.issued(), row.ts));
        assert_eq!(ns("wait_ns") + ns("service_ns"), row.latency());
        let crossed = LEVELS.iter().zip(row.levels);
        let crossed = crossed.filter_map(|(level, ns)| Some((level.to_string(), ns?)));
        assert_eq!(levels(request), crossed.collect::<Vec<_>>());
        let at_level = levels(request)
            .into_iter()
            .find(|(l, _)| request["level"] == l[..]);
        let most = row.levels.iter().flatten().max();
        assert_eq!(at_level.map(|(_, ns)| ns), most.copied(), "{request}");
        named.insert(request["level"].as_str().unwrap().to_owned());
        let begin = row.ts - row.latency();
        let around = rows.iter().filter(|other| {
            other.pdisk == row.pdisk && other.issued() < row.ts && other.ts > begin
        });
        let around: Vec<&Made> = around.collect();
        assert_eq!(outlier["overlapping"], around.len() - 1, "{request}");
        let groups = outlier["around"].as_array().unwrap();
        let bytes: i64 = groups.iter().map(|g| g["bytes"].as_i64().unwrap()).sum();
        assert_eq!(
            bytes + row.bytes,
            around.iter().map(|r| r.bytes).sum::<i64>()
        );
        overlaps += around.len() - 1;
    }
    assert!(
        overlaps > 100 && named.len() == LEVELS.len(),
        "{overlaps}, {named:?}"
    );
    let of_disk = outliers(&["--from", &file, "-i", "/dev/sdb"]);
    let on_disk = rows.iter().filter(|row| row.pdisk == "/dev/sdb").count();
    assert_eq!(of_disk["finished"], on_disk);
    let text = run(&["outliers", "--from", &file, "--slowest", "1"]).fine();
    assert!(text.contains("  LEVEL  ") && text.contains(" + "), "{text}");
}

#[test]
fn without_the_levels_the_wait_or_the_service_is_the_level() {
    let report = outliers(&["--from", SAMPLE, "--slowest", "1000"]);
    let mut known = 0;
    for outlier in report["outliers"].as_array().unwrap() {
        let request = &outlier["request"];
        let (wait, service) = (request["wait_ns"].as_i64(), request["service_ns"].as_i64());
        let level = wait
            .zip(service)
            .map(|(wait, service)| match service > wait {
                true => "service",
                false => "wait",
            });
        assert_eq!(request["level"].as_str(), level, "{request}");
        known += usize::from(level.is_some());
    }
    assert!(known > 100, "{known}");
    let refused = run(&["outliers", "--levels", "--from", SAMPLE]);
    assert!(
        refused.code == 2 && refused.err.contains("IOpath"),
        "{}",
        refused.err
    );
}

/// The bundled recording.
const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

/// The bars of a picture, each line with the ends of its parts `wait` and `service`.
fn bars(picture: &str) -> Vec<Vec<(String, f64, f64)>> {
    let mut lines: Vec<Vec<(String, f64, f64)>> = Vec::new();
    let mut height = String::new();
    for line in picture
        .lines()
        .filter(|line| line.starts_with("<rect class=\"h"))
    {
        let attribute = |name: &str| {
            let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        let number = |name: &str| attribute(name).parse::<f64>().unwrap();
        let (_, part) = line.split_once("<title>").unwrap();
        let part = part.split('<').next().unwrap().to_owned();
        let is_new = part == "wait" || lines.is_empty() || height != attribute("y");
        if is_new {
            lines.push(Vec::new());
        }
        height = attribute("y");
        let bar = (part, number("x"), number("x") + number("width"));
        lines.last_mut().unwrap().push(bar);
    }
    lines
}

#[test]
fn the_bars_of_the_picture_are_the_times_of_the_requests() {
    let scratch = Scratch::new();
    let file = scratch.file("paths.parquet");
    recorded(Path::new(&file), &load(&mut fastrand::Rng::with_seed(8)));
    for (from, slowest) in [(SAMPLE, 20), (file.as_str(), 20)] {
        let svg = scratch.file("slow.svg");
        let report = outliers(&[
            "--from",
            from,
            "--slowest",
            &slowest.to_string(),
            "--svg",
            &svg,
        ]);
        let picture = scratch.read("slow.svg");
        let groups = picture.split("<g transform").skip(1).collect::<Vec<_>>();
        assert_eq!(groups.len(), slowest);
        let mut drawn = 0;
        for (outlier, group) in report["outliers"].as_array().unwrap().iter().zip(groups) {
            let slow = &outlier["request"];
            let neighbours = outlier["neighbours"].as_array().unwrap();
            assert!(neighbours.len() <= 40, "all of them are drawn");
            let (begin, end) = (&slow["inserted_ns"], &slow["finished_ns"]);
            let (begin, end) = (begin.as_i64().unwrap(), end.as_i64().unwrap());
            let lines = bars(group);
            assert_eq!(lines.len(), 1 + neighbours.len());
            let (left, right) = (lines[0][0].1, lines[0].last().unwrap().2);
            let x = |at: i64| {
                let share = (at - begin) as f64 / (end - begin) as f64;
                left + (right - left) * share.clamp(0.0, 1.0)
            };
            for (request, line) in [slow].into_iter().chain(neighbours).zip(&lines) {
                let at = |name: &str| request[name].as_i64();
                let issued = at("issued_ns").unwrap();
                let inserted = at("inserted_ns").unwrap_or(issued);
                let finished = at("finished_ns").unwrap_or(end);
                let mut expected = vec![("service", x(issued), x(finished))];
                if x(issued) > x(inserted) {
                    expected.insert(0, ("wait", x(inserted), x(issued)));
                }
                assert_eq!(line.len(), expected.len(), "{request} {line:?}");
                for ((part, from, to), (of, begins, ends)) in line.iter().zip(expected) {
                    // A short bar is drawn 1 wide; coordinates have two decimal places.
                    let ends = ends.max(begins + 1.0);
                    let is_at = |a: f64, b: f64| (a - b).abs() < 0.03;
                    assert!(
                        part == of && is_at(*from, begins) && is_at(*to, ends),
                        "{request} {line:?}: {of} {begins} {ends}"
                    );
                    drawn += 1;
                }
            }
        }
        assert!(drawn > 30, "{drawn}");
    }
}

/// Appends blocks, each of which is on the disk before the next.
fn write_until(path: &Path, is_done: &AtomicBool) {
    let mut file = File::create(path).unwrap();
    while !is_done.load(Ordering::Relaxed) {
        file.write_all(&[1; 4096]).unwrap();
        file.sync_data().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn live_requests_have_levels_whose_sum_is_the_latency() {
    let test = "live_requests_have_levels_whose_sum_is_the_latency";
    let Some(disk) = has_levels(test).then(|| loop_disk(test)).flatten() else {
        return;
    };
    let path = disk.file_system().unwrap().join("data");
    let is_done = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| write_until(&path, &is_done));
        // On a busy host the probes may be attached late.
        let reports = ["2s", "6s", "20s"].iter().map(|span| {
            outliers(&[
                "--levels",
                "-i",
                disk.name(),
                "--for",
                span,
                "--slowest",
                "20",
            ])
        });
        let report = { reports }.find(|report| report["over"].as_u64() > Some(20));
        is_done.store(true, Ordering::Relaxed);
        report
    });
    let report = report.expect("the writes are observed");
    for outlier in report["outliers"].as_array().unwrap() {
        let request = &outlier["request"];
        let sum: i64 = levels(request).iter().map(|(_, ns)| ns).sum();
        assert_eq!(request["latency_ns"], sum, "{request}");
        assert!(
            LEVELS.contains(&request["level"].as_str().unwrap()),
            "{request}"
        );
        assert_eq!(request["pdisk"], disk.path());
    }
}
