//! [`LeaseStore`]: the leases of a host, a file each, and the log of all that was done.
//!
//! A file is replaced as a whole (written beside it, fsync, rename, fsync of the directory), so
//! that it is complete at every instant. It is written before the knob is.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_runtime::lock::Lock;
use weir_runtime::private;
use weir_tap::journal;

use crate::lease::{Lease, LeaseStage};
use crate::{ActError, file};

/// The file of the log, which sources of CQL read as it grows, and a copy of the one before.
const LOG: &str = journal::ACTIONS_FILE;
const LOG_BEFORE: &str = "log.1.jsonl";

/// The size at which the log is replaced.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// The longest wait for another process that uses the directory.
const LOCK_MAX: Duration = Duration::from_secs(10);

/// The ending of the files of leases.
const LEASE: &str = "lease.json";

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct LeaseStore {
    directory: PathBuf,
}

impl LeaseStore {
    /// The store in `directory`, which is created with an empty log: queries can read it from now
    /// on.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn open(directory: &Path) -> Result<LeaseStore, ActError> {
        private::directory(directory).map_err(file(directory))?;
        let log = directory.join(LOG);
        if !log.exists() {
            let mut options = OpenOptions::new();
            let created = private::open(options.append(true).create(true), &log);
            created.map_err(file(&log))?;
        }
        Ok(LeaseStore {
            directory: directory.to_owned(),
        })
    }

    /// Excludes other processes until the lock is dropped.
    ///
    /// # Errors
    /// When another process keeps it.
    pub fn lock(&self) -> Result<Lock, ActError> {
        let end = Instant::now() + LOCK_MAX;
        loop {
            if let Some(lock) = Lock::take(&self.directory).map_err(file(&self.directory))? {
                return Ok(lock);
            }
            if Instant::now() >= end {
                let name = self.directory.display();
                let why = format!("{name}: another weir uses the leases; try again");
                return Err(ActError::Refused(why));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stores a lease and appends its stage to the log. It is on disk on return.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&self, lease: &Lease) -> Result<(), ActError> {
        let path = self.path(&lease.id);
        let text = serde_json::to_vec(lease).map_err(io::Error::from);
        let stored = text.and_then(|text| private::replace(&path, &text));
        stored.map_err(file(&path))?;
        self.append(lease)
    }

    /// The leases, also those that have ended and were not removed yet, in the order of their ids.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged.
    pub fn all(&self) -> Result<Vec<Lease>, ActError> {
        let entries = fs::read_dir(&self.directory).map_err(file(&self.directory))?;
        let mut leases = Vec::new();
        for entry in entries {
            let path = entry.map_err(file(&self.directory))?.path();
            let is_lease = path.to_str().is_some_and(|path| path.ends_with(LEASE));
            if is_lease {
                let text = fs::read(&path).map_err(file(&path))?;
                let lease: Lease = serde_json::from_slice(&text)
                    .map_err(|e| file(&path)(io::Error::new(io::ErrorKind::InvalidData, e)))?;
                leases.push(lease);
            }
        }
        leases.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(leases)
    }

    /// The leases that have not ended.
    ///
    /// # Errors
    /// As [`LeaseStore::all`].
    pub fn active(&self) -> Result<Vec<Lease>, ActError> {
        let mut leases = self.all()?;
        leases.retain(|lease| !matches!(lease.stage, LeaseStage::Ended { .. }));
        Ok(leases)
    }

    /// The lease with this id, if it has not been removed.
    ///
    /// # Errors
    /// As [`LeaseStore::all`].
    pub fn get(&self, id: &str) -> Result<Option<Lease>, ActError> {
        Ok(self.all()?.into_iter().find(|lease| lease.id == id))
    }

    /// Removes the file of a lease that has ended; the log keeps it.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, id: &str) -> Result<(), ActError> {
        let path = self.path(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(file(&path)),
        }
    }

    /// The log, oldest first. Lines that are damaged, or restate what is present, are left out.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn log(&self) -> Result<Vec<Value>, ActError> {
        let mut lines = Vec::new();
        for name in [LOG_BEFORE, LOG] {
            let path = self.directory.join(name);
            match fs::read_to_string(&path) {
                Ok(text) => lines.extend(text.lines().filter_map(|l| serde_json::from_str(l).ok())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(file(&path)(error)),
            }
        }
        lines.retain(|line: &Value| line.get("stage").is_some() && line.get("snapshot").is_none());
        Ok(lines)
    }

    fn append(&self, lease: &Lease) -> Result<(), ActError> {
        self.record(&lease.event())
    }

    /// Appends an event to the log. A log that is full is copied and emptied in place, since
    /// readers keep it open; it then begins with the leases that have not ended.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record(&self, event: &Value) -> Result<(), ActError> {
        let path = self.directory.join(LOG);
        let mut lines = format!("{event}\n");
        let is_full = fs::metadata(&path).is_ok_and(|file| file.len() >= LOG_BYTES_MAX);
        if is_full {
            let mut present = format!("{}\n", json!({"reset": true}));
            for lease in self.active()? {
                let mut event = lease.event();
                event["snapshot"] = json!(true);
                present += &format!("{event}\n");
            }
            lines.insert_str(0, &present);
        }
        let write = || -> io::Result<()> {
            if is_full {
                fs::copy(&path, self.directory.join(LOG_BEFORE))?;
            }
            let mut options = OpenOptions::new();
            options.append(true).create(true);
            let mut file = private::open(&mut options, &path)?;
            if is_full {
                file.set_len(0)?;
            }
            file.write_all(lines.as_bytes())?;
            file.sync_data()
        };
        write().map_err(file(&path))
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.{LEASE}"))
    }
}
