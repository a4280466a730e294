//! The settings of a disk's queue in sysfs: the whole writable folder `/sys/block/X/queue`.
//!
//! A setting cannot be restored alone: the kernel resets `nr_requests` and the tunables of the
//! scheduler when the scheduler changes, and bfq switches write-back throttling off. So the whole
//! state is saved ([`QueueState`]) and restored in the order of [`in_order`]. A [`QueueSession`]
//! records each write in a [`Journal`](journal::Journal) before it is made; [`recover`] restores
//! the state from it after the process was killed at any point.

pub mod journal;
mod session;
mod sysfs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

pub use session::{ForeignChange, QueueRecovery, QueueSession, RestoredSetting, recover};
pub use sysfs::{SysfsQueue, schedulers};

/// The name of the setting with the scheduler.
pub const SCHEDULER: &str = "scheduler";

/// The maximum number of requests of the scheduler, or of the device without one.
pub const NR_REQUESTS: &str = "nr_requests";

/// The target latency of write-back throttling; 0 is off.
pub const WBT: &str = "wbt_lat_usec";

/// The amount of data that a buffered sequential read fetches in advance.
pub const READ_AHEAD: &str = "read_ahead_kb";

/// The prefix of the tunables of the present scheduler.
pub const IOSCHED: &str = "iosched/";

/// Writable settings by name, such as `scheduler` or `iosched/fifo_batch`, with their values.
pub type QueueState = BTreeMap<String, String>;

/// The settings of a queue.
pub trait Queue {
    /// The names of the settings that can be written.
    ///
    /// # Errors
    /// When the folder cannot be read.
    fn settings(&self) -> io::Result<Vec<String>>;

    /// The value of a setting; of a choice the chosen one.
    ///
    /// # Errors
    /// When the setting does not exist or cannot be read.
    fn read(&self, setting: &str) -> io::Result<String>;

    /// Writes a setting.
    ///
    /// # Errors
    /// When the setting does not exist, or the kernel rejects the value.
    fn write(&self, setting: &str, value: &str) -> io::Result<()>;
}

impl<Q: Queue + ?Sized> Queue for &Q {
    fn settings(&self) -> io::Result<Vec<String>> {
        (**self).settings()
    }

    fn read(&self, setting: &str) -> io::Result<String> {
        (**self).read(setting)
    }

    fn write(&self, setting: &str, value: &str) -> io::Result<()> {
        (**self).write(setting, value)
    }
}

/// Why the settings of a queue could not be read, written or restored.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// A setting cannot be read or written.
    #[error("cannot {action} {setting}: {error}")]
    Setting {
        /// `read` or `write`, with the value.
        action: String,
        /// The setting.
        setting: String,
        /// The cause.
        error: io::Error,
    },
    /// The kernel has changed the value.
    #[error(
        "{setting} is {actual} after {value} was written; choose a value that the kernel keeps"
    )]
    Adjusted {
        /// The setting.
        setting: String,
        /// What was written.
        value: String,
        /// What is read.
        actual: String,
    },
    /// Another program has changed settings meanwhile.
    #[error("changed by another program: {0}")]
    Foreign(String),
    /// Settings still differ after they were restored.
    #[error("not restored: {0}")]
    NotRestored(String),
    /// The journal cannot be read or written.
    #[error("{}: {error}", path.display())]
    Journal {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// A journal of another version, or one that is damaged.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// All writable settings that can be read. The kernel reports those that a device does not have,
/// such as write-back throttling, by an error.
///
/// # Errors
/// When the folder cannot be read.
pub fn read_state<Q: Queue>(queue: &Q) -> Result<QueueState, QueueError> {
    let failed = |error| QueueError::Setting {
        action: "read".into(),
        setting: "the queue's settings".into(),
        error,
    };
    let names = queue.settings().map_err(failed)?;
    let values = names.into_iter().filter_map(|name| {
        let value = queue.read(&name).ok()?;
        Some((name, value))
    });
    Ok(values.collect())
}

/// The settings in the order in which they are written: the scheduler resets all others, the number
/// of requests resets tunables, and write-back throttling depends on the scheduler.
pub fn in_order(state: &QueueState) -> Vec<(&String, &String)> {
    let rank = |name: &str| match name {
        SCHEDULER => 0,
        NR_REQUESTS => 1,
        WBT => 3,
        _ => 2,
    };
    let mut settings: Vec<_> = state.iter().collect();
    settings.sort_by_key(|(name, _)| rank(name));
    settings
}

/// Whether the kernel may change `setting` when it changes `written`.
pub fn depends(setting: &str, written: &str) -> bool {
    let is_tunable = setting.starts_with(IOSCHED);
    match written {
        SCHEDULER => is_tunable || [NR_REQUESTS, WBT].contains(&setting),
        NR_REQUESTS => is_tunable,
        _ => false,
    }
}

/// The settings for `changes` from the state `before`. With another scheduler, the settings that
/// depend on it are left to the kernel, except those of `changes`; write-back throttling is kept
/// as before, except with bfq, which switches it off.
pub fn changed(before: &QueueState, changes: &QueueState) -> QueueState {
    let mut target = before.clone();
    let scheduler = changes.get(SCHEDULER);
    if scheduler.is_some_and(|name| before.get(SCHEDULER) != Some(name)) {
        let is_bfq = scheduler.is_some_and(|name| name == "bfq");
        target.retain(|name, _| !depends(name, SCHEDULER) || (name == WBT && !is_bfq));
    }
    target.extend(changes.clone());
    target
}
