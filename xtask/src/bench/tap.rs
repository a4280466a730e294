//! The tap's part: the cost of observation for a disk under full load, compared with none and with
//! other tools.

use std::io::{Read, Seek, SeekFrom};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use anyhow::{Context, Result};

use super::disk::{Disk, Load};
use super::{Pace, spread};
use crate::time_used::process_ns;
use crate::{cargo, execute, is_root, packages, root};

/// A tool that observes the disk.
struct Watcher {
    name: &'static str,
    /// The bound on the ratio of IOPS, if the design specifies one.
    bound: Option<f64>,
    /// The command, for a device; none for the baseline.
    command: Option<fn(&str) -> Command>,
}

const WATCHERS: &[Watcher] = &[
    Watcher {
        name: "no watcher",
        bound: None,
        command: None,
    },
    Watcher {
        name: "weir: every request and response, counted per second",
        bound: Some(0.93),
        command: Some(|device| {
            weir(
                device,
                "select type, op, count(*), sum(bytes) from IOstream [range 1 s slide 1 s] \
                          where pdisk = 'DEVICE' group by type, op",
            )
        }),
    },
    Watcher {
        name: "weir: latency quantiles per second",
        bound: None,
        command: Some(|device| {
            weir(
                device,
                "select op, count(*), avg(latency), quantile(latency, 0.99) \
                          from IO [range 1 s slide 1 s] where pdisk = 'DEVICE' group by op",
            )
        }),
    },
    Watcher {
        name: "weir: completions only",
        bound: Some(0.97),
        command: Some(|device| {
            weir(
                device,
                "select count(*), sum(bytes) from IOstream [range 1 s slide 1 s] \
                          where pdisk = 'DEVICE' and type = 'R'",
            )
        }),
    },
    Watcher {
        name: "weir: a filter that keeps 1 %",
        bound: Some(0.97),
        command: Some(|device| {
            weir(
                device,
                "select * from IOstream where pdisk = 'DEVICE' and sector < 5243",
            )
        }),
    },
];

/// What a user would run instead, where it runs: `--peers` measures them too.
const PEERS: &[Watcher] = &[
    Watcher {
        name: "bpftrace: biolatency, on tracepoints",
        bound: None,
        command: Some(|_| with_tracefs("bpftrace", &["-e", BIOLATENCY])),
    },
    Watcher {
        name: "bpftrace: biosnoop, on tracepoints",
        bound: None,
        command: Some(|_| with_tracefs("bpftrace", &["-e", BIOSNOOP])),
    },
    Watcher {
        name: "libbpf-tools: biolatency",
        bound: None,
        command: Some(|_| with_tracefs("/usr/sbin/biolatency", &["1"])),
    },
    Watcher {
        name: "libbpf-tools: biosnoop",
        bound: None,
        command: Some(|_| with_tracefs("/usr/sbin/biosnoop", &[])),
    },
    Watcher {
        name: "bcc: biosnoop",
        bound: None,
        command: Some(|_| with_tracefs("biosnoop-bpfcc", &[])),
    },
    Watcher {
        name: "perf record -e block:*",
        bound: None,
        command: Some(|_| with_tracefs("perf", &PERF_RECORD)),
    },
    Watcher {
        name: "iostat -x 1",
        bound: None,
        command: Some(|_| with_tracefs("iostat", &["-x", "1"])),
    },
    Watcher {
        name: "node_exporter, scraped each second",
        bound: None,
        command: Some(|_| scraped("127.0.0.1:39100")),
    },
];

/// The packages of the peers.
const PEER_PACKAGES: &[&str] = &[
    "bpftrace",
    "libbpf-tools",
    "bpfcc-tools",
    "linux-perf",
    "sysstat",
    "prometheus-node-exporter",
    "curl",
];

const PERF_RECORD: [&str; 9] = [
    "record",
    "-q",
    "-a",
    "-e",
    "block:block_rq_issue",
    "-e",
    "block:block_rq_complete",
    "-o",
    "/dev/null",
];

/// The measurement of biolatency of bpftrace's tools, on tracepoints, so that it runs on kernels
/// without kprobes.
pub const BIOLATENCY: &str = "tracepoint:block:block_rq_issue { @start[args->dev, args->sector] = nsecs; } \
     tracepoint:block:block_rq_complete /@start[args->dev, args->sector]/ { \
     @usecs = hist((nsecs - @start[args->dev, args->sector]) / 1000); delete(@start[args->dev, args->sector]); }";

/// The rows of biosnoop, on tracepoints as well: each finished request as a line.
const BIOSNOOP: &str = "tracepoint:block:block_rq_issue { @start[args->dev, args->sector] = nsecs; } \
     tracepoint:block:block_rq_complete /@start[args->dev, args->sector]/ { \
     printf(\"%llu %d %s %llu %u %llu\\n\", nsecs, args->dev, args->rwbs, args->sector, args->nr_sector * 512, \
     (nsecs - @start[args->dev, args->sector]) / 1000); delete(@start[args->dev, args->sector]); }";

/// A program in a mount namespace of its own with debugfs and tracefs mounted: not every machine
/// has these file systems mounted.
pub fn with_tracefs(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    let script = "mount -t debugfs none /sys/kernel/debug; mount -t tracefs none /sys/kernel/tracing; \
                  ulimit -l unlimited; exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh", program]);
    command.args(args);
    command
}

/// node_exporter at an address, read once a second while it runs.
fn scraped(address: &str) -> Command {
    let mut command = Command::new("sh");
    let script = "while sleep 1 && kill -0 $$; do curl -s -o /dev/null http://$1/metrics; done & \
                  exec prometheus-node-exporter --web.listen-address=$1";
    command.args(["-c", script, "sh", address]);
    command
}

/// The time for a tool to attach before the load starts.
pub const ATTACH: Duration = Duration::from_millis(1500);

/// The binary that was built for the measurement.
pub fn binary() -> Command {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    Command::new(target.join("release/weir"))
}

fn weir(device: &str, query: &str) -> Command {
    let mut command = binary();
    command.args([
        "query",
        "--format",
        "delta",
        &query.replace("DEVICE", device),
    ]);
    command
}

/// Measures and prints the table, with other tools too if they are wanted.
pub fn run(pace: &Pace, with_peers: bool) -> Result<()> {
    println!("\n== the tap: 4 KiB random reads on a loop device in memory, 32 at a time\n");
    if !is_root() || !packages::exists("fio") {
        println!("skipped: needs root, BPF and fio");
        return Ok(());
    }
    let disk = Disk::new()?;
    disk.load(1)?;
    let peers: &[Watcher] = if with_peers { PEERS } else { &[] };
    if with_peers {
        packages::ensure(PEER_PACKAGES)?;
    }
    let watchers: Vec<&Watcher> = WATCHERS.iter().chain(peers).collect();
    let mut measured: Vec<Vec<Turn>> = watchers.iter().map(|_| Vec::new()).collect();
    let mut failed = vec![false; watchers.len()];
    for _ in 0..pace.rounds {
        let each = watchers.iter().zip(&mut measured).zip(&mut failed);
        for ((watcher, turns), failed) in each.filter(|(_, failed)| !**failed) {
            match turn(watcher, &disk, pace.seconds)? {
                Ok(turn) => turns.push(turn),
                Err(message) => {
                    println!("{} does not run here: {message}", watcher.name);
                    *failed = true;
                }
            }
        }
    }
    print(&watchers, &measured);
    println!("\neach mode of the tap, and what telling whose it is adds:\n");
    tap_cost(&["--owners"])?;
    println!("\nprogram time, from the kernel's BPF run statistics, above an empty program:\n");
    tap_cost(&["--owners", "--stats"])?;
    println!("\nthe file of each request, and the levels above it:\n");
    let levels = "run --release --locked --quiet --package weir-tap --example levels_cost --";
    let rounds = pace.rounds.to_string();
    execute(cargo().args(levels.split(' ')).args(["--rounds", &rounds]))?;
    println!("\nfio beside them, beside strace and beside ext4slower:\n");
    execute(
        cargo()
            .args(levels.split(' '))
            .args(["--rounds", &rounds, "--beside"]),
    )
}

fn tap_cost(options: &[&str]) -> Result<()> {
    let run = "run --release --locked --quiet --package weir-tap --example tap_cost --";
    execute(cargo().args(run.split(' ')).args(options))
}

/// One configuration in one round.
struct Turn {
    load: Load,
    /// Processor time of the observing process.
    watcher_ns: f64,
}

/// Loads the disk while a tool observes it; the last message of the tool if it ended early.
fn turn(watcher: &Watcher, disk: &Disk, seconds: u32) -> Result<Result<Turn, String>> {
    let Some(command) = watcher.command else {
        return Ok(Ok(Turn {
            load: disk.load(seconds)?,
            watcher_ns: 0.0,
        }));
    };
    let mut errors = tempfile::tempfile()?;
    let mut child = command(&disk.device)
        .stdout(Stdio::null())
        .stderr(errors.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot start {}", watcher.name))?;
    thread::sleep(ATTACH);
    let before = process_ns(child.id())?;
    let load = disk.load(seconds);
    let after = process_ns(child.id())?;
    if child.try_wait()?.is_some() {
        let mut message = String::new();
        errors.seek(SeekFrom::Start(0))?;
        errors.read_to_string(&mut message)?;
        let last = message.lines().rfind(|line| !line.trim().is_empty());
        return Ok(Err(last.unwrap_or("no error message").to_owned()));
    }
    execute(Command::new("kill").args(["-INT", &child.id().to_string()]))?;
    child.wait()?;
    Ok(Ok(Turn {
        load: load?,
        watcher_ns: after - before,
    }))
}

fn print(watchers: &[&Watcher], measured: &[Vec<Turn>]) {
    println!(
        "{:<54} {:>8} {:>22} {:>9} {:>6}",
        "", "IOPS", "ratio [min..max]", "ns/I/O", "bound"
    );
    let complete = |turns: &&Vec<Turn>| turns.len() == measured[0].len();
    for (watcher, turns) in watchers.iter().zip(measured).filter(|(_, t)| complete(t)) {
        let iops = spread(turns.iter().map(|t| t.load.iops).collect()).1;
        let ratios = turns
            .iter()
            .zip(&measured[0])
            .map(|(t, base)| t.load.iops / base.load.iops);
        let (least, ratio, most) = spread(ratios.collect());
        let cost = spread(
            turns
                .iter()
                .map(|t| t.watcher_ns / t.load.requests)
                .collect(),
        )
        .1;
        let bound = watcher.bound.map_or(String::new(), |b| format!("{b:.2}"));
        println!(
            "{:<54} {iops:>8.0} {ratio:>7.3} [{least:.3}..{most:.3}] {cost:>9.0} {bound:>6}",
            watcher.name
        );
    }
    println!(
        "\nratio: IOPS against no watcher in the same round; ns/I/O: processor time of the watching process"
    );
}
