//! `cargo xtask experiments failover`: how long results pause when the leader of two monitors is
//! killed, or stopped as when its host fails; and whether every request is in them once.
//!
//! Two agents replay a recording at its own pace. A client watches a query with a result for each
//! second, by the addresses of both monitors.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use weir_testing::Scratch;

use crate::bench::{binary, spread};
use crate::{build_weir, number};

/// Requests per second of each agent.
const RATE: u64 = 100;

/// The agents.
const HOSTS: [&str; 2] = ["a", "b"];

/// A result for each second.
const QUERY: &str = "Rstream(select count(*) as n from IO [range 1 s slide 1 s])";

/// The bound of a pause, in seconds.
const BOUND_S: f64 = 5.0;

/// The time between two events, and of the warm-up.
const APART: Duration = Duration::from_secs(8);

/// How long a process may take for what is awaited.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The first request of the recording, in Windows' 100 ns since 1601, and in seconds since 1970.
const FIRST_TICKS: u64 = 128_166_372_030_000_000;
const FIRST_S: u64 = 1_172_163_603;

/// What happens to the leader, as kill(1) names it, and for the table.
const EVENTS: [(&str, &str); 2] = [
    ("KILL", "the leader is killed"),
    ("STOP", "the leader is stopped, as when its host fails"),
];

const USAGE: &str = "usage: cargo xtask experiments failover [--runs N]";

/// Runs it and prints the table.
pub fn run(args: &[String]) -> Result<()> {
    let mut runs = 5;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--runs" => runs = number(arg, rest.next())?,
            other => bail!("unknown argument {other}; {USAGE}"),
        }
    }
    build_weir("release")?;
    let mut pair = Pair::start(runs * EVENTS.len() + 2)?;
    sleep(APART);
    let mut pauses = [Vec::new(), Vec::new()];
    for run in 0..runs {
        for ((signal, _), pauses) in EVENTS.iter().zip(&mut pauses) {
            let pause = pair.fail(signal)?;
            println!("run {}: {signal}: results paused for {pause:.2} s", run + 1);
            pauses.push(pause);
        }
    }
    let (windows, requests) = pair.end()?;
    let mut table = format!("\n{:<48} {:>24}\n", "", "pause, s [min..max]");
    for ((_, event), pauses) in EVENTS.iter().zip(pauses) {
        let (least, median, most) = spread(pauses);
        let range = format!("[{least:.2}..{most:.2}]");
        let _ = writeln!(table, "{event:<48} {median:>10.2} {range:>13}");
    }
    println!("{table}\nbound {BOUND_S} s; medians of {runs} runs");
    println!(
        "{windows} seconds have {requests} requests of {} hosts, every one once",
        HOSTS.len()
    );
    Ok(())
}

/// Two monitors with one state, their agents and a client.
struct Pair {
    home: Scratch,
    monitors: [Child; 2],
    leader: usize,
    agents: Vec<Child>,
    client: Child,
    /// The lines of the client, with the time of each.
    lines: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Pair {
    /// With a recording for this number of events.
    fn start(events: usize) -> Result<Pair> {
        let home = Scratch::new();
        let seconds = (APART.as_secs() + 8) * events as u64;
        fs::write(home.file("trace.csv"), recording(seconds))?;
        let config = format!("[[query]]\nname = \"counts\"\ntext = \"{QUERY}\"\n");
        fs::write(home.file("monitor.toml"), config)?;
        let first = monitor(&home, 0)?;
        until("the first monitor leads", || leads(&home, 0))?;
        let second = monitor(&home, 1)?;
        let is_standby = || Ok(log(&home, 1)?.contains("standby; the leader is"));
        until("the second monitor stands by", is_standby)?;
        let mut client = weir(&home, "client")?;
        client.args(["fleet", "watch", "counts", "--format", "csv"]);
        client.args(["--monitor", &addresses(&home)]);
        let mut client = client.stdout(Stdio::piped()).spawn()?;
        let output = client.stdout.take().context("no output")?;
        let lines = Arc::<Mutex<Vec<(Instant, String)>>>::default();
        let kept = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok).skip(1) {
                kept.lock()
                    .expect("no panic while held")
                    .push((Instant::now(), line));
            }
        });
        // The recording begins when the agents run.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let shift = format!("{}s", now.as_secs() + 5 - FIRST_S);
        let agents = HOSTS.iter().map(|host| agent(&home, host, &shift));
        let agents = agents.collect::<Result<Vec<Child>>>()?;
        Ok(Pair {
            monitors: [first, second],
            leader: 0,
            agents,
            client,
            lines,
            home,
        })
    }

    /// Sends a signal to the leader, and starts it again when the other one leads. Returns the
    /// longest pause of results in seconds, beyond the second between two.
    fn fail(&mut self, signal: &str) -> Result<f64> {
        let began = Instant::now();
        let process = &mut self.monitors[self.leader];
        let status = Command::new("kill")
            .args([&format!("-{signal}"), &process.id().to_string()])
            .status()?;
        ensure!(status.success(), "kill -{signal} failed");
        let other = 1 - self.leader;
        let terms = log(&self.home, other)?.matches("leading term=").count();
        let home = &self.home;
        until("the standby leads", || {
            Ok(log(home, other)?.matches("leading term=").count() > terms)
        })?;
        // A stopped process ends as well.
        process.kill()?;
        process.wait()?;
        self.monitors[self.leader] = monitor(&self.home, self.leader)?;
        self.leader = other;
        sleep(APART);
        let lines = self.lines.lock().expect("no panic while held");
        let times: Vec<Instant> = lines.iter().map(|(at, _)| *at).collect();
        let first = times.partition_point(|at| *at < began).saturating_sub(1);
        let gaps = times[first..].windows(2).map(|two| two[1] - two[0]);
        let longest = gaps.max().context("no results after the event")?;
        Ok((longest.as_secs_f64() - 1.0).max(0.0))
    }

    /// Ends all processes; returns the number of seconds and the requests in their results.
    fn end(mut self) -> Result<(usize, u64)> {
        self.client.kill()?;
        self.client.wait()?;
        let lines = self.lines.lock().expect("no panic while held").clone();
        let counts: Vec<u64> = lines
            .iter()
            .map(|(_, line)| {
                let count = line.rsplit(',').next().and_then(|n| n.parse().ok());
                count.with_context(|| format!("no count: {line}"))
            })
            .collect::<Result<_>>()?;
        // Before the recording, and in its first second and its last.
        let begin = counts.iter().position(|count| *count > 0).unwrap_or(0) + 1;
        let whole = &counts[begin.min(counts.len())..counts.len().saturating_sub(1)];
        let all = RATE * HOSTS.len() as u64;
        if let Some(at) = whole.iter().position(|count| *count != all) {
            bail!(
                "second {at} has {} requests of {all}: {counts:?}",
                whole[at]
            );
        }
        let instants: Vec<&str> = lines
            .iter()
            .filter_map(|(_, l)| l.split(',').next())
            .collect();
        let mut distinct = instants.clone();
        distinct.sort_unstable();
        distinct.dedup();
        ensure!(
            distinct == instants,
            "a second is there twice: {instants:?}"
        );
        Ok((whole.len(), whole.iter().sum()))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let processes = self.monitors.iter_mut().chain(&mut self.agents);
        for process in processes.chain([&mut self.client]) {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A trace of one disk in the format of MSR Cambridge: reads of 4 KiB.
fn recording(seconds: u64) -> String {
    let mut text = String::new();
    for at in 0..seconds * RATE {
        let ticks = FIRST_TICKS + at * (10_000_000 / RATE);
        let _ = writeln!(text, "{ticks},vm1,0,Read,{},4096,5000", at * 4096);
    }
    text
}

/// The program, with its messages in a file.
fn weir(home: &Scratch, name: &str) -> Result<Command> {
    let mut command = binary();
    let log = File::options()
        .create(true)
        .append(true)
        .open(home.file(&format!("{name}.log")))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    Ok(command)
}

fn address(home: &Scratch, number: usize) -> String {
    format!("unix:{}", home.file(&format!("m{number}.sock")))
}

fn addresses(home: &Scratch) -> String {
    [0, 1].map(|number| address(home, number)).join(",")
}

fn monitor(home: &Scratch, number: usize) -> Result<Child> {
    let mut command = weir(home, &format!("m{number}"))?;
    command.args([
        "monitor",
        "--standby",
        "--config",
        &home.file("monitor.toml"),
    ]);
    command.args([
        "--state",
        &home.file("state"),
        "--listen",
        &address(home, number),
    ]);
    Ok(command.spawn()?)
}

fn agent(home: &Scratch, host: &str, shift: &str) -> Result<Child> {
    let mut command = weir(home, host)?;
    command.args(["agent", "--host", host, "--monitor", &addresses(home)]);
    command.args(["--from", &home.file("trace.csv"), "--shift", shift]);
    command.args(["--state", &home.file(host)]);
    Ok(command.spawn()?)
}

fn log(home: &Scratch, number: usize) -> Result<String> {
    Ok(fs::read_to_string(home.file(&format!("m{number}.log")))?)
}

fn leads(home: &Scratch, number: usize) -> Result<bool> {
    Ok(log(home, number)?.contains("leading term="))
}

fn until(what: &str, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !done()? {
        ensure!(began.elapsed() < TIMEOUT, "waited in vain until {what}");
        sleep(Duration::from_millis(5));
    }
    Ok(())
}
