//! `cargo xtask experiments scale`: what a fleet costs at the monitor, in Kafka and in Flink, and
//! docs/scale.md.
//!
//! Agents are simulated (`weir-simulation`); the protocol, the monitor, the broker and Flink are
//! real. One query runs at the monitor and in Flink, and the rows of both are compared at each end
//! of a window.

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
use crate::{build_weir, cargo, execute, number, packages, root};

/// What is asked: partial aggregates of each agent, once a second.
const QUERY: &str = "select op, count(*) as n, sum(bytes) as total, p99(latency) as p99 \
                     from IO [range 10 s slide 1 s] group by op";

/// Its window, and the time for results that are under way.
const WINDOW: Duration = Duration::from_secs(10);

/// The interval of heartbeats: more agents than in `docs/simulate.md` need fewer.
const HEARTBEAT: &str = "1 s";

/// Options of Java: as in production, with a collector for few processors.
const JAVA: &[&str] = &["-XX:+UseSerialGC"];

/// How long agents may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(300);

/// How long processes run before they are measured.
const WARM_UP: Duration = Duration::from_secs(20);

const USAGE: &str =
    "usage: cargo xtask experiments scale [--agents N,N..] [--seconds N] [--out FILE]";

/// The rows of a result at each end of a window, as texts.
type Windows = BTreeMap<String, BTreeSet<String>>;

/// What one run has measured; processors in percent of one.
#[derive(Debug, Default)]
struct ScaleRun {
    agents: usize,
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
    let mut seconds = 30;
    let mut out = root().join("docs/scale.md");
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match (arg.as_str(), rest.next()) {
            ("--agents", Some(list)) => {
                let counts = list.split(',').map(str::parse);
                agents = counts.collect::<Result<_, _>>().context("--agents")?;
            }
            ("--seconds", value) => seconds = number::<u64>(arg, value)?.max(10),
            ("--out", Some(path)) => out = path.into(),
            _ => bail!("unexpected {arg}; {USAGE}"),
        }
    }
    ensure!(!agents.is_empty(), USAGE);
    packages::ensure(packages::BUILD)?;
    build_weir("release")?;
    execute(
        cargo()
            .args(["build", "--release", "--locked", "--quiet", "-p"])
            .args(["weir-simulation", "--example", "simulate"]),
    )?;
    let span = Duration::from_secs(seconds);
    let mut alone = Vec::new();
    for count in &agents {
        println!("{count} agents, the monitor alone");
        alone.push(measured(*count, span, None)?);
        println!("{:?}", alone.last());
    }
    let engines = Engines {
        kafka: Kafka::start_with(None, JAVA)?,
        flink: FlinkCluster::start_with(1, JAVA)?,
    };
    let mut forwarded = Vec::new();
    for count in &agents {
        println!("{count} agents, with Kafka and Flink");
        forwarded.push(measured(*count, span, Some(&engines))?);
        println!("{:?}", forwarded.last());
    }
    let page = page(&alone, &forwarded, seconds);
    fs::write(&out, page).with_context(|| out.display().to_string())?;
    println!("wrote {}", out.display());
    Ok(())
}

/// A broker and a cluster for all runs, so that their code is optimised.
struct Engines {
    kafka: Kafka,
    flink: FlinkCluster,
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

fn measured(agents: usize, span: Duration, engines: Option<&Engines>) -> Result<ScaleRun> {
    let folder = Scratch::new();
    let socket = format!("unix:{}", folder.file("monitor.sock"));
    let url = engines.map(|e| format!("kafka://{}/scale{agents}", e.kafka.address()));
    let mut config = format!(
        "listen = \"{socket}\"\nheartbeat = \"{HEARTBEAT}\"\nidle = \"10 s\"\n[limits]\n\
         agents = {agents}\nconnections = {}\n",
        agents + 64
    );
    if let Some(url) = &url {
        write!(config, "[forward]\nto = \"{url}\"\npartitions = 1\n")?;
    }
    let file = folder.write("monitor.toml", &config);
    let state = folder.file("state");
    let monitor = ["monitor", "--config", &file, "--state", &state];
    let monitor = start(&weir(), &monitor, &folder.file("monitor"))?;
    let began = Instant::now();
    while !Path::new(&folder.file("monitor.sock")).exists() {
        ensure!(
            began.elapsed() < CONNECT_TIMEOUT,
            "the monitor does not start"
        );
        thread::sleep(Duration::from_millis(50));
    }
    let mut place = vec!["fleet", "place", "load", QUERY, "--monitor", &socket];
    let gateway = engines.map(|e| e.flink.gateway());
    if let (Some(url), Some(gateway)) = (&url, &gateway) {
        place.extend(["--on", "flink", "--forward", url, "--gateway", gateway]);
    }
    let began = Instant::now();
    loop {
        let placed = Command::new(weir()).args(&place).output()?;
        if placed.status.success() {
            break;
        }
        // On a busy machine, the first job of a cluster takes longer than the command waits.
        ensure!(
            began.elapsed() < CONNECT_TIMEOUT,
            "place: {}",
            String::from_utf8_lossy(&placed.stderr)
        );
    }
    let same = format!("Rstream({QUERY}) every 1 s");
    let at_monitor = folder.file("rows.csv");
    let query = ["query", "--monitor", &socket, "--format", "csv", &same];
    let _query = start(&weir(), &query, &at_monitor)?;
    let results = url.as_deref().map(Results::watch).transpose()?;

    let pid = monitor.0.id().to_string();
    let [count, seconds] = [
        agents.to_string(),
        format!("{}s", (WARM_UP + span).as_secs() + 5),
    ];
    let simulate = [
        "--agents",
        &count,
        "--monitor",
        &socket,
        "--monitor-pid",
        &pid,
        "--query",
        QUERY,
        "--for",
        &seconds,
        "--json",
    ];
    let program = root().join("target/release/examples/simulate");
    let found = folder.file("simulated");
    let mut simulation = start(&program, &simulate, &found)?;
    wait_for_agents(&socket, agents)?;
    thread::sleep(WARM_UP);
    let mut pids = vec![monitor.0.id()];
    pids.extend(engines.and_then(|e| e.kafka.pid()));
    pids.extend(engines.into_iter().flat_map(|e| e.flink.pids()));
    let counters = Counters::now(&pids)?;
    thread::sleep(span);
    let used = counters.since()?;
    ensure!(
        simulation.0.wait()?.success(),
        "the agents failed: {}",
        folder.file("simulated.log")
    );

    let simulated: Value = serde_json::from_str(&fs::read_to_string(&found)?)?;
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let delay = &simulated["delay_ms"];
    let mut run = ScaleRun {
        agents,
        rows_per_second: number(&simulated["rows_acked_per_second"]),
        messages_per_second: number(&simulated["messages_per_second"]),
        monitor_percent: used.process_percent[0],
        memory_per_agent: simulated["memory_per_agent_bytes"].as_i64().unwrap_or(0),
        monitor_ms: [number(&delay["p50"]), number(&delay["p99"])],
        late: simulated["rows_late"].as_u64().unwrap_or(0),
        ..ScaleRun::default()
    };
    if let Some(results) = results {
        run.kafka_percent = Some(used.process_percent[1]);
        run.flink_percent = Some(used.process_percent[2..].iter().sum());
        // The agents have ended: the windows that are under way arrive.
        thread::sleep(2 * WINDOW);
        let (windows, delays) = results.end();
        run.flink_ms = Some([0.5, 0.99].map(|share| quantile(&delays, share)));
        run.windows = same_windows(&of_csv(&fs::read_to_string(&at_monitor)?), &windows)?;
        cancel(&socket, url.as_deref(), gateway.as_deref())?;
    }
    Ok(run)
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
        thread::sleep(Duration::from_secs(1));
    }
}

fn cancel(socket: &str, url: Option<&str>, gateway: Option<&str>) -> Result<()> {
    let (Some(url), Some(gateway)) = (url, gateway) else {
        return Ok(());
    };
    let cancelled = Command::new(weir())
        .args([
            "fleet",
            "cancel",
            "load",
            "--monitor",
            socket,
            "--on",
            "flink",
        ])
        .args(["--forward", url, "--gateway", gateway])
        .output()?;
    ensure!(
        cancelled.status.success(),
        "cancel: {}",
        String::from_utf8_lossy(&cancelled.stderr)
    );
    Ok(())
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

fn page(alone: &[ScaleRun], forwarded: &[ScaleRun], seconds: u64) -> String {
    let mut page = format!(
        "# A fleet beyond one monitor: costs\n\n\
         ```\ncargo xtask experiments scale\n```\n\n\
         The command wrote this page. Agents are simulated as in [load tests of a \
         monitor](simulate.md), 10\nrequests per second each; protocol, monitor, Kafka (one broker, \
         KRaft) and Flink (job manager, task\nmanager with one slot, SQL Gateway) are real and ran \
         on the same two processors, {seconds} s for each\nfigure. Heartbeats are one second apart. \
         The query, placed at the monitor and in Flink:\n\n```sql\n{}\n```\n\n",
        QUERY.replace(" from", "\nfrom")
    );
    page += "## The monitor alone\n\n\
             | agents | rows/s | messages/s | monitor, processors | per 1,000 agents | memory per \
             agent | result p50 | p99 |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for run in alone {
        page += &format!(
            "| {} | {:.0} | {:.0} | {:.2} | {:.2} | {} KB | {:.0} ms | {:.0} ms |\n",
            run.agents,
            run.rows_per_second,
            run.messages_per_second,
            run.monitor_percent / 100.0,
            per_thousand(run, run.monitor_percent),
            run.memory_per_agent / 1_000,
            run.monitor_ms[0],
            run.monitor_ms[1],
        );
    }
    page += "\n## With Kafka and Flink\n\n\
             Processors; results are from the end of a window to the client.\n\n\
             | agents | monitor | Kafka | Flink | per 1,000 agents | monitor's result p50, p99 | \
             Flink's result p50, p99 | windows compared |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for run in forwarded {
        let (kafka, flink) = (
            run.kafka_percent.unwrap_or(0.0),
            run.flink_percent.unwrap_or(0.0),
        );
        let [p50, p99] = run.flink_ms.unwrap_or([f64::NAN; 2]);
        page += &format!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0}, {:.0} ms | {:.0}, {:.0} ms | {} |\n",
            run.agents,
            run.monitor_percent / 100.0,
            kafka / 100.0,
            flink / 100.0,
            per_thousand(run, run.monitor_percent + kafka + flink),
            run.monitor_ms[0],
            run.monitor_ms[1],
            p50,
            p99,
            run.windows,
        );
    }
    let late: u64 = alone.iter().chain(forwarded).map(|run| run.late).sum();
    page += &format!(
        "\nAll windows that both have contain the same rows, compared as texts. Rows that were \
         late: {late}.\n"
    );
    page + SIZING
}

/// Processors for each thousand agents.
fn per_thousand(run: &ScaleRun, percent: f64) -> f64 {
    percent / 100.0 * 1_000.0 / run.agents as f64
}

/// What follows from the figures.
const SIZING: &str = "
## Which tier

| fleet | tier |
| --- | --- |
| up to some thousands of hosts | one monitor |
| the same, with history for weeks, replay, or programs that read Kafka | one monitor that forwards |
| more | monitors for a part of the hosts each, which forward to one Kafka; Flink merges |

A monitor's cost is that of the messages of its agents, so it grows with their number, and with the
heartbeats and slides: a slide of 10 s instead of 1 s has a tenth of the rows. Kafka and Flink have a
cost without agents, which the smallest fleet shows, and then that of a message per group, host and
slide. Flink's results are later by the interval of the monitor's checkpoints and of the watermarks,
one second each.
";
