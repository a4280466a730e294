//! Restores what killed trials have left, and what `--apply` has set.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use weir_runtime::failure::Failure;
use weir_runtime::lock::Lock;
use weir_runtime::output;
use weir_runtime::private;

use crate::device::TuneDevice;
use crate::queue::journal::Journal;
use crate::queue::{QueueError, QueueRecovery, recover};

/// The journal of a trial that runs or was killed, in the folder of its disk.
const JOURNAL: &str = "journal";

/// The journal of settings that were applied.
const APPLIED: &str = "applied";

/// The file that names the process of a lease.
const LEASE: &str = "lease";

/// The file by which the end of a lease is requested.
const END_REQUEST: &str = "end";

/// The time within which a lease ends that is requested to.
const LEASE_ENDS_WITHIN: Duration = Duration::from_secs(10);

/// What is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreScope {
    /// What killed trials have left.
    Killed,
    /// That, and what was applied.
    All,
}

/// The folder of a disk below the state directory, locked.
#[derive(Debug)]
pub struct DiskFolder {
    path: PathBuf,
    _lock: Lock,
}

/// The restored settings of a disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestoredDisk {
    /// The disk.
    pub disk: String,
    /// What was done; `None` if the disk does not exist any more.
    pub recovery: Option<QueueRecovery>,
}

impl DiskFolder {
    /// Locks the folder of a disk, which is created if necessary.
    ///
    /// # Errors
    /// When it cannot be created, or another process tunes the disk.
    pub fn take(state: &Path, disk: &str) -> Result<DiskFolder, Failure> {
        let path = state.join(disk);
        let failed = |error| Failure::world(format_args!("{}: {error}", path.display()));
        private::directory(&path).map_err(failed)?;
        match Lock::take(&path).map_err(failed)? {
            Some(lock) => Ok(DiskFolder { path, _lock: lock }),
            None => Err(Failure::world(format_args!(
                "another weir tune changes {disk}; wait for its end"
            ))),
        }
    }

    /// The journal of a trial.
    pub fn journal(&self) -> PathBuf {
        self.path.join(JOURNAL)
    }

    /// The file that exists while a process keeps a lease.
    pub fn lease(&self) -> PathBuf {
        self.path.join(LEASE)
    }

    /// The file by which another process requests the end of the lease.
    pub fn end_request(&self) -> PathBuf {
        self.path.join(END_REQUEST)
    }

    /// The journal of applied settings.
    pub fn applied(&self) -> PathBuf {
        self.path.join(APPLIED)
    }
}

/// Restores the disks of a state directory, or only one; those that had anything to restore.
///
/// # Errors
/// When another process tunes a disk, or settings cannot be restored.
pub fn restore(
    state: &Path,
    block: &Path,
    only: Option<&str>,
    scope: RestoreScope,
) -> Result<Vec<RestoredDisk>, Failure> {
    let entries = fs::read_dir(state).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.retain(|name| only.is_none_or(|only| only == name));
    names.sort();
    let mut restored = Vec::new();
    for disk in names {
        let has = |file: &str| state.join(&disk).join(file).exists();
        if !has(JOURNAL) && (scope == RestoreScope::Killed || !has(APPLIED)) {
            continue;
        }
        let folder = match (DiskFolder::take(state, &disk), scope) {
            // A trial of another disk runs at the same time.
            (Err(_), RestoreScope::Killed) => continue,
            (Err(error), RestoreScope::All) => {
                restored.push(end_lease(state, &disk, error)?);
                continue;
            }
            (folder, _) => folder?,
        };
        let mut files = vec![folder.journal()];
        if scope == RestoreScope::All {
            files.push(folder.applied());
        }
        let Ok(device) = TuneDevice::find(block, &disk) else {
            for file in files.iter().filter(|file| file.exists()) {
                Journal::remove(file).map_err(failure)?;
            }
            restored.push(RestoredDisk {
                disk,
                recovery: None,
            });
            continue;
        };
        for file in files {
            if let Some(recovery) = recover(&device.queue(), &file).map_err(failure)? {
                restored.push(RestoredDisk {
                    disk: disk.clone(),
                    recovery: Some(recovery),
                });
            }
        }
    }
    Ok(restored)
}

/// Has the process end that keeps a lease of the disk; `error` without a lease.
fn end_lease(state: &Path, disk: &str, error: Failure) -> Result<RestoredDisk, Failure> {
    let folder = state.join(disk);
    let Ok(holder) = fs::read_to_string(folder.join(LEASE)) else {
        return Err(error);
    };
    let request = folder.join(END_REQUEST);
    private::replace(&request, b"")
        .map_err(|error| Failure::world(format_args!("{}: {error}", request.display())))?;
    let until = Instant::now() + LEASE_ENDS_WITHIN;
    while folder.join(JOURNAL).exists() {
        if Instant::now() > until {
            return Err(Failure::world(format_args!(
                "process {} keeps a lease of {disk} and does not end; end it with SIGTERM",
                holder.trim()
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    output::notice(format_args!(
        "weir: {disk}: process {} has ended its lease",
        holder.trim()
    ));
    Ok(RestoredDisk {
        disk: disk.to_owned(),
        recovery: Some(QueueRecovery::default()),
    })
}

/// Prints what was restored on standard error; true if another program had changed settings.
pub fn report(disk: &str, recovery: &QueueRecovery) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "absent".to_owned());
    for setting in &recovery.restored {
        let (from, name) = (text(&setting.from), &setting.setting);
        output::notice(format_args!(
            "weir: {disk}: {name} restored from {from} to {}",
            setting.to
        ));
    }
    report_foreign(disk, recovery)
}

/// Prints the settings that another program has changed; true if there are any.
pub fn report_foreign(disk: &str, recovery: &QueueRecovery) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "absent".to_owned());
    for change in &recovery.foreign {
        let (expected, found) = (text(&change.expected), text(&change.found));
        output::notice(format_args!(
            "weir: {disk}: {} changed by another program, from {expected} to {found}; it is left",
            change.setting
        ));
    }
    !recovery.foreign.is_empty()
}

/// A failure to change or restore settings.
pub fn failure(error: QueueError) -> Failure {
    let is_left = matches!(
        error,
        QueueError::NotRestored(_) | QueueError::Journal { .. }
    );
    let remedy = match is_left {
        true => "; `weir tune --restore` tries again",
        false => "",
    };
    Failure::world(format_args!("{error}{remedy}"))
}

#[cfg(test)]
mod tests {
    use weir_testing::Scratch;

    use super::*;
    use crate::queue::{QueueSession, QueueState};

    #[test]
    fn killed_and_applied_settings_are_restored_and_removed_disks_reported() {
        let (block, state) = (Scratch::new(), Scratch::new());
        block.write("sda/queue/scheduler", "[none]\n");
        block.write("sda/queue/read_ahead_kb", "128\n");
        block.write("sda/mq/0/cpu_list", "0\n");
        let value = || block.read("sda/queue/read_ahead_kb").trim().to_owned();
        let device = TuneDevice::find(block.path(), "sda").unwrap();
        let change = |value: &str| QueueState::from([("read_ahead_kb".into(), value.into())]);
        let folder = DiskFolder::take(state.path(), "sda").unwrap();
        let mut session = QueueSession::begin(device.queue(), &folder.journal()).unwrap();
        session.set(&change("256")).unwrap();
        session.keep(&folder.applied()).unwrap();
        let mut session = QueueSession::begin(device.queue(), &folder.journal()).unwrap();
        session.set(&change("512")).unwrap();
        drop(session);
        let all = |scope| restore(state.path(), block.path(), None, scope);
        // The trial may still run.
        assert_eq!(all(RestoreScope::Killed).unwrap(), []);
        assert!(all(RestoreScope::All).is_err());
        drop(folder);
        assert_eq!(all(RestoreScope::Killed).unwrap().len(), 1);
        assert_eq!(value(), "256");
        assert_eq!(all(RestoreScope::Killed).unwrap(), []);
        assert_eq!(all(RestoreScope::All).unwrap().len(), 1);
        assert_eq!(value(), "128");
        assert_eq!(all(RestoreScope::All).unwrap(), []);
        state.write("sdb/journal", "");
        let gone = RestoredDisk {
            disk: "sdb".to_owned(),
            recovery: None,
        };
        assert_eq!(all(RestoreScope::All).unwrap(), [gone]);
        assert_eq!(all(RestoreScope::All).unwrap(), []);
    }
}
