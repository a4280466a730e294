//! The timers of `perf:HZ`: a software event of each processor, which samples what runs there
//! (perf_event_open(2), `PERF_COUNT_SW_CPU_CLOCK`).
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use libbpf_rs::{Link, ProgramMut};

/// `PERF_TYPE_SOFTWARE` and `PERF_COUNT_SW_CPU_CLOCK` of include/uapi/linux/perf_event.h.
const TYPE_SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;

/// The bit `freq`: the third field is a frequency.
const BY_FREQUENCY: u64 = 1 << 10;

/// `PERF_FLAG_FD_CLOEXEC`
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// The beginning of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// The file with the maximum frequency.
const RATE_MAX: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

/// The numbers of the processors that run, such as `0-3,5`.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Attaches the program to a timer of each processor that runs.
pub fn attach(program: &ProgramMut<'_>, hz: u32) -> libbpf_rs::Result<Vec<Link>> {
    let online = fs::read_to_string(ONLINE).map_err(libbpf_rs::Error::from)?;
    let attach = |cpu| {
        let event = open(cpu, hz).map_err(libbpf_rs::Error::from)?;
        let link = program.attach_perf_event(event.as_raw_fd())?;
        // The link closes it.
        let _ = event.into_raw_fd();
        Ok(link)
    };
    processors(&online).into_iter().map(attach).collect()
}

/// The numbers of a list of ranges.
fn processors(list: &str) -> Vec<i32> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

fn open(cpu: i32, hz: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        kind: TYPE_SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: CPU_CLOCK,
        frequency: hz.into(),
        flags: BY_FREQUENCY,
        ..Attributes::default()
    };
    // SAFETY: the structure outlives the call, which only reads it; the others are numbers: every
    // process on one processor, without a group.
    let event = unsafe {
        let all = -1;
        let at = &raw const attributes;
        libc::syscall(libc::SYS_perf_event_open, at, all, cpu, -1, CLOSE_ON_EXEC)
    };
    if event < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::EINVAL) => {
                let most = fs::read_to_string(RATE_MAX).unwrap_or_default();
                let most = most.trim();
                io::Error::other(format!(
                    "at most {most} samples a second (kernel.perf_event_max_sample_rate)"
                ))
            }
            _ => error,
        });
    }
    // SAFETY: the call has returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(event as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_listed_in_ranges() {
        assert_eq!(processors("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(processors("0\n"), [0]);
    }
}
