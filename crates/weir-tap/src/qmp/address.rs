//! [`Address`]: where a VM's QMP is to be had, and visits there.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Client, Monitor, QmpError, Virsh};

/// How long a socket that somebody else holds is left alone. Another weir is there for a moment only.
const BUSY_FOR: Duration = Duration::from_secs(3);

/// Sockets remembered at a time; those of VMs long gone make room.
const DOORS_MAX: usize = 4096;

/// Where a VM's QMP is to be had.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Address {
    /// A unix socket that the user names.
    Socket(PathBuf),
    /// A unix socket that the command line of a process names, which has to be the process that
    /// listens at it.
    Process {
        /// The socket.
        path: PathBuf,
        /// The process.
        pid: u32,
    },
    /// A domain of the libvirt at a URI, asked by running `virsh`.
    Libvirt {
        /// As `qemu:///system`.
        uri: String,
        /// The domain's name or UUID.
        domain: String,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Socket(path) | Address::Process { path, .. } => path.display().fmt(f),
            Address::Libvirt { uri, domain } => write!(f, "{uri} (domain {domain})"),
        }
    }
}

impl Address {
    /// Connects, lets `ask` execute commands, and disconnects. Waits at most `patience` for its
    /// turn, at most as long for the greeting and at most as long for each answer. A socket that
    /// another client holds is not tried again for [`BUSY_FOR`].
    ///
    /// # Errors
    /// What goes wrong on the way, or what `ask` returns.
    pub fn visit<T>(
        &self,
        patience: Duration,
        ask: impl FnOnce(&mut dyn Monitor) -> Result<T, QmpError>,
    ) -> Result<T, QmpError> {
        let (path, process) = match self {
            Address::Libvirt { uri, domain } => {
                return ask(&mut Virsh::new(uri, domain, patience));
            }
            Address::Socket(path) => (path, None),
            Address::Process { path, pid } => (path, Some(*pid)),
        };
        let busy = || QmpError::Busy {
            at: path.display().to_string(),
        };
        let door = door(path);
        let mut held_until = enter(&door, patience).ok_or_else(busy)?;
        if held_until.is_some_and(|until| Instant::now() < until) {
            return Err(busy());
        }
        let connected = match process {
            Some(pid) => Client::connect_to(path, pid, patience),
            None => Client::connect(path, patience),
        };
        *held_until = match &connected {
            Err(QmpError::Busy { .. }) => Some(Instant::now() + BUSY_FOR),
            _ => None,
        };
        ask(&mut connected?)
    }
}

/// Until when a socket is known to be held by somebody else; locked while one of us is there.
type Door = Arc<Mutex<Option<Instant>>>;

fn door(path: &PathBuf) -> Door {
    static DOORS: OnceLock<Mutex<HashMap<PathBuf, Door>>> = OnceLock::new();
    let doors = DOORS.get_or_init(Mutex::default);
    let mut doors = doors.lock().expect("no panic while held");
    if doors.len() >= DOORS_MAX && !doors.contains_key(path) {
        doors.retain(|_, door| Arc::strong_count(door) > 1);
    }
    doors.entry(path.clone()).or_default().clone()
}

/// The lock, or `None` when `patience` was not enough. Standard locks cannot be waited for with a
/// bound; whoever is inside leaves within its own patience.
fn enter(
    door: &Mutex<Option<Instant>>,
    patience: Duration,
) -> Option<MutexGuard<'_, Option<Instant>>> {
    let until = Instant::now() + patience;
    loop {
        match door.try_lock() {
            Ok(guard) => return Some(guard),
            // A visitor's panic leaves nothing half done: the instant is written whole.
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
}
