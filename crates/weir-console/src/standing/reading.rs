//! Reading what a process prints: its result, counted, and its last messages.

use std::collections::VecDeque;
use std::io::{Read, Write};

/// Counts the bytes of a result.
pub struct CountedReader<R, C> {
    /// The result.
    pub output: R,
    /// Receives the size of each part.
    pub count: C,
}

impl<R: Read, C: FnMut(usize)> Read for CountedReader<R, C> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let size = self.output.read(into)?;
        (self.count)(size);
        Ok(size)
    }
}

/// Reads the messages of a process in a thread of its own; keeps the last ones.
pub fn read_messages(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut last = LastBytes::default();
        // An error ends the messages as their end does.
        let _ = std::io::copy(&mut from, &mut last);
        last.0.into()
    })
}

/// Keeps the last 16 KiB that are written to it.
#[derive(Default)]
struct LastBytes(VecDeque<u8>);

impl Write for LastBytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend(bytes);
        let excess = self.0.len().saturating_sub(16 << 10);
        self.0.drain(..excess);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
