//! A client that sends exactly the bytes of a test. Numbers from doc/proto.md of the NBD project.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// More than any step may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client that is past the handshake.
pub struct Client {
    pub stream: UnixStream,
    pub size_bytes: u64,
    pub flags: u16,
    structured: bool,
}

/// A request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask {
    pub flags: u16,
    pub kind: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    /// Of a structured reply.
    pub message: String,
    pub data: Vec<u8>,
}

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;
pub const FUA: u16 = 1;

impl Ask {
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = 0x2560_9513_u32.to_be_bytes().to_vec();
        out.extend(self.flags.to_be_bytes());
        out.extend(self.kind.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out.extend(self.offset.to_be_bytes());
        out.extend(self.length.to_be_bytes());
        out
    }
}

/// An option of the handshake.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut out = b"IHAVEOPT".to_vec();
    out.extend(number.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

/// The data of `NBD_OPT_GO`.
pub fn go(name: &str) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend(0_u16.to_be_bytes());
    data
}

pub fn exactly(stream: &mut UnixStream, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    stream.read_exact(&mut out).unwrap();
    out
}

pub fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Client {
    /// Chooses the export `name`, with structured replies or without.
    pub fn new(mut stream: UnixStream, name: &str, structured: bool) -> Client {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(exactly(&mut stream, 18)[..16], *b"NBDMAGICIHAVEOPT");
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        if structured {
            stream.write_all(&option(8, &[])).unwrap();
            let reply = exactly(&mut stream, 20);
            assert_eq!(number(&reply[12..16]), 1, "acknowledged");
        }
        stream.write_all(&option(7, &go(name))).unwrap();
        let mut client = Client {
            stream,
            size_bytes: 0,
            flags: 0,
            structured,
        };
        loop {
            let head = exactly(&mut client.stream, 20);
            let data = exactly(&mut client.stream, number(&head[16..20]) as usize);
            match number(&head[12..16]) {
                1 => return client,
                3 if data[..2] == [0, 0] => {
                    client.size_bytes = number(&data[2..10]);
                    client.flags = number(&data[10..12]) as u16;
                }
                3 => {}
                error => panic!("{error:#x}: {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a request, with data if it is a write, and waits for the reply.
    pub fn ask(&mut self, ask: Ask, data: &[u8]) -> Reply {
        self.send(&[ask.bytes(), data.to_vec()].concat());
        let reads = if ask.kind == READ { ask.length } else { 0 };
        let next_reply = self.next_reply(reads);
        assert_eq!(next_reply.cookie, ask.cookie);
        next_reply
    }

    /// The next reply; `reads` is the length of the data of a successful simple one.
    pub fn next_reply(&mut self, reads: u32) -> Reply {
        let stream = &mut self.stream;
        let mut next_reply = Reply {
            cookie: 0,
            error: 0,
            message: String::new(),
            data: Vec::new(),
        };
        match number(&exactly(stream, 4)) {
            0x6744_6698 => {
                next_reply.error = number(&exactly(stream, 4)) as u32;
                next_reply.cookie = number(&exactly(stream, 8));
                if next_reply.error == 0 {
                    assert!(
                        reads == 0 || !self.structured,
                        "a read's reply is structured"
                    );
                    next_reply.data = exactly(stream, reads as usize);
                }
            }
            0x668e_33ef => {
                assert!(self.structured, "nobody agreed on that");
                let head = exactly(stream, 16);
                assert_eq!(head[..2], [0, 1], "one chunk, the last");
                next_reply.cookie = number(&head[4..12]);
                let payload = exactly(stream, number(&head[12..16]) as usize);
                match number(&head[2..4]) {
                    1 => next_reply.data = payload[8..].to_vec(),
                    0x8001 => {
                        next_reply.error = number(&payload[..4]) as u32;
                        next_reply.message = String::from_utf8(payload[6..].to_vec()).unwrap();
                        assert_eq!(number(&payload[4..6]) as usize, next_reply.message.len());
                    }
                    other => panic!("chunk {other:#x}"),
                }
            }
            other => panic!("{other:#x} is no reply"),
        }
        next_reply
    }

    /// Waits until the server has closed the connection.
    pub fn ends(&mut self) {
        let mut rest = Vec::new();
        // A connection that is reset has ended too.
        let _ = self.stream.read_to_end(&mut rest);
    }
}
