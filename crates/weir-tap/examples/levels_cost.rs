//! The run time of the kernel programs per request that find the file of a request, compared with
//! those of the block tap: columns `file` and `inode` of `IO`, and stream `IOpath`.
//!
//! `cargo run --release -p weir-tap --example levels_cost -- [--rounds N] [--programs]`
//!
//! fio writes 4 KiB blocks to ext4 on a loop device in memory, one at a time: with `pwrite` and
//! `O_DIRECT`, with io_uring, and through the page cache. The kernel counts the time of each
//! program (30 to 50 ns of each run are its own measurement); figures are the least of the rounds,
//! in ns per request of the device, since other work delays some runs. `--programs` prints each
//! program.
//!
//! `--beside` prints the requests per second of fio in each mode instead, without the statistics,
//! and those below strace and beside ext4slower of bcc, which reports slow requests of files: the
//! medians of the rounds, in alternation.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use libbpf_rs::query::ProgInfoIter;
use weir_model::{Demand, Predicate};
use weir_tap::Tap;
use weir_tap::ebpf::cost::Statistics;
use weir_tap::ebpf::{DeviceChoice, LiveOptions};
use weir_tap::live::LiveTap;
use weir_testing::LoopDisk;

/// A query: its stream and the columns that it reads.
type Mode = (&'static str, &'static str, &'static [&'static str]);

const BASELINE: &str = "IO, latency";

const MODES: &[Mode] = &[
    (BASELINE, "IO", &["op", "bytes", "latency"]),
    ("IO, inode", "IO", &["op", "bytes", "latency", "inode"]),
    (
        "IO, file",
        "IO",
        &["op", "bytes", "latency", "inode", "file"],
    ),
    ("IOpath, path", "IOpath", &["op", "bytes", "inode", "path"]),
    (
        "IOpath, block levels",
        "IOpath",
        &["op", "bytes", "path", "offset", "block_wait", "device"],
    ),
    (
        "IOpath, all levels",
        "IOpath",
        &[
            "op",
            "bytes",
            "path",
            "offset",
            "app_wait",
            "file",
            "block_wait",
            "device",
            "completion",
        ],
    ),
];

const LOADS: &[(&str, &str)] = &[
    (
        "pwrite",
        "--ioengine=psync --direct=1 --rw=randwrite --number_ios=8000",
    ),
    (
        "io_uring",
        "--ioengine=io_uring --direct=1 --rw=randwrite --number_ios=8000",
    ),
    (
        "buffered",
        "--ioengine=psync --rw=randwrite --fsync=64 --number_ios=8000",
    ),
];

/// The bound on the time above that of [`BASELINE`], in ns.
const BOUND_NS: f64 = 300.0;

/// Runs and nanoseconds of each program of this process.
type Programs = BTreeMap<String, [f64; 2]>;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| args.iter().position(|arg| arg == name).map(|at| at + 1);
    let rounds = after("--rounds").and_then(|at| args.get(at)?.parse().ok());
    let rounds: usize = rounds.unwrap_or(3);
    let disk = LoopDisk::new(320).expect("a loop device; needs root");
    let folder = disk.file_system().expect("ext4 on it");
    let folder = folder.to_str().expect("the name of a folder is text");
    let file = format!("--directory={folder} --filename=load --size=64m --bs=4k");
    fio(&format!(
        "{file} --name=layout --rw=write --bs=1m --direct=1"
    ));
    if args.iter().any(|arg| arg == "--beside") {
        return print_rates(&disk, &file, rounds);
    }
    let _statistics = Statistics::enable().expect("the kernel counts run times; needs root");
    let mut least: BTreeMap<(usize, usize), Programs> = BTreeMap::new();
    for _ in 0..rounds {
        for (at, mode) in MODES.iter().enumerate() {
            for (load, (_, options)) in LOADS.iter().enumerate() {
                let measured = measure(mode, &disk, &format!("{file} --name=load {options}"));
                let known = least.entry((at, load)).or_insert_with(|| measured.clone());
                if total(&measured) < total(known) {
                    *known = measured;
                }
            }
        }
    }
    print_table(&least);
    if args.iter().any(|arg| arg == "--programs") {
        print_programs(&least);
    }
}

fn total(programs: &Programs) -> f64 {
    programs.values().map(|[_, ns]| ns).sum()
}

fn print_table(least: &BTreeMap<(usize, usize), Programs>) {
    println!("programs, ns per request of the device; in brackets above `{BASELINE}`, whose");
    println!("bound for the file is {BOUND_NS:.0}");
    print!("{:<22}", "");
    LOADS.iter().for_each(|(load, _)| print!("{load:>18}"));
    println!();
    for (at, (mode, ..)) in MODES.iter().enumerate() {
        print!("{mode:<22}");
        for load in 0..LOADS.len() {
            let ns = total(&least[&(at, load)]);
            let above = ns - total(&least[&(0, load)]);
            print!("{:>18}", format!("{ns:.0} ({above:+.0})"));
        }
        println!();
    }
}

fn print_programs(least: &BTreeMap<(usize, usize), Programs>) {
    for ((at, load), programs) in least {
        println!(
            "\n{}, {}: runs per request, ns per run",
            MODES[*at].0, LOADS[*load].0
        );
        for (name, [runs, ns]) in programs.iter().filter(|(_, [runs, _])| *runs > 0.005) {
            println!("  {name:<22}{runs:>6.2}{:>8.0}", ns / runs);
        }
    }
}

/// What observes a load in [`print_rates`].
enum Observer {
    Nothing,
    Weir(&'static Mode),
    /// fio runs below it.
    Strace,
    /// A program that runs meanwhile, by its names in distributions.
    Ext4Slower,
}

const EXT4_SLOWER: [&str; 2] = ["ext4slower", "ext4slower-bpfcc"];

/// How long another program may take until it observes.
const START: Duration = Duration::from_secs(3);

/// Prints fio's requests per second below each observer, and relative to none.
fn print_rates(disk: &LoopDisk, file: &str, rounds: usize) {
    let weir = MODES.iter().map(|mode| (mode.0, Observer::Weir(mode)));
    let mut observers = vec![("nothing", Observer::Nothing)];
    observers.extend(weir);
    observers.push(("strace", Observer::Strace));
    observers.push(("ext4slower", Observer::Ext4Slower));
    let mut rates = vec![vec![Vec::new(); LOADS.len()]; observers.len()];
    for _ in 0..rounds {
        for (at, (name, observer)) in observers.iter().enumerate() {
            for (load, (_, options)) in LOADS.iter().enumerate() {
                let load_options = format!("{file} --name=load {options}");
                match rate(observer, disk, &load_options) {
                    Ok(rate) => rates[at][load].push(rate),
                    Err(why) => eprintln!("{name}: {why}"),
                }
            }
        }
    }
    println!("requests per second of fio; in brackets relative to those with nothing attached");
    print!("{:<22}", "");
    LOADS.iter().for_each(|(load, _)| print!("{load:>18}"));
    println!();
    let median = |rates: &[f64]| -> Option<f64> {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    };
    for ((name, _), own) in observers.iter().zip(&rates) {
        print!("{name:<22}");
        for (own, nothing) in own.iter().zip(&rates[0]) {
            let text = match (median(own), median(nothing)) {
                (Some(own), Some(nothing)) => format!("{own:.0} ({:.2})", own / nothing),
                _ => "-".to_owned(),
            };
            print!("{text:>18}");
        }
        println!();
    }
}

/// The requests per second of a load.
fn rate(observer: &Observer, disk: &LoopDisk, load: &str) -> Result<f64, String> {
    let args = format!("{load} --output-format=json");
    let report = match observer {
        Observer::Nothing => fio(&args),
        Observer::Weir(mode) => {
            let mut tap = open(mode, disk);
            let report = fio(&args);
            tap.next(Duration::ZERO).expect("a live tap goes on");
            report
        }
        Observer::Strace => output(
            Command::new("strace")
                .args(["-f", "-qq", "-o", "/dev/null", "fio"])
                .args(args.split_whitespace()),
        ),
        Observer::Ext4Slower => {
            let mut other = start(&EXT4_SLOWER)?;
            let report = fio(&args);
            let _ = other.kill();
            let _ = other.wait();
            report
        }
    };
    let report: serde_json::Value = serde_json::from_str(&report).map_err(|e| e.to_string())?;
    let write = &report["jobs"][0]["write"]["iops"];
    write
        .as_f64()
        .ok_or_else(|| format!("fio reports no rate: {report}"))
}

/// Starts a program, by the first of its names that exists, and waits until it observes.
fn start(names: &[&str]) -> Result<Child, String> {
    let mut command = names.iter().filter_map(|name| {
        let mut command = Command::new(name);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        quiet.stderr(Stdio::piped()).spawn().ok()
    });
    let mut child = command.next().ok_or("it is not installed")?;
    thread::sleep(START);
    match child.try_wait().map_err(|e| e.to_string())? {
        None => Ok(child),
        Some(_) => {
            let output = child.wait_with_output().map_err(|e| e.to_string())?;
            let message = String::from_utf8_lossy(&output.stderr);
            let last = message.lines().last().unwrap_or("without a message");
            Err(format!("it ended: {last}"))
        }
    }
}

/// The tap of a mode on a device.
fn open((_, stream, columns): &Mode, disk: &LoopDisk) -> Box<dyn Tap> {
    let tap = LiveTap::of(stream).expect("a tap has the stream");
    let capabilities = (tap.capabilities)();
    let mut streams = capabilities.streams.iter();
    let declared = streams.find(|s| s.declaration.name == *stream);
    let schema = &declared
        .expect("a tap declares its streams")
        .declaration
        .schema;
    let demand = Demand {
        stream: (*stream).into(),
        columns: columns.iter().map(|name| schema.index(name)).collect(),
        predicate: Predicate::all(),
        fold: None,
    };
    let options = LiveOptions {
        devices: DeviceChoice::Named(vec![disk.path().into()]),
        ..LiveOptions::default()
    };
    (tap.open)(&[demand], &options).unwrap_or_else(|e| panic!("{e}"))
}

/// The programs' time for each request of a load.
fn measure(mode: &Mode, disk: &LoopDisk, load: &str) -> Programs {
    let mut tap = open(mode, disk);
    let (requests, before) = (requests(disk), own_programs());
    fio(load);
    let after = own_programs();
    let requests = self::requests(disk) - requests;
    // The rings are empty for the next one.
    tap.next(Duration::ZERO).expect("a live tap goes on");
    let rate = |(name, [runs, ns]): (&String, &[f64; 2])| {
        let [runs_before, ns_before] = before.get(name).copied().unwrap_or_default();
        let rates = [(runs - runs_before) / requests, (ns - ns_before) / requests];
        (name.clone(), rates)
    };
    after.iter().map(rate).collect()
}

/// Finished reads and writes.
fn requests(disk: &LoopDisk) -> f64 {
    let stat = fs::read_to_string(disk.sysfs().join("stat")).expect("a device has counts");
    let counts: Vec<f64> = stat.split_whitespace().flat_map(str::parse).collect();
    counts[0] + counts[4]
}

/// The statistics of the programs that this process holds, by name.
fn own_programs() -> Programs {
    let names: BTreeMap<u32, String> = ProgInfoIter::default()
        .map(|info| (info.id, info.name.to_string_lossy().into_owned()))
        .collect();
    let mut programs = Programs::new();
    for entry in fs::read_dir("/proc/self/fdinfo")
        .expect("proc is mounted")
        .flatten()
    {
        let Ok(text) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let value = |key: &str| -> Option<f64> {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line?.trim_start_matches(':').trim().parse().ok()
        };
        if let (Some(id), Some(ns), Some(runs)) =
            (value("prog_id"), value("run_time_ns"), value("run_cnt"))
            && let Some(name) = names.get(&(id as u32))
        {
            programs.insert(name.clone(), [runs, ns]);
        }
    }
    programs
}

fn fio(options: &str) -> String {
    output(Command::new("fio").args(options.split_whitespace()))
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("fio and strace are installed");
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {problem}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
