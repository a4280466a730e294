//! [`InsertionError`]: why a tap was not inserted or removed.

use std::fmt::Display;
use std::io;

use weir_tap::TapError;

/// Why a tap was not inserted or removed. The text names the disk and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum InsertionError {
    /// The request names a VM or a disk that does not exist.
    #[error("{0}")]
    Usage(String),
    /// The operation failed.
    #[error("{0}")]
    Failed(String),
    /// A file or socket cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The inventory or the process cannot be read.
    #[error(transparent)]
    Tap(#[from] TapError),
}

impl InsertionError {
    pub(super) fn usage(text: impl Display) -> InsertionError {
        InsertionError::Usage(text.to_string())
    }

    pub(super) fn failed(text: impl Display) -> InsertionError {
        InsertionError::Failed(text.to_string())
    }
}
