//! A running guest: QEMU as a child process, controlled through a serial port.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::kit::Kit;
use crate::port::{COMMAND, Port, Socket, last_log_lines};
use crate::qmp::Qmp;
use crate::scratch::Scratch;
use crate::skip::tried_again;

/// A guest, controlled through its [`Port`]. It ends, with all its files on the host, when it is
/// dropped, and with the thread that started it.
#[derive(Debug)]
pub struct Guest {
    name: String,
    qemu: Child,
    folder: Scratch,
    port: Port,
}

/// The memory of a guest.
pub(crate) const MEMORY_MEBIBYTES: u32 = 256;

impl Guest {
    /// Starts QEMU, as VM `name`, with its own options and `args`, such as those of
    /// [`GuestDisk::args`]. It has a virtio-scsi controller with bus `scsi.0`. [`Port::ready`]
    /// waits for it.
    ///
    /// [`GuestDisk::args`]: crate::GuestDisk::args
    pub fn start(kit: &Kit, name: &str, args: &[String]) -> Result<Guest> {
        let scratch = Scratch::new();
        let folder = scratch.path();
        let socket = Socket::bind(&folder.join("port"))?;
        let mut qemu = command(kit, name, folder)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("qemu.log"))?)
            .spawn()
            .context("cannot start setpriv (package util-linux)")?;
        let alive = || match qemu.try_wait()? {
            Some(status) => bail!("QEMU ended with {status}{}", last_log_lines(folder)),
            None => Ok(()),
        };
        match socket.accept(name, alive) {
            Ok(port) => Ok(Guest {
                name: name.to_owned(),
                qemu,
                folder: scratch,
                port,
            }),
            Err(error) => {
                // It may have ended already.
                let _ = qemu.kill();
                let _ = qemu.wait();
                Err(error)
            }
        }
    }

    /// The same for `test`, booted. In emulation with two processors, a kernel that patches itself
    /// may panic at boot: it starts once more then.
    pub fn boot(kit: &Kit, test: &str, name: &str, args: &[String]) -> Result<Guest> {
        let boot = || -> Result<Guest> {
            let mut guest = Guest::start(kit, name, args)?;
            guest.ready()?;
            Ok(guest)
        };
        boot().or_else(|why| {
            tried_again(test, format_args!("the guest does not boot: {why:#}"));
            boot()
        })
    }

    /// The name of the VM.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// The QMP socket for administrators.
    pub fn qmp_socket(&self) -> PathBuf {
        self.folder.path().join("qmp")
    }

    /// A QMP connection for the test: QEMU serves one client per socket, so the first one stays
    /// free.
    pub fn qmp(&self) -> Result<Qmp> {
        Qmp::connect(&self.folder.path().join("qmp-test"))
    }

    /// Ends QEMU in order, so that its images are complete.
    pub fn quit(mut self) -> Result<()> {
        let mut qmp = self.qmp()?;
        // It may end before its answer arrives; the exit is checked below.
        let _ = qmp.call("quit", json!({}));
        let within = Instant::now() + COMMAND;
        while self.qemu.try_wait()?.is_none() {
            if Instant::now() > within {
                bail!(
                    "VM {} does not quit{}",
                    self.name,
                    last_log_lines(self.folder.path())
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Deref for Guest {
    type Target = Port;

    fn deref(&self) -> &Port {
        &self.port
    }
}

impl DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut Port {
        &mut self.port
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// QEMU without disks.
fn command(kit: &Kit, name: &str, folder: &Path) -> Command {
    let at = |name: &str| folder.join(name).display().to_string();
    let architecture = kit.architecture();
    // If this process is killed, the guest must end too, since it holds its images.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", architecture.emulator])
        .args(["-name", name, "-accel", "tcg"])
        .args(architecture.machine)
        .args(["-m", &MEMORY_MEBIBYTES.to_string()])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(kit.kernel())
        .arg("-initrd")
        .arg(kit.initramfs())
        .args(["-append", architecture.command_line])
        .args(["-serial", &format!("file:{}", at("console"))])
        .args(["-chardev", &format!("socket,id=port,path={}", at("port"))])
        .args(architecture.port)
        .args(["-qmp", &format!("unix:{},server=on,wait=off", at("qmp"))])
        .args([
            "-qmp",
            &format!("unix:{},server=on,wait=off", at("qmp-test")),
        ])
        .args(["-device", "virtio-scsi-pci,id=scsi"]);
    command
}
