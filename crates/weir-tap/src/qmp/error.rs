//! [`QmpError`]: errors of QMP, which name the socket or the domain.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The reason why QEMU cannot be queried, or did not execute a command.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// The socket does not accept connections, or permissions are missing.
    #[error("{at}: cannot be reached: {error}")]
    Unreachable {
        /// The socket or domain.
        at: String,
        /// The error of the system.
        error: io::Error,
    },
    /// Another client uses the socket.
    #[error(
        "{at}: another program is connected to this QMP socket; add a second one for weir (-qmp unix:PATH,server=on,wait=off)"
    )]
    Busy {
        /// The socket.
        at: String,
    },
    /// The process that listens on the socket is not the one whose command line names it.
    #[error(
        "{at}: this QMP socket belongs to process {listener}, not to process {named_by}, whose command line names it"
    )]
    Foreign {
        /// The socket.
        at: String,
        /// The process whose command line names the socket.
        named_by: u32,
        /// The process that listens; 0 if it is not in this PID namespace.
        listener: u32,
    },
    /// No response in time.
    #[error("{at}: no answer to {command} within {waited:?}")]
    Silent {
        /// The socket or domain.
        at: String,
        /// The command.
        command: String,
        /// The timeout.
        waited: Duration,
    },
    /// QEMU has closed the connection.
    #[error("{at}: the connection was closed; QEMU has ended")]
    Closed {
        /// The socket or domain.
        at: String,
    },
    /// The received data are not QMP.
    #[error("{at}: this is not QMP: {why}")]
    Garbled {
        /// The socket or domain.
        at: String,
        /// The violation.
        why: String,
    },
    /// QEMU returned an error.
    #[error("{at}: {command} was rejected: {reason}")]
    Refused {
        /// The socket or domain.
        at: String,
        /// The command.
        command: String,
        /// QEMU's error message.
        reason: String,
    },
}

/// The kind of a [`QmpError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// [`QmpError::Unreachable`].
    Unreachable,
    /// [`QmpError::Busy`].
    Busy,
    /// [`QmpError::Foreign`].
    Foreign,
    /// [`QmpError::Silent`].
    Silent,
    /// [`QmpError::Closed`].
    Closed,
    /// [`QmpError::Garbled`].
    Garbled,
    /// [`QmpError::Refused`].
    Refused,
}

impl Cause {
    /// The name in the counter of failed polls.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Unreachable => "unreachable",
            Cause::Busy => "busy",
            Cause::Foreign => "foreign",
            Cause::Silent => "silent",
            Cause::Closed => "closed",
            Cause::Garbled => "garbled",
            Cause::Refused => "refused",
        }
    }
}

impl QmpError {
    /// The kind of the error.
    pub fn cause(&self) -> Cause {
        match self {
            QmpError::Unreachable { .. } => Cause::Unreachable,
            QmpError::Busy { .. } => Cause::Busy,
            QmpError::Foreign { .. } => Cause::Foreign,
            QmpError::Silent { .. } => Cause::Silent,
            QmpError::Closed { .. } => Cause::Closed,
            QmpError::Garbled { .. } => Cause::Garbled,
            QmpError::Refused { .. } => Cause::Refused,
        }
    }

    /// True if QEMU returned an error: the connection remains usable.
    pub fn is_refusal(&self) -> bool {
        matches!(self, QmpError::Refused { .. })
    }
}
