//! [`TapError`]: how a tap fails, naming the file, device or kernel feature.

use std::path::PathBuf;

/// Why a tap cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// A file cannot be opened, read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Waiting for a pipe was cancelled.
    #[error("{}: reading was cancelled", path.display())]
    Cancelled {
        /// The pipe.
        path: PathBuf,
    },
    /// No reader knows the file's format.
    #[error("{}: not a trace format that weir knows; known are {known}", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The names of the formats.
        known: String,
    },
    /// The user named a format that does not exist, or that cannot be written.
    #[error("{name}: {reason}; known are {known}")]
    NoSuchFormat {
        /// What the user said.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
        /// The names of the formats that would do.
        known: String,
    },
    /// A record is bad, and the user asked for strictness.
    #[error("{}: offset {offset}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Byte offset of the record.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// This user may not load programs into the kernel.
    #[error("permission denied: run as root, or grant CAP_BPF and CAP_PERFMON")]
    NotPermitted {
        /// What was refused, with the text of libbpf, for those who look into it.
        detail: String,
    },
    /// The live tap needs something that this host or this user does not have.
    #[error("{what}; {remedy}")]
    Unavailable {
        /// What is missing.
        what: String,
        /// What to do.
        remedy: String,
    },
}
