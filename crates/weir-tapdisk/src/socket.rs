//! [`ServerSocket`]: a unix socket that others connect to: nobody may before its rights are set, the one
//! of a dead process is replaced, that of a living one is not, and it goes away with whoever made it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
pub use rustix::net::SocketType;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags};

/// The longest path of a socket: `sun_path` of unix(7), with a zero behind it.
pub const PATH_BYTES_MAX: usize = 107;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// Who may connect: the rights of the socket's file. To connect takes the right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// As `chmod` takes them.
    pub mode: u32,
    /// The group, if not that of the process.
    pub group: Option<u32>,
}

impl Default for Access {
    /// The owner alone.
    fn default() -> Access {
        Access {
            mode: 0o600,
            group: None,
        }
    }
}

/// Why there is no socket at a path.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// It would not fit the kernel's structure.
    #[error(
        "{path}: a socket's path has at most {PATH_BYTES_MAX} bytes, this one {bytes}; use a shorter folder"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// How long it is.
        bytes: usize,
    },
    /// A process serves there.
    #[error("{path}: another process serves there; choose another path, or end that process first")]
    Taken {
        /// The path.
        path: PathBuf,
    },
    /// A file of another kind is there, and is left alone.
    #[error("{path}: there is a file that is no socket; choose another path")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The system says no.
    #[error("{path}: cannot {what}: {error}")]
    System {
        /// The path.
        path: PathBuf,
        /// What failed.
        what: &'static str,
        /// The system's word.
        error: io::Error,
    },
}

/// A socket that listens; its file is gone when this is dropped.
#[derive(Debug)]
pub struct ServerSocket {
    listener: UnixListener,
    path: PathBuf,
    /// File system and inode of the file.
    node: (u64, u64),
}

impl ServerSocket {
    /// Listens at `path`, which is better absolute: it is what others see of the socket. A socket whose
    /// process is gone is replaced.
    ///
    /// # Errors
    /// When a process serves there, another file is there, or the system does not let it.
    pub fn bind(
        path: &Path,
        kind: SocketType,
        access: Access,
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
        // Of two that find the same dead socket the second would take away the first one's.
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
        // From here on a failure takes the file away again.
        let bound = ServerSocket {
            listener: UnixListener::from(socket),
            path: path.to_owned(),
            node: (meta.dev(), meta.ino()),
        };
        // Until it listens nobody can connect, so nobody comes in before the rights are set.
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

    /// What connections come in by.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ServerSocket {
    fn drop(&mut self) {
        // Somebody may have put another one in its place.
        let own = fs::symlink_metadata(&self.path);
        if own.is_ok_and(|meta| (meta.dev(), meta.ino()) == self.node) {
            // It may go in between; then it is gone as well.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn socket(kind: SocketType) -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, kind, flags, None)
}

/// Takes a dead socket away.
fn clear(path: &Path, address: &SocketAddrUnix, kind: SocketType) -> Result<(), SocketError> {
    let owned = || path.to_owned();
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        // Anything else is told when it is bound.
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
            "tell whether a process serves there",
            Errno::ACCESS.into(),
        )),
        // Connected, of another kind, or with no room for one more: it lives.
        _ => Err(SocketError::Taken { path: owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("weir-socket-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn bind(path: &Path) -> Result<ServerSocket, SocketError> {
        ServerSocket::bind(path, SocketType::STREAM, Access::default())
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let folder = Folder::new("dead");
        let path = folder.0.join("s");
        // A listener of the standard library leaves its file behind, as a killed process does.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let living = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(bind(&path), Err(SocketError::Taken { .. })));
        let seqpacket = ServerSocket::bind(&path, SocketType::SEQPACKET, Access::default());
        assert!(matches!(seqpacket, Err(SocketError::Taken { .. })));
        UnixStream::connect(&path).unwrap();
        drop(living);
        assert!(!path.exists(), "the file goes with it");
    }

    #[test]
    fn what_is_no_socket_stays() {
        let folder = Folder::new("file");
        let path = folder.0.join("f");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path), Err(SocketError::NoSocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let long = folder.0.join("x".repeat(200));
        assert!(matches!(bind(&long), Err(SocketError::TooLong { .. })));
        let nowhere = folder.0.join("none/s");
        assert!(matches!(bind(&nowhere), Err(SocketError::System { .. })));
    }

    #[test]
    fn the_rights_are_those_asked_for() {
        let folder = Folder::new("rights");
        let path = folder.0.join("s");
        let access = Access {
            mode: 0o660,
            group: Some(fs::metadata(&folder.0).unwrap().gid()),
        };
        let socket = ServerSocket::bind(&path, SocketType::SEQPACKET, access).unwrap();
        assert_eq!(fs::metadata(socket.path()).unwrap().mode() & 0o777, 0o660);
        // Another one in its place is not its to take away.
        fs::remove_file(&path).unwrap();
        let _other = bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }
}
