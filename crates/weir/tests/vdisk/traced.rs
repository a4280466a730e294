//! `--from qemu:VM`: each request as the guest issued it, and no trace log that remains afterwards.

use std::collections::BTreeMap;
use std::fs;

use weir_testing::{Counts, DiskLoad};

use crate::guests::{Host, Weir, wait_until};

/// Requests by disk, operation, first sector and length.
type Requests = BTreeMap<(String, String, String, String), usize>;

fn plan(loads: &[DiskLoad]) -> Requests {
    let mut requests = Requests::new();
    for load in loads {
        for r in load.requests() {
            let (sector, sectors) = (r.sector.to_string(), r.sectors.to_string());
            let key = (load.disk.clone(), r.op.to_string(), sector, sectors);
            *requests.entry(key).or_default() += 1;
        }
    }
    requests
}

/// Trace logs that remain in /run.
fn logs_of(pid: u32) -> Vec<String> {
    let names = fs::read_dir("/run").unwrap().flatten();
    let names = names.map(|f| f.file_name().to_string_lossy().into_owned());
    names
        .filter(|n| n.starts_with(&format!("weir-trace-{pid}-")))
        .collect()
}

#[test]
fn each_request_of_the_guest_is_reported_once_with_disk_and_sector() {
    const TEST: &str = "each_request_of_the_guest_is_reported_once_with_disk_and_sector";
    let Some(mut host) = Host::boot(TEST, "told") else {
        return;
    };
    let loads: Vec<DiskLoad> = [
        "disk=/dev/vda,read=70,write=30,count=600,depth=8,fsync=100",
        "disk=/dev/vdb,read=20,write=80,count=400,depth=4,bytes=8192,seed=7",
        "disk=/dev/sda,read=50,write=50,count=300,depth=4,fsync=50,seed=3",
    ]
    .iter()
    .map(|l| l.parse().unwrap())
    .collect();
    let query = "select vdisk, op, sector, sectors, type, vm, level, error, vsector, req_id \
                 from IOstream";
    let weir = Weir::start(&[
        "query",
        "-v",
        "--from",
        "qemu:told",
        "--format",
        "csv",
        query,
    ]);
    wait_until("tracing is on", || host.traced().len() == 7);
    let before = host.guest.disk_stats().unwrap();
    let qemu_before = ["d0", "d1", "d2"].map(|id| host.block_stats(id));
    host.guest.load(&loads).unwrap();
    let after = host.guest.disk_stats().unwrap();
    let qemu_after = ["d0", "d1", "d2"].map(|id| host.block_stats(id));
    std::thread::sleep(std::time::Duration::from_millis(200));
    weir.signal("INT");
    let printed = weir.finish();
    assert_eq!(printed.code, Some(130), "{}", printed.err);
    assert!(printed.err.contains(" 0 missed"), "{}", printed.err);

    let mut emitted: BTreeMap<&str, Requests> = BTreeMap::new();
    let mut flushes: BTreeMap<String, i64> = BTreeMap::new();
    let rows = printed.rows();
    for row in &rows {
        let [
            vdisk,
            op,
            sector,
            sectors,
            kind,
            vm,
            level,
            error,
            vsector,
            _,
        ] = &row[..]
        else {
            panic!("{row:?}");
        };
        assert_eq!(
            (vm.as_str(), level.as_str(), error.as_str()),
            ("told", "vdisk", "")
        );
        assert_eq!(sector, vsector);
        if op == "f" {
            if kind == "R" {
                *flushes.entry(vdisk.clone()).or_default() += 1;
            }
            continue;
        }
        let key = (vdisk.clone(), op.clone(), sector.clone(), sectors.clone());
        *emitted.entry(kind).or_default().entry(key).or_default() += 1;
    }
    assert_eq!(
        emitted["Q"],
        plan(&loads),
        "the requests are those of the plan"
    );
    assert_eq!(emitted["R"], plan(&loads), "and so are the responses");
    for (at, (disk, name)) in [("vda", "d0"), ("vdb", "d1"), ("sda", "d2")]
        .iter()
        .enumerate()
    {
        let counted: Counts = after[*disk].since(&before[*disk]);
        let vdisk = format!("/dev/{disk}");
        let flushed = flushes.get(&vdisk).copied().unwrap_or(0);
        assert_eq!(
            flushed, counted.flushes,
            "flushes of {vdisk}, as the guest counts them"
        );
        let qemu = |key: &str| {
            qemu_after[at][key].as_i64().unwrap() - qemu_before[at][key].as_i64().unwrap()
        };
        assert_eq!(flushed, qemu("flush_operations"), "and QEMU ({name})");
        let of = |op: &str| {
            let all = plan(&loads);
            let ours = all.iter().filter(|(k, _)| k.0 == vdisk && k.1 == op);
            ours.map(|(_, n)| *n as i64).sum::<i64>()
        };
        assert_eq!(
            (of("r"), of("w")),
            (counted.reads, counted.writes - counted.flushes)
        );
        assert_eq!(
            (of("r"), of("w")),
            (qemu("rd_operations"), qemu("wr_operations"))
        );
    }
    pairs_match(&rows);
    assert_eq!(host.traced(), Vec::<String>::new(), "tracing is off again");
    assert_eq!(logs_of(host.guest.pid()), Vec::<String>::new());
    wait_until("QEMU closes its log", || host.logs().is_empty());
}

/// Asserts that each number occurs in one request and, later, in one response.
fn pairs_match(rows: &[Vec<String>]) {
    let mut open: BTreeMap<&str, &str> = BTreeMap::new();
    let mut done = 0;
    for row in rows {
        let (kind, id, op) = (&row[4], &row[9], &row[1]);
        if kind == "Q" {
            assert_eq!(open.insert(id, op), None, "request {id} is reported once");
        } else if let Some(asked) = open.remove(id.as_str()) {
            assert_eq!(asked, op);
            done += 1;
        } else {
            // The response to a flush may be received before its queue is known.
            assert_eq!(op, "f", "response {id} has a request");
        }
    }
    assert!(
        open.is_empty() && done >= 1300,
        "{done} pairs, {open:?} open"
    );
}

#[test]
fn tracing_ends_with_weir_even_if_that_is_killed() {
    const TEST: &str = "tracing_ends_with_weir_even_if_that_is_killed";
    let Some(mut host) = Host::boot(TEST, "killed") else {
        return;
    };
    let query = ["query", "--from", "qemu:killed", "select count(*) from IO"];
    let weir = Weir::start(&query);
    wait_until("tracing is on", || host.traced().len() == 7);
    assert_eq!(logs_of(host.guest.pid()).len(), 1);

    let second = Weir::start(&query).finish();
    assert_eq!(second.code, Some(1));
    assert!(second.err.contains("is traced already"), "{}", second.err);
    assert_eq!(host.traced().len(), 7, "the first goes on");

    weir.signal("KILL");
    assert_eq!(weir.finish().code, None);
    wait_until("tracing is off", || host.traced().is_empty());
    wait_until("the log is gone", || logs_of(host.guest.pid()).is_empty());
    wait_until("QEMU closes its log", || host.logs().is_empty());
    let load = DiskLoad::on("/dev/vda");
    assert_eq!(
        host.guest.load(&[load]).unwrap()[0].reads,
        256,
        "the guest goes on"
    );
}

#[test]
fn without_its_guard_weir_switches_tracing_off_itself() {
    const TEST: &str = "without_its_guard_weir_switches_tracing_off_itself";
    let Some(host) = Host::boot(TEST, "unguarded") else {
        return;
    };
    let query = [
        "query",
        "--from",
        "qemu:unguarded",
        "select count(*) from IO",
    ];
    let weir = Weir::start(&query);
    wait_until("tracing is on", || host.traced().len() == 7);
    weir.kill_child("qemu-guard");
    let printed = weir.finish();
    assert_eq!(printed.code, Some(1), "{}", printed.err);
    assert!(
        printed.err.contains("the guard process has ended"),
        "{}",
        printed.err
    );
    assert_eq!(host.traced(), Vec::<String>::new());
    assert_eq!(logs_of(host.guest.pid()), Vec::<String>::new());
}

#[test]
fn the_end_of_the_vm_is_the_end_of_the_query() {
    const TEST: &str = "the_end_of_the_vm_is_the_end_of_the_query";
    let Some(mut host) = Host::boot(TEST, "ended") else {
        return;
    };
    let pid = host.guest.pid();
    let args = [
        "query",
        "-v",
        "--from",
        "qemu:ended",
        "--format",
        "csv",
        "select op, latency from IO",
    ];
    let weir = Weir::start(&args);
    wait_until("tracing is on", || host.traced().len() == 7);
    host.guest.load(&[DiskLoad::on("/dev/vdb")]).unwrap();
    drop(host);
    let printed = weir.finish();
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    assert!(
        printed.err.contains("VM ended has ended"),
        "{}",
        printed.err
    );
    let rows = printed.rows();
    assert_eq!(rows.len(), 256);
    let took = |row: &Vec<String>| row[1].parse::<i64>().unwrap() > 0;
    assert!(rows.iter().all(took), "each latency is known: {rows:?}");
    assert_eq!(logs_of(pid), Vec::<String>::new());
}

#[test]
fn a_vm_that_is_not_there_is_named() {
    let printed = Weir::start(&["query", "--from", "qemu:absent", "select op from IO"]).finish();
    assert_eq!(printed.code, Some(1));
    assert!(
        printed.err.contains("there is no QEMU VM `absent`"),
        "{}",
        printed.err
    );
}
