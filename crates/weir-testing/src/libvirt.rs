//! libvirt, started by a test without systemd: in session mode, without configuration and
//! privileges, or in system mode, in namespaces of its own.

use std::fs;
use std::os::unix::fs::chown;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::memory::MemoryFolder;
use crate::port::{Port, Socket};

/// `nobody`: libvirt's session mode is for unprivileged users.
pub const USER: u32 = 65534;

/// Prepares the namespaces, and starts libvirtd in them.
const SYSTEM_MODE: &str = include_str!("libvirt_system.sh");

/// How long libvirtd may take to start: the first start probes each QEMU binary.
const START: Duration = Duration::from_secs(60);

/// libvirtd as a child, for one user, with all its files in a folder.
#[derive(Debug)]
pub struct Session {
    libvirtd: Child,
    folder: String,
}

impl Session {
    /// Starts libvirtd, and waits until it answers.
    pub fn start(folder: &MemoryFolder) -> Result<Session> {
        let folder = folder.file("libvirt");
        fs::create_dir(&folder)?;
        chown(&folder, Some(USER), Some(USER))?;
        let libvirtd = as_user(&folder, "libvirtd")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start setpriv (package util-linux)")?;
        let session = Session { libvirtd, folder };
        let within = Instant::now() + START;
        while let Err(why) = session.virsh(&["list"]) {
            if Instant::now() > within {
                return Err(why.context("libvirtd does not start"));
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(session)
    }

    /// Runs a command of virsh; returns its output.
    pub fn virsh(&self, args: &[&str]) -> Result<String> {
        let mut virsh = as_user(&self.folder, "virsh");
        let output = virsh
            .args(["-q", "-c", "qemu:///session"])
            .args(args)
            .output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let output = String::from_utf8_lossy(&output.stderr);
        bail!("virsh {args:?}: {}", output.trim())
    }

    /// Starts a defined domain; returns its serial port, when it has booted.
    pub fn boot(&self, name: &str, socket: &Socket) -> Result<Port> {
        self.virsh(&["start", name])?;
        let mut port = socket.accept(name, || Ok(()))?;
        port.ready()?;
        Ok(port)
    }

    /// Reads and writes of a disk as libvirt counts them.
    pub fn requests(&self, name: &str, disk: &str) -> Result<(i64, i64)> {
        let output = self.virsh(&["domblkstat", name, disk])?;
        // `vda rd_req 123`
        let field = |field: &str| {
            let mut lines = output.lines();
            let value = lines.find_map(|line| {
                let mut words = line.split_whitespace().skip(1);
                (words.next() == Some(field)).then(|| words.next())?
            });
            let value = value.with_context(|| format!("no {field}: {output}"))?;
            anyhow::Ok(value.parse()?)
        };
        Ok((field("rd_req")?, field("wr_req")?))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for name in ["shop", "store"] {
            // It may have ended already.
            let _ = self.virsh(&["destroy", name]);
        }
        let _ = self.libvirtd.kill();
        let _ = self.libvirtd.wait();
    }
}

/// A command as that user, with all files of libvirt in `folder`. It ends with this thread.
fn as_user(folder: &str, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    let user = format!("--reuid={USER}");
    command
        .args([
            &user,
            "--regid=65534",
            "--clear-groups",
            "--pdeathsig=KILL",
            program,
        ])
        .stdin(Stdio::null())
        .current_dir(folder);
    for name in [
        "HOME",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
    ] {
        command.env(name, folder);
    }
    command
}

/// Runs a shell script where a libvirtd in system mode serves `qemu:///system`, with its files in
/// `folder`; all its processes end with the script. Requires root.
pub fn in_system_mode(folder: &str, script: &str) -> Result<String> {
    let output = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["sh", "-c", SYSTEM_MODE, "sh", script, folder])
        .stdin(Stdio::null())
        .output()
        .context("cannot start unshare (package util-linux)")?;
    let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(printed(&output.stdout)),
        false => bail!(
            "{}: {}{}",
            output.status,
            printed(&output.stdout),
            printed(&output.stderr)
        ),
    }
}

/// The description of domain `shop`: `disks` is XML too. Its memory can be shared with back ends.
pub fn domain(kernel: &str, initramfs: &str, port: &str, disks: &str) -> String {
    format!(
        "<domain type='qemu'><name>shop</name><memory unit='MiB'>256</memory><vcpu>1</vcpu>
        <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
        <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{kernel}</kernel>
        <initrd>{initramfs}</initrd><cmdline>console=ttyS0 panic=-1 quiet no_timer_check</cmdline></os>
        <features><acpi/></features><cpu mode='maximum'/><on_reboot>destroy</on_reboot>
        <devices>{disks}<controller type='scsi' model='virtio-scsi'/><controller type='usb' model='none'/>
        <serial type='file'><source path='{initramfs}.console'/><target port='0'/></serial>
        <serial type='unix'><source mode='connect' path='{port}'/><target port='1'/></serial>
        <memballoon model='none'/></devices></domain>"
    )
}

/// A disk of a domain: an image without the host's page cache.
pub fn disk(path: &str, format: &str, aio: &str, target: &str) -> String {
    let bus = if target.starts_with('s') {
        "scsi"
    } else {
        "virtio"
    };
    format!(
        "<disk type='file' device='disk'><driver name='qemu' type='{format}' cache='none' io='{aio}'/>
        <source file='{path}'/><target dev='{target}' bus='{bus}'/></disk>"
    )
}

/// A disk of a domain that a vhost-user back end serves at a socket.
pub fn served_disk(socket: &str, target: &str) -> String {
    format!(
        "<disk type='vhostuser' device='disk'><driver name='qemu' type='raw'/>
        <source type='unix' path='{socket}'><reconnect enabled='yes' timeout='1'/></source>
        <target dev='{target}' bus='virtio'/></disk>"
    )
}
