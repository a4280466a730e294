//! weir on arm64: the static program in a guest with that architecture, in emulation.

use std::fs;

use weir_testing::kernel::LINUX_6_1_ARM64;
use weir_testing::{DiskLoad, GuestDisk, Scratch, Tools, is_full, skipped, static_program};

use super::boot::{DISK_MEBIBYTES, Watched};
use super::rows::{self, Rows};
use super::{PLAIN, the_doctor_finds_all_in_order, the_same_requests_are_counted_in_each_way};
use crate::kit_of;

#[test]
fn linux_6_1_on_arm64_is_observed_as_it_counts() {
    const TEST: &str = "linux_6_1_on_arm64";
    if !is_full() {
        return;
    }
    let Some((kit, _turn)) = kit_of(TEST, &LINUX_6_1_ARM64) else {
        return;
    };
    let program = static_program(LINUX_6_1_ARM64.architecture.name);
    if !program.exists() {
        let path = program.display();
        skipped(
            TEST,
            format_args!("no {path}: make it with `cargo xtask guest --all`"),
        );
        return;
    }

    let folder = Scratch::new();
    let plain = folder.file("plain");
    fs::File::create(&plain)
        .unwrap()
        .set_len(DISK_MEBIBYTES << 20)
        .unwrap();
    let tools = folder.file("tools");
    let program = program.to_str().expect("a path in UTF-8");
    let programs = Tools::make(tools.as_ref(), &[program]).unwrap();
    let disks = [("plain", &plain), ("tools", &tools)];
    let disks = disks.map(|(name, path)| GuestDisk::new(name, path).buffered().args());
    let memory = ["-m", "1024", "-smp", "2"].map(str::to_owned);
    let args = [memory.to_vec(), disks.concat()].concat();
    let mut watched = Watched::boot(&kit, TEST, &args, programs, folder).unwrap();
    assert_eq!(watched.run("uname -m").trim(), "aarch64");
    the_doctor_finds_all_in_order(&mut watched, &["/dev/vda", "/dev/vdb"], true);

    watched.start_weir(&[("rows", rows::QUERY)]);
    let before = watched.disk_stats()[PLAIN];
    let done = watched.load(&DiskLoad {
        read: 60,
        write: 40,
        count: 400,
        fsync: 20,
        ..DiskLoad::on("/dev/vda")
    });
    let counts = watched.disk_stats()[PLAIN].since(&before);
    let summary = watched.end("rows");
    let rows = Rows::parse(&watched.run(&Rows::command("/tmp/rows")));
    let [reads, writes, flushes] = ["r", "w", "f"].map(|op| rows.finished(&[PLAIN], op));
    assert!(reads > 0 && writes > 0 && flushes > 0, "{counts:?}");
    // The kernel counts a flush without data as a write.
    assert_eq!(
        [reads, writes + flushes, flushes],
        [counts.reads, counts.writes, done.fsyncs],
        "{summary}"
    );
    let requests = ["r", "w"].map(|op| rows.requests(&[PLAIN], op));
    assert_eq!(requests, [reads, writes], "{summary}");

    the_same_requests_are_counted_in_each_way(&mut watched);
    let page = watched.run(
        "load disk=/dev/vda,read=1,count=100000,rate=200 > /dev/null & \
         /tools/bin/weir top -b -n 1; kill $!; true",
    );
    assert!(page.contains(PLAIN), "{page}");
}
