//! Errors of the wire: protocol violations of a peer, invalid settings, and failures of the
//! environment.

use std::io;
use std::path::PathBuf;

/// A message of a peer violates the protocol. The text names the message, the part and the bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

impl Malformed {
    /// An error for `what` that has a count or length of `count` where at most `most` are allowed.
    pub fn too_many(what: &str, count: usize, most: usize) -> Malformed {
        Malformed(format!("{what}: {count}, at most {most} are allowed"))
    }
}

/// A failure of the network, its settings, or the peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Invalid syntax of an address.
    #[error(
        "`{text}` is not an address: {why}; write HOST, HOST:PORT, https://HOST:PORT or unix:PATH"
    )]
    Address {
        /// The given text.
        text: String,
        /// The reason.
        why: String,
    },
    /// The server cannot listen on its address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The settings would expose an unprotected server.
    #[error("{0}")]
    Unprotected(String),
    /// A file named in the settings cannot be read or is invalid.
    #[error("{path}: {why}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason and the remedy.
        why: String,
    },
    /// No monitor answers at the address.
    #[error("cannot reach the monitor at {address}: {why}; {remedy}")]
    Unreachable {
        /// The address.
        address: String,
        /// The error of the network.
        why: String,
        /// The remedy.
        remedy: String,
    },
    /// The monitor denies access, or denies the operation.
    #[error("the monitor at {address} rejected the request: {why}")]
    Denied {
        /// The address.
        address: String,
        /// Its reason.
        why: String,
    },
    /// The monitor rejects the request: the query is invalid or does not exist, or a limit is
    /// reached. The text is complete.
    #[error("{0}")]
    Refused(crate::Refusal),
    /// The monitor is a standby: another one leads.
    #[error("the monitor at {address} {why}")]
    Standby {
        /// The address.
        address: String,
        /// What it reports: that it is a standby, and of which monitor.
        why: String,
    },
    /// The connection was lost.
    #[error("lost the connection to the monitor at {address}: {why}")]
    Broken {
        /// The address.
        address: String,
        /// The error of the network.
        why: String,
    },
    /// An invalid option.
    #[error("{what}: {why}")]
    Option {
        /// The option.
        what: &'static str,
        /// The reason and the remedy.
        why: String,
    },
    /// The spool directory cannot be used.
    #[error("spool {path}", path = path.display())]
    Spool {
        /// The directory or a file in it.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The operating system gives no random bytes.
    #[error(transparent)]
    Random(io::Error),
    /// The network's thread cannot be started.
    #[error("cannot start the network thread: {0}")]
    Thread(io::Error),
    /// A message violates the bounds of the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}
