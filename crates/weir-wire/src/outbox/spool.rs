//! Words on disk: files of a directory that belongs to one agent, each a run of words.
//!
//! A segment is written once and read once. It lives no longer than the process that wrote it: what
//! an earlier process left behind is removed at the start, and its rows are accounted for by what the
//! agent remembers of that process ([`crate::Hello::earlier`]). So nothing needs to be flushed.
//!
//! A segment is `weirspl1`, then words: the kind (1 byte), the lengths of message, header and body
//! and the number of texts (u32 each), the rows and the channel or time (u64 each), all little-endian,
//! and the three parts; at the end the CRC-32 of everything before.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use prost::Message;
use prost::bytes::{Buf, BufMut, Bytes};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{EncodedMessage, MessageKind};
use crate::error::WireError;
use crate::message::{FRAME_BYTES_MAX, Up};
use crate::protocol::ChannelId;

const MAGIC: &[u8; 8] = b"weirspl1";
const SUM_BYTES: usize = 4;
const LOCK: &str = "lock";
const EXTENSION: &str = "weirspool";
const RECORD_HEAD_BYTES: usize = 1 + 4 * 4 + 2 * 8;

/// What a disk is to do.
#[derive(Debug)]
pub enum DiskTask {
    /// Write words as a new segment.
    Write {
        /// The segment's number, never used before.
        number: u64,
        /// The words.
        messages: Vec<EncodedMessage>,
    },
    /// Read a segment.
    Read {
        /// Its number.
        number: u64,
        /// Its length.
        bytes: u64,
        /// How many words it holds.
        messages: u64,
    },
    /// Remove the files of these segments.
    Remove(Vec<u64>),
}

/// What came of it.
#[derive(Debug)]
pub enum DiskResult {
    /// The segment of this number has so many bytes, or nothing of it is left.
    Written(u64, io::Result<u64>),
    /// The words of the segment of this number.
    Read(u64, io::Result<VecDeque<EncodedMessage>>),
    /// What could be removed was.
    Removed,
}

/// A directory of segments, which nobody else uses meanwhile.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    /// Locked as long as this lives.
    _lock: File,
}

/// The length of a segment of these words.
pub fn segment_bytes<'a>(messages: impl Iterator<Item = &'a EncodedMessage>) -> u64 {
    let bytes: usize = messages.map(|w| RECORD_HEAD_BYTES + w.bytes()).sum();
    (MAGIC.len() + bytes + SUM_BYTES) as u64
}

impl Spool {
    /// The spool in `directory`, which is made if it is not there. What an earlier process left in
    /// it is removed.
    ///
    /// # Errors
    /// When the directory cannot be made, read or written, or another process uses it.
    pub fn open(directory: &Path) -> Result<Spool, WireError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| WireError::Spool { path, source }
        };
        let mut make = DirBuilder::new();
        make.recursive(true).mode(0o700);
        make.create(directory).map_err(failed(directory))?;
        let path = directory.join(LOCK);
        let lock = private(&path, true).map_err(failed(&path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            match error == Errno::WOULDBLOCK {
                true => WireError::Option {
                    what: "spool",
                    why: format!(
                        "another agent uses {}; give this one a directory of its own",
                        directory.display()
                    ),
                },
                false => failed(&path)(error.into()),
            }
        })?;
        let spool = Spool {
            directory: directory.to_owned(),
            _lock: lock,
        };
        spool.clean().map_err(failed(directory))?;
        // A disk that cannot be written is told now and not when it is needed.
        let probe = spool.path(u64::MAX);
        fs::write(&probe, MAGIC).map_err(failed(&probe))?;
        fs::remove_file(&probe).map_err(failed(&probe))?;
        Ok(spool)
    }

    /// Removes all segments.
    ///
    /// # Errors
    /// When the directory cannot be read, or a file of it stays.
    pub fn clean(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == EXTENSION) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Does an disk_task; waits for the disk.
    pub fn run(&self, disk_task: DiskTask) -> DiskResult {
        match disk_task {
            DiskTask::Write { number, messages } => {
                DiskResult::Written(number, self.write(number, &messages))
            }
            DiskTask::Read {
                number,
                bytes,
                messages,
            } => DiskResult::Read(number, self.read(number, bytes, messages)),
            DiskTask::Remove(numbers) => {
                for number in numbers {
                    // If it stays, it is removed at the next start.
                    let _ = fs::remove_file(self.path(number));
                }
                DiskResult::Removed
            }
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:020}.{EXTENSION}"))
    }

    fn write(&self, number: u64, messages: &[EncodedMessage]) -> io::Result<u64> {
        let mut bytes = Vec::with_capacity(segment_bytes(messages.iter()) as usize);
        bytes.extend_from_slice(MAGIC);
        messages.iter().for_each(|message| put(message, &mut bytes));
        let sum = crc32fast::hash(&bytes);
        bytes.put_u32_le(sum);
        let path = self.path(number);
        let written = private(&path, false).and_then(|mut file| file.write_all(&bytes));
        match written {
            Ok(()) => Ok(bytes.len() as u64),
            Err(error) => {
                // If that fails too, the file is removed at the next start.
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn read(&self, number: u64, bytes: u64, messages: u64) -> io::Result<VecDeque<EncodedMessage>> {
        let path = self.path(number);
        let changed = || io::Error::new(io::ErrorKind::InvalidData, "it is not what was written");
        if fs::metadata(&path)?.len() != bytes {
            return Err(changed());
        }
        let read = split(fs::read(&path)?.into()).ok_or_else(changed)?;
        match read.len() as u64 == messages {
            true => Ok(read),
            false => Err(changed()),
        }
    }
}

/// Makes a file that nobody else can read; `again` if it may be there already.
fn private(path: &Path, again: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    match again {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    options.open(path)
}

fn put(message: &EncodedMessage, out: &mut Vec<u8>) {
    let (kind, what, rows) = match &message.kind {
        MessageKind::Rows(channel, rows) => (0, channel.0, *rows),
        MessageKind::Watermark(at) => (1, *at as u64, 0),
        MessageKind::Other(_) => (2, 0, 0),
    };
    let parts = [&message.envelope, &message.header, &message.body];
    out.put_u8(kind);
    parts
        .iter()
        .for_each(|part| out.put_u32_le(part.len() as u32));
    out.put_u32_le(message.texts);
    out.put_u64_le(rows);
    out.put_u64_le(what);
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// The words of a segment's bytes; `None` if they are no segment.
pub fn split(bytes: Bytes) -> Option<VecDeque<EncodedMessage>> {
    let end = bytes.len().checked_sub(SUM_BYTES)?;
    let sum = bytes.slice(end..).get_u32_le();
    let mut rest = bytes.slice(..end);
    if sum != crc32fast::hash(&rest) || !rest.starts_with(MAGIC) {
        return None;
    }
    rest.advance(MAGIC.len());
    let mut messages = VecDeque::new();
    while !rest.is_empty() {
        messages.push_back(take(&mut rest)?);
    }
    Some(messages)
}

fn take(rest: &mut Bytes) -> Option<EncodedMessage> {
    if rest.len() < RECORD_HEAD_BYTES {
        return None;
    }
    let kind = rest.get_u8();
    let lengths = [(); 3].map(|()| rest.get_u32_le() as usize);
    let texts = rest.get_u32_le();
    let (rows, what) = (rest.get_u64_le(), rest.get_u64_le());
    let all: usize = lengths.iter().sum();
    if all > FRAME_BYTES_MAX || all > rest.len() {
        return None;
    }
    let [envelope, header, body] = lengths.map(|length| rest.split_to(length));
    let kind = match kind {
        0 => MessageKind::Rows(ChannelId(what), rows),
        1 => MessageKind::Watermark(what as i64),
        2 => MessageKind::Other(Box::new(Up::decode(envelope.clone()).ok()?.body?)),
        _ => return None,
    };
    Some(EncodedMessage {
        kind,
        envelope,
        header,
        body,
        texts,
    })
}
