//! A front end for tests: it sends the bytes of a test, valid or not.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const GET_QUEUE_NUM: u32 = 17;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SET_BACKEND_REQ_FD: u32 = 21;
pub const GET_CONFIG: u32 = 24;
pub const GET_INFLIGHT_FD: u32 = 31;
pub const SET_INFLIGHT_FD: u32 = 32;
pub const GET_MAX_MEM_SLOTS: u32 = 36;
pub const ADD_MEM_REG: u32 = 37;
pub const REM_MEM_REG: u32 = 38;

pub const F_VERSION_1: u64 = 1 << 32;
pub const F_PROTOCOL: u64 = 1 << 30;
pub const F_EVENT_IDX: u64 = 1 << 29;
pub const F_INDIRECT: u64 = 1 << 28;
pub const F_FLUSH: u64 = 1 << 9;

const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// The timeout of every wait, on a machine under any load.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection.
pub struct FrontEnd {
    pub socket: UnixStream,
    /// Every message is acknowledged from `SET_PROTOCOL_FEATURES` on.
    acknowledged: bool,
}

/// A message of the back end: its number, its payload, and files.
#[derive(Debug)]
pub struct Reply {
    pub code: u32,
    pub payload: Vec<u8>,
    pub files: Vec<OwnedFd>,
}

impl FrontEnd {
    /// Connects, with retries: a back end that was just started may not listen yet, and one that
    /// disconnects another does not answer yet.
    pub fn connect(path: &Path) -> FrontEnd {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Ok(socket) = UnixStream::connect(path) {
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                let mut front_end = FrontEnd {
                    socket,
                    acknowledged: false,
                };
                if front_end.try_get(GET_FEATURES).is_ok() {
                    return front_end;
                }
            }
            assert!(Instant::now() < until, "no back end at {}", path.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Connects and negotiates `features`, which include those of the protocol.
    pub fn negotiate(path: &Path, features: u64) -> FrontEnd {
        let mut front_end = FrontEnd::connect(path);
        front_end.send_ok(SET_OWNER, &[], &[]);
        front_end.send_ok(SET_FEATURES, &(features | F_PROTOCOL).to_le_bytes(), &[]);
        let protocol = front_end.get(GET_PROTOCOL_FEATURES);
        front_end.send_ok(SET_PROTOCOL_FEATURES, &protocol.to_le_bytes(), &[]);
        front_end.acknowledged = true;
        front_end
    }

    pub fn send(
        &self,
        code: u32,
        flags: u32,
        payload: &[u8],
        files: &[BorrowedFd],
    ) -> std::io::Result<()> {
        let mut message = Vec::new();
        message.extend(code.to_le_bytes());
        message.extend((VERSION | flags).to_le_bytes());
        message.extend((payload.len() as u32).to_le_bytes());
        message.extend(payload);
        self.send_bytes(&message, files)
    }

    pub fn send_bytes(&self, bytes: &[u8], files: &[BorrowedFd]) -> std::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let parts = [IoSlice::new(bytes)];
        retry_on_intr(|| sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    pub fn receive(&self) -> std::io::Result<Reply> {
        let mut bytes = vec![0; 8192];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::empty();
        let got = retry_on_intr(|| recvmsg(&self.socket, &mut parts, &mut control, flags))?.bytes;
        if got < 12 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(4), VERSION | REPLY);
        assert_eq!(got - 12, word(8) as usize);
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                files.extend(sent);
            }
        }
        Ok(Reply {
            code: word(0),
            payload: bytes[12..got].to_vec(),
            files,
        })
    }

    /// Sends a message that must succeed.
    pub fn send_ok(&mut self, code: u32, payload: &[u8], files: &[BorrowedFd]) {
        let result = self.try_send(code, payload, files);
        result.unwrap_or_else(|e| panic!("message {code}: {e}"));
    }

    /// Sends a message; an error if the back end rejects it.
    pub fn try_send(
        &mut self,
        code: u32,
        payload: &[u8],
        files: &[BorrowedFd],
    ) -> std::io::Result<()> {
        if !self.acknowledged {
            return self.send(code, 0, payload, files);
        }
        self.send(code, NEED_REPLY, payload, files)?;
        let reply = self.receive()?;
        assert_eq!(reply.code, code);
        match reply.payload[..] {
            [0, 0, 0, 0, 0, 0, 0, 0] => Ok(()),
            _ => Err(std::io::Error::other("refused")),
        }
    }

    /// Sends a request.
    pub fn ask(&mut self, code: u32, payload: &[u8]) -> std::io::Result<Reply> {
        self.send(code, 0, payload, &[])?;
        let reply = self.receive()?;
        assert_eq!(reply.code, code);
        Ok(reply)
    }

    /// Requests a number.
    pub fn get(&mut self, code: u32) -> u64 {
        self.try_get(code).unwrap()
    }

    fn try_get(&mut self, code: u32) -> std::io::Result<u64> {
        let reply = self.ask(code, &[])?;
        Ok(u64::from_le_bytes(reply.payload[..].try_into().unwrap()))
    }

    pub fn config(&mut self) -> Vec<u8> {
        let size = 60_u32;
        let mut payload = words(&[0, size, 0]);
        payload.resize(12 + size as usize, 0);
        let reply = self.ask(GET_CONFIG, &payload).unwrap();
        reply.payload[12..].to_vec()
    }

    pub fn get_base(&mut self, queue: u32) -> u16 {
        let reply = self.ask(GET_VRING_BASE, &words(&[queue, 0])).unwrap();
        u16::from_le_bytes(reply.payload[4..6].try_into().unwrap())
    }

    /// Has the back end create memory for requests in flight, and passes it back.
    pub fn track(&mut self, queues: u16, size: u16) -> Tracking {
        let reply = self
            .ask(GET_INFLIGHT_FD, &inflight(0, 0, queues, size))
            .unwrap();
        let [file]: [OwnedFd; 1] = reply.files.try_into().unwrap();
        let tracking = Tracking {
            payload: reply.payload,
            file: file.into(),
        };
        self.keep_tracking(&tracking);
        tracking
    }

    pub fn keep_tracking(&mut self, tracking: &Tracking) {
        self.send_ok(SET_INFLIGHT_FD, &tracking.payload, &[tracking.file.as_fd()]);
    }

    /// The back end has closed the connection.
    pub fn is_disconnected(&self) -> bool {
        let mut byte = [0; 1];
        loop {
            match std::io::Read::read(&mut (&self.socket), &mut byte) {
                Ok(0) => return true,
                // An answer to an earlier message.
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

/// Memory for requests in flight, as a front end keeps it.
pub struct Tracking {
    pub payload: Vec<u8>,
    pub file: File,
}

pub fn inflight(bytes: u64, offset: u64, queues: u16, size: u16) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend(bytes.to_le_bytes());
    payload.extend(offset.to_le_bytes());
    payload.extend(queues.to_le_bytes());
    payload.extend(size.to_le_bytes());
    payload.extend([0; 4]);
    payload
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

pub fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|w| w.to_le_bytes()).collect()
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}
