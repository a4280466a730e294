//! The kernel's monotonic clock, which timestamps records in kernel programs, and its offset from
//! the Unix epoch.
#![allow(unsafe_code)]

use weir_model::{NANOS_PER_SECOND, Nanos};

fn read(clock: libc::clockid_t) -> Nanos {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a local timespec that outlives the call.
    let done = unsafe { libc::clock_gettime(clock, &mut now) };
    assert_eq!(done, 0, "the clocks exist on every Linux");
    now.tv_sec * NANOS_PER_SECOND + now.tv_nsec
}

/// Nanoseconds since the Unix epoch: `CLOCK_REALTIME`.
pub fn epoch_ns() -> Nanos {
    read(libc::CLOCK_REALTIME)
}

/// `CLOCK_MONOTONIC`, as `bpf_ktime_get_ns` reads it.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC) as u64
}

/// The offset from the monotonic clock to nanoseconds since the Unix epoch.
///
/// Both clocks are read in turn several times; the attempt with the shortest duration is used.
pub fn epoch_offset_ns() -> Nanos {
    let attempt = |_| {
        let before = read(libc::CLOCK_MONOTONIC);
        let epoch = read(libc::CLOCK_REALTIME);
        let after = read(libc::CLOCK_MONOTONIC);
        (after - before, epoch - (before + (after - before) / 2))
    };
    let (_, offset) = (0..16).map(attempt).min().expect("there are 16 attempts");
    offset
}

/// True if the host's clock is synchronised (NTP, PTP), as the kernel reports it: adjtimex(2).
/// `None` if the kernel does not report it.
pub fn is_kept_right() -> Option<bool> {
    // SAFETY: all zeros is a valid value of the structure; without modes the call only fills it in.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `state` is a local timex that outlives the call.
    let found = unsafe { libc::adjtimex(&mut state) };
    (found >= 0).then_some(found != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0)
}

/// Processor time of the calling thread.
pub fn thread_ns() -> Nanos {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}
