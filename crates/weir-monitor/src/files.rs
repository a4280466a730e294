//! [`FileSink`]: a file to which the results of a query are appended, across restarts.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use weir_model::{Batch, Shape};
use weir_sink::{OpenSink, ResultSchema, Sink, SinkError, SinkFormat, Target};

use super::state::Position;
use crate::config::SinkEntry;

/// A file to which results are appended.
pub struct FileSink {
    path: PathBuf,
    sink: Option<Box<dyn Sink>>,
    /// The error after which nothing is written.
    failed: Option<String>,
    /// There is unflushed output.
    news: bool,
    /// It was empty when it was opened.
    is_new: bool,
    /// It begins with the content of a relation.
    needs_content: bool,
}

/// The path of `entry`; relative paths are below `directory`.
pub fn path_of(entry: &SinkEntry, directory: &Path) -> PathBuf {
    directory.join(&entry.file)
}

impl FileSink {
    /// A sink with the name `path`.
    pub fn new(path: PathBuf, sink: Box<dyn Sink>) -> FileSink {
        FileSink {
            path,
            sink: Some(sink),
            failed: None,
            news: false,
            is_new: true,
            needs_content: false,
        }
    }

    /// The query continues after a restart: a new file begins with the content of its relation.
    pub fn begin_with_content(&mut self) {
        self.needs_content = self.is_new;
    }

    /// Opens the file of `entry`, after [`FileSink::check`]. Its content is retained, except after
    /// `position`: the agents send the later rows again.
    ///
    /// # Errors
    /// A message if it cannot be written.
    pub fn open(
        entry: &SinkEntry,
        directory: &Path,
        answer: ResultSchema,
        position: Option<&Position>,
    ) -> Result<FileSink, String> {
        let path = path_of(entry, directory);
        let name = path.display().to_string();
        let bytes = position.map(|p| p.bytes);
        let (file, is_new) = continued(&path, bytes).map_err(|e| format!("{name}: {e}"))?;
        let open = match is_new {
            true => format_of(entry).open,
            false => resumed(entry, &path)?,
        };
        let target = Target::new(name, Box::new(file), None);
        let sink = open(answer, target).map_err(|error| error.to_string())?;
        Ok(FileSink {
            is_new,
            ..FileSink::new(path, sink)
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The error after which nothing is written.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Its size, from which it is written again if no checkpoint contains it; 0 for a new file, so
    /// that it is new then, too. `None` after an error.
    pub fn first_position(&mut self) -> Option<Position> {
        let position = self.position()?;
        Some(match self.is_new {
            true => Position {
                bytes: 0,
                ..position
            },
            false => position,
        })
    }

    /// Checks that the file of `entry` can be written, and changes nothing in it: truncating one
    /// that cannot be appended to would destroy it.
    ///
    /// # Errors
    /// As [`FileSink::open`].
    pub fn check(entry: &SinkEntry, directory: &Path) -> Result<(), String> {
        let path = path_of(entry, directory);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        resumed(entry, &path)?;
        appended(&path).map_err(failed).map(drop)
    }

    /// Writes rows of a stream or changes of a relation, in timestamp order. The first `emitted` of
    /// them were written before a restart.
    pub fn write(&mut self, batch: &Batch, emitted: usize, shape: Shape) {
        let first = match self.needs_content && shape == Shape::Relation {
            // They add up to the content.
            true => 0,
            false => emitted,
        };
        let rows = batch.slice(first, batch.len() - first);
        if !rows.is_empty() {
            self.news = true;
            self.with(|sink| sink.write(&rows));
        }
    }

    /// Flushes to the operating system.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.news) {
            self.with(|sink| sink.flush());
        }
    }

    /// Completes the file.
    pub fn finish(&mut self) {
        self.with(|sink| sink.finish());
    }

    /// The size of the file after all output is flushed to the operating system; `None` after an
    /// error.
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

fn format_of(entry: &SinkEntry) -> &'static SinkFormat {
    weir_sink::format(&entry.format).expect("the configuration was checked")
}

/// How a file in the format of `entry` is continued.
fn resumed(entry: &SinkEntry, path: &Path) -> Result<OpenSink, String> {
    let format = format_of(entry);
    format.resume.ok_or_else(|| {
        format!(
            "{}: format `{}` does not support appending",
            path.display(),
            format.name
        )
    })
}

fn appended(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).open(path)
}

/// Opens the file for appending, truncated to its first `bytes`, and returns whether it is empty.
fn continued(path: &Path, bytes: Option<u64>) -> std::io::Result<(File, bool)> {
    let mut file = appended(path)?;
    let length = file.metadata()?.len();
    match bytes {
        Some(bytes) if bytes <= length => {
            file.set_len(bytes)?;
            Ok((file, bytes == 0))
        }
        _ => {
            if length > 0 && !ends_with_line(&mut file)? {
                // Terminates a partial line, to separate it from the next one.
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
