//! [`DiskError`]: why a disk cannot be served, and what to do.

use std::path::PathBuf;

/// Why a disk cannot be opened, or a lane cannot go on. What a single request ends with is its
/// [`Outcome`](crate::Outcome), never this.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The system refuses something on the image.
    #[error("{}: cannot {what}: {error}", path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// What was tried: `open it for writing`.
        what: &'static str,
        /// What the system says.
        error: std::io::Error,
    },
    /// The image cannot be what was asked for.
    #[error("{}: {reason}; {remedy}", path.display())]
    Unfit {
        /// The image.
        path: PathBuf,
        /// What is in the way.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// Somebody else uses the image in a way that excludes us.
    #[error("{}: in use: {conflict}{holders}; stop that program, or switch our lock off if it is the one that \
             uses this disk", path.display())]
    InUse {
        /// The image.
        path: PathBuf,
        /// What the two want that does not go together.
        conflict: String,
        /// The processes that have it open, as far as this one may see: ` (qemu-system-x86, pid 17)`,
        /// or nothing.
        holders: String,
    },
    /// The machine refuses an engine.
    #[error("{what}: {error}; {remedy}")]
    Engine {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        error: std::io::Error,
        /// What to do.
        remedy: &'static str,
    },
}
