//! Landlock (Linux 5.13 and newer): the calling thread and those that it starts can no longer
//! change or execute files, connect by TCP or listen at further ports. Open files remain usable.
//!
//! Structures and numbers are those of include/uapi/linux/landlock.h.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// `LANDLOCK_CREATE_RULESET_VERSION`.
const VERSION: libc::c_ulong = 1;

/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: libc::c_ulong = 1;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
/// All rights to create, remove and rename: `REMOVE_DIR` to `MAKE_SYM`.
const CHANGE_DIR: u64 = 0x1ff0;
/// `REFER`, since version 2: link or move between directories.
const REFER: u64 = 1 << 13;
/// Since version 3.
const TRUNCATE: u64 = 1 << 14;
/// Since version 4.
const BIND_TCP: u64 = 1;
/// Since version 4.
const CONNECT_TCP: u64 = 1 << 1;

/// Devices that are opened for writing by name: a screen opens its terminal.
const WRITABLE: &[&str] = &["/dev/tty", "/dev/null"];

/// `struct landlock_ruleset_attr`, as of version 4.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
}

/// `struct landlock_path_beneath_attr`, which is packed.
#[repr(C, packed)]
struct Beneath {
    allowed: u64,
    parent: i32,
}

/// Applies the restrictions; with `may_connect` except that of connections. The thread must have
/// no_new_privs.
///
/// # Errors
/// If the kernel refuses. A kernel without Landlock is not an error.
pub fn restrict(may_connect: bool) -> io::Result<()> {
    // SAFETY: without a structure the call only returns a number.
    let version = unsafe {
        let none = std::ptr::null::<Ruleset>();
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, VERSION)
    };
    if version < 1 {
        return Ok(());
    }
    let since = |first, rights| if version >= first { rights } else { 0 };
    let writing = WRITE_FILE | since(3, TRUNCATE);
    let ruleset = Ruleset {
        files: EXECUTE | CHANGE_DIR | since(2, REFER) | writing,
        network: since(4, BIND_TCP | if may_connect { 0 } else { CONNECT_TCP }),
    };
    let bytes = if version >= 4 { 16usize } else { 8 };
    // SAFETY: the structure outlives the call, which reads the first `bytes` bytes of it.
    let made = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const ruleset,
            bytes,
            0,
        )
    };
    let made = i32::try_from(checked(made)?).expect("descriptors are small");
    // SAFETY: the kernel has just created the descriptor, and this is its only owner.
    let rules = unsafe { OwnedFd::from_raw_fd(made) };
    for path in WRITABLE {
        allow(&rules, path, writing)?;
    }
    // SAFETY: the descriptor is open.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) };
    checked(done).map(drop)
}

/// Allows `rights` for a file, if it exists.
fn allow(rules: &OwnedFd, path: &str, rights: u64) -> io::Result<()> {
    let mut options = File::options();
    let options = options
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC);
    let Ok(file) = options.open(path) else {
        return Ok(());
    };
    let rule = Beneath {
        allowed: rights,
        parent: file.as_raw_fd(),
    };
    // SAFETY: both descriptors are open, and the structure outlives the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            rules.as_raw_fd(),
            PATH_BENEATH,
            &raw const rule,
            0,
        )
    };
    checked(done).map(drop)
}

fn checked(done: libc::c_long) -> io::Result<libc::c_long> {
    match done {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use weir_testing::skipped;

    use super::*;

    #[test]
    fn open_files_stay_writable_and_others_are_only_read() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        fs::write(&path, "before").unwrap();
        let own = path.clone();
        let restricted = std::thread::spawn(move || {
            let mut open = File::options().append(true).open(&own).unwrap();
            // SAFETY: the option takes numbers only.
            let alone = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            assert_eq!(alone, 0);
            restrict(false).unwrap();
            open.write_all(b" and after").unwrap();
            assert_eq!(fs::read_to_string(&own).unwrap(), "before and after");
            File::options().write(true).open("/dev/null").unwrap();
            let refused = [
                fs::write(&own, "other").is_err(),
                fs::remove_file(&own).is_err(),
                std::process::Command::new("/bin/true").status().is_err(),
                std::net::TcpStream::connect("127.0.0.1:9")
                    .is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied),
            ];
            refused.to_vec()
        });
        let refused = restricted.join().unwrap();
        // SAFETY: without a structure the call only returns a number.
        let version = unsafe {
            let none = std::ptr::null::<Ruleset>();
            libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, VERSION)
        };
        match version {
            4.. => assert_eq!(refused, [true; 4]),
            1..=3 => assert_eq!(refused[..3], [true; 3]),
            _ => skipped("open_files_stay_writable", "no Landlock here"),
        }
    }
}
