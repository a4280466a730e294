//! The lock on an image: while we write it, nobody else does.
//!
//! Files are locked as QEMU locks them (QEMU, `block/file-posix.c`, `raw_apply_lock_bytes` and
//! `raw_check_lock_bytes`), so a QEMU, a qemu-img, a qemu-nbd and another tap all keep out of each
//! other's way. Of each permission *i* there are two bytes in the file: who has the permission holds
//! a shared lock on byte 100 + *i*, who does not bear others to have it holds a shared lock on byte
//! 200 + *i*. The locks are of the open file description (`F_OFD_SETLK`, fcntl(2)). Who wants in sets
//! its own first and looks for others' then, so of two that come at once at most one gets in.
//!
//! Such a lock ends with the last use of the description, and a request that the kernel has not
//! finished is a use. So when a tap was killed, the next one gets in once the last write of the
//! first is through: what it writes then cannot be overtaken by what was written before. The
//! same holds for `O_EXCL` on a block device, which the kernel itself keeps.
#![allow(unsafe_code)] // fcntl(2) with locks of descriptions is in no crate that we use.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::disk::DiskError;

/// A permission to use an image, by its number in QEMU (`include/block/block-common.h`, `BLK_PERM_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permission {
    /// To read, and to find what one wrote.
    ConsistentRead = 0,
    Write = 1,
    /// To write what is there already.
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

    /// The byte that who has it holds.
    fn held_byte(self) -> i64 {
        100 + self as i64
    }

    /// The byte that who does not bear it holds.
    fn refused_byte(self) -> i64 {
        200 + self as i64
    }
}

/// What we do with an image.
fn held(read_only: bool) -> &'static [Permission] {
    use Permission::*;
    match read_only {
        true => &[ConsistentRead],
        false => &[ConsistentRead, Write, WriteUnchanged, Resize],
    }
}

/// What nobody else may do with it: reading is free, as it is beside a VM in QEMU.
const REFUSED: &[Permission] = &[Permission::Write, Permission::Resize];

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Locks a file, and waits for it at most `wait`.
///
/// # Errors
/// [`DiskError::InUse`] when others have it, and what the file system says when it knows no locks.
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
        // While we wait nobody is to wait for us.
        release(file).map_err(|error| no_locks(path, error))?;
        if Instant::now() >= until {
            return Err(in_use(path, conflict));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Puts our locks on a further description of a file that [`acquire`] has locked.
pub(crate) fn join(file: BorrowedFd, read_only: bool) -> io::Result<()> {
    let held = held(read_only).iter().map(|p| p.held_byte());
    let refused = REFUSED.iter().map(|p| p.refused_byte());
    held.chain(refused)
        .try_for_each(|byte| set(file, byte, 1, libc::F_RDLCK))
}

/// What an image that others have is refused with.
pub(crate) fn in_use(path: &Path, conflict: String) -> DiskError {
    DiskError::InUse {
        path: path.to_owned(),
        conflict,
        holders: holders(path),
    }
}

fn no_locks(path: &Path, error: io::Error) -> DiskError {
    DiskError::Unfit {
        path: path.to_owned(),
        reason: format!("cannot be locked: {error}"),
        remedy: "see to it that nobody else writes it, and switch the lock off".to_owned(),
    }
}

/// The first thing that others do or do not bear.
fn conflict(file: BorrowedFd, read_only: bool) -> io::Result<Option<String>> {
    for permission in held(read_only) {
        if is_locked(file, permission.refused_byte())? {
            let what = permission.what();
            return Ok(Some(format!("another program lets nobody else {what} it")));
        }
    }
    for permission in REFUSED {
        if is_locked(file, permission.held_byte())? {
            let what = permission.what();
            return Ok(Some(format!("another program has it open to {what} it")));
        }
    }
    Ok(None)
}

fn release(file: BorrowedFd) -> io::Result<()> {
    set(
        file,
        Permission::ConsistentRead.held_byte(),
        4,
        libc::F_UNLCK,
    )?;
    set(
        file,
        Permission::ConsistentRead.refused_byte(),
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
        // fcntl(2) asks for it in locks of descriptions.
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

/// Whether another description holds a byte.
fn is_locked(file: BorrowedFd, byte: i64) -> io::Result<bool> {
    let mut lock = flock(byte, 1, libc::F_WRLCK);
    // SAFETY: the descriptor is open while it is borrowed, and `lock` outlives the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Processes named in a message.
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

/// Whether a device is refused because somebody has it for himself: open(2), `O_EXCL`.
pub(crate) fn is_claimed(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// Opens a device for us alone, and waits for it at most `wait`.
pub(crate) fn claim(wait: Duration, open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    let until = Instant::now() + wait;
    loop {
        match open() {
            Err(error) if is_claimed(&error) && Instant::now() < until => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}
