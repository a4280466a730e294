//! `weir act`: limits on a real group of cgroup v1, in a real QEMU, whose guest never starts, and
//! of a tapdisk.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_testing::{LoopDisk, Qmp};

use crate::live::loop_disk;
use crate::support::{Scratch, interrupt, run, skipped, weir};

/// A group of the blkio controller; removed at the end.
struct Group(PathBuf);

impl Group {
    fn new(test: &str) -> Option<Group> {
        let name = format!("weir-act-{}-{test}", std::process::id());
        let group = Group(PathBuf::from("/sys/fs/cgroup/blkio").join(name));
        match fs::create_dir(&group.0) {
            Ok(()) => Some(group),
            Err(error) => {
                skipped(test, format!("{}: {error}", group.0.display()));
                None
            }
        }
    }

    /// The limits of writes per second, a line for each device.
    fn writes(&self) -> String {
        fs::read_to_string(self.0.join("blkio.throttle.write_iops_device")).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn number(disk: &LoopDisk) -> String {
    let number = fs::read_to_string(disk.sysfs().join("dev")).unwrap();
    number.trim().to_owned()
}

/// `weir act limit` of a device in a group, applied, once it has written that.
fn applied(args: &[&str], scratch: &Scratch) -> Child {
    let state = state(scratch);
    let args = [&["act", "limit", "--apply", "--state", &state], args].concat();
    let count = || {
        let log = run(&["act", "log", "--json", "--state", &state]).fine();
        let events = log
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["stage"] == "applied").count()
    };
    let before = count();
    let child = weir(&args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while count() == before {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "the limit is applied"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

/// The options for 200 requests per second of a device in a group.
fn target<'a>(group: &'a str, disk: &'a LoopDisk) -> [&'a str; 8] {
    let device = disk.path();
    [
        "--cgroup", group, "--device", device, "--iops", "200", "--for", "1m",
    ]
}

fn state(scratch: &Scratch) -> String {
    scratch.path().join("leases").display().to_string()
}

#[test]
fn a_limit_of_a_group_is_proposed_applied_and_restored() {
    let test = "a_limit_of_a_group_is_proposed_applied_and_restored";
    let Some((disk, group)) = loop_disk(test).zip(Group::new(test)) else {
        return;
    };
    let scratch = Scratch::new();
    let (number, state) = (number(&disk), state(&scratch));
    let path = group.0.display().to_string();
    // A lower limit of reads, which stays.
    let reads = group.0.join("blkio.throttle.read_iops_device");
    fs::write(&reads, format!("{number} 60")).unwrap();
    let target = target(&path, &disk);
    let proposal = [&["act", "limit", "--state", &state], &target[..]].concat();
    let proposed = run(&proposal).fine();
    let expected = format!("echo '{number} 200' > {path}/blkio.throttle.write_iops_device\n");
    assert!(proposed.contains(&expected), "{proposed}");
    assert!(proposed.contains("before:  riops=60"), "{proposed}");
    assert_eq!(group.writes(), "", "nothing is changed");
    assert_eq!(
        run(&["act", "status", "--state", &state]).fine(),
        "no leases\n"
    );

    let mut child = applied(&target, &scratch);
    assert_eq!(group.writes(), format!("{number} 200\n"));
    assert_eq!(
        fs::read_to_string(&reads).unwrap(),
        format!("{number} 60\n")
    );
    let second = run(&[&["act", "limit", "--apply", "--state", &state], &target[..]].concat());
    assert!(
        second.code == 2 && second.err.contains("is limited already"),
        "{}",
        second.err
    );
    // The limit admits 200 a second, and the kernel the requests of a slice or two more.
    let started = Instant::now();
    write(&group, disk.path(), 300);
    let rate = 300.0 / started.elapsed().as_secs_f64();
    assert!(rate < 300.0, "{rate} writes per second");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(group.writes(), "");
    assert_eq!(
        fs::read_to_string(&reads).unwrap(),
        format!("{number} 60\n")
    );
}

/// Writes single pages past the cache, by a process in the group.
fn write(group: &Group, device: &str, count: usize) {
    let script = "echo $$ > \"$0/cgroup.procs\" && exec dd if=/dev/zero of=\"$1\" bs=4096 count=\"$2\" oflag=direct";
    let status = Command::new("sh")
        .args(["-c", script])
        .arg(&group.0)
        .args([device, &count.to_string()])
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn what_a_killed_command_has_left_is_undone_by_the_next() {
    let test = "what_a_killed_command_has_left_is_undone_by_the_next";
    let Some((disk, group)) = loop_disk(test).zip(Group::new(test)) else {
        return;
    };
    let scratch = Scratch::new();
    let (number, state) = (number(&disk), state(&scratch));
    let path = group.0.display().to_string();
    let target = target(&path, &disk);
    let kill = |child: &mut Child| {
        child.kill().unwrap();
        child.wait().unwrap();
    };
    kill(&mut applied(&target, &scratch));
    assert_eq!(group.writes(), format!("{number} 200\n"));
    let status = run(&["act", "status", "--json", "--state", &state]).fine();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status[0]["held"], false);
    // The next lease begins with the value from before the first one.
    let mut child = applied(&[&target[..5], &["150", "--for", "1m"]].concat(), &scratch);
    assert_eq!(group.writes(), format!("{number} 150\n"));
    // Another program changes it: the lease ends, and the value stays.
    fs::write(
        group.0.join("blkio.throttle.write_iops_device"),
        format!("{number} 77"),
    )
    .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(group.writes(), format!("{number} 77\n"));
    fs::write(
        group.0.join("blkio.throttle.write_iops_device"),
        format!("{number} 0"),
    )
    .unwrap();

    kill(&mut applied(&target, &scratch));
    let undone = run(&["act", "undo", "--all", "--json", "--state", &state]).fine();
    let undone: Value = serde_json::from_str(&undone).unwrap();
    assert_eq!(undone[0]["outcome"], "restored to no limit");
    assert_eq!(group.writes(), "");
}

#[test]
fn undo_ends_a_lease_that_is_held_and_a_vanished_group_ends_it_too() {
    let test = "undo_ends_a_lease_that_is_held_and_a_vanished_group_ends_it_too";
    let Some((disk, group)) = loop_disk(test).zip(Group::new(test)) else {
        return;
    };
    let scratch = Scratch::new();
    let state = state(&scratch);
    let path = group.0.display().to_string();
    let target = target(&path, &disk);
    let mut child = applied(&target, &scratch);
    run(&["act", "undo", "--all", "--state", &state]).fine();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(group.writes(), "");
    let mut child = applied(&target, &scratch);
    fs::remove_dir(&group.0).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(
        run(&["act", "status", "--state", &state]).fine(),
        "no leases\n"
    );
}

#[test]
fn a_limit_of_qemu_is_set_and_restored() {
    let test = "a_limit_of_qemu_is_set_and_restored";
    let scratch = Scratch::new();
    let socket = |name: &str| scratch.path().join(name);
    let qmp = |name: &str| format!("unix:{},server=on,wait=off", socket(name).display());
    let name = format!("act-{}", std::process::id());
    // setpriv ends QEMU if this process is killed.
    let qemu = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "qemu-system-x86_64",
            "-S",
            "-nodefaults",
        ])
        .args([
            "-display", "none", "-M", "pc", "-m", "32", "-accel", "tcg", "-name", &name,
        ])
        .args(["-blockdev", "driver=null-co,node-name=n0,size=16777216"])
        .args(["-device", "virtio-blk-pci,drive=n0,id=disk0"])
        .args(["-qmp", &qmp("qmp"), "-qmp", &qmp("own")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut qemu = qemu.unwrap();
    let started = Instant::now();
    let mut own = loop {
        if let Ok(own) = Qmp::connect(&socket("own")) {
            break own;
        }
        if qemu.try_wait().unwrap().is_some() {
            return skipped(test, "qemu-system-x86_64 cannot be run");
        }
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "QEMU makes its sockets"
        );
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut limits = || {
        let drives = own.call("query-block", json!({})).unwrap();
        ["iops", "iops_rd", "iops_wr", "bps"].map(|name| drives[0]["inserted"][name].clone())
    };
    if run(&[
        "act", "limit", "--vm", &name, "--iops", "300", "--for", "1s",
    ])
    .code
        == 2
    {
        let _ = qemu.kill();
        return skipped(test, "the processes of this host are not visible");
    }
    let target = [
        "--vm",
        &name,
        "--iops",
        "300",
        "--bytes-per-second",
        "8MiB",
        "--for",
        "1m",
    ];
    let mut child = applied(&target, &scratch);
    assert_eq!(
        limits(),
        [300, 0, 0, 8 << 20].map(|limit: u64| json!(limit))
    );
    interrupt(&child);
    child.wait().unwrap();
    assert_eq!(limits(), [0, 0, 0, 0].map(|limit: u64| json!(limit)));
    // A VM that ends leaves nothing to restore.
    let mut child = applied(&target, &scratch);
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(
        run(&["act", "status", "--state", &state(&scratch)]).fine(),
        "no leases\n"
    );
}

/// The seconds that 4 KiB reads take from a tapdisk at an NBD socket; `None` without qemu-img.
fn bench(socket: &str, count: u32) -> Option<f64> {
    let url = format!("nbd+unix:///vda?socket={socket}");
    let count = count.to_string();
    let args = [
        "bench", "-c", &count, "-d", "8", "-s", "4096", "-f", "raw", &url,
    ];
    let output = Command::new("qemu-img").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).unwrap();
    let seconds = text.split("completed in ").nth(1)?.split(' ').next()?;
    Some(seconds.parse().unwrap())
}

#[test]
fn a_limit_of_a_tapdisk_is_set_and_restored() {
    let test = "a_limit_of_a_tapdisk_is_set_and_restored";
    let scratch = Scratch::new();
    let (image, socket) = (scratch.file("disk.raw"), scratch.file("nbd"));
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let name = format!("act-tapdisk-{}", std::process::id());
    let nbd = format!("unix:{socket}");
    let test_process = std::process::id().to_string();
    let mut tapdisk = weir(&["tapdisk", "--image", &image, "--nbd", &nbd])
        .args(["--until-exit", &test_process])
        .args([
            "--vm", &name, "--vdisk", "/dev/vda", "--iops", "5000", "--burst", "20ms",
        ])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while run(&["tapdisk", "status", &socket]).code != 0 {
        let ended = tapdisk.try_wait().unwrap();
        assert!(
            ended.is_none() && started.elapsed() < Duration::from_secs(30),
            "{ended:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let limits = || {
        let status = run(&["tapdisk", "status", "--json", &socket]).fine();
        let status: Value = serde_json::from_str(&status).unwrap();
        let limits = &status["disks"][0]["limits"];
        ["iops", "bytes_per_second", "burst_ms"].map(|name| limits[name].as_u64().unwrap())
    };
    assert_eq!(limits(), [5000, 0, 20]);
    let target = [
        "--vm",
        &name,
        "--iops",
        "200",
        "--bytes-per-second",
        "8MiB",
        "--for",
        "1m",
    ];
    let proposed = run(&[&["act", "limit"], &target[..]].concat());
    if proposed.code == 2 {
        tapdisk.kill().unwrap();
        tapdisk.wait().unwrap();
        return skipped(test, "the processes of this host are not visible");
    }
    let proposed = proposed.fine();
    assert!(proposed.contains("before:  iops=5000"), "{proposed}");
    assert!(
        proposed.contains(&format!("tapdisk limits of {image} at {socket}.tap")),
        "{proposed}"
    );
    let mut child = applied(&target, &scratch);
    assert_eq!(limits(), [200, 8 << 20, 20], "the burst stays");
    // 5 requests are a burst.
    match bench(&socket, 100) {
        Some(seconds) => assert!(seconds >= 0.47, "{seconds} s"),
        None => skipped(test, "qemu-img cannot be run"),
    }
    interrupt(&child);
    child.wait().unwrap();
    assert_eq!(limits(), [5000, 0, 20]);
    // What a killed command has left is undone.
    let mut child = applied(&target, &scratch);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(limits()[0], 200);
    run(&["act", "undo", "--all", "--state", &state(&scratch)]).fine();
    assert_eq!(limits()[0], 5000);
    // A tapdisk that ends leaves nothing to restore.
    let mut child = applied(&target, &scratch);
    tapdisk.kill().unwrap();
    tapdisk.wait().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let log = run(&["act", "log", "--state", &state(&scratch)]).fine();
    assert!(log.contains("gone"), "{log}");
}

#[test]
fn what_cannot_be_limited_is_refused_with_the_reason() {
    let scratch = Scratch::new();
    let state = state(&scratch);
    let folder = scratch.path().display().to_string();
    let limit = |args: &[&str]| {
        let output = run(&[&["act", "limit", "--state", &state], args].concat());
        (output.code, output.err)
    };
    let cases: [(&[&str], &str); 6] = [
        (&["--vm", "x", "--for", "1m"], "--iops"),
        (
            &["--vm", "x", "--iops", "5", "--for", "1m"],
            "below the floor of 50",
        ),
        (
            &["--vm", "x", "--bytes-per-second", "1KiB", "--for", "1m"],
            "below the floor",
        ),
        (&["--vm", "x", "--iops", "500", "--for", "2d"], "24 hours"),
        (&["--iops", "500", "--for", "1m"], "--vm"),
        (
            &["--cgroup", &folder, "--iops", "500", "--for", "1m"],
            "--device",
        ),
    ];
    for (args, expected) in cases {
        let (code, err) = limit(args);
        assert_eq!(code, 2, "{args:?}: {err}");
        assert!(err.contains(expected), "{args:?}: {err}");
    }
    let unknown = run(&["act", "undo", "nothing", "--state", &folder]);
    assert!(
        unknown.code == 2 && unknown.err.contains("weir act status"),
        "{}",
        unknown.err
    );
    assert!(
        !scratch.path().join("leases").exists(),
        "nothing was stored"
    );
}
