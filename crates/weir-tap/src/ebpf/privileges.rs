//! [`drop_privileges`]: once attached, the tap needs no right at all: its tables are mapped and its
//! programs held.
#![allow(unsafe_code)]

use std::io;

use crate::TapError;

/// `_LINUX_CAPABILITY_VERSION_3` of include/uapi/linux/capability.h: 64 bits in two parts.
const VERSION_3: u32 = 0x2008_0522;

/// Capabilities that there may ever be.
const CAPABILITIES_MAX: libc::c_ulong = 63;

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

/// Gives up every capability of the calling thread, for good, and forbids it and its children to
/// gain any by running a program.
///
/// A thread started before keeps what it has, so this is called after attaching and before starting
/// threads. Files that only root may open have to be open already, unless root owns them: the user
/// id does not change. What the tap reads later, `/proc/diskstats`, `/sys/block` and
/// `/sys/fs/cgroup`, everybody may read.
///
/// # Errors
/// When the kernel refuses, which would leave the process with rights that it was to give up.
pub fn drop_privileges() -> Result<(), TapError> {
    control(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(|e| refused("no_new_privs", &e))?;
    // Without CAP_SETPCAP the bounding set stays; nothing can be gained from it any more.
    for capability in 0..=CAPABILITIES_MAX {
        if control(libc::PR_CAPBSET_DROP, capability).is_err() {
            break;
        }
    }
    keep_only(&[])
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
/// and forbids it and its children to gain any by running a program. Threads that it starts have
/// what it has.
///
/// # Errors
/// When the kernel refuses.
pub fn keep_what_opening_takes() -> Result<(), TapError> {
    control(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(|e| refused("no_new_privs", &e))?;
    keep_only(OPENING)
}

/// Gives up what a thread does not need that asks processes and monitors who they are: that goes on
/// when the rest of the process has given up all its rights.
///
/// # Errors
/// As [`keep_only`].
pub fn keep_what_asking_takes() -> Result<(), TapError> {
    keep_only(ASKING)
}

/// Gives up every capability of the calling thread that is not among `kept`, for good. One that it
/// does not have it does not get.
///
/// # Errors
/// When the kernel refuses.
fn keep_only(kept: &[u32]) -> Result<(), TapError> {
    let ambient = libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong;
    control(libc::PR_CAP_AMBIENT, ambient).map_err(|e| refused("the ambient set", &e))?;
    let mut sets = [Part::default(); 2];
    if !kept.is_empty() {
        sets = permitted()?;
    }
    for (word, part) in sets.iter_mut().enumerate() {
        let within = kept.iter().filter(|c| **c as usize / 32 == word);
        let mask = within.fold(0u32, |all, c| all | 1 << (c % 32));
        part.permitted &= mask;
        part.effective = part.permitted;
        part.inheritable = 0;
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
