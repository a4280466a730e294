//! The state directory: the state that survives the monitor's process.
//!
//! `identity.json` contains the number by which agents identify the monitor, and the used range of
//! channel numbers. `checkpoint.json` contains the state of the standing queries ([`Saved`]). Each
//! is written completely under another name, synchronised to disk and renamed, so that it is always
//! the old or the new version.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::{self, JoinHandle, Thread};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_model::{Nanos, Symbol, Type, Value};

use super::account::Account;
use super::removed_agents::RemovedAgent;
use super::site::SavedSite;
use weir_runtime::private;
use weir_wire::random;

const IDENTITY: &str = "identity.json";
const CHECKPOINT: &str = "checkpoint.json";

/// The number of channel numbers that are reserved at once, so that the file is rarely written.
const CHANNELS_AHEAD: u64 = 1_000;

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub struct StateError {
    /// The file.
    pub path: String,
    /// The error of the system, or the defect of the file.
    pub error: String,
}

/// The identity of the monitor.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Identity {
    monitor: u64,
    /// Channel numbers below this may be in use.
    channels: u64,
}

/// A checkpoint: the state of the standing queries, and the messages that agents need not send
/// again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// All results up to this instant are in the sinks.
    pub instant: Nanos,
    /// Rows at or before this instant do not affect results after `instant`.
    pub resume_from: Nanos,
    /// The fragments that the agents run for standing queries.
    pub channels: Vec<SavedChannel>,
    /// The agents.
    pub agents: Vec<SavedAgent>,
    /// Agents that were forgotten, oldest first; empty in files of earlier releases.
    #[serde(default)]
    pub forgotten: Vec<RemovedAgent>,
    /// The standing queries.
    pub queries: Vec<SavedQuery>,
}

/// A fragment that all agents run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedChannel {
    /// Its number.
    pub id: u64,
    /// The fragment as encoded in the protocol, in hexadecimal digits.
    pub fragment: String,
    /// The outcome of its rows in messages that are safe.
    pub account: Account,
    /// As [`super::channels::Channel::complete_from`].
    pub complete_from: Nanos,
    /// As [`super::channels::Channel::given_up`].
    pub given_up: Nanos,
}

/// An agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedAgent {
    /// Its host.
    pub host: String,
    /// The address from which it connected.
    pub address: weir_wire::Peer,
    /// Its version.
    pub version: String,
    /// The number of its process.
    pub instance: u64,
    /// It was connected.
    pub connected: bool,
    /// The number up to which its messages are safe.
    pub safe: u64,
    /// The number up to which messages were processed, and so are in the results up to the instant.
    pub seen: u64,
    /// It was excluded.
    pub excluded: bool,
    /// It had announced its end.
    pub ended: bool,
    /// The hosts behind it, if it is the monitor of a site.
    #[serde(default)]
    pub site: Option<SavedSite>,
    /// The outcome of its rows in messages that are safe.
    pub account: Account,
    /// The channels that it runs.
    pub runs: Vec<SavedRun>,
    /// Messages between `safe` and `seen` with late rows, and the instant up to which they were
    /// late.
    pub late: Vec<(u64, Nanos)>,
    /// Earlier processes, and the outcome of their rows.
    pub past: Vec<(u64, Vec<(u64, Account)>)>,
}

/// A channel at an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedRun {
    /// Its number.
    pub channel: u64,
    /// Its start; `None` if it had not started.
    pub started: Option<Nanos>,
    /// It failed at the agent.
    pub failed: bool,
    /// The outcome of its rows in messages that are safe.
    pub account: Account,
    /// Requests that the agent had reported; 0 in files of earlier releases.
    #[serde(default)]
    pub reported: u64,
    /// For a relation: its changes are discarded after those messages; false in files of earlier
    /// releases.
    #[serde(default)]
    pub discards: bool,
    /// For a relation: its rows after those messages, and their multiplicity.
    pub content: Vec<(Vec<Cell>, i64)>,
}

/// A value of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// NULL.
    Null,
    /// A Boolean.
    Bool(bool),
    /// An integer or time.
    Int(i64),
    /// A float as its bits, since JSON cannot represent all floats.
    Float(u64),
    /// A text.
    Text(String),
}

impl Cell {
    /// Converts a value; `None` for types that only streams have and for values that are too large.
    pub fn of(value: &Value) -> Option<Cell> {
        match value {
            Value::Null => Some(Cell::Null),
            Value::Bool(value) => Some(Cell::Bool(*value)),
            Value::Int(value) => Some(Cell::Int(*value)),
            Value::Float(value) => Some(Cell::Float(value.to_bits())),
            Value::Text(text) => Some(Cell::Text(text.as_str().to_owned())),
            Value::Tally(_) | Value::Bytes(_) => None,
        }
    }

    /// True if all values of a type can be saved.
    pub fn keeps(ty: Type) -> bool {
        !matches!(ty, Type::Tally | Type::Partial)
    }

    /// The value; `None` if there is no room for its text.
    pub fn value(&self) -> Option<Value> {
        match self {
            Cell::Null => Some(Value::Null),
            Cell::Bool(value) => Some(Value::Bool(*value)),
            Cell::Int(value) => Some(Value::Int(*value)),
            Cell::Float(bits) => Some(Value::Float(f64::from_bits(*bits))),
            Cell::Text(text) => Symbol::try_new(text).ok().map(Value::Text),
        }
    }
}

/// A standing query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedQuery {
    /// Its name.
    pub name: String,
    /// The time at which it started.
    pub since: Nanos,
    /// It receives what is later than this instant; 0 in files of earlier releases.
    #[serde(default)]
    pub from: Nanos,
    /// The outcome of its channels' rows when it started.
    pub before: Vec<(u64, Account)>,
    /// The sizes of its files with the results up to the instant.
    pub positions: Vec<Position>,
    /// The number of rows of its results up to the instant; 0 in files of earlier releases.
    #[serde(default)]
    pub rows: u64,
}

/// The written size of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The file.
    pub path: PathBuf,
    /// The number of bytes.
    pub bytes: u64,
}

/// The state directory, with its writer.
pub struct State {
    dir: PathBuf,
    identity: Identity,
    writer: Writer,
    busy: bool,
}

/// The writer of checkpoints.
enum Writer {
    /// A thread, since a disk may be slow.
    Thread {
        jobs: Option<SyncSender<Job>>,
        done: Receiver<Result<(), StateError>>,
        thread: Option<JoinHandle<()>>,
    },
    /// The caller, by [`State::write_waiting`]: the pending checkpoint and its result.
    Caller {
        waiting: Option<Job>,
        done: Option<Result<(), StateError>>,
    },
}

impl Writer {
    fn thread(dir: &Path) -> Writer {
        let (jobs, waiting) = sync_channel::<Job>(1);
        let (results, done) = channel();
        let at = dir.to_owned();
        let thread = thread::spawn(move || {
            for job in waiting {
                if results.send(save(&at, &job)).is_err() {
                    return;
                }
                job.caller.unpark();
            }
        });
        Writer::Thread {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
        }
    }
}

/// A checkpoint to write after these files are on disk.
struct Job {
    checkpoint: Vec<u8>,
    first: Vec<PathBuf>,
    /// Unparked when it is done.
    caller: Thread,
}

impl State {
    /// Opens the directory, which is created if it does not exist, and reads the saved state.
    ///
    /// # Errors
    /// If it cannot be read or written, or is not valid.
    pub fn open(dir: &Path) -> Result<(State, Option<Saved>), StateError> {
        State::open_with(dir, Writer::thread)
    }

    /// As [`State::open`], without a thread: checkpoints are written by [`State::write_waiting`].
    ///
    /// # Errors
    /// As [`State::open`].
    pub fn open_for_caller(dir: &Path) -> Result<(State, Option<Saved>), StateError> {
        State::open_with(dir, |_| Writer::Caller {
            waiting: None,
            done: None,
        })
    }

    fn open_with(
        dir: &Path,
        writer: impl Fn(&Path) -> Writer,
    ) -> Result<(State, Option<Saved>), StateError> {
        private::directory(dir).map_err(|e| failed(dir, e))?;
        let identity = match read::<Identity>(&dir.join(IDENTITY))? {
            Some(identity) => identity,
            None => Identity {
                monitor: u64::from_le_bytes(random::bytes().map_err(|e| failed(dir, e))?),
                channels: 1,
            },
        };
        let saved = saved(dir)?;
        let state = State {
            dir: dir.to_owned(),
            identity,
            writer: writer(dir),
            busy: false,
        };
        Ok((state, saved))
    }

    /// The number by which agents identify the monitor.
    pub fn monitor(&self) -> u64 {
        self.identity.monitor
    }

    /// The first channel number that was never in use.
    pub fn channels(&self) -> u64 {
        self.identity.channels
    }

    /// Reserves the channel numbers below `next`, so that they are never used again.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn reserve(&mut self, next: u64) -> Result<(), StateError> {
        if next <= self.identity.channels && self.dir.join(IDENTITY).exists() {
            return Ok(());
        }
        self.identity.channels = next.saturating_add(CHANNELS_AHEAD);
        let bytes = serde_json::to_vec(&self.identity).expect("numbers are JSON");
        write(&self.dir, IDENTITY, &bytes)
    }

    /// Starts to save a checkpoint, once `first` are on disk; only after [`State::saved`] returned
    /// the result of the previous one. The calling thread is unparked when it is saved.
    pub fn save(&mut self, saved: &Saved, first: Vec<PathBuf>) {
        assert!(!self.busy, "one checkpoint after the other");
        let checkpoint = serde_json::to_vec(saved).expect("numbers and texts are JSON");
        let caller = thread::current();
        let job = Job {
            checkpoint,
            first,
            caller,
        };
        self.busy = match &mut self.writer {
            Writer::Thread { jobs, .. } => jobs.as_ref().expect("it is open").send(job).is_ok(),
            Writer::Caller { waiting, .. } => {
                *waiting = Some(job);
                true
            }
        };
    }

    /// Writes the checkpoint that waits for the caller, if any.
    pub fn write_waiting(&mut self) {
        if let Writer::Caller { waiting, done } = &mut self.writer
            && let Some(job) = waiting.take()
        {
            *done = Some(save(&self.dir, &job));
        }
    }

    /// True while something is being saved.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// The result of saving, once, when it is available; waits for it if `patient`.
    pub fn saved(&mut self, patient: bool) -> Option<Result<(), StateError>> {
        if !self.busy {
            return None;
        }
        if patient {
            self.write_waiting();
        }
        let done = match &mut self.writer {
            Writer::Thread { done, .. } if patient => {
                done.recv().map_err(|_| TryRecvError::Disconnected)
            }
            Writer::Thread { done, .. } => done.try_recv(),
            Writer::Caller { done, .. } => done.take().ok_or(TryRecvError::Empty),
        };
        match done {
            Ok(done) => {
                self.busy = false;
                Some(done)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.busy = false;
                Some(Err(failed(&self.dir, "the thread that writes has ended")))
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Writer::Thread { jobs, thread, .. } = self else {
            return;
        };
        *jobs = None;
        if let Some(thread) = thread.take() {
            // The panic message was printed by the thread.
            let _ = thread.join();
        }
    }
}

/// The checkpoint in a state directory, if it has one.
///
/// # Errors
/// If it cannot be read or is not valid.
pub(super) fn saved(dir: &Path) -> Result<Option<Saved>, StateError> {
    read(&dir.join(CHECKPOINT))
}

fn save(dir: &Path, job: &Job) -> Result<(), StateError> {
    for path in &job.first {
        let file = File::open(path).map_err(|e| failed(path, e))?;
        file.sync_data().map_err(|e| failed(path, e))?;
    }
    write(dir, CHECKPOINT, &job.checkpoint)
}

/// Writes a file atomically: it exists completely or not at all.
pub(super) fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StateError> {
    let path = dir.join(name);
    private::replace(&path, bytes).map_err(|e| failed(&path, e))
}

/// The content of a file; `None` if it does not exist.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| {
            let error = format!("{e}; move the file to start without saved state");
            failed(path, error)
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, error)),
    }
}

fn failed(path: &Path, error: impl ToString) -> StateError {
    StateError {
        path: path.display().to_string(),
        error: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    /// A temporary folder, and the path of a state in it.
    fn directory() -> (TempDir, PathBuf) {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("state");
        (scratch, dir)
    }

    #[test]
    fn what_was_saved_is_there_again() {
        let (_scratch, dir) = directory();
        let (mut state, none) = State::open(&dir).unwrap();
        assert!(none.is_none());
        state.reserve(5).unwrap();
        let monitor = state.monitor();
        let forgotten = RemovedAgent {
            host: "a".into(),
            instance: u64::MAX,
            seen: 3,
            safe: 2,
            account: Account::default(),
            requests_stray: 1,
            started: vec![(4, 5)],
            past: vec![(u64::MAX, vec![(4, Account::default())])],
        };
        let saved = Saved {
            instant: 7,
            forgotten: vec![forgotten],
            ..Saved::default()
        };
        state.save(&saved, Vec::new());
        assert!(state.saved(true).unwrap().is_ok());
        drop(state);
        for path in [dir.clone(), dir.join(IDENTITY), dir.join(CHECKPOINT)] {
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", path.display());
        }
        let (state, again) = State::open(&dir).unwrap();
        assert_eq!(again, Some(saved));
        assert_eq!(state.monitor(), monitor);
        assert!(state.channels() >= 5);
    }

    #[test]
    fn a_torn_file_is_reported_with_its_name() {
        let (_scratch, dir) = directory();
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(CHECKPOINT), b"{\"instant\":").unwrap();
        let error = State::open(&dir).err().unwrap().to_string();
        assert!(
            error.contains("checkpoint.json") && error.contains("start without saved state"),
            "{error}"
        );
    }
}
