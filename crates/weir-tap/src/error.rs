//! [`TapError`]: errors of taps, with the file, device or kernel feature concerned.

use std::path::PathBuf;

/// The error with which a tap fails.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// A file cannot be opened, read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// Waiting for a pipe was cancelled.
    #[error("{}: reading was cancelled", path.display())]
    Cancelled {
        /// The pipe.
        path: PathBuf,
    },
    /// The file's format is not supported.
    #[error("{}: unknown trace format; supported formats: {known}", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The names of the formats.
        known: String,
    },
    /// The requested format does not exist or cannot be written.
    #[error("{name}: {reason}; supported formats: {known}")]
    NoSuchFormat {
        /// The requested name.
        name: String,
        /// The reason.
        reason: &'static str,
        /// The names of the valid formats.
        known: String,
    },
    /// A record is malformed, in strict mode.
    #[error("{}: offset {offset}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Byte offset of the record.
        offset: u64,
        /// The defect of the record.
        reason: String,
    },
    /// This user may not load programs into the kernel.
    #[error("permission denied: {cause}; {remedy}")]
    NotPermitted {
        /// The missing capability, or what else forbids it.
        cause: String,
        /// The remedy.
        remedy: String,
        /// The operation that was refused, with the message of libbpf.
        detail: String,
    },
    /// The live tap needs something that this host or this user does not have.
    #[error("{what}; {remedy}")]
    Unavailable {
        /// The missing feature or right.
        what: String,
        /// The remedy.
        remedy: String,
    },
}
