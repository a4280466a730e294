//! [`Journal`]: what was done to a queue, on disk before it is done.
//!
//! The file has one JSON object a line. `begin` has the state before the first write, `write` a
//! setting and the value that is written next, `state` the state as it was read afterwards, `found`
//! the state at the start of a restoration. A line is complete on disk (fsync) before the next
//! step. The last line may be incomplete after a crash: what it announces was not done.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_runtime::boot::boot_id;
use weir_runtime::private;

use super::{ForeignChange, QueueError, QueueState};

/// The version of the format.
const VERSION: u32 = 1;

/// The largest file that is read.
const BYTES_MAX: u64 = 64 << 20;

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalEntry {
    /// The start, with everything that is restored.
    Begin {
        /// The version of the format.
        version: u32,
        /// The boot of the kernel: settings do not outlive it.
        boot: String,
        /// The settings before the first write.
        before: QueueState,
    },
    /// A write that follows.
    Write {
        /// The setting.
        setting: String,
        /// The value.
        value: String,
    },
    /// All settings after a write.
    State(QueueState),
    /// All settings at the start of a restoration, and those that another program has changed. The
    /// restoration may be killed as well, and must not then take its own values for others'.
    Found {
        /// The settings.
        state: QueueState,
        /// Those of another program.
        foreign: Vec<ForeignChange>,
    },
}

/// A journal that is written.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

/// The content of a journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The state before the first write.
    pub before: QueueState,
    /// The last state that was read.
    pub last: QueueState,
    /// A write that was announced and may have been made, with its value.
    pub pending: Option<(String, String)>,
    /// The changes of other programs that an earlier restoration has found.
    pub foreign: Vec<ForeignChange>,
}

impl Journal {
    /// Starts a journal with the state of a queue. An earlier file is replaced.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn begin(path: &Path, before: &QueueState) -> Result<Journal, QueueError> {
        let create = || {
            let mut options = File::options();
            private::open(options.create(true).truncate(true).write(true), path)
        };
        let file = create().map_err(failed(path))?;
        let path = path.to_owned();
        let mut journal = Journal { path, file };
        journal.append(&JournalEntry::Begin {
            version: VERSION,
            boot: boot_id(),
            before: before.clone(),
        })?;
        private::sync_folder(&journal.path).map_err(failed(&journal.path))?;
        Ok(journal)
    }

    /// Continues a journal, after its last complete line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn resume(path: &Path) -> Result<Journal, QueueError> {
        let open = || {
            let text = fs::read(path)?;
            let complete = text.iter().rposition(|&byte| byte == b'\n');
            let mut options = File::options();
            let file = private::open(options.append(true), path)?;
            file.set_len(complete.map_or(0, |at| at as u64 + 1))?;
            Ok(file)
        };
        let file = open().map_err(failed(path))?;
        let path = path.to_owned();
        Ok(Journal { path, file })
    }

    /// Appends a line and waits until it is on disk.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn append(&mut self, entry: &JournalEntry) -> Result<(), QueueError> {
        let mut write = || {
            let mut line = serde_json::to_vec(entry)?;
            line.push(b'\n');
            self.file.write_all(&line)?;
            self.file.sync_data()
        };
        write().map_err(failed(&self.path))
    }

    /// Removes the file: the queue is as it was.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(path: &Path) -> Result<(), QueueError> {
        let removed = fs::remove_file(path).and_then(|()| private::sync_folder(path));
        removed.map_err(failed(path))
    }

    /// Renames the file, in the same folder.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub fn rename(from: &Path, to: &Path) -> Result<(), QueueError> {
        let renamed = fs::rename(from, to).and_then(|()| private::sync_folder(to));
        renamed.map_err(failed(from))
    }

    /// Reads a journal; `None` without a file, and for one of which not even the start is complete,
    /// or that is of an earlier boot: nothing is to be restored.
    ///
    /// # Errors
    /// When it cannot be read, or is of another version.
    pub fn read(path: &Path) -> Result<Option<Recorded>, QueueError> {
        let bytes = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            meta => meta.map_err(failed(path))?.len(),
        };
        let unreadable = |reason: String| QueueError::Unreadable {
            path: path.to_owned(),
            reason,
        };
        if bytes > BYTES_MAX {
            return Err(unreadable(format!("the journal has {bytes} bytes")));
        }
        let text = fs::read_to_string(path).map_err(failed(path))?;
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut recorded: Option<Recorded> = None;
        for (number, line) in complete.lines().enumerate() {
            let number = number + 1;
            let entry = serde_json::from_str(line);
            let entry = entry.map_err(|error| unreadable(format!("line {number}: {error}")))?;
            match (&mut recorded, entry) {
                (None, JournalEntry::Begin { version, .. }) if version != VERSION => {
                    let reason = format!("version {version}; this weir reads {VERSION}");
                    return Err(unreadable(reason));
                }
                (None, JournalEntry::Begin { boot: of, .. }) if of != boot_id() => return Ok(None),
                (None, JournalEntry::Begin { before, .. }) => {
                    let last = before.clone();
                    recorded = Some(Recorded {
                        before,
                        last,
                        pending: None,
                        foreign: Vec::new(),
                    });
                }
                (Some(recorded), JournalEntry::Write { setting, value }) => {
                    recorded.pending = Some((setting, value));
                }
                (Some(recorded), JournalEntry::State(state)) => {
                    (recorded.last, recorded.pending) = (state, None);
                }
                (Some(recorded), JournalEntry::Found { state, foreign }) => {
                    (recorded.last, recorded.pending) = (state, None);
                    recorded.foreign = foreign;
                }
                _ => return Err(unreadable(format!("line {number} is out of order"))),
            }
        }
        Ok(recorded)
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> QueueError {
    let path = path.to_owned();
    move |error| QueueError::Journal {
        path: path.clone(),
        error,
    }
}
