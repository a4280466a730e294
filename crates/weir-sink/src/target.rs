//! [`Target`]: the file, pipe or terminal that a sink writes to.

use std::io::{BufWriter, Write};

use crate::SinkError;

/// The destination of a sink's bytes.
pub struct Target {
    name: String,
    out: BufWriter<Box<dyn Write + Send>>,
    screen: Option<TerminalTarget>,
}

/// A terminal.
#[derive(Clone, Copy, Debug)]
pub struct TerminalTarget {
    /// The current number of columns and lines.
    pub size: fn() -> (usize, usize),
    /// The output is live, so a relation is redrawn in place.
    pub live: bool,
}

impl Target {
    /// A file or pipe called `name` in errors; with a screen, a terminal.
    pub fn new(
        name: impl Into<String>,
        out: Box<dyn Write + Send>,
        screen: Option<TerminalTarget>,
    ) -> Target {
        Target {
            name: name.into(),
            out: BufWriter::with_capacity(1 << 16, out),
            screen,
        }
    }

    /// Its name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The terminal, if it is one.
    pub fn screen(&self) -> Option<TerminalTarget> {
        self.screen
    }

    /// Writes `text`.
    ///
    /// # Errors
    /// If the target fails; [`SinkError::Closed`] if the reader has closed it.
    pub fn put(&mut self, text: &str) -> Result<(), SinkError> {
        let written = self.out.write_all(text.as_bytes());
        written.map_err(|e| SinkError::io(&self.name, e))
    }

    /// Writes `text` so many times: a row of a multiset.
    ///
    /// # Errors
    /// As [`Target::put`].
    pub fn put_times(&mut self, text: &str, times: i64) -> Result<(), SinkError> {
        (0..times).try_for_each(|_| self.put(text))
    }

    /// Flushes the buffer.
    ///
    /// # Errors
    /// As [`Target::put`].
    pub fn flush(&mut self) -> Result<(), SinkError> {
        self.out.flush().map_err(|e| SinkError::io(&self.name, e))
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// A target whose output a test can read.
#[cfg(test)]
pub(crate) mod capture {
    use super::*;
    use crate::{ResultSchema, SinkFormat};
    use std::sync::{Arc, Mutex};
    use weir_model::Batch;

    #[derive(Clone, Default)]
    pub struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        pub fn target(&self, screen: Option<TerminalTarget>) -> Target {
            Target::new("test", Box::new(self.clone()), screen)
        }

        /// What a sink of `format` writes for `batch`.
        pub fn output(format: &SinkFormat, answer: ResultSchema, batch: &Batch) -> String {
            let out = Captured::default();
            let mut sink = (format.open)(answer, out.target(None)).unwrap();
            sink.write(batch).unwrap();
            sink.finish().unwrap();
            out.text()
        }

        pub fn bytes(&self) -> Vec<u8> {
            self.0.lock().unwrap().clone()
        }

        pub fn text(&self) -> String {
            String::from_utf8(self.bytes()).unwrap()
        }
    }

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
