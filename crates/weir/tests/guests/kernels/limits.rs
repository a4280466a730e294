//! `weir act limit` in cgroup v2: `io.max` and weights of a real kernel, whose throttling is
//! measured.

use std::time::{Duration, Instant};

use weir_testing::is_full;
use weir_testing::kernel::{GuestKernel, LINUX_6_1, LINUX_6_12};

use super::boot::Watched;
use crate::kit_of;

const GROUP: &str = "/sys/fs/cgroup/noisy";

/// `weir act` with the leases of this test.
const ACT: &str = "/tools/bin/weir act";

const STATE: &str = "--state /tmp/leases";

/// The limit of reads and of writes per second, and how many reads are made under it. The kernel
/// lets those of the first slice through at once.
const IOPS: u64 = 60;
const REQUESTS: u64 = 240;

#[test]
fn linux_6_12_limits_a_group_as_a_lease_states() {
    limits(&LINUX_6_12, "linux_6_12_limits_a_group_as_a_lease_states");
}

#[test]
fn linux_6_1_limits_a_group_as_a_lease_states() {
    if is_full() {
        limits(&LINUX_6_1, "linux_6_1_limits_a_group_as_a_lease_states");
    }
}

fn limits(kernel: &GuestKernel, test: &str) {
    let Some((kit, _turn)) = kit_of(test, kernel) else {
        return;
    };
    let mut guest = Watched::start(&kit, test).unwrap();
    guest.run("mount -t cgroup2 cgroup /sys/fs/cgroup");
    guest.run("echo +io > /sys/fs/cgroup/cgroup.subtree_control");
    guest.run(&format!("mkdir {GROUP} {GROUP}-other"));
    let device = guest.run("cat /sys/block/vdc/dev").trim().to_owned();
    // A limit that another program has set, and one of another device.
    guest.run(&format!("echo '{device} rbps=104857600' > {GROUP}/io.max"));
    let spare = guest.run("cat /sys/block/sda/dev").trim().to_owned();
    guest.run(&format!("echo '{spare} wiops=5000' > {GROUP}/io.max"));
    let before = guest.run(&format!("cat {GROUP}/io.max"));

    let limit =
        format!("{ACT} limit --cgroup {GROUP} --device /dev/vdc --iops {IOPS} --for 10m {STATE}");
    let proposed = guest.run(&limit);
    assert!(proposed.contains("io.max"), "{proposed}");
    assert_eq!(guest.run(&format!("cat {GROUP}/io.max")), before);
    let unlimited = timed(&mut guest);

    begin(&mut guest, &limit);
    let limited = guest.run(&format!("cat {GROUP}/io.max"));
    let expected = format!("{device} rbps=104857600 wbps=max riops={IOPS} wiops={IOPS}");
    assert!(limited.contains(&expected), "{limited}");
    assert!(
        limited.contains(&format!("{spare} rbps=max wbps=max riops=max wiops=5000")),
        "{limited}"
    );
    // No more than the limit permits, in the kernel's own time.
    let least = Duration::from_secs((REQUESTS - IOPS) / IOPS);
    let taken = timed(&mut guest);
    assert!(
        taken >= least,
        "{taken:?} with the limit, {unlimited:?} without"
    );
    // Another writer meanwhile: its limit stays, ours is undone.
    guest.run(&format!("echo '{device} wbps=52428800' > {GROUP}/io.max"));
    let ended = end(&mut guest);
    assert!(ended.contains("another program"), "{ended}");
    let after = guest.run(&format!("cat {GROUP}/io.max"));
    let expected = format!("{device} rbps=104857600 wbps=52428800 riops=max wiops=max");
    assert!(after.contains(&expected), "{after}");
    guest.run(&format!("echo '{device} wbps=max' > {GROUP}/io.max"));
    assert_eq!(guest.run(&format!("cat {GROUP}/io.max")), before);

    // A process that is killed leaves the limit to the next command.
    begin(&mut guest, &limit);
    guest.run("kill -KILL $(cat /tmp/limit.pid); usleep 200000");
    assert_ne!(guest.run(&format!("cat {GROUP}/io.max")), before);
    let undone = guest.run(&format!("{ACT} undo --all {STATE}"));
    assert!(undone.contains("restored"), "{undone}");
    assert_eq!(guest.run(&format!("cat {GROUP}/io.max")), before);

    // A group that disappears has nothing to restore.
    let other = limit.replace(GROUP, &format!("{GROUP}-other"));
    begin(&mut guest, &other);
    guest.run(&format!("rmdir {GROUP}-other"));
    guest.run("while [ -d /proc/$(cat /tmp/limit.pid) ]; do usleep 50000; done");
    let ended = guest.run("cat /tmp/limit");
    assert!(ended.contains("nothing to restore"), "{ended}");

    weights(&mut guest);
}

/// The weight of the group, where the scheduler of a disk has weights.
fn weights(guest: &mut Watched) {
    if !guest.has_module("bfq") {
        return;
    }
    guest.run("echo bfq > /sys/block/vdc/queue/scheduler");
    let read = format!("cat {GROUP}/io.bfq.weight");
    let before = guest.run(&read);
    let limit = format!("{ACT} limit --cgroup {GROUP} --device /dev/vdc --weight 20 {STATE}");
    begin(guest, &limit);
    assert_eq!(guest.run(&read).trim(), "default 20");
    let ended = end(guest);
    assert!(ended.contains("restored"), "{ended}");
    assert_eq!(guest.run(&read), before);
}

/// How long a process of the group takes for its requests, by the guest's clock.
fn timed(guest: &mut Watched) -> Duration {
    let load = format!("load disk=/dev/vdc,read=1,write=0,count={REQUESTS},seed=3");
    let started = Instant::now();
    guest.run(&format!(
        "sh -c 'echo $$ > {GROUP}/cgroup.procs && exec {load}'"
    ));
    started.elapsed()
}

/// Starts a limit in the background, and waits until it is set.
fn begin(guest: &mut Watched, limit: &str) {
    guest.run(&format!(
        "{limit} --apply > /tmp/limit 2>&1 & echo $! > /tmp/limit.pid"
    ));
    guest.run(
        "while ! grep -q 'limited to' /tmp/limit; do \
         [ -d /proc/$(cat /tmp/limit.pid) ] || { cat /tmp/limit; false; break; }; \
         usleep 50000; done",
    );
}

/// Ends it by a signal; returns what it printed.
fn end(guest: &mut Watched) -> String {
    guest.run(
        "kill -INT $(cat /tmp/limit.pid); \
         while [ -d /proc/$(cat /tmp/limit.pid) ]; do usleep 50000; done; cat /tmp/limit",
    )
}
