//! [`boot_id`]: the boot of the kernel, which settings in /sys and cgroups do not outlive.

use std::fs;

/// The identity of the present boot (random(4)); empty if it is unknown.
pub fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}
