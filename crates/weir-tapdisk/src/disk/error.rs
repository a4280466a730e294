//! [`DiskError`]: why a disk cannot be served, and the remedy.

use std::path::PathBuf;

/// Why a disk cannot be opened, or an I/O queue cannot continue. The result of a single request is
/// an [`Outcome`](crate::Outcome), never this.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The system rejects an operation on the image.
    #[error("{}: cannot {what}: {error}", path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// The operation: `open it for writing`.
        what: &'static str,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The image does not match the options.
    #[error("{}: {reason}; {remedy}", path.display())]
    Unsuitable {
        /// The image.
        path: PathBuf,
        /// The reason.
        reason: String,
        /// The remedy.
        remedy: String,
    },
    /// Another process uses the image in a way that excludes this one.
    #[error("{}: in use: {conflict}{holders}; stop that program, or disable weir's lock if it is the one that \
             uses this disk", path.display())]
    InUse {
        /// The image.
        path: PathBuf,
        /// The conflicting uses.
        conflict: String,
        /// The processes that have it open, if they are visible: ` (qemu-system-x86, pid 17)`, or
        /// empty.
        holders: String,
    },
    /// The system rejects an engine.
    #[error("{what}: {error}; {remedy}")]
    Engine {
        /// The operation.
        what: &'static str,
        /// The error of the system.
        error: std::io::Error,
        /// The remedy.
        remedy: &'static str,
    },
}
