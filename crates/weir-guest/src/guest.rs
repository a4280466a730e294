//! A guest that runs: QEMU as a child process, told what to do through a serial port.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::counts::{Counts, disk_stats};
use crate::kit::{Kit, QEMU};
use crate::plan::Load;
use crate::qmp::Qmp;

/// A guest. It ends, with all it has on the host, when it is dropped, and with the thread that
/// started it.
#[derive(Debug)]
pub struct Guest {
    name: String,
    qemu: Child,
    folder: PathBuf,
    port: BufReader<UnixStream>,
}

/// How long a guest may take to boot; about 3 s on an idle machine.
const BOOT: Duration = Duration::from_secs(90);

/// How long a command in the guest may take.
const COMMAND: Duration = Duration::from_secs(60);

static STARTED: AtomicU32 = AtomicU32::new(0);

impl Guest {
    /// Starts QEMU, as VM `name`, with its own options and `args`, such as [`Disk::args`]
    /// gives. It has a virtio-scsi controller with bus `scsi.0`. [`Guest::ready`] waits for it.
    ///
    /// [`Disk::args`]: crate::Disk::args
    pub fn start(kit: &Kit, name: &str, args: &[String]) -> Result<Guest> {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        // Short, since a socket's path has at most 107 bytes.
        let folder = std::env::temp_dir().join(format!("weir-vm-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let listener = UnixListener::bind(folder.join("port"))?;
        let mut qemu = command(kit, name, &folder)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("qemu.log"))?)
            .spawn()
            .context("cannot start setpriv (package util-linux)")?;
        match accept(&listener, &mut qemu, &folder) {
            Ok(port) => Ok(Guest {
                name: name.to_owned(),
                qemu,
                folder,
                port: BufReader::new(port),
            }),
            Err(error) => {
                // It may have ended already.
                let _ = qemu.kill();
                let _ = qemu.wait();
                let _ = fs::remove_dir_all(&folder);
                Err(error)
            }
        }
    }

    /// Waits until it has booted and takes commands.
    pub fn ready(&mut self) -> Result<()> {
        let within = Instant::now() + BOOT;
        while self.line(within)? != "READY" {}
        Ok(())
    }

    /// The name of the VM.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// The QMP socket that an administrator would use.
    pub fn qmp_socket(&self) -> PathBuf {
        self.folder.join("qmp")
    }

    /// A QMP connection of the test's own: QEMU serves one client a socket, so the first one stays
    /// free.
    pub fn qmp(&self) -> Result<Qmp> {
        Qmp::connect(&self.folder.join("qmp-test"))
    }

    /// Runs a line of shell in the guest; what it printed. Another status than 0 is an error.
    pub fn run(&mut self, line: &str) -> Result<String> {
        self.begin(line)?;
        self.finish()
    }

    /// Sends a line of shell without waiting for its end, so that several guests work at once.
    pub fn begin(&mut self, line: &str) -> Result<()> {
        assert!(!line.contains('\n'), "a command is one line");
        let port = self.port.get_mut();
        port.write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("VM {} takes no command", self.name))
    }

    /// Waits for the end of what [`Guest::begin`] sent.
    pub fn finish(&mut self) -> Result<String> {
        let within = Instant::now() + COMMAND;
        let mut said = String::new();
        loop {
            let line = self.line(within)?;
            match line.strip_prefix("@@:") {
                Some("0") => return Ok(said),
                Some(status) => bail!("VM {}: status {status}: {said}", self.name),
                None => said.push_str(&format!("{line}\n")),
            }
        }
    }

    /// Runs these loads in the guest, all at once; what was done, in their order.
    pub fn load(&mut self, loads: &[Load]) -> Result<Vec<Done>> {
        self.begin_load(loads)?;
        self.finish_load(loads)
    }

    /// Sends loads without waiting for their end.
    pub fn begin_load(&mut self, loads: &[Load]) -> Result<()> {
        let words: Vec<String> = loads.iter().map(Load::to_string).collect();
        self.begin(&format!("load {}", words.join(" ")))
    }

    /// Waits for the end of what [`Guest::begin_load`] sent.
    pub fn finish_load(&mut self, loads: &[Load]) -> Result<Vec<Done>> {
        let said = self.finish()?;
        let done: Result<Vec<Done>> = said.lines().map(Done::parse).collect();
        let done = done.with_context(|| format!("VM {}: {said}", self.name))?;
        if done.len() != loads.len() {
            bail!("VM {}: {} loads were sent: {said}", self.name, loads.len());
        }
        Ok(done)
    }

    /// What the guest's kernel counts of its disks, by name, as `vda`.
    pub fn disk_stats(&mut self) -> Result<BTreeMap<String, Counts>> {
        Ok(disk_stats(&self.run("cat /proc/diskstats")?))
    }

    /// The next line from the guest.
    fn line(&mut self, within: Instant) -> Result<String> {
        let mut line = Vec::new();
        loop {
            match self.port.read_until(b'\n', &mut line) {
                Ok(_) if line.ends_with(b"\n") => {
                    let text = String::from_utf8_lossy(&line);
                    return Ok(text.trim_end().to_owned());
                }
                Ok(_) => bail!("VM {} has ended{}", self.name, self.last_words()),
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < within => {}
                Err(e) => bail!("VM {} does not answer: {e}{}", self.name, self.last_words()),
            }
        }
    }

    /// What QEMU and the guest's kernel said, for an error.
    fn last_words(&self) -> String {
        last_words(&self.folder)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("cleaning up {}: {error}", self.folder.display());
        }
    }
}

/// QEMU without disks. Machine `pc` and one processor boot quickest in emulation; `microvm` hangs at
/// times.
fn command(kit: &Kit, name: &str, folder: &Path) -> Command {
    let at = |name: &str| folder.join(name).display().to_string();
    // Should this process be killed, nobody else would end the guest, and it holds its images.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", QEMU, "-name", name])
        .args(["-M", "pc", "-accel", "tcg", "-cpu", "max", "-m", "256"])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(kit.kernel())
        .arg("-initrd")
        .arg(kit.initramfs())
        .args(["-append", "console=ttyS0 panic=-1 quiet"])
        .args(["-serial", &format!("file:{}", at("console"))])
        .args(["-chardev", &format!("socket,id=port,path={}", at("port"))])
        .args(["-serial", "chardev:port"])
        .args(["-qmp", &format!("unix:{},server=on,wait=off", at("qmp"))])
        .args([
            "-qmp",
            &format!("unix:{},server=on,wait=off", at("qmp-test")),
        ])
        .args(["-device", "virtio-scsi-pci,id=scsi"]);
    command
}

/// Waits for QEMU to connect its serial port, which it does before it starts the guest.
fn accept(listener: &UnixListener, qemu: &mut Child, folder: &Path) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let within = Instant::now() + BOOT;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(Duration::from_millis(200)))?;
                return Ok(stream);
            }
            Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e.into()),
            Err(_) => {}
        }
        if let Some(status) = qemu.try_wait()? {
            bail!("QEMU ended with {status}{}", last_words(folder));
        }
        if Instant::now() > within {
            bail!("QEMU does not start{}", last_words(folder));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn last_words(folder: &Path) -> String {
    let mut said = String::new();
    for name in ["qemu.log", "console"] {
        let text = fs::read(folder.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(10)..] {
            said.push_str(&format!("\n{name}: {line}"));
        }
    }
    said
}

/// What the load program did to a disk, as it says itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Finished reads.
    pub reads: i64,
    /// Their bytes.
    pub read_bytes: i64,
    /// Finished writes.
    pub writes: i64,
    /// Their bytes.
    pub write_bytes: i64,
    /// Finished calls of fsync.
    pub fsyncs: i64,
}

impl Done {
    fn parse(line: &str) -> Result<Done> {
        let value: Value = serde_json::from_str(line)?;
        let n = |name: &str| value[name].as_i64().with_context(|| format!("no {name}"));
        Ok(Done {
            reads: n("reads")?,
            read_bytes: n("read_bytes")?,
            writes: n("writes")?,
            write_bytes: n("write_bytes")?,
            fsyncs: n("fsyncs")?,
        })
    }
}
