//! [`Guard`]: memory that others share with us may be taken away under our hands, and we go on.
//!
//! Who touches a mapping behind the end of its file gets SIGBUS, which ends the process. A front end can
//! shorten the file of its guest's memory at any time, and this process serves the disks of others
//! as well. So the signal is caught: where the address is in such memory, empty memory is put in its place
//! and the thread goes on. What it then reads is nonsense, as all that comes from there may be, and
//! harms only whoever did it. Any other SIGBUS does what it did before.
#![allow(unsafe_code)] // Signals are in no safe interface, and a handler may do next to nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::{c_int, c_void, sigaction, siginfo_t};

/// Mappings at once, at most: eight VMs with all the regions that KVM knows.
const GUARDS_MAX: usize = 4096;

/// Where guarded mappings are; an empty range is free.
static RANGES: [Range; GUARDS_MAX] = [const { Range::nowhere() }; GUARDS_MAX];

/// Who changes `RANGES`. The handler only reads.
static CHANGES: Mutex<()> = Mutex::new(());

/// What was done at SIGBUS before, and the size of a page in bytes; nothing if the system lets
/// nobody catch it.
static BEFORE: OnceLock<Option<Before>> = OnceLock::new();

struct Before {
    action: sigaction,
    page_bytes: usize,
}

struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Range {
    const fn nowhere() -> Range {
        Range {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
        }
    }

    fn set(&self, start: usize, end: usize) {
        // In between it is empty, whichever was set before.
        self.end.store(0, Ordering::SeqCst);
        self.start.store(start, Ordering::SeqCst);
        self.end.store(end, Ordering::SeqCst);
    }

    fn get(&self) -> std::ops::Range<usize> {
        self.start.load(Ordering::SeqCst)..self.end.load(Ordering::SeqCst)
    }
}

/// As long as it lives, its mapping may be touched whatever becomes of the file.
#[derive(Debug)]
pub struct Guard {
    place: usize,
}

impl Guard {
    /// Guards `bytes` bytes from `start` on, which are mapped. It is to go before they are unmapped.
    ///
    /// # Errors
    /// There are too many already.
    pub fn new(start: *const u8, bytes: usize) -> Result<Guard, String> {
        BEFORE.get_or_init(install);
        let _only_one = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let free = RANGES.iter().position(|range| range.get().is_empty());
        let place = free.ok_or(format!("more than {GUARDS_MAX} mappings in this process"))?;
        let start = start.addr();
        RANGES[place].set(start, start + bytes);
        Ok(Guard { place })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _only_one = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        RANGES[self.place].set(0, 0);
    }
}

fn install() -> Option<Before> {
    // SAFETY: it asks for a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page_bytes = usize::try_from(page_bytes).ok()?;
    // SAFETY: of a structure of numbers, all zero is a value.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: as above.
    let mut before: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both structures are valid, and the handler does only what a handler may.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) };
    (set == 0).then_some(Before {
        action: before,
        page_bytes,
    })
}

/// Runs in the thread that touched what is not there.
extern "C" fn on_sigbus(signal: c_int, told: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel hands over a valid structure, and for this signal it has an address.
    let address = unsafe { (*told).si_addr() }.addr();
    // SAFETY: errno is the thread's own; who was interrupted finds it as it was.
    let errno = unsafe { *libc::__errno_location() };
    // Between the handler's being set and this being known nobody has a guard.
    let Some(Some(before)) = BEFORE.get() else {
        return;
    };
    // Memory that broke (`BUS_MCEERR_AR`) was something else than zeroes, which may not take its place.
    // SAFETY: as above.
    let is_cut_off = unsafe { (*told).si_code } == libc::BUS_ADRERR;
    let mut ranges = RANGES.iter().map(Range::get);
    let replaced = ranges
        .find(|range| is_cut_off && range.contains(&address))
        .is_some_and(|range| {
            let page = address & !(before.page_bytes - 1);
            // Of memory in huge pages a single page cannot be replaced.
            replace(page, before.page_bytes) || replace(range.start, range.len())
        });
    if !replaced {
        // SAFETY: it was set by `sigaction` before; the instruction is run again and meets it.
        unsafe { libc::sigaction(signal, &raw const before.action, std::ptr::null_mut()) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Puts empty memory in the place of a mapping.
fn replace(start: usize, bytes: usize) -> bool {
    let place = start as *mut c_void;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the range is within a guarded mapping, which belongs to nobody else; mmap(2) is one
    // system call, which a handler may make.
    let mapped = unsafe { libc::mmap(place, bytes, access, kind, -1, 0) };
    mapped == place
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

    use super::*;

    #[test]
    fn memory_whose_file_is_cut_off_reads_as_zeroes() {
        let file = File::from(memfd_create("shared", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, 1 << 20).unwrap();
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let mapping = MmapRegion::<()>::from_file(offset, 1 << 20).unwrap();
        let guard = Guard::new(mapping.as_ptr(), mapping.size()).unwrap();
        let slice = mapping.as_volatile_slice();
        slice.write_slice(&[7; 1 << 20], 0).unwrap();
        ftruncate(&file, 8192).unwrap();
        let mut there = vec![0; 1 << 20];
        slice.read_slice(&mut there, 0).unwrap();
        assert!(there[..8192].iter().all(|b| *b == 7));
        assert!(there[8192..].iter().all(|b| *b == 0));
        // It may be written, too.
        slice.write_slice(&[9; 64], 0x80000).unwrap();
        drop(guard);
    }
}
