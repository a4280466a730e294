//! [`Channel`]: one end of a connection: the stream socket, the bytes that were received and not
//! yet used, those that are still to be sent, and the descriptors beside them.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::client::ControlError;
use super::frame;

/// Maximum number of descriptors that are passed at once.
pub const DESCRIPTORS_MAX: usize = 2;

/// Bytes per read.
const READ_BYTES: usize = 16 << 10;

/// A connection.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    input: Vec<u8>,
    output: VecDeque<u8>,
    /// Passed with the next byte that is sent.
    to_pass: Vec<OwnedFd>,
    /// Received and not yet used.
    passed: Vec<OwnedFd>,
    /// Whether descriptors are received; otherwise the kernel closes them.
    accepts_descriptors: bool,
    is_ended: bool,
}

impl Channel {
    /// A connection over `stream`.
    pub fn new(stream: UnixStream, accepts_descriptors: bool) -> Channel {
        Channel {
            stream,
            input: Vec::new(),
            output: VecDeque::new(),
            to_pass: Vec::new(),
            passed: Vec::new(),
            accepts_descriptors,
            is_ended: false,
        }
    }

    /// The socket.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Queues a frame, with descriptors that are passed with its first byte if nothing is queued
    /// before it.
    pub fn queue(&mut self, frame: Vec<u8>, descriptors: Vec<OwnedFd>) {
        self.output.extend(frame);
        self.to_pass.extend(descriptors);
    }

    /// Number of queued bytes.
    pub fn output_bytes(&self) -> usize {
        self.output.len()
    }

    /// Sends queued bytes; with [`SendFlags::DONTWAIT`], as far as possible without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if bytes remain; else the error of the socket.
    pub fn flush(&mut self, flags: SendFlags) -> io::Result<()> {
        while !self.output.is_empty() {
            let (first, _) = self.output.as_slices();
            let files: Vec<BorrowedFd<'_>> = self.to_pass.iter().map(AsFd::as_fd).collect();
            let sent = send(&self.stream, first, &files, flags)?;
            self.output.drain(..sent);
            self.to_pass.clear();
        }
        Ok(())
    }

    /// Receives bytes once.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there are none; else the error of the socket.
    pub fn receive(&mut self, flags: RecvFlags) -> io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        let accepts = self.accepts_descriptors;
        let (received, files) = receive(&self.stream, &mut bytes, accepts, flags)?;
        if !files.is_empty() {
            self.passed = files;
        }
        self.is_ended |= received == 0;
        self.input.extend_from_slice(&bytes[..received]);
        Ok(())
    }

    /// Waits until the peer has closed its end, and discards what it sends until then; false if
    /// `timeout` has passed.
    pub fn wait_end(&mut self, timeout: Option<Duration>) -> bool {
        if self.stream.set_read_timeout(timeout).is_err() {
            return true;
        }
        while !self.is_ended {
            self.input.clear();
            match self.receive(RecvFlags::empty()) {
                Ok(()) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Waits for a frame.
    ///
    /// # Errors
    /// If the peer has closed its end, the frame is longer than `bytes_max`, or `timeout` has
    /// passed.
    pub fn wait_frame(
        &mut self,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<Vec<u8>, ControlError> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(frame) = self.frame(bytes_max)? {
                return Ok(frame);
            }
            if self.is_ended {
                return Err(ControlError::Closed);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.stream.set_read_timeout(Some(left))?;
            self.receive(RecvFlags::empty())?;
        }
    }

    /// Whether the peer has closed its end.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// The next frame, if it was received.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] if it is longer than `bytes_max`.
    pub fn frame(&mut self, bytes_max: usize) -> Result<Option<Vec<u8>>, ControlError> {
        let frame = frame::take(&mut self.input, bytes_max);
        frame.map_err(|error| ControlError::Invalid(error.to_string()))
    }

    /// Whether part of a frame was received, or a frame that was not used yet.
    pub fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// The descriptors that were received last.
    pub fn passed(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.passed)
    }
}

/// Sends bytes once, with descriptors; returns the number of bytes sent.
///
/// # Errors
/// As sendmsg(2).
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "at most {DESCRIPTORS_MAX} descriptors are passed");
    }
    let (bytes, flags) = ([IoSlice::new(bytes)], flags | SendFlags::NOSIGNAL);
    let sent = retry_on_intr(|| sendmsg(&socket, &bytes, &mut control, flags));
    Ok(sent?)
}

/// Receives bytes once; returns their number, 0 at the end, and the descriptors beside them. Those
/// are closed by the kernel unless the caller accepts them.
///
/// # Errors
/// As recvmsg(2).
pub fn receive(
    socket: impl AsFd,
    into: &mut [u8],
    accepts_descriptors: bool,
    flags: RecvFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = match accepts_descriptors {
        true => RecvAncillaryBuffer::new(&mut space),
        false => RecvAncillaryBuffer::default(),
    };
    let (mut into, flags) = ([IoSliceMut::new(into)], flags | RecvFlags::CMSG_CLOEXEC);
    let received = retry_on_intr(|| recvmsg(&socket, &mut into, &mut control, flags));
    let received = match received {
        // The peer has closed its end before it had read everything.
        Err(Errno::CONNRESET) => 0,
        other => other?.bytes,
    };
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok((received, descriptors.flatten().collect()))
}
