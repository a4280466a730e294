//! [`serve`]: front ends come and go on a disk's socket, one at a time.
//!
//! A front end that connects while another is connected is refused at once; one that connects while
//! the requests of the one before are under way waits until these have ended. So there is never
//! more than one who gives requests.

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
use super::remarks::Remarks;
use super::session::Session;
use super::{Options, QUEUES_MAX, VhostError};
use crate::disk::Disk;
use crate::{ServerSocket, Stop};

/// What a front end may take to send the rest of a message, or to read an answer.
const MESSAGE_TIME: Duration = Duration::from_secs(5);
/// How often we look for the rest of a message.
const MESSAGE_PACE: Duration = Duration::from_millis(2);
/// A front end that says nothing for so long has connected for nothing.
const SILENCE: Duration = Duration::from_secs(5);
/// After so long without a message the size of the image is examined.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// What we wait when the process has no room for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes of a message's header; its last four say how long the rest is.
const HEADER_BYTES: usize = 12;

/// Serves the disk to front ends until `stop` is raised. What is on its way then still ends, if it does so
/// within [`Options::patience`].
///
/// # Errors
/// The options cannot be, or the socket is gone. What a front end does wrong ends its connection.
pub fn serve(
    disk: &Arc<Disk>,
    socket: &ServerSocket,
    options: &Options,
    stop: &Stop,
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
    let remarks = Arc::new(Remarks::new(about, Arc::clone(&options.tell)));
    let door = Door {
        socket,
        stop,
        remarks: &remarks,
    };
    while !stop.is_raised() {
        let mut events = [watch(stop.fd()), watch(listener.as_fd())];
        wait(&mut events, None);
        let Some(connection) = door.accept()? else {
            continue;
        };
        let session = Session::new(disk, options, &remarks, stop);
        let end = converse(&door, connection, session);
        remarks.say(|| end);
    }
    Ok(())
}

/// Does what the front end says until it leaves; why it left.
fn converse(door: &Door, connection: UnixStream, session: Session) -> String {
    let session = Arc::new(Mutex::new(session));
    let mut protocol = match connection.try_clone() {
        Ok(socket) => Protocol::from_stream(socket, Arc::clone(&session)),
        Err(error) => return format!("the front end is disconnected: {error}"),
    };
    let mut silence = Silence::new(door.remarks);
    let mut listen = || loop {
        match door.next_message(&connection) {
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
                silence.lasts();
                let session = session.lock();
                session
                    .unwrap_or_else(PoisonError::into_inner)
                    .report_growth();
                continue;
            }
            Ok(Next::Left) => break "the front end has left".into(),
            Ok(Next::Stop) => break "the front end is disconnected: shutting down".into(),
            Err(why) => break format!("the front end is disconnected: {why}"),
        }
        match protocol.handle_request() {
            Ok(()) => silence.ends(),
            Err(Error::Disconnected) => break "the front end has left".into(),
            Err(Error::ReqHandlerError(error)) => {
                break format!("the front end is disconnected: {error}");
            }
            Err(error) => break format!("the front end is disconnected: {error}"),
        }
    };
    // A fault of ours that one front end meets is not to take its disk from the next one, nor the
    // other disks of the process from theirs.
    let why = catch_unwind(AssertUnwindSafe(&mut listen));
    let fault =
        |_| "the front end is disconnected: weir has panicked over it, which is a bug".into();
    let why = why.unwrap_or_else(fault);
    // What a thread that panicked left undone, halting does not need.
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    match session.halt() {
        Ok(()) => why,
        Err(error) => format!("{why}; {error}"),
    }
}

/// What is reported of a front end's first message. A connection that carries none is what is left
/// of a QEMU that lost its disk: from 7.2 to 9.0 that happens when a back end ends before it has
/// answered the first message.
struct Silence<'a> {
    since: Instant,
    is_reported: bool,
    remarks: &'a Remarks,
}

impl Silence<'_> {
    fn new(remarks: &Remarks) -> Silence<'_> {
        Silence {
            since: Instant::now(),
            is_reported: false,
            remarks,
        }
    }

    /// A message was answered.
    fn ends(&mut self) {
        if !std::mem::replace(&mut self.is_reported, true) {
            self.remarks.say(|| "a front end has connected".into());
        }
    }

    /// There is still none.
    fn lasts(&mut self) {
        if !self.is_reported && self.since.elapsed() >= SILENCE {
            self.is_reported = true;
            self.remarks.say(|| {
                format!(
                    "a front end has connected, and has sent nothing for {} s; a QEMU from 7.2 to 9.0 that does so \
                     has lost the disk, and its VM must be started again (docs/tapdisk.md)",
                    SILENCE.as_secs()
                )
            });
        }
    }
}

/// Where front ends come in.
struct Door<'a> {
    socket: &'a ServerSocket,
    stop: &'a Stop,
    remarks: &'a Remarks,
}

enum Next {
    /// There is a whole message of this number, and room for an answer.
    Message(u32),
    /// None has come for [`LOOK_AFTER`].
    Nothing,
    Left,
    Stop,
}

impl Door<'_> {
    /// Who is at the door. `None`: nobody any more, or no room.
    fn accept(&self) -> Result<Option<UnixStream>, VhostError> {
        use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
        match self.socket.listener().accept() {
            Ok((connection, _)) => Ok(Some(connection)),
            Err(error) => match error.kind() {
                WouldBlock | Interrupted | ConnectionAborted => Ok(None),
                _ if is_full(&error) => {
                    self.remarks
                        .say(|| format!("cannot let a front end in: {error}"));
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

    /// Waits for the front end's next message. A front end that sends half of one, or reads no
    /// answers, is not waited for without end.
    fn next_message(&self, connection: &UnixStream) -> Result<Next, String> {
        loop {
            let mut events = [
                watch(self.stop.fd()),
                watch(connection.as_fd()),
                watch(self.socket.listener().as_fd()),
            ];
            wait(&mut events, Some(LOOK_AFTER));
            let [stopped, spoken, knocked] = events.map(|event| !event.revents().is_empty());
            if stopped {
                return Ok(Next::Stop);
            }
            if spoken {
                return self.rest_of_message(connection);
            }
            if knocked && self.accept().map_err(|e| e.to_string())?.is_some() {
                let remark = "another front end was refused, as one is connected";
                self.remarks.say(|| remark.into());
            }
            if !knocked {
                return Ok(Next::Nothing);
            }
        }
    }

    fn rest_of_message(&self, connection: &UnixStream) -> Result<Next, String> {
        let until = Instant::now() + MESSAGE_TIME;
        loop {
            let mut events = [PollFd::new(connection, PollFlags::IN | PollFlags::OUT)];
            wait(&mut events, Some(Duration::ZERO));
            let found = events[0].revents();
            let missing = missing(connection).map_err(|e| e.to_string())?;
            let over = found.intersects(PollFlags::HUP | PollFlags::ERR);
            match missing {
                Missing::Everything if over => return Ok(Next::Left),
                Missing::Something if over => return Err("it left within a message".into()),
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
            wait(&mut [watch(self.stop.fd())], Some(MESSAGE_PACE));
        }
    }
}

enum Missing {
    Everything,
    Something,
    /// The message of this number is there.
    Nothing(u32),
}

/// What of the next message has not come yet. What has come stays where it is.
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
    // A message that is too long is complained of when its header is read.
    if rest as usize > MAX_MSG_SIZE || queued >= HEADER_BYTES as u64 + u64::from(rest) {
        return Ok(Missing::Nothing(message));
    }
    Ok(Missing::Something)
}

fn watch(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// Sleeps until one of the events has happened, or so long. A signal ends it early.
fn wait(events: &mut [PollFd], longest: Option<Duration>) {
    let timeout = longest.map(|longest| Timespec {
        tv_sec: longest.as_secs() as i64,
        tv_nsec: i64::from(longest.subsec_nanos()),
    });
    let _woken = poll(events, timeout.as_ref());
}

/// The process, or the system, has no more file descriptors or memory.
fn is_full(error: &std::io::Error) -> bool {
    let full = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error
        .raw_os_error()
        .is_some_and(|errno| full.contains(&errno))
}
