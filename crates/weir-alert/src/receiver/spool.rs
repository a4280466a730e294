//! [`EventSpool`]: events that wait for delivery, in memory and, with a file, across restarts.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use weir_runtime::private;

/// Maximum number of events that wait; then the first one is dropped.
pub const EVENTS_MAX: usize = 10_000;

/// The file is written again without delivered events when it has this many lines more than events
/// wait.
const SLACK_MAX: usize = 1_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct EventSpool {
    events: VecDeque<Json>,
    file: Option<SpoolFile>,
}

#[derive(Debug)]
struct SpoolFile {
    path: PathBuf,
    file: File,
    lines: usize,
}

impl EventSpool {
    /// A spool in memory.
    pub fn new() -> EventSpool {
        EventSpool::default()
    }

    /// A spool in a file, with the events that it has. The last line may be incomplete.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn open(path: &Path) -> io::Result<EventSpool> {
        let mut spool = EventSpool::new();
        match File::open(path) {
            Ok(file) => {
                for line in BufReader::new(file).lines() {
                    if let Ok(event) = serde_json::from_str(&line?) {
                        spool.push_bounded(event);
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        spool.file = Some(SpoolFile::create(path, &spool.events)?);
        Ok(spool)
    }

    /// The number of events that wait.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True if none waits.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Adds an event; true if another one was dropped for it. It is on disk on return.
    ///
    /// # Errors
    /// When the file cannot be written; the event waits in memory nevertheless.
    pub fn push(&mut self, event: Json) -> io::Result<bool> {
        let line = format!("{event}\n");
        let is_full = self.push_bounded(event);
        if let Some(file) = &mut self.file {
            file.append(&line)?;
        }
        Ok(is_full)
    }

    /// The first events, at most `count`.
    pub fn first(&self, count: usize) -> Vec<Json> {
        self.events.iter().take(count).cloned().collect()
    }

    /// Removes the first `count` events, which were delivered.
    ///
    /// # Errors
    /// When the file cannot be written; delivered events may be delivered again then.
    pub fn remove(&mut self, count: usize) -> io::Result<()> {
        self.events.drain(..count.min(self.events.len()));
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        if self.events.is_empty() || file.lines > self.events.len() + SLACK_MAX {
            *file = SpoolFile::create(&file.path, &self.events)?;
        }
        Ok(())
    }

    fn push_bounded(&mut self, event: Json) -> bool {
        let is_full = self.events.len() >= EVENTS_MAX;
        if is_full {
            self.events.pop_front();
        }
        self.events.push_back(event);
        is_full
    }
}

impl SpoolFile {
    /// Replaces the file at `path` by one with these events.
    fn create(path: &Path, events: &VecDeque<Json>) -> io::Result<SpoolFile> {
        let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
        private::replace(path, lines.as_bytes())?;
        Ok(SpoolFile {
            path: path.to_owned(),
            file: private::open(File::options().append(true), path)?,
            lines: events.len(),
        })
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())?;
        self.file.sync_data()?;
        self.lines += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use serde_json::json;

    #[test]
    fn events_survive_a_restart_and_an_incomplete_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook.jsonl");
        let mut spool = EventSpool::open(&path).unwrap();
        for n in 0..5 {
            assert!(!spool.push(json!(n)).unwrap());
        }
        spool.remove(2).unwrap();
        drop(spool);
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"half\":");
        fs::write(&path, text).unwrap();
        let spool = EventSpool::open(&path).unwrap();
        // What was delivered since the file was written is delivered again.
        assert_eq!(spool.first(9), (0..5).map(|n| json!(n)).collect::<Vec<_>>());
    }

    #[test]
    fn a_spool_that_is_empty_has_an_empty_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook.jsonl");
        let mut spool = EventSpool::open(&path).unwrap();
        spool.push(json!(1)).unwrap();
        spool.remove(1).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        spool.push(json!(2)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "2\n");
    }

    #[test]
    fn a_full_spool_drops_the_first_event() {
        let mut spool = EventSpool::new();
        for n in 0..EVENTS_MAX {
            assert!(!spool.push(json!(n)).unwrap());
        }
        assert!(spool.push(json!("new")).unwrap());
        assert_eq!((spool.len(), spool.first(1)), (EVENTS_MAX, vec![json!(1)]));
    }
}
