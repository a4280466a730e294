//! [`Source`] and [`Input`]: where the bytes of a trace come from, and a window over them that
//! never grows.

use std::fs::File;
use std::io::{Cursor, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use crate::TapError;

/// Bytes of a trace held in memory at a time. The longest record of any format, a blktrace event
/// with 65,535 bytes of payload, fits.
pub const WINDOW_BYTES: usize = 256 << 10;

/// Longest line of a text format. A longer one is a bad record.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// A trace: a file, or bytes in memory under a name (tests, fuzzing).
#[derive(Clone, Debug)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// Bytes, and the name they go by in messages.
    Bytes(PathBuf, Vec<u8>),
}

impl Source {
    /// A file.
    pub fn file(path: impl Into<PathBuf>) -> Source {
        Source::File(path.into())
    }

    /// Bytes in memory.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Source {
        Source::Bytes("<bytes>".into(), bytes.into())
    }

    /// The path, for messages and for names that a format takes from it.
    pub fn path(&self) -> &Path {
        match self {
            Source::File(path) | Source::Bytes(path, _) => path,
        }
    }

    /// The file name without its extensions: the name of the disk where a format records none.
    pub fn stem(&self) -> &str {
        let name = self.path().file_name().and_then(|n| n.to_str());
        let name = name.unwrap_or("trace");
        name.split('.')
            .find(|part| !part.is_empty())
            .unwrap_or(name)
    }

    /// The first bytes, at most `bytes` of them, to sniff at.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn head(&self, bytes: usize) -> Result<Vec<u8>, TapError> {
        let mut input = Input::open(self)?;
        Ok(input.peek(bytes.min(WINDOW_BYTES))?.to_vec())
    }
}

/// The bytes of a trace in order, through a window of [`WINDOW_BYTES`]. A source in gzip's format
/// is unpacked on the way; offsets are then those of the unpacked bytes.
pub struct Input {
    path: PathBuf,
    reader: Box<dyn Read + Send>,
    window: Vec<u8>,
    start: usize,
    end: usize,
    offset: u64,
    ended: bool,
    /// Bytes read of the source itself, and how many it has.
    taken: Arc<AtomicU64>,
    bytes: u64,
}

/// What gzip's format starts with (RFC 1952, section 2.3.1).
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

/// `reader`, unpacked where it is packed.
fn unpacked(mut reader: impl Read + Send + 'static) -> std::io::Result<Box<dyn Read + Send>> {
    let mut head = Vec::with_capacity(GZIP.len());
    reader
        .by_ref()
        .take(GZIP.len() as u64)
        .read_to_end(&mut head)?;
    let packed = head == GZIP;
    let reader = Cursor::new(head).chain(reader);
    Ok(match packed {
        true => Box::new(MultiGzDecoder::new(reader)),
        false => Box::new(reader),
    })
}

/// A line without its end, and where it starts.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Byte offset of its first byte.
    pub offset: u64,
    /// The bytes; `None` where the line is longer than [`LINE_BYTES_MAX`].
    pub bytes: Option<&'a [u8]>,
}

impl Input {
    /// Opens a source at its start.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(source: &Source) -> Result<Input, TapError> {
        let path = source.path().to_path_buf();
        let failed = |error| TapError::File {
            path: path.clone(),
            error,
        };
        let (reader, bytes): (Box<dyn Read + Send>, u64) = match source {
            Source::File(file) => {
                let file = File::open(file).map_err(failed)?;
                let bytes = file.metadata().map_err(failed)?.len();
                (Box::new(file), bytes)
            }
            Source::Bytes(_, bytes) => (Box::new(Cursor::new(bytes.clone())), bytes.len() as u64),
        };
        let taken = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            reader,
            taken: taken.clone(),
        };
        Ok(Input {
            reader: unpacked(counted).map_err(failed)?,
            path: path.clone(),
            window: vec![0; WINDOW_BYTES],
            start: 0,
            end: 0,
            offset: 0,
            ended: false,
            taken,
            bytes,
        })
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes taken so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How far through the source, from 0 to 1. Pipes have no length and stay at 0 until they end.
    pub fn progress(&self) -> f64 {
        if self.ended && self.start == self.end {
            return 1.0;
        }
        let taken = self.taken.load(Ordering::Relaxed);
        (taken as f64 / self.bytes.max(1) as f64).min(1.0)
    }

    /// The next `bytes` bytes, fewer only at the end.
    ///
    /// # Panics
    /// When `bytes` is more than [`WINDOW_BYTES`].
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn peek(&mut self, bytes: usize) -> Result<&[u8], TapError> {
        assert!(bytes <= WINDOW_BYTES, "a record fits in the window");
        while self.end - self.start < bytes && !self.ended {
            self.fill()?;
        }
        let end = self.end.min(self.start + bytes);
        Ok(&self.window[self.start..end])
    }

    /// Goes past `bytes` bytes that [`Input::peek`] has shown.
    ///
    /// # Panics
    /// When they have not been seen.
    pub fn consume(&mut self, bytes: usize) {
        assert!(
            self.start + bytes <= self.end,
            "only what was seen is consumed"
        );
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// The next line, or `None` at the end. The line after the last end of line may be without one.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn line(&mut self) -> Result<Option<Line<'_>>, TapError> {
        let offset = self.offset;
        let mut seen = 0;
        let length = loop {
            let part = &self.window[self.start + seen..self.end];
            if let Some(at) = part.iter().position(|&b| b == b'\n') {
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
            let end = part.iter().position(|&b| b == b'\n');
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
        loop {
            match self.reader.read(&mut self.window[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(bytes) => self.end += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(TapError::File {
                        path: self.path.clone(),
                        error,
                    });
                }
            }
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<(u64, Option<usize>)> {
        let mut input = Input::open(&Source::bytes(bytes)).unwrap();
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
        let mut input = Input::open(&Source::bytes(packer.finish().unwrap())).unwrap();
        assert_eq!(input.line().unwrap().unwrap().bytes, Some(&b"ab"[..]));
        assert_eq!(input.line().unwrap().unwrap().offset, 3);
        assert_eq!(input.line().unwrap(), None);
        let cut = [0x1f, 0x8b, 8, 0];
        let mut input = Input::open(&Source::bytes(cut)).unwrap();
        assert!(input.line().is_err());
    }

    #[test]
    fn a_window_slides_over_the_source() {
        let bytes: Vec<u8> = (0..2 * WINDOW_BYTES + 7).map(|i| i as u8).collect();
        let mut input = Input::open(&Source::bytes(bytes.clone())).unwrap();
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
