//! Actions on disks: limits under a lease, with a journal on disk, undone at every end.
//!
//! A [`knob`] is a setting of the host that limits a disk: of a cgroup ([`weight`] or its limits),
//! of [`systemd`] or [`libvirt`] where they own it, of QEMU, or of a [`tapdisk`]. [`limit`]
//! computes its value, [`target`] finds the knob of a VM's disk. A [`policy`] states what alerts
//! may do, and the [`service`] carries out what they request by a [`link`]. A [`lease`] is the time
//! for which a knob has another value; [`store`] has the leases on disk, before the knob is
//! written, so that the next process can undo what a killed one has left. Undoing compares: a value
//! of another program stays as it is.

pub mod backtest;
pub mod command;
pub mod knob;
pub mod lease;
pub mod libvirt;
pub mod limit;
pub mod link;
pub mod policy;
pub mod service;
pub mod store;
pub mod systemd;
pub mod tapdisk;
pub mod target;
pub mod weight;

use std::path::PathBuf;

/// Why an action was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The limit or the target is not acceptable; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// A file of the journal or of a cgroup.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// QEMU did not carry out a command.
    #[error("QEMU: {0}")]
    Qemu(#[from] weir_tap::qmp::QmpError),
    /// A program that owns the limits failed.
    #[error("{program}: {why}")]
    Program {
        /// The program.
        program: String,
        /// Why.
        why: String,
    },
    /// The knob has another value than was written.
    #[error("{knob}: {found} was read back instead of {expected}")]
    NotApplied {
        /// The knob.
        knob: String,
        /// What was read.
        found: String,
        /// What was written.
        expected: String,
    },
}

/// An error of a file.
pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> ActError {
    let path = path.into();
    |error| ActError::File { path, error }
}
