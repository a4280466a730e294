//! Streams `blockstats` and `blocklatency` from the command line.

use weir_guest::Load;

use crate::guests::{Host, Weir};

#[test]
fn blockstats_agree_with_the_guests_own_count() {
    const TEST: &str = "blockstats_agree_with_the_guests_own_count";
    let Some(mut host) = Host::boot(TEST, "polled") else {
        return;
    };
    let query = "select vm, vdisk, op, operations, bytes, operations_total from blockstats \
                 where vm = 'polled'";
    let latencies = "select vdisk, op, operations from blocklatency where vm = 'polled'";
    let weir = Weir::start(&["query", "--format", "csv", query]);
    let bins = Weir::start(&["query", "--format", "csv", latencies]);
    // Two polls at least are before the load, and one after it.
    let pause = || std::thread::sleep(std::time::Duration::from_millis(3000));
    pause();
    let before = host.guest.disk_stats().unwrap();
    let loads: Vec<Load> = [
        "disk=/dev/vda,read=70,write=30,count=500,depth=8,fsync=100",
        "disk=/dev/sda,read=50,write=50,count=300,depth=4,bytes=8192",
    ]
    .iter()
    .map(|l| l.parse().unwrap())
    .collect();
    host.guest.load(&loads).unwrap();
    let after = host.guest.disk_stats().unwrap();
    pause();
    weir.signal("INT");
    bins.signal("INT");
    let (said, bins) = (weir.finish(), bins.finish());
    assert_eq!(
        (said.code, bins.code),
        (Some(130), Some(130)),
        "{} {}",
        said.err,
        bins.err
    );
    for disk in ["vda", "vdb", "sda"] {
        let counted = after[disk].since(&before[disk]);
        let sum = |op: &str, column: usize| {
            let rows = said.rows();
            let of = |r: &&Vec<String>| r[1] == format!("/dev/{disk}") && r[2] == op;
            let number = |r: &Vec<String>| r[column].parse::<i64>().unwrap_or(0);
            rows.iter().filter(of).map(number).sum::<i64>()
        };
        assert_eq!(sum("r", 3), counted.reads, "reads of {disk}: {}", said.out);
        assert_eq!(sum("r", 4), 512 * counted.read_sectors);
        assert_eq!(sum("w", 3), counted.writes - counted.flushes);
        assert_eq!(sum("w", 4), 512 * counted.write_sectors);
        assert_eq!(sum("f", 3), counted.flushes);
        let binned = |op: &str| {
            let rows = bins.rows();
            let of = |r: &&Vec<String>| r[0] == format!("/dev/{disk}") && r[1] == op;
            rows.iter()
                .filter(of)
                .map(|r| r[2].parse::<i64>().unwrap())
                .sum::<i64>()
        };
        assert_eq!(
            binned("r"),
            counted.reads,
            "latencies of {disk}: {}",
            bins.out
        );
        assert_eq!(binned("w"), counted.writes - counted.flushes);
    }
    let left = host.block_stats("d0");
    assert!(
        left.get("rd_latency_histogram").is_none(),
        "the histograms are gone"
    );
}
