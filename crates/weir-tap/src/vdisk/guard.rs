//! The guard: a small process that switches tracing off when the one that switched it on has ended,
//! however that came.
//!
//! It holds one end of a pipe and waits for the other to close, which the kernel does even for a
//! process that was killed. There is no second way: a tap that ends in order closes the pipe and
//! waits for the guard. It also looks after the size of the log, should whoever reads it have
//! stopped.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::log::{DISK_BYTES_MAX, Place, punch};
use crate::TapError;
use crate::ebpf::privileges;
use crate::qmp::{Address, Monitor, QmpError, human};

/// How often the guard looks at the log's size and whether QEMU is there.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long the guard waits for QEMU's answer, and then tries again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pause between two tries.
const TRY_EVERY: Duration = Duration::from_millis(500);

/// How long starting the guard may take.
const START: Duration = Duration::from_secs(10);

/// How long the tap waits for the guard at its end; the guard goes on by itself.
const END: Duration = Duration::from_secs(10);

/// What the guard has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The VM, for messages.
    pub vm: String,
    /// Where to ask.
    pub address: Address,
    /// The events to switch off.
    pub events: Vec<String>,
    /// The file to remove.
    pub place: Place,
    /// Where QEMU's log goes then.
    pub restore: String,
    /// Whether QEMU logs anything by itself.
    pub logs: bool,
}

/// The guard as its tap sees it.
#[derive(Debug)]
pub struct Guard {
    task: Task,
    child: Child,
    /// The guard acts when this is closed.
    pipe: Option<ChildStdin>,
    words: Receiver<String>,
    /// Does the guard's work should somebody have ended the guard: a thread that keeps the right to,
    /// when the rest of the process gives its rights up.
    standby: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Guard {
    /// Starts `program` (with arguments), which has to call [`run`], and waits until it is on guard.
    ///
    /// # Errors
    /// When it cannot be run or does not say that it is ready.
    pub fn start(program: &[OsString], task: Task) -> Result<Guard, TapError> {
        let unavailable = |why: String| TapError::Unavailable {
            what: format!("no guard to switch tracing off again: {why}"),
            remedy: "without one tracing is not switched on".into(),
        };
        let (name, arguments) = program
            .split_first()
            .ok_or_else(|| unavailable("none is named".into()))?;
        // A group of its own, so that Ctrl-C at the terminal does not reach it.
        let mut child = Command::new(name)
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| unavailable(e.to_string()))?;
        let pipe = child.stdin.take();
        let stdout = child.stdout.take().expect("it was asked for");
        let (told, words) = mpsc::channel();
        let listening = move || {
            let lines = BufReader::new(stdout).lines();
            // The listener may be gone, or the guard be: both end this.
            let _ = lines
                .map_while(Result::ok)
                .try_for_each(|line| told.send(line));
        };
        thread::spawn(listening);
        let (ask, asked) = mpsc::channel();
        let own = task.clone();
        let standby = thread::spawn(move || {
            // A kernel that does not take rights away leaves them; the work is the same.
            let _ = privileges::keep_what_asking_takes();
            if asked.recv().is_ok() {
                own.undo_here();
            }
        });
        let mut guard = Guard {
            task,
            child,
            pipe,
            words,
            standby: Some((ask, standby)),
        };
        let line = format!("{}\n", guard.task.to_json());
        let pipe = guard.pipe.as_mut().expect("it was asked for");
        pipe.write_all(line.as_bytes())
            .map_err(|e| unavailable(e.to_string()))?;
        match guard.words.recv_timeout(START) {
            Ok(word) if word == "ready" => Ok(guard),
            Ok(word) => Err(unavailable(word)),
            Err(_) => Err(unavailable("it does not say that it is ready".into())),
        }
    }

    /// What the guard says, if it has something to say: it acts on its own, or is gone.
    pub fn word(&mut self) -> Option<String> {
        match self.words.try_recv() {
            Ok(word) => Some(word),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => Some("gone".into()),
        }
    }

    /// How it ended, if it did so in time.
    fn wait(&mut self) -> io::Result<Option<bool>> {
        let until = Instant::now() + END;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status.success()));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let done = match self.wait() {
            // It says itself what keeps it.
            Ok(Some(true) | None) => true,
            Ok(Some(false)) | Err(_) => false,
        };
        if let Some((ask, thread)) = self.standby.take() {
            if !done {
                // A thread that is gone has said why.
                let _ = ask.send(());
            }
            drop(ask);
            let _ = thread.join();
        }
    }
}

/// Is the guard: reads its task from standard input, waits for the end of that, and acts.
///
/// # Errors
/// When the task is none, or the log is not there.
pub fn run() -> Result<(), String> {
    // It lives as long as the trace. Without the right to give up rights, there are none to give up.
    let _ = privileges::keep_what_asking_takes();
    let mut input = BufReader::new(io::stdin());
    let mut line = String::new();
    input.read_line(&mut line).map_err(|e| e.to_string())?;
    let task = Task::from_json(&line).ok_or("standard input holds no task")?;
    let said = |e: io::Error| format!("{}: {e}", task.place.path().display());
    let folder = task.place.open_folder().map_err(said)?;
    let file = task.place.open(&folder).map_err(said)?;
    let started = started(task.place.pid);
    say("ready");
    let (open, closed) = mpsc::channel::<()>();
    thread::spawn(move || {
        // Whether it ends or fails: nobody is at the other end any more.
        let _ = io::copy(&mut input, &mut io::sink());
        drop(open);
    });
    let post = Post {
        task,
        folder,
        file,
        started,
    };
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

/// What the guard guards.
struct Post {
    task: Task,
    folder: OwnedFd,
    file: File,
    /// When QEMU was started, which tells it from a later process of the same number.
    started: Option<u64>,
}

impl Post {
    fn vm_lives(&self) -> bool {
        self.started.is_some() && started(self.task.place.pid) == self.started
    }

    fn on_disk(&self) -> u64 {
        // `stat` counts in units of 512 bytes, whatever the file system's blocks are.
        self.file.metadata().map_or(0, |m| m.blocks() * 512)
    }

    /// Tries until it is done or the VM has ended.
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
                // Nobody reads it any more.
                let length = self.file.metadata().map_or(0, |m| m.len());
                let _ = punch(&self.file, 0, length);
            }
            thread::sleep(TRY_EVERY);
        }
        if complained {
            complain(&format!("VM {} is no longer traced", self.task.vm));
        }
        // Only somebody else can have removed it already.
        let _ = self.task.place.remove(&self.folder);
    }
}

impl Task {
    /// Does in this process what the guard would have done.
    fn undo_here(&self) {
        if let Err(error) = self.visit() {
            complain(&format!(
                "VM {} may still be traced, since the guard was ended: {error}",
                self.vm
            ));
        }
        // With the VM the folder may have gone.
        let folder = self.place.open_folder();
        let _ = folder.and_then(|folder| self.place.remove(&folder));
    }

    /// Switches the events off and gives the log back.
    fn visit(&self) -> Result<(), QmpError> {
        self.address.visit(PATIENCE, |qemu| {
            for event in &self.events {
                set_event(qemu, event, false)?;
            }
            let said = human(qemu, &format!("logfile {}", self.restore))?;
            if !said.trim().is_empty() {
                // As the log of libvirt's VMs, which QEMU's user may not open anew.
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
            Address::Libvirt { uri, domain } => json!({"uri": uri, "domain": domain}),
        };
        json!({
            "vm": self.vm,
            "address": address,
            "events": self.events,
            "pid": self.place.pid,
            "folder": self.place.folder,
            "name": self.place.name,
            "restore": self.restore,
            "logs": self.logs,
        })
    }

    fn from_json(line: &str) -> Option<Task> {
        let task: Value = serde_json::from_str(line).ok()?;
        let text = |of: &Value, key: &str| Some(of.get(key)?.as_str()?.to_owned());
        let address = &task["address"];
        let address = match text(address, "socket") {
            Some(socket) => Address::Socket(socket.into()),
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
            place: Place {
                pid: u32::try_from(task["pid"].as_u64()?).ok()?,
                folder: PathBuf::from(text(&task, "folder")?),
                name: text(&task, "name")?,
            },
            restore: text(&task, "restore")?,
            logs: task["logs"].as_bool()?,
        })
    }
}

/// Switches a trace event on or off; one that this QEMU does not have is off.
///
/// # Errors
/// When QEMU does not answer, or does not know an event that is to be on.
pub fn set_event(qemu: &mut dyn Monitor, event: &str, on: bool) -> Result<(), QmpError> {
    match qemu.execute(
        "trace-event-set-state",
        json!({"name": event, "enable": on}),
    ) {
        Err(error) if !error.is_refusal() || on => Err(error),
        _ => Ok(()),
    }
}

/// When a process was started, in clock ticks since the machine was (proc(5), field 22 of `stat`).
pub fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (state != "Z" && state != "X").then_some(started)
}

/// A word for the tap, which may be gone.
fn say(word: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
}

/// A word for whoever looks at the terminal, if anybody does.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "weir: {text}");
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
            place: Place {
                pid: 7,
                folder: "/run".into(),
                name: "log".into(),
            },
            restore: "/dev/stderr".into(),
            logs: true,
        };
        let libvirt = Address::Libvirt {
            uri: "qemu:///system".into(),
            domain: "web".into(),
        };
        for task in [task(Address::Socket("/tmp/qmp".into())), task(libvirt)] {
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
