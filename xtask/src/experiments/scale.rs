//! `cargo xtask experiments scale`: what a fleet costs at the monitor, in Kafka and in Flink, and
//! docs/scale.md.
//!
//! Agents are simulated (`weir-simulation`); the protocol, the monitor, the broker and Flink are
//! real. One query runs at the monitor and in Flink, and the rows of both are compared at each end
//! of a window. A fleet that is too large for one monitor is served by several, whose topics one
//! job reads.

mod page;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use weir_testing::{FlinkCluster, Kafka, Scratch};

use crate::time_used::Counters;
use crate::{cargo, execute, number, packages, root};

/// The columns of the query: its rows are partial aggregates of each agent.
const COLUMNS: &str = "op, count(*) as n, sum(bytes) as total, p99(latency) as p99";

/// How often it has results, seconds: one monitor, and a fleet that is too large for one.
const SLIDES: [u64; 2] = [1, 30];

/// The most agents of a monitor: each has a connection, and a process has at most 20,000 files on
/// many systems.
const AGENTS_OF_A_MONITOR: usize = 17_000;

/// Options of Java: as in production, with a collector for few processors.
const JAVA: &[&str] = &["-XX:+UseSerialGC"];

/// How long agents may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(600);

/// How long processes run before they are measured.
const WARM_UP: Duration = Duration::from_secs(20);

const USAGE: &str =
    "usage: cargo xtask experiments scale [--agents N,N..] [--large N] [--seconds N] [--out FILE]";

/// The rows of a result at each end of a window, as texts.
type Windows = BTreeMap<String, BTreeSet<String>>;

/// A fleet, and what it is asked.
#[derive(Clone, Copy, Debug, Default)]
struct Fleet {
    agents: usize,
    monitors: usize,
    /// The slide of the query, seconds.
    slide: u64,
    /// Requests per second of each agent.
    rate: u64,
}

impl Fleet {
    fn of_one_monitor(agents: usize) -> Fleet {
        Fleet {
            agents,
            monitors: 1,
            slide: SLIDES[0],
            rate: 10,
        }
    }

    fn large(agents: usize) -> Fleet {
        Fleet {
            agents,
            monitors: agents.div_ceil(AGENTS_OF_A_MONITOR).max(2),
            slide: SLIDES[1],
            rate: 1,
        }
    }

    /// The window, seconds.
    fn window(&self) -> u64 {
        self.slide.max(10)
    }

    /// The interval of heartbeats, seconds: many agents need fewer.
    fn heartbeat(&self) -> u64 {
        self.slide.min(10)
    }

    fn query(&self) -> String {
        let (window, slide) = (self.window(), self.slide);
        format!("select {COLUMNS} from IO [range {window} s slide {slide} s] group by op")
    }

    /// The agents of a monitor.
    fn share(&self, monitor: usize) -> usize {
        self.agents / self.monitors + usize::from(monitor < self.agents % self.monitors)
    }
}

/// What one run has measured; processors in percent of one.
#[derive(Debug, Default)]
struct ScaleRun {
    fleet: Fleet,
    rows_per_second: f64,
    messages_per_second: f64,
    monitor_percent: f64,
    kafka_percent: Option<f64>,
    flink_percent: Option<f64>,
    memory_per_agent: i64,
    /// From the end of a window to the arrival of its rows at a client: median and 99th percentile.
    monitor_ms: [f64; 2],
    flink_ms: Option<[f64; 2]>,
    /// Windows that both have, with the same rows.
    windows: usize,
    late: u64,
}

/// Runs the experiment.
///
/// # Errors
/// When a process does not start, or the results differ.
pub fn run(args: &[String]) -> Result<()> {
    let mut agents = vec![250, 1_000, 4_000];
    let mut large = None;
    let mut seconds = 30;
    let mut out = root().join("docs/scale.md");
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match (arg.as_str(), rest.next()) {
            ("--agents", Some(list)) => {
                let counts = list.split(',').map(str::parse);
                agents = counts.collect::<Result<_, _>>().context("--agents")?;
            }
            ("--large", value) => large = Some(number::<usize>(arg, value)?),
            ("--seconds", value) => seconds = number::<u64>(arg, value)?.max(10),
            ("--out", Some(path)) => out = path.into(),
            _ => bail!("unexpected {arg}; {USAGE}"),
        }
    }
    ensure!(!agents.is_empty(), USAGE);
    packages::ensure(packages::BUILD)?;
    // Both at once: what they share is built once.
    execute(
        cargo()
            .args(["build", "--release", "--locked", "--quiet"])
            .args(["-p", "weir", "-p", "weir-simulation"])
            .args(["--bin", "weir", "--example", "simulate"]),
    )?;
    let span = Duration::from_secs(seconds);
    let fleets = agents.into_iter().map(Fleet::of_one_monitor);
    let fleets: Vec<Fleet> = fleets.chain(large.map(Fleet::large)).collect();
    let mut alone = Vec::new();
    for fleet in fleets.iter().filter(|fleet| fleet.monitors == 1) {
        println!("{fleet:?}, the monitor alone");
        alone.push(measured(*fleet, span, None)?);
        println!("{:?}", alone.last());
    }
    let engines = Engines {
        kafka: Kafka::start_with(None, JAVA)?,
        flink: FlinkCluster::start_with(1, JAVA)?,
        runs: Cell::new(0),
    };
    // The code of Kafka and Flink is compiled while they run.
    println!("{:?}, to warm Kafka and Flink up", fleets[0]);
    measured(fleets[0], 2 * span, Some(&engines))?;
    let mut forwarded = Vec::new();
    for fleet in &fleets {
        println!("{fleet:?}, with Kafka and Flink");
        forwarded.push(measured(*fleet, span, Some(&engines))?);
        println!("{:?}", forwarded.last());
    }
    let page = page::page(&alone, &forwarded, seconds);
    fs::write(&out, page).with_context(|| out.display().to_string())?;
    println!("wrote {}", out.display());
    Ok(())
}

/// A broker and a cluster for all runs, so that their code is optimised.
struct Engines {
    kafka: Kafka,
    flink: FlinkCluster,
    /// The number of runs so far: each has topics of its own.
    runs: Cell<usize>,
}

/// A process that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = self.0.id().to_string();
        // It may have ended.
        let _ = Command::new("kill").args(["-TERM", &pid]).output();
        let _ = self.0.wait();
    }
}

fn weir() -> PathBuf {
    root().join("target/release/weir")
}

/// Starts a command with its output in a file.
fn start(program: &Path, args: &[&str], output: &str) -> Result<Running> {
    let log = format!("{output}.log");
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(File::create(output)?)
        .stderr(File::create(log)?)
        .spawn()
        .with_context(|| program.display().to_string())?;
    Ok(Running(child))
}

/// A monitor with its agents.
struct Site {
    folder: Scratch,
    socket: String,
    monitor: Running,
    /// The rows of the query at the monitor.
    rows: String,
    /// The client that writes them.
    client: Option<Running>,
    simulation: Option<Running>,
}

impl Site {
    /// Starts a monitor, which forwards to `url`.
    fn start(fleet: &Fleet, agents: usize, url: Option<&str>) -> Result<Site> {
        let folder = Scratch::new();
        let socket = format!("unix:{}", folder.file("monitor.sock"));
        let most = agents + 64;
        let mut config = format!(
            "listen = \"{socket}\"\nheartbeat = \"{} s\"\nidle = \"{} s\"\n[limits]\n\
             agents = {agents}\nconnections = {most}\nconnections_per_address = {most}\n",
            fleet.heartbeat(),
            10 * fleet.heartbeat(),
        );
        if let Some(url) = url {
            write!(config, "[forward]\nto = \"{url}\"\npartitions = 1\n")?;
        }
        let file = folder.write("monitor.toml", &config);
        let state = folder.file("state");
        let monitor = ["monitor", "--config", &file, "--state", &state];
        let mut monitor = start(&weir(), &monitor, &folder.file("monitor"))?;
        let began = Instant::now();
        while !Path::new(&folder.file("monitor.sock")).exists() {
            ensure!(
                monitor.0.try_wait()?.is_none() && began.elapsed() < CONNECT_TIMEOUT,
                "the monitor does not start: {}",
                fs::read_to_string(folder.file("monitor.log"))?
            );
            thread::sleep(Duration::from_millis(50));
        }
        Ok(Site {
            rows: folder.file("rows.csv"),
            folder,
            socket,
            monitor,
            client: None,
            simulation: None,
        })
    }

    /// Writes the rows of the query to a file.
    fn query(&mut self, fleet: &Fleet) -> Result<()> {
        let same = format!("Rstream({}) every {} s", fleet.query(), fleet.slide);
        let query = ["query", "--monitor", &self.socket, "--format", "csv", &same];
        self.client = Some(start(&weir(), &query, &self.rows)?);
        Ok(())
    }

    /// Starts the agents, which end after `span`.
    fn simulate(&mut self, fleet: &Fleet, agents: usize, span: Duration) -> Result<()> {
        let pid = self.monitor.0.id().to_string();
        let [count, rate, seconds] = [
            agents.to_string(),
            fleet.rate.to_string(),
            format!("{}s", span.as_secs()),
        ];
        let query = fleet.query();
        let simulate = [
            "--agents",
            &count,
            "--rate",
            &rate,
            "--monitor",
            &self.socket,
            "--monitor-pid",
            &pid,
            "--query",
            &query,
            "--for",
            &seconds,
            "--json",
        ];
        let program = root().join("target/release/examples/simulate");
        let found = self.folder.file("simulated");
        self.simulation = Some(start(&program, &simulate, &found)?);
        Ok(())
    }

    /// What the agents have measured, once they have ended.
    fn simulated(&mut self) -> Result<Value> {
        if let Some(simulation) = &mut self.simulation {
            ensure!(
                simulation.0.wait()?.success(),
                "the agents failed: {}",
                self.folder.file("simulated.log")
            );
        }
        let found = fs::read_to_string(self.folder.file("simulated"))?;
        Ok(serde_json::from_str(&found)?)
    }
}

fn measured(fleet: Fleet, span: Duration, engines: Option<&Engines>) -> Result<ScaleRun> {
    let span = span.max(Duration::from_secs(3 * fleet.slide));
    let query = fleet.query();
    if let Some(engines) = engines {
        engines.runs.update(|runs| runs + 1);
    }
    let mut sites = Vec::new();
    let mut urls = Vec::new();
    for number in 0..fleet.monitors {
        let prefix = |run| format!("scale{run}m{number}");
        let url = engines.map(|e| {
            let prefix = prefix(e.runs.get());
            format!("kafka://{}/{prefix}", e.kafka.address())
        });
        let site = Site::start(&fleet, fleet.share(number), url.as_deref())?;
        execute(
            Command::new(weir())
                .args(["fleet", "place", "load", &query, "--monitor", &site.socket])
                .stdout(Stdio::null()),
        )?;
        urls.extend(url);
        sites.push(site);
    }
    if let Some(engines) = engines {
        place_job(&query, &urls, engines)?;
    }
    for site in &mut sites {
        site.query(&fleet)?;
    }
    let results = urls.first().map(|url| Results::watch(url)).transpose()?;
    // Agents of several monitors connect at the same time, and none ends before all are measured.
    let connecting = match fleet.monitors {
        1 => Duration::ZERO,
        _ => Duration::from_millis(20) * fleet.share(0) as u32,
    };
    for (number, site) in sites.iter_mut().enumerate() {
        let rest = WARM_UP + span + Duration::from_secs(5) + connecting;
        site.simulate(&fleet, fleet.share(number), rest)?;
    }
    for (number, site) in sites.iter().enumerate() {
        wait_for_agents(&site.socket, fleet.share(number))?;
    }
    thread::sleep(WARM_UP.max(Duration::from_secs(fleet.slide)));
    let mut pids: Vec<u32> = sites.iter().map(|site| site.monitor.0.id()).collect();
    pids.extend(engines.and_then(|e| e.kafka.pid()));
    pids.extend(engines.into_iter().flat_map(|e| e.flink.pids()));
    let counters = Counters::now(&pids)?;
    thread::sleep(span);
    let used = counters.since()?;
    let (monitors, others) = used.process_percent.split_at(sites.len());
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let mut run = ScaleRun {
        fleet,
        monitor_percent: monitors.iter().sum(),
        ..ScaleRun::default()
    };
    for site in &mut sites {
        let simulated = site.simulated()?;
        let delay = &simulated["delay_ms"];
        let memory = simulated["memory_per_agent_bytes"].as_i64().unwrap_or(0);
        let [p50, p99] = ["p50", "p99"].map(|name| number(&delay[name]));
        run.rows_per_second += number(&simulated["rows_acked_per_second"]);
        run.messages_per_second += number(&simulated["messages_per_second"]);
        run.memory_per_agent = run.memory_per_agent.max(memory);
        run.monitor_ms = [run.monitor_ms[0].max(p50), run.monitor_ms[1].max(p99)];
        run.late += simulated["rows_late"].as_u64().unwrap_or(0);
    }
    if let (Some(results), Some(engines)) = (results, engines) {
        run.kafka_percent = Some(others[0]);
        run.flink_percent = Some(others[1..].iter().sum());
        // The agents have ended: the windows that are under way arrive.
        thread::sleep(2 * Duration::from_secs(fleet.window()));
        let (windows, delays) = results.end();
        run.flink_ms = Some([0.5, 0.99].map(|share| quantile(&delays, share)));
        let read = |site: &Site| Ok(of_csv(&fs::read_to_string(&site.rows)?));
        let at_monitors: Vec<Windows> = sites.iter().map(read).collect::<Result<_>>()?;
        run.windows = match &at_monitors[..] {
            [one] => same_windows(one, &windows)?,
            several => same_windows(&summed(several), &summed(&[windows]))?,
        };
        cancel(&sites[0].socket, &urls[0], &engines.flink.gateway())?;
    }
    Ok(run)
}

/// Places the job that reads the topics of all monitors.
fn place_job(query: &str, urls: &[String], engines: &Engines) -> Result<()> {
    let gateway = engines.flink.gateway();
    let mut topics = Vec::new();
    for url in urls {
        let explained = Command::new(weir())
            .args(["explain", "--flink", "--forward", url, "--name", "load"])
            .arg(query)
            .output()?;
        let text = String::from_utf8_lossy(&explained.stdout).into_owned();
        let topic = text.split_once("'topic' = '").map(|(_, rest)| rest);
        let topic = topic.and_then(|rest| rest.split('\'').next());
        topics.push(topic.context("a table has a topic")?.to_owned());
    }
    let topics = format!("topic={}", topics.join(";"));
    let began = Instant::now();
    loop {
        let placed = Command::new(weir())
            .args(["fleet", "place", "load", query, "--on", "flink"])
            .args(["--job-only", "--forward", &urls[0], "--gateway", &gateway])
            .args(["--flink-with", &topics])
            .output()?;
        if placed.status.success() {
            return Ok(());
        }
        // On a busy machine, the first job of a cluster takes longer than the command waits.
        ensure!(
            began.elapsed() < CONNECT_TIMEOUT,
            "place: {}",
            String::from_utf8_lossy(&placed.stderr)
        );
    }
}

fn wait_for_agents(socket: &str, agents: usize) -> Result<()> {
    let began = Instant::now();
    loop {
        let hosts = Command::new(weir())
            .args(["fleet", "hosts", "--json", "--monitor", socket])
            .output()?;
        let hosts: Value = serde_json::from_slice(&hosts.stdout).unwrap_or(Value::Null);
        let count = hosts.as_array().map_or(0, Vec::len);
        if count >= agents {
            return Ok(());
        }
        ensure!(
            began.elapsed() < CONNECT_TIMEOUT,
            "{count} of {agents} agents are connected"
        );
        // The list of many hosts has a cost of its own.
        thread::sleep(Duration::from_millis(1_000 + agents as u64));
    }
}

fn cancel(socket: &str, url: &str, gateway: &str) -> Result<()> {
    execute(
        Command::new(weir())
            .args(["fleet", "cancel", "load", "--monitor", socket])
            .args(["--on", "flink", "--forward", url, "--gateway", gateway])
            .stdout(Stdio::null()),
    )
}

/// The rows of Flink's job, as they arrive at a client.
struct Results {
    process: Child,
    /// The lines, with the delay of each from the end of its window in ms.
    lines: Arc<Mutex<Vec<(String, f64)>>>,
}

impl Results {
    fn watch(url: &str) -> Result<Results> {
        let mut process = Command::new(weir())
            .args(["fleet", "watch", "load", "--on", "flink", "--forward", url])
            .args(["--from-start", "--format", "csv"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = process.stdout.take().context("it is piped")?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let to = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let delay = delay_ms(&line).unwrap_or(f64::NAN);
                to.lock()
                    .expect("no panic while locked")
                    .push((line, delay));
            }
        });
        Ok(Results { process, lines })
    }

    fn end(self) -> (Windows, Vec<f64>) {
        drop(Running(self.process));
        let lines = self.lines.lock().expect("no panic while locked");
        let text: Vec<&str> = lines.iter().map(|(line, _)| line.as_str()).collect();
        let delays = lines.iter().map(|(_, delay)| *delay);
        let mut delays: Vec<f64> = delays.filter(|delay| !delay.is_nan()).collect();
        delays.sort_by(f64::total_cmp);
        (of_csv(&text.join("\n")), delays)
    }
}

/// The time from the instant of a row until now.
fn delay_ms(line: &str) -> Option<f64> {
    let format = &time::format_description::well_known::Rfc3339;
    let instant = time::OffsetDateTime::parse(line.split(',').next()?, format).ok()?;
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()?;
    Some(now.as_nanos() as f64 / 1e6 - instant.unix_timestamp_nanos() as f64 / 1e6)
}

/// The rows by their instants.
fn of_csv(text: &str) -> Windows {
    let mut windows = Windows::new();
    for line in text.lines() {
        if let Some((instant, row)) = line.split_once(',')
            && instant.starts_with(|c: char| c.is_ascii_digit())
        {
            let rows = windows.entry(instant.trim_end_matches('Z').to_owned());
            rows.or_default().insert(row.to_owned());
        }
    }
    windows
}

/// The counts and sums of several monitors, added; states of quantiles are not in their results.
fn summed(monitors: &[Windows]) -> Windows {
    let mut sums: BTreeMap<(&String, &str), [u64; 2]> = BTreeMap::new();
    for (at, row) in monitors.iter().flatten() {
        for row in row {
            let fields: Vec<&str> = row.split(',').collect();
            let [op, count, total, ..] = fields[..] else {
                continue;
            };
            let sum = sums.entry((at, op)).or_default();
            for (sum, text) in sum.iter_mut().zip([count, total]) {
                *sum += text.parse::<u64>().unwrap_or(0);
            }
        }
    }
    let mut windows = Windows::new();
    for ((at, op), [count, total]) in sums {
        // Where one monitor has no such window, that of all is not complete.
        if monitors.iter().all(|windows| windows.contains_key(at)) {
            let rows = windows.entry(at.clone()).or_default();
            rows.insert(format!("{op},{count},{total}"));
        }
    }
    windows
}

/// The number of windows with the same rows, from the first to the last one that both have.
fn same_windows(monitor: &Windows, flink: &Windows) -> Result<usize> {
    let of_both: Vec<&String> = monitor
        .keys()
        .filter(|at| flink.contains_key(*at))
        .collect();
    let (Some(first), Some(last)) = (of_both.first(), of_both.last()) else {
        bail!("the monitor and Flink have no window in common");
    };
    let mut count = 0;
    for (at, rows) in monitor.range((*first).clone()..=(*last).clone()) {
        let found = flink.get(at);
        ensure!(
            found == Some(rows),
            "at {at}: the monitor has {rows:?}, Flink has {found:?}"
        );
        count += 1;
    }
    Ok(count)
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        count => sorted[((count - 1) as f64 * share).round() as usize],
    }
}
