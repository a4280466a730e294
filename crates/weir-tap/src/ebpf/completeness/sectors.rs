//! [`SectorCheck`]: the check of devices without requests (dm, md, zram) against the kernel's own
//! counters, in sectors.
//!
//! dm and md split bios and count the parts, so the numbers of bios differ while the sectors are
//! equal. The kernel counts a bio at its submission before 6.4, and just before its end is reported
//! since then. So the difference is exact only at an instant at which the kernel has nothing in
//! flight. At other instants every sector whose submission the programs received counts as seen,
//! and the difference is a lower bound.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use weir_model::Symbol;

use super::super::devices::Device;

/// How often the programs' counts are read again while they are behind an idle device, whose last
/// bio may be counted and not yet reported, and the pause before each.
const READS_MAX: u32 = 5;
const READ_PAUSE: Duration = Duration::from_millis(1);

/// The kernel's counters of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSectors {
    /// Sectors read and written.
    pub sectors: i64,
    /// Bios in flight.
    pub in_flight: i64,
}

/// The programs' counters of a device, without discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramSectors {
    /// Sectors of submitted bios.
    pub submitted: i64,
    /// Sectors of those that completed.
    pub seen: i64,
}

/// Completeness of one device without requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorCompleteness {
    /// The device.
    pub path: Symbol,
    /// Sectors whose completion the programs received.
    pub seen: i64,
    /// Sectors that only the kernel's own counters include, at least.
    pub unseen: i64,
}

/// The counts of both sides per device, since the first instant with nothing in flight.
#[derive(Debug, Default)]
pub struct SectorCheck {
    devices: HashMap<u32, Counted>,
}

#[derive(Debug)]
struct Counted {
    path: Symbol,
    kernel_first: i64,
    kernel: i64,
    first: ProgramSectors,
    seen: i64,
    unseen: i64,
}

impl SectorCheck {
    /// Compares one device. `before` is the programs' count before `kernel` was read; `now` reads
    /// it again.
    pub fn compare(
        &mut self,
        device: &Device,
        kernel: KernelSectors,
        before: ProgramSectors,
        now: &dyn Fn() -> ProgramSectors,
    ) {
        let is_idle = kernel.in_flight == 0;
        let Some(known) = self.devices.get_mut(&device.number) else {
            if is_idle {
                let counted = Counted {
                    path: device.path,
                    kernel_first: kernel.sectors,
                    kernel: kernel.sectors,
                    first: before,
                    seen: before.seen,
                    unseen: 0,
                };
                self.devices.insert(device.number, counted);
            }
            return;
        };
        let mut own = now();
        let is_behind = |own: ProgramSectors| {
            own.submitted - known.first.submitted > own.seen - known.first.seen && is_idle
        };
        for _ in 0..READS_MAX {
            if !is_behind(own) {
                break;
            }
            thread::sleep(READ_PAUSE);
            own = now();
        }
        let seen = own.seen - known.first.seen;
        let received = match is_idle {
            true => seen,
            false => seen.max(own.submitted - known.first.submitted),
        };
        known.kernel = kernel.sectors;
        known.seen = own.seen;
        // Read after the kernel's count, the programs' can only be too high.
        let missing = kernel.sectors - known.kernel_first - received;
        known.unseen = known.unseen.max(missing);
    }

    /// Forgets a device that the kernel's counters do not have any more.
    pub fn remove(&mut self, device: u32) {
        self.devices.remove(&device);
    }

    /// The devices with activity, by path. Without those that the kernel has counted nothing of:
    /// some drivers do not count.
    pub fn devices(&self) -> Vec<SectorCompleteness> {
        let counted = self.devices.values();
        let counted = counted.filter(|c| c.kernel > c.kernel_first);
        let mut devices: Vec<SectorCompleteness> = counted
            .map(|c| SectorCompleteness {
                path: c.path,
                seen: c.seen - c.first.seen,
                unseen: c.unseen,
            })
            .collect();
        devices.sort_by_key(|d| d.path.as_str());
        devices
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::disk;
    use super::*;

    /// Comparisons of one device, each with the kernel's sectors and bios in flight, and the
    /// programs' sectors submitted and seen; returns the sectors seen and unseen.
    fn compared(looks: &[([i64; 2], [i64; 2])]) -> Option<(i64, i64)> {
        let mut check = SectorCheck::default();
        let device = disk(7);
        for ([sectors, in_flight], [submitted, seen]) in looks.iter().copied() {
            let kernel = KernelSectors { sectors, in_flight };
            let own = ProgramSectors { submitted, seen };
            check.compare(&device, kernel, own, &|| own);
        }
        check.devices().first().map(|d| (d.seen, d.unseen))
    }

    #[test]
    fn the_difference_is_exact_when_nothing_is_in_flight() {
        let first = ([1000, 0], [0, 0]);
        assert_eq!(compared(&[first, ([1064, 0], [64, 64])]), Some((64, 0)));
        assert_eq!(compared(&[first, ([1064, 0], [56, 56])]), Some((56, 8)));
        // The end of a bio was not received.
        assert_eq!(compared(&[first, ([1064, 0], [64, 48])]), Some((48, 16)));
        // A discard that the driver does not count is in neither; a write of zeroes is in one.
        assert_eq!(compared(&[first, ([1064, 0], [72, 72])]), Some((72, 0)));
    }

    #[test]
    fn what_is_in_flight_is_not_unseen() {
        let first = ([1000, 0], [0, 0]);
        // Counted at submission: 32 sectors are in flight, and 8 were not received.
        let busy = ([1072, 4], [64, 32]);
        assert_eq!(compared(&[first, busy]), Some((32, 8)));
        assert_eq!(
            compared(&[first, busy, ([1072, 0], [64, 64])]),
            Some((64, 8))
        );
        // Counted at the end: at least.
        assert_eq!(compared(&[first, ([1040, 4], [64, 32])]), Some((32, 0)));
    }

    #[test]
    fn counting_begins_when_nothing_is_in_flight() {
        let busy = ([1000, 2], [0, 0]);
        assert_eq!(compared(&[busy, ([1016, 3], [8, 0])]), None);
        let idle = ([1024, 0], [16, 8]);
        assert_eq!(
            compared(&[busy, idle, ([1056, 0], [48, 40])]),
            Some((32, 0))
        );
    }

    #[test]
    fn a_driver_that_does_not_count_has_no_figure() {
        assert_eq!(compared(&[([0, 0], [0, 0]), ([0, 0], [64, 64])]), None);
    }
}
