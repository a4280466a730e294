//! [`QmpAddress`]: the address of a VM's QMP, and short connections to it.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{QemuMonitor, QmpClient, QmpError, Virsh};

/// Pause before a socket that another client uses is tried again. Another weir uses it only
/// briefly.
const BUSY_FOR: Duration = Duration::from_secs(3);

/// Maximum number of sockets that are remembered; the oldest are removed.
const DOORS_MAX: usize = 4096;

/// The address of a VM's QMP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QmpAddress {
    /// A unix socket configured by the user.
    Socket(PathBuf),
    /// A unix socket from the command line of a process, which has to be the process that listens
    /// on it.
    Process {
        /// The socket.
        path: PathBuf,
        /// The process.
        pid: u32,
    },
    /// A domain of the libvirt at a URI, queried by running `virsh`.
    Libvirt {
        /// As `qemu:///system`.
        uri: String,
        /// The domain's name or UUID.
        domain: String,
    },
}

impl fmt::Display for QmpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QmpAddress::Socket(path) | QmpAddress::Process { path, .. } => path.display().fmt(f),
            QmpAddress::Libvirt { uri, domain } => write!(f, "{uri} (domain {domain})"),
        }
    }
}

impl QmpAddress {
    /// Connects, runs `ask`, which executes commands, and disconnects. `timeout` is the timeout of
    /// each wait: for other visits from this process, for the greeting, and for each response. A
    /// socket that another client uses is not tried again for [`BUSY_FOR`].
    ///
    /// # Errors
    /// Errors of the connection, or the error of `ask`.
    pub fn visit<T>(
        &self,
        timeout: Duration,
        ask: impl FnOnce(&mut dyn QemuMonitor) -> Result<T, QmpError>,
    ) -> Result<T, QmpError> {
        let (path, process) = match self {
            QmpAddress::Libvirt { uri, domain } => {
                return ask(&mut Virsh::new(uri, domain, timeout));
            }
            QmpAddress::Socket(path) => (path, None),
            QmpAddress::Process { path, pid } => (path, Some(*pid)),
        };
        let busy = || QmpError::Busy {
            at: path.display().to_string(),
        };
        let door = door(path);
        let mut held_until = enter(&door, timeout).ok_or_else(busy)?;
        if held_until.is_some_and(|until| Instant::now() < until) {
            return Err(busy());
        }
        let connected = match process {
            Some(pid) => QmpClient::connect_to(path, pid, timeout),
            None => QmpClient::connect(path, timeout),
        };
        *held_until = match &connected {
            Err(QmpError::Busy { .. }) => Some(Instant::now() + BUSY_FOR),
            _ => None,
        };
        ask(&mut connected?)
    }
}

/// The time until which a socket is considered in use by another client; locked during a visit.
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

/// The lock, or `None` if `timeout` has expired. Standard locks have no timeout; the owner
/// releases the lock within its own timeout.
fn enter(
    door: &Mutex<Option<Instant>>,
    timeout: Duration,
) -> Option<MutexGuard<'_, Option<Instant>>> {
    let until = Instant::now() + timeout;
    loop {
        match door.try_lock() {
            Ok(guard) => return Some(guard),
            // A panic during a visit leaves no inconsistent state: the instant is written at once.
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
}
