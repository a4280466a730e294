//! The part of recordings and traces: size and cost of a recording, ten queries over it beside
//! DuckDB's over the same file, readers of traces, and outputs.
//!
//! The input is random, and the same for the same number of requests (`random_recording` of
//! weir-tap). A figure of weir is that of a whole process, DuckDB's that of a query in a process
//! that runs. Other work on the machine changes wall times, so processor time decides.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_testing::python_with;
use weir_testing::repository::root;

use super::{Pace, example_command, spread};

/// Ten queries: their name, their text in CQL, and in SQL of DuckDB over the table `IO`.
const QUERIES: [(&str, &str, &str); 10] = [
    (
        "number of requests",
        "select count(*) from IO",
        "select count(*) from IO",
    ),
    (
        "latency by operation",
        "select op, count(*), avg(latency) from IO group by op",
        "select op, count(*), avg(latency) from IO group by op",
    ),
    (
        "volume by disk and operation",
        "select pdisk, op, count(*), sum(bytes) from IO group by pdisk, op",
        "select pdisk, op, count(*), sum(bytes) from IO group by pdisk, op",
    ),
    (
        "slow requests",
        "select count(*), max(latency) from IO where latency > 300 us",
        "select count(*), max(latency) from IO where latency > 300000",
    ),
    (
        "extremes and means",
        "select min(latency), max(latency), avg(wait), avg(in_flight) from IO",
        "select min(latency), max(latency), avg(wait), avg(in_flight) from IO",
    ),
    (
        "sizes",
        "select sectors, count(*) from IO group by sectors",
        "select sectors, count(*) from IO group by sectors",
    ),
    (
        "processes",
        "select pid, comm, count(*), max(latency) from IO group by pid, comm",
        "select pid, comm, count(*), max(latency) from IO group by pid, comm",
    ),
    (
        "large writes",
        "select count(*), avg(latency) from IO where op = 'w' and sectors >= 32",
        "select count(*), avg(latency) from IO where op = 'w' and sectors >= 32",
    ),
    (
        "distribution of latency in 10 us",
        "select latency / 10 us, count(*) from IO group by latency / 10 us",
        "select latency // 10000, count(*) from IO group by latency // 10000",
    ),
    (
        "load in each 100 ms",
        "select bucket(ts, 100 ms), count(*), sum(bytes) from IO group by bucket(ts, 100 ms)",
        "select epoch_us(ts::timestamptz) // 100000, count(*), sum(bytes) from IO group by 1",
    ),
];

/// A command of weir that reads a file, and the bound of its rate.
struct Reading {
    name: &'static str,
    arguments: &'static [&'static str],
    /// The file that is read; it follows the arguments.
    file: &'static str,
    /// Arguments after the file.
    rest: &'static [&'static str],
    unit: Unit,
    /// The least rate, in millions of the unit per second of processor time.
    least: f64,
}

#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Requests,
}

const COUNT: &[&str] = &["--final", "select count(*) from IO"];
const COLUMNS: &str = "select op, sector, bytes, pid, latency from IO";

const READINGS: [Reading; 8] = [
    Reading {
        name: "query of a CSV trace",
        arguments: &["query", "--from"],
        file: "random.csv",
        rest: COUNT,
        unit: Unit::Bytes,
        least: 150.0,
    },
    Reading {
        name: "query of a binary trace",
        arguments: &["query", "--from"],
        file: "random.vscsi",
        rest: COUNT,
        unit: Unit::Bytes,
        least: 500.0,
    },
    Reading {
        name: "convert a CSV trace to a recording",
        arguments: &["convert"],
        file: "random.csv",
        rest: &["--force", "converted.parquet"],
        unit: Unit::Bytes,
        least: 150.0,
    },
    Reading {
        name: "characterise a recording",
        arguments: &["characterise", "--from"],
        file: "random.parquet",
        rest: &[],
        unit: Unit::Requests,
        least: 2.0,
    },
    Reading {
        name: "hist of a recording",
        arguments: &["hist", "--from"],
        file: "random.parquet",
        rest: &[],
        unit: Unit::Requests,
        least: 5.0,
    },
    Reading {
        name: "rows as CSV",
        arguments: &["query", "--format", "csv", "--from"],
        file: "random.parquet",
        rest: &[COLUMNS],
        unit: Unit::Requests,
        least: 2.0,
    },
    Reading {
        name: "rows as JSON",
        arguments: &["query", "--format", "json", "--from"],
        file: "random.parquet",
        rest: &[COLUMNS],
        unit: Unit::Requests,
        least: 2.0,
    },
    Reading {
        name: "rows as deltas",
        arguments: &["query", "--format", "delta", "--from"],
        file: "random.parquet",
        rest: &[COLUMNS],
        unit: Unit::Requests,
        least: 2.0,
    },
];

/// The most bytes of a request in a recording.
const BYTES_MAX: f64 = 12.0;

/// The most that weir's time may be of DuckDB's.
const RATIO_MAX: f64 = 1.5;

/// Measures all of them and prints the tables.
pub fn run(pace: &Pace, requests: u64) -> Result<()> {
    println!("\n== recordings and traces of {requests} random requests\n");
    let folder = tempfile::tempdir_in(root().join("target"))?;
    let mut generator = example_command("weir-tap", "random_recording");
    let output = generator.arg(folder.path()).arg(requests.to_string());
    let output = output.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("random_recording failed");
    }
    let figure = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.context("random_recording prints it")?.trim().parse()?)
    };
    let (bytes, written) = (figure("recording_bytes")?, figure("written_ns")?);
    println!("a recording has {bytes:.1} bytes per request (bound {BYTES_MAX})");
    println!("writing one takes {written:.0} ns of processor time per request\n");
    let mut meter = Meter::start()?;
    queries(pace, &mut meter, &folder)?;
    readings(pace, &mut meter, &folder, requests)
}

/// The queries, weir and DuckDB in alternation.
fn queries(pace: &Pace, meter: &mut Meter, folder: &TempDir) -> Result<()> {
    let file = folder.path().join("random.parquet");
    let table = format!(
        "(select * from '{}' where type <> 'Q') as IO",
        file.display()
    );
    println!("milliseconds, medians; the bound of both ratios is {RATIO_MAX}");
    println!(
        "{:34} {:>7} {:>7} {:>6}   {:>7} {:>7} {:>6}",
        "query", "weir", "DuckDB", "ratio", "weir", "DuckDB", "ratio"
    );
    println!("{:34} {:^22}   {:^22}", "", "processor time", "wall time");
    for (name, cql, sql) in QUERIES {
        let sql = sql.replace("from IO", &format!("from {table}"));
        let mut times: [Vec<f64>; 4] = Default::default();
        for _ in 0..pace.rounds {
            let path = file.to_string_lossy();
            let weir = meter.run(folder, &["query", "--from", &path, "--final", cql])?;
            let duckdb = meter.query(&sql)?;
            for (of, figure) in
                times
                    .iter_mut()
                    .zip([weir.processor, duckdb.processor, weir.wall, duckdb.wall])
            {
                of.push(figure * 1e3);
            }
        }
        let [weir, duckdb, weir_wall, duckdb_wall] = times.map(|of| spread(of).1);
        println!(
            "{name:34} {weir:7.0} {duckdb:7.0} {:6.2}   {weir_wall:7.0} {duckdb_wall:7.0} {:6.2}",
            weir / duckdb,
            weir_wall / duckdb_wall
        );
    }
    Ok(())
}

/// The commands that read one of the files.
fn readings(pace: &Pace, meter: &mut Meter, folder: &TempDir, requests: u64) -> Result<()> {
    println!("\nmillions per second of processor time, of the whole process");
    println!("{:36} {:>8} {:>17} {:>6}", "", "median", "range", "bound");
    for reading in &READINGS {
        let file = folder.path().join(reading.file);
        let amount = match reading.unit {
            Unit::Bytes => file.metadata()?.len() as f64,
            Unit::Requests => requests as f64,
        };
        let path = file.to_string_lossy();
        let arguments = [reading.arguments, &[&*path], reading.rest].concat();
        let mut rates = Vec::new();
        for _ in 0..pace.rounds {
            rates.push(amount / 1e6 / meter.run(folder, &arguments)?.processor);
        }
        let (least, median, most) = spread(rates);
        let unit = match reading.unit {
            Unit::Bytes => "bytes",
            Unit::Requests => "requests",
        };
        println!(
            "{:36} {median:8.1} {:>17} {:6} {unit}",
            reading.name,
            format!("{least:.1} to {most:.1}"),
            reading.least
        );
    }
    Ok(())
}

/// Seconds that a program or a query took.
struct Time {
    wall: f64,
    processor: f64,
}

/// The process that measures, `measure.py`.
struct Meter {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Meter {
    fn start() -> Result<Meter> {
        let mut process = Command::new(python_with("duckdb")?)
            .arg(root().join("xtask/src/bench/measure.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Meter {
            input: process.stdin.take().expect("it is piped"),
            output: BufReader::new(process.stdout.take().expect("it is piped")),
            process,
        })
    }

    /// Runs weir in a folder.
    fn run(&mut self, folder: &TempDir, arguments: &[&str]) -> Result<Time> {
        let weir = root().join("target/release/weir");
        let (folder, weir) = (folder.path().to_string_lossy(), weir.to_string_lossy());
        let command = [&["env", "-C", &folder, &weir], arguments].concat();
        self.measure(&json!({ "run": command }))
    }

    fn query(&mut self, sql: &str) -> Result<Time> {
        self.measure(&json!({ "sql": sql }))
    }

    fn measure(&mut self, what: &Value) -> Result<Time> {
        writeln!(self.input, "{what}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line).context("measure.py has ended")?;
        let seconds = |name: &str| answer[name].as_f64();
        match (seconds("wall"), seconds("processor")) {
            (Some(wall), Some(processor)) => Ok(Time { wall, processor }),
            _ => bail!(
                "{}",
                answer["error"].as_str().unwrap_or("measure.py failed")
            ),
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
