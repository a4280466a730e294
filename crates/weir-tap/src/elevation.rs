//! Capabilities of the binary's file (setcap(8)): rights that the user who runs weir does not have.
//!
//! Every user who may execute a file gets its capabilities. weir acts for such a user with that
//! user's own rights: [`begin`] clears the effective set first, and only two places raise what they
//! need: the loading of programs and the inventory's thread. Images, traces, output files and QMP
//! sockets are opened without capabilities.

#![allow(unsafe_code)]

use std::env;
use std::fs;
use std::marker::PhantomData;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::getxattr;
use rustix::process::{getegid, geteuid, getgid, getuid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::TapError;

/// Capabilities to load and attach programs.
pub const LOADING: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_RESOURCE);

/// Capabilities to read the processes of other users.
pub const READING: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);

/// True if the capabilities are those of the file.
static ELEVATED: AtomicBool = AtomicBool::new(false);

/// Name of the extended attribute with a file's capabilities (capabilities(7)).
const ATTRIBUTE: &str = "security.capability";

/// Mode bit: every user may execute the file.
const OTHERS_EXECUTE: u32 = 0o001;

/// Clears the effective set if the capabilities are those of the binary's file. Must be called
/// first, before any other thread exists.
///
/// # Errors
/// If the binary is set-user-ID or set-group-ID, or the kernel refuses.
pub fn begin() -> Result<(), TapError> {
    // SAFETY: the call has no preconditions; it reads the auxiliary vector.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // A security module sets AT_SECURE as well, for services that root starts.
    if !secure || getuid().is_root() {
        return Ok(());
    }
    if getuid() != geteuid() || getgid() != getegid() {
        return Err(TapError::Unavailable {
            what: "the weir binary is set-user-ID or set-group-ID".into(),
            remedy: "remove these bits with chmod u-s,g-s; `weir doctor` shows how to grant access to users".into(),
        });
    }
    ELEVATED.store(true, Ordering::Relaxed);
    change(|sets| {
        sets.effective = CapabilitySet::empty();
        sets.inheritable = CapabilitySet::empty();
    })
}

/// Permanently drops the capabilities of the binary's file, in the calling thread and in threads
/// that it starts later.
///
/// # Errors
/// If the kernel refuses.
pub fn give_up() -> Result<(), TapError> {
    match is_elevated() {
        true => change(|sets| {
            *sets = CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            };
        }),
        false => Ok(()),
    }
}

/// Whether the capabilities of this process are those of the binary's file.
pub fn is_elevated() -> bool {
    ELEVATED.load(Ordering::Relaxed)
}

/// Capabilities raised in the calling thread until this value is dropped.
#[derive(Debug)]
#[must_use]
pub struct Raised {
    /// The effective set before the raise.
    before: CapabilitySet,
    /// Capabilities are per thread, so this type is not `Send`.
    thread: PhantomData<*const ()>,
}

/// Raises, in the calling thread, those of `set` that the binary's file has.
pub fn raise(set: CapabilitySet) -> Raised {
    let mut before = CapabilitySet::empty();
    if is_elevated() {
        // A refusal is reported later, by the operation that lacks the capability.
        let _ = change(|sets| {
            before = sets.effective;
            sets.effective |= sets.permitted & set;
        });
    }
    Raised {
        before,
        thread: PhantomData,
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if is_elevated() {
            // Lowering is always allowed (capset(2)).
            let _ = change(|sets| sets.effective = sets.permitted & self.before);
        }
    }
}

fn change(of: impl FnOnce(&mut CapabilitySets)) -> Result<(), TapError> {
    let refused = |error: rustix::io::Errno| TapError::Unavailable {
        what: format!("the capabilities of the binary's file cannot be dropped: {error}"),
        remedy: "remove them: setcap -r".into(),
    };
    let mut sets = capabilities(None).map_err(refused)?;
    of(&mut sets);
    set_capabilities(None, sets).map_err(refused)
}

/// Instructions for granting `capabilities`, as `cap_bpf,cap_perfmon`, to selected users, not to
/// every local user.
pub fn advice(capabilities: &str) -> String {
    let exe = env::current_exe().unwrap_or_else(|_| "weir".into());
    let exe = exe.display();
    format!(
        "run as root, or as a service with AmbientCapabilities={}; or permit the members of a \
         group to observe the I/O of all users: groupadd weir; chgrp weir {exe}; \
         chmod 0750 {exe}; setcap {capabilities}+ep {exe}",
        capabilities.to_uppercase().replace(',', " ")
    )
}

/// Whether the binary's file has capabilities and every local user may execute it.
pub fn is_open_to_all() -> bool {
    env::current_exe().is_ok_and(|exe| is_open(&exe))
}

fn is_open(exe: &Path) -> bool {
    let mut attribute = [0; 64];
    let has_capabilities = getxattr(exe, ATTRIBUTE, &mut attribute).is_ok();
    let mode = fs::metadata(exe).map_or(0, |meta| meta.mode());
    has_capabilities && mode & OTHERS_EXECUTE != 0
}
