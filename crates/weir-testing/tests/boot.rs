//! A guest boots and executes commands, and three counts of its I/O agree: the load program's, the
//! guest kernel's and QEMU's.

use std::fs;

use serde_json::{Value, json};
use weir_testing::{DiskLoad, Guest, GuestDisk, Kit, Scratch, skip};

/// The kit of a guest; `None`, with a message, if there is none.
fn kit(test: &str) -> Option<Kit> {
    Kit::find().map_or_else(|why| skip(test, why), Some)
}

#[test]
fn the_program_the_guest_and_qemu_count_the_same() {
    const TEST: &str = "the_program_the_guest_and_qemu_count_the_same";
    let Some(kit) = kit(TEST) else { return };
    let folder = Scratch::new();
    let path = &folder.write("disk.raw", &vec![1; 32 << 20]);
    // The temporary folder may not support O_DIRECT.
    let disk = GuestDisk::new("d0", path).buffered();
    let mut guest = Guest::start(&kit, "boot", &disk.args()).unwrap();
    guest.ready().unwrap();
    assert_eq!(guest.run("echo 1 2; echo 3").unwrap(), "1 2\n3\n");
    let failed = guest.run("ls /nowhere").unwrap_err().to_string();
    assert!(
        failed.contains("status 1") && failed.contains("No such file"),
        "{failed}"
    );

    let load: DiskLoad = "disk=/dev/vda,read=60,write=40,count=300,depth=4,fsync=50"
        .parse()
        .unwrap();
    let before = (guest.disk_stats().unwrap()["vda"], block_stats(&guest));
    let done = guest.load(std::slice::from_ref(&load)).unwrap().remove(0);
    let counted = guest.disk_stats().unwrap()["vda"].since(&before.0);
    let after = block_stats(&guest);
    let qemu = |name: &str| after[name].as_i64().unwrap() - before.1[name].as_i64().unwrap();

    let writes = load.requests().filter(|r| r.op == 'w').count() as i64;
    assert_eq!(
        (done.reads, done.writes, done.fsyncs),
        (300 - writes, writes, 6)
    );
    assert_eq!(done.write_bytes, 4096 * writes);
    assert_eq!(
        (counted.reads, counted.read_sectors),
        (done.reads, 8 * done.reads)
    );
    // Linux counts a flush without data as a write without sectors.
    assert_eq!(counted.writes, done.writes + counted.flushes);
    assert_eq!(
        (counted.write_sectors, counted.write_merges),
        (8 * done.writes, 0)
    );
    assert!((1..=done.fsyncs).contains(&counted.flushes), "{counted:?}");
    assert_eq!(
        (qemu("rd_operations"), qemu("rd_bytes")),
        (done.reads, done.read_bytes)
    );
    assert_eq!(
        (qemu("wr_operations"), qemu("wr_bytes")),
        (done.writes, done.write_bytes)
    );
    assert_eq!(qemu("flush_operations"), counted.flushes);
    // The content is that of the planned writes.
    let content = fs::read(path).unwrap();
    for (i, request) in load.requests().enumerate().filter(|(_, r)| r.op == 'w') {
        let at = request.sector as usize * 512;
        assert_eq!(
            content[at..at + 8],
            (i as u64 ^ load.seed).to_le_bytes(),
            "{request:?}"
        );
        assert!(content[at + 8..at + 4096].iter().all(|&b| b == 0x77));
    }
}

#[test]
fn no_command_is_interrupted_by_the_end_of_a_background_job() {
    const TEST: &str = "no_command_is_interrupted_by_the_end_of_a_background_job";
    let Some(kit) = kit(TEST) else { return };
    let mut guest = Guest::start(&kit, "jobs", &[]).unwrap();
    guest.ready().unwrap();
    let word = "x".repeat(500);
    for _ in 0..50 {
        guest
            .run("for t in 1 2 3 4 5 6 7 8 9; do (usleep ${t}000) & done")
            .unwrap();
        for _ in 0..3 {
            assert_eq!(
                guest.run(&format!("echo {word}")).unwrap(),
                format!("{word}\n")
            );
        }
    }
}

fn block_stats(guest: &Guest) -> Value {
    let all = guest
        .qmp()
        .unwrap()
        .call("query-blockstats", json!({}))
        .unwrap();
    all[0]["stats"].clone()
}
