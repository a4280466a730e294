//! [`TraceInput`] names a trace; [`Input`] is an opened trace: its bytes in order, through a window
//! of constant size.
//!
//! A pipe delivers its bytes once. An input is therefore opened once: [`Input::peek`] returns the
//! first bytes without consuming them.

use std::fs::File;
use std::io::{Cursor, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;

use super::pipe::{self, Cancel};
use crate::TapError;

/// Bytes of a trace in memory at a time. The longest record of any format, a blktrace event with
/// 65,535 bytes of payload, fits.
pub const WINDOW_BYTES: usize = 256 << 10;

/// Bytes of a read: with few, they are parsed before they leave the processor's cache.
const READ_BYTES: usize = 64 << 10;

/// Maximum length of a line of a text format. A longer one is a bad record.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// A trace: a file, or named bytes in memory (tests, fuzzing).
#[derive(Clone, Debug)]
pub enum TraceInput {
    /// A file, a pipe, or `-` for standard input.
    File(PathBuf),
    /// Bytes, and their name in messages.
    Bytes(PathBuf, Vec<u8>),
}

impl TraceInput {
    /// A file, a pipe, or `-` for standard input.
    pub fn file(path: impl Into<PathBuf>) -> TraceInput {
        TraceInput::File(path.into())
    }

    /// Bytes in memory.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> TraceInput {
        TraceInput::Bytes("<bytes>".into(), bytes.into())
    }

    /// The path, for messages and for names that a format derives from it.
    pub fn path(&self) -> &Path {
        match self {
            TraceInput::File(path) | TraceInput::Bytes(path, _) => path,
        }
    }
}

/// The bytes of a trace in order, through a window of [`WINDOW_BYTES`]. A source in gzip's format
/// is decompressed; offsets are then those of the decompressed bytes.
pub struct Input {
    path: PathBuf,
    origin: Origin,
    cancel: Cancel,
    reader: Box<dyn Read + Send>,
    /// The pipe whose bytes are read, unless they are compressed.
    pipe: Option<File>,
    window: Vec<u8>,
    start: usize,
    end: usize,
    offset: u64,
    ended: bool,
    /// Bytes read of the source, and its length; 0 if unknown.
    taken: Arc<AtomicU64>,
    bytes: u64,
}

/// Access to the bytes of an input other than in order.
enum Origin {
    /// Its bytes can be read by position.
    Positioned(Positioned),
    /// The same, after decompression.
    Packed,
    /// They can be read once, in order.
    Pipe,
}

/// Bytes that can be read by position.
pub enum Positioned {
    /// A file.
    File(File),
    /// Bytes in memory.
    Bytes(Bytes),
}

/// The magic bytes of gzip's format (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Counts the bytes that are read.
struct Counted<R> {
    reader: R,
    taken: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.reader.read(buffer)?;
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// `reader`, decompressed if it is compressed, and whether it is.
fn unpacked(
    mut reader: impl Read + Send + 'static,
) -> std::io::Result<(Box<dyn Read + Send>, bool)> {
    let mut head = Vec::with_capacity(GZIP.len());
    reader
        .by_ref()
        .take(GZIP.len() as u64)
        .read_to_end(&mut head)?;
    let packed = head == GZIP;
    let reader = Cursor::new(head).chain(reader);
    let reader: Box<dyn Read + Send> = match packed {
        true => Box::new(MultiGzDecoder::new(reader)),
        false => Box::new(reader),
    };
    Ok((reader, packed))
}

/// A line without its end, and its offset.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Byte offset of its first byte.
    pub offset: u64,
    /// The bytes; `None` if the line is longer than [`LINE_BYTES_MAX`].
    pub bytes: Option<&'a [u8]>,
}

impl<'a> Line<'a> {
    /// Its text.
    ///
    /// # Errors
    /// The reason if it has none.
    pub fn text(&self) -> Result<&'a str, String> {
        let bytes = self.bytes.ok_or("the line is too long")?;
        std::str::from_utf8(bytes).map_err(|_| "the line is not text".into())
    }
}

impl Input {
    /// Opens a source at its start.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(source: &TraceInput) -> Result<Input, TapError> {
        Input::open_until(source, &Cancel::default())
    }

    /// As [`Input::open`]; reading from a pipe fails when `cancel` requests it.
    ///
    /// # Errors
    /// As [`Input::open`].
    pub fn open_until(source: &TraceInput, cancel: &Cancel) -> Result<Input, TapError> {
        let path = match source {
            TraceInput::File(path) if is_standard_input(path) => STANDARD_INPUT.into(),
            source => source.path().to_path_buf(),
        };
        let failed = |error| failed(&path, error);
        let mut pipe = None;
        let (reader, origin, bytes): (Box<dyn Read + Send>, _, _) = match source {
            TraceInput::File(_) => {
                let opened = pipe::open(&path, cancel).map_err(failed)?;
                pipe = opened.pipe;
                let origin = opened.file.map(Positioned::File);
                let origin = origin.map_or(Origin::Pipe, Origin::Positioned);
                (opened.reader, origin, opened.bytes)
            }
            TraceInput::Bytes(_, bytes) => {
                let bytes = Bytes::from(bytes.clone());
                let count = bytes.len() as u64;
                let origin = Origin::Positioned(Positioned::Bytes(bytes.clone()));
                (Box::new(Cursor::new(bytes)), origin, count)
            }
        };
        let taken = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            reader,
            taken: taken.clone(),
        };
        let (reader, packed) = unpacked(counted).map_err(failed)?;
        Ok(Input {
            reader,
            path: path.clone(),
            origin: match origin {
                Origin::Positioned(_) if packed => Origin::Packed,
                origin => origin,
            },
            cancel: cancel.clone(),
            pipe: pipe.filter(|_| !packed),
            window: vec![0; WINDOW_BYTES],
            start: 0,
            end: 0,
            offset: 0,
            ended: false,
            taken,
            bytes,
        })
    }

    /// Opens another file of the same trace.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open_beside(&self, path: PathBuf) -> Result<Input, TapError> {
        Input::open_until(&TraceInput::File(path), &self.cancel)
    }

    /// The file name without its extensions: the name of the disk if a format records none.
    pub fn stem(&self) -> &str {
        let name = self.path.file_name().and_then(|n| n.to_str());
        let name = name.unwrap_or("trace");
        name.split('.')
            .find(|part| !part.is_empty())
            .unwrap_or(name)
    }

    /// True if the bytes can be read only once: those of a pipe.
    pub fn is_pipe(&self) -> bool {
        matches!(self.origin, Origin::Pipe)
    }

    /// True if fewer than `bytes` bytes are in memory and the writer of a pipe sends no more at
    /// present: a read would wait.
    pub fn is_silent(&self, bytes: usize) -> bool {
        let waits = |pipe: &File| pipe::is_silent(pipe, &self.cancel);
        let is_short = self.end - self.start < bytes && !self.ended;
        is_short && self.pipe.as_ref().is_some_and(waits)
    }

    /// The bytes that can be read without waiting.
    pub fn buffered(&self) -> &[u8] {
        &self.window[self.start..self.end]
    }

    /// The bytes from the first, for reading by position.
    ///
    /// # Errors
    /// The input, if that is not possible.
    pub fn positioned(self) -> Result<Positioned, Box<Input>> {
        match self.origin {
            Origin::Positioned(positioned) => Ok(positioned),
            _ => Err(Box::new(self)),
        }
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of bytes consumed.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Progress through the source, from 0 to 1. Pipes have no length and stay at 0 until they end.
    pub fn progress(&self) -> f64 {
        if self.ended && self.start == self.end {
            return 1.0;
        }
        if self.bytes == 0 {
            return 0.0;
        }
        let taken = self.taken.load(Ordering::Relaxed);
        (taken as f64 / self.bytes as f64).min(1.0)
    }

    /// The next `bytes` bytes, fewer only at the end.
    ///
    /// # Panics
    /// If `bytes` is more than [`WINDOW_BYTES`].
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn peek(&mut self, bytes: usize) -> Result<&[u8], TapError> {
        assert!(bytes <= WINDOW_BYTES, "a record fits in the window");
        while self.end - self.start < bytes && !self.ended {
            self.fill()?;
        }
        let end = self.end.min(self.start + bytes);
        Ok(&self.window[self.start..end])
    }

    /// Consumes `bytes` bytes that [`Input::peek`] has returned.
    ///
    /// # Panics
    /// If they have not been returned.
    pub fn consume(&mut self, bytes: usize) {
        assert!(
            self.start + bytes <= self.end,
            "only what was seen is consumed"
        );
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// The next line, or `None` at the end. The last line may have no end of line.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn line(&mut self) -> Result<Option<Line<'_>>, TapError> {
        let offset = self.offset;
        let mut seen = 0;
        let length = loop {
            let part = &self.window[self.start + seen..self.end];
            if let Some(at) = memchr::memchr(b'\n', part) {
                break seen + at;
            }
            seen = self.end - self.start;
            if seen > LINE_BYTES_MAX {
                self.skip_line()?;
                return Ok(Some(Line {
                    offset,
                    bytes: None,
                }));
            }
            if self.ended {
                break seen;
            }
            self.fill()?;
        };
        if length == 0 && self.start == self.end {
            return Ok(None);
        }
        let from = self.start;
        let with_end = (length + 1).min(self.end - self.start);
        self.consume(with_end);
        let bytes = &self.window[from..from + length];
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        Ok(Some(Line {
            offset,
            bytes: (length <= LINE_BYTES_MAX).then_some(bytes),
        }))
    }

    fn skip_line(&mut self) -> Result<(), TapError> {
        loop {
            let part = &self.window[self.start..self.end];
            let end = memchr::memchr(b'\n', part);
            self.consume(end.map_or(part.len(), |at| at + 1));
            if end.is_some() || self.ended {
                return Ok(());
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<(), TapError> {
        if self.start > 0 {
            self.window.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let until = self.window.len().min(self.end + READ_BYTES);
        loop {
            match self.reader.read(&mut self.window[self.end..until]) {
                Ok(0) => self.ended = true,
                Ok(bytes) => self.end += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(&self.path, error)),
            }
            return Ok(());
        }
    }
}

fn failed(path: &Path, error: std::io::Error) -> TapError {
    let path = path.to_path_buf();
    match pipe::is_cancelled(&error) {
        true => TapError::Cancelled { path },
        false => TapError::File { path, error },
    }
}

/// The path of standard input in messages.
pub const STANDARD_INPUT: &str = "/dev/stdin";

/// The names of standard input in the file system (proc_pid_fd(5)).
pub const STANDARD_INPUT_NAMES: &[&str] = &[STANDARD_INPUT, "/dev/fd/0", "/proc/self/fd/0"];

/// Whether a path is a name of standard input: `-`, or one of its names in the file system.
pub fn is_standard_input(path: &Path) -> bool {
    let mut names = STANDARD_INPUT_NAMES.iter().chain(&["-"]);
    names.any(|name| path == Path::new(name))
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let wanted = buffer.len().min(WINDOW_BYTES);
        if self.start == self.end && !self.ended {
            self.fill().map_err(std::io::Error::other)?;
        }
        let part = &self.window[self.start..self.end.min(self.start + wanted)];
        let bytes = part.len();
        buffer[..bytes].copy_from_slice(part);
        self.consume(bytes);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<(u64, Option<usize>)> {
        let mut input = Input::open(&TraceInput::bytes(bytes)).unwrap();
        let mut lines = Vec::new();
        while let Some(line) = input.line().unwrap() {
            lines.push((line.offset, line.bytes.map(<[u8]>::len)));
        }
        assert_eq!(input.offset(), bytes.len() as u64);
        lines
    }

    #[test]
    fn lines_know_where_they_start() {
        assert_eq!(
            lines(b"ab\r\n\ncde"),
            [(0, Some(2)), (4, Some(0)), (5, Some(3))]
        );
        assert_eq!(lines(b"x\n"), [(0, Some(1))]);
        assert_eq!(lines(b""), []);
    }

    #[test]
    fn a_line_without_an_end_does_not_fill_memory() {
        let mut bytes = vec![b'x'; 3 * WINDOW_BYTES];
        assert_eq!(lines(&bytes), [(0, None)]);
        bytes.extend(b"\nshort\n");
        assert_eq!(
            lines(&bytes),
            [(0, None), (3 * WINDOW_BYTES as u64 + 1, Some(5))]
        );
    }

    #[test]
    fn a_packed_source_is_unpacked() {
        use std::io::Write;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(b"ab\ncde").unwrap();
        let mut input = Input::open(&TraceInput::bytes(packer.finish().unwrap())).unwrap();
        assert_eq!(input.line().unwrap().unwrap().bytes, Some(&b"ab"[..]));
        assert_eq!(input.line().unwrap().unwrap().offset, 3);
        assert_eq!(input.line().unwrap(), None);
        let cut = [0x1f, 0x8b, 8, 0];
        let mut input = Input::open(&TraceInput::bytes(cut)).unwrap();
        assert!(input.line().is_err());
    }

    #[test]
    fn a_window_slides_over_the_source() {
        let bytes: Vec<u8> = (0..2 * WINDOW_BYTES + 7).map(|i| i as u8).collect();
        let mut input = Input::open(&TraceInput::bytes(bytes.clone())).unwrap();
        let mut seen = Vec::new();
        loop {
            let part = input.peek(1000).unwrap().to_vec();
            if part.is_empty() {
                break;
            }
            input.consume(part.len());
            seen.extend(part);
        }
        assert_eq!(seen, bytes);
        assert_eq!(input.progress(), 1.0);
    }
}
