//! [`HistOptions`]: which histograms are kept, of what, and for how long.

use std::sync::Arc;
use std::time::Instant;

use super::layout;
use crate::TapError;
use crate::ebpf::DeviceChoice;
use crate::inventory::Watch;

/// What has histograms of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum By {
    /// A VM's I/O on a device, and what on that device is nobody's. Without an inventory, or without
    /// VMs, as [`By::Device`].
    ///
    /// Whose a request is, the kernel tells by the process that submitted it, by the cgroup that it
    /// is charged to, and of kernel threads by the device, where that is one VM's alone. So an image
    /// in a file that is written back by the kernel counts as nobody's.
    #[default]
    Disk,
    /// A device; a partition is one of its own.
    Device,
    /// A process (thread group) on a device.
    Process,
    /// A cgroup on a device.
    Cgroup,
}

/// How histograms are kept.
#[derive(Clone, Debug)]
pub struct HistOptions {
    /// Of which devices.
    pub devices: DeviceChoice,
    /// What has histograms of its own.
    pub by: By,
    /// The closest of how many last requests [`weir_workload::Metric::SeekClosest`] is measured from:
    /// 1 to 32.
    pub closest_of: usize,
    /// Whether to see requests when they are inserted, for wait and latency; it costs a program and a
    /// clock more. Without it both are unknown, also on a device without a scheduler, where the wait
    /// is no more than the way through the block layer: service is then the time that is told. It is
    /// on in any case where requests are kept apart by who submits them.
    pub waits: bool,
    /// Whether flushes without data count; to see them, a program looks at the start of each request.
    /// A disk without a volatile cache never has any.
    pub flushes: bool,
    /// Most subjects; requests of further ones are counted as not entered.
    pub entries_max: usize,
    /// Most bytes of bins. A processor needs 33 KiB for each operation that it sees of a subject, and
    /// as much again for the subject.
    pub bins_bytes_max: usize,
    /// Requests in flight that are kept track of, on the whole host.
    pub requests_max: usize,
    /// Who owns what.
    pub inventory: Option<Arc<Watch>>,
    /// When to stop: nothing is counted after that, and the programs are taken away. What was counted
    /// stays.
    pub until: Option<Instant>,
    /// Tracepoints to do without, as if the kernel lacked them.
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
    /// Whether the submitter decides where a request counts.
    pub(crate) fn needs_submitter(&self) -> bool {
        match self.by {
            By::Disk => self.inventory.is_some(),
            By::Device => false,
            By::Process | By::Cgroup => true,
        }
    }

    /// # Errors
    /// When a number is out of its range.
    pub(crate) fn check(&self) -> Result<(), TapError> {
        let wrong = |what: String, remedy: String| TapError::Unavailable { what, remedy };
        if !(1..=layout::CLOSEST_OF_MAX).contains(&self.closest_of) {
            return Err(wrong(
                format!(
                    "the closest of {} requests cannot be found",
                    self.closest_of
                ),
                format!("ask for 1 to {}", layout::CLOSEST_OF_MAX),
            ));
        }
        if !(1..=layout::SUBJECTS_MAX).contains(&self.entries_max) {
            return Err(wrong(
                format!("histograms of {} subjects cannot be kept", self.entries_max),
                format!("ask for 1 to {}", layout::SUBJECTS_MAX),
            ));
        }
        if self.bins_bytes_max < 2 * layout::BLOCK_BYTES {
            return Err(wrong(
                format!("{} bytes hold no histogram", self.bins_bytes_max),
                "allow a mebibyte or more".into(),
            ));
        }
        Ok(())
    }
}
