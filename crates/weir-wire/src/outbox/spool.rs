//! Messages on disk: files in a directory owned by one agent, each a sequence of messages.
//!
//! A segment is written once and read once, by the same process. Segments of an earlier process are
//! removed at the start; their rows are accounted for by the tallies of that process
//! ([`crate::Hello::earlier`]). So nothing needs to be synced to disk.
//!
//! A segment is `weirspl1`, then messages: the kind (1 byte), the lengths of envelope, header and
//! body and the number of texts (u32 each), the rows and the channel or time (u64 each), all
//! little-endian, and the three parts; at the end the CRC-32 of everything before.

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
use crate::message::{ChannelId, FRAME_BYTES_MAX, FromAgent};

const MAGIC: &[u8; 8] = b"weirspl1";
const SUM_BYTES: usize = 4;
const LOCK: &str = "lock";
const EXTENSION: &str = "weirspool";
const RECORD_HEAD_BYTES: usize = 1 + 4 * 4 + 2 * 8;

/// A disk operation.
#[derive(Debug)]
pub enum DiskTask {
    /// Write messages as a new segment.
    Write {
        /// The number of the segment, never reused.
        number: u64,
        /// The messages.
        messages: Vec<EncodedMessage>,
    },
    /// Read a segment.
    Read {
        /// The number of the segment.
        number: u64,
        /// Its length in bytes.
        bytes: u64,
        /// The number of its messages.
        messages: u64,
    },
    /// Remove the files of these segments.
    Remove(Vec<u64>),
}

/// The result of a disk task.
#[derive(Debug)]
pub enum DiskResult {
    /// The segment of this number has been written with this length, or failed and was removed.
    Written(u64, io::Result<u64>),
    /// The messages of the segment of this number.
    Read(u64, io::Result<VecDeque<EncodedMessage>>),
    /// The removable files were removed.
    Removed,
}

/// A directory of segments, locked against other processes.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    /// Holds the lock.
    _lock: File,
}

/// The length of a segment with these messages.
pub fn segment_bytes<'a>(messages: impl Iterator<Item = &'a EncodedMessage>) -> u64 {
    let bytes: usize = messages.map(|w| RECORD_HEAD_BYTES + w.bytes()).sum();
    (MAGIC.len() + bytes + SUM_BYTES) as u64
}

impl Spool {
    /// Opens the spool in `directory`, which is created if needed. Segments of an earlier process
    /// are removed.
    ///
    /// # Errors
    /// If the directory cannot be created, read or written, or another process uses it.
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
                        "another agent uses {}; use another directory",
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
        // An unwritable directory is reported at the start, not when the spool is needed.
        let probe = spool.path(u64::MAX);
        fs::write(&probe, MAGIC).map_err(failed(&probe))?;
        fs::remove_file(&probe).map_err(failed(&probe))?;
        Ok(spool)
    }

    /// Removes all segments.
    ///
    /// # Errors
    /// If the directory cannot be read, or a file cannot be removed.
    pub fn clean(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == EXTENSION) {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Runs a disk task; blocks.
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
                    // If this fails, it is removed at the next start.
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
        let changed = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "its content differs from what was written",
            )
        };
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

/// Creates a file that only the owner can read; `again` if it may exist already.
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

/// Decodes the messages of a segment; `None` if the bytes are invalid.
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
        2 => MessageKind::Other(Box::new(FromAgent::decode(envelope.clone()).ok()?.body?)),
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
