//! `weir tune --guest`: settings of a guest's disk through a port, here two sockets and a relay in
//! the place of QEMU's, and a second loop device in the place of the guest's disk.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use weir_testing::{DiskLoad, LoopDisk, PacedLoad, is_root};

use crate::live::{loop_disk, watchable};
use crate::support::{Scratch, run, skipped, weir};

/// A guest with one disk: the process `weir tune --serve`, and the relay.
struct Guest {
    disk: LoopDisk,
    server: Child,
    folder: Scratch,
}

impl Guest {
    fn start(test: &str) -> Option<Guest> {
        let disk = loop_disk(test)?;
        disk.set("read_ahead_kb", "128").unwrap();
        let folder = Scratch::new();
        let [of_guest, of_host] = ["guest", "host"].map(|name| folder.file(name));
        let of_guest_side = UnixListener::bind(&of_guest).unwrap();
        let of_host_side = UnixListener::bind(of_host).unwrap();
        let state = folder.file("journals");
        let args = [
            "tune",
            "--serve",
            &of_guest,
            "--allow",
            disk.path(),
            "--state",
            &state,
        ];
        let mut command = weir(&args);
        let server = command.stderr(Stdio::null()).spawn().unwrap();
        let (guest, _) = of_guest_side.accept().unwrap();
        std::thread::spawn(move || {
            let (host, _) = of_host_side.accept().unwrap();
            relay(host.try_clone().unwrap(), guest.try_clone().unwrap());
            relay(guest, host);
        });
        Some(Guest {
            disk,
            server,
            folder,
        })
    }

    fn socket(&self) -> String {
        self.folder.file("host")
    }

    fn setting(&self) -> PathBuf {
        self.disk.sysfs().join("queue/read_ahead_kb")
    }

    fn value(&self) -> String {
        fs::read_to_string(self.setting())
            .unwrap()
            .trim()
            .to_owned()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Copies bytes in a thread, and passes on the end.
fn relay(mut from: UnixStream, mut to: UnixStream) {
    std::thread::spawn(move || {
        let mut part = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut part) {
            if to.write_all(&part[..count]).is_err() {
                break;
            }
        }
        // The other direction may have ended it.
        let _: io::Result<()> = to.shutdown(Shutdown::Write);
    });
}

/// The arguments of a trial of two candidates, one with settings of both sides.
fn trial(disk: &LoopDisk, guest: &Guest, state: &str, rounds: &str) -> Vec<String> {
    let candidates = "guest:read_ahead_kb=64,read_ahead_kb=32+guest:read_ahead_kb=16";
    let name = guest.disk.name();
    let socket = guest.socket();
    let args = [
        "tune",
        "-i",
        disk.path(),
        "--for",
        "p99",
        "--try",
        "--guest",
        &socket,
        "--guest-disk",
        name,
        "--candidates",
        candidates,
        "--rounds",
        rounds,
        "--block",
        "500ms",
        "--settle",
        "200ms",
        "--observe",
        "2s",
        "--abort-factor",
        "1000000",
        "--state",
        state,
    ];
    args.map(str::to_owned).into()
}

fn load(disk: &LoopDisk) -> PacedLoad {
    PacedLoad::start(DiskLoad {
        read: 100,
        write: 0,
        rate: 1_000,
        span: 32 << 20,
        ..DiskLoad::on(disk.path())
    })
}

#[test]
fn settings_of_a_guest_are_tried_and_restored_also_after_a_kill() {
    let test = "settings_of_a_guest_are_tried_and_restored_also_after_a_kill";
    if !is_root() || !watchable(test) {
        return skipped(test, "needs root, and the tap");
    }
    let Some(disk) = loop_disk(test) else { return };
    let load = load(&disk);
    let state = Scratch::new();
    let state = state.file("state");
    for is_killed in [false, true] {
        let Some(guest) = Guest::start(test) else {
            return;
        };
        let rounds = if is_killed { "50" } else { "1" };
        let args = trial(&disk, &guest, &state, rounds);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = weir(&args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut seen = BTreeSet::new();
        let until = Instant::now() + Duration::from_secs(120);
        let status = loop {
            seen.insert(guest.value());
            if is_killed && seen.len() == 3 {
                child.kill().unwrap();
            }
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "{seen:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(status.success(), !is_killed);
        let expected = ["128", "16", "64"].map(str::to_owned);
        assert_eq!(seen, BTreeSet::from(expected));
        while guest.value() != "128" {
            assert!(Instant::now() < until, "{}", guest.value());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    run(&["tune", "--restore", "--state", &state]).fine();
    load.stop().unwrap();
}

#[test]
fn a_guest_needs_a_socket_and_a_disk() {
    for (more, code, expected) in [
        (
            &["--guest", "/nosuch", "--guest-disk", "vda"][..],
            2,
            "--try",
        ),
        (&["--try", "--guest", "/nosuch"], 2, "--guest-disk"),
        (&["--serve", "/nosuch"], 2, "--for"),
    ] {
        let args = [&["tune", "-i", "x", "--for", "p99"][..], more].concat();
        let args = if more[0] == "--serve" {
            &["tune", "--serve", "/x"][..]
        } else {
            &args
        };
        let output = run(args);
        assert_eq!(output.code, code, "{args:?}: {}", output.err);
        let is_named = [expected, "--allow"]
            .iter()
            .any(|text| output.err.contains(text));
        assert!(is_named, "{args:?}: {}", output.err);
    }
    let output = run(&["tune", "--serve", "/nosuch", "--allow", "vda"]);
    assert_eq!(output.code, 1, "{}", output.err);
    assert!(output.err.contains("--serve /nosuch"), "{}", output.err);
}
