//! [`TapdiskClient`]: a connection to a tapdisk's control socket. Every wait has a timeout.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::words::{Answer, Ask, Tapdisk};
use crate::TapError;
use crate::control::{self, ControlError, ErrorCode, Peers};

/// Timeout of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Suffix of a disk's socket name that yields the control socket.
pub(crate) const SUFFIX: &str = ".tap";

/// The reason why a tapdisk does not respond.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It is shutting down by request.
    #[error("the tap has ended: {0}")]
    Bye(String),
    /// The connection is closed.
    #[error("the tap has closed the connection")]
    Gone,
    /// It rejected the request.
    #[error("{0}")]
    Refused(String),
    /// The response cannot be parsed.
    #[error("invalid answer of the tap: {0}")]
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
                Kind::PermissionDenied => "run the command as the tap's user, or as root",
                Kind::NotFound | Kind::ConnectionRefused => {
                    "start `weir tapdisk`, or check its --tap option"
                }
                Kind::WouldBlock | Kind::TimedOut => "it may be busy; retry",
                _ => "check it with `weir tapdisk status PATH`",
            },
            ClientError::Garbled(_) => "use the socket of a tapdisk of this version",
            ClientError::Bye(_) | ClientError::Gone => "start it again",
            ClientError::Refused(_) => "check it with `weir tapdisk status PATH`",
        };
        TapError::Unavailable {
            what: format!("tapdisk:{}: {self}", path.display()),
            remedy: remedy.into(),
        }
    }
}

impl From<ControlError> for ClientError {
    fn from(error: ControlError) -> ClientError {
        match error {
            ControlError::Service(error) if error.code == ErrorCode::Stopped => {
                ClientError::Bye(error.message)
            }
            ControlError::Service(error) => ClientError::Refused(error.message),
            ControlError::Closed => ClientError::Gone,
            ControlError::Invalid(why) => ClientError::Garbled(why),
            ControlError::System(error) => ClientError::System(error),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub struct TapdiskClient(control::ControlClient<Tapdisk>);

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

impl TapdiskClient {
    /// Connects to the tapdisk at `path`, see [`socket_of`].
    ///
    /// # Errors
    /// If nothing listens on the socket, or permissions are missing.
    pub fn connect(path: &Path) -> Result<TapdiskClient, ClientError> {
        // The rights of the socket decide who serves and who connects: the users may differ.
        let client =
            control::ControlClient::connect(&socket_of(path), Peers::Permitted, RESPONSE_TIMEOUT)?;
        Ok(TapdiskClient(client))
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// If there is none.
    pub fn ask(&mut self, ask: Ask) -> Result<Answer, ClientError> {
        Ok(self.0.request(&ask)?)
    }

    /// Checks whether the tapdisk is still connected, without blocking.
    ///
    /// # Errors
    /// [`ClientError::Bye`] or [`ClientError::Gone`] if it is not, or an error of the system.
    pub fn look(&mut self) -> Result<(), ClientError> {
        Ok(self.0.poll().map(drop)?)
    }

    /// The file received with the last response.
    pub fn passed(&mut self) -> Option<OwnedFd> {
        self.0.passed().pop()
    }
}
