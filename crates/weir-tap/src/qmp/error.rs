//! [`QmpError`]: how asking QEMU fails, naming the socket or the domain.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why QEMU cannot be asked, or did not do as it was told.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// Nobody is there, or we may not.
    #[error("{at}: cannot be reached: {error}")]
    Unreachable {
        /// The socket or domain.
        at: String,
        /// What the system says.
        error: io::Error,
    },
    /// Another client holds the socket.
    #[error(
        "{at}: another program holds this QMP socket; give QEMU a second one for weir (-qmp unix:PATH,server=on,wait=off)"
    )]
    Busy {
        /// The socket.
        at: String,
    },
    /// Another process listens at the socket than the one whose command line names it.
    #[error(
        "{at}: process {listener} listens at this QMP socket, not process {named_by}, whose command line names it"
    )]
    Foreign {
        /// The socket.
        at: String,
        /// The process whose command line names the socket.
        named_by: u32,
        /// The process that listens; 0 if this PID namespace does not have it.
        listener: u32,
    },
    /// No answer in time.
    #[error("{at}: no answer to {command} within {waited:?}")]
    Silent {
        /// The socket or domain.
        at: String,
        /// What was asked.
        command: String,
        /// How long we waited.
        waited: Duration,
    },
    /// QEMU has gone.
    #[error("{at}: the connection ended; QEMU has gone")]
    Closed {
        /// The socket or domain.
        at: String,
    },
    /// What came is not QMP.
    #[error("{at}: this is not QMP: {why}")]
    Garbled {
        /// The socket or domain.
        at: String,
        /// What is wrong with it.
        why: String,
    },
    /// QEMU said no.
    #[error("{at}: {command} was refused: {reason}")]
    Refused {
        /// The socket or domain.
        at: String,
        /// What was asked.
        command: String,
        /// QEMU's words.
        reason: String,
    },
}

/// What kind of failure a [`QmpError`] is.
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
    /// As the counter of failed polls has it.
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
    /// What kind of failure it is.
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

    /// True when QEMU understood and said no: the connection goes on.
    pub fn is_refusal(&self) -> bool {
        matches!(self, QmpError::Refused { .. })
    }
}
