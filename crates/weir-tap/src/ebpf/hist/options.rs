//! [`HistOptions`]: the histograms to keep, their subjects, and their duration.

use std::sync::Arc;
use std::time::Instant;

use super::layout;
use crate::TapError;
use crate::ebpf::DeviceChoice;
use crate::inventory::InventoryWatch;

/// The subject of histograms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum By {
    /// A VM's I/O on a device, and the I/O on that device that has no VM. Without an inventory, or
    /// without VMs, as [`By::Device`].
    ///
    /// The kernel determines the VM by the process that submitted the request, by the cgroup that
    /// it is charged to, and for kernel threads by the device, if that belongs to one VM only. So
    /// an image in a file that is written back by the kernel counts as I/O without a VM.
    #[default]
    Disk,
    /// A device; a partition is a separate one.
    Device,
    /// A process (thread group) on a device.
    Process,
    /// A cgroup on a device.
    Cgroup,
}

/// Options of histograms.
#[derive(Clone, Debug)]
pub struct HistOptions {
    /// The devices.
    pub devices: DeviceChoice,
    /// The subject.
    pub by: By,
    /// Number of last requests from which [`weir_workload::Metric::SeekClosest`] is measured: 1 to
    /// 32.
    pub closest_of: usize,
    /// Whether to observe the insertion of requests, for wait and latency; it costs an additional
    /// program and clock read. Without it both are unknown, also on a device without a scheduler,
    /// where the wait is only the time in the block layer: service is then the reported time. It is
    /// always on if requests are separated by submitter.
    pub waits: bool,
    /// Whether flushes without data count; to observe them, a program runs at the start of each
    /// request. A disk without a volatile cache has none.
    pub flushes: bool,
    /// Maximum number of subjects; requests of further ones are counted as not entered.
    pub entries_max: usize,
    /// Maximum size of the bins in bytes. A processor needs 33 KiB for each operation that it sees
    /// of a subject, and the same again for the subject.
    pub bins_bytes_max: usize,
    /// Maximum number of requests in flight, on the whole host.
    pub requests_max: usize,
    /// The inventory, for the owners.
    pub inventory: Option<Arc<InventoryWatch>>,
    /// Time to stop: nothing is counted after it, and the programs are detached. The counts remain.
    pub until: Option<Instant>,
    /// Tracepoints that are not used, as if the kernel lacked them.
    pub without: Vec<String>,
}

impl Default for HistOptions {
    fn default() -> HistOptions {
        HistOptions {
            devices: DeviceChoice::default(),
            by: By::default(),
            closest_of: 16,
            waits: false,
            flushes: true,
            entries_max: 256,
            bins_bytes_max: 64 << 20,
            requests_max: 1 << 15,
            inventory: None,
            until: None,
            without: Vec::new(),
        }
    }
}

impl HistOptions {
    /// True if the submitter determines where a request is counted.
    pub(crate) fn needs_submitter(&self) -> bool {
        match self.by {
            By::Disk => self.inventory.is_some(),
            By::Device => false,
            By::Process | By::Cgroup => true,
        }
    }

    /// # Errors
    /// If a number is out of its range.
    pub(crate) fn check(&self) -> Result<(), TapError> {
        let wrong = |what: String, remedy: String| TapError::Unavailable { what, remedy };
        if !(1..=layout::CLOSEST_OF_MAX).contains(&self.closest_of) {
            return Err(wrong(
                format!(
                    "the closest of {} previous requests cannot be computed",
                    self.closest_of
                ),
                format!("use 1 to {}", layout::CLOSEST_OF_MAX),
            ));
        }
        if !(1..=layout::SUBJECTS_MAX).contains(&self.entries_max) {
            return Err(wrong(
                format!("{} sets of histograms exceed the limit", self.entries_max),
                format!("use 1 to {}", layout::SUBJECTS_MAX),
            ));
        }
        if self.bins_bytes_max < 2 * layout::BLOCK_BYTES {
            return Err(wrong(
                format!("{} bytes are too few for a histogram", self.bins_bytes_max),
                "use at least 1 MiB".into(),
            ));
        }
        Ok(())
    }
}
