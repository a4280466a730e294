//! What a process that watches live I/O gives up once everything is open, before it starts the
//! threads that handle what others write: capabilities, the identity of root, files, programs
//! ([`drop_privileges`]).
//!
//! Capabilities, user ids and Landlock's rules belong to a thread, and a new thread inherits them
//! from the one that starts it. Threads that exist before the drop give theirs up first
//! ([`spawn_reduced`]). Other users' processes are read and QEMUs are asked by the inspection process
//! ([`crate::inspection`]), which keeps what that takes ([`keep_what_asking_takes`]).
#![allow(unsafe_code)]

use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use crate::{TapError, landlock, seccomp};

/// `_LINUX_CAPABILITY_VERSION_3` of include/uapi/linux/capability.h: 64 bits in two parts.
const VERSION_3: u32 = 0x2008_0522;

/// Capabilities that there may ever be.
const CAPABILITIES_MAX: u32 = 63;

/// The user and the group that own nothing, where the kernel does not name them.
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

/// What the process still does with files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// It writes to those that are open and reads some that every user may read.
    Open,
    /// It makes and replaces files by name.
    Named,
}

/// Gives up, for good, in the calling thread and all threads that it starts from here on: every
/// capability; with [`Files::Open`] also root's user id, whose files need no capability, and all
/// changes of files (Landlock, where the kernel has it); and the right to run programs. All threads
/// of the process get no_new_privs and lose the system calls that reach into other processes or the
/// kernel (seccomp).
///
/// What the tap reads later, `/proc/diskstats`, `/sys/block` and `/sys/fs/cgroup`, every user may
/// read. Without the right to change the user id it stays.
///
/// # Errors
/// When the kernel refuses, which would leave the process with rights that it was to give up.
pub fn drop_privileges(files: Files) -> Result<(), TapError> {
    reduce_thread(files)?;
    seccomp::deny_all_threads().map_err(|e| refused("system calls", &e))?;
    seccomp::deny_programs().map_err(|e| refused("running programs", &e))
}

/// As [`drop_privileges`], but for no other thread: for one that exists before that, or in a process
/// that keeps its rights. System calls stay as they are.
///
/// # Errors
/// When the kernel refuses.
pub fn reduce_thread(files: Files) -> Result<(), TapError> {
    forbid_gains()?;
    drop_bounding(&[]);
    if files == Files::Open {
        landlock::restrict().map_err(|e| refused("changes of files", &e))?;
        leave_root().map_err(|e| refused("root's user id", &e))?;
    }
    keep_only(&[], Programs::HaveNone)
}

/// Starts a thread without rights, before those of the process are dropped. On return the thread has
/// given them up: afterwards the caller may take the right to change the user id from all threads.
///
/// # Errors
/// When the system refuses a thread.
pub fn spawn_reduced<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let (reduced, ready) = mpsc::channel::<()>();
    let thread = thread::Builder::new().name(name.into()).spawn(move || {
        // Without the right to give up rights, there are none to give up.
        let _ = reduce_thread(Files::Open);
        drop(reduced);
        run()
    })?;
    // Nothing is ever sent: the channel closes.
    let _ = ready.recv();
    Ok(thread)
}

/// What it takes to look at other users' processes and files, and to reach their QEMUs' sockets in
/// whatever file system those see.
const ASKING: &[u32] = &[
    1,  // CAP_DAC_OVERRIDE
    2,  // CAP_DAC_READ_SEARCH
    19, // CAP_SYS_PTRACE
];

/// What it takes to open further taps, beside asking processes and monitors who they are.
const OPENING: &[u32] = &[
    1,  // CAP_DAC_OVERRIDE
    2,  // CAP_DAC_READ_SEARCH
    19, // CAP_SYS_PTRACE
    24, // CAP_SYS_RESOURCE: locked memory, before 5.11
    38, // CAP_PERFMON
    39, // CAP_BPF
];

/// Gives up every capability of the calling thread that opening taps later does not take, for good,
/// and for all threads of the process the system calls that reach into other processes or the
/// kernel. Threads that it starts have what it has.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_what_opening_takes() -> Result<(), TapError> {
    keep_for_later(OPENING)
}

/// As [`keep_what_opening_takes`], of a process that also starts further inventories, each of which
/// reads the tables of the device mapper once. That takes CAP_SYS_ADMIN.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_what_collecting_takes() -> Result<(), TapError> {
    keep_for_later(&[OPENING, &[CAP_SYS_ADMIN]].concat())
}

fn keep_for_later(kept: &[u32]) -> Result<(), TapError> {
    forbid_gains()?;
    drop_bounding(kept);
    keep_only(kept, Programs::HaveAmbient)?;
    seccomp::deny_all_threads().map_err(|e| refused("system calls", &e))
}

/// Begins a process that keeps rights to ask processes and monitors who they are, before it starts
/// threads: none of them gains rights by a program or reaches into other processes or the kernel.
///
/// # Errors
/// When the kernel refuses.
pub fn begin_inspection() -> Result<(), TapError> {
    forbid_gains()?;
    seccomp::deny_all_threads().map_err(|e| refused("system calls", &e))
}

/// Gives up what a thread does not need that asks processes and monitors who they are, as those of
/// the inspection process do.
///
/// # Errors
/// As [`keep_only`].
pub fn keep_what_asking_takes() -> Result<(), TapError> {
    drop_bounding(ASKING);
    keep_only(ASKING, Programs::HaveNone)
}

/// Neither this thread nor what it starts gains rights by running a program.
fn forbid_gains() -> Result<(), TapError> {
    control(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(|e| refused("no_new_privs", &e))
}

/// Takes all but `kept` out of what the thread and its programs could ever gain. Without CAP_SETPCAP
/// the bounding set stays; no_new_privs has the same effect.
fn drop_bounding(kept: &[u32]) {
    for capability in (0..=CAPABILITIES_MAX).filter(|c| !kept.contains(c)) {
        if control(libc::PR_CAPBSET_DROP, capability.into()).is_err() {
            break;
        }
    }
}

/// Makes the calling thread, not the process, a user who owns nothing, if it is root. The system
/// calls are used directly: the C library changes the ids of all threads.
fn leave_root() -> io::Result<()> {
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(());
    }
    let (user, group) = (overflow_id("uid"), overflow_id("gid"));
    // SAFETY: these calls take numbers only; of no groups none are read.
    let done = unsafe {
        libc::syscall(libc::SYS_setgroups, 0, 0) == 0
            && libc::syscall(libc::SYS_setresgid, group, group, group) == 0
            && libc::syscall(libc::SYS_setresuid, user, user, user) == 0
    };
    match done {
        true => Ok(()),
        false => match io::Error::last_os_error() {
            // A service manager may have taken the right to change it, and a user namespace may
            // have no such user.
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

/// What programs that a thread starts have of the capabilities that it keeps, where its user is not
/// root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Programs {
    /// None.
    HaveNone,
    /// Those of the ambient set, as a service manager gave them: inspection processes that are started
    /// later need them.
    HaveAmbient,
}

/// Gives up every capability of the calling thread that is not among `kept`, for good. One that it
/// does not have it does not get.
///
/// # Errors
/// When the kernel refuses.
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
        // The kernel takes out of the ambient set what is not inheritable.
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

/// What the calling thread may do.
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
        what: format!("cannot give up {what}: {error}"),
        remedy: "run with fewer rights from the beginning: CAP_BPF and CAP_PERFMON suffice".into(),
    }
}
