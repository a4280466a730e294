//! [`Listen`]: the address of a server: a TCP address, or a unix socket of this host.

use std::fmt;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::Address;

/// The mode of the socket. Connecting requires write permission, so the monitor's user and the
/// members of the socket's group can connect.
const SOCKET_MODE: u32 = 0o660;
/// The mode of a directory created for the socket.
const FOLDER_MODE: u32 = 0o755;
/// The queue of connections to accept.
const BACKLOG: i32 = 128;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At an address; port 0 lets the system choose one.
    Tcp(SocketAddr),
    /// At a unix socket.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the path is missing, such as in \
                     unix:/run/weir-monitor/monitor.sock"
                .to_owned()),
            Some(path) => Ok(Listen::Unix(path.into())),
            None => text.parse().map(Listen::Tcp).map_err(|_| {
                "expected an address and a port, such as 127.0.0.1:7733, or unix:PATH".to_owned()
            }),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Listen {
        Listen::Tcp(address)
    }
}

/// A listening socket. The file of a unix socket is removed with it.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Starts listening.
    ///
    /// # Errors
    /// If the address is in use or not this host's, or the socket cannot be created.
    pub(super) fn bind(listen: &Listen) -> io::Result<Listener> {
        match listen {
            Listen::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Tcp(listener))
            }
            Listen::Unix(path) => {
                let (listener, bound) = bind_unix(path)?;
                listener.set_nonblocking(true)?;
                Ok(Listener::Unix(listener, bound))
            }
        }
    }

    /// The address, with the port chosen by the system.
    pub(super) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Listener::Tcp(listener) => listener.local_addr()?.into(),
            Listener::Unix(_, bound) => Address::Unix(bound.path.clone()),
        })
    }
}

/// A unix socket file; removed when this is dropped, unless another server has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Its device and inode.
    identity: Option<(u64, u64)>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let facts = fs::symlink_metadata(path).ok()?;
    Some((facts.dev(), facts.ino()))
}

/// Creates the socket with its mode before anyone can connect.
fn bind_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(FOLDER_MODE).create(folder)?;
    }
    remove_stale(path)?;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    let bound = SocketFile {
        path: path.to_owned(),
        identity: identity(path),
    };
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    listen(&socket, BACKLOG)?;
    Ok((socket.into(), bound))
}

/// Removes a stale socket. Other files stay, and so does a socket in use: the bind fails then.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_restricted_and_removed_with_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/monitor.sock");
        let listener = Listener::bind(&Listen::Unix(path.clone())).unwrap();
        let mode = fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o7777, SOCKET_MODE);
        assert!(UnixStream::connect(&path).is_ok());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_stale_socket_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        drop(UnixListener::bind(&path).unwrap());
        let first = Listener::bind(&Listen::Unix(path.clone())).unwrap();
        let in_use = Listener::bind(&Listen::Unix(path.clone())).unwrap_err();
        assert_eq!(in_use.kind(), io::ErrorKind::AddrInUse);
        assert!(
            UnixStream::connect(&path).is_ok(),
            "the first still listens"
        );
        drop(first);
        fs::write(&path, "a file").unwrap();
        assert!(Listener::bind(&Listen::Unix(path.clone())).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
    }

    #[test]
    fn a_listen_address_round_trips() {
        for text in [
            "127.0.0.1:0",
            "[::1]:7733",
            "unix:/run/weir-monitor/monitor.sock",
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        assert!("unix:".parse::<Listen>().unwrap_err().contains("path"));
        assert!("7733".parse::<Listen>().is_err());
    }
}
