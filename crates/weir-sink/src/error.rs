//! [`SinkError`]: the errors of a sink, with the name of the file.

use std::io;

/// An error of a sink.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The reader has closed the output, as in `| head`. This ends the program without a failure.
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
        /// The error of the system.
        error: io::Error,
    },
    /// An Arrow stream cannot be written.
    #[error("{name}: {error}")]
    Arrow {
        /// The file, or `standard output`.
        name: String,
        /// The error of the writer.
        error: arrow_schema::ArrowError,
    },
    /// Parquet cannot be written.
    #[error("{name}: {error}")]
    Parquet {
        /// The file, or `standard output`.
        name: String,
        /// The error of the writer.
        error: parquet::errors::ParquetError,
    },
    /// The format does not support the target.
    #[error("{what}; {remedy}")]
    Unsuited {
        /// The problem.
        what: String,
        /// The remedy.
        remedy: String,
    },
}

impl SinkError {
    /// Converts the result of writing to `name`.
    pub fn io(name: &str, error: io::Error) -> SinkError {
        let name = name.to_owned();
        match error.kind() {
            io::ErrorKind::BrokenPipe => SinkError::Closed { name },
            _ => SinkError::Io { name, error },
        }
    }
}
