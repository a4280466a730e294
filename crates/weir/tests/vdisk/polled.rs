//! Streams `blockstats` and `blocklatency` on the command line.

use weir_testing::{Counts, DiskLoad};

use crate::guests::{Host, Weir, wait_until};

/// The sum of a column over the rows of a disk and operation.
fn sum(rows: &[Vec<String>], disk: &str, op: &str, column: usize) -> i64 {
    let of = |r: &&Vec<String>| r[0] == format!("/dev/{disk}") && r[1] == op;
    let number = |r: &Vec<String>| r[column].parse::<i64>().unwrap_or(0);
    rows.iter().filter(of).map(number).sum()
}

/// The expected rows of a disk: operation, requests, bytes.
fn expected(counted: &Counts) -> [(&'static str, i64, i64); 3] {
    [
        ("r", counted.reads, 512 * counted.read_sectors),
        (
            "w",
            counted.writes - counted.flushes,
            512 * counted.write_sectors,
        ),
        ("f", counted.flushes, 0),
    ]
}

#[test]
fn blockstats_agree_with_the_guests_own_count() {
    const TEST: &str = "blockstats_agree_with_the_guests_own_count";
    let Some(mut host) = Host::boot(TEST, "polled") else {
        return;
    };
    let query = |text: &str| Weir::start(&["query", "--format", "csv", text]);
    let polls = query("select vdisk, op, operations, bytes from blockstats where vm = 'polled'");
    let bins = query("select vdisk, op, operations from blocklatency where vm = 'polled'");
    wait_until("the rows of the first poll are printed", || {
        polls.so_far().len() >= 12
    });
    let histogram = |host: &Host, id| host.block_stats(id).get("rd_latency_histogram").is_some();
    wait_until("histograms are enabled", || {
        histogram(&host, "d0") && histogram(&host, "d2")
    });
    let before = host.guest.disk_stats().unwrap();
    let loads: Vec<DiskLoad> = [
        "disk=/dev/vda,read=70,write=30,count=500,depth=8,fsync=100",
        "disk=/dev/sda,read=50,write=50,count=300,depth=4,bytes=8192",
    ]
    .iter()
    .map(|l| l.parse().unwrap())
    .collect();
    host.guest.load(&loads).unwrap();
    let after = host.guest.disk_stats().unwrap();
    let disks = ["vda", "vdb", "sda"].map(|disk| (disk, after[disk].since(&before[disk])));
    let all = |rows: &[Vec<String>], column| {
        let total_of = |op| {
            disks
                .iter()
                .map(|(d, _)| sum(rows, d, op, column))
                .sum::<i64>()
        };
        total_of("r") + total_of("w") + total_of("f")
    };
    let requests: i64 = disks
        .iter()
        .flat_map(|(_, c)| expected(c))
        .map(|e| e.1)
        .sum();
    wait_until("all operations are printed", || {
        all(&polls.so_far(), 2) >= requests
    });
    wait_until("all latencies are printed", || {
        all(&bins.so_far(), 2) >= requests
    });
    polls.signal("INT");
    bins.signal("INT");
    let (polls, bins) = (polls.finish(), bins.finish());
    assert_eq!(
        (polls.code, bins.code),
        (Some(130), Some(130)),
        "{} {}",
        polls.err,
        bins.err
    );
    for (disk, counted) in &disks {
        for (op, requests, bytes) in expected(counted) {
            let total = |column| sum(&polls.rows(), disk, op, column);
            assert_eq!(
                (total(2), total(3)),
                (requests, bytes),
                "{op} of {disk}: {}",
                polls.out
            );
            assert_eq!(
                sum(&bins.rows(), disk, op, 2),
                requests,
                "{op} of {disk}: {}",
                bins.out
            );
        }
    }
    assert!(!histogram(&host, "d0"), "the histograms are removed");
}
