//! [`ServerSocket`]: a unix socket for clients: access rights are set before the first connection,
//! the socket file of a dead process is replaced, that of a live one is not, and the file is
//! removed when the socket is dropped.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
pub use rustix::net::SocketType;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags};

/// The longest path of a socket: `sun_path` of unix(7), with the terminating zero.
pub const PATH_BYTES_MAX: usize = 107;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// Who may connect: the access rights of the socket's file. Connecting requires the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// As for `chmod`.
    pub mode: u32,
    /// The group, if not that of the process.
    pub group: Option<u32>,
}

impl Default for SocketAccess {
    /// The owner only.
    fn default() -> SocketAccess {
        SocketAccess {
            mode: 0o600,
            group: None,
        }
    }
}

/// Why there is no socket at a path.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// It exceeds the kernel's structure.
    #[error(
        "{path}: the path of a socket has at most {PATH_BYTES_MAX} bytes, this one has {bytes}; \
         use a shorter path"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// A process serves there.
    #[error(
        "{path}: another process serves this socket; use another path, or stop that process \
             first"
    )]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// A file of another kind is there; it is not replaced.
    #[error("{path}: the file is not a socket; choose another path")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// An error of the system.
    #[error("{path}: cannot {what}: {error}")]
    System {
        /// The path.
        path: PathBuf,
        /// The operation.
        what: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}

/// A listening socket; its file is removed when this is dropped.
#[derive(Debug)]
pub struct ServerSocket {
    listener: UnixListener,
    path: PathBuf,
    /// File system and inode of the file.
    node: (u64, u64),
}

impl ServerSocket {
    /// Listens at `path`, which should be absolute: it is shown to others. A socket whose process
    /// has ended is replaced.
    ///
    /// # Errors
    /// When a process serves there, another file is there, or the system rejects it.
    pub fn bind(
        path: &Path,
        kind: SocketType,
        access: SocketAccess,
    ) -> Result<ServerSocket, SocketError> {
        let bytes = path.as_os_str().len();
        if bytes > PATH_BYTES_MAX {
            let path = path.to_owned();
            return Err(SocketError::TooLong { path, bytes });
        }
        let failed = |what: &'static str| {
            let path = path.to_owned();
            move |error: io::Error| SocketError::System { path, what, error }
        };
        let address = SocketAddrUnix::new(path).map_err(|e| failed("name a socket")(e.into()))?;
        // Without the lock, the second of two processes that find the same dead socket would remove
        // the first one's.
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let folder = File::open(folder).map_err(failed("open its folder"))?;
        flock(&folder, FlockOperation::LockExclusive)
            .map_err(|e| failed("lock its folder")(e.into()))?;
        clear(path, &address, kind)?;
        let socket = socket(kind).map_err(|e| failed("make a socket")(e.into()))?;
        net::bind(&socket, &address).map_err(|e| failed("bind a socket")(e.into()))?;
        let meta = fs::symlink_metadata(path).map_err(failed("look at its socket"))?;
        // From here on the file is removed on failure.
        let bound = ServerSocket {
            listener: UnixListener::from(socket),
            path: path.to_owned(),
            node: (meta.dev(), meta.ino()),
        };
        // Before it listens no client can connect, so the rights are set first.
        let rights = fs::Permissions::from_mode(access.mode);
        fs::set_permissions(path, rights).map_err(failed("set the rights"))?;
        if let Some(group) = access.group {
            std::os::unix::fs::chown(path, None, Some(group)).map_err(failed("set the group"))?;
        }
        net::listen(&bound.listener, BACKLOG).map_err(|e| failed("listen")(e.into()))?;
        bound
            .listener
            .set_nonblocking(false)
            .map_err(failed("listen"))?;
        Ok(bound)
    }

    /// The listener.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ServerSocket {
    fn drop(&mut self) {
        // The file may have been replaced.
        let own = fs::symlink_metadata(&self.path);
        if own.is_ok_and(|meta| (meta.dev(), meta.ino()) == self.node) {
            // It may be removed concurrently.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn socket(kind: SocketType) -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, kind, flags, None)
}

/// Removes a dead socket.
fn clear(path: &Path, address: &SocketAddrUnix, kind: SocketType) -> Result<(), SocketError> {
    let owned = || path.to_owned();
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        // Other errors are reported by bind.
        Err(_) => return Ok(()),
    };
    if !meta.file_type().is_socket() {
        return Err(SocketError::NoSocket { path: owned() });
    }
    let system = |what: &'static str, error: io::Error| SocketError::System {
        path: owned(),
        what,
        error,
    };
    let probe = socket(kind).map_err(|e| system("make a socket", e.into()))?;
    match net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {
            fs::remove_file(path).map_err(|e| system("take the dead socket away", e))
        }
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::ACCESS) => Err(system(
            "determine whether a process serves there",
            Errno::ACCESS.into(),
        )),
        // Connected, of another kind, or with a full backlog: it is alive.
        _ => Err(SocketError::InUse { path: owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn bind(path: &Path) -> Result<ServerSocket, SocketError> {
        ServerSocket::bind(path, SocketType::STREAM, SocketAccess::default())
    }

    #[test]
    fn the_socket_of_a_dead_process_is_replaced_that_of_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        // A listener of the standard library leaves its file behind, as a killed process does.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let living = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(bind(&path), Err(SocketError::InUse { .. })));
        let seqpacket = ServerSocket::bind(&path, SocketType::SEQPACKET, SocketAccess::default());
        assert!(matches!(seqpacket, Err(SocketError::InUse { .. })));
        UnixStream::connect(&path).unwrap();
        drop(living);
        assert!(!path.exists(), "the file is removed");
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(SocketError::NoSocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let long = folder.path().join("x".repeat(200));
        assert!(matches!(bind(&long), Err(SocketError::TooLong { .. })));
        let nowhere = folder.path().join("none/s");
        assert!(matches!(bind(&nowhere), Err(SocketError::System { .. })));
    }

    #[test]
    fn the_socket_has_the_requested_rights() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let access = SocketAccess {
            mode: 0o660,
            group: Some(fs::metadata(folder.path()).unwrap().gid()),
        };
        let socket = ServerSocket::bind(&path, SocketType::SEQPACKET, access).unwrap();
        assert_eq!(fs::metadata(socket.path()).unwrap().mode() & 0o777, 0o660);
        // A replaced file is not removed.
        fs::remove_file(&path).unwrap();
        let _other = bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }
}
