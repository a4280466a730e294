//! [`FileSink`]: a file that the answer of a query is added to, also over restarts.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use weir_model::Batch;
use weir_sink::{Answer, Sink, SinkError, Target};

use super::state::Position;
use crate::config::SinkEntry;

/// A file that an answer is added to.
pub struct FileSink {
    path: PathBuf,
    sink: Option<Box<dyn Sink>>,
    /// Why it takes no more.
    failed: Option<String>,
    /// Something was written since it was flushed.
    news: bool,
}

/// Where `entry` writes, if relative paths are below `directory`.
pub fn path_of(entry: &SinkEntry, directory: &Path) -> PathBuf {
    directory.join(&entry.file)
}

impl FileSink {
    /// A sink that is known as `path`.
    pub fn new(path: PathBuf, sink: Box<dyn Sink>) -> FileSink {
        FileSink {
            path,
            sink: Some(sink),
            failed: None,
            news: false,
        }
    }

    /// Opens the file of `entry`. What stands in it stays; of what was written after `position`, the
    /// agents tell again.
    ///
    /// # Errors
    /// When it cannot be written, in words.
    pub fn open(
        entry: &SinkEntry,
        directory: &Path,
        answer: Answer,
        position: Option<&Position>,
    ) -> Result<FileSink, String> {
        let path = path_of(entry, directory);
        let name = path.display().to_string();
        let failed = |error: std::io::Error| format!("{name}: {error}");
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        // Before the file is touched: one that is cut and cannot be added to is destroyed.
        let format = weir_sink::format(&entry.format).expect("the configuration was checked");
        let resume = format
            .resume
            .ok_or_else(|| format!("{name}: `{}` cannot be added to", format.name))?;
        let bytes = position.map(|p| p.bytes);
        let (file, is_new) = continued(&path, bytes).map_err(failed)?;
        let open = match is_new {
            true => format.open,
            false => resume,
        };
        let target = Target::new(name.clone(), Box::new(file), None);
        let sink = open(answer, target).map_err(|error| error.to_string())?;
        Ok(FileSink::new(path, sink))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why it takes no more.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Writes rows or deltas, in time order.
    pub fn write(&mut self, batch: &Batch) {
        self.news = true;
        self.with(|sink| sink.write(batch));
    }

    /// Hands what was written to the system.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.news) {
            self.with(|sink| sink.flush());
        }
    }

    /// Completes the file.
    pub fn finish(&mut self) {
        self.with(|sink| sink.finish());
    }

    /// How much of the file holds what was written, all of it handed to the system; `None` if it
    /// takes no more.
    pub fn position(&mut self) -> Option<Position> {
        self.flush();
        self.sink.as_ref()?;
        match std::fs::metadata(&self.path) {
            Ok(metadata) => Some(Position {
                path: self.path.clone(),
                bytes: metadata.len(),
            }),
            Err(error) => {
                self.fail(format!("{}: {error}", self.path.display()));
                None
            }
        }
    }

    fn with(&mut self, act: impl FnOnce(&mut dyn Sink) -> Result<(), SinkError>) {
        if let Some(sink) = &mut self.sink
            && let Err(error) = act(sink.as_mut())
        {
            self.fail(error.to_string());
        }
    }

    fn fail(&mut self, why: String) {
        self.failed = Some(why);
        self.sink = None;
    }
}

/// The file to go on with, at its first `bytes` if it is longer than that, and whether there is
/// nothing in it.
fn continued(path: &Path, bytes: Option<u64>) -> std::io::Result<(File, bool)> {
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .open(path)?;
    let length = file.metadata()?.len();
    match bytes {
        Some(bytes) if bytes <= length => {
            file.set_len(bytes)?;
            Ok((file, bytes == 0))
        }
        _ => {
            if length > 0 && !ends_with_line(&mut file)? {
                // A line that was torn is told from those that follow.
                file.write_all(b"\n")?;
            }
            Ok((file, length == 0))
        }
    }
}

fn ends_with_line(file: &mut File) -> std::io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}
