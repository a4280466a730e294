//! [`Inspection`]: the main process's handle of the inspection process, and [`Conversation`]s with
//! it.

use std::ffi::OsString;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{ANSWER_BYTES_MAX, ConversationKind, REQUEST_BYTES_MAX};
use crate::TapError;
use crate::control::{channel, frame};

/// The inherited environment variables: the paths of `virsh` and libraries, and the variables that
/// `virsh` needs for a user's own libvirt.
const VARIABLES: [&str; 4] = ["PATH", "LD_LIBRARY_PATH", "HOME", "XDG_RUNTIME_DIR"];

/// Timeout of the wait for its end; it removes histograms from QEMUs first.
const END: Duration = Duration::from_secs(10);

/// Interval of the checks during that wait.
const END_EVERY: Duration = Duration::from_millis(1);

/// The process; it ends when this value and its conversations are dropped.
#[derive(Debug)]
pub struct Inspection {
    child: Mutex<Option<Child>>,
    /// Passes the sockets of conversations. The process ends when this is closed.
    control: Option<OwnedFd>,
}

/// A socket on which the process answers requests of one kind.
#[derive(Debug)]
pub struct Conversation {
    socket: UnixStream,
    /// Dropped after the socket.
    _process: Arc<Inspection>,
}

impl Inspection {
    /// Starts `program` (with arguments), which must call [`super::run`]. It has the current rights
    /// of the calling thread.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn start(program: &[OsString]) -> Result<Arc<Inspection>, TapError> {
        let failed = |error: io::Error| TapError::Unavailable {
            what: format!("the inspection process cannot be started: {error}"),
            remedy:
                "check that /proc is mounted and that the process limit is not reached (ulimit -u)"
                    .into(),
        };
        let unnamed = || failed(io::ErrorKind::InvalidInput.into());
        let (name, arguments) = program.split_first().ok_or_else(unnamed)?;
        let pair = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let (control, theirs) = pair.map_err(|error| failed(error.into()))?;
        let variables = VARIABLES.map(|name| (name, std::env::var_os(name)));
        let variables = variables.into_iter().filter_map(|(n, v)| Some((n, v?)));
        // A separate process group, so that Ctrl-C at the terminal does not reach it.
        let child = Command::new(name)
            .args(arguments)
            .env_clear()
            .envs(variables)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        Ok(Arc::new(Inspection {
            child: Mutex::new(Some(child)),
            control: Some(control),
        }))
    }

    /// Starts a conversation with its first request. `timeout` is the timeout of each answer.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn converse(
        self: &Arc<Inspection>,
        kind: ConversationKind,
        first: &impl Serialize,
        timeout: Option<Duration>,
    ) -> io::Result<Conversation> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(timeout)?;
        socket.set_write_timeout(timeout)?;
        let control = self.control.as_ref().expect("only dropping takes it");
        let (byte, descriptors) = ([kind.byte()], [theirs.as_fd()]);
        channel::send(control, &byte, &descriptors, SendFlags::empty())?;
        let mut conversation = Conversation {
            socket,
            _process: self.clone(),
        };
        conversation.request(first)?;
        Ok(conversation)
    }
}

/// Ends a conversation from another thread.
#[derive(Debug)]
pub struct Closer(UnixStream);

impl Closer {
    /// Ends it immediately: a thread that waits for an answer receives an error.
    pub fn close(&self) {
        // If the process has ended, the socket is already closed.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Drop for Inspection {
    fn drop(&mut self) {
        drop(self.control.take());
        let child = self.child.get_mut().expect("no panic while held");
        let Some(mut child) = child.take() else {
            return;
        };
        let until = Instant::now() + END;
        while let Ok(None) = child.try_wait() {
            if Instant::now() >= until {
                // The process waits for a QEMU and ends then; it must not remain a zombie.
                let reap = move || drop(child.wait());
                let _ = thread::Builder::new().name("reap".into()).spawn(reap);
                return;
            }
            thread::sleep(END_EVERY);
        }
    }
}

impl Conversation {
    /// Sends a request.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn request(&mut self, request: &impl Serialize) -> io::Result<()> {
        frame::write(&self.socket, request, REQUEST_BYTES_MAX).map_err(lost)
    }

    /// Receives one message of an answer.
    ///
    /// # Errors
    /// If the process has ended, does not answer in time, or sends something else.
    pub fn answer<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let answer = frame::read(&self.socket, ANSWER_BYTES_MAX).map_err(lost)?;
        answer.ok_or_else(|| lost(io::ErrorKind::UnexpectedEof.into()))
    }

    /// A duplicate of the socket, to end the conversation while another thread waits for an answer.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub fn closer(&self) -> io::Result<Closer> {
        Ok(Closer(self.socket.try_clone()?))
    }

    /// The socket, to read an answer of several messages.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Ends the conversation, and waits until the other side has ended it too.
    pub fn end(self) {
        // If the process has ended, there is nothing to wait for.
        let _ = self.socket.shutdown(Shutdown::Write);
        let _ = self.socket.set_read_timeout(Some(END));
        let _ = io::copy(&mut &self.socket, &mut io::sink());
    }
}

/// The error, as the end of a sentence about the process.
pub fn lost(error: io::Error) -> io::Error {
    use io::ErrorKind as Kind;
    let why = match error.kind() {
        Kind::UnexpectedEof | Kind::BrokenPipe | Kind::ConnectionReset => "has ended".to_owned(),
        Kind::WouldBlock | Kind::TimedOut => "does not answer".to_owned(),
        _ => format!("sent an invalid message ({error})"),
    };
    io::Error::new(error.kind(), why)
}
