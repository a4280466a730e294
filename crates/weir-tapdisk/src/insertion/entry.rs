//! [`Entry`]: the folder in which a tap that was inserted has its sockets, its log and a record of what
//! was exchanged.

use super::InsertionError;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::insertion::exchange::Plan;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use weir_tap::vdisk::guard::started;

/// Below `/run`, or the session's own folder.
const FOLDER: &str = "weir-tapdisk";

/// What was exchanged, in a folder.
const RECORD: &str = "record.json";

/// Folders that are examined at a time.
const FOLDERS_MAX: usize = 4096;

/// Letters of a VM's or a disk's name that are kept in the name of a folder: a socket's path has at most
/// 107 bytes.
const NAME_CHARS_MAX: usize = 24;

/// Who may pass through: QEMU may run as another user, and has to reach the tap's socket.
const PASS_THROUGH: u32 = 0o711;

/// Where a tap under one disk of one VM lives, locked against everybody else who would change it.
#[derive(Debug)]
pub struct Entry {
    folder: PathBuf,
    _lock: File,
    is_cleared: bool,
}

/// What was exchanged, and who serves it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The VM.
    pub vm: String,
    /// The disk.
    pub vdisk: String,
    /// QEMU's process.
    pub qemu: Process,
    /// What was exchanged for what.
    pub plan: Plan,
    /// Arguments of the tap, so that it can be started again.
    pub arguments: Vec<String>,
    /// The tap, once it runs.
    pub tap: Option<Process>,
}

/// A process, as opposed to a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it was started, in ticks of the kernel's.
    pub started: u64,
}

impl Process {
    /// The process that has this number now.
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
    /// That of a VM's disk, made if it is not there.
    ///
    /// # Errors
    /// When there is no place for it, or another weir has it.
    pub fn lock(vm: &str, vdisk: &str) -> Result<Entry, InsertionError> {
        Entry::lock_below(&run_folder()?, vm, vdisk)
    }

    fn lock_below(base: &Path, vm: &str, vdisk: &str) -> Result<Entry, InsertionError> {
        let folder = base.join(folder_name(vm, vdisk));
        make(&folder)?;
        match Entry::lock_folder(folder)? {
            Some(entry) => Ok(entry),
            None => Err(InsertionError::failed(format_args!(
                "{vdisk} of VM {vm}: another weir is inserting or removing a tap there; wait for it, then try again"
            ))),
        }
    }

    /// That in a folder which is there already; `None` if another process has locked it or is
    /// removing it.
    fn lock_folder(folder: PathBuf) -> Result<Option<Entry>, InsertionError> {
        check(&folder)?;
        let path = folder.join("lock");
        let failed = |error: io::Error| cannot(&path, &error);
        let mut options = File::options();
        let lock = options.create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(failed)?;
        let is_ours = match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            // The process that had it may have removed the folder.
            Ok(()) => fs::metadata(&path)
                .is_ok_and(|now| lock.metadata().is_ok_and(|l| l.ino() == now.ino())),
            Err(rustix::io::Errno::WOULDBLOCK) => false,
            Err(error) => return Err(failed(error.into())),
        };
        // Built only if it is ours: an entry that is dropped removes its folder.
        Ok(is_ours.then(|| Entry {
            folder,
            _lock: lock,
            is_cleared: false,
        }))
    }

    /// Where QEMU connects, and by which the tap is asked.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("nbd")
    }

    /// What the tap says.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn path(&self) -> PathBuf {
        self.folder.join(RECORD)
    }

    /// What was written down last.
    ///
    /// # Errors
    /// When it cannot be read, or is of another version.
    pub fn record(&self) -> Result<Option<Record>, InsertionError> {
        let path = self.path();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot(&path, &error)),
        };
        serde_json::from_str(&text).map(Some).map_err(|error| {
            InsertionError::failed(format_args!(
                "{}: {error}; it is of another version of weir: remove the tap with that one",
                path.display()
            ))
        })
    }

    /// Writes it down, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, record: &Record) -> Result<(), InsertionError> {
        let path = self.path();
        let beside = path.with_extension("new");
        let text = serde_json::to_string(record).expect("a record has texts and numbers");
        let written = fs::write(&beside, text + "\n").and_then(|()| fs::rename(&beside, &path));
        written.map_err(|error| cannot(&path, &error))
    }

    /// Takes everything away; what a process left that was killed too.
    ///
    /// # Errors
    /// When it cannot be taken away.
    pub fn clear(mut self) -> Result<(), InsertionError> {
        self.is_cleared = true;
        fs::remove_dir_all(&self.folder).map_err(|error| cannot(&self.folder, &error))
    }
}

impl Drop for Entry {
    /// Where nothing was exchanged nothing is left.
    fn drop(&mut self) {
        let is_empty = fs::exists(self.path()).is_ok_and(|exists| !exists);
        if !self.is_cleared && is_empty {
            // What cannot be taken away is found by the next.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Removes the folder of a tap that ends with its VM: `folder`, as it was passed to the process
/// `tap`, which calls this at its end. What cannot be removed here is removed by [`sweep`].
pub fn leave(folder: &Path, tap: u32) {
    if let Ok(Some(entry)) = Entry::lock_folder(folder.to_owned()) {
        let is_own = |record: Record| record.tap.is_some_and(|process| process.pid == tap);
        if entry.record().ok().flatten().is_some_and(is_own) {
            // Where rights are missing, a later command has them.
            let _ = entry.clear();
        }
    }
}

/// Removes the folders of taps that have ended, as have their VMs: a tap that was killed, or has
/// not the rights, leaves its own behind. What another process uses, or another version has
/// written, is left alone.
pub fn sweep() {
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
            // It is no failure of what the command is for.
            let _ = entry.clear();
        }
    }
}

/// The folder for sockets that have no path given, made if it is not there.
///
/// # Errors
/// When there is no place for it.
pub fn run_folder() -> Result<PathBuf, InsertionError> {
    let base = base()?;
    make(&base)?;
    Ok(base)
}

/// For root `/run`; for others what their session gives them.
fn base() -> Result<PathBuf, InsertionError> {
    if rustix::process::geteuid().is_root() {
        return Ok(Path::new("/run").join(FOLDER));
    }
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let session = session.filter(|path| path.is_absolute());
    session.map(|path| path.join(FOLDER)).ok_or_else(|| {
        InsertionError::failed(
            "there is no place for a tap's socket: run as root, or set XDG_RUNTIME_DIR",
        )
    })
}

/// Makes a folder that others may pass through but not change, or finds it made.
fn make(folder: &Path) -> Result<(), InsertionError> {
    let made = DirBuilder::new().mode(PASS_THROUGH).create(folder);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(cannot(folder, &error));
        }
        _ => {}
    }
    check(folder)
}

/// Checks that no other user can change what is in a folder.
fn check(folder: &Path) -> Result<(), InsertionError> {
    let meta = fs::symlink_metadata(folder).map_err(|error| cannot(folder, &error))?;
    let own = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    match own && meta.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(InsertionError::failed(format_args!(
            "{}: others have a part in it; remove it, and it is made anew",
            folder.display()
        ))),
    }
}

fn cannot(path: &Path, error: &io::Error) -> InsertionError {
    InsertionError::failed(format_args!("{}: {error}", path.display()))
}

/// `web.vda` for `/dev/vda` of `web`; where letters have to go, a number tells names apart.
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
        let base = std::env::temp_dir().join(format!("weir-entry-{}", std::process::id()));
        make(&base).unwrap();
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
        fs::remove_dir_all(&base).unwrap();
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
