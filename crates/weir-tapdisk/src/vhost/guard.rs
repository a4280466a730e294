//! [`Guard`]: the process survives when a front end truncates shared memory that is in use.
//!
//! A thread that accesses a mapping beyond the end of its file receives SIGBUS, which ends the
//! process. A front end can truncate the file of its guest's memory at any time, and this process
//! serves the disks of others as well. So the signal is handled: where the address is in such a
//! mapping, anonymous memory replaces the whole mapping, and the thread continues. It then reads
//! zeroes; the mapping is marked as [cut](Guard::is_cut), and the queues that use it end. Any other
//! SIGBUS has its previous effect.
//!
//! The whole mapping is replaced, not a page of it: a part of a mapping of huge pages cannot be,
//! and each replaced part would be a further mapping of the process, whose number is limited.
#![allow(unsafe_code)] // Signals have no safe interface, and a handler may call next to nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void, sigaction, siginfo_t};

/// Maximum number of guarded mappings of a process. [`super::memory_slots`] divides them among its
/// disks.
pub const GUARDS_MAX: usize = (1 << 15) + 512;

/// The addresses of guarded mappings; an empty range is free.
static RANGES: [Range; GUARDS_MAX] = [const { Range::empty() }; GUARDS_MAX];

/// Ranges from here on have never been used.
static UNUSED_FROM: AtomicUsize = AtomicUsize::new(0);

/// The number of mappings that were cut since the start of the process.
static CUTS: AtomicU64 = AtomicU64::new(0);

/// Serialises changes of `RANGES`. The handler only marks a range as cut.
static CHANGES: Mutex<()> = Mutex::new(());

/// The action for SIGBUS before this one; `None` if the system does not allow another one.
static PREVIOUS_ACTION: OnceLock<Option<sigaction>> = OnceLock::new();

struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
    is_cut: AtomicBool,
}

impl Range {
    const fn empty() -> Range {
        Range {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_cut: AtomicBool::new(false),
        }
    }

    fn set(&self, start: usize, end: usize) {
        // In between it is empty, in either order.
        self.end.store(0, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.is_cut.store(false, Ordering::SeqCst);
        self.end.store(end, Ordering::SeqCst);
    }

    fn get(&self) -> std::ops::Range<usize> {
        self.start.load(Ordering::SeqCst)..self.end.load(Ordering::SeqCst)
    }
}

/// The number of mappings that one front end may have, so that others are not affected.
#[derive(Debug)]
pub struct Share {
    used: AtomicUsize,
    mappings_max: usize,
}

impl Share {
    /// A share of `mappings_max` mappings.
    pub fn new(mappings_max: usize) -> Arc<Share> {
        Arc::new(Share {
            used: AtomicUsize::new(0),
            mappings_max,
        })
    }
}

/// While it exists, its mapping can be accessed even if the file is truncated.
#[derive(Debug)]
pub struct Guard {
    place: usize,
    share: Arc<Share>,
}

impl Guard {
    /// Guards `bytes` bytes from `start` on, which are a mapping. It must be dropped before they
    /// are unmapped.
    ///
    /// # Errors
    /// The share, or the table of the process, is used up.
    pub fn new(start: *const u8, bytes: usize, share: &Arc<Share>) -> Result<Guard, String> {
        PREVIOUS_ACTION.get_or_init(install);
        let _only_one = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let max = share.mappings_max;
        if share.used.load(Ordering::Relaxed) >= max {
            return Err(format!("more than {max} mappings for one front end"));
        }
        let free = RANGES.iter().position(|range| range.get().is_empty());
        let place = free.ok_or(format!("more than {GUARDS_MAX} mappings in this process"))?;
        let start = start.addr();
        RANGES[place].set(start, start + bytes);
        UNUSED_FROM.fetch_max(place + 1, Ordering::SeqCst);
        share.used.fetch_add(1, Ordering::Relaxed);
        Ok(Guard {
            place,
            share: Arc::clone(share),
        })
    }

    /// Whether the file was truncated, and zeroes have replaced the mapping.
    pub fn is_cut(&self) -> bool {
        RANGES[self.place].is_cut.load(Ordering::SeqCst)
    }
}

/// The number of mappings that were cut since the start of the process, for detecting changes.
pub fn cuts() -> u64 {
    CUTS.load(Ordering::SeqCst)
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _only_one = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        RANGES[self.place].set(0, 0);
        self.share.used.fetch_sub(1, Ordering::Relaxed);
    }
}

fn install() -> Option<sigaction> {
    // SAFETY: of a structure of numbers, all zero is a value.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: as above.
    let mut before: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both structures are valid, and the handler does only what a handler may.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
    (set == 0).then_some(before)
}

/// Runs in the thread that accessed truncated memory.
extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid structure, and for this signal it has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    // SAFETY: errno is the thread's own; it is restored below.
    let errno = unsafe { *libc::__errno_location() };
    // No guard exists between the installation of the handler and this.
    let Some(Some(before)) = PREVIOUS_ACTION.get() else {
        return;
    };
    // Memory with a hardware error (`BUS_MCEERR_AR`) had content that zeroes must not replace.
    // SAFETY: as above.
    let is_cut_off = unsafe { (*info).si_code } == libc::BUS_ADRERR;
    let used = &RANGES[..UNUSED_FROM.load(Ordering::SeqCst)];
    let replaced = used
        .iter()
        .find(|range| is_cut_off && range.get().contains(&address))
        .is_some_and(replace);
    if !replaced {
        // SAFETY: it was returned by `sigaction`; the instruction is repeated and raises the signal
        // again.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Replaces a mapping by zeroed memory, and marks it as cut. Two threads may do so at once.
fn replace(range: &Range) -> bool {
    let mapped = range.get();
    let place = mapped.start as *mut c_void;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the range is a guarded mapping, which nothing else uses; mmap(2) is one system call,
    // which a handler may make.
    let done = unsafe { libc::mmap(place, mapped.len(), access, kind, -1, 0) };
    if done != place {
        return false;
    }
    range.is_cut.store(true, Ordering::SeqCst);
    CUTS.fetch_add(1, Ordering::SeqCst);
    true
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

    use super::*;

    #[test]
    fn memory_of_a_truncated_file_becomes_zeroes_and_is_marked() {
        let file = File::from(memfd_create("shared", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, 1 << 20).unwrap();
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let mapping = MmapRegion::<()>::from_file(offset, 1 << 20).unwrap();
        let guard = Guard::new(mapping.as_ptr(), mapping.size(), &Share::new(1)).unwrap();
        let slice = mapping.as_volatile_slice();
        slice.write_slice(&[7; 1 << 20], 0).unwrap();
        assert!(!guard.is_cut());
        ftruncate(&file, 8192).unwrap();
        let mut there = vec![9; 1 << 20];
        slice.read_slice(&mut there[8192..], 8192).unwrap();
        assert!(guard.is_cut());
        slice.read_slice(&mut there, 0).unwrap();
        assert!(there.iter().all(|b| *b == 0));
        // It can be written, too.
        slice.write_slice(&[9; 64], 0x80000).unwrap();
        drop(guard);
    }

    #[test]
    fn a_used_up_share_leaves_those_of_others() {
        let memory = [0; 64];
        let [first, second] = [2, 2].map(Share::new);
        let guard = |at: usize, share| Guard::new(memory[at..].as_ptr(), 1, share);
        let kept = [guard(0, &first), guard(1, &first)].map(Result::unwrap);
        let refused = guard(2, &first).unwrap_err();
        assert_eq!(refused, "more than 2 mappings for one front end");
        drop(guard(3, &second).unwrap());
        drop(kept);
        drop(guard(4, &first).unwrap());
    }
}
