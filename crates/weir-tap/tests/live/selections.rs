//! Selections run in the kernel: only the selected events are transferred, and no others are
//! produced.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use weir_model::event::{sample, value};
use weir_model::spread::{SPREADS, spread};
use weir_model::{Clause, Demand, Operand, Symbol, Test};
use weir_tap::ebpf::LiveOptions;

use crate::load::fio;
use crate::watch::{Rows, Seen, Watch, demand, only};
use crate::{bench, skip};
use weir_testing::LoopDisk;

const MIXED: &str = "--direct=1 --ioengine=libaio --iodepth=8 --rw=randrw --bssplit=4k/60:16k/30:64k/10 \
                     --io_size=16m --size=64m";

/// A selection, and the predicate of its rows.
type Case = (Vec<Test>, fn(&Row) -> bool);

fn between(operand: Operand, low: i64, high: i64) -> Test {
    Test::Between { operand, low, high }
}

fn within(operand: Operand, texts: &[&str]) -> Test {
    let texts = texts.iter().map(|t| Symbol::new(t)).collect();
    Test::In { operand, texts }
}

#[test]
fn only_what_is_selected_is_produced() {
    let Some(bench) = bench("only_what_is_selected_is_produced", 64) else {
        return;
    };
    let [kind, op, sector, sectors, comm] = ["type", "op", "sector", "sectors", "comm"].map(value);
    let cases: Vec<Case> = vec![
        (vec![within(op, &["w"])], |r| r.op == "w"),
        (vec![between(sectors, 32, 32)], |r| r.sectors == 32),
        (
            vec![between(sectors, 33, i64::MAX), within(op, &["r"])],
            |r| r.sectors > 32 && r.op == "r",
        ),
        (vec![between(sector, 0, 8191)], |r| r.sector < 8192),
        (vec![within(kind, &["R"]), between(sectors, 1, 8)], |r| {
            r.kind == "R" && r.sectors <= 8
        }),
        (vec![within(kind, &["Q"]), within(op, &["r", "w"])], |r| {
            r.kind == "Q"
        }),
        (vec![within(comm, &["fio"])], |_| true),
        (vec![within(comm, &["oif"])], |_| false),
        (vec![within(op, &["f", "z"])], |_| false),
        // A sample of a quarter.
        (vec![between(sample("sector"), 0, SPREADS / 4 - 1)], |r| {
            spread(r.sector) < SPREADS / 4
        }),
    ];
    let all = watched(&bench.disk, Vec::new());
    let all = rows(&all.rows[0]);
    for (tests, passes) in cases {
        let what = format!("{tests:?}");
        let seen = watched(&bench.disk, tests);
        let found = rows(&seen.rows[0]);
        assert!(found.iter().all(passes), "{what}: a row does not pass");
        // The load is deterministic, so that the expected rows are those of the whole that pass.
        let expected = all.iter().filter(|r| passes(r)).count();
        let missing = expected.abs_diff(found.len());
        let merged = seen.count("unseen", None, None) as usize + 64;
        assert!(
            missing <= merged,
            "{what}: {} rows, not {expected}",
            found.len()
        );
        let produced = seen.count("events_in", None, None);
        assert_eq!(
            produced,
            found.len() as i64,
            "{what}: others were produced: {:?}",
            seen.described
        );
    }
}

#[test]
fn either_of_two_selections_passes() {
    let Some(bench) = bench("either_of_two_selections_passes", 64) else {
        return;
    };
    let clause = |tests| Clause { tests };
    let mut demand = columns();
    demand.predicate.clauses = vec![
        clause(vec![between(value("sectors"), 128, 128)]),
        clause(vec![
            within(value("op"), &["w"]),
            between(value("sectors"), 8, 8),
        ]),
    ];
    let watch = Watch::start(vec![demand], &only(bench.disk.path()));
    fio(&bench.disk, MIXED);
    let seen = watch.stop();
    let found = rows(seen.all());
    let passes = |r: &Row| r.sectors == 128 || (r.op == "w" && r.sectors == 8);
    assert!(found.iter().all(passes));
    let kinds: HashSet<(String, i64)> = found.into_iter().map(|r| (r.op, r.sectors)).collect();
    assert_eq!(
        kinds.len(),
        3,
        "large reads, large writes, small writes: {kinds:?}"
    );
}

#[test]
fn more_alternatives_than_a_program_holds_let_more_pass_never_less() {
    let Some(bench) = bench(
        "more_alternatives_than_a_program_holds_let_more_pass_never_less",
        64,
    ) else {
        return;
    };
    let ranges: Vec<(i64, i64)> = (0..8).map(|i| (i * 16384, i * 16384 + 4095)).collect();
    let mut demand = columns();
    let clause = |(low, high): &(i64, i64)| Clause {
        tests: vec![between(value("sector"), *low, *high)],
    };
    demand.predicate.clauses = ranges.iter().map(clause).collect();
    let watch = Watch::start(vec![columns(), demand], &only(bench.disk.path()));
    fio(&bench.disk, MIXED);
    let seen = watch.stop();
    let inside = |r: &&Row| {
        ranges
            .iter()
            .any(|(low, high)| (*low..=*high).contains(&r.sector))
    };
    let (all, some) = (rows(&seen.rows[0]), rows(&seen.rows[1]));
    let (all, some) = (
        all.iter().filter(inside).count(),
        some.iter().filter(inside).count(),
    );
    assert_eq!(all, some, "{:?}", seen.described);
    assert!(
        seen.described
            .iter()
            .any(|line| line.contains("alternatives")),
        "{:?}",
        seen.described
    );
}

#[test]
fn a_slow_request_is_emitted_and_a_fast_one_is_not_recorded() {
    let Some(bench) = bench(
        "a_slow_request_is_emitted_and_a_fast_one_is_not_recorded",
        64,
    ) else {
        return;
    };
    for (operand, column) in [
        (value("latency"), "latency"),
        (value("service"), "service"),
        (value("wait"), "wait"),
    ] {
        let watch = Watch::start(
            vec![demand("IO", column, Vec::new())],
            &only(bench.disk.path()),
        );
        fio(&bench.disk, MIXED);
        let mut times = watch.stop().all().ints(column);
        times.sort_unstable();
        // The host may be faster the second time, but hardly than the fastest tenth.
        let bound = times[times.len() / 10];
        let slow = vec![between(operand, bound, i64::MAX)];
        let watch = Watch::start(vec![demand("IO", column, slow)], &only(bench.disk.path()));
        fio(&bench.disk, MIXED);
        let seen = watch.stop();
        let found = seen.all().ints(column);
        assert!(
            !found.is_empty(),
            "{column}: none was slower than {bound} ns"
        );
        assert!(found.iter().all(|t| *t >= bound), "{column}");
        assert_eq!(
            seen.count("events_in", None, None),
            found.len() as i64,
            "{column}"
        );
    }
}

#[test]
fn a_process_is_selected_by_its_id() {
    let Some(bench) = bench("a_process_is_selected_by_its_id", 64) else {
        return;
    };
    let own = i64::from(std::process::id());
    let tests = vec![between(value("pid"), own, own)];
    let watch = Watch::start(
        vec![demand("IO", "op pid sectors", tests)],
        &only(bench.disk.path()),
    );
    fio(
        &bench.disk,
        "--direct=1 --ioengine=psync --rw=randread --bs=4k --io_size=1m --size=64m",
    );
    let mut device = fs::OpenOptions::new()
        .write(true)
        .open(bench.disk.path())
        .unwrap();
    device.write_all(&[7; 8192]).unwrap();
    device.sync_all().unwrap();
    let seen = watch.stop();
    let rows = seen.all();
    assert_eq!(rows.with("op", "w").sum("sectors"), 16);
    assert_eq!(rows.texts("pid"), [own.to_string()]);
    assert_eq!(seen.count("events_in", None, None), rows.len() as i64);
}

/// A cgroup of the hierarchy to which block I/O is charged.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> Result<Cgroup, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| e.to_string())?;
        let v1 = mounts
            .lines()
            .find(|l| l.split(' ').nth(2) == Some("cgroup") && l.contains("blkio"));
        let v2 = mounts
            .lines()
            .find(|l| l.split(' ').nth(2) == Some("cgroup2"));
        let root = v1
            .or(v2)
            .and_then(|l| l.split(' ').nth(1))
            .ok_or("no cgroups are mounted")?;
        let path = PathBuf::from(root).join(name);
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Cgroup(path))
    }

    fn fio(&self, disk: &LoopDisk, options: &str) {
        let procs = self.0.join("cgroup.procs");
        let script = format!(
            "echo $$ > {} && exec fio --name=inside --filename={} {options}",
            procs.display(),
            disk.path()
        );
        let status = Command::new("sh")
            .args(["-c", &script])
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("sh starts").success(), "{script}");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("cleaning up: {}: {error}", self.0.display());
        }
    }
}

#[test]
fn a_cgroup_is_selected_also_if_it_is_created_later() {
    const TEST: &str = "a_cgroup_is_selected_also_if_it_is_created_later";
    let Some(bench) = bench(TEST, 64) else {
        return;
    };
    let pid = std::process::id();
    let (wanted, other) = (format!("weir-a-{pid}"), format!("weir-b-{pid}"));
    let first = match Cgroup::new(&wanted) {
        Ok(cgroup) => cgroup,
        Err(why) => {
            skip::<()>(TEST, &why);
            return;
        }
    };
    let second = Cgroup::new(&other).unwrap();
    let path = format!("/{wanted}");
    let tests = vec![within(value("cgroup"), &[&path])];
    let load = "--direct=1 --ioengine=psync --rw=randread --bs=4k --io_size=1m --size=64m";
    let watch = Watch::start(
        vec![demand("IO", "op cgroup", tests.clone())],
        &LiveOptions {
            ..only(bench.disk.path())
        },
    );
    first.fio(&bench.disk, load);
    second.fio(&bench.disk, load);
    fio(&bench.disk, load);
    let seen = watch.stop();
    let own = seen.all().with("cgroup", &path).len() as i64;
    assert!((256 - 64..=256).contains(&own), "{own}: {:?}", seen.counts);
    assert_eq!(
        seen.count("events_in", None, None),
        own,
        "the others stayed in the kernel"
    );
    drop(first);
    let watch = Watch::start(
        vec![demand("IO", "op cgroup", tests)],
        &only(bench.disk.path()),
    );
    // The same name is another cgroup now.
    let later = Cgroup::new(&wanted).unwrap();
    later.fio(&bench.disk, load);
    let seen = watch.stop();
    let own = seen.all().with("cgroup", &path).len() as i64;
    assert!((256 - 64..=256).contains(&own), "{own}: {:?}", seen.counts);
}

struct Row {
    kind: String,
    op: String,
    sector: i64,
    sectors: i64,
}

fn columns() -> Demand {
    demand("IOstream", "type op sector sectors comm", Vec::new())
}

fn watched(disk: &LoopDisk, tests: Vec<Test>) -> Seen {
    let mut demand = columns();
    demand.predicate.clauses = vec![Clause { tests }];
    let watch = Watch::start(vec![demand], &only(disk.path()));
    fio(disk, MIXED);
    let seen = watch.stop();
    assert_eq!(seen.count("events_lost", None, None), 0);
    seen
}

fn rows(rows: &Rows) -> Vec<Row> {
    let sectors = rows.ints("sector").into_iter().zip(rows.ints("sectors"));
    let texts = rows.column("type").into_iter().zip(rows.column("op"));
    let row =
        |((kind, op), (sector, sectors)): ((weir_model::Value, weir_model::Value), (i64, i64))| {
            Row {
                kind: kind.to_string(),
                op: op.to_string(),
                sector,
                sectors,
            }
        };
    texts.zip(sectors).map(row).collect()
}
