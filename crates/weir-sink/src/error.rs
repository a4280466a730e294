//! [`SinkError`]: how a sink fails, naming the file.

use std::io;

/// Why a sink cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// Nobody reads the output any more, as after `| head`. This ends the work, and is no failure.
    #[error("{name}: closed by its reader")]
    Closed {
        /// The file, or `standard output`.
        name: String,
    },
    /// The target cannot be written.
    #[error("{name}: {error}")]
    Io {
        /// The file, or `standard output`.
        name: String,
        /// What the system says.
        error: io::Error,
    },
    /// Parquet cannot be written.
    #[error("{name}: {error}")]
    Parquet {
        /// The file, or `standard output`.
        name: String,
        /// What the writer says.
        error: parquet::errors::ParquetError,
    },
    /// The format and the target do not fit.
    #[error("{what}; {remedy}")]
    Unsuited {
        /// What does not fit.
        what: String,
        /// What to do.
        remedy: String,
    },
}

impl SinkError {
    /// What became of writing to `name`.
    pub fn io(name: &str, error: io::Error) -> SinkError {
        let name = name.to_owned();
        match error.kind() {
            io::ErrorKind::BrokenPipe => SinkError::Closed { name },
            _ => SinkError::Io { name, error },
        }
    }
}
