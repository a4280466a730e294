//! The host's view of devices and files: the kernel's counters, and the location of a file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use weir_testing::{Counts, disk_stats};

/// The counters of the host's kernel for a device such as `/dev/loop3`.
pub fn counts(device: &str) -> Counts {
    let text = fs::read_to_string("/proc/diskstats").unwrap();
    let all: BTreeMap<String, Counts> = disk_stats(&text);
    all[device.trim_start_matches("/dev/")]
}

/// An extent of a file, in sectors: start in the file, start on the file system's device, length.
pub type Extent = (u64, u64, u64);

/// The extents of a file, as reported by `filefrag` of e2fsprogs.
pub fn extents(file: &Path) -> Vec<Extent> {
    let args = ["-v", "-b512", file.to_str().unwrap()];
    let output = Command::new("filefrag").args(args).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    // `   0:        0..   32767:      2048..     34815:  32768:             last,eof`
    let extents = stdout.lines().filter_map(|line| {
        let mut fields = line.split(':').map(str::trim);
        fields.next()?.parse::<u32>().ok()?;
        let first = |range: &str| range.split("..").next()?.trim().parse().ok();
        let (logical, physical) = (first(fields.next()?)?, first(fields.next()?)?);
        Some((logical, physical, fields.next()?.parse().ok()?))
    });
    extents.collect()
}
