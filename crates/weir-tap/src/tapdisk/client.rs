//! [`Client`]: a connection to a tapdisk's control socket. Every wait has a timeout.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, socket_with,
};

use super::words::{ANSWER_BYTES_MAX, Answer, Ask, Question, Reply};
use crate::TapError;

/// Timeout of a response.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes per read.
const READ_BYTES: usize = 64 << 10;

/// Suffix of a disk's socket name that yields the control socket.
const SUFFIX: &str = ".tap";

/// The reason why a tapdisk does not respond.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It is shutting down by request.
    #[error("the tap has ended: {0}")]
    Bye(String),
    /// The connection is closed.
    #[error("the tap has ended without a word")]
    Gone,
    /// It rejected the request.
    #[error("{0}")]
    Refused(String),
    /// The response cannot be parsed.
    #[error("the tap's answer is not understood: {0}")]
    Garbled(String),
    /// An error of the system.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl ClientError {
    /// Converts it to the error of opening a tap.
    pub fn at(self, path: &Path) -> TapError {
        use io::ErrorKind as Kind;
        let remedy = match &self {
            ClientError::System(error) => match error.kind() {
                Kind::PermissionDenied => "ask as the tap's user, or as root",
                Kind::NotFound | Kind::ConnectionRefused => {
                    "start `weir tapdisk`, or see which --tap it was given"
                }
                Kind::WouldBlock | Kind::TimedOut => "it may be busy; ask again",
                _ => "`weir tapdisk status PATH` tells whether it answers",
            },
            ClientError::Garbled(_) => "name the socket of a tap, of this version",
            ClientError::Bye(_) | ClientError::Gone => "start it again",
            ClientError::Refused(_) => "`weir tapdisk status PATH` tells who listens",
        };
        TapError::Unavailable {
            what: format!("tapdisk:{}: {self}", path.display()),
            remedy: remedy.into(),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    /// Bytes received after the last line.
    pending: Vec<u8>,
    /// The file descriptor received with it.
    passed: Option<OwnedFd>,
    over: bool,
}

/// The control socket of the tapdisk at `path`: `path` itself or, if that is a disk's socket, the
/// same name with `.tap` appended.
pub fn socket_of(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(SUFFIX);
    let beside = PathBuf::from(beside);
    match !path.as_os_str().as_bytes().ends_with(SUFFIX.as_bytes()) && beside.exists() {
        true => beside,
        false => path.to_owned(),
    }
}

impl Client {
    /// Connects to the tapdisk at `path`, see [`socket_of`].
    ///
    /// # Errors
    /// If nothing listens on the socket, or permissions are missing.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        // Without blocking: a listener that never accepts would block the connection indefinitely.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(io::Error::from)?;
        let address = SocketAddrUnix::new(socket_of(path)).map_err(io::Error::from)?;
        connect(&socket, &address).map_err(io::Error::from)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client {
            stream,
            pending: Vec::new(),
            passed: None,
            over: false,
        })
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// If there is none.
    pub fn ask(&mut self, ask: Ask) -> Result<Answer, ClientError> {
        let until = Instant::now() + PATIENCE;
        let question = Question::to_line(ask);
        // A tapdisk that shuts down has sent the reason, which is read below.
        let sent = self.stream.write_all(question.as_bytes());
        loop {
            if let Some(line) = self.line()? {
                return self.heard(&line);
            }
            if self.over {
                sent?;
                return Err(ClientError::Gone);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.stream.set_read_timeout(Some(left))?;
            self.read(RecvFlags::empty())?;
        }
    }

    /// Checks whether the tapdisk is still connected, without blocking.
    ///
    /// # Errors
    /// [`ClientError::Bye`] or [`ClientError::Gone`] if it is not, or an error of the system.
    pub fn look(&mut self) -> Result<(), ClientError> {
        match self.read(RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => other?,
        }
        if let Some(line) = self.line()? {
            return self.heard(&line).map(drop);
        }
        match self.over {
            true => Err(ClientError::Gone),
            false => Ok(()),
        }
    }

    /// The file received with the last response.
    pub fn passed(&mut self) -> Option<OwnedFd> {
        self.passed.take()
    }

    fn heard(&self, line: &[u8]) -> Result<Answer, ClientError> {
        match Reply::of_line(line).map_err(ClientError::Garbled)? {
            Answer::Bye(why) => Err(ClientError::Bye(why)),
            Answer::Error(why) => Err(ClientError::Refused(why)),
            answer => Ok(answer),
        }
    }

    /// A complete line, if one was received.
    fn line(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let Some(end) = self.pending.iter().position(|b| *b == b'\n') else {
            return match self.pending.len() > ANSWER_BYTES_MAX {
                true => Err(ClientError::Garbled("it is too long".into())),
                false => Ok(None),
            };
        };
        let rest = self.pending.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.pending, rest);
        line.pop();
        Ok(Some(line))
    }

    fn read(&mut self, flags: RecvFlags) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = vec![0; READ_BYTES];
        let mut into = [IoSliceMut::new(&mut bytes)];
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = retry_on_intr(|| recvmsg(&self.stream, &mut into, &mut control, flags));
        let read = match received {
            Err(Errno::CONNRESET) => 0,
            other => other?.bytes,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.passed = files.last();
            }
        }
        self.over |= read == 0;
        self.pending.extend_from_slice(&bytes[..read]);
        Ok(())
    }
}
