//! The guard: a small process that disables tracing when the process that enabled it has ended, for
//! any reason.
//!
//! It holds one end of a socket and waits for the other to close; the kernel closes it also for a
//! process that was killed. A tap that ends normally uses the same mechanism: it closes the socket
//! and waits for the guard. The tap sends its [`Task`] by this socket ([`crate::control`]), with
//! the descriptors of the log and its directory, which the guard never opens by name
//! ([`super::created`]). The guard also bounds the size of the log, in case the reader has stopped.
//!
//! A second guard replaces the first if that is killed: it also waits for the first one's end, and
//! does its work unless the log has been removed, which is the first one's last step.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::json;
use weir_model::text::shown;

use super::created::CreatedLog;
use super::log::{DISK_BYTES_MAX, punch};
use crate::TapError;
use crate::control::{ControlClient, Responder, Service};
use crate::ebpf::privileges;
use crate::qmp::{QemuMonitor, QmpAddress, QmpError, human};

/// Interval at which the guard checks the log's size and whether QEMU runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Timeout of an answer from QEMU, after which the guard retries.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between two attempts.
const TRY_EVERY: Duration = Duration::from_millis(500);

/// Timeout of the guard's start.
const START: Duration = Duration::from_secs(10);

/// Timeout of the tap's wait for the guard at its end; the guard continues afterwards.
const END: Duration = Duration::from_secs(10);

/// Requests to the guard and its events.
#[derive(Debug)]
pub struct Guarding;

impl Service for Guarding {
    const NAME: &'static str = "guard";
    const VERSION: u32 = 1;
    const REQUEST_BYTES_MAX: usize = 64 << 10;
    const RESPONSE_BYTES_MAX: usize = 4 << 10;
    type Request = Task;
    type Response = GuardEvent;
}

/// What a guard reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardEvent {
    /// The response to its task: it waits for the end of the tap.
    Ready,
    /// The log has reached its maximum size: the guard disables tracing.
    Full,
}

/// Parameters of the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The VM, for messages.
    pub vm: String,
    /// The address of its monitor.
    pub address: QmpAddress,
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
    /// Closing this connection makes the guard act.
    open: Option<ControlClient<Guarding>>,
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

    /// The guard's event, if there is one: it acted without request.
    ///
    /// # Errors
    /// The reason, if it has ended.
    pub fn event(&mut self) -> Result<Option<GuardEvent>, String> {
        let open = self.first.open.as_mut();
        let event = open.expect("only its end closes it").poll();
        event.map_err(|error| error.to_string())
    }
}

impl Process {
    fn start(program: &[OsString], task: &Task, log: &CreatedLog) -> Result<Process, TapError> {
        let unavailable = |why: String| TapError::Unavailable {
            what: format!("the guard process that disables tracing cannot be started: {why}"),
            remedy: "tracing is not enabled without it".into(),
        };
        let (name, arguments) = program
            .split_first()
            .ok_or_else(|| unavailable("no program is configured".into()))?;
        let failed = |e: io::Error| unavailable(e.to_string());
        let (open, theirs) = UnixStream::pair().map_err(failed)?;
        // A separate process group, so that Ctrl-C at the terminal does not reach it.
        let child = Command::new(name)
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let passed = [log.file.as_fd(), log.folder.as_fd()];
        let passed = passed.map(|fd| fd.try_clone_to_owned());
        let mut guard = Process { child, open: None };
        let client = ControlClient::new(open, START).map_err(|e| unavailable(e.to_string()))?;
        let open = guard.open.insert(client);
        let passed = passed
            .into_iter()
            .collect::<io::Result<_>>()
            .map_err(failed)?;
        match open.request_parts(task, passed).as_deref() {
            Ok([GuardEvent::Ready]) => Ok(guard),
            Ok(_) => Err(unavailable("it is not ready".into())),
            Err(error) => Err(unavailable(format!(
                "it does not report that it is ready: {error}"
            ))),
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

/// Runs the guard: receives its task by the socket that is standard input, waits until that is
/// closed, and acts.
///
/// # Errors
/// If no task or no descriptors are received.
pub fn run() -> Result<(), String> {
    // The guard lives as long as the trace. Dropping fails only if there are no rights to drop.
    let _ = privileges::begin_inspection();
    let _ = privileges::keep_what_asking_takes();
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|error| format!("standard input: {error}"))?;
    let mut tap = Responder::<Guarding>::new(socket.into());
    let request = tap.request(START);
    let (task, passed) = request.map_err(|error| format!("standard input: {error}"))?;
    let passed = <[OwnedFd; 2]>::try_from(passed);
    let [file, folder] = passed.map_err(|_| "the task has no log and folder")?;
    let log = CreatedLog {
        file: file.into(),
        folder,
        name: task.log_name.clone(),
    };
    let started = started(task.pid);
    // The tap may have ended: then the guard acts.
    let _ = tap.respond(GuardEvent::Ready);
    let post = Post { task, log, started };
    if let Some(first) = post.task.stands_in_for {
        tap.wait_end(None);
        post.stand_in(first);
        return Ok(());
    }
    while !tap.wait_end(Some(LOOK_EVERY)) {
        if !post.vm_lives() {
            break;
        }
        if post.on_disk() > DISK_BYTES_MAX {
            let _ = tap.respond(GuardEvent::Full);
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

    /// Waits for the end of guard `first`, and does the remaining work.
    fn stand_in(&self, first: u32) {
        let alive = started(first);
        let is_alive = || alive.is_some() && started(first) == alive;
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
                        "VM {} is still traced: {error}; retrying until tracing is disabled",
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
        self.address.visit(QUERY_TIMEOUT, |qemu| {
            for event in &self.events {
                set_event(qemu, event, false)?;
            }
            let output = human(qemu, &format!("logfile {}", self.restore))?;
            if !output.trim().is_empty() {
                // For example the log of libvirt's VMs, which QEMU's user may not reopen.
                human(qemu, "logfile /dev/null")?;
                if self.logs {
                    complain(&format!(
                        "VM {}: QEMU cannot write its log to {} again ({}); its log is /dev/null until it is set to another file",
                        self.vm,
                        self.restore,
                        output.trim()
                    ));
                }
            }
            Ok(())
        })
    }
}

/// Enables or disables a trace event; an event that this QEMU does not have counts as disabled.
///
/// # Errors
/// If QEMU does not answer, or does not have an event that is to be enabled.
pub fn set_event(qemu: &mut dyn QemuMonitor, event: &str, on: bool) -> Result<(), QmpError> {
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

/// Writes a message to the terminal, if there is one.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "weir: {}", shown(text));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::frame::LENGTH_BYTES;
    use crate::control::message::{Body, decode, encode_request};

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
        let libvirt = QmpAddress::Libvirt {
            uri: "qemu:///system".into(),
            domain: "web".into(),
        };
        let process = QmpAddress::Process {
            path: "/tmp/qmp".into(),
            pid: 7,
        };
        let socket = QmpAddress::Socket("/tmp/qmp".into());
        for task in [task(socket), task(process), task(libvirt)] {
            let frame = encode_request::<Guarding>(&task).unwrap();
            let body = decode::<Guarding, Task>(&frame[LENGTH_BYTES..]);
            assert_eq!(body, Ok(Body::Request(task)));
        }
    }

    #[test]
    fn a_process_is_known_by_when_it_was_started() {
        let own = std::process::id();
        assert!(started(own).is_some());
        assert_eq!(started(own), started(own));
        assert_eq!(started(u32::MAX), None);
    }
}
