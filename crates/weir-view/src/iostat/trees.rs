//! Directories with the kernel's counters, one for each point in time: copies of /proc and /sys.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use weir_sink::SinkError;
use weir_sink::iostat::{CpuTimes, DiskCounters, DiskGroup, IostatReport, ReportedDisk};

use super::names::DeviceNames;
use super::output::Output;
use super::selection::DeviceSelection;
use weir_runtime::failure::Failure;

/// The content of a tree.
pub struct Tree {
    /// Hundredths of a second since boot.
    pub uptime_cs: u64,
    /// The processors' times, if the tree has them.
    pub cpu: Option<CpuTimes>,
    /// The number of processors.
    pub processors: usize,
    /// The devices of diskstats, in its order.
    disks: Vec<Counted>,
    /// The whole devices by name, if the tree has them, each with its partitions.
    devices: Option<BTreeMap<String, Device>>,
}

/// A device and its counters.
type Counted = (String, DiskCounters);

/// The content of /sys/block for a device.
struct Device {
    counters: Option<DiskCounters>,
    partitions: Vec<Counted>,
}

impl Tree {
    /// Reads `dir/proc/{diskstats,uptime,stat}` and the names in `dir/sys/block`, or the same
    /// without `proc` and `sys`.
    ///
    /// # Errors
    /// When `diskstats` or `uptime` does not exist or cannot be parsed.
    pub fn read(dir: &Path) -> Result<Tree, Failure> {
        let diskstats = file(dir, "diskstats")?;
        let uptime = file(dir, "uptime")?;
        let stat = file(dir, "stat").ok().map(|(_, text)| text);
        let disk = |line: &str| DiskCounters::parse(line).map(|(name, c)| (name.to_owned(), c));
        let disks = diskstats.1.lines().filter(|line| !line.trim().is_empty());
        let disks: Result<Vec<_>, _> = disks.map(disk).collect();
        let failed = |path: &Path, what: &dyn std::fmt::Display| {
            Failure::world(format!("{}: {what}", path.display()))
        };
        let seconds = uptime.1.split_ascii_whitespace().next().unwrap_or_default();
        let uptime_cs = centiseconds(seconds).ok_or_else(|| {
            failed(
                &uptime.0,
                &format!("`{seconds}` is not a number of seconds such as 7192.55"),
            )
        })?;
        Ok(Tree {
            uptime_cs,
            cpu: stat.as_deref().and_then(CpuTimes::parse),
            processors: stat.as_deref().map_or(0, CpuTimes::processors),
            disks: disks.map_err(|e| failed(&diskstats.0, &e))?,
            devices: devices(dir),
        })
    }

    /// The listed devices, from the same source as in sysstat: with `-p` alone from diskstats,
    /// otherwise from /sys/block by name, if the tree has it.
    fn listed(&self, selection: &DeviceSelection) -> Vec<Counted> {
        let by_file = selection.has_all_partitions();
        let Some(devices) = self.devices.as_ref().filter(|_| !by_file) else {
            let listed = self
                .disks
                .iter()
                .filter(|disk| selection.lists(&disk.0, None));
            return listed.cloned().collect();
        };
        let mut listed: Vec<Counted> = Vec::new();
        for (name, device) in devices {
            let whole = device.counters.map(|counters| (name.clone(), counters));
            listed.extend(whole.filter(|disk| selection.lists(&disk.0, None)));
            let partitions = device.partitions.iter();
            listed.extend(
                partitions
                    .filter(|p| selection.lists(&p.0, Some(name)))
                    .cloned(),
            );
        }
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        listed
    }

    /// The counters of a device or partition, if the tree has them.
    fn counters(&self, name: &str, selection: &DeviceSelection) -> Option<DiskCounters> {
        let all = self.listed(selection);
        all.into_iter()
            .find_map(|(n, counters)| (n == name).then_some(counters))
    }
}

/// Writes a report for each tree: the first one since boot unless it is omitted, the others since
/// the previous tree. A single tree is not omitted.
///
/// # Errors
/// When the output fails.
pub fn report(
    trees: &[Tree],
    selection: &DeviceSelection,
    names: &DeviceNames,
    omit_first: bool,
    at_ns: i64,
    output: &mut Output,
) -> Result<(), SinkError> {
    for (i, tree) in trees.iter().enumerate() {
        if i == 0 && omit_first && trees.len() > 1 {
            output.omit()?;
            continue;
        }
        let before = i.checked_sub(1).map(|i| &trees[i]);
        let listed = tree.listed(selection);
        let earlier = |name: &str| before.and_then(|t| t.counters(name, selection));
        let uptime_cs = before.map_or(0, |tree| tree.uptime_cs);
        let cpu_before = before.map_or(Some(CpuTimes::default()), |tree| tree.cpu);
        let groups = selection.grouped(listed.iter().collect(), |(name, _): &&Counted| name);
        let groups = groups.into_iter().map(|(name, disks)| {
            let disks = disks.into_iter().map(|(name, counters)| ReportedDisk {
                name: names.of(name),
                before: earlier(name).unwrap_or_default(),
                now: *counters,
            });
            DiskGroup {
                name,
                disks: disks.collect(),
            }
        });
        output.write(&IostatReport {
            at_ns,
            interval_cs: tree.uptime_cs.saturating_sub(uptime_cs),
            cpu: cpu_before.zip(tree.cpu),
            groups: groups.collect(),
        })?;
    }
    output.finish()
}

/// A file of the tree: its path and text.
fn file(dir: &Path, name: &str) -> Result<(PathBuf, String), Failure> {
    let nested = dir.join("proc").join(name);
    let path = if nested.exists() {
        nested
    } else {
        dir.join(name)
    };
    match fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(error) => Err(Failure::world(format!("{}: {error}", path.display()))),
    }
}

/// `7192.55` in hundredths; further digits are truncated.
fn centiseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("00".chars()).take(2).collect();
    let seconds: u64 = seconds.parse().ok()?;
    seconds.checked_mul(100)?.checked_add(digits.parse().ok()?)
}

/// The devices of `dir/sys/block` or `dir/block`. The directory of a partition is in that of its
/// device.
fn devices(dir: &Path) -> Option<BTreeMap<String, Device>> {
    let nested = dir.join("sys/block");
    let folder = if nested.exists() {
        nested
    } else {
        dir.join("block")
    };
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let counters = |entry: &fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let line = format!("0 0 x {stat}");
        DiskCounters::parse(&line)
            .ok()
            .map(|(_, counters)| counters)
    };
    let device = |entry: fs::DirEntry| {
        let inside = fs::read_dir(entry.path()).into_iter().flatten().flatten();
        let partitions = inside.filter_map(|e| Some((name(&e), counters(&e)?)));
        let device = Device {
            counters: counters(&entry),
            partitions: partitions.collect(),
        };
        (name(&entry), device)
    };
    Some(fs::read_dir(folder).ok()?.flatten().map(device).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_cut_to_hundredths() {
        let hundredths = ["7192.55", "7", "7.5", "0.129", "x", "", "-1"].map(centiseconds);
        let expected = [
            Some(719_255),
            Some(700),
            Some(750),
            Some(12),
            None,
            None,
            None,
        ];
        assert_eq!(hundredths, expected);
    }
}
