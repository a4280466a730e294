//! `weir tune --guest` with a guest in QEMU: `weir tune --serve` in the guest changes the queue of
//! its virtual disk through a port of virtio-serial, and restores it at each end.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_testing::{DiskLoad, GuestDisk, Kit, LoopDisk, Scratch, is_full};

use weir_tune::guest::messages::KEEP_EVERY;

use crate::kit;
use crate::with_weir::{WEIR, WeirGuest};

/// The setting that is observed in the guest.
const SETTING: &str = "cat /sys/block/vda/queue/read_ahead_kb";

/// How long a trial and a restore may take in emulation.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A guest with weir, and its disk on a loop device.
struct Tuned {
    guest: WeirGuest,
    disk: LoopDisk,
}

impl Tuned {
    fn start(kit: &Kit, test: &str) -> anyhow::Result<Tuned> {
        let folder = Scratch::new();
        let disk = LoopDisk::new(64)?;
        let socket = format!(
            "socket,id=tune,path={},server=on,wait=off",
            folder.file("tune")
        );
        let port = "virtserialport,chardev=tune,name=weir.tune";
        let ports = [
            "-device",
            "virtio-serial-pci",
            "-chardev",
            &socket,
            "-device",
            port,
        ];
        let mut args = GuestDisk::new("data", disk.path()).args();
        args.extend(ports.map(str::to_owned));
        let mut guest = WeirGuest::boot(kit, test, "tuning", folder, &args)?;
        guest.run("load_module virtio_console || true")?;
        guest.run("echo 128 > /sys/block/vda/queue/read_ahead_kb")?;
        let mut tuned = Tuned { guest, disk };
        tuned.serve()?;
        // More requests than a trial takes; they end with the guest.
        let load = DiskLoad {
            read: 100,
            write: 0,
            rate: 100,
            count: 1_000_000,
            span: 32 << 20,
            ..DiskLoad::on("/dev/vda")
        };
        tuned
            .guest
            .run(&format!("load {load} > /tmp/load 2>&1 &"))?;
        Ok(tuned)
    }

    /// Starts the process that permits changes.
    fn serve(&mut self) -> anyhow::Result<()> {
        // udev would name it /dev/virtio-ports/weir.tune.
        self.guest.run(&format!(
            "{WEIR} tune --serve /dev/vport*p1 --allow vda --state /tmp/tune \
             2> /tmp/serve & echo $! > /tmp/serve.pid"
        ))?;
        Ok(())
    }

    /// Starts a trial on the host.
    fn trial(&self, rounds: &str) -> Child {
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.args([
            "tune",
            "-i",
            self.disk.path(),
            "--for",
            "iops",
            "--try",
            "--json",
        ])
        .args([
            "--guest",
            &self.guest.folder.file("tune"),
            "--guest-disk",
            "vda",
        ])
        .args([
            "--candidates",
            "guest:read_ahead_kb=64,none+guest:read_ahead_kb=32",
        ])
        .args(["--rounds", rounds, "--block", "500ms", "--settle", "200ms"])
        .args(["--observe", "3s", "--abort-factor", "1000000"])
        .args(["--state", &self.guest.folder.file("journals")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
        weir.spawn().unwrap()
    }

    /// The value of the setting in the guest.
    fn value(&mut self) -> String {
        self.guest.run(SETTING).unwrap().trim().to_owned()
    }

    /// Waits until the setting was changed by the trial.
    fn await_change(&mut self, trial: &mut Child) {
        let until = Instant::now() + TIMEOUT;
        while self.value() == "128" {
            let ended = trial.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < until, "{ended:?}");
        }
    }

    /// Waits until the setting is that of before.
    fn await_restored(&mut self) {
        let until = Instant::now() + TIMEOUT;
        while self.value() != "128" {
            let log = self.guest.run("cat /tmp/serve").unwrap();
            assert!(Instant::now() < until, "{log}");
        }
    }
}

#[test]
fn the_disk_of_a_guest_is_tuned_and_restored_at_each_end() {
    const TEST: &str = "the_disk_of_a_guest_is_tuned_and_restored_at_each_end";
    if !is_full() {
        return;
    }
    let Some((kit, _turn)) = kit(TEST) else {
        return;
    };
    let mut tuned = Tuned::start(&kit, TEST).unwrap();

    // A trial to its end: both candidates are applied, and the report has them.
    let mut trial = tuned.trial("2");
    let mut seen = BTreeSet::new();
    let until = Instant::now() + TIMEOUT;
    while trial.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "{seen:?}");
        seen.insert(tuned.value());
    }
    let output = trial.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert_eq!(seen, BTreeSet::from(["128", "32", "64"].map(str::to_owned)));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        report.to_string().contains("guest:read_ahead_kb"),
        "{report}"
    );
    assert_eq!(tuned.value(), "128");

    // The process of the host is killed: QEMU reports that its client has disconnected.
    let mut trial = tuned.trial("50");
    tuned.await_change(&mut trial);
    trial.kill().unwrap();
    trial.wait().unwrap();
    tuned.await_restored();
    let log = tuned.guest.run("cat /tmp/serve").unwrap();
    assert!(log.contains("vda: restored: the host"), "{log}");

    // The same while a request of it is in the port: its answer cannot be written.
    let mut trial = tuned.trial("50");
    tuned.await_change(&mut trial);
    tuned.guest.run("kill -STOP $(cat /tmp/serve.pid)").unwrap();
    std::thread::sleep(KEEP_EVERY * 2);
    trial.kill().unwrap();
    trial.wait().unwrap();
    tuned
        .guest
        .run("sleep 1; kill -CONT $(cat /tmp/serve.pid)")
        .unwrap();
    tuned.await_restored();

    // The process in the guest is killed: the host's trial fails and restores its own settings; the
    // guest's are restored when the process starts again.
    let mut trial = tuned.trial("50");
    tuned.await_change(&mut trial);
    tuned.guest.run("kill -9 $(cat /tmp/serve.pid)").unwrap();
    let output = trial.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("the guest at "), "{err}");
    tuned.serve().unwrap();
    tuned.await_restored();
}
