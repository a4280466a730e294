//! The process of an inserted tap: a `weir tapdisk` that outlives the command that started it, and
//! ends with its VM.

use super::InsertionError;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::disk::Identity;
use rustix::process::{Pid, Signal, kill_process};

use super::entry::{Entry, Process, Record};

/// How long a tap may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long it may take to end; then it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// The interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How much of a log is shown, in bytes.
const LOG_BYTES_SHOWN: u64 = 2000;

/// The parameters of a tap.
pub struct TapParameters<'a> {
    /// The image.
    pub image: PathBuf,
    /// The identity of that file, which must not be replaced at its path.
    pub identity: Identity,
    /// The names of the VM and its disk in rows.
    pub vm: &'a str,
    /// See `vm`.
    pub vdisk: &'a str,
    /// Without the host's page cache, as in QEMU.
    pub direct: bool,
    /// Writes are rejected.
    pub read_only: bool,
    /// QEMU: the tap ends when it does.
    pub pid: u32,
}

impl TapParameters<'_> {
    /// The arguments of `weir` that serve it at `socket`.
    pub fn arguments(&self, socket: &Path) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut arguments = vec!["tapdisk".to_owned()];
        let mut add = |name: &str, value: String| arguments.push(format!("--{name}={value}"));
        add("image", text(&self.image));
        // QEMU's own node for it is raw, whatever the guest has written to it.
        add("format", "raw".to_owned());
        add("identity", self.identity.to_string());
        add("nbd", format!("unix:{}", text(socket)));
        add("vm", self.vm.to_owned());
        add("vdisk", self.vdisk.to_owned());
        let cache = if self.direct { "direct" } else { "page" };
        add("cache", cache.to_owned());
        add("until-exit", self.pid.to_string());
        let folder = socket.parent().expect("a socket is in a folder");
        add("run-folder", text(folder));
        // QEMU has the image open itself, and holds its lock while it writes it.
        arguments.push("--no-lock".to_owned());
        if self.read_only {
            arguments.push("--read-only".to_owned());
        }
        arguments
    }
}

/// Starts the tap of a record and waits until it listens where QEMU can connect.
///
/// # Errors
/// When it ends, with the end of its log, or does not listen in time, or `stop` is raised. It is
/// then stopped.
pub fn start(
    entry: &Entry,
    record: &mut Record,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), InsertionError> {
    let log = entry.log();
    let failed = |error: std::io::Error| {
        InsertionError::failed(format_args!("the tap cannot be started: {error}"))
    };
    let mut options = File::options();
    let log_file = options
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log)
        .map_err(failed)?;
    let weir = std::env::current_exe().map_err(failed)?;
    // In a process group of its own: Ctrl-C at this terminal does not reach it.
    let mut child = Command::new(weir)
        .args(&record.arguments)
        .process_group(0)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log_file.try_clone().map_err(failed)?)
        .stderr(log_file)
        .spawn()
        .map_err(failed)?;
    record.tap = Process::of(child.id());
    let ready = entry
        .write(record)
        .and_then(|()| listens(&mut child, entry, interrupted))
        .and_then(|()| grant_access(record.qemu.pid, &entry.socket()));
    if ready.is_err() {
        // It may have ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
    ready
}

fn listens(
    child: &mut Child,
    entry: &Entry,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), InsertionError> {
    let until = Instant::now() + START_TIMEOUT;
    let log = entry.log();
    loop {
        if is_listening(&entry.socket()) {
            return Ok(());
        }
        let ended = child.try_wait().map_err(InsertionError::from)?;
        if let Some(status) = ended {
            return Err(InsertionError::failed(format_args!(
                "the tap ended immediately ({status}): {}",
                end_of(&log)
            )));
        }
        if interrupted() {
            return Err(InsertionError::failed(
                "interrupted before the tap was inserted",
            ));
        }
        if Instant::now() >= until {
            return Err(InsertionError::failed(format_args!(
                "the tap does not listen within {START_TIMEOUT:?}: {}",
                end_of(&log)
            )));
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Whether a process accepts connections there.
pub fn is_listening(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Grants QEMU access, which may run as another user.
fn grant_access(qemu: u32, socket: &Path) -> Result<(), InsertionError> {
    let failed = |error: std::io::Error| {
        InsertionError::failed(format_args!(
            "{}: access cannot be granted to QEMU's user: {error}; run as root or as QEMU's user",
            socket.display()
        ))
    };
    let owner = fs::metadata(format!("/proc/{qemu}")).map_err(failed)?;
    let now = fs::metadata(socket).map_err(failed)?;
    if (now.uid(), now.gid()) == (owner.uid(), owner.gid()) {
        return Ok(());
    }
    chown(socket, Some(owner.uid()), Some(owner.gid())).map_err(failed)
}

/// Ends the tap of a record, if it runs: with SIGTERM, then with SIGKILL.
pub fn end(record: &Record) {
    let Some(tap) = record.tap else {
        return;
    };
    let Some(pid) = i32::try_from(tap.pid).ok().and_then(Pid::from_raw) else {
        return;
    };
    for signal in [Signal::TERM, Signal::KILL] {
        let until = Instant::now() + END_TIMEOUT;
        // It may have ended in the meantime.
        if tap.is_alive() {
            let _ = kill_process(pid, signal);
        }
        while tap.is_alive() && Instant::now() < until {
            thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// The last lines of a log.
fn end_of(log: &Path) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_SHOWN)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        std::io::Result::Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    match read() {
        Ok(words) if !words.is_empty() => words,
        _ => format!("{} is empty", log.display()),
    }
}
