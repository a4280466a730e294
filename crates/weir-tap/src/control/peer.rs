//! [`Peers`]: which users may be at the other end of a Unix socket.

use std::io;
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use super::message::{ErrorCode, ServiceError};

/// The process at the other end, as the kernel reports it (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlPeer {
    /// The process.
    pub pid: i32,
    /// Its effective user when it connected.
    pub uid: u32,
}

/// Which users are accepted as peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// All who can open the socket: its mode and group restrict them.
    Permitted,
    /// The user of this process, and root.
    OwnUser,
}

impl Peers {
    /// The peer of `stream`, if it is accepted.
    ///
    /// # Errors
    /// [`ErrorCode::Forbidden`] for another user; or the error of the system.
    pub fn check(self, stream: &UnixStream) -> io::Result<Result<ControlPeer, ServiceError>> {
        let credentials = socket_peercred(stream)?;
        let peer = ControlPeer {
            pid: credentials.pid.as_raw_nonzero().get(),
            uid: credentials.uid.as_raw(),
        };
        let own = geteuid().as_raw();
        let is_accepted = match self {
            Peers::Permitted => true,
            Peers::OwnUser => peer.uid == own || peer.uid == 0,
        };
        let refused = || {
            let text = format_args!("user {} is not user {own} of this socket", peer.uid);
            ServiceError::new(ErrorCode::Forbidden, text)
        };
        Ok(is_accepted.then_some(peer).ok_or_else(refused))
    }
}
