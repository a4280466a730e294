//! The guard: a small process that disables tracing when the process that enabled it has ended, for
//! any reason.
//!
//! It holds one end of a socket and waits for the other to close; the kernel closes it also for a
//! process that was killed. A tap that ends normally uses the same mechanism: it closes the socket
//! and waits for the guard. The socket also carries the descriptors of the log and its directory,
//! which the guard never opens by name ([`super::created`]). The guard also bounds the size of the
//! log, in case the reader has stopped.
//!
//! A second guard replaces the first if that is killed: it also waits for the first one's end, and
//! does its work unless the log has been removed, which is the first one's last step.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde_json::{Value, json};
use weir_model::text::shown;

use super::created::CreatedLog;
use super::log::{DISK_BYTES_MAX, punch};
use crate::TapError;
use crate::ebpf::privileges;
use crate::qmp::{Address, Monitor, QmpError, human};

/// Interval at which the guard checks the log's size and whether QEMU runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Timeout of an answer from QEMU, after which the guard retries.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two attempts.
const TRY_EVERY: Duration = Duration::from_millis(500);

/// Timeout of the guard's start.
const START: Duration = Duration::from_secs(10);

/// Timeout of the tap's wait for the guard at its end; the guard continues afterwards.
const END: Duration = Duration::from_secs(10);

/// The byte that carries the descriptors of the log and its folder.
const DESCRIPTORS: u8 = b'D';

/// Parameters of the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The VM, for messages.
    pub vm: String,
    /// The address of its monitor.
    pub address: Address,
    /// The events to disable.
    pub events: Vec<String>,
    /// QEMU's process id.
    pub pid: u32,
    /// The log's name in its directory.
    pub log_name: String,
    /// Destination of QEMU's log afterwards.
    pub restore: String,
    /// True if QEMU writes a log without tracing.
    pub logs: bool,
    /// The process id of the guard that this one replaces on failure.
    pub stands_in_for: Option<u32>,
}

/// The guards, as seen by their tap.
#[derive(Debug)]
pub struct Guard {
    first: Process,
    second: Process,
}

/// One guard.
#[derive(Debug)]
struct Process {
    child: Child,
    /// Closing this socket makes the guard act.
    open: Option<UnixStream>,
    words: Receiver<String>,
}

impl Guard {
    /// Starts `program` (with arguments) twice, which must call [`run`], passes it `log`, and waits
    /// until it is ready.
    ///
    /// # Errors
    /// If it cannot be run or does not report that it is ready.
    pub fn start(program: &[OsString], task: &Task, log: &CreatedLog) -> Result<Guard, TapError> {
        let first = Process::start(program, task, log)?;
        let task = Task {
            stands_in_for: Some(first.child.id()),
            ..task.clone()
        };
        Ok(Guard {
            first,
            second: Process::start(program, &task, log)?,
        })
    }

    /// The guard's message, if there is one: it acted without request, or has ended.
    pub fn word(&mut self) -> Option<String> {
        match self.first.words.try_recv() {
            Ok(word) => Some(word),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => Some("gone".into()),
        }
    }
}

impl Process {
    fn start(program: &[OsString], task: &Task, log: &CreatedLog) -> Result<Process, TapError> {
        let unavailable = |why: String| TapError::Unavailable {
            what: format!("no guard to switch tracing off again: {why}"),
            remedy: "without one tracing is not switched on".into(),
        };
        let (name, arguments) = program
            .split_first()
            .ok_or_else(|| unavailable("none is named".into()))?;
        let failed = |e: io::Error| unavailable(e.to_string());
        let (open, theirs) = UnixStream::pair().map_err(failed)?;
        // A separate process group, so that Ctrl-C at the terminal does not reach it.
        let mut child = Command::new(name)
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().expect("it was asked for");
        let (told, words) = mpsc::channel();
        let listening = move || {
            let lines = BufReader::new(stdout).lines();
            // The loop ends when the receiver or the guard has ended.
            let _ = lines
                .map_while(Result::ok)
                .try_for_each(|line| told.send(line));
        };
        privileges::spawn_reduced("guard-words", listening).map_err(failed)?;
        let line = format!("{}\n", task.to_json());
        let guard = Process {
            child,
            open: Some(open),
            words,
        };
        let mut socket = guard.open.as_ref().expect("it was set above");
        send_descriptors(socket, log).map_err(failed)?;
        socket.write_all(line.as_bytes()).map_err(failed)?;
        match guard.words.recv_timeout(START) {
            Ok(word) if word == "ready" => Ok(guard),
            Ok(word) => Err(unavailable(word)),
            Err(_) => Err(unavailable("it does not say that it is ready".into())),
        }
    }

    /// Makes the guard act and waits for its end; false on a timeout, when the guard continues.
    fn end(&mut self) -> bool {
        drop(self.open.take());
        let until = Instant::now() + END;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(LOOK_EVERY);
        }
        true
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.first.end() {
            // The second guard waits for the first one's end too.
            drop(self.second.open.take());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.open.is_some() {
            self.end();
        }
    }
}

/// Sends the descriptors of the log and its folder, with one byte.
fn send_descriptors(socket: &UnixStream, log: &CreatedLog) -> io::Result<()> {
    let descriptors = [log.file.as_fd(), log.folder.as_fd()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
    assert!(fits, "the space is that of two descriptors");
    let byte = [IoSlice::new(&[DESCRIPTORS])];
    sendmsg(socket, &byte, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the descriptors of the log and its folder.
fn receive_descriptors(socket: &UnixStream) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let received: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    match <[OwnedFd; 2]>::try_from(received) {
        Ok([file, folder]) if byte == [DESCRIPTORS] => Ok((file, folder)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Runs the guard: receives its task by the socket that is standard input, waits until that is
/// closed, and acts.
///
/// # Errors
/// If no task or no descriptors are received.
pub fn run() -> Result<(), String> {
    // The guard lives as long as the trace. Dropping fails only if there are no rights to drop.
    let _ = privileges::begin_inspection();
    let _ = privileges::keep_what_asking_takes();
    let failed = |e: io::Error| format!("standard input: {e}");
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let socket = UnixStream::from(socket);
    let (file, folder) = receive_descriptors(&socket).map_err(failed)?;
    let mut input = BufReader::new(socket);
    let mut line = String::new();
    input.read_line(&mut line).map_err(failed)?;
    let task = Task::from_json(&line).ok_or("standard input holds no task")?;
    let log = CreatedLog {
        file: file.into(),
        folder,
        name: task.log_name.clone(),
    };
    let started = started(task.pid);
    say("ready");
    let (open, closed) = mpsc::channel::<()>();
    thread::spawn(move || {
        // On end of file and on errors alike, the other end is closed.
        let _ = io::copy(&mut input, &mut io::sink());
        drop(open);
    });
    let post = Post { task, log, started };
    if let Some(first) = post.task.stands_in_for {
        post.stand_in(first, &closed);
        return Ok(());
    }
    while let Err(RecvTimeoutError::Timeout) = closed.recv_timeout(LOOK_EVERY) {
        if !post.vm_lives() {
            break;
        }
        if post.on_disk() > DISK_BYTES_MAX {
            say("full");
            break;
        }
    }
    post.undo();
    Ok(())
}

/// State of the guard.
struct Post {
    task: Task,
    log: CreatedLog,
    /// Start time of QEMU, which distinguishes it from a later process with the same id.
    started: Option<u64>,
}

impl Post {
    fn vm_lives(&self) -> bool {
        self.started.is_some() && started(self.task.pid) == self.started
    }

    fn on_disk(&self) -> u64 {
        // `stat` counts in units of 512 bytes, whatever the file system's blocks are.
        self.log.file.metadata().map_or(0, |m| m.blocks() * 512)
    }

    /// Waits for the ends of the tap and of guard `first`, and does the remaining work.
    fn stand_in(&self, first: u32, closed: &Receiver<()>) {
        let alive = started(first);
        let is_alive = || alive.is_some() && started(first) == alive;
        // Nothing is ever sent: the channel closes.
        let _ = closed.recv();
        while is_alive() {
            thread::sleep(Duration::from_millis(5));
        }
        if self.log.file.metadata().is_ok_and(|m| m.nlink() > 0) {
            self.undo();
        }
    }

    /// Retries until the work is done or the VM has ended.
    fn undo(&self) {
        let mut complained = false;
        while self.vm_lives() {
            match self.task.visit() {
                Ok(()) => break,
                Err(error) if !complained => {
                    complained = true;
                    complain(&format!(
                        "VM {} is still traced: {error}; trying on until it is not",
                        self.task.vm
                    ));
                }
                Err(_) => {}
            }
            if self.on_disk() > DISK_BYTES_MAX {
                // The reader has stopped: the content will not be read.
                let length = self.log.file.metadata().map_or(0, |m| m.len());
                let _ = punch(&self.log.file, 0, length);
            }
            thread::sleep(TRY_EVERY);
        }
        if complained {
            complain(&format!("VM {} is no longer traced", self.task.vm));
        }
        // Another program may have removed it already.
        let _ = self.log.remove();
    }
}

impl Task {
    /// Disables the events and restores QEMU's log.
    fn visit(&self) -> Result<(), QmpError> {
        self.address.visit(PATIENCE, |qemu| {
            for event in &self.events {
                set_event(qemu, event, false)?;
            }
            let said = human(qemu, &format!("logfile {}", self.restore))?;
            if !said.trim().is_empty() {
                // For example the log of libvirt's VMs, which QEMU's user may not reopen.
                human(qemu, "logfile /dev/null")?;
                if self.logs {
                    complain(&format!(
                        "VM {}: QEMU cannot log to {} again ({}); it logs to /dev/null until it is told otherwise",
                        self.vm,
                        self.restore,
                        said.trim()
                    ));
                }
            }
            Ok(())
        })
    }

    fn to_json(&self) -> Value {
        let address = match &self.address {
            Address::Socket(path) => json!({"socket": path}),
            Address::Process { path, pid } => json!({"socket": path, "listener": pid}),
            Address::Libvirt { uri, domain } => json!({"uri": uri, "domain": domain}),
        };
        json!({
            "vm": self.vm,
            "address": address,
            "events": self.events,
            "pid": self.pid,
            "log_name": self.log_name,
            "restore": self.restore,
            "logs": self.logs,
            "stands_in_for": self.stands_in_for,
        })
    }

    fn from_json(line: &str) -> Option<Task> {
        let task: Value = serde_json::from_str(line).ok()?;
        let text = |of: &Value, key: &str| Some(of.get(key)?.as_str()?.to_owned());
        let address = &task["address"];
        let address = match text(address, "socket") {
            Some(socket) => match address["listener"].as_u64() {
                Some(pid) => Address::Process {
                    path: socket.into(),
                    pid: u32::try_from(pid).ok()?,
                },
                None => Address::Socket(socket.into()),
            },
            None => Address::Libvirt {
                uri: text(address, "uri")?,
                domain: text(address, "domain")?,
            },
        };
        let events = task["events"].as_array()?.iter();
        Some(Task {
            vm: text(&task, "vm")?,
            address,
            events: events
                .map(|e| e.as_str().map(String::from))
                .collect::<Option<_>>()?,
            pid: u32::try_from(task["pid"].as_u64()?).ok()?,
            log_name: text(&task, "log_name")?,
            restore: text(&task, "restore")?,
            logs: task["logs"].as_bool()?,
            stands_in_for: task["stands_in_for"]
                .as_u64()
                .and_then(|pid| pid.try_into().ok()),
        })
    }
}

/// Enables or disables a trace event; an event that this QEMU does not have counts as disabled.
///
/// # Errors
/// If QEMU does not answer, or does not have an event that is to be enabled.
pub fn set_event(qemu: &mut dyn Monitor, event: &str, on: bool) -> Result<(), QmpError> {
    match qemu.execute(
        "trace-event-set-state",
        json!({"name": event, "enable": on}),
    ) {
        Err(error) if !error.is_refusal() || on => Err(error),
        _ => Ok(()),
    }
}

/// Start time of a process, in clock ticks since boot (proc(5), field 22 of `stat`).
pub fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any character.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (state != "Z" && state != "X").then_some(started)
}

/// Sends a message to the tap, which may have ended.
fn say(word: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
}

/// Writes a message to the terminal, if there is one.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "weir: {}", shown(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_reaches_the_guard_unchanged() {
        let task = |address| Task {
            vm: "web \"1\"\n".into(),
            address,
            events: vec!["virtqueue_pop".into()],
            pid: 7,
            log_name: "log".into(),
            restore: "/dev/stderr".into(),
            logs: true,
            stands_in_for: Some(8),
        };
        let libvirt = Address::Libvirt {
            uri: "qemu:///system".into(),
            domain: "web".into(),
        };
        let process = Address::Process {
            path: "/tmp/qmp".into(),
            pid: 7,
        };
        let socket = Address::Socket("/tmp/qmp".into());
        for task in [task(socket), task(process), task(libvirt)] {
            let line = task.to_json().to_string();
            assert!(!line.contains('\n'));
            assert_eq!(Task::from_json(&line), Some(task));
        }
        assert_eq!(Task::from_json("{}"), None);
    }

    #[test]
    fn a_process_is_known_by_when_it_was_started() {
        let own = std::process::id();
        assert!(started(own).is_some());
        assert_eq!(started(own), started(own));
        assert_eq!(started(u32::MAX), None);
    }
}
