//! [`LeaderDirectory`]: the files by which the monitors of a state directory agree on a leader
//! (decision 0033).
//!
//! `leader/7` is the claim of term 7, and never removed before a hundred later ones. A monitor
//! claims a term by giving a complete file that name, with link(2): of several monitors one
//! succeeds. The same file is `renewal` in the holder's staging directory `leader/h-..`, whose
//! removal takes the right to write away from the holder (`weir_runtime::private::fence`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use weir_runtime::lock::Lock;
use weir_runtime::private;
use weir_wire::random;

use super::record::{LeaderRecord, LeaseState};

/// The directory, below the state directory.
const DIRECTORY: &str = "leader";

/// The file that the holder of a term renews, in its staging directory.
const RENEWAL: &str = "renewal";

/// The number of earlier claims that remain: a monitor that was stopped while it claimed a term
/// finds it in use.
const CLAIMS_KEPT: u64 = 100;

/// How often the removal of a staging directory is tried whose holder adds files meanwhile.
const REMOVALS_MAX: usize = 1_000;

/// The directory.
#[derive(Debug)]
pub struct LeaderDirectory {
    path: PathBuf,
}

/// A claimed term.
#[derive(Debug)]
pub struct Claim {
    record: LeaderRecord,
    staging: PathBuf,
    /// Where the second line of the record begins.
    offset: u64,
    renewals: u64,
    /// Held while the process runs.
    _lock: Option<Lock>,
}

impl LeaderDirectory {
    /// Opens the directory below `state`, which is created if it does not exist.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn open(state: &Path) -> io::Result<LeaderDirectory> {
        let path = state.join(DIRECTORY);
        private::directory(&path)?;
        Ok(LeaderDirectory { path })
    }

    /// The path of the claim of `term`.
    pub fn claim_path(&self, term: u64) -> PathBuf {
        self.path.join(term.to_string())
    }

    /// The terms that were claimed, in order.
    fn terms(&self) -> io::Result<Vec<u64>> {
        let mut terms = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            terms.extend(name.to_str().and_then(|name| name.parse::<u64>().ok()));
        }
        terms.sort_unstable();
        Ok(terms)
    }

    /// The newest term and the content of its file, if there is one.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn newest(&self) -> io::Result<Option<(u64, Vec<u8>)>> {
        let Some(term) = self.terms()?.pop() else {
            return Ok(None);
        };
        Ok(Some((term, fs::read(self.claim_path(term))?)))
    }

    /// True if the process that claimed a term on this kernel, and locked its file, has ended.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn is_unlocked(&self, term: u64) -> io::Result<bool> {
        let file = OpenOptions::new().write(true).open(self.claim_path(term))?;
        Ok(Lock::of(file)?.is_some())
    }

    /// Claims `record.term`, and takes the right to write away from all other monitors; `None` if
    /// another one was faster. Without locks in the file system the record is not locked.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn claim(&self, record: LeaderRecord) -> io::Result<Option<Claim>> {
        let random = u64::from_le_bytes(random::bytes()?);
        let name = format!("h-{random:016x}");
        let staging = self.path.join(&name);
        private::directory(&staging)?;
        let claimed = self.claim_in(
            LeaderRecord {
                staging: name,
                ..record
            },
            &staging,
        );
        if !matches!(claimed, Ok(Some(_))) {
            remove_staging(&staging)?;
        }
        claimed
    }

    fn claim_in(&self, record: LeaderRecord, staging: &Path) -> io::Result<Option<Claim>> {
        let renewal = staging.join(RENEWAL);
        let mut options = File::options();
        let file = private::open(options.create_new(true).write(true), &renewal);
        let Some(mut file) = if_there(file)? else {
            return Ok(None);
        };
        let lock = Lock::of(file.try_clone()?).ok().flatten();
        let record = LeaderRecord {
            locked: lock.is_some(),
            ..record
        };
        let line = record.line();
        file.write_all(line.as_bytes())?;
        file.write_all(LeaseState::Leading(0).line(0).as_bytes())?;
        file.sync_all()?;
        let claim = self.claim_path(record.term);
        match fs::hard_link(&renewal, &claim) {
            Ok(()) => private::sync_folder(&claim)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            Err(error) if is_removed(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        let others = self.staging_directories()?;
        // A monitor that was stopped for long may have claimed a number whose file was removed.
        if self.terms()?.last() != Some(&record.term) {
            return Ok(None);
        }
        // From here on no other monitor can write.
        for other in others.iter().filter(|other| *other != staging) {
            remove_staging(other)?;
        }
        for term in self.terms()? {
            if term.saturating_add(CLAIMS_KEPT) < record.term {
                if_there(fs::remove_file(self.claim_path(term)))?;
            }
        }
        // A later claim has removed it in the meantime.
        if !renewal.try_exists()? {
            return Ok(None);
        }
        Ok(Some(Claim {
            record,
            staging: staging.to_owned(),
            offset: line.len() as u64,
            renewals: 0,
            _lock: lock,
        }))
    }

    fn staging_directories(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let is_staging = entry.file_name().as_encoded_bytes().starts_with(b"h-");
            found.extend(is_staging.then(|| entry.path()));
        }
        Ok(found)
    }
}

impl Claim {
    /// The record of the claim.
    pub fn record(&self) -> &LeaderRecord {
        &self.record
    }

    /// The directory for files that are prepared.
    pub fn staging(&self) -> &Path {
        &self.staging
    }

    /// Renews the lease; false if another monitor has claimed a later term.
    ///
    /// # Errors
    /// Those of the system calls; it is unknown then whether other monitors see the renewal.
    pub fn renew(&mut self) -> io::Result<bool> {
        self.renewals += 1;
        self.write(LeaseState::Leading(self.renewals))
    }

    /// Gives the term back: another monitor may claim the next one at once.
    ///
    /// # Errors
    /// As [`Claim::renew`].
    pub fn release(mut self) -> io::Result<()> {
        self.write(LeaseState::Released)?;
        remove_staging(&self.staging)
    }

    fn write(&mut self, state: LeaseState) -> io::Result<bool> {
        // Opened by its name each time: the file itself still exists after it was removed here.
        let file = OpenOptions::new()
            .write(true)
            .open(self.staging.join(RENEWAL));
        let Some(file) = if_there(file)? else {
            return Ok(false);
        };
        file.write_all_at(state.line(self.renewals).as_bytes(), self.offset)?;
        if self.record.expires {
            // A file system of another host reports a failed write here at the latest.
            file.sync_data()?;
        }
        Ok(true)
    }
}

/// `None` if the file or its directory was removed, also on another host (ESTALE).
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_removed(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_removed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle
    )
}

/// Removes a staging directory, while its holder may add files to it.
fn remove_staging(path: &Path) -> io::Result<()> {
    for _ in 0..REMOVALS_MAX {
        let Some(entries) = if_there(fs::read_dir(path))? else {
            return Ok(());
        };
        for entry in entries {
            if_there(fs::remove_file(entry?.path()))?;
        }
        match fs::remove_dir(path) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
            removed => return if_there(removed).map(drop),
        }
    }
    Err(io::Error::other(format!(
        "{}: another process keeps adding files",
        path.display()
    )))
}
