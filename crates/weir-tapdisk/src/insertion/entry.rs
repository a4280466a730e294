//! [`Entry`]: the folder of an inserted tap with its sockets, its log and a record of the exchange.

use super::InsertionError;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::insertion::exchange::InsertionPlan;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use weir_tap::vdisk::guard::started;

/// Below `/run`, or the session's own folder.
const FOLDER: &str = "weir-tapdisk";

/// The file with the record.
const RECORD: &str = "record.json";

/// Maximum number of folders that are examined.
const FOLDERS_MAX: usize = 4096;

/// Maximum number of characters of a VM's or a disk's name in the name of a folder: a socket's path
/// has at most 107 bytes.
const NAME_CHARS_MAX: usize = 24;

/// Mode of the folder: QEMU may run as another user, and must reach the tap's socket.
const PASS_THROUGH: u32 = 0o711;

/// The folder of a tap below one disk of one VM, locked against other processes that would change
/// it.
#[derive(Debug)]
pub struct Entry {
    folder: PathBuf,
    _lock: File,
    is_cleared: bool,
}

/// The exchanged nodes, and the process that serves the disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The VM.
    pub vm: String,
    /// The disk.
    pub vdisk: String,
    /// QEMU's process.
    pub qemu: Process,
    /// The exchange.
    pub plan: InsertionPlan,
    /// Arguments of the tap, for a restart.
    pub arguments: Vec<String>,
    /// The tap, once it runs.
    pub tap: Option<Process>,
}

/// A process, distinguished from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its start time, in clock ticks of the kernel.
    pub started: u64,
}

impl Process {
    /// The current process with this number.
    pub fn of(pid: u32) -> Option<Process> {
        let started = started(pid)?;
        Some(Process { pid, started })
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

impl Entry {
    /// The entry of a VM's disk, created if it does not exist.
    ///
    /// # Errors
    /// When the folder cannot be created, or another weir has locked it.
    pub fn lock(vm: &str, vdisk: &str) -> Result<Entry, InsertionError> {
        Entry::lock_below(&run_folder()?, vm, vdisk)
    }

    fn lock_below(base: &Path, vm: &str, vdisk: &str) -> Result<Entry, InsertionError> {
        let folder = base.join(folder_name(vm, vdisk));
        create_folder(&folder)?;
        match Entry::lock_folder(folder)? {
            Some(entry) => Ok(entry),
            None => Err(InsertionError::failed(format_args!(
                "{vdisk} of VM {vm}: another weir is inserting or removing a tap; retry when it \
                 has ended"
            ))),
        }
    }

    /// The entry in an existing folder; `None` if another process has locked it or is removing it.
    fn lock_folder(folder: PathBuf) -> Result<Option<Entry>, InsertionError> {
        check(&folder)?;
        let path = folder.join("lock");
        let failed = |error: io::Error| io_failure(&path, &error);
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(failed)?;
        let is_ours = match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            // The process that had locked it may have removed the folder.
            Ok(()) => fs::metadata(&path)
                .is_ok_and(|now| lock.metadata().is_ok_and(|l| l.ino() == now.ino())),
            Err(rustix::io::Errno::WOULDBLOCK) => false,
            Err(error) => return Err(failed(error.into())),
        };
        // Created only with the lock: an entry that is dropped removes its folder.
        Ok(is_ours.then(|| Entry {
            folder,
            _lock: lock,
            is_cleared: false,
        }))
    }

    /// The tap's control socket, to which QEMU connects as well.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("nbd")
    }

    /// The tap's log.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn path(&self) -> PathBuf {
        self.folder.join(RECORD)
    }

    /// The last record.
    ///
    /// # Errors
    /// When it cannot be read, or is of another version.
    pub fn record(&self) -> Result<Option<Record>, InsertionError> {
        let path = self.path();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_failure(&path, &error)),
        };
        serde_json::from_str(&text).map(Some).map_err(|error| {
            InsertionError::failed(format_args!(
                "{}: {error}; it was written by another version of weir of weir: remove the tap with \
                 that version",
                path.display()
            ))
        })
    }

    /// Writes the record atomically.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, record: &Record) -> Result<(), InsertionError> {
        let path = self.path();
        let beside = path.with_extension("new");
        let text = serde_json::to_string(record).expect("a record has texts and numbers");
        let written = fs::write(&beside, text + "\n").and_then(|()| fs::rename(&beside, &path));
        written.map_err(|error| io_failure(&path, &error))
    }

    /// Removes the folder, including the files of a killed process.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn clear(mut self) -> Result<(), InsertionError> {
        self.is_cleared = true;
        fs::remove_dir_all(&self.folder).map_err(|error| io_failure(&self.folder, &error))
    }
}

impl Drop for Entry {
    /// Without an exchange the folder is not needed.
    fn drop(&mut self) {
        let is_empty = fs::exists(self.path()).is_ok_and(|exists| !exists);
        if !self.is_cleared && is_empty {
            // A folder that cannot be removed is found by the next process.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Removes the folder of a tap that ends with its VM: `folder`, as it was passed to the process
/// `tap`, which calls this at its end. A folder that cannot be removed here is removed by
/// [`remove_stale_folders`].
pub fn remove_folder(folder: &Path, tap: u32) {
    if let Ok(Some(entry)) = Entry::lock_folder(folder.to_owned()) {
        let is_own = |record: Record| record.tap.is_some_and(|process| process.pid == tap);
        if entry.record().ok().flatten().is_some_and(is_own) {
            // A later command may have the missing permissions.
            let _ = entry.clear();
        }
    }
}

/// Removes the folders of taps that have ended with their VMs: a tap that was killed, or lacks
/// permissions, leaves its own. Folders in use by another process, or of another version, are kept.
pub fn remove_stale_folders() {
    let folders = base().ok().and_then(|base| fs::read_dir(base).ok());
    let folders = folders.into_iter().flatten().flatten();
    for folder in folders.take(FOLDERS_MAX) {
        let path = folder.path();
        if !path.join(RECORD).exists() {
            continue;
        }
        let Ok(Some(entry)) = Entry::lock_folder(path) else {
            continue;
        };
        let is_over = |record: Record| {
            !record.qemu.is_alive() && !record.tap.is_some_and(|tap| tap.is_alive())
        };
        if entry.record().ok().flatten().is_some_and(is_over) {
            // An error here must not fail the command.
            let _ = entry.clear();
        }
    }
}

/// The default folder for sockets, created if it does not exist.
///
/// # Errors
/// When it cannot be created.
pub fn run_folder() -> Result<PathBuf, InsertionError> {
    let base = base()?;
    create_folder(&base)?;
    Ok(base)
}

/// `/run` for root; for others the folder of their session.
fn base() -> Result<PathBuf, InsertionError> {
    if rustix::process::geteuid().is_root() {
        return Ok(Path::new("/run").join(FOLDER));
    }
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let session = session.filter(|path| path.is_absolute());
    session.map(|path| path.join(FOLDER)).ok_or_else(|| {
        InsertionError::failed(
            "no default directory for a tap's socket: run as root, or set XDG_RUNTIME_DIR",
        )
    })
}

/// Creates a folder that others can pass through but not change, or uses an existing one.
fn create_folder(folder: &Path) -> Result<(), InsertionError> {
    let made = DirBuilder::new().mode(PASS_THROUGH).create(folder);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io_failure(folder, &error));
        }
        _ => {}
    }
    check(folder)
}

/// Checks that no other user can change the folder.
fn check(folder: &Path) -> Result<(), InsertionError> {
    let meta = fs::symlink_metadata(folder).map_err(|error| io_failure(folder, &error))?;
    let own = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    match own && meta.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(InsertionError::failed(format_args!(
            "{}: other users own it or can write it; remove it, and it is created again",
            folder.display()
        ))),
    }
}

fn io_failure(path: &Path, error: &io::Error) -> InsertionError {
    InsertionError::failed(format_args!("{}: {error}", path.display()))
}

/// `web.vda` for `/dev/vda` of `web`; where characters are removed, a number distinguishes the
/// names.
fn folder_name(vm: &str, vdisk: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let plain = |text: &str| -> String {
        text.chars()
            .filter(|c| fits(*c))
            .take(NAME_CHARS_MAX)
            .collect()
    };
    let disk = vdisk.strip_prefix("/dev/").unwrap_or(vdisk);
    let name = format!("{}.{}", plain(vm), plain(disk));
    match name == format!("{vm}.{disk}") {
        true => name,
        false => format!("{name}.{:08x}", fnv(&format!("{vm}\0{disk}"))),
    }
}

/// FNV-1a, 32 bits: the same in every version of weir.
fn fnv(text: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_disk_s_and_no_other_s() {
        assert_eq!(folder_name("web", "/dev/vda"), "web.vda");
        let names = [
            ("web", "/dev/vdb"),
            ("we/b", "/dev/vdb"),
            ("web.vdb", ""),
            ("../web", "/dev/vdb"),
            ("wéb", "/dev/vdb"),
            (&"w".repeat(200), "/dev/vdb"),
            (&"w".repeat(201), "/dev/vdb"),
        ]
        .map(|(vm, disk)| folder_name(vm, disk));
        for (at, name) in names.iter().enumerate() {
            assert!(
                name.len() < 64 && !name.contains('/') && !name.starts_with('.'),
                "{name}"
            );
            assert!(!names[..at].contains(name), "{name} twice");
        }
    }

    #[test]
    fn an_entry_is_locked_and_what_is_written_is_read() {
        let scratch = tempfile::tempdir().unwrap();
        let base = scratch.path().join("entries");
        create_folder(&base).unwrap();
        let entry = Entry::lock_below(&base, "web", "/dev/vda").unwrap();
        assert_eq!(fs::metadata(&entry.folder).unwrap().mode() & 0o777, 0o711);
        let busy = Entry::lock_below(&base, "web", "/dev/vda").unwrap_err();
        assert!(
            busy.to_string().contains("another weir"),
            "{}",
            busy.to_string()
        );
        let other = Entry::lock_below(&base, "web", "/dev/vdb").unwrap();
        let beside = other.folder.clone();
        drop(other);
        assert!(!beside.exists(), "nothing was written down there");
        assert!(entry.record().unwrap().is_none());
        fs::write(entry.path(), "{}").unwrap();
        assert!(
            entry
                .record()
                .unwrap_err()
                .to_string()
                .contains("another version")
        );
        let folder = entry.folder.clone();
        entry.clear().unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn a_process_is_not_a_later_one_of_its_number() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        let earlier = Process {
            started: own.started - 1,
            ..own
        };
        assert!(!earlier.is_alive());
    }
}
