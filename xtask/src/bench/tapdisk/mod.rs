//! The tapdisk's part: the cost of our back end's events for a disk, and its speed compared with
//! QEMU's and nbdkit's, at several queue depths, on a file in memory and on a disk.

mod case;
mod medium;
mod turn;

use anyhow::Result;

use super::{Pace, spread};
use crate::{cargo, execute, is_root, packages};
use case::{CASES, Case, Consumer, Front, Operation};
use medium::Medium;
use turn::{Load, Processors, Turn, turn};
use weir_testing::MemoryFolder;

/// Queue depths.
const DEPTHS: [u32; 3] = [1, 16, 64];

/// The requests.
const OPERATIONS: [(Operation, &str); 2] =
    [(Operation::Read, "reads"), (Operation::Write, "writes")];

/// The size of the disk.
const DISK_MIB: u64 = 256;

/// IOPS while every request is sent to a consumer, relative to those without a consumer.
const BOUND_LOGGED: f64 = 0.95;

/// The added processor time of the back end for a request.
const BOUND_LOGGED_NS: f64 = 1000.0;

/// The programs that are measured: examples of the crates, on the same code as `weir tapdisk`.
const BUILD: &str = "build --release --locked --package weir-tapdisk --package weir-tap --package weir-testing \
                     --example serve --example tapdisk_take --example vhost_load";

/// The packages of the peers.
const PACKAGES: &[&str] = &["fio", "nbdkit", "qemu-system-common", "qemu-utils"];

/// Measures and prints the tables.
pub fn run(pace: &Pace) -> Result<()> {
    println!("\n== tapdisk: 4 KiB random requests of a virtual disk, without a guest\n");
    if !is_root() {
        println!("skipped: needs root for a folder in memory");
        return Ok(());
    }
    packages::ensure(PACKAGES)?;
    execute(cargo().args(BUILD.split_whitespace()))?;
    let cases: Vec<&Case> = CASES.iter().filter(|case| is_there(case)).collect();
    let processors = Processors::of_this_machine();
    println!("{}\n", processors.text());
    for make in [Medium::memory, Medium::disk] {
        let medium = make(DISK_MIB)?;
        let serves = |case: &&Case| case.serves(&medium);
        let cases: Vec<&Case> = cases.iter().copied().filter(serves).collect();
        for (operation, name) in OPERATIONS {
            let has = |case: &&Case| case.has(operation);
            let cases: Vec<&Case> = cases.iter().copied().filter(has).collect();
            for depth in DEPTHS {
                let load = Load {
                    operation,
                    depth,
                    seconds: pace.seconds,
                };
                let turns = rounds(&cases, &medium, load, processors, pace.rounds)?;
                println!("{}, {name}, queue depth {depth}\n", medium.name);
                for front in [Front::Vhost, Front::Nbd] {
                    print(&cases, &turns, front);
                }
            }
        }
    }
    println!(
        "ratio: IOPS against the first line of the table in the same round, [least..most]; CPU ns: processor time for one \
         request, of the back end and of the program that listens to it; lost: events for one request that the listener did not get"
    );
    Ok(())
}

fn is_there(case: &Case) -> bool {
    if let Some(program) = case.missing() {
        println!("skipped: {} ({program} is not installed)", case.name);
    }
    case.missing().is_none()
}

/// By case, its result in each round.
fn rounds(
    cases: &[&Case],
    medium: &Medium,
    load: Load,
    processors: Processors,
    rounds: usize,
) -> Result<Vec<Vec<Turn>>> {
    let folder = MemoryFolder::new(1)?;
    let mut turns: Vec<Vec<Turn>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (case, turns) in cases.iter().zip(&mut turns) {
            turns.push(turn(case, medium, load, processors, folder.path())?);
        }
    }
    Ok(turns)
}

fn print(cases: &[&Case], turns: &[Vec<Turn>], front: Front) {
    let rows: Vec<(&Case, &Vec<Turn>)> = cases
        .iter()
        .copied()
        .zip(turns)
        .filter(|(case, _)| case.front == front)
        .collect();
    let Some((_, base)) = rows.first() else {
        return;
    };
    println!(
        "{:<32} {:>8} {:>19} {:>8} {:>8} {:>8} {:>8} {:>6}",
        match front {
            Front::Vhost => "vhost-user-blk",
            Front::Nbd => "NBD",
        },
        "IOPS",
        "ratio",
        "p50 us",
        "p99 us",
        "CPU ns",
        "listener",
        "lost"
    );
    for (case, turns) in &rows {
        println!("{}", row(case, turns, base));
    }
    println!("{}", verdict(&rows));
}

fn row(case: &Case, turns: &[Turn], base: &[Turn]) -> String {
    let median = |of: fn(&Turn) -> f64| spread(turns.iter().map(of).collect()).1;
    let (least, ratio, most) = spread(ratios(turns, base));
    format!(
        "{:<32} {:>8.0} {ratio:>7.3} [{least:.2}..{most:.2}] {:>8.1} {:>8.1} {:>8.0} {:>8.0} {:>6.3}",
        case.name,
        median(|t| t.iops),
        median(|t| t.p50_ns) / 1e3,
        median(|t| t.p99_ns) / 1e3,
        median(|t| t.back_end_ns),
        median(|t| t.listener_ns),
        median(|t| t.lost),
    )
}

/// IOPS of each round, relative to those of another case in the same round.
fn ratios(turns: &[Turn], base: &[Turn]) -> Vec<f64> {
    turns
        .iter()
        .zip(base)
        .map(|(turn, base)| turn.iops / base.iops)
        .collect()
}

/// The figures that have bounds.
fn verdict(rows: &[(&Case, &Vec<Turn>)]) -> String {
    let ours = |consumer| {
        rows.iter()
            .find(|(case, _)| case.is_ours() && case.consumer == consumer)
    };
    let Some((_, silent)) = ours(Consumer::None) else {
        return String::new();
    };
    let mut text = String::new();
    for (consumer, name) in [
        (Consumer::Everything, "all requests sent"),
        (Consumer::Groups, "groups"),
    ] {
        let Some((_, consumed)) = ours(consumer) else {
            continue;
        };
        let logged = spread(ratios(consumed, silent)).1;
        let added = consumed
            .iter()
            .zip(*silent)
            .map(|(consumed, silent)| consumed.back_end_ns - silent.back_end_ns);
        let added_ns = spread(added.collect()).1;
        text += &format!(
            "{name} / no consumer: {logged:.3} of the IOPS (bound {BOUND_LOGGED}), {added_ns:+.0} ns (bound {BOUND_LOGGED_NS:.0})\n"
        );
    }
    for (case, turns) in rows.iter().filter(|(case, _)| !case.is_ours()) {
        let (least, ratio, most) = spread(ratios(silent, turns));
        text += &format!(
            "weir/{}: {ratio:.2} [{least:.2}..{most:.2}] (goal 1.00)\n",
            case.name
        );
    }
    text
}
