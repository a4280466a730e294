//! A QEMU whose guest never starts, with disks of known behaviour.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_model::Symbol;
use weir_model::inventory::{Disk, FoundBy, Vm, VmKind};
use weir_tap::inventory::{LaidDisk, Snapshot};
use weir_tap::qmp::{QmpAddress, human};
use weir_testing::{Scratch, skip};

/// The emulator.
const QEMU: &str = "qemu-system-x86_64";

/// Timeout that is sufficient for a loaded machine.
pub const PATIENT: Duration = Duration::from_secs(30);

/// The options of every machine: `disk0` is virtio-blk with a latency of 5 ms per request, `disk1`
/// is SCSI without latency.
const DISKS: [&str; 16] = [
    "-blockdev",
    "driver=null-co,node-name=n0,size=16777216,latency-ns=5000000",
    "-device",
    "virtio-blk-pci,drive=n0,id=disk0",
    "-device",
    "virtio-scsi-pci,id=scsi",
    "-blockdev",
    "driver=null-co,node-name=n1,size=16777216",
    "-device",
    "scsi-hd,drive=n1,id=disk1",
    "-M",
    "pc",
    "-m",
    "32",
    "-accel",
    "tcg",
];

/// The machine; it is killed when this is dropped.
pub struct Machine {
    qemu: Child,
    folder: Scratch,
}

impl Machine {
    /// Starts a machine, or prints that `test` is skipped.
    pub fn start(test: &str) -> Option<Machine> {
        let folder = Scratch::new();
        let qmp = |name: &str| {
            let path = folder.file(name);
            ["-qmp".into(), format!("unix:{path},server=on,wait=off")]
        };
        // setpriv ends QEMU if this process is killed.
        let qemu = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", QEMU, "-S", "-nodefaults"])
            .args(["-display", "none", "-name", "still"])
            .args(DISKS)
            .args(qmp("qmp"))
            .args(qmp("qmp-test"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut machine = Machine {
            qemu: qemu.expect("setpriv of util-linux is there"),
            folder,
        };
        let until = Instant::now() + PATIENT;
        // The file exists before QEMU accepts connections to it.
        while UnixStream::connect(machine.folder.path().join("qmp-test")).is_err() {
            if let Some(status) = machine.qemu.try_wait().unwrap() {
                return skip(test, format_args!("{QEMU} cannot be run ({status})"));
            }
            assert!(Instant::now() < until, "QEMU makes its sockets");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(machine)
    }

    /// The socket for weir.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("qmp")
    }

    /// A socket for the test only.
    pub fn own(&self) -> QmpAddress {
        QmpAddress::Socket(self.folder.path().join("qmp-test"))
    }

    /// Performs I/O on the device `qdev`: `aio_` commands of qemu-io, which QEMU counts.
    pub fn io(&self, qdev: &str, commands: &[&str]) {
        let io = |qemu: &mut dyn weir_tap::qmp::QemuMonitor| {
            for command in commands {
                let output = human(qemu, &format!("qemu-io -d {qdev} \"{command}\""))?;
                assert_eq!(output, "", "{command}");
            }
            // Waits for the requests in flight.
            human(qemu, &format!("qemu-io -d {qdev} \"aio_flush\""))
        };
        self.own().visit(PATIENT, io).unwrap();
    }

    /// The snapshot that an inventory would return.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let disk = |device: &str, node: &str, vdisk: &str| LaidDisk {
            tapdisk: None,
            control: None,
            disk: Disk {
                device: Some(Symbol::new(device)),
                node: Some(Symbol::new(node)),
                ..Disk::new("still", vdisk, FoundBy::Nothing, "test")
            },
            vm: 0,
            layout: Arc::default(),
        };
        Arc::new(Snapshot {
            vms: vec![Vm {
                pid: Some(i64::from(self.qemu.id())),
                ..Vm::new("still", VmKind::Qemu, "test")
            }],
            disks: vec![
                disk("disk0", "n0", "/dev/vda"),
                disk("disk1", "n1", "/dev/sda"),
            ],
            monitors: [(0, QmpAddress::Socket(self.socket()))].into(),
            ..Snapshot::default()
        })
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.qemu.kill().unwrap();
        self.qemu.wait().unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
