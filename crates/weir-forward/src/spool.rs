//! [`ForwardSpool`]: messages in files of bounded size, until Kafka has acknowledged them.
//!
//! The files `N.messages` are the segments; the greatest number is written. File `sent` has the
//! segment and the offset up to which messages were acknowledged. What is written survives the end
//! of the process, however it ends; after a failure of the host, the last messages may be missing.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use weir_runtime::private;

use crate::message::{HEADER_BYTES, TopicMessage};

/// The size at which the next segment begins, unless the spool is so small that it has fewer
/// segments than [`SEGMENTS_MIN`].
const SEGMENT_BYTES: u64 = 4 << 20;

/// The number of segments of a full spool, at least: one of them is dropped at a time.
const SEGMENTS_MIN: u64 = 8;

/// The bytes that a reader reads at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// The size of what is written at once, and one message more.
const PIECE_BYTES: usize = 16 << 10;

/// Messages were dropped because the spool was full.
const FULL: &str = "spool_full";

/// Messages could not be read.
const DAMAGED: &str = "spool_damaged";

/// The file with the position of what was acknowledged.
const SENT: &str = "sent";

/// The end of the names of segments.
const SUFFIX: &str = ".messages";

/// A file of messages.
#[derive(Debug)]
struct Segment {
    number: u64,
    /// The length of its valid content.
    bytes: u64,
    /// The requests of its messages that are not acknowledged.
    requests: u64,
}

/// A position in the segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    segment: u64,
    offset: u64,
}

/// What writer and reader share.
#[derive(Debug, Default)]
struct Shared {
    /// By number; the last one is written.
    segments: VecDeque<Segment>,
    sent: Position,
    /// The number of the next segment; none is used twice.
    next: u64,
    /// The requests of messages that were dropped, by cause.
    lost: BTreeMap<&'static str, u64>,
}

impl Shared {
    /// The bytes that were not acknowledged.
    fn waiting(&self) -> u64 {
        let bytes: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        let first = self.segments.front();
        let sent = first.filter(|first| first.number == self.sent.segment);
        bytes.saturating_sub(sent.map_or(0, |_| self.sent.offset))
    }
}

/// The writer's side of the spool.
#[derive(Debug)]
pub struct ForwardSpool {
    directory: PathBuf,
    bytes_max: u64,
    shared: Arc<(Mutex<Shared>, Condvar)>,
    /// The segment that is written.
    file: Option<File>,
    /// Messages that are not written yet, in pieces of about a chunk, and their requests.
    unwritten: Vec<(Vec<u8>, u64)>,
    /// The part of the lost requests that was reported, by cause.
    reported: BTreeMap<&'static str, u64>,
    /// The requests of the last write that failed.
    failed: u64,
}

/// The reader's side of the spool.
#[derive(Debug)]
pub struct ForwardSpoolReader {
    directory: PathBuf,
    shared: Arc<(Mutex<Shared>, Condvar)>,
    /// The saved position.
    saved: Position,
}

/// Messages in order.
#[derive(Debug)]
pub struct Chunk {
    /// The messages.
    pub messages: Vec<TopicMessage>,
    /// The position after them.
    end: Position,
}

impl ForwardSpool {
    /// Opens the directory, which is created if it does not exist. The spool has at most
    /// `bytes_max` bytes, and one write more.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn open(
        directory: &Path,
        bytes_max: u64,
    ) -> io::Result<(ForwardSpool, ForwardSpoolReader)> {
        private::directory(directory)?;
        let sent = match fs::read_to_string(directory.join(SENT)) {
            Ok(text) => position(&text).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::NotFound => Position::default(),
            Err(error) => return Err(error),
        };
        let mut numbers: Vec<u64> = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        let last = numbers.last().copied().unwrap_or(0);
        let mut shared = Shared {
            sent,
            next: last.max(sent.segment) + 1,
            ..Shared::default()
        };
        for number in numbers {
            let path = segment_path(directory, number);
            let skipped = match number.cmp(&sent.segment) {
                std::cmp::Ordering::Less => u64::MAX,
                std::cmp::Ordering::Equal => sent.offset,
                std::cmp::Ordering::Greater => 0,
            };
            match scanned(&path, number, skipped)? {
                Some(segment) => shared.segments.push_back(segment),
                None => fs::remove_file(&path)?,
            }
        }
        let shared = Arc::new((Mutex::new(shared), Condvar::new()));
        let spool = ForwardSpool {
            directory: directory.to_owned(),
            bytes_max,
            shared: shared.clone(),
            file: None,
            unwritten: Vec::new(),
            reported: BTreeMap::new(),
            failed: 0,
        };
        let reader = ForwardSpoolReader {
            directory: directory.to_owned(),
            shared,
            saved: sent,
        };
        Ok((spool, reader))
    }

    /// Adds a message, to be written by the next [`ForwardSpool::flush`].
    pub fn push(&mut self, message: &TopicMessage) {
        let is_full = |(bytes, _): &(Vec<u8>, u64)| bytes.len() >= PIECE_BYTES;
        if self.unwritten.last().is_none_or(is_full) {
            self.unwritten.push((Vec::new(), 0));
        }
        if let Some((bytes, requests)) = self.unwritten.last_mut() {
            message.encode(bytes);
            *requests += message.requests;
        }
    }

    /// Writes all messages; the oldest segments are dropped where there is no room.
    ///
    /// # Errors
    /// Those of the system calls; the messages that were not written are lost.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut flushed = Ok(());
        for (bytes, requests) in std::mem::take(&mut self.unwritten) {
            if let Err(error) = self.write(&bytes, requests) {
                self.failed += requests;
                self.undo_write();
                flushed = Err(error);
            }
        }
        flushed
    }

    /// Removes what a failed write has left in the last segment.
    fn undo_write(&mut self) {
        let Some(mut file) = self.file.take() else {
            return;
        };
        let mut shared = lock(&self.shared.0);
        let Some(last) = shared.segments.back() else {
            return;
        };
        let (number, bytes) = (last.number, last.bytes);
        let cut = file.set_len(bytes);
        if cut.and_then(|()| file.seek(SeekFrom::Start(bytes))).is_ok() {
            self.file = Some(file);
        } else if bytes == 0 {
            // It contains nothing that is valid; otherwise the next messages are in another one.
            shared.segments.pop_back();
            remove(&self.directory, number);
        }
    }

    fn write(&mut self, bytes: &[u8], requests: u64) -> io::Result<()> {
        let length = bytes.len() as u64;
        let mut shared = lock(&self.shared.0);
        let segment_max = SEGMENT_BYTES.min(self.bytes_max / SEGMENTS_MIN);
        let is_full = |s: &Segment| s.bytes > 0 && s.bytes + length > segment_max;
        if shared.segments.back().is_some_and(is_full) {
            self.file = None;
        }
        while shared.segments.iter().map(|s| s.bytes).sum::<u64>() + length > self.bytes_max {
            let Some(oldest) = shared.segments.pop_front() else {
                break;
            };
            if shared.segments.is_empty() {
                self.file = None;
            }
            *shared.lost.entry(FULL).or_default() += oldest.requests;
            remove(&self.directory, oldest.number);
        }
        if self.file.is_none() {
            let number = shared.next;
            let path = segment_path(&self.directory, number);
            let mut options = File::options();
            let file = private::open(options.create(true).truncate(true).write(true), &path)?;
            self.file = Some(file);
            shared.next += 1;
            shared.segments.push_back(Segment {
                number,
                bytes: 0,
                requests: 0,
            });
        }
        let file = self.file.as_mut().expect("it was just opened");
        file.write_all(bytes)?;
        let last = shared.segments.back_mut().expect("one is written");
        last.bytes += length;
        last.requests += requests;
        drop(shared);
        self.shared.1.notify_one();
        Ok(())
    }

    /// The requests of the writes that failed since the last call.
    pub fn take_unwritten(&mut self) -> u64 {
        std::mem::take(&mut self.failed)
    }

    /// The requests of all messages that were dropped.
    pub fn lost(&self) -> u64 {
        lock(&self.shared.0).lost.values().sum()
    }

    /// The requests of the messages that were dropped since the last call, by cause.
    pub fn take_lost(&mut self) -> BTreeMap<&'static str, u64> {
        let lost = lock(&self.shared.0).lost.clone();
        let reported = std::mem::replace(&mut self.reported, lost.clone());
        let since = lost.into_iter().map(|(cause, requests)| {
            let before = reported.get(cause).copied().unwrap_or(0);
            (cause, requests - before)
        });
        since.filter(|(_, requests)| *requests > 0).collect()
    }

    /// The bytes of the messages that are not acknowledged.
    pub fn waiting_bytes(&self) -> u64 {
        let unwritten = self.unwritten.iter().map(|(bytes, _)| bytes.len() as u64);
        unwritten.sum::<u64>() + lock(&self.shared.0).waiting()
    }
}

impl ForwardSpoolReader {
    /// The next messages; `None` if there are none within `timeout`.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn next(&mut self, timeout: Duration) -> io::Result<Option<Chunk>> {
        let mut shared = lock(&self.shared.0);
        if shared.waiting() == 0 {
            let waited = self.shared.1.wait_timeout(shared, timeout);
            shared = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        let sent = shared.sent;
        let ahead = |segment: &&Segment| match segment.number == sent.segment {
            true => segment.bytes > sent.offset,
            false => segment.number > sent.segment && segment.bytes > 0,
        };
        let Some(segment) = shared.segments.iter().find(ahead) else {
            return Ok(None);
        };
        let (number, bytes) = (segment.number, segment.bytes);
        let offset = match number == sent.segment {
            true => sent.offset,
            false => 0,
        };
        drop(shared);
        let file = match File::open(segment_path(&self.directory, number)) {
            // It was dropped just now, or another program has removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.skip(number, bytes);
                return Ok(None);
            }
            other => other?,
        };
        let left = bytes - offset;
        let mut read = vec![0; left.min(CHUNK_BYTES) as usize];
        file.read_exact_at(&mut read, offset)?;
        let mut messages = Vec::new();
        let mut used = 0;
        while let Some((message, length)) = TopicMessage::decode(&read[used..]) {
            messages.push(message);
            used += length;
        }
        if messages.is_empty() {
            // A message longer than a chunk.
            let length = read
                .first_chunk()
                .map_or(0, |first| u32::from_le_bytes(*first));
            let length = (HEADER_BYTES as u64 + u64::from(length)).min(left) as usize;
            read = vec![0; length];
            file.read_exact_at(&mut read, offset)?;
            if let Some((message, length)) = TopicMessage::decode(&read) {
                messages.push(message);
                used = length;
            } else {
                // Its content is damaged: the next segment follows.
                self.skip(number, bytes);
                return Ok(None);
            }
        }
        let end = Position {
            segment: number,
            offset: offset + used as u64,
        };
        Ok(Some(Chunk { messages, end }))
    }

    /// Counts what is left of a segment as lost, unless it was dropped meanwhile.
    fn skip(&mut self, number: u64, bytes: u64) {
        let mut shared = lock(&self.shared.0);
        let Some(segment) = shared.segments.iter_mut().find(|s| s.number == number) else {
            return;
        };
        tracing::warn!(
            file = %segment_path(&self.directory, number).display(),
            "the rest of the file is missing or damaged; its messages are lost"
        );
        let requests = std::mem::take(&mut segment.requests);
        *shared.lost.entry(DAMAGED).or_default() += requests;
        shared.sent = shared.sent.max(Position {
            segment: number,
            offset: bytes,
        });
    }

    /// Marks the messages of a chunk as acknowledged, and removes the segments that are.
    pub fn acknowledge(&mut self, chunk: Chunk) {
        let mut shared = lock(&self.shared.0);
        // Its segment may have been dropped, and counted as lost, while it was being sent.
        if let Some(segment) = shared
            .segments
            .iter_mut()
            .find(|s| s.number == chunk.end.segment)
        {
            let requests: u64 = chunk.messages.iter().map(|message| message.requests).sum();
            segment.requests = segment.requests.saturating_sub(requests);
        }
        shared.sent = shared.sent.max(chunk.end);
        let mut done = Vec::new();
        // The last one is written.
        while shared.segments.len() > 1
            && let Some(first) = shared.segments.front()
            && (first.number, first.bytes) <= (shared.sent.segment, shared.sent.offset)
        {
            done.push(first.number);
            shared.segments.pop_front();
        }
        drop(shared);
        for number in done {
            remove(&self.directory, number);
        }
    }

    /// Saves up to where messages were acknowledged.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn save(&mut self) -> io::Result<()> {
        let sent = lock(&self.shared.0).sent;
        if sent == self.saved {
            return Ok(());
        }
        let text = format!("{} {}\n", sent.segment, sent.offset);
        private::replace(&self.directory.join(SENT), text.as_bytes())?;
        self.saved = sent;
        Ok(())
    }

    /// Whether all messages are acknowledged.
    pub fn is_empty(&self) -> bool {
        lock(&self.shared.0).waiting() == 0
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Each change is complete before anything can panic.
    shared.lock().unwrap_or_else(|e| e.into_inner())
}

fn segment_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:012}{SUFFIX}"))
}

fn remove(directory: &Path, number: u64) {
    let path = segment_path(directory, number);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(file = %path.display(), reason = %error, "a file is not removed");
        }
        _ => {}
    }
}

fn position(text: &str) -> Option<Position> {
    let (segment, offset) = text.trim().split_once(' ')?;
    Some(Position {
        segment: segment.parse().ok()?,
        offset: offset.parse().ok()?,
    })
}

/// A segment of an earlier process, up to its last whole message; `None` if all of its messages are
/// before `skipped`.
fn scanned(path: &Path, number: u64, skipped: u64) -> io::Result<Option<Segment>> {
    let content = fs::read(path)?;
    let (mut bytes, mut requests) = (0, 0);
    while let Some((message, length)) = TopicMessage::decode(&content[bytes..]) {
        if bytes as u64 >= skipped {
            requests += message.requests;
        }
        bytes += length;
    }
    let bytes = bytes as u64;
    Ok((bytes > skipped).then_some(Segment {
        number,
        bytes,
        requests,
    }))
}
