//! The lock on an image: while this process writes it, no other does.
//!
//! Files are locked as by QEMU (QEMU, `block/file-posix.c`, `raw_apply_lock_bytes` and
//! `raw_check_lock_bytes`), so a QEMU, a qemu-img, a qemu-nbd and another tap exclude each other.
//! For each permission *i* there are two bytes in the file: a process with the permission holds a
//! shared lock on byte 100 + *i*, a process that denies it to others holds a shared lock on byte
//! 200 + *i*. The locks belong to the open file description (`F_OFD_SETLK`, fcntl(2)). A process
//! first sets its own locks and then looks for those of others, so of two that start at once at
//! most one succeeds.
//!
//! Such a lock ends with the last use of the description, and a request that the kernel has not
//! finished is a use. So after a tap was killed, the next one acquires the lock once the last write
//! of the first has finished: its own writes cannot be overwritten by earlier ones. The same holds
//! for `O_EXCL` on a block device, which the kernel itself keeps.
#![allow(unsafe_code)] // fcntl(2) with locks of descriptions is in no crate that we use.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::disk::DiskError;

/// A permission to use an image, by its number in QEMU (`include/block/block-common.h`,
/// `BLK_PERM_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permission {
    /// To read, and to read back what was written.
    ConsistentRead = 0,
    Write = 1,
    /// To write data that are there already.
    WriteUnchanged = 2,
    Resize = 3,
}

impl Permission {
    fn what(self) -> &'static str {
        match self {
            Permission::ConsistentRead => "read",
            Permission::Write => "write",
            Permission::WriteUnchanged => "rewrite",
            Permission::Resize => "resize",
        }
    }

    /// The byte that is locked by a holder of the permission.
    fn shared_byte(self) -> i64 {
        100 + self as i64
    }

    /// The byte that is locked to deny others the permission.
    fn denied_byte(self) -> i64 {
        200 + self as i64
    }
}

/// The permissions that a disk uses.
fn held(read_only: bool) -> &'static [Permission] {
    use Permission::*;
    match read_only {
        true => &[ConsistentRead],
        false => &[ConsistentRead, Write, WriteUnchanged, Resize],
    }
}

/// The permissions that are denied to others: reading is allowed, as it is beside a VM in QEMU.
const DENIED: &[Permission] = &[Permission::Write, Permission::Resize];

/// The time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Locks a file, waiting at most `wait`.
///
/// # Errors
/// [`DiskError::InUse`] when others have it, and the error of a file system without locks.
pub(crate) fn acquire(
    file: BorrowedFd,
    path: &Path,
    read_only: bool,
    wait: Duration,
) -> Result<(), DiskError> {
    let until = Instant::now() + wait;
    loop {
        join(file, read_only).map_err(|error| no_locks(path, error))?;
        let conflict = conflict(file, read_only).map_err(|error| no_locks(path, error))?;
        let Some(conflict) = conflict else {
            return Ok(());
        };
        // While this process waits, no other should wait for it.
        release(file).map_err(|error| no_locks(path, error))?;
        if Instant::now() >= until {
            return Err(in_use(path, conflict));
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

/// Adds the locks to a further description of a file that [`acquire`] has locked.
pub(crate) fn join(file: BorrowedFd, read_only: bool) -> io::Result<()> {
    let held = held(read_only).iter().map(|p| p.shared_byte());
    let denied = DENIED.iter().map(|p| p.denied_byte());
    held.chain(denied)
        .try_for_each(|byte| set(file, byte, 1, libc::F_RDLCK))
}

/// The error of an image that others have.
pub(crate) fn in_use(path: &Path, conflict: String) -> DiskError {
    DiskError::InUse {
        path: path.to_owned(),
        conflict,
        holders: holders(path),
    }
}

fn no_locks(path: &Path, error: io::Error) -> DiskError {
    DiskError::Unsuitable {
        path: path.to_owned(),
        reason: format!("cannot be locked: {error}"),
        remedy: "ensure that no other program writes it, and disable the lock".to_owned(),
    }
}

/// The first conflict with the locks of others.
fn conflict(file: BorrowedFd, read_only: bool) -> io::Result<Option<String>> {
    for permission in held(read_only) {
        if is_locked(file, permission.denied_byte())? {
            let what = permission.what();
            return Ok(Some(format!(
                "another program does not allow others to {what} it"
            )));
        }
    }
    for permission in DENIED {
        if is_locked(file, permission.shared_byte())? {
            let what = permission.what();
            return Ok(Some(format!("another program has it open to {what} it")));
        }
    }
    Ok(None)
}

fn release(file: BorrowedFd) -> io::Result<()> {
    set(
        file,
        Permission::ConsistentRead.shared_byte(),
        4,
        libc::F_UNLCK,
    )?;
    set(
        file,
        Permission::ConsistentRead.denied_byte(),
        4,
        libc::F_UNLCK,
    )
}

fn flock(byte: i64, bytes: i64, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: bytes,
        // fcntl(2) requires it for locks of descriptions.
        l_pid: 0,
    }
}

fn set(file: BorrowedFd, byte: i64, bytes: i64, kind: libc::c_int) -> io::Result<()> {
    let lock = flock(byte, bytes, kind);
    // SAFETY: the descriptor is open while it is borrowed, and `lock` outlives the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    (done == 0)
        .then_some(())
        .ok_or_else(io::Error::last_os_error)
}

/// Whether another description holds a lock on a byte.
fn is_locked(file: BorrowedFd, byte: i64) -> io::Result<bool> {
    let mut lock = flock(byte, 1, libc::F_WRLCK);
    // SAFETY: the descriptor is open while it is borrowed, and `lock` outlives the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Maximum number of processes in a message.
const HOLDERS_MAX: usize = 4;

/// The processes that have an image open: ` (qemu-system-x86, pid 17; weir, pid 21)`.
fn holders(path: &Path) -> String {
    let Ok(image) = path.canonicalize() else {
        return String::new();
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    let others = numbers.filter(|pid| *pid != std::process::id() && has_open(*pid, &image));
    let named = others.take(HOLDERS_MAX).map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{}, pid {pid}", name.trim())
    });
    let named = named.collect::<Vec<_>>().join("; ");
    match named.is_empty() {
        true => String::new(),
        false => format!(" ({named})"),
    }
}

fn has_open(pid: u32, image: &Path) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd"));
    let mut files = files.into_iter().flatten().flatten();
    files.any(|file| fs::read_link(file.path()).is_ok_and(|target| target == image))
}

/// Whether a device is rejected because another process has it exclusively: open(2), `O_EXCL`.
pub(crate) fn is_claimed(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// Opens a device exclusively, waiting at most `wait`.
pub(crate) fn claim(wait: Duration, open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    let until = Instant::now() + wait;
    loop {
        match open() {
            Err(error) if is_claimed(&error) && Instant::now() < until => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            result => return result,
        }
    }
}
