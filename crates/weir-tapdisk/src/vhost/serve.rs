//! [`serve`]: accepts front ends on a disk's socket, one at a time.
//!
//! A front end that connects while another is connected is rejected at once; one that connects
//! while requests of the previous one are in flight waits until these have ended. So at most one
//! front end submits requests.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::RecvFlags;
use vhost::vhost_user::message::MAX_MSG_SIZE;
use vhost::vhost_user::{BackendReqHandler as Protocol, Error};

use super::channel::{Channel, SET_BACKEND_REQ_FD};
use super::log::EventLog;
use super::session::Session;
use super::{QUEUES_MAX, VhostError, VhostOptions};
use crate::disk::ServedDisk;
use crate::{ServerSocket, StopEvent};

/// How long a front end may take to send the rest of a message, or to read an answer.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of checks for the rest of a message.
const MESSAGE_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// A front end without a message for this time is reported.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Without a message for this time, the size of the image is checked.
const SIZE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The pause when the process cannot accept another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes of a message's header; its last four are the length of the rest.
const HEADER_BYTES: usize = 12;

/// Serves the disk to front ends until `stop` is raised. Requests in flight then still end, if they
/// do so within [`VhostOptions::drain_timeout`].
///
/// # Errors
/// The options are invalid, or the socket fails. An error of a front end ends its connection.
pub fn serve(
    disk: &Arc<ServedDisk>,
    socket: &ServerSocket,
    options: &VhostOptions,
    stop: &StopEvent,
) -> Result<(), VhostError> {
    let queues = options.queues;
    if !(1..=QUEUES_MAX).contains(&queues) {
        return Err(VhostError::Queues { queues });
    }
    disk.check_blocks()?;
    let listener = socket.listener();
    listener
        .set_nonblocking(true)
        .map_err(|error| VhostError::Socket {
            path: socket.path().to_owned(),
            what: "serve",
            error,
        })?;
    let about = socket.path().display().to_string();
    let log = Arc::new(EventLog::new(about, Arc::clone(&options.log_line)));
    let acceptor = Acceptor {
        socket,
        stop,
        log: &log,
    };
    while !stop.is_raised() {
        let mut events = [watch(stop.fd()), watch(listener.as_fd())];
        wait(&mut events, None);
        let Some(connection) = acceptor.accept()? else {
            continue;
        };
        let session = Session::new(disk, options, &log, stop);
        let end = run_session(&acceptor, connection, session);
        log.report(|| end);
    }
    Ok(())
}

/// Processes the messages of a front end until it disconnects; returns the reason.
fn run_session(acceptor: &Acceptor, connection: UnixStream, session: Session) -> String {
    let session = Arc::new(Mutex::new(session));
    let mut protocol = match connection.try_clone() {
        Ok(socket) => Protocol::from_stream(socket, Arc::clone(&session)),
        Err(error) => return format!("the front end is disconnected: {error}"),
    };
    let mut silence = FirstMessage::new(acceptor.log);
    let mut listen = || loop {
        match acceptor.next_message(&connection) {
            Ok(Next::Message(SET_BACKEND_REQ_FD)) => {
                let set = Channel::receive(&connection).and_then(|channel| {
                    let session = session.lock();
                    session
                        .unwrap_or_else(PoisonError::into_inner)
                        .set_channel(channel)
                });
                match set {
                    Ok(()) => continue,
                    Err(why) => break format!("the front end is disconnected: {why}"),
                }
            }
            Ok(Next::Message(_)) => {}
            Ok(Next::Nothing) => {
                silence.report_if_late();
                let session = session.lock();
                session
                    .unwrap_or_else(PoisonError::into_inner)
                    .report_growth();
                continue;
            }
            Ok(Next::Disconnected) => break "the front end has left".into(),
            Ok(Next::Stop) => break "the front end is disconnected: shutting down".into(),
            Err(why) => break format!("the front end is disconnected: {why}"),
        }
        match protocol.handle_request() {
            Ok(()) => silence.received(),
            Err(Error::Disconnected) => break "the front end has left".into(),
            Err(Error::ReqHandlerError(error)) => {
                break format!("the front end is disconnected: {error}");
            }
            Err(error) => break format!("the front end is disconnected: {error}"),
        }
    };
    // A bug that one front end triggers must not take its disk from the next one, nor the other
    // disks of the process from theirs.
    let why = catch_unwind(AssertUnwindSafe(&mut listen));
    let fault =
        |_| "the front end is disconnected: its thread panicked, which is a bug of weir".into();
    let why = why.unwrap_or_else(fault);
    // Halting does not depend on state that a panic left incomplete.
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    match session.halt() {
        Ok(()) => why,
        Err(error) => format!("{why}; {error}"),
    }
}

/// Reports front ends without a first message. A connection that carries none is the remainder of a
/// QEMU that lost its disk: from 7.2 to 9.0 that happens when a back end ends before it has
/// answered the first message.
struct FirstMessage<'a> {
    since: Instant,
    is_reported: bool,
    log: &'a EventLog,
}

impl FirstMessage<'_> {
    fn new(log: &EventLog) -> FirstMessage<'_> {
        FirstMessage {
            since: Instant::now(),
            is_reported: false,
            log,
        }
    }

    /// A message was answered.
    fn received(&mut self) {
        if !std::mem::replace(&mut self.is_reported, true) {
            self.log.report(|| "a front end has connected".into());
        }
    }

    /// There is still none.
    fn report_if_late(&mut self) {
        if !self.is_reported && self.since.elapsed() >= FIRST_MESSAGE_TIMEOUT {
            self.is_reported = true;
            self.log.report(|| {
                format!(
                    "a front end is connected, but has sent nothing for {} s; QEMU 7.2 to 9.0 \
                     has then lost the disk, and the VM must be restarted (docs/tapdisk.md)",
                    FIRST_MESSAGE_TIMEOUT.as_secs()
                )
            });
        }
    }
}

/// The listening socket and its state.
struct Acceptor<'a> {
    socket: &'a ServerSocket,
    stop: &'a StopEvent,
    log: &'a EventLog,
}

enum Next {
    /// A whole message of this number has arrived, and an answer can be sent.
    Message(u32),
    /// None has arrived for [`SIZE_CHECK_INTERVAL`].
    Nothing,
    Disconnected,
    Stop,
}

impl Acceptor<'_> {
    /// The connecting front end. `None`: it has disconnected, or the process cannot accept it.
    fn accept(&self) -> Result<Option<UnixStream>, VhostError> {
        use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
        match self.socket.listener().accept() {
            Ok((connection, _)) => Ok(Some(connection)),
            Err(error) => match error.kind() {
                WouldBlock | Interrupted | ConnectionAborted => Ok(None),
                _ if is_full(&error) => {
                    self.log
                        .report(|| format!("cannot accept a front end: {error}"));
                    wait(&mut [watch(self.stop.fd())], Some(PAUSE));
                    Ok(None)
                }
                _ => Err(VhostError::Socket {
                    path: self.socket.path().to_owned(),
                    what: "accept a front end",
                    error,
                }),
            },
        }
    }

    /// Waits for the front end's next message. The wait is bounded for a front end that sends a
    /// part of one, or does not read answers.
    fn next_message(&self, connection: &UnixStream) -> Result<Next, String> {
        loop {
            let mut events = [
                watch(self.stop.fd()),
                watch(connection.as_fd()),
                watch(self.socket.listener().as_fd()),
            ];
            wait(&mut events, Some(SIZE_CHECK_INTERVAL));
            let [stopped, spoken, knocked] = events.map(|event| !event.revents().is_empty());
            if stopped {
                return Ok(Next::Stop);
            }
            if spoken {
                return self.rest_of_message(connection);
            }
            if knocked && self.accept().map_err(|e| e.to_string())?.is_some() {
                let message = "another front end was rejected, because one is connected";
                self.log.report(|| message.into());
            }
            if !knocked {
                return Ok(Next::Nothing);
            }
        }
    }

    fn rest_of_message(&self, connection: &UnixStream) -> Result<Next, String> {
        let until = Instant::now() + MESSAGE_TIMEOUT;
        loop {
            let mut events = [PollFd::new(connection, PollFlags::IN | PollFlags::OUT)];
            wait(&mut events, Some(Duration::ZERO));
            let found = events[0].revents();
            let missing = missing(connection).map_err(|e| e.to_string())?;
            let over = found.intersects(PollFlags::HUP | PollFlags::ERR);
            match missing {
                Missing::Everything if over => return Ok(Next::Disconnected),
                Missing::Something if over => return Err("it disconnected within a message".into()),
                Missing::Nothing(message) if over || found.contains(PollFlags::OUT) => {
                    return Ok(Next::Message(message));
                }
                Missing::Nothing(_) if Instant::now() >= until => {
                    return Err("it does not read our answers".into());
                }
                _ if Instant::now() >= until => {
                    return Err("it sent a part of a message, and no more for 5 s".into());
                }
                _ => {}
            }
            if self.stop.is_raised() {
                return Ok(Next::Stop);
            }
            wait(&mut [watch(self.stop.fd())], Some(MESSAGE_POLL_INTERVAL));
        }
    }
}

enum Missing {
    Everything,
    Something,
    /// The message of this number is complete.
    Nothing(u32),
}

/// Which part of the next message is missing. The received part stays in the socket.
fn missing(connection: &UnixStream) -> std::io::Result<Missing> {
    let queued = rustix::io::ioctl_fionread(connection)?;
    if queued == 0 {
        return Ok(Missing::Everything);
    }
    let mut header = [0; HEADER_BYTES];
    if queued < HEADER_BYTES as u64 {
        return Ok(Missing::Something);
    }
    let (peeked, _) = rustix::net::recv(connection, &mut header[..], RecvFlags::PEEK)?;
    if peeked < HEADER_BYTES {
        return Ok(Missing::Something);
    }
    let message = u32::from_le_bytes(header[..4].try_into().expect("4 bytes"));
    let rest = u32::from_le_bytes(header[8..].try_into().expect("4 bytes"));
    // A message that is too long is reported when its header is read.
    if rest as usize > MAX_MSG_SIZE || queued >= HEADER_BYTES as u64 + u64::from(rest) {
        return Ok(Missing::Nothing(message));
    }
    Ok(Missing::Something)
}

fn watch(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// Sleeps until one of the events has happened, or for `longest`. A signal ends it early.
fn wait(events: &mut [PollFd], longest: Option<Duration>) {
    let timeout = longest.map(|longest| Timespec {
        tv_sec: longest.as_secs() as i64,
        tv_nsec: i64::from(longest.subsec_nanos()),
    });
    let _woken = poll(events, timeout.as_ref());
}

/// Whether the process, or the system, has no more file descriptors or memory.
fn is_full(error: &std::io::Error) -> bool {
    let full = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|errno| full.contains(&errno))
}
