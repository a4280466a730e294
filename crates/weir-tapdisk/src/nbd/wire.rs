//! A client's socket: what has come and is not looked at yet, and what is still to be sent.
//!
//! Nothing here waits: a socket that has nothing, or takes nothing, says so.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use rustix::io::{Errno, read};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::buffer::{Buffer, Pool};

/// What is read ahead: small requests come many at a time.
pub const STAGED_BYTES: usize = 64 << 10;

/// Pieces that are sent with one call.
const PIECES_MAX: usize = 64;

/// What came of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The client says no more.
    End,
}

/// Reads what there is.
///
/// # Errors
/// When the connection is broken.
pub fn receive(socket: &OwnedFd, into: &mut [u8]) -> io::Result<Came> {
    match read(socket, into) {
        Ok(0) => Ok(Came::End),
        Ok(bytes) => Ok(Came::Bytes(bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Came::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Bytes that have come.
#[derive(Debug)]
pub struct Staged {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Staged {
    /// None yet.
    pub fn new() -> Staged {
        Staged {
            bytes: vec![0; STAGED_BYTES].into(),
            start: 0,
            end: 0,
        }
    }

    /// What is there.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Forgets the first `count` bytes.
    pub fn take(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "they are there");
        self.start += count;
    }

    /// Moves as many bytes as there are, and as fit, to the front of `into`: how many.
    pub fn take_into(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.bytes().len());
        into[..count].copy_from_slice(&self.bytes()[..count]);
        self.take(count);
        count
    }

    /// Reads more behind what is there.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn fill(&mut self, socket: &OwnedFd) -> io::Result<Came> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.bytes.len() {
            return Ok(Came::Nothing);
        }
        let came = receive(socket, &mut self.bytes[self.end..])?;
        if let Came::Bytes(count) = came {
            self.end += count;
        }
        Ok(came)
    }
}

/// What is to be sent, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    letters: VecDeque<Letter>,
    /// Bytes of the first letter that are sent already.
    sent: usize,
}

#[derive(Debug)]
struct Letter {
    head: Vec<u8>,
    /// What follows the head: a buffer, and how much of it.
    data: Option<(Buffer, usize)>,
}

impl Letter {
    fn len(&self) -> usize {
        self.head.len() + self.data.as_ref().map_or(0, |(_, bytes)| *bytes)
    }
}

impl Outbox {
    /// Adds a reply, with the first bytes of a buffer behind it.
    pub fn push(&mut self, head: Vec<u8>, data: Option<(Buffer, usize)>) {
        self.letters.push_back(Letter { head, data });
    }

    /// Replies that are not sent whole.
    pub fn len(&self) -> usize {
        self.letters.len()
    }

    /// Whether all is sent.
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }

    /// Sends what the client takes now; buffers go back to `pool`.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn send(&mut self, socket: &OwnedFd, pool: &mut Pool) -> io::Result<()> {
        while !self.letters.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let mut used = 0;
            let mut skip = self.sent;
            for letter in self.letters.iter().take(PIECES_MAX / 2) {
                let data = letter.data.as_ref().map(|(b, bytes)| &b.bytes()[..*bytes]);
                for part in [&letter.head[..], data.unwrap_or(&[])] {
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
        while let Some(first) = self.letters.front() {
            let length = first.len();
            if self.sent < length {
                break;
            }
            self.sent -= length;
            let letter = self.letters.pop_front().expect("it is the first");
            if let Some((buffer, _)) = letter.data {
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
    fn what_is_sent_in_pieces_arrives_whole_and_in_order() {
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
        // Everything has come back: all may be lent at once.
        assert!(pool.lend(64 << 20).is_some());
    }

    #[test]
    fn bytes_are_staged_until_they_are_taken() {
        use std::io::Write;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = OwnedFd::from(ours);
        let mut staged = Staged::new();
        assert_eq!(staged.fill(&ours).unwrap(), Came::Nothing);
        theirs.write_all(b"abcdef").unwrap();
        assert_eq!(staged.fill(&ours).unwrap(), Came::Bytes(6));
        staged.take(1);
        let mut two = [0; 2];
        assert_eq!(staged.take_into(&mut two), 2);
        assert_eq!((&two, staged.bytes()), (b"bc", &b"def"[..]));
        theirs.write_all(&vec![b'x'; STAGED_BYTES]).unwrap();
        while staged.fill(&ours).unwrap() != Came::Nothing {}
        assert_eq!(staged.bytes().len(), STAGED_BYTES, "no more than fits");
        drop(theirs);
        staged.take(STAGED_BYTES);
        while staged.fill(&ours).unwrap() != Came::End {}
        assert_eq!(staged.bytes(), b"xxx");
    }
}
