//! What administrators leave running, with a disk at a given rate of requests: its processor time.

use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result};

use super::disk::Disk;
use super::tap::{ATTACH, binary};
use super::{Pace, spread};
use crate::time_used::process_ns;
use crate::{execute, is_root, packages};

/// What stands for a new directory in [`COMMANDS`].
const DIRECTORY: &str = "DIRECTORY";

/// The commands, with an interval of a second if they have one.
const COMMANDS: [&[&str]; 5] = [
    &["top", "--batch"],
    &["iostat", "1"],
    &["iostat", "-x", "1"],
    &["diskstats", "--every", "1s", DIRECTORY],
    &["exporter", "--listen", "127.0.0.1:0"],
];

/// Requests per second; the last is the maximum of the disk.
const RATES_IOPS: [Option<u32>; 4] = [Some(1_000), Some(20_000), Some(50_000), None];

/// The bound at an interval of a second, in percent of a processor.
const BOUND_PERCENT: f64 = 1.0;

/// Measures and prints the table.
pub fn run(pace: &Pace) -> Result<()> {
    println!("\n== what is left running, beside 4 KiB random reads on a loop device in memory\n");
    if !is_root() || !packages::exists("fio") {
        println!("skipped: needs root, BPF and fio");
        return Ok(());
    }
    let disk = Disk::new()?;
    println!(
        "{:>10} {:>32} {:>8} {:>6}",
        "IOPS", "% of a processor [min..max]", "ns/I/O", "bound"
    );
    for command in COMMANDS {
        println!("weir {}", command.join(" "));
        for rate in RATES_IOPS {
            let turn = |_| turn(&disk, command, pace.seconds.max(5), rate);
            let rounds = (0..pace.rounds).map(turn).collect::<Result<Vec<Turn>>>()?;
            let iops = spread(rounds.iter().map(|t| t.iops).collect()).1;
            let (least, percent, most) = spread(rounds.iter().map(|t| t.percent).collect());
            println!(
                "{iops:>10.0} {percent:>17.2} [{least:.2}..{most:.2}] {:>10.0} {BOUND_PERCENT:>6.1}",
                percent / 100.0 * 1e9 / iops
            );
        }
    }
    println!("\nprocessor time of the whole process, user and system, while the load runs");
    Ok(())
}

struct Turn {
    iops: f64,
    percent: f64,
}

fn turn(disk: &Disk, command: &[&str], seconds: u32, rate_iops: Option<u32>) -> Result<Turn> {
    let scratch = tempfile::tempdir()?;
    let directory = scratch.path().join("counters");
    let word = |word: &&str| match *word {
        DIRECTORY => directory.as_os_str().to_owned(),
        word => word.into(),
    };
    let mut child = binary()
        .args(command.iter().map(word))
        .args(["--device", &disk.device])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start weir")?;
    thread::sleep(ATTACH);
    let before = process_ns(child.id())?;
    let load = disk.load_at(seconds, rate_iops);
    let after = process_ns(child.id())?;
    if child.try_wait()?.is_some() {
        anyhow::bail!(
            "weir {} ended before its time; run it by hand to see why",
            command.join(" ")
        );
    }
    execute(Command::new("kill").args(["-INT", &child.id().to_string()]))?;
    child.wait()?;
    Ok(Turn {
        iops: load?.iops,
        percent: (after - before) / 1e7 / f64::from(seconds),
    })
}
