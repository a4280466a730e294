//! What the host says of devices and files: the kernel's counters, and where a file lies.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use weir_testing::{Counts, disk_stats};

/// What the host's kernel counts of a device, as `/dev/loop3`.
pub fn counts(device: &str) -> Counts {
    let text = fs::read_to_string("/proc/diskstats").unwrap();
    let all: BTreeMap<String, Counts> = disk_stats(&text);
    all[device.trim_start_matches("/dev/")]
}

/// A piece of a file, in sectors: where in the file, where on the file system's device, how long.
pub type Extent = (u64, u64, u64);

/// Where a file lies, as `filefrag` of e2fsprogs tells.
pub fn extents(file: &Path) -> Vec<Extent> {
    let args = ["-v", "-b512", file.to_str().unwrap()];
    let output = Command::new("filefrag").args(args).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    // `   0:        0..   32767:      2048..     34815:  32768:             last,eof`
    let extents = said.lines().filter_map(|line| {
        let mut fields = line.split(':').map(str::trim);
        fields.next()?.parse::<u32>().ok()?;
        let first = |range: &str| range.split("..").next()?.trim().parse().ok();
        let (logical, physical) = (first(fields.next()?)?, first(fields.next()?)?);
        Some((logical, physical, fields.next()?.parse().ok()?))
    });
    extents.collect()
}
