//! The privileges that a process which monitors live I/O drops once everything is open, before it
//! starts the threads that process external input: capabilities, the identity of root, files,
//! programs ([`drop_privileges`]).
//!
//! Capabilities, user ids and Landlock's rules are per thread, and a new thread inherits them from
//! the one that starts it. Threads that exist before the drop drop theirs first
//! ([`spawn_reduced`]). Other users' processes are read and QEMUs are queried by the inspection
//! process ([`crate::inspection`]), which keeps the privileges for that
//! ([`keep_what_asking_takes`]).
#![allow(unsafe_code)]

use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::{TapError, landlock, seccomp};

/// `_LINUX_CAPABILITY_VERSION_3` of include/uapi/linux/capability.h: 64 bits in two parts.
const VERSION_3: u32 = 0x2008_0522;

/// The maximum number of capabilities.
const CAPABILITIES_MAX: u32 = 63;

/// The overflow user and group id, used if the kernel does not report them.
const OVERFLOW_ID: u32 = 65534;

const CAP_SYS_ADMIN: u32 = 21;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Part {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The file operations that the process still performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// It writes to open files and reads some that every user may read.
    Open,
    /// The same, and it connects to receivers by TCP.
    OpenAndConnect,
    /// It creates and replaces files by name.
    Named,
}

/// Permanently drops, in the calling thread and all threads that it starts later: every capability;
/// without [`Files::Named`] also root's user id, whose files need no capability, and all changes of
/// files (Landlock, if the kernel has it); and the right to run programs. All threads of the
/// process get no_new_privs and lose the system calls that access other processes or the kernel
/// (seccomp).
///
/// The files that the tap reads later, `/proc/diskstats`, `/sys/block` and `/sys/fs/cgroup`, are
/// readable for every user. Without the right to change the user id, it is kept.
///
/// # Errors
/// If the kernel refuses, which would leave the process with rights that it should drop.
pub fn drop_privileges(files: Files) -> Result<(), TapError> {
    reduce_thread(files)?;
    seccomp::deny_all_threads().map_err(|e| refused("system calls", &e))?;
    seccomp::deny_programs().map_err(|e| refused("running programs", &e))
}

/// As [`drop_privileges`], but for the calling thread only: for a thread that exists before that,
/// or in a process that keeps its rights. System calls are not restricted.
///
/// # Errors
/// If the kernel refuses.
pub fn reduce_thread(files: Files) -> Result<(), TapError> {
    forbid_gains()?;
    drop_bounding(&[]);
    if files != Files::Named {
        landlock::restrict(files == Files::OpenAndConnect)
            .map_err(|e| refused("changes of files", &e))?;
        leave_root().map_err(|e| refused("root's user id", &e))?;
    }
    keep_only(&[], Programs::HaveNone)
}

/// Starts a thread without rights, before those of the process are dropped. On return the thread
/// has dropped them: afterwards the caller may drop the right to change the user id from all
/// threads.
///
/// # Errors
/// If the system cannot create a thread.
pub fn spawn_reduced<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let (reduced, ready) = mpsc::channel::<()>();
    let thread = thread::Builder::new().name(name.into()).spawn(move || {
        // Dropping fails only if there are no rights to drop.
        let _ = reduce_thread(Files::Open);
        drop(reduced);
        run()
    })?;
    // Nothing is sent: the channel is closed.
    let _ = ready.recv();
    Ok(thread)
}

/// The capabilities to inspect other users' processes and files, and to access their QEMUs' sockets
/// in the file systems that those see.
const ASKING: &[u32] = &[
    1,  // CAP_DAC_OVERRIDE
    2,  // CAP_DAC_READ_SEARCH
    19, // CAP_SYS_PTRACE
];

/// The capabilities to open further taps, except the identification of processes and monitors.
const OPENING: &[u32] = &[
    1,  // CAP_DAC_OVERRIDE
    2,  // CAP_DAC_READ_SEARCH
    19, // CAP_SYS_PTRACE
    24, // CAP_SYS_RESOURCE: locked memory, before 5.11
    38, // CAP_PERFMON
    39, // CAP_BPF
];

/// Permanently drops every capability of the calling thread that is not needed to open taps later,
/// and, for all threads of the process, the system calls that access other processes or the kernel.
/// Threads that it starts have the same rights.
///
/// # Errors
/// If the kernel refuses.
pub fn keep_what_opening_takes() -> Result<(), TapError> {
    keep_for_later(OPENING)
}

/// As [`keep_what_opening_takes`], for a process that also starts further inventories, each of
/// which reads the tables of the device mapper once. That requires CAP_SYS_ADMIN.
///
/// # Errors
/// If the kernel refuses.
pub fn keep_what_collecting_takes() -> Result<(), TapError> {
    keep_for_later(&[OPENING, &[CAP_SYS_ADMIN]].concat())
}

fn keep_for_later(kept: &[u32]) -> Result<(), TapError> {
    forbid_gains()?;
    drop_bounding(kept);
    keep_only(kept, Programs::HaveAmbient)?;
    seccomp::deny_all_threads().map_err(|e| refused("system calls", &e))
}

/// Prepares a process that keeps rights to identify processes and monitors, before it starts
/// threads: none of them gains rights by running a program or accesses other processes or the
/// kernel.
///
/// # Errors
/// If the kernel refuses.
pub fn begin_inspection() -> Result<(), TapError> {
    forbid_gains()?;
    seccomp::deny_all_threads().map_err(|e| refused("system calls", &e))
}

/// Drops the rights that are not needed by threads that identify processes and monitors, such as
/// those of the inspection process.
///
/// # Errors
/// As [`keep_only`].
pub fn keep_what_asking_takes() -> Result<(), TapError> {
    drop_bounding(ASKING);
    keep_only(ASKING, Programs::HaveNone)
}

/// Prevents that this thread and those that it starts gain rights by running a program.
fn forbid_gains() -> Result<(), TapError> {
    control(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(|e| refused("no_new_privs", &e))
}

/// Removes all but `kept` from what the thread and its programs could ever gain. Without
/// CAP_SETPCAP the bounding set is unchanged; no_new_privs has the same effect.
fn drop_bounding(kept: &[u32]) {
    for capability in (0..=CAPABILITIES_MAX).filter(|c| !kept.contains(c)) {
        if control(libc::PR_CAPBSET_DROP, capability.into()).is_err() {
            break;
        }
    }
}

/// Changes the user of the calling thread, not of the process, from root to the overflow user. The
/// system calls are used directly: the C library changes the ids of all threads.
fn leave_root() -> io::Result<()> {
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(());
    }
    let (user, group) = (overflow_id("uid"), overflow_id("gid"));
    // SAFETY: these calls take numbers only; the list of groups is empty and not read.
    let done = unsafe {
        libc::syscall(libc::SYS_setgroups, 0, 0) == 0
            && libc::syscall(libc::SYS_setresgid, group, group, group) == 0
            && libc::syscall(libc::SYS_setresuid, user, user, user) == 0
    };
    match done {
        true => Ok(()),
        false => match io::Error::last_os_error() {
            // A service manager may have removed the right to change it, and a user namespace may
            // not have such a user.
            error if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) => Ok(()),
            error => Err(error),
        },
    }
}

fn overflow_id(kind: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/proc/sys/kernel/overflow{kind}"));
    let id = text.ok().and_then(|text| text.trim().parse().ok());
    id.unwrap_or(OVERFLOW_ID)
}

/// The capabilities of programs that a thread starts, of those that it keeps, if its user is not
/// root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Programs {
    /// None.
    HaveNone,
    /// Those of the ambient set, as a service manager granted them: inspection processes that are
    /// started later need them.
    HaveAmbient,
}

/// Permanently drops every capability of the calling thread that is not among `kept`. Capabilities
/// that it does not have are not added.
///
/// # Errors
/// If the kernel refuses.
fn keep_only(kept: &[u32], programs: Programs) -> Result<(), TapError> {
    if programs == Programs::HaveNone {
        let ambient = libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong;
        control(libc::PR_CAP_AMBIENT, ambient).map_err(|e| refused("the ambient set", &e))?;
    }
    let mut sets = [Part::default(); 2];
    if !kept.is_empty() {
        sets = permitted()?;
    }
    for (word, part) in sets.iter_mut().enumerate() {
        let within = kept.iter().filter(|c| **c as usize / 32 == word);
        let mask = within.fold(0u32, |all, c| all | 1 << (c % 32));
        part.permitted &= mask;
        // Capabilities of the binary's file are not in effect (`crate::elevation`).
        part.effective &= mask;
        // The kernel removes from the ambient set what is not inheritable.
        part.inheritable &= match programs {
            Programs::HaveNone => 0,
            Programs::HaveAmbient => mask,
        };
    }
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    // SAFETY: both structures have the layout of version 3 and outlive the call, which only reads
    // them.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    if done != 0 {
        return Err(refused("its capabilities", &io::Error::last_os_error()));
    }
    Ok(())
}

/// The permitted capabilities of the calling thread.
fn permitted() -> Result<[Part; 2], TapError> {
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let mut sets = [Part::default(); 2];
    // SAFETY: both structures have the layout of version 3 and outlive the call, which fills in the
    // second.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) };
    if done != 0 {
        return Err(refused("its capabilities", &io::Error::last_os_error()));
    }
    Ok(sets)
}

fn control(option: i32, argument: libc::c_ulong) -> io::Result<()> {
    let zero: libc::c_ulong = 0;
    // SAFETY: these options take numbers only.
    let done = unsafe { libc::prctl(option, argument, zero, zero, zero) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn refused(what: &str, error: &io::Error) -> TapError {
    TapError::Unavailable {
        what: format!("cannot drop {what}: {error}"),
        remedy: "start with fewer privileges: CAP_BPF and CAP_PERFMON suffice".into(),
    }
}
