//! A client's socket: input that is not processed yet, and output that is not sent yet.
//!
//! Nothing here waits: reads and writes return what was possible.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use rustix::io::{Errno, read};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::buffer::{Buffer, Pool};

/// Size of the input buffer: small requests arrive many at a time.
pub const INPUT_BYTES: usize = 64 << 10;

/// Maximum number of buffers per send call.
const PIECES_MAX: usize = 64;

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// This number of bytes, which filled the space: there may be more.
    Full(usize),
    /// This number of bytes, all that had arrived.
    All(usize),
    /// Nothing yet.
    Nothing,
    /// The client has closed its side.
    End,
}

impl ReadResult {
    /// The number of bytes that were read.
    pub fn bytes(self) -> usize {
        match self {
            ReadResult::Full(bytes) | ReadResult::All(bytes) => bytes,
            ReadResult::Nothing | ReadResult::End => 0,
        }
    }
}

/// Reads the available input.
///
/// # Errors
/// When the connection is broken.
pub fn receive(socket: &OwnedFd, into: &mut [u8]) -> io::Result<ReadResult> {
    let space = into.len();
    match read(socket, into) {
        Ok(0) => Ok(ReadResult::End),
        Ok(bytes) if bytes == space => Ok(ReadResult::Full(bytes)),
        Ok(bytes) => Ok(ReadResult::All(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(ReadResult::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Input that is not processed yet.
#[derive(Debug)]
pub struct InputBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl InputBuffer {
    /// None yet.
    pub fn new() -> InputBuffer {
        InputBuffer {
            bytes: vec![0; INPUT_BYTES].into(),
            start: 0,
            end: 0,
        }
    }

    /// The input.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Removes the first `count` bytes.
    pub fn take(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "they are there");
        self.start += count;
    }

    /// Moves input to the front of `into`, as much as there is and fits; returns the number of
    /// bytes.
    pub fn take_into(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.bytes().len());
        into[..count].copy_from_slice(&self.bytes()[..count]);
        self.take(count);
        count
    }

    /// Reads more input after what is there.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn fill(&mut self, socket: &OwnedFd) -> io::Result<ReadResult> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.bytes.len() {
            return Ok(ReadResult::Nothing);
        }
        let read_result = receive(socket, &mut self.bytes[self.end..])?;
        self.end += read_result.bytes();
        Ok(read_result)
    }
}

/// The output, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    replies: VecDeque<QueuedReply>,
    /// Number of bytes of the first reply that are already sent.
    sent: usize,
}

#[derive(Debug)]
struct QueuedReply {
    head: Vec<u8>,
    /// The data after the head: a buffer, and their length.
    data: Option<(Buffer, usize)>,
}

impl QueuedReply {
    fn len(&self) -> usize {
        self.head.len() + self.data.as_ref().map_or(0, |(_, bytes)| *bytes)
    }
}

impl Outbox {
    /// Adds a reply, followed by the first bytes of a buffer.
    pub fn push(&mut self, head: Vec<u8>, data: Option<(Buffer, usize)>) {
        self.replies.push_back(QueuedReply { head, data });
    }

    /// Number of replies that are not completely sent.
    pub fn len(&self) -> usize {
        self.replies.len()
    }

    /// Whether all is sent.
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Sends what the socket accepts; buffers are returned to `pool`.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn send(&mut self, socket: &OwnedFd, pool: &mut Pool) -> io::Result<()> {
        while !self.replies.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let mut used = 0;
            let mut skip = self.sent;
            for reply in self.replies.iter().take(PIECES_MAX / 2) {
                let data = reply.data.as_ref().map(|(b, bytes)| &b.bytes()[..*bytes]);
                for part in [&reply.head[..], data.unwrap_or(&[])] {
                    let left = &part[skip.min(part.len())..];
                    skip -= part.len() - left.len();
                    if !left.is_empty() {
                        pieces[used] = IoSlice::new(left);
                        used += 1;
                    }
                }
            }
            let mut control = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(socket, &pieces[..used], &mut control, flags) {
                Ok(count) => self.mark_sent(count, pool),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn mark_sent(&mut self, count: usize, pool: &mut Pool) {
        self.sent += count;
        while let Some(first) = self.replies.front() {
            let length = first.len();
            if self.sent < length {
                break;
            }
            self.sent -= length;
            let reply = self.replies.pop_front().expect("it is the first");
            if let Some((buffer, _)) = reply.data {
                pool.give_back(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn replies_sent_in_parts_arrive_whole_and_in_order() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = OwnedFd::from(ours);
        let mut pool = Pool::new(64 << 20);
        let mut outbox = Outbox::default();
        let mut expected: Vec<u8> = Vec::new();
        for number in 0..40u8 {
            let head = vec![number; 16 + usize::from(number)];
            expected.extend(&head);
            let bytes = 100_000 * usize::from(number % 3);
            let data = (bytes > 0).then(|| {
                let mut buffer = pool.lend(bytes).unwrap();
                buffer.bytes_mut()[..bytes].fill(number);
                expected.extend(vec![number; bytes]);
                (buffer, bytes)
            });
            outbox.push(head, data);
        }
        let mut arrived: Vec<u8> = Vec::new();
        let mut piece = vec![0; 7777];
        while arrived.len() < expected.len() {
            outbox.send(&ours, &mut pool).unwrap();
            let count = theirs.read(&mut piece).unwrap();
            arrived.extend(&piece[..count]);
        }
        assert!(outbox.is_empty());
        assert_eq!(arrived, expected);
        // All buffers are returned: all can be lent at once.
        assert!(pool.lend(64 << 20).is_some());
    }

    #[test]
    fn input_is_buffered_until_it_is_consumed() {
        use std::io::Write;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = OwnedFd::from(ours);
        let mut input_buffer = InputBuffer::new();
        assert_eq!(input_buffer.fill(&ours).unwrap(), ReadResult::Nothing);
        theirs.write_all(b"abcdef").unwrap();
        assert_eq!(input_buffer.fill(&ours).unwrap(), ReadResult::All(6));
        input_buffer.take(1);
        let mut two = [0; 2];
        assert_eq!(input_buffer.take_into(&mut two), 2);
        assert_eq!((&two, input_buffer.bytes()), (b"bc", &b"def"[..]));
        theirs.write_all(&vec![b'x'; INPUT_BYTES]).unwrap();
        while input_buffer.fill(&ours).unwrap() != ReadResult::Nothing {}
        assert_eq!(input_buffer.bytes().len(), INPUT_BYTES, "no more than fits");
        drop(theirs);
        input_buffer.take(INPUT_BYTES);
        while input_buffer.fill(&ours).unwrap() != ReadResult::End {}
        assert_eq!(input_buffer.bytes(), b"xxx");
    }
}
