//! The histograms' part: the cost of all histograms in the kernel for a disk under full load,
//! compared with none, with empty programs and with bpftrace's biolatency.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use super::disk::Disk;
use super::tap::{ATTACH, BIOLATENCY, with_tracefs};
use super::{Pace, spread};
use crate::{cargo, execute, is_root, packages, root};

/// Program time per I/O in excess of empty programs, relative to that of one histogram of powers of
/// two.
const BOUND_FLOOR: f64 = 2.0;

/// IOPS relative to those without any program.
const BOUND_RATIO: f64 = 0.98;

/// The attached programs: a mode of the example `hist_hold`, none, or bpftrace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attached {
    Nothing,
    Held(&'static str),
    Biolatency,
}

const CASES: &[(&str, Attached)] = &[
    ("off", Attached::Nothing),
    ("empty programs", Attached::Held("empty")),
    ("floor: one log2 histogram", Attached::Held("floor")),
    ("histograms without flushes", Attached::Held("rw")),
    ("histograms", Attached::Held("histograms")),
    ("histograms with waits", Attached::Held("waits")),
    ("bpftrace biolatency", Attached::Biolatency),
];

/// One case in one round.
#[derive(Default)]
struct Turn {
    iops: f64,
    requests: f64,
    /// Runs and nanoseconds of each program.
    programs: BTreeMap<String, (f64, f64)>,
    bytes: f64,
}

/// Measures and prints the table.
pub fn run(pace: &Pace) -> Result<()> {
    println!("\n== histograms in the kernel: 4 KiB random reads on a loop device in memory\n");
    if !is_root() || !packages::exists("fio") {
        println!("skipped: needs root, BPF and fio");
        return Ok(());
    }
    let build = "build --release --locked --package weir-tap --example hist_hold";
    execute(cargo().args(build.split(' ')))?;
    let disk = Disk::new()?;
    disk.load(1)?;
    let there = |(_, attached): &&(&str, Attached)| {
        let there = *attached != Attached::Biolatency || packages::exists("bpftrace");
        if !there {
            println!("skipped: bpftrace (not installed)");
        }
        there
    };
    let cases: Vec<&(&str, Attached)> = CASES.iter().filter(there).collect();
    let rates = rounds(&cases, &disk, pace, false)?;
    // The kernel's statistics of each program slow all of them down: rates are measured without
    // them.
    let times = rounds(&cases, &disk, pace, true)?;
    print(&cases, &rates, &times);
    Ok(())
}

fn rounds(
    cases: &[&(&str, Attached)],
    disk: &Disk,
    pace: &Pace,
    with_statistics: bool,
) -> Result<Vec<Vec<Turn>>> {
    let mut turns: Vec<Vec<Turn>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..pace.rounds {
        for ((_, attached), turns) in cases.iter().zip(&mut turns) {
            turns.push(match attached {
                Attached::Nothing => loaded(disk, pace)?,
                Attached::Held(mode) => held(mode, disk, pace, with_statistics)?,
                Attached::Biolatency => under_biolatency(disk, pace)?,
            });
        }
    }
    Ok(turns)
}

fn loaded(disk: &Disk, pace: &Pace) -> Result<Turn> {
    let load = disk.load(pace.seconds)?;
    Ok(Turn {
        iops: load.iops,
        requests: load.requests,
        ..Turn::default()
    })
}

/// Loads the disk while `hist_hold` has its programs attached, and reads its output at the end.
fn held(mode: &str, disk: &Disk, pace: &Pace, with_statistics: bool) -> Result<Turn> {
    let program = root().join("target/release/examples/hist_hold");
    let mut child = Command::new(program)
        .args([disk.device.as_str(), mode])
        .args(with_statistics.then_some("--stats"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start hist_hold")?;
    let mut stdout = BufReader::new(child.stdout.take().context("its output is ours")?);
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    let turn = loaded(disk, pace);
    drop(child.stdin.take());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest)?;
    if !child.wait()?.success() || line.trim() != "attached" {
        bail!("hist_hold failed; run it by hand to see why");
    }
    let mut turn = turn?;
    for line in rest.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["bytes", bytes] => turn.bytes = bytes.parse()?,
            [program, runs, time_ns] => {
                let runs = (runs.parse()?, time_ns.parse()?);
                turn.programs.insert(program.into(), runs);
            }
            _ => bail!("hist_hold printed {line:?}"),
        }
    }
    Ok(turn)
}

fn under_biolatency(disk: &Disk, pace: &Pace) -> Result<Turn> {
    let mut child: Child = with_tracefs("bpftrace", &["-e", BIOLATENCY])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start bpftrace")?;
    thread::sleep(ATTACH);
    let turn = loaded(disk, pace);
    let running = child.try_wait()?.is_none();
    execute(Command::new("kill").args(["-INT", &child.id().to_string()]))?;
    child.wait()?;
    if !running {
        bail!("bpftrace ended before its time; run it by hand to see why");
    }
    turn
}

fn print(cases: &[&(&str, Attached)], rates: &[Vec<Turn>], times: &[Vec<Turn>]) {
    println!(
        "{:<28} {:>8} {:>22} {:>6} {:>20} {:>8} {:>6} {:>6}",
        "", "IOPS", "ratio [min..max]", "bound", "program ns [least]", "x floor", "bound", "MiB"
    );
    // The order of `CASES`: no program first, then empty programs, then the floor.
    let (off, empty) = (&rates[0], &times[1]);
    let least_above =
        |times: &[Turn]| spread(times.iter().map(|t| above_empty(t, empty)).collect());
    let floor = least_above(&times[2]).0;
    for (((name, attached), rates), times) in cases.iter().zip(rates).zip(times) {
        let iops = spread(rates.iter().map(|t| t.iops).collect()).1;
        let ratios = rates
            .iter()
            .zip(off)
            .map(|(turn, off)| turn.iops / off.iops);
        let (least, ratio, most) = spread(ratios.collect());
        let ratio = format!("{ratio:.3} [{least:.3}..{most:.3}]");
        let is_held = matches!(attached, Attached::Held(mode) if *mode != "empty");
        if !is_held {
            println!("{name:<28} {iops:>8.0} {ratio:>22}");
            continue;
        }
        let (least, program, _) = least_above(times);
        let to_floor = least / floor;
        let program = format!("{program:.0} [{least:.0}]");
        let mebibytes = times[0].bytes / f64::from(1 << 20);
        println!(
            "{name:<28} {iops:>8.0} {ratio:>22} {BOUND_RATIO:>6.2} {program:>20} {to_floor:>8.2} {BOUND_FLOOR:>6.1} {mebibytes:>6.0}"
        );
    }
    println!(
        "\nratio: IOPS against no program in the same round; program ns: time in the programs for one I/O, by the \
         kernel's BPF run statistics, above as many empty runs; x floor: the least of it, relative to that of the floor; MiB: all tables, which do not grow"
    );
}

/// Time in the programs for one I/O, less that of as many empty ones.
fn above_empty(turn: &Turn, empty: &[Turn]) -> f64 {
    let per_run = |program: &str| {
        let each = empty.iter().filter_map(|turn| turn.programs.get(program));
        let each = each.filter(|(runs, _)| *runs > 0.0);
        each.map(|(runs, ns)| ns / runs)
            .fold(f64::INFINITY, f64::min)
    };
    let above = turn.programs.iter().map(|(program, (runs, ns))| {
        let empty = per_run(program);
        // Rare programs have no empty counterpart; all of their time counts.
        ns - if empty.is_finite() { runs * empty } else { 0.0 }
    });
    above.sum::<f64>() / turn.requests
}
