//! [`Channel`]: the connection on which the back end sends its own messages to the front end
//! (`VHOST_USER_SET_BACKEND_REQ_FD`). One is sent: the configuration space has changed, since the
//! image has grown.
//!
//! The message that passes the connection is handled here: the crate that handles the others does
//! not expose the descriptor.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendFlags, SocketType, recvmsg, sendmsg,
};

/// `VHOST_USER_SET_BACKEND_REQ_FD`.
pub const SET_BACKEND_REQ_FD: u32 = 21;

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE: u32 = 2;

/// Flags of a message: the version of the protocol, and the kind of message.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Bytes of a header: message, flags, length of the payload.
const HEADER_BYTES: usize = 12;

/// A channel to a front end.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Receives the message [`SET_BACKEND_REQ_FD`], which is next on `connection`, and acknowledges
    /// it if requested.
    ///
    /// # Errors
    /// It violates the protocol, or the connection fails: the caller closes it.
    pub fn receive(connection: &UnixStream) -> Result<Channel, String> {
        let mut header = [0; HEADER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = retry_on_intr(|| recvmsg(connection, &mut parts, &mut control, flags));
        let received = received.map_err(|error| error.to_string())?;
        let mut files: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                files.extend(sent);
            }
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let (flags, payload_bytes) = (word(4), word(8));
        let is_whole = received.bytes == HEADER_BYTES && payload_bytes == 0;
        let is_stream = |file: &OwnedFd| {
            socket_domain(file).is_ok_and(|domain| domain == AddressFamily::UNIX)
                && socket_type(file).is_ok_and(|kind| kind == SocketType::STREAM)
        };
        let channel = match (is_whole, files.pop(), files.is_empty()) {
            (true, Some(file), true) if is_stream(&file) => Channel(file),
            _ => {
                return Err("its channel for messages of the back end is not a unix socket".into());
            }
        };
        if flags & NEED_REPLY != 0 {
            let done = 0_u64.to_le_bytes();
            send(connection, SET_BACKEND_REQ_FD, VERSION | REPLY, &done)?;
        }
        Ok(channel)
    }

    /// Reports that the configuration space has changed: the front end reads it again, and informs
    /// its guest. No answer is requested, since the front end may be waiting for one itself.
    ///
    /// # Errors
    /// The front end has closed the channel, or does not read from it.
    pub fn config_changed(&self) -> Result<(), String> {
        send(&self.0, CONFIG_CHANGE, VERSION, &[])
    }
}

/// Sends a whole message without waiting.
fn send(
    socket: impl std::os::fd::AsFd,
    message: u32,
    flags: u32,
    payload: &[u8],
) -> Result<(), String> {
    let header = [message, flags, payload.len() as u32].map(u32::to_le_bytes);
    let header = header.concat();
    let parts = [IoSlice::new(&header), IoSlice::new(payload)];
    let mut control = SendAncillaryBuffer::default();
    let how = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match retry_on_intr(|| sendmsg(&socket, &parts, &mut control, how)) {
        Ok(sent) if sent == header.len() + payload.len() => Ok(()),
        Ok(_) => Err("it reads no messages".into()),
        Err(error) => Err(error.to_string()),
    }
}
