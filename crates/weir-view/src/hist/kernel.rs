//! [`KernelCount`]: histograms in the kernel.

use std::sync::Arc;

use weir_tap::TapError;
use weir_tap::ebpf::{Completeness, DeviceChoice, SectorCompleteness};
use weir_tap::hist::{self, HistOptions, HistTap, NotEntered};
use weir_tap::inventory::InventoryWatch;

use super::choice::HistogramChoice;
use super::counted::{CLOSEST_OF, CountedHistograms, HistogramKey, NO_COMPLETION, SECTORS_UNSEEN};
use super::disks::Listed;
use super::gauge::Gauge;
use weir_runtime::failure::Failure;

/// Counts in the kernel until it is dropped.
pub struct KernelCount {
    tap: HistTap,
    choice: HistogramChoice,
}

impl KernelCount {
    /// Loads the programs into the kernel.
    ///
    /// # Errors
    /// When the kernel or the user's rights do not suffice.
    pub fn open(
        choice: HistogramChoice,
        by: HistogramKey,
        devices: DeviceChoice,
        inventory: Arc<InventoryWatch>,
    ) -> Result<KernelCount, TapError> {
        let tap = HistTap::open(&HistOptions {
            devices,
            by: match by {
                HistogramKey::Disk => hist::By::Disk,
                HistogramKey::Device => hist::By::Device,
                HistogramKey::Process => hist::By::Process,
                HistogramKey::Cgroup => hist::By::Cgroup,
            },
            closest_of: CLOSEST_OF,
            waits: true,
            inventory: Some(inventory),
            ..HistOptions::default()
        })?;
        Ok(KernelCount { tap, choice })
    }
}

impl Gauge for KernelCount {
    fn snapshot(&mut self) -> Result<CountedHistograms, Failure> {
        let seen = self.tap.snapshot();
        let mut counted = CountedHistograms {
            since: seen.since,
            at: seen.at,
            closest_of: CLOSEST_OF,
            subjects: Vec::new(),
            lost: lost(&seen.not_entered, &seen.disks, &seen.sectors),
            unreliable: Vec::new(),
        };
        // An object that was created again with its old name, such as a service's cgroup, has other
        // numbers in the kernel.
        for (subject, histograms) in seen.subjects {
            counted.add(subject, histograms);
        }
        counted.keep(&self.choice);
        counted.sort();
        Ok(counted)
    }

    fn reset(&mut self) -> Result<(), Failure> {
        self.tap.reset();
        Ok(())
    }
}

/// The devices to observe: those given, otherwise the selected one if the host has it, otherwise
/// all relevant ones.
pub fn devices(given: DeviceChoice, choice: &HistogramChoice, listed: &[Listed]) -> DeviceChoice {
    let (DeviceChoice::Leaves, Some(disk)) = (&given, &choice.disk) else {
        return given;
    };
    let own = |l: &&Listed| l.vm.is_none() && super::choice::is_named(l.disk().as_str(), disk);
    match listed.iter().find(own) {
        Some(device) if choice.vm.is_none() => {
            DeviceChoice::Named(vec![device.disk().as_str().to_owned()])
        }
        _ => given,
    }
}

fn lost(
    not_entered: &NotEntered,
    disks: &[Completeness],
    devices: &[SectorCompleteness],
) -> Vec<(String, u64)> {
    let NotEntered {
        subjects_full,
        blocks_full,
        contended,
        table_full,
        ends_blocks_full,
        missed,
    } = *not_entered;
    let all = [
        ("too_many_disks", subjects_full),
        ("memory_full", blocks_full),
        ("contended", contended),
        ("table_full", table_full),
        ("memory_full_at_the_end", ends_blocks_full),
        ("missed", missed),
    ];
    let all = all.map(|(cause, n)| (cause.to_owned(), n));
    let unseen = disks.iter().map(|disk| {
        let cause = format!("{NO_COMPLETION}{}", disk.path);
        (cause, u64::try_from(disk.unseen()).unwrap_or(0))
    });
    let sectors = devices.iter().map(|device| {
        let cause = format!("{SECTORS_UNSEEN}{}", device.path);
        (cause, u64::try_from(device.unseen).unwrap_or(0))
    });
    let causes = all.into_iter().chain(unseen).chain(sectors);
    causes.filter(|(_, n)| *n > 0).collect()
}
