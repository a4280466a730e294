//! [`LogFile`]: the file to which QEMU writes its log while it is traced, and the read position.
//!
//! Regions that were read are punched out (fallocate(2), `FALLOC_FL_PUNCH_HOLE`): the file's length
//! grows, its disk usage does not.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};

/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;

/// Unread bytes at which the reader is too slow: the backlog is skipped, and counted.
pub const BEHIND_BYTES_MAX: u64 = 64 << 20;

/// Bytes on disk at which the guard disables tracing: the reader has stopped.
pub const DISK_BYTES_MAX: u64 = 128 << 20;

/// Bytes that are read between two punches.
const PUNCH_BYTES: u64 = 1 << 20;

/// The longest incomplete line that is kept.
const LINE_BYTES_MAX: usize = 4096;

/// The file being read.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    offset: u64,
    punched: u64,
    /// The incomplete line at the end of what was read.
    rest: Vec<u8>,
    chunk: Vec<u8>,
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Whole lines; more may follow.
    Lines(String),
    /// Number of lines that were skipped because the reader was too slow.
    Skipped(i64),
    /// Nothing new.
    Nothing,
}

/// Returns this number of bytes of the file to the file system.
///
/// # Errors
/// If the file system does not support it.
pub fn punch(file: &File, from: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, from, bytes)?)
}

impl LogFile {
    /// Reads the file from its beginning.
    pub fn new(file: File) -> LogFile {
        LogFile {
            file,
            offset: 0,
            punched: 0,
            rest: Vec::new(),
            chunk: vec![0; READ_BYTES],
        }
    }

    /// Reads the new lines.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&mut self) -> io::Result<Found> {
        let length = self.file.metadata()?.len();
        if length.saturating_sub(self.offset) > BEHIND_BYTES_MAX {
            return self.skip(length);
        }
        let read = self.file.read_at(&mut self.chunk, self.offset)?;
        self.offset += read as u64;
        let new = &self.chunk[..read];
        let Some(end) = new.iter().rposition(|b| *b == b'\n') else {
            self.keep(read, 0);
            return Ok(Found::Nothing);
        };
        let mut lines = std::mem::take(&mut self.rest);
        lines.extend_from_slice(&new[..=end]);
        self.keep(read, end + 1);
        self.punch();
        Ok(Found::Lines(String::from_utf8_lossy(&lines).into_owned()))
    }

    /// Keeps the text after the last whole line, unless it is too long.
    fn keep(&mut self, read: usize, from: usize) {
        self.rest.extend_from_slice(&self.chunk[from..read]);
        if self.rest.len() > LINE_BYTES_MAX {
            self.rest.clear();
        }
    }

    /// Counts the lines up to `length` instead of reading them.
    fn skip(&mut self, length: u64) -> io::Result<Found> {
        let mut lines = 0;
        while self.offset < length {
            let read = self.file.read_at(&mut self.chunk, self.offset)?;
            if read == 0 {
                break;
            }
            let ends = self.chunk[..read].iter().filter(|b| **b == b'\n');
            lines += ends.count() as i64;
            self.offset += read as u64;
            self.punch();
        }
        // The rest of a partly skipped line must not parse as an event.
        self.rest = b"?".to_vec();
        Ok(Found::Skipped(lines))
    }

    fn punch(&mut self) {
        if self.offset - self.punched >= PUNCH_BYTES {
            // If the file system does not support it, the guard enforces the bound.
            let _ = punch(&self.file, 0, self.offset);
            self.punched = self.offset;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use weir_testing::Scratch;

    use super::*;

    /// An empty log in a temporary folder, and its writer.
    fn file() -> (Scratch, String, File) {
        let scratch = Scratch::new();
        let path = scratch.write("log", "");
        let writer = File::options().write(true).open(&path).unwrap();
        (scratch, path, writer)
    }

    #[test]
    fn only_whole_lines_are_given() {
        let (_scratch, path, mut writer) = file();
        let mut log = LogFile::new(File::open(&path).unwrap());
        assert_eq!(log.read().unwrap(), Found::Nothing);
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(log.read().unwrap(), Found::Lines("one\n".into()));
        writer.write_all(b"o").unwrap();
        assert_eq!(log.read().unwrap(), Found::Nothing);
        writer.write_all(b"\nthree\n").unwrap();
        assert_eq!(log.read().unwrap(), Found::Lines("two\nthree\n".into()));
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let (_scratch, path, mut writer) = file();
        let mut log = LogFile::new(File::open(&path).unwrap());
        writer.write_all(&vec![b'x'; 3 << 20]).unwrap();
        for _ in 0..4 {
            assert_eq!(log.read().unwrap(), Found::Nothing);
        }
        assert!(log.rest.len() <= LINE_BYTES_MAX);
    }

    #[test]
    fn what_is_too_much_is_skipped_and_counted_and_the_space_comes_back() {
        let (_scratch, path, mut writer) = file();
        let line = [b'y'; 1023];
        let mut block = Vec::new();
        for _ in 0..1024 {
            block.extend_from_slice(&line);
            block.push(b'\n');
        }
        for _ in 0..65 {
            writer.write_all(&block).unwrap();
        }
        writer.write_all(b"cut").unwrap();
        let mut log = LogFile::new(File::options().read(true).write(true).open(&path).unwrap());
        assert_eq!(log.read().unwrap(), Found::Skipped(65 * 1024));
        writer.write_all(b" short\nwhole\n").unwrap();
        let lines = log.read().unwrap();
        assert_eq!(lines, Found::Lines("? short\nwhole\n".into()));
        let on_disk = fs::metadata(&path).unwrap().blocks() * 512;
        assert!(on_disk <= 2 * PUNCH_BYTES, "{on_disk} bytes are kept");
    }
}
