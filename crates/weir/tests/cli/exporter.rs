//! `weir exporter`: the metrics that Prometheus receives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::dashboards;
use crate::support::{Scratch, interrupt, run, skipped, weir};

const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

/// A running exporter that reads the bundled recording.
struct Exporter {
    child: Child,
    address: String,
}

impl Exporter {
    fn start(args: &[&str]) -> Exporter {
        Exporter::of(SAMPLE, args)
    }

    /// An exporter of a trace with 1,030 requests.
    fn of(trace: &str, args: &[&str]) -> Exporter {
        let all = ["exporter", "--listen", "127.0.0.1:0", "--from", trace];
        let mut child = weir(&[&all[..], args].concat())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        let address = line.split('/').nth(2).unwrap_or_else(|| panic!("{line}"));
        let exporter = Exporter {
            address: address.to_owned(),
            child,
        };
        exporter.wait_for("weir_io_operations_total{", 1_030.0);
        exporter
    }

    fn get(&self, accept: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let body = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        assert!(answer.starts_with(b"HTTP/1.1 200"));
        answer.split_off(body)
    }

    fn text(&self) -> String {
        String::from_utf8(self.get("text/plain")).unwrap()
    }

    /// Waits until the samples with the prefix `begin` add up to `total`.
    fn wait_for(&self, begin: &str, total: f64) {
        let started = Instant::now();
        while sum(&self.text(), begin) != total {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn end(mut self) {
        interrupt(&self.child);
        assert_eq!(self.child.wait().unwrap().code(), Some(130));
    }
}

/// The sum of all samples with the prefix `begin`.
fn sum(text: &str, begin: &str) -> f64 {
    let lines = text.lines().filter(|line| line.starts_with(begin));
    let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
    values.sum()
}

#[test]
fn metrics_equal_the_results_of_queries() {
    let exporter = Exporter::start(&[]);
    let text = exporter.text();
    let asked = run(&[
        "query", "--from", SAMPLE, "--final", "--format", "csv",
        "select op, count(*), sum(bytes), sum(latency), sum(wait), sum(service) from IO group by op",
    ])
    .fine();
    for row in asked.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let names = [
            ("r", "read"),
            ("w", "write"),
            ("f", "flush"),
            ("d", "discard"),
        ];
        let op = names
            .iter()
            .find(|(letter, _)| *letter == cells[1])
            .unwrap()
            .1;
        let metrics = [
            ("weir_io_operations_total", 1.0),
            ("weir_io_bytes_total", 1.0),
            ("weir_io_latency_seconds_sum", 1e9),
            ("weir_io_wait_seconds_total", 1e9),
            ("weir_io_service_seconds_total", 1e9),
        ];
        for ((metric, scale), cell) in metrics.iter().zip(&cells[2..]) {
            let lines = text
                .lines()
                .filter(|l| l.starts_with(&format!("{metric}{{")));
            let line = lines.clone().find(|l| l.contains(&format!("op=\"{op}\"")));
            let value: f64 = line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
            let expected = cell.parse::<f64>().unwrap_or(0.0) / scale;
            assert!(
                (value - expected).abs() <= 1e-9 * expected,
                "{metric} {op}: {value} {cell}"
            );
        }
    }
    // The last bucket of each histogram is its count, and an inner bucket equals the result of a
    // query.
    assert_eq!(sum(&text, "weir_io_latency_seconds_count"), 1_030.0);
    let reached = text
        .lines()
        .filter(|l| l.contains("le=\"0.001\""))
        .collect::<Vec<_>>()
        .join("\n");
    let asked = run(&[
        "query",
        "--from",
        SAMPLE,
        "--final",
        "--format",
        "csv",
        "select count(*) from IO where latency <= 1 ms",
    ])
    .fine();
    let asked: f64 = asked
        .lines()
        .nth(1)
        .unwrap()
        .rsplit(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(sum(&reached, "weir_io_latency_seconds_bucket"), asked);
    exporter.end();
}

#[test]
fn disks_beyond_the_limit_are_counted_together() {
    let scratch = Scratch::new();
    let line = |i: usize| {
        let ts = 128_166_372_030_000_000 + 10_000 * i as u64;
        format!("{ts},vm{},0,Read,{},4096,5000\n", i % 5, 4096 * i)
    };
    let trace: String = (0..1_030).map(line).collect();
    let trace = scratch.write("trace.csv", &trace);
    let exporter = Exporter::of(&trace, &["--disks-max", "2"]);
    let text = exporter.text();
    let of = |vm: &str| {
        sum(&text, "weir_io_operations_total{") - {
            let others = text
                .lines()
                .filter(|l| !l.contains(&format!("vm=\"{vm}\"")));
            let others: Vec<&str> = others.collect();
            sum(&others.join("\n"), "weir_io_operations_total{")
        }
    };
    assert_eq!(
        [of("vm0"), of("vm1"), of("vm2"), of("(other)")],
        [206.0, 206.0, 0.0, 618.0]
    );
    assert_eq!(sum(&text, "weir_exporter_folded_operations_total"), 618.0);
    assert_eq!(sum(&text, "weir_exporter_disks_limit"), 2.0);
    exporter.end();
}

#[test]
fn promtool_reports_no_problem() {
    let test = "promtool_reports_no_problem";
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        return skipped(test, "promtool is not installed (package prometheus)");
    };
    let exporter = Exporter::start(&[]);
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(&exporter.get("text/plain"))
        .unwrap();
    let output = promtool.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && words.is_empty(), "{words}");
    exporter.end();
}

#[test]
fn the_dashboard_shows_metrics_that_the_exporter_has() {
    let test = "the_dashboard_shows_metrics_that_the_exporter_has";
    let exporter = Exporter::start(&[]);
    let text = String::from_utf8(exporter.get("text/plain")).unwrap();
    exporter.end();
    let names = dashboards::names(&text);
    // A recording has no losses of a live tap.
    let of_taps = ["weir_tap_events_lost_total", "weir_tap_unseen_total"];
    let is_served = |word: &str| {
        let suffixes = ["", "_bucket", "_sum", "_count"].iter();
        let mut bases = suffixes.filter_map(|suffix| word.strip_suffix(suffix));
        bases.any(|base| names.contains(&base) || of_taps.contains(&base))
    };
    dashboards::shows_only(test, "weir-dashboard.json", is_served);
}

/// A Prometheus that scrapes the exporter every second.
struct Prometheus {
    child: Child,
    address: String,
    _scratch: Scratch,
}

impl Prometheus {
    fn start(target: &str) -> Option<Prometheus> {
        let scratch = Scratch::new();
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: weir\n    static_configs: [{{targets: ['{target}']}}]\n"
        );
        let config = scratch.write("prometheus.yml", &config);
        // The port is free now; another process is unlikely to bind it before Prometheus does.
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={config}"))
            .arg(format!(
                "--storage.tsdb.path={}",
                scratch.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={free}"))
            .arg("--enable-feature=native-histograms")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Some(Prometheus {
            child: child.ok()?,
            address: free.to_string(),
            _scratch: scratch,
        })
    }

    /// The value of a query with one series. Waits until it exists.
    fn ask(&mut self, query: &str) -> f64 {
        let started = Instant::now();
        let encoded: String = query.bytes().map(|b| format!("%{b:02X}")).collect();
        let head = format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        loop {
            let gone = self.child.try_wait().unwrap();
            assert!(gone.is_none(), "prometheus ended: {gone:?}");
            let mut answer = String::new();
            if let Ok(mut stream) = TcpStream::connect(&self.address) {
                stream.write_all(head.as_bytes()).unwrap();
                stream.read_to_string(&mut answer).unwrap();
            }
            let body = answer
                .split_once("\r\n\r\n")
                .map_or("null", |(_, body)| body);
            let value: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
            let value = &value["data"]["result"][0]["value"][1];
            if let Some(value) = value.as_str() {
                return value.parse().unwrap();
            }
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{query}: {answer}"
            );
            std::thread::sleep(Duration::from_millis(250));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_real_prometheus_takes_the_native_histograms() {
    let test = "a_real_prometheus_takes_the_native_histograms";
    let exporter = Exporter::start(&[]);
    let Some(mut prometheus) = Prometheus::start(&exporter.address) else {
        return skipped(test, "prometheus is not installed");
    };
    let writes = "weir_io_latency_seconds{op=\"write\"}";
    assert_eq!(prometheus.ask(&format!("histogram_count({writes})")), 780.0);
    let sum = prometheus.ask(&format!("histogram_sum({writes})"));
    let counted = run(&[
        "query",
        "--from",
        SAMPLE,
        "--final",
        "--format",
        "csv",
        "select sum(latency), quantile(latency, 0.99) from IO where op = 'w'",
    ])
    .fine();
    let cells: Vec<f64> = counted
        .lines()
        .nth(1)
        .unwrap()
        .split(',')
        .skip(1)
        .map(|ns| ns.parse::<f64>().unwrap() / 1e9)
        .collect();
    assert!((sum - cells[0]).abs() < 1e-9, "{sum} {cells:?}");
    // Prometheus computes the value from its bucket, whose bounds are 9 % apart.
    let quantile = prometheus.ask(&format!("histogram_quantile(0.99, {writes})"));
    assert!(
        (quantile / cells[1] - 1.0).abs() < 0.1,
        "{quantile} {cells:?}"
    );
    assert_eq!(prometheus.ask("sum(weir_io_operations_total)"), 1_030.0);
    assert!(prometheus.ask("weir_exporter_scrapes_total{format=\"protobuf\"}") >= 1.0);
    drop(prometheus);
    exporter.end();
}

#[test]
fn an_address_that_others_reach_must_be_wanted() {
    let output = run(&["exporter", "--from", SAMPLE, "--listen", "0.0.0.0:0"]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("--open"), "{}", output.err);
}
