//! The serial port that controls a guest, whichever process started its QEMU.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::counts::{Counts, disk_stats};
use crate::plan::DiskLoad;

/// How long a guest may take to boot; about 3 s on an idle machine.
const BOOT: Duration = Duration::from_secs(90);

/// How long a command in the guest may take.
pub(crate) const COMMAND: Duration = Duration::from_secs(60);

/// A socket that waits for QEMU to connect a guest's second serial port.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// A socket at `path`, of at most 107 bytes, that every user may connect to.
    pub fn bind(path: &Path) -> Result<Socket> {
        let failed = || format!("cannot listen at {}", path.display());
        let listener = UnixListener::bind(path).with_context(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).with_context(failed)?;
        listener.set_nonblocking(true)?;
        Ok(Socket {
            listener,
            path: path.to_owned(),
        })
    }

    /// Waits for QEMU to connect, which it does before it starts the guest. `alive` fails when
    /// there is nothing to wait for any more.
    pub fn accept(&self, vm: &str, mut alive: impl FnMut() -> Result<()>) -> Result<Port> {
        let within = Instant::now() + BOOT;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
                    return Ok(Port {
                        vm: vm.to_owned(),
                        logs: self.path.parent().unwrap_or(Path::new("/")).to_owned(),
                        stream: BufReader::new(stream),
                    });
                }
                Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e.into()),
                Err(_) => alive()?,
            }
            if Instant::now() > within {
                bail!(
                    "QEMU of VM {vm} does not connect to {}",
                    self.path.display()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A guest's second serial port.
#[derive(Debug)]
pub struct Port {
    vm: String,
    /// Where `qemu.log` and `console` may be, for errors.
    logs: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Port {
    /// Waits until it has booted and accepts commands.
    pub fn ready(&mut self) -> Result<()> {
        let within = Instant::now() + BOOT;
        while self.line(within)? != "READY" {}
        Ok(())
    }

    /// Runs a shell command in the guest; returns its output. A non-zero exit status is an error.
    pub fn run(&mut self, line: &str) -> Result<String> {
        self.begin(line)?;
        self.finish()
    }

    /// Sends a shell command without waiting for its end, so that several guests run concurrently.
    /// A guest accepts the next one after [`Port::finish`] has returned.
    pub fn begin(&mut self, line: &str) -> Result<()> {
        assert!(
            !line.is_empty() && !line.contains('\n'),
            "a command is one line"
        );
        let port = self.stream.get_mut();
        port.write_all(format!("{line}\n").as_bytes())
            .with_context(|| format!("VM {} takes no command", self.vm))
    }

    /// Waits for the end of the command of [`Port::begin`].
    pub fn finish(&mut self) -> Result<String> {
        self.finish_within(COMMAND)
    }

    /// As [`Port::finish`], with a timeout for the command.
    pub fn finish_within(&mut self, timeout: Duration) -> Result<String> {
        let within = Instant::now() + timeout;
        let mut output = String::new();
        loop {
            let line = self.line(within)?;
            match line.strip_prefix("@@:") {
                Some("0") => return Ok(output),
                Some(status) => bail!("VM {}: status {status}: {output}", self.vm),
                None => output.push_str(&format!("{line}\n")),
            }
        }
    }

    /// Runs these loads in the guest concurrently; returns their results in order.
    pub fn load(&mut self, loads: &[DiskLoad]) -> Result<Vec<Done>> {
        self.begin_load(loads)?;
        self.finish_load(loads)
    }

    /// Sends loads without waiting for their end.
    pub fn begin_load(&mut self, loads: &[DiskLoad]) -> Result<()> {
        let words: Vec<String> = loads.iter().map(DiskLoad::to_string).collect();
        self.begin(&format!("load {}", words.join(" ")))
    }

    /// Waits for the end of the loads of [`Port::begin_load`].
    pub fn finish_load(&mut self, loads: &[DiskLoad]) -> Result<Vec<Done>> {
        let output = self.finish()?;
        let done: Result<Vec<Done>> = output.lines().map(Done::parse).collect();
        let done = done.with_context(|| format!("VM {}: {output}", self.vm))?;
        if done.len() != loads.len() {
            bail!("VM {}: {} loads were sent: {output}", self.vm, loads.len());
        }
        Ok(done)
    }

    /// The guest kernel's counters of its disks, by name, such as `vda`.
    pub fn disk_stats(&mut self) -> Result<BTreeMap<String, Counts>> {
        Ok(disk_stats(&self.run("cat /proc/diskstats")?))
    }

    /// The next line from the guest.
    fn line(&mut self, within: Instant) -> Result<String> {
        let mut line = Vec::new();
        loop {
            match self.stream.read_until(b'\n', &mut line) {
                Ok(_) if line.ends_with(b"\n") => {
                    let text = String::from_utf8_lossy(&line);
                    return Ok(text.trim_end().to_owned());
                }
                Ok(_) => bail!("VM {} has ended{}", self.vm, last_log_lines(&self.logs)),
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < within => {}
                Err(e) => bail!(
                    "VM {} does not answer: {e}{}",
                    self.vm,
                    last_log_lines(&self.logs)
                ),
            }
        }
    }
}

/// The last lines of QEMU's and the guest kernel's output, for an error.
pub(crate) fn last_log_lines(folder: &Path) -> String {
    let mut output = String::new();
    for name in ["qemu.log", "console"] {
        let text = fs::read(folder.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(10)..] {
            output.push_str(&format!("\n{name}: {line}"));
        }
    }
    output
}

/// The results that the load program reports for a disk.
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
