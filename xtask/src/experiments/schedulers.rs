//! `cargo xtask experiments schedulers`: all pairs of I/O schedulers of host and guest, as in the
//! paper of R. H. Bele, with repetitions, a control and intervals; writes docs/schedulers.md.
//!
//! Bele measured each pair once. Here each round measures all pairs in random order and the first
//! one twice. The changes of a round are relative to both measurements of the first pair in the
//! same round. Whether a pair differs is decided by the largest studentised change of all pairs,
//! compared with those for all signs of the rounds (Westfall and Young, Resampling-Based Multiple
//! Testing, 1993): exact for any number of pairs, without an assumption on the distribution.

use std::fmt::Write;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use weir_testing::{DiskLoad, Guest, GuestDisk, Kit, LoopDisk, Scratch, ThrottledDisk};

use super::database::Database;
use crate::{is_root, number, root};

/// The schedulers of both sides; the first pair is what the others are compared with.
const SCHEDULERS: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];

/// The reads per second of the host's disk, and the writes, few enough for the emulated guest not
/// to be the bottleneck.
const DISK_IOPS: u32 = 300;

/// The size of the disk, and of its first part, which the patterns use without a file system. The
/// database has the other one.
const DISK_MIB: u64 = 768;
const PATTERNS_MIB: u64 = 256;

/// The largest number of rounds for which all signs are tried.
const ROUNDS_MAX: usize = 14;

/// The time for which a load may run.
const LOAD_WITHIN: Duration = Duration::from_secs(120);

const USAGE: &str = "usage: cargo xtask experiments schedulers [--runs 5..14] [--out FILE]";

/// Loads that run in the guest at the same time.
struct Pattern {
    name: &'static str,
    loads: fn() -> Vec<DiskLoad>,
}

const DISK: &str = "/dev/vda";

/// What is measured with each pair.
const PATTERNS: [Pattern; 3] = [
    Pattern {
        name: "random reads of 4 KiB, 8 in flight",
        loads: || {
            vec![DiskLoad {
                count: 600,
                depth: 8,
                span: 128 << 20,
                ..DiskLoad::on(DISK)
            }]
        },
    },
    Pattern {
        name: "sequential reads of 64 KiB beside random writes of 4 KiB, 4 in flight",
        loads: || {
            let reads = DiskLoad {
                count: 300,
                bytes: 64 << 10,
                sequential: true,
                span: 64 << 20,
                ..DiskLoad::on(DISK)
            };
            let writes = DiskLoad {
                count: 400,
                depth: 4,
                read: 0,
                write: 100,
                start: 128 << 20,
                span: 64 << 20,
                ..DiskLoad::on(DISK)
            };
            vec![reads, writes]
        },
    },
    Pattern {
        name: "a database: random reads and writes of 8 KiB, and a log with an fsync for each write",
        loads: || {
            let pages = DiskLoad {
                count: 400,
                bytes: 8 << 10,
                depth: 4,
                read: 70,
                write: 30,
                span: 128 << 20,
                ..DiskLoad::on(DISK)
            };
            let log = DiskLoad {
                count: 100,
                bytes: 8 << 10,
                read: 0,
                write: 100,
                sequential: true,
                fsync: 1,
                start: 192 << 20,
                span: 32 << 20,
                ..DiskLoad::on(DISK)
            };
            vec![pages, log]
        },
    },
];

/// The name of the transactions, and what is counted.
const DATABASE: (&str, &str) = (
    "PostgreSQL: transactions of pgbench, four of five only read, 8 clients",
    "transactions",
);

/// Runs the experiment.
///
/// # Errors
/// When the guest or the disk cannot be created, or a load fails.
pub fn run(args: &[String]) -> Result<()> {
    let mut rounds = 8;
    let mut out = root().join("docs/schedulers.md");
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match (arg.as_str(), rest.next()) {
            ("--runs", value) => rounds = number::<usize>(arg, value)?,
            ("--out", Some(path)) => out = path.into(),
            _ => bail!("unexpected {arg}; {USAGE}"),
        }
    }
    if !(5..=ROUNDS_MAX).contains(&rounds) {
        bail!("--runs {rounds}: {USAGE}");
    }
    if !is_root() {
        bail!("requires root: it creates a loop device");
    }
    let kit = Kit::find()?;
    let disk = ThrottledDisk::new(DISK_MIB, DISK_IOPS)?;
    let (start, bytes) = (PATTERNS_MIB << 20, (DISK_MIB - PATTERNS_MIB) << 20);
    let folder = Scratch::new();
    let database = Database::new(&folder)?;
    let disks = [GuestDisk::new("disk0", disk.path()), database.disk()];
    let args = disks.iter().flat_map(GuestDisk::args);
    let mut guest = Guest::start(&kit, "schedulers", &args.collect::<Vec<_>>())?;
    disk.limit(guest.pid())?;
    guest.ready()?;
    load_schedulers(&mut guest)?;
    eprintln!("pgbench creates its tables");
    database.start(&mut guest, start, bytes)?;
    let measured = measure(&disk, &mut guest, &database, rounds)?;
    let text = page(&measured, rounds);
    fs::write(&out, text).with_context(|| out.display().to_string())?;
    println!("written: {}", out.display());
    Ok(())
}

/// Loads the guest's schedulers that are modules.
fn load_schedulers(guest: &mut Guest) -> Result<()> {
    for module in ["mq_deadline", "kyber_iosched", "bfq"] {
        // One that is a part of the kernel is no module.
        guest.run(&format!("load_module {module} || true"))?;
    }
    let offered = guest.run("cat /sys/block/vda/queue/scheduler")?;
    match SCHEDULERS.iter().find(|name| !offered.contains(**name)) {
        Some(name) => bail!("the guest does not offer scheduler {name}, only {offered}"),
        None => Ok(()),
    }
}

/// The logarithms of the rates of a pattern, by configuration and round. The configurations are the
/// pairs (host, guest) in the order of [`SCHEDULERS`], and the first pair again as the control.
type Rates = Vec<Vec<f64>>;

const PAIRS: usize = SCHEDULERS.len() * SCHEDULERS.len();

/// The rates of each pattern, and of the transactions.
fn measure(
    disk: &LoopDisk,
    guest: &mut Guest,
    database: &Database,
    rounds: usize,
) -> Result<Vec<Rates>> {
    let mut rates = vec![vec![Vec::new(); PAIRS + 1]; PATTERNS.len() + 1];
    let mut random = Shuffle(1);
    for round in 1..=rounds {
        for configuration in random.order(PAIRS + 1) {
            let pair = configuration % PAIRS;
            let (host, in_guest) = (SCHEDULERS[pair / 4], SCHEDULERS[pair % 4]);
            disk.set("scheduler", host)?;
            guest.run(&format!("echo {in_guest} > /sys/block/vda/queue/scheduler"))?;
            let mut printed = String::new();
            for (pattern, rates) in PATTERNS.iter().zip(&mut rates) {
                let loads = (pattern.loads)();
                let requests: u64 = loads.iter().map(|load| load.count).sum();
                let started = Instant::now();
                guest.load(&loads)?;
                let seconds = started.elapsed().as_secs_f64();
                if seconds > LOAD_WITHIN.as_secs_f64() {
                    bail!("{}: {seconds:.0} s", pattern.name);
                }
                let rate = requests as f64 / seconds;
                rates[configuration].push(rate.ln());
                let _ = write!(printed, " {rate:.0}");
            }
            let rate = database.transactions(guest)?;
            rates[PATTERNS.len()][configuration].push(rate.ln());
            eprintln!(
                "round {round} of {rounds}: ({host}, {in_guest}):{printed} requests/s, {rate:.0} \
                 transactions/s"
            );
        }
    }
    Ok(rates)
}

/// An order that depends on nothing but the number of orders before.
struct Shuffle(u64);

impl Shuffle {
    /// The next number (Marsaglia's xorshift64).
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The numbers below `count`, shuffled (Fisher and Yates).
    fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
        order
    }
}

/// A change against the first pair, as a logarithm.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Change {
    mean: f64,
    /// Half the width of the interval; the intervals of all pairs hold together with 95 %.
    half_width: f64,
}

impl Change {
    fn differs(self) -> bool {
        self.mean.abs() > self.half_width
    }
}

/// The changes of all pairs but the first, and of the control against the first pair.
fn changes(rates: &Rates) -> (Vec<Change>, Change) {
    let rounds = rates[0].len();
    let present = |round: usize| (rates[0][round] + rates[PAIRS][round]) / 2.0;
    let of_pair = |pair: &Vec<f64>| -> Vec<f64> {
        (0..rounds)
            .map(|round| pair[round] - present(round))
            .collect()
    };
    let differences: Vec<Vec<f64>> = rates[1..PAIRS].iter().map(of_pair).collect();
    let control = rates[PAIRS].iter().zip(&rates[0]).map(|(a, b)| a - b);
    let control = [control.collect::<Vec<f64>>()];
    let critical = critical(&differences);
    let with = |critical: f64| {
        move |values: &Vec<f64>| {
            let (mean, error) = mean_and_error(values, 0);
            let half_width = critical * error;
            Change { mean, half_width }
        }
    };
    let all = differences.iter().map(with(critical)).collect();
    (all, with(self::critical(&control))(&control[0]))
}

/// The largest studentised mean that equal pairs have in at most 5 % of all signs of the rounds.
fn critical(differences: &[Vec<f64>]) -> f64 {
    let rounds = differences[0].len();
    let signs = 0_u32..1 << rounds;
    let largest = signs.map(|signs| {
        let studentised = differences.iter().map(|values| {
            let (mean, error) = mean_and_error(values, signs);
            if error > 0.0 {
                (mean / error).abs()
            } else {
                0.0
            }
        });
        studentised.fold(0.0, f64::max)
    });
    let mut largest: Vec<f64> = largest.collect();
    largest.sort_by(f64::total_cmp);
    largest[(0.95 * largest.len() as f64).ceil() as usize - 1]
}

/// The mean and its standard error, with the signs of the rounds whose bits are set reversed.
fn mean_and_error(values: &[f64], signs: u32) -> (f64, f64) {
    let count = values.len() as f64;
    let signed = || {
        let numbered = values.iter().enumerate();
        numbered.map(|(round, value)| {
            if signs >> round & 1 == 1 {
                -value
            } else {
                *value
            }
        })
    };
    let mean = signed().sum::<f64>() / count;
    let squares: f64 = signed().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0) / count).sqrt())
}

const BEGINNING: &str = "# All pairs of schedulers of host and guest

<!-- Written by `cargo xtask experiments schedulers`; do not edit. -->

R. H. Bele (*Optimization of Disk I/O Performance in Xen Virtualization*) measured PostgreSQL in a
guest under Xen with each pair of the schedulers cfq, noop and deadline in host and guest, each pair
once, and found \"big difference\": 123 to 489 kB/s read by the host for the same queries, with
(deadline, deadline) the best pair. Of the schedulers of today's kernels, mq-deadline continues
deadline, none is what noop was, and bfq is a successor of cfq; kyber is new.

`cargo xtask experiments schedulers` measures all 16 pairs in rounds of random order, with the pair
(none, none) twice in each as the control. The guest (Linux 6.1, emulated) has one disk, which is a
loop device of the host on storage that completes ";

/// The page.
fn page(measured: &[Rates], rounds: usize) -> String {
    let mut text = BEGINNING.to_owned();
    let _ = writeln!(
        text,
        "{DISK_IOPS} reads and {DISK_IOPS} writes\nper second, wherever they are. {rounds} rounds. Changes are those \
         of the rate against (none, none)\nof the same round, with intervals that hold together for all \
         pairs of a table with 95 %. Changes\nin bold differ from 0."
    );
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown");
    let _ = writeln!(
        text,
        "\nThe host had {processors} processors, and a load average of {load} at the end: above \
         the number of\nprocessors, other programs disturbed the measurement."
    );
    let (mut compared, mut differing, mut widest) = (0, 0, 0.0_f64);
    let requests = PATTERNS.iter().map(|pattern| (pattern.name, "requests"));
    for ((name, unit), rates) in requests.chain([DATABASE]).zip(measured) {
        let (all, control) = changes(rates);
        compared += all.len();
        differing += all.iter().filter(|change| change.differs()).count();
        widest = all
            .iter()
            .map(|change| change.mean.abs())
            .fold(widest, f64::max);
        let _ = writeln!(text, "\n## {}{}\n", name[..1].to_uppercase(), &name[1..]);
        let mean = rates[0].iter().sum::<f64>() / rounds as f64;
        let _ = writeln!(
            text,
            "(none, none): {:.0} {unit} per second; the control: {}.\n",
            mean.exp(),
            shown(control)
        );
        table(&all, &mut text);
    }
    let _ = writeln!(
        text,
        "\n## What holds\n\nOf {compared} comparisons, {differing} differ from (none, none); the \
         largest change is {:.1} %. A single run of each\npair, as in the paper, shows differences \
         between all of them, as it does between the control and\n(none, none). That one scheduler \
         is the best in general is not shown here. The paper's disk had a\nhead to move, for which \
         the order of requests matters; here it does not.\n\nNot measured: latencies, \
         and a rotating disk.",
        100.0 * widest.exp_m1()
    );
    text
}

/// The rows are the host's schedulers, the columns those of the guest.
fn table(all: &[Change], text: &mut String) {
    let _ = writeln!(text, "| host \\ guest | {} |", SCHEDULERS.join(" | "));
    let _ = writeln!(text, "| --- | --- | --- | --- | --- |");
    for (row, host) in SCHEDULERS.iter().enumerate() {
        let cells = (0..SCHEDULERS.len()).map(|column| match row * SCHEDULERS.len() + column {
            0 => "-".to_owned(),
            pair => shown(all[pair - 1]),
        });
        let _ = writeln!(
            text,
            "| {host} | {} |",
            cells.collect::<Vec<_>>().join(" | ")
        );
    }
}

fn shown(change: Change) -> String {
    let percent = |value: f64| 100.0 * value.exp_m1();
    let (low, high) = (
        change.mean - change.half_width,
        change.mean + change.half_width,
    );
    let mark = if change.differs() { "**" } else { "" };
    format!(
        "{mark}{:+.1} %{mark} ({:+.1} .. {:+.1})",
        percent(change.mean),
        percent(low),
        percent(high)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates of `rounds` rounds with noise that all pairs of a round share and noise of their own.
    fn rates(random: &mut Shuffle, rounds: usize, planted: f64) -> Rates {
        let mut noise = || {
            // The sum of twelve uniform numbers is nearly normal, with variance 1.
            let sum: u64 = (0..12).map(|_| random.next() % 1_000).sum();
            sum as f64 / 1_000.0 - 6.0
        };
        let shared: Vec<f64> = (0..rounds).map(|_| noise()).collect();
        let configuration = |number: usize| -> Vec<f64> {
            let plus = if number == 5 { planted } else { 0.0 };
            shared
                .iter()
                .map(|shared| 7.0 + shared + plus + 0.05 * noise())
                .collect()
        };
        (0..=PAIRS).map(configuration).collect()
    }

    #[test]
    fn equal_pairs_rarely_differ_and_a_planted_change_is_found() {
        let mut random = Shuffle(7);
        let (mut wrong, mut found, mut covered) = (0, 0, 0);
        for _ in 0..40 {
            let (all, _) = changes(&rates(&mut random, 8, 0.0));
            wrong += usize::from(all.iter().any(|change| change.differs()));
            let (all, _) = changes(&rates(&mut random, 8, 0.3));
            found += usize::from(all[4].differs());
            covered += usize::from((all[4].mean - 0.3).abs() <= all[4].half_width);
        }
        // 5 % of 40 are 2; more than 6 have a probability below 1 %.
        assert!(wrong <= 6, "{wrong}");
        assert!(found >= 38 && covered >= 34, "{found} {covered}");
    }

    #[test]
    fn an_order_has_each_number_once() {
        let mut random = Shuffle(1);
        let (first, second) = (random.order(17), random.order(17));
        assert_ne!(first, second);
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..17).collect::<Vec<_>>());
    }
}
