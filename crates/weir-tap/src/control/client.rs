//! [`ControlClient`]: the client's side of a connection. Every wait has a timeout.

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect,
    socket_with,
};

use super::channel::Channel;
use super::message::{Body, Service, ServiceError, decode, encode_request};
use super::peer::Peers;

/// Maximum number of parts of a response.
const PARTS_MAX: usize = 1 << 20;

/// The reason why a request has no response.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The server's error.
    #[error("{0}")]
    Service(ServiceError),
    /// The server has closed the connection.
    #[error("it has closed the connection")]
    Closed,
    /// A message is invalid.
    #[error("{0}")]
    Invalid(String),
    /// An error of the system.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A connection to a server of service `S`.
#[derive(Debug)]
pub struct ControlClient<S> {
    channel: Channel,
    timeout: Duration,
    service: PhantomData<S>,
}

impl<S: Service> ControlClient<S> {
    /// Connects to the server at `path`, which must be one of `peers`. Each message of a response
    /// may take `timeout`.
    ///
    /// # Errors
    /// If no process listens there, or permissions are missing.
    pub fn connect(
        path: &Path,
        peers: Peers,
        timeout: Duration,
    ) -> Result<ControlClient<S>, ControlError> {
        // Without blocking: a listener that never accepts would block the connection indefinitely.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(io::Error::from)?;
        let address = SocketAddrUnix::new(path).map_err(io::Error::from)?;
        connect(&socket, &address).map_err(io::Error::from)?;
        let stream = UnixStream::from(socket);
        peers.check(&stream)?.map_err(ControlError::Service)?;
        stream.set_nonblocking(false)?;
        ControlClient::new(stream, timeout)
    }

    /// A client of the server at the other end of `stream`.
    ///
    /// # Errors
    /// If the timeout cannot be set.
    pub fn new(stream: UnixStream, timeout: Duration) -> Result<ControlClient<S>, ControlError> {
        stream.set_write_timeout(Some(timeout))?;
        Ok(ControlClient {
            channel: Channel::new(stream, true),
            timeout,
            service: PhantomData,
        })
    }

    /// Sends a request and waits for its response.
    ///
    /// # Errors
    /// If there is none, or it has several parts.
    pub fn request(&mut self, request: &S::Request) -> Result<S::Response, ControlError> {
        let mut parts = self.request_parts(request, Vec::new())?;
        let last = parts.pop().filter(|_| parts.is_empty());
        last.ok_or_else(|| ControlError::Invalid("the response has parts".into()))
    }

    /// Sends a request, with descriptors, and waits for all parts of its response.
    ///
    /// # Errors
    /// If one is missing.
    pub fn request_parts(
        &mut self,
        request: &S::Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Vec<S::Response>, ControlError> {
        let frame = encode_request::<S>(request);
        let frame = frame.map_err(|_| ControlError::Invalid("the request is too long".into()))?;
        self.channel.queue(frame, descriptors);
        match self.channel.flush(SendFlags::empty()) {
            // A server that disconnects has sent the reason, which is received below.
            Err(error) if is_closed(&error) => {}
            other => other?,
        }
        let mut parts = Vec::new();
        while parts.len() < PARTS_MAX {
            let frame = self
                .channel
                .wait_frame(S::RESPONSE_BYTES_MAX, self.timeout)?;
            match received::<S>(&frame)? {
                (part, false) => parts.push(part),
                (last, true) => {
                    parts.push(last);
                    return Ok(parts);
                }
            }
        }
        Err(ControlError::Invalid(format!(
            "the response has more than {PARTS_MAX} parts"
        )))
    }

    /// The next message of the server, if one was received; without waiting.
    ///
    /// # Errors
    /// If the server has disconnected, with the reason if it has sent one.
    pub fn poll(&mut self) -> Result<Option<S::Response>, ControlError> {
        match self.channel.receive(RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => other?,
        }
        let Some(frame) = self.channel.frame(S::RESPONSE_BYTES_MAX)? else {
            return match self.channel.is_ended() {
                true => Err(ControlError::Closed),
                false => Ok(None),
            };
        };
        received::<S>(&frame).map(|(response, _)| Some(response))
    }

    /// The descriptors received with the last response.
    pub fn passed(&mut self) -> Vec<OwnedFd> {
        self.channel.passed()
    }
}

/// The response in a frame, and whether it is complete.
fn received<S: Service>(frame: &[u8]) -> Result<(S::Response, bool), ControlError> {
    match decode::<S, _>(frame) {
        Ok(Body::Part(part)) => Ok((part, false)),
        Ok(Body::Response(last)) => Ok((last, true)),
        Ok(Body::Error(error)) => Err(ControlError::Service(error)),
        Ok(Body::Request(_)) => Err(ControlError::Invalid("it is not a response".into())),
        Err(error) => Err(ControlError::Invalid(error.message)),
    }
}

/// Whether an error means that the peer has closed the connection.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::BrokenPipe | Kind::ConnectionReset)
}
