//! The kernel's monotonic clock, which kernel programs stamp records with, and its distance from
//! the Unix epoch.
#![allow(unsafe_code)]

use weir_model::{NANOS_PER_SECOND, Nanos};

fn read(clock: libc::clockid_t) -> Nanos {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a timespec of ours that outlives the call.
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

/// What to add to the monotonic clock to get nanoseconds since the Unix epoch.
///
/// Both clocks are read in turn until nothing disturbs: the narrowest of some attempts counts.
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

/// Whether somebody keeps the host's clock right (NTP, PTP), as the kernel was told: adjtimex(2).
/// `None` where the kernel does not say.
pub fn is_kept_right() -> Option<bool> {
    // SAFETY: all zeros is a value of the structure; without modes the call only fills it in.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `state` is a timex of ours that outlives the call.
    let found = unsafe { libc::adjtimex(&mut state) };
    (found >= 0).then_some(found != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0)
}

/// Processor time of the calling thread.
pub fn thread_ns() -> Nanos {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}
