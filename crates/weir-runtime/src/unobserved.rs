//! [`UnobservedDevices`]: the stacked devices that are not observed unless requested, and whether
//! they had I/O meanwhile.

use weir_tap::ebpf::{self, DeviceChoice};

use crate::output;
use crate::source::SourceOptions;

/// Maximum number of devices named in the sentence.
const NAMED_MAX: usize = 4;

/// The stacked devices (dm, md, loop) that are not observed, with their request counts at the
/// start.
#[derive(Clone, Debug)]
pub struct UnobservedDevices(Vec<(String, u64)>);

impl UnobservedDevices {
    /// The stacked devices that a live source does not observe.
    pub fn of(source: &SourceOptions) -> UnobservedDevices {
        let live = source.has_host();
        let devices = match source.devices() {
            DeviceChoice::Leaves if live => ebpf::stacked_devices(),
            DeviceChoice::LeavesAnd(named) if live => {
                let mut devices = ebpf::stacked_devices();
                devices.retain(|(path, _)| !named.contains(path));
                devices
            }
            _ => Vec::new(),
        };
        UnobservedDevices(devices)
    }

    /// A sentence about those that had I/O since the start; `None` without any.
    pub fn sentence(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let now = ebpf::stacked_devices();
        let busy = self.0.iter().filter(|(path, before)| {
            let mut after = now.iter().filter(|(other, _)| other == path);
            after.any(|(_, after)| after > before)
        });
        let busy: Vec<&str> = busy.map(|(path, _)| path.as_str()).collect();
        let named = busy[..busy.len().min(NAMED_MAX)].join(", ");
        let more = match busy.len().checked_sub(NAMED_MAX) {
            None | Some(0) => String::new(),
            Some(more) => format!(" and {more} more"),
        };
        (!busy.is_empty()).then(|| {
            format!(
                "not observed separately: {named}{more}, whose I/O is counted at the devices \
                 below; use --stacked or --device"
            )
        })
    }

    /// Prints the sentence on standard error.
    pub fn report(&self) {
        if let Some(sentence) = self.sentence() {
            output::notice(format_args!("weir: {sentence}"));
        }
    }
}
