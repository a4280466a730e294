//! The engine beside Esper and Flink SQL: the same queries over the same events, in one run.
//!
//! Both engines come from Maven Central and run in a JVM of their own, which stays between the
//! queries and first runs each of them once, unmeasured, so that its code is compiled. weir, its
//! floor and the engines alternate. Rates are events per second of processor time, of a JVM all of
//! its threads: its garbage collector and compiler belong to its cost. Esper receives events that
//! are objects already, Flink decodes 40 bytes for each.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

use weir_testing::java::Java;

use super::{Pace, spread};
use crate::{cargo, execute, packages, root};

const EVENTS: usize = 5_000_000;

/// Events of the runs that are not measured: more than a window has.
const WARM_UP: usize = 1_000_000;

/// The queries of `engine_bench`, by their names there.
const QUERIES: [(&str, &str); 6] = [
    ("F", "filter, half pass"),
    ("f", "filter, a tenth pass"),
    ("S", "running sum"),
    ("G", "group-by over 3 s"),
    ("J", "request/response join over 3 s"),
    ("M", "join and group-by over 3 s"),
];

/// Compiler and launcher of Java, and what fetches the engines.
const PACKAGES: &[(&str, &str)] = &[("javac", "openjdk-17-jdk-headless"), ("mvn", "maven")];

/// An engine in Java.
struct Engine {
    name: &'static str,
    /// Its dependencies.
    pom: &'static str,
    /// The class that runs the queries.
    class: &'static str,
    /// A service that the class provides: its interface and implementation.
    service: Option<(&'static str, &'static str)>,
}

const ENGINES: [Engine; 2] = [
    Engine {
        name: "Esper 9.0",
        pom: "esper.xml",
        class: "EsperPeer",
        service: None,
    },
    Engine {
        name: "Flink 2.3",
        pom: "flink.xml",
        class: "FlinkPeer",
        service: Some((
            "org.apache.flink.table.factories.Factory",
            "FlinkPeer$Connector",
        )),
    },
];

/// Measures all of them and prints the table.
pub fn run(pace: &Pace) -> Result<()> {
    println!("\n== the engine beside other engines: {EVENTS} events, one core's work\n");
    let missing = PACKAGES
        .iter()
        .filter(|(program, _)| !packages::exists(program));
    packages::ensure(&missing.map(|(_, package)| *package).collect::<Vec<_>>())?;
    let folder = root().join("target/peers");
    fs::create_dir_all(&folder)?;
    let bench = engine_bench()?;
    let events = folder.join("events");
    execute(Command::new(&bench).arg("--write").arg(&events))?;
    let measured = measure(pace, &bench, &folder, &events);
    fs::remove_file(&events)?;
    print(&measured?);
    Ok(())
}

/// The figures of a query: rows of each result, and the rates of each round.
#[derive(Default)]
struct Measured {
    rows: [u64; 1 + ENGINES.len()],
    floor: Vec<f64>,
    weir: Vec<f64>,
    engines: [Vec<f64>; ENGINES.len()],
}

fn measure(
    pace: &Pace,
    bench: &Path,
    folder: &Path,
    events: &Path,
) -> Result<[Measured; QUERIES.len()]> {
    let mut engines = Vec::new();
    for engine in &ENGINES {
        let classes = build(engine, folder)?;
        engines.push(Running::start(engine, &classes, events)?);
    }
    for (query, _) in QUERIES {
        for engine in &mut engines {
            engine.result(query, WARM_UP)?;
        }
    }
    let mut measured: [Measured; QUERIES.len()] = Default::default();
    for _ in 0..pace.rounds {
        for ((query, _), of) in QUERIES.iter().zip(&mut measured) {
            let output = Command::new(bench).args(["--once", query]).output()?;
            let [rows, weir_ns, floor_ns] = result(&String::from_utf8_lossy(&output.stdout))?;
            of.rows[0] = rows;
            of.weir.push(rate(weir_ns));
            of.floor.push(rate(floor_ns));
            for (at, engine) in engines.iter_mut().enumerate() {
                let [rows, processor_ns, _] = engine.result(query, EVENTS)?;
                of.rows[1 + at] = rows;
                of.engines[at].push(rate(processor_ns));
            }
        }
    }
    Ok(measured)
}

/// Millions of events per second of processor time.
fn rate(processor_ns: u64) -> f64 {
    EVENTS as f64 * 1e3 / processor_ns as f64
}

/// The numbers of a line `RESULT a b c`.
fn result(line: &str) -> Result<[u64; 3]> {
    let words = line.trim().strip_prefix("RESULT ");
    let numbers = words.map(|words| words.split(' ').map(str::parse).collect());
    let numbers: Option<Result<Vec<u64>, _>> = numbers;
    numbers
        .and_then(Result::ok)
        .and_then(|numbers| numbers.try_into().ok())
        .with_context(|| format!("this is not the line of a result: {line}"))
}

/// Builds weir's own benchmark.
fn engine_bench() -> Result<PathBuf> {
    let package = "--package weir-query --example engine_bench";
    let build = format!("build --release --locked --quiet {package}");
    execute(cargo().args(build.split(' ')))?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root().join("target"), PathBuf::from);
    Ok(target.join("release/examples/engine_bench"))
}

/// Fetches an engine and compiles its class.
fn build(engine: &Engine, folder: &Path) -> Result<Java> {
    let sources = root().join("xtask/src/bench/peers");
    let classes = ["Events", "Peer", engine.class];
    let classes = classes.map(|class| sources.join(class).with_extension("java"));
    let java = Java::build(
        &folder.join(engine.class),
        &sources.join(engine.pom),
        &classes,
    )?;
    if let Some((interface, implementation)) = engine.service {
        let services = java.classes().join("META-INF/services");
        fs::create_dir_all(&services)?;
        fs::write(services.join(interface), implementation)?;
    }
    Ok(java)
}

/// The process of an engine, which is killed when it is dropped.
struct Running {
    name: &'static str,
    child: Child,
    queries: ChildStdin,
    results: BufReader<ChildStdout>,
}

impl Running {
    fn start(engine: &Engine, java: &Java, events: &Path) -> Result<Running> {
        let options = ["-Xms2g", "-Xmx4g", "-XX:+UseParallelGC"];
        let mut java = java.command(&options, engine.class);
        java.arg(events);
        let mut child = java
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", engine.name))?;
        Ok(Running {
            name: engine.name,
            queries: child.stdin.take().context("its input is a pipe")?,
            results: BufReader::new(child.stdout.take().context("its output is a pipe")?),
            child,
        })
    }

    /// Runs a query over the first events: the rows of its result, its processor and wall time
    /// in nanoseconds.
    fn result(&mut self, query: &str, events: usize) -> Result<[u64; 3]> {
        writeln!(self.queries, "{query} {events}")?;
        let mut line = String::new();
        loop {
            line.clear();
            if self.results.read_line(&mut line)? == 0 {
                bail!("{} ended in query {query}", self.name);
            }
            // An engine may log to its standard output.
            if line.starts_with("RESULT ") {
                return result(&line);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn print(measured: &[Measured]) {
    let median = |rates: &[f64]| spread(rates.to_vec()).1;
    let name = |at: usize| ENGINES[at].name;
    println!(
        "M events per second of processor time, median; a ratio is that of a median to weir's\n"
    );
    println!(
        "{:<33} {:>7} {:>7} {:>10} {:>10} {:>7} {:>7}   rows of each result",
        "query",
        "floor",
        "weir",
        name(0),
        name(1),
        "ratio",
        "ratio"
    );
    for ((query, what), of) in QUERIES.iter().zip(measured) {
        let weir = median(&of.weir);
        let [esper, flink] = [0, 1].map(|at| median(&of.engines[at]));
        println!(
            "{query} {what:<31} {:>7.1} {weir:>7.1} {esper:>10.2} {flink:>10.3} {:>7.3} {:>7.4}   {:?}",
            median(&of.floor),
            esper / weir,
            flink / weir,
            of.rows
        );
    }
    println!("\nWindows that are relations retract rows; Flink's OVER windows and joins never do.");
}
