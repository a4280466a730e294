//! What can go wrong on the wire: with what a peer body, with the settings, or with the world.

use std::io;
use std::path::PathBuf;

/// What a peer said is not what this protocol allows. The text names the word, the part and the
/// bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

impl Malformed {
    /// `what` came `count` times, or is so long, and at most `most` are allowed.
    pub fn too_many(what: &str, count: usize, most: usize) -> Malformed {
        Malformed(format!("{what}: {count}, at most {most} are allowed"))
    }
}

/// A failure of the network, of its settings, or of whoever speaks at the other end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// An address is not written as one.
    #[error(
        "`{text}` is not an address: {why}; write HOST, HOST:PORT, https://HOST:PORT or unix:PATH"
    )]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// The server cannot take its address.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The settings do not protect what they open.
    #[error("{0}")]
    Unprotected(String),
    /// A file that the settings name cannot be read or is not what it should be.
    #[error("{path}: {why}", path = path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        why: String,
    },
    /// Nobody answers there.
    #[error("cannot reach the monitor at {address}: {why}; {remedy}")]
    Unreachable {
        /// Where.
        address: String,
        /// What the network said.
        why: String,
        /// What to try.
        remedy: String,
    },
    /// The other end does not let us in, or not do this.
    #[error("the monitor at {address} refuses: {why}")]
    Denied {
        /// Who.
        address: String,
        /// What it said.
        why: String,
    },
    /// The monitor understood the request and refuses it: the words are off, there is no such
    /// query, a bound is reached. The text is complete.
    #[error("{0}")]
    Refused(crate::Refusal),
    /// The connection was there and broke.
    #[error("the connection to the monitor at {address} broke: {why}")]
    Broken {
        /// With whom.
        address: String,
        /// What the network said.
        why: String,
    },
    /// An option that makes no sense.
    #[error("{what}: {why}")]
    Option {
        /// Which.
        what: &'static str,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The directory for what waits to be sent cannot be used.
    #[error("spool {path}", path = path.display())]
    Spool {
        /// The directory or a file in it.
        path: PathBuf,
        /// What the system body.
        source: io::Error,
    },
    /// The network's thread cannot be started.
    #[error("the network's thread does not start: {0}")]
    Thread(io::Error),
    /// What was said is outside the protocol's bounds.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}
