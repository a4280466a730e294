//! The messages between host and guest: a line of JSON each, one answer to each request.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::queue::{QueueRecovery, QueueState};

/// The version of the messages; both sides must have the same.
pub const VERSION: u32 = 1;

/// The longest line.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The time without a message after which the guest restores its settings.
pub const LEASE: Duration = Duration::from_secs(10);

/// The interval at which the host sends a message.
pub const KEEP_EVERY: Duration = Duration::from_secs(2);

/// A request of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestTuneRequest {
    /// Names a disk of the guest, and begins a session. Nothing is changed.
    Start {
        /// [`VERSION`] of the host.
        version: u32,
        /// The disk, such as `vda`.
        disk: String,
    },
    /// Changes the settings to those at the start with these changes.
    Set(QueueState),
    /// Extends the lease.
    Keep,
    /// Restores the settings and ends the session.
    Restore,
}

/// An answer of the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestAnswer {
    /// The session was started.
    Started {
        /// The settings.
        present: QueueState,
        /// The schedulers that the guest's kernel offers.
        schedulers: Vec<String>,
    },
    /// The settings were changed, or the lease was extended.
    Done,
    /// The settings were restored.
    Restored(QueueRecovery),
    /// The request was not carried out.
    Error(String),
}
