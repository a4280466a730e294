//! [`Client`]: a connection to a tap's control socket. Every wait has a bound.

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

/// How long a tap may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// What a disk's own socket has behind its name when it is the tap's.
const SUFFIX: &str = ".tap";

/// Why a tap does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It ends because it was told to.
    #[error("the tap has ended: {0}")]
    Bye(String),
    /// The connection is gone.
    #[error("the tap has ended without a word")]
    Gone,
    /// It does not want to.
    #[error("{0}")]
    Refused(String),
    /// What it says is not understood.
    #[error("the tap's answer is not understood: {0}")]
    Garbled(String),
    /// The system says no.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl ClientError {
    /// The same as what keeps a tap from being opened.
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
    /// What was read behind the last line.
    pending: Vec<u8>,
    /// What came with it.
    passed: Option<OwnedFd>,
    over: bool,
}

/// Where the tap of `path` listens: that is its socket, or that of a disk, whose tap's has `.tap` behind
/// its name.
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
    /// Connects to the tap at `path`, see [`socket_of`].
    ///
    /// # Errors
    /// When nobody listens there, or may not be asked.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        // Without waiting: who listens and accepts nobody would hold us for ever.
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

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// When there is none.
    pub fn ask(&mut self, ask: Ask) -> Result<Answer, ClientError> {
        let until = Instant::now() + PATIENCE;
        let question = Question::to_line(ask);
        // Who is about to end has said why; that is read below.
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

    /// Whether the tap is still there, without waiting.
    ///
    /// # Errors
    /// [`ClientError::Bye`] or [`ClientError::Gone`] when it is not, or an error of the system.
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

    /// The file that came with the last answer.
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

    /// A whole line, if one was read.
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
