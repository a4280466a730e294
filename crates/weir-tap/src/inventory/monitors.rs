//! [`Monitors`]: the state that running QEMUs report, queried by a separate thread, so that one
//! that does not respond delays no other.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ebpf::privileges;
use crate::qmp::{self, Drive, QemuMonitor, QmpAddress, QmpError};

/// Timeout of each response.
const QUERY_TIMEOUT: Duration = Duration::from_millis(300);

/// Query interval. A QMP socket serves one client at a time, so it should mostly be free.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// After each timeout the pause before the next query is doubled, up to this.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Maximum number of drives of one VM whose device type is queried.
const KINDS_MAX: usize = 4096;

/// A VM's process: number and start.
pub type Life = (u32, u64);

/// What a QEMU reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// `running`, `paused`, ...
    pub state: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its drives, and the device type of each.
    pub drives: Vec<(Drive, Option<String>)>,
}

/// The responses so far, and the processes to query.
#[derive(Debug)]
pub struct Monitors {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// There is a new process to query, or the last user has gone.
    changed: Condvar,
    /// A response was received, or none will be.
    answered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    monitors: HashMap<Life, Entry>,
    ended: bool,
}

#[derive(Debug)]
struct Entry {
    address: QmpAddress,
    answer: Option<Arc<Answer>>,
    /// Another process listens on the socket.
    foreign: bool,
    due: Instant,
    pause: Duration,
    asked: bool,
}

impl Monitors {
    /// No processes to query yet. The thread keeps the privileges that queries need.
    pub fn new() -> Monitors {
        let shared: Arc<Shared> = Arc::default();
        let asker = shared.clone();
        // Without the thread nothing is queried, and the command lines apply.
        let _ = thread::Builder::new()
            .name("monitors".into())
            .spawn(move || {
                // A failure to drop privileges means that there are none.
                let _ = privileges::keep_what_asking_takes();
                asker.run();
            });
        Monitors { shared }
    }

    /// Sets the processes to query; true if one is new.
    pub fn ask(&self, addresses: HashMap<Life, QmpAddress>) -> bool {
        let mut state = self.shared.state();
        let same = |life: &Life, entry: &Entry| addresses.get(life) == Some(&entry.address);
        state.monitors.retain(|life, entry| same(life, entry));
        let mut new = false;
        for (life, address) in addresses {
            state.monitors.entry(life).or_insert_with(|| {
                new = true;
                Entry {
                    address,
                    answer: None,
                    foreign: false,
                    due: Instant::now(),
                    pause: ASK_EVERY,
                    asked: false,
                }
            });
        }
        drop(state);
        self.shared.changed.notify_all();
        new
    }

    /// Waits until all have been queried once, at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let state = self.shared.state();
        let open = |state: &mut State| state.monitors.values().any(|entry| !entry.asked);
        let waited = self
            .shared
            .answered
            .wait_timeout_while(state, timeout, open);
        drop(waited.expect("no panic while held"));
    }

    /// Whether another process listens on the socket that this one names.
    pub fn is_foreign(&self, life: Life) -> bool {
        let state = self.shared.state();
        state.monitors.get(&life).is_some_and(|entry| entry.foreign)
    }

    /// The last response of the process.
    pub fn answer(&self, life: Life) -> Option<Arc<Answer>> {
        self.shared.state().monitors.get(&life)?.answer.clone()
    }
}

impl Drop for Monitors {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    fn run(&self) {
        while let Some((life, address)) = self.next() {
            let answer = address.visit(QUERY_TIMEOUT, answer_of);
            let mut state = self.state();
            if let Some(entry) = state.monitors.get_mut(&life) {
                entry.asked = true;
                entry.pause = match &answer {
                    Ok(_) => ASK_EVERY,
                    Err(_) => (entry.pause * 2).min(PAUSE_MAX),
                };
                entry.due = Instant::now() + entry.pause;
                entry.foreign = matches!(answer, Err(QmpError::Foreign { .. }));
                if let Ok(answer) = answer {
                    entry.answer = Some(Arc::new(answer));
                }
            }
            drop(state);
            self.answered.notify_all();
        }
    }

    /// The next process to query, when it is due; `None` at the end.
    fn next(&self) -> Option<(Life, QmpAddress)> {
        let mut state = self.state();
        loop {
            if state.ended {
                return None;
            }
            let first = state.monitors.iter().min_by_key(|(_, entry)| entry.due);
            let now = Instant::now();
            let wait = match first {
                Some((life, entry)) if entry.due <= now => {
                    return Some((*life, entry.address.clone()));
                }
                Some((_, entry)) => entry.due - now,
                None => PAUSE_MAX,
            };
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.expect("no panic while held").0;
        }
    }
}

fn answer_of(qemu: &mut dyn QemuMonitor) -> Result<Answer, QmpError> {
    let state = qmp::status(qemu)?.status;
    let name = qmp::name(qemu)?;
    let uuid = qmp::uuid(qemu)?;
    let mut drives = Vec::new();
    for drive in qmp::drives(qemu)?.into_iter().take(KINDS_MAX) {
        let kind = match &drive.qdev {
            Some(qdev) => kind_of(qemu, qdev)?,
            None => None,
        };
        drives.push((drive, kind));
    }
    Ok(Answer {
        state: Some(state).filter(|state| !state.is_empty()),
        name,
        uuid,
        drives,
    })
}

/// The device type at this path of the object tree, as `scsi-hd`.
fn kind_of(qemu: &mut dyn QemuMonitor, qdev: &str) -> Result<Option<String>, QmpError> {
    // The last component of a path is the part of a virtio device that QEMU's block layer knows.
    let arguments = json!({"path": qdev, "property": "type"});
    match qemu.execute("qom-get", arguments) {
        Ok(Value::String(kind)) => Ok(Some(kind)),
        Ok(_) => Ok(None),
        // Unplugged in the meantime.
        Err(error) if error.is_refusal() => Ok(None),
        Err(error) => Err(error),
    }
}
