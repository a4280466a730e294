//! The cost of the live tap per I/O, in each of its modes, compared with no probe, with empty
//! programs, and with a floor: two small programs that write 64 bytes for each request and
//! response, and a consumer that copies them.
//!
//! `cargo run --release -p weir-tap --example tap_cost -- [--rounds N] [--seconds S]
//! [--modes a,b] [--stats] [--owners]`
//!
//! fio generates load on a loop device in memory (4 KiB random reads, one in a hundred 8 KiB, 32 at
//! a time). The modes alternate, so that interference affects all of them equally; rates are
//! medians, costs the minimum of the rounds. `--stats` measures the run time of the programs in the
//! kernel instead, which slows them down: the rates of such a run are not meaningful; only those of
//! runs without it are comparable. `--owners` adds to each mode its cost with the columns vm, vdisk
//! and vsector, on a host of 50 VMs with two disks each that consist of 1,000 pieces; the load is
//! that of one of them.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_model::event::{io_schema, iostream_schema, value};
use weir_model::inventory::{Disk, FoundBy, Vm, VmKind};
use weir_model::{
    Clause, Demand, Fold, FoldCall, Operand, PartialKind, Predicate, Schema, Symbol, Test,
};
use weir_tap::ebpf::cost::{EmptyPrograms, FloorPrograms, RunTime, Statistics, thread_time_ns};
use weir_tap::ebpf::{self, BlockTap, LiveOptions};
use weir_tap::inventory::{DiskLayout, InventoryWatch, LaidDisk, Piece, ScanScope, Snapshot};
use weir_tap::{Tap, TapEvent};
use weir_testing::LoopDisk;

/// A mode: its name, the stream, its columns (all, if none are named) and the selection.
type Mode = (
    &'static str,
    &'static str,
    &'static [&'static str],
    fn() -> Vec<Test>,
);

/// The least for each request and response, which is compared with [`COMPARED`].
const FLOOR: &str = "floor, records";

/// The least for a histogram of latencies in the kernel.
const FLOOR_BINS: &str = "floor, log2 bins";

/// The mode whose ratio to the floor has a bound.
const COMPARED: &str = "requests and responses";

/// The bounds on the ratios to the floor, of program and consumer.
const BOUNDS: [f64; 2] = [1.5, 2.0];

/// The pause of the floor's consumer.
const FLOOR_PAUSE: Duration = Duration::from_millis(10);

/// The columns used by the thesis's queries.
const THESIS: &[&str] = &["ts", "type", "op", "req_id", "sector", "sectors", "pdisk"];

const MODES: &[Mode] = &[
    ("none", "", &[], Vec::new),
    ("empty", "", &[], Vec::new),
    (FLOOR, "", &[], Vec::new),
    (FLOOR_BINS, "", &[], Vec::new),
    ("requests and responses", "IOstream", THESIS, Vec::new),
    ("responses", "IOstream", THESIS, || {
        vec![text(value("type"), "R")]
    }),
    ("finished, count", "IO", &["op"], Vec::new),
    ("1 % of responses", "IOstream", THESIS, || {
        vec![text(value("type"), "R"), number(value("sectors"), 16, 16)]
    }),
    ("1 % of both", "IOstream", THESIS, || {
        vec![number(value("sectors"), 16, 16)]
    }),
    ("finished, service", "IO", &["op", "service"], Vec::new),
    ("finished, latency", "IO", &["op", "latency"], Vec::new),
    (
        "finished, in_flight",
        "IO",
        &["op", "latency", "in_flight", "seek"],
        Vec::new,
    ),
    ("latency over 1 s", "IO", &["op", "latency"], || {
        vec![number(value("latency"), 1_000_000_000, i64::MAX)]
    }),
    ("recording", "recording", &[], Vec::new),
    ("groups, bytes", "IO", &["op", "bytes"], Vec::new),
    ("groups, latency", "IO", &["op", "latency"], Vec::new),
    (
        "groups, in_flight",
        "IO",
        &["op", "latency", "in_flight", "seek"],
        Vec::new,
    ),
    (
        "groups, as weir top",
        "IO",
        &[
            "op",
            "pdisk",
            "bytes",
            "wait",
            "service",
            "latency",
            "in_flight",
            "seek",
        ],
        Vec::new,
    ),
];

/// The keys of the group modes; for their other columns moments are computed, and for these bins
/// as well.
const KEYS: &[&str] = &["op", "pdisk", "vm", "vdisk"];
const BINNED: &[&str] = &["wait", "service", "latency"];

/// The groups of a mode, computed in the kernel each second.
fn fold(mode: &Mode, schema: &Schema, columns: &[usize]) -> Option<Fold> {
    let is_key = |at: &&usize| KEYS.contains(&schema[**at].name.as_str());
    let mut calls = vec![FoldCall {
        column: None,
        keep: PartialKind::Moments,
    }];
    for at in columns.iter().filter(|at| !is_key(at)) {
        let column = Some(*at);
        calls.push(FoldCall {
            column,
            keep: PartialKind::Moments,
        });
        if BINNED.contains(&schema[*at].name.as_str()) {
            calls.push(FoldCall {
                column,
                keep: PartialKind::LogLinear { bits: 7 },
            });
        }
    }
    mode.0.starts_with("groups").then(|| Fold {
        interval: 1_000_000_000,
        keys: columns.iter().filter(is_key).copied().collect(),
        calls,
    })
}

fn text(operand: Operand, text: &str) -> Test {
    let texts = vec![Symbol::new(text)];
    Test::In { operand, texts }
}

fn number(operand: Operand, low: i64, high: i64) -> Test {
    Test::Between { operand, low, high }
}

/// The columns that `--owners` adds to a mode.
const OWNERS: &[&str] = &["vm", "vdisk", "vsector"];

/// VMs of the host that `--owners` simulates, their disks, and the pieces of each.
const VMS: u32 = 50;
const DISKS: u32 = 2;
const PIECES: u64 = 1_000;

/// A mode, and whether it includes the columns of the owner.
type Case = (&'static Mode, bool);

/// One round of one mode.
#[derive(Clone, Default)]
struct Round {
    iops: f64,
    ios: f64,
    programs: Vec<RunTime>,
    consumer_ns: f64,
    rows: f64,
    lost: i64,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let after = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        args.get(at + 1)
    };
    let number = |name: &str, default: u64| {
        after(name).map_or(default, |n| n.parse().expect("a whole number"))
    };
    let (rounds, seconds) = (number("--rounds", 3), number("--seconds", 2));
    let only: Vec<&str> = after("--modes").map_or(Vec::new(), |m| m.split(',').collect());
    let disk = LoopDisk::new(256).unwrap_or_else(|e| panic!("a loop device is needed: {e}"));
    let statistics = args.iter().any(|a| a == "--stats").then(|| {
        Statistics::enable().unwrap_or_else(|e| panic!("the kernel's statistics are needed: {e}"))
    });
    let chosen = |m: &&Mode| {
        only.is_empty()
            || ["none", "empty", FLOOR].contains(&m.0)
            || only.iter().any(|o| m.0.contains(o))
    };
    let owners = args.iter().any(|a| a == "--owners");
    let modes = MODES.iter().filter(chosen);
    let cases = |mode: &'static Mode| {
        let with_owners = owners && !mode.1.is_empty();
        [Some((mode, false)), with_owners.then_some((mode, true))]
    };
    let modes: Vec<Case> = modes.flat_map(cases).flatten().collect();
    let mut results = vec![Vec::new(); modes.len()];
    measure((&MODES[0], false), &disk, 1);
    for _ in 0..rounds {
        for (mode, results) in modes.iter().zip(&mut results) {
            results.push(measure(*mode, &disk, seconds));
        }
    }
    print(&modes, &results, statistics.is_some());
}

fn print(modes: &[Case], results: &[Vec<Round>], with_statistics: bool) {
    println!(
        "{:<24} {:>9} {:>6} {:>12} {:>12} {:>9} {:>6}",
        "mode", "IOPS", "ratio", "program ns", "consumer ns", "rows/I/O", "lost"
    );
    let base = median(&results[0], |r| r.iops);
    let program = |rounds: &[Round]| least(rounds, |r| above_empty(r, &results[1]));
    for ((mode, with_owners), rounds) in modes.iter().zip(results) {
        let iops = median(rounds, |r| r.iops);
        let program = program(rounds);
        println!(
            "{:<24} {:>9.0} {:>6.3} {:>12} {:>12.1} {:>9.3} {:>6}",
            if *with_owners {
                "  and whose it is"
            } else {
                mode.0
            },
            iops,
            iops / base,
            if with_statistics {
                format!("{program:.1}")
            } else {
                "-".into()
            },
            least(rounds, |r| r.consumer_ns),
            median(rounds, |r| r.rows),
            rounds.iter().map(|r| r.lost).sum::<i64>(),
        );
    }
    let of = |name: &str| {
        let at = modes.iter().position(|(mode, _)| mode.0 == name);
        at.map(|at| &results[at][..])
    };
    let (Some(floor), Some(ours)) = (of(FLOOR), of(COMPARED)) else {
        return;
    };
    let consumer = |rounds: &[Round]| least(rounds, |r| r.consumer_ns);
    let ratios = [
        program(ours) / program(floor),
        consumer(ours) / consumer(floor),
    ];
    let names = ["program ns", "consumer ns"];
    for (at, (name, bound)) in names.into_iter().zip(BOUNDS).enumerate() {
        // The programs are measured only with the kernel's statistics, which slow the consumer.
        if (at == 0) == with_statistics {
            println!(
                "{COMPARED}, ratio of {name} to the floor's: {:.2} (bound {bound})",
                ratios[at]
            );
        }
    }
}

/// Time in the programs per I/O, minus that of the same number of empty programs.
fn above_empty(round: &Round, empty: &[Round]) -> f64 {
    let per_run = |tracepoint: &str| {
        let runs = |r: &Round| {
            let found = r.programs.iter().find(|p| p.tracepoint == tracepoint);
            found.map_or(0.0, |p| p.time_ns as f64 / p.runs.max(1) as f64)
        };
        least(empty, runs)
    };
    let above = |p: &RunTime| p.time_ns as f64 - p.runs as f64 * per_run(p.tracepoint);
    round.programs.iter().map(above).sum::<f64>() / round.ios
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Interference can only increase a cost.
fn least(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    rounds.iter().map(of).fold(f64::INFINITY, f64::min)
}

fn measure((mode, with_owners): Case, disk: &LoopDisk, seconds: u64) -> Round {
    match mode.0 {
        "none" => with_fio(disk, seconds, |_| ()),
        "empty" => {
            let programs = EmptyPrograms::attach().unwrap_or_else(|e| panic!("{e}"));
            let round = with_fio(disk, seconds, |_| ());
            Round {
                programs: programs.run_times(),
                ..round
            }
        }
        FLOOR | FLOOR_BINS => {
            let programs = FloorPrograms::attach(mode.0 == FLOOR);
            let mut programs = programs.unwrap_or_else(|e| panic!("{e}"));
            let (mut records, mut consumer) = (0, 0);
            let round = with_fio(disk, seconds, |fio| {
                if mode.0 == FLOOR {
                    (records, consumer) = copy(&mut programs, fio);
                }
            });
            Round {
                programs: programs.run_times(),
                consumer_ns: consumer as f64 / round.ios,
                rows: records as f64 / round.ios,
                ..round
            }
        }
        _ => {
            let mut tap = open(mode, with_owners, disk);
            let (mut rows, mut consumer) = (0, 0);
            let round = with_fio(disk, seconds, |fio| {
                (rows, consumer) = consume(&mut tap, fio)
            });
            let programs = tap.run_times();
            let counts = tap.counts();
            let lost = counts.iter().filter(|c| c.counter == "events_lost");
            Round {
                programs,
                consumer_ns: consumer as f64 / round.ios,
                rows: rows as f64 / round.ios,
                lost: lost.map(|c| c.total).sum(),
                ..round
            }
        }
    }
}

fn open(mode: &Mode, with_owners: bool, disk: &LoopDisk) -> BlockTap {
    let (_, stream, columns, tests) = mode;
    let schema = if *stream == "IOstream" {
        iostream_schema()
    } else {
        io_schema()
    };
    // As `weir record`, without the file of each request.
    let is_cheap = |at: &usize| !["file", "inode"].contains(&schema[*at].name.as_str());
    let all = (0..schema.len()).filter(is_cheap);
    let columns: Vec<usize> = if columns.is_empty() {
        all.collect()
    } else {
        let groups = mode.0.starts_with("groups");
        let owners = OWNERS
            .iter()
            .filter(|c| with_owners && !(groups && **c == "vsector"));
        let columns = columns.iter().chain(owners);
        columns.map(|c| schema.index(c)).collect()
    };
    let demand = Demand {
        stream: (*stream).into(),
        fold: fold(mode, &schema, &columns),
        columns,
        predicate: Predicate {
            clauses: vec![Clause { tests: tests() }],
        },
    };
    let options = LiveOptions {
        devices: ebpf::DeviceChoice::Named(vec![disk.path().into()]),
        inventory: with_owners.then(|| pretended(disk)),
        ..LiveOptions::default()
    };
    ebpf::open(&[demand], &options).unwrap_or_else(|e| panic!("{e}"))
}

/// An inventory in which every requested process is the first VM. Its disks share the whole device,
/// in alternating pieces; those of the other VMs are beyond its end.
fn pretended(disk: &LoopDisk) -> Arc<InventoryWatch> {
    let dev = fs::read_to_string(disk.sysfs().join("dev")).expect("a device has a number");
    let (major, minor) = dev.trim().split_once(':').expect("major and minor");
    let number = |n: &str| n.parse::<u32>().expect("a number");
    let device = number(major) << 20 | number(minor);
    let size = fs::read_to_string(disk.sysfs().join("size")).expect("a device has a size");
    let sectors: u64 = size.trim().parse().expect("a number");
    let length = sectors / (u64::from(DISKS) * PIECES);
    const ORIGIN: &str = "benchmark";
    let name = |vm: u32| format!("vm-{vm}");
    let laid = |vm: u32, disk: u32| {
        let piece = |i: u64| Piece {
            device,
            sector: u64::from(vm) * sectors + (i * u64::from(DISKS) + u64::from(disk)) * length,
            sectors: length,
            vsector: Some((PIECES - 1 - i) * length),
            shared: false,
        };
        let pieces = (0..PIECES).map(piece).collect();
        LaidDisk {
            tapdisk: None,
            control: None,
            disk: Disk::new(
                &name(vm),
                &format!("/dev/vd{disk}"),
                FoundBy::Extents,
                ORIGIN,
            ),
            vm,
            layout: Arc::new(DiskLayout {
                pieces,
                grows_on: vec![device],
            }),
        }
    };
    let all = (0..VMS).flat_map(|vm| (0..DISKS).map(move |disk| laid(vm, disk)));
    let mut snapshot = Snapshot {
        vms: (0..VMS)
            .map(|vm| Vm::new(&name(vm), VmKind::Qemu, ORIGIN))
            .collect(),
        disks: all.collect(),
        pids: (1..VMS).map(|vm| (u32::MAX - vm, vm)).collect(),
        ..Snapshot::default()
    };
    let watch = InventoryWatch::by(Duration::from_secs(1), move |asked: &[ScanScope]| {
        for look in asked {
            if let ScanScope::Pid(pid) = look {
                snapshot.pids.insert(*pid, 0);
            }
        }
        Some(snapshot.clone())
    });
    watch.unwrap_or_else(|e| panic!("{e}"))
}

/// Reads rows until fio has ended; returns their number and the CPU time used.
fn consume(tap: &mut BlockTap, fio: &mut Child) -> (usize, i64) {
    let start = thread_time_ns();
    let mut rows = 0;
    let mut looked = Instant::now();
    loop {
        if let TapEvent::Rows { batch, .. } = tap
            .next(Duration::from_millis(50))
            .expect("a live tap goes on")
        {
            rows += batch.len();
        }
        if looked.elapsed() > Duration::from_millis(100) {
            looked = Instant::now();
            if fio.try_wait().expect("fio is ours").is_some() {
                return (rows, thread_time_ns() - start);
            }
        }
    }
}

/// Copies the floor's records until fio has ended; returns their number and the CPU time used.
fn copy(programs: &mut FloorPrograms, fio: &mut Child) -> (usize, i64) {
    let start = thread_time_ns();
    let (mut records, mut drains) = (0, 0);
    loop {
        std::thread::sleep(FLOOR_PAUSE);
        records += std::hint::black_box(programs.drain()).len();
        drains += 1;
        if drains % 10 == 0 && fio.try_wait().expect("fio is ours").is_some() {
            return (records, thread_time_ns() - start);
        }
    }
}

fn with_fio(disk: &LoopDisk, seconds: u64, mut meanwhile: impl FnMut(&mut Child)) -> Round {
    let file = format!("--filename={}", disk.path());
    let runtime = format!("--runtime={seconds}");
    let load = "--rw=randread --bssplit=4k/99:8k/1 --iodepth=32 --ioengine=libaio --direct=1 --time_based \
                --norandommap --randrepeat=0 --output-format=terse --terse-version=3";
    let mut fio = Command::new("fio")
        .arg("--name=cost")
        .args(load.split_whitespace())
        .args([&file, &runtime])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("fio is needed: {e}"));
    meanwhile(&mut fio);
    let output = fio.wait_with_output().expect("fio is ours");
    let text = String::from_utf8_lossy(&output.stdout);
    // Fields 8 and 9 of fio's terse version 3: reads per second, and the duration in milliseconds.
    let field = |i: usize| text.split(';').nth(i).and_then(|f| f.parse::<f64>().ok());
    let (Some(iops), Some(millis)) = (field(7), field(8)) else {
        panic!("fio says no rate: {text}");
    };
    Round {
        iops,
        ios: iops * millis / 1000.0,
        ..Round::default()
    }
}
