//! [`NbdAddress`] and [`Listener`]: the sockets for NBD clients: a unix socket, or a port that is
//! reachable from this machine only.

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_nodelay, socket_peercred};
use rustix::net::{SocketFlags, SocketType, accept_with};

use super::NbdError;
use crate::socket::{ServerSocket, SocketAccess};

/// An address for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// A unix socket's path.
    Unix(PathBuf),
    /// A loopback address and port; port 0 is any free one.
    Loopback(SocketAddr),
}

impl FromStr for NbdAddress {
    type Err = String;

    /// `unix:PATH`, a path with a slash, `127.0.0.1:10809`, `[::1]:10809` or `localhost:10809`.
    fn from_str(text: &str) -> Result<NbdAddress, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err("the path after `unix:` is missing".into()),
                false => Ok(NbdAddress::Unix(path.into())),
            };
        }
        if text.contains('/') {
            return Ok(NbdAddress::Unix(text.into()));
        }
        let numeric = text.replacen("localhost:", "127.0.0.1:", 1);
        let address: SocketAddr = numeric.parse().map_err(|_| {
            format!("`{text}` is not an address: use a path, unix:PATH or 127.0.0.1:PORT")
        })?;
        match address.ip().is_loopback() {
            true => Ok(NbdAddress::Loopback(address)),
            false => Err(format!(
                "`{text}`: NBD without encryption and passwords is served on this host only: use \
                 127.0.0.1:PORT, and an SSH tunnel from other hosts"
            )),
        }
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            NbdAddress::Loopback(address) => address.fmt(f),
        }
    }
}

/// A listening socket, open until it is dropped.
#[derive(Debug)]
pub struct Listener {
    address: NbdAddress,
    door: Door,
}

#[derive(Debug)]
enum Door {
    Unix(ServerSocket),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `address`. `access` is for unix sockets; any user of this machine may connect to
    /// a port.
    ///
    /// # Errors
    /// When another process listens there, or the system rejects it.
    pub fn bind(address: &NbdAddress, access: SocketAccess) -> Result<Listener, NbdError> {
        let (address, door) = match address {
            NbdAddress::Unix(path) => {
                let socket = ServerSocket::bind(path, SocketType::STREAM, access)?;
                (address.clone(), Door::Unix(socket))
            }
            NbdAddress::Loopback(at) => {
                let failed = |error| NbdError::Port { at: *at, error };
                let listener = TcpListener::bind(at).map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                (NbdAddress::Loopback(bound), Door::Tcp(listener))
            }
        };
        let listener = Listener { address, door };
        // A client that disconnects between poll and accept must not block the others.
        rustix::io::ioctl_fionbio(listener.fd(), true).map_err(|e| NbdError::Socket(e.into()))?;
        Ok(listener)
    }

    /// The bound address: for port 0 the actual port.
    pub fn address(&self) -> &NbdAddress {
        &self.address
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match &self.door {
            Door::Unix(socket) => socket.listener().as_fd(),
            Door::Tcp(listener) => listener.as_fd(),
        }
    }

    /// The next waiting client: a non-blocking socket, and the process that connected it, if that
    /// is on this host and the socket provides it.
    pub(super) fn accept(&self) -> Result<Option<(OwnedFd, Option<u32>)>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(self.fd(), flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(error) => return Err(error),
        };
        let process = match self.door {
            Door::Unix(_) => {
                let peer = socket_peercred(&socket).ok();
                // 0 is a process of another namespace.
                let number = peer.map(|peer| peer.pid.as_raw_nonzero().get());
                number.and_then(|pid| u32::try_from(pid).ok())
            }
            Door::Tcp(_) => {
                // Replies are complete: waiting for more only adds latency. A client on a socket
                // without the option is served all the same.
                let _ = set_tcp_nodelay(&socket, true);
                let _ = set_socket_keepalive(&socket, true);
                None
            }
        };
        Ok(Some((socket, process)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_path_or_a_loopback_port() {
        let unix = |path: &str| Ok(NbdAddress::Unix(path.into()));
        assert_eq!("unix:tap".parse(), unix("tap"));
        assert_eq!("/run/tap".parse(), unix("/run/tap"));
        assert_eq!("./tap:1".parse(), unix("./tap:1"));
        for text in [
            "127.0.0.1:10809",
            "localhost:10809",
            "[::1]:1",
            "127.9.9.9:0",
        ] {
            let address: NbdAddress = text.parse().unwrap();
            assert!(matches!(address, NbdAddress::Loopback(_)), "{text}");
        }
        for text in ["", "unix:", "tap", "127.0.0.1", "10809"] {
            assert!(text.parse::<NbdAddress>().is_err(), "{text}");
        }
        for text in ["0.0.0.0:10809", "[::]:10809", "192.0.2.7:10809"] {
            let why = text.parse::<NbdAddress>().unwrap_err();
            assert!(why.contains("SSH tunnel"), "{why}");
        }
    }
}
