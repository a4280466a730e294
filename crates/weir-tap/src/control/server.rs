//! [`LocalServer`]: serves the clients of a Unix socket in one thread, which never waits for one.
//!
//! What cannot be written now is written when the client reads. A client that does not read, or
//! does not complete a message, is disconnected. The thread sleeps after every round in which a
//! client was served, so that no client can keep it busy.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};

use super::channel::Channel;
use super::client::ControlError;
use super::message::{Body, ErrorCode, Service, ServiceError, decode, encode};
use super::peer::{ControlPeer, Peers};

/// The sleep of the thread after serving a client, and after accepting or closing a connection.
const SLEEP: Duration = Duration::from_millis(1);
const LONG_SLEEP: Duration = Duration::from_millis(5);

/// The interval of the checks of connections that receive and send nothing.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A response of an implementation.
#[derive(Debug)]
pub struct Reply<T> {
    /// All parts but the last.
    pub parts: Vec<T>,
    /// The response, or its last part.
    pub last: T,
    /// Descriptors to be passed.
    pub descriptors: Vec<OwnedFd>,
}

impl<T> From<T> for Reply<T> {
    fn from(last: T) -> Reply<T> {
        Reply {
            parts: Vec::new(),
            last,
            descriptors: Vec::new(),
        }
    }
}

/// The result of a request to the implementation `I`.
pub type ReplyResult<I> =
    Result<Reply<<<I as Implementation>::Service as Service>::Response>, ServiceError>;

/// The implementation of a service: what a server does for its clients.
pub trait Implementation {
    /// The service.
    type Service: Service;
    /// The state of a connection.
    type Session: Default;

    /// Answers a request.
    ///
    /// # Errors
    /// The error, for the client; the connection stays open.
    fn handle(
        &mut self,
        session: &mut Self::Session,
        peer: ControlPeer,
        request: <Self::Service as Service>::Request,
    ) -> ReplyResult<Self>
    where
        Self: Sized;

    /// Whether a session has state that outlives a response. Its client may be silent.
    fn is_in_use(&self, _session: &Self::Session) -> bool {
        false
    }

    /// The error with which a session has to end now.
    fn failure(&self, _session: &Self::Session) -> Option<ServiceError> {
        None
    }

    /// Ends a session; `by_peer` if the client has disconnected or was disconnected as invalid.
    fn close(&mut self, _session: Self::Session, _by_peer: bool) {}
}

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct ControlLimits {
    /// Maximum number of connections. Beyond that, the one that has been silent for longest is
    /// closed.
    pub connections_max: usize,
    /// A client whose session is not in use is disconnected after this time without a request.
    pub idle: Duration,
    /// A client is disconnected that reads nothing of its response, or does not complete a request,
    /// for this time.
    pub stalled: Duration,
}

impl Default for ControlLimits {
    fn default() -> ControlLimits {
        ControlLimits {
            connections_max: 32,
            idle: Duration::from_secs(60),
            stalled: Duration::from_secs(10),
        }
    }
}

/// A server.
pub struct LocalServer<I: Implementation> {
    listener: UnixListener,
    peers: Peers,
    limits: ControlLimits,
    connections: Vec<Connection<I>>,
    checked: Instant,
}

impl<I: Implementation> LocalServer<I> {
    /// Serves the clients of `listener` that are `peers`.
    ///
    /// # Errors
    /// If the socket cannot be made non-blocking.
    pub fn new(
        listener: UnixListener,
        peers: Peers,
        limits: ControlLimits,
    ) -> io::Result<LocalServer<I>> {
        listener.set_nonblocking(true)?;
        Ok(LocalServer {
            listener,
            peers,
            limits,
            connections: Vec::new(),
            checked: Instant::now(),
        })
    }

    /// Waits until a client can be served, `wake` can be read, or `timeout` has passed; serves each
    /// client as far as possible without waiting. Returns whether `wake` can be read.
    pub fn round(&mut self, service: &mut I, wake: BorrowedFd<'_>, timeout: Duration) -> bool {
        let (is_busy, is_awake) = self.wait(wake, timeout);
        let before = self.in_use(service);
        let mut is_changed = self.accept(service);
        for connection in &mut self.connections {
            connection.serve(service);
        }
        if self.checked.elapsed() > CHECK_INTERVAL {
            self.checked = Instant::now();
            for connection in &mut self.connections {
                connection.check(service, &self.limits);
            }
        }
        self.connections.retain(|c| c.session.is_some());
        is_changed |= before != self.in_use(service);
        thread::sleep(match (is_changed, is_busy) {
            (true, _) => LONG_SLEEP,
            (false, true) => SLEEP,
            (false, false) => Duration::ZERO,
        });
        is_awake
    }

    /// Sends what is pending, and then `last`, for at most `timeout` to each client; closes all
    /// connections.
    pub fn finish(mut self, service: &mut I, last: Option<&ServiceError>, timeout: Duration) {
        for connection in &mut self.connections {
            // A client that does not read misses it.
            let _ = connection.finish(last, timeout);
            connection.close(service, false);
        }
    }

    fn in_use(&self, service: &I) -> usize {
        let in_use = self.connections.iter().filter(|c| c.is_in_use(service));
        in_use.count()
    }

    /// Returns whether a client can be served, and whether `wake` can be read.
    fn wait(&self, wake: BorrowedFd<'_>, timeout: Duration) -> (bool, bool) {
        let has_request = self.connections.iter().any(Connection::has_request);
        let timeout = match has_request {
            true => Duration::ZERO,
            false => timeout.min(CHECK_INTERVAL),
        };
        let connections = self.connections.iter().map(|connection| {
            let flags = match connection.channel.output_bytes() {
                0 => PollFlags::IN,
                _ => PollFlags::OUT,
            };
            PollFd::from_borrowed_fd(connection.channel.stream().as_fd(), flags)
        });
        let own = [wake, self.listener.as_fd()];
        let own = own.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut all: Vec<PollFd<'_>> = own.into_iter().chain(connections).collect();
        // An interrupted wait is a short one.
        let ready = poll(&mut all, Timespec::try_from(timeout).ok().as_ref()).unwrap_or(0);
        let is_awake = ready > 0 && !all[0].revents().is_empty();
        (ready > usize::from(is_awake) || has_request, is_awake)
    }

    /// Accepts a waiting client; false if there is none.
    fn accept(&mut self, service: &mut I) -> bool {
        let Ok((stream, _)) = self.listener.accept() else {
            return false;
        };
        if self.connections.len() >= self.limits.connections_max {
            let idle = self
                .connections
                .iter_mut()
                .filter(|c| !c.is_in_use(service));
            let Some(longest) = idle.min_by_key(|c| c.last_request) else {
                return true;
            };
            longest.close(service, true);
            self.connections.retain(|c| c.session.is_some());
        }
        // Connections that fail at once are closed.
        if let Ok(connection) = Connection::new(stream, self.peers) {
            self.connections.push(connection);
        }
        true
    }
}

/// A client's connection.
struct Connection<I: Implementation> {
    channel: Channel,
    peer: ControlPeer,
    /// `None` once it is closed.
    session: Option<I::Session>,
    last_request: Instant,
    /// Since when nothing could be written, or a request is incomplete.
    stalled_since: Option<Instant>,
}

impl<I: Implementation> Connection<I> {
    fn new(stream: UnixStream, peers: Peers) -> io::Result<Connection<I>> {
        let checked = peers.check(&stream)?;
        let mut channel = Channel::new(stream, false);
        let peer = match checked {
            Ok(peer) => peer,
            Err(error) => {
                channel.queue(error_frame::<I::Service>(&error), Vec::new());
                channel.flush(SendFlags::DONTWAIT)?;
                return Err(io::ErrorKind::PermissionDenied.into());
            }
        };
        Ok(Connection {
            channel,
            peer,
            session: Some(I::Session::default()),
            last_request: Instant::now(),
            stalled_since: None,
        })
    }

    fn is_in_use(&self, service: &I) -> bool {
        self.session.as_ref().is_some_and(|s| service.is_in_use(s))
    }

    /// Whether bytes were received that may be a request, and can be answered.
    fn has_request(&self) -> bool {
        let is_answered = self.channel.output_bytes() == 0;
        is_answered && self.channel.has_input() && self.stalled_since.is_none()
    }

    fn serve(&mut self, service: &mut I) {
        let before = self.channel.output_bytes();
        match self.serve_next(service) {
            Ok(()) => self.stalled_since = None,
            Err(error) if is_pending(&error) => {
                let pending = self.channel.output_bytes();
                if pending == 0 && !self.channel.has_input() {
                    self.stalled_since = None;
                } else if pending != before || self.stalled_since.is_none() {
                    self.stalled_since = Some(Instant::now());
                }
            }
            Err(_) => self.close(service, true),
        }
        let failure = self.session.as_ref().and_then(|s| service.failure(s));
        if let Some(failure) = failure {
            // A client that does not read misses it.
            let _ = self.finish(Some(&failure), Duration::ZERO);
            self.close(service, false);
        }
    }

    /// Writes pending bytes, reads, and answers one request.
    fn serve_next(&mut self, service: &mut I) -> io::Result<()> {
        self.channel.flush(SendFlags::DONTWAIT)?;
        let mut frame = self.frame()?;
        if frame.is_none() {
            self.channel.receive(RecvFlags::DONTWAIT)?;
            frame = self.frame()?;
        }
        let Some(frame) = frame else {
            return Err(match self.channel.is_ended() {
                true => io::ErrorKind::UnexpectedEof.into(),
                false => io::ErrorKind::WouldBlock.into(),
            });
        };
        self.last_request = Instant::now();
        match decode::<I::Service, _>(&frame) {
            Ok(Body::Request(request)) => self.answer(service, request),
            Ok(_) => {
                let text = "the message is not a request";
                self.queue_error(&ServiceError::new(ErrorCode::Malformed, text));
            }
            Err(error) => self.queue_error(&error),
        }
        self.channel.flush(SendFlags::DONTWAIT)
    }

    /// The next frame. A longer one than is allowed ends the connection, with an error.
    fn frame(&mut self) -> io::Result<Option<Vec<u8>>> {
        let frame = self.channel.frame(I::Service::REQUEST_BYTES_MAX);
        frame.map_err(|error| {
            self.queue_error(&ServiceError::new(ErrorCode::TooLong, error));
            // A client that does not read misses it.
            let _ = self.channel.flush(SendFlags::DONTWAIT);
            io::ErrorKind::InvalidData.into()
        })
    }

    fn answer(&mut self, service: &mut I, request: <I::Service as Service>::Request) {
        let session = self.session.as_mut().expect("a closed one is not served");
        let reply = match service.handle(session, self.peer, request) {
            Ok(reply) => reply,
            Err(error) => return self.queue_error(&error),
        };
        let bytes_max = I::Service::RESPONSE_BYTES_MAX;
        let parts = reply.parts.into_iter().map(Body::Part);
        let bodies = parts.chain([Body::Response(reply.last)]);
        let mut descriptors = reply.descriptors;
        for body in bodies {
            match encode::<I::Service>(body, bytes_max) {
                Ok(frame) => self.channel.queue(frame, std::mem::take(&mut descriptors)),
                Err(_) => {
                    let text = format_args!("the response exceeds {bytes_max} bytes");
                    return self.queue_error(&ServiceError::new(ErrorCode::TooLong, text));
                }
            }
        }
    }

    fn queue_error(&mut self, error: &ServiceError) {
        let frame = error_frame::<I::Service>(error);
        self.channel.queue(frame, Vec::new());
    }

    /// Sends pending bytes, and then `last`, until `timeout` has passed.
    fn finish(&mut self, last: Option<&ServiceError>, timeout: Duration) -> io::Result<()> {
        let until = Instant::now() + timeout;
        if let Some(last) = last {
            self.queue_error(last);
        }
        loop {
            match self.channel.flush(SendFlags::DONTWAIT) {
                Err(error) if is_pending(&error) && Instant::now() < until => thread::sleep(SLEEP),
                other => return other,
            }
        }
    }

    /// Closes the connection if its client is silent, or does not read or write.
    fn check(&mut self, service: &mut I, limits: &ControlLimits) {
        let is_silent = !self.is_in_use(service) && self.last_request.elapsed() > limits.idle;
        let stalled = self.stalled_since.map(|since| since.elapsed());
        if is_silent || stalled.is_some_and(|time| time > limits.stalled) {
            self.close(service, true);
        }
    }

    fn close(&mut self, service: &mut I, by_peer: bool) {
        if let Some(session) = self.session.take() {
            service.close(session, by_peer);
        }
    }
}

/// Whether the operation may succeed later.
fn is_pending(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// The server's side of a connection that is its own, such as one end of a socket pair. It waits.
#[derive(Debug)]
pub struct Responder<S> {
    channel: Channel,
    service: PhantomData<S>,
}

impl<S: Service> Responder<S> {
    /// Serves the client at the other end of `stream`, which may pass descriptors.
    pub fn new(stream: UnixStream) -> Responder<S> {
        Responder {
            channel: Channel::new(stream, true),
            service: PhantomData,
        }
    }

    /// Waits for a request, and the descriptors passed with it. What is not a request is answered
    /// with an error.
    ///
    /// # Errors
    /// If there is none.
    pub fn request(
        &mut self,
        timeout: Duration,
    ) -> Result<(S::Request, Vec<OwnedFd>), ControlError> {
        let frame = self.channel.wait_frame(S::REQUEST_BYTES_MAX, timeout)?;
        let error = match decode::<S, _>(&frame) {
            Ok(Body::Request(request)) => return Ok((request, self.channel.passed())),
            Ok(_) => ServiceError::new(ErrorCode::Malformed, "the message is not a request"),
            Err(error) => error,
        };
        self.channel.queue(error_frame::<S>(&error), Vec::new());
        self.channel.flush(SendFlags::DONTWAIT)?;
        Err(ControlError::Invalid(error.message))
    }

    /// Sends a response, or an event without a request.
    ///
    /// # Errors
    /// If the client does not read.
    pub fn respond(&mut self, response: S::Response) -> io::Result<()> {
        let frame = encode::<S>(Body::Response(response), S::RESPONSE_BYTES_MAX)?;
        self.channel.queue(frame, Vec::new());
        self.channel.flush(SendFlags::DONTWAIT)
    }

    /// Waits until the client has closed its end; false if `timeout` has passed.
    pub fn wait_end(&mut self, timeout: Option<Duration>) -> bool {
        self.channel.wait_end(timeout)
    }
}

fn error_frame<S: Service>(error: &ServiceError) -> Vec<u8> {
    let cut = ServiceError::new(error.code, "the error is too long");
    encode::<S>(Body::<()>::Error(error.clone()), S::RESPONSE_BYTES_MAX)
        .or_else(|_| encode::<S>(Body::<()>::Error(cut), S::RESPONSE_BYTES_MAX))
        .expect("a short message fits")
}
