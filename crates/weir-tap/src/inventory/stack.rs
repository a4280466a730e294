//! The devices below a block device: a partition on its disk, a loop device on a file or a device,
//! a linear device of the device mapper on others. From sysfs, LOOP_GET_STATUS64 and the device
//! mapper's tables.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{dm_table, loop_status};

/// Sectors of a device that are sectors of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first sector on the upper device.
    pub start: u64,
    /// The lower device, possibly a partition.
    pub device: u32,
    /// The first sector on the lower device.
    pub sector: u64,
    /// The number of sectors.
    pub sectors: u64,
    /// Whether other files may share them.
    pub shared: bool,
}

/// The position of a device on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackPosition {
    /// The whole disk; the device, if it is one.
    pub disk: u32,
    /// The first sector on the disk.
    pub start: u64,
    /// The number of sectors.
    pub sectors: u64,
}

/// What is below a whole device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Below {
    /// Nothing that this host can observe.
    Bottom,
    /// A mapping that is not resolved: RAID, encryption, thin volumes.
    Opaque,
    /// A file of `sectors` sectors, starting at its sector `start`.
    File {
        /// Its path.
        path: PathBuf,
        /// The first sector in it.
        start: u64,
        /// The number of sectors, if limited.
        sectors: Option<u64>,
    },
    /// Other devices.
    Segments(Vec<Segment>),
}

/// The host's block devices that were requested so far.
#[derive(Debug, Default)]
pub struct Stack {
    places: HashMap<u32, Option<StackPosition>>,
    below: HashMap<u32, Arc<Below>>,
    /// Tables of the device mapper, with the attributes under which they were read.
    tables: HashMap<u32, (String, Vec<Segment>)>,
}

/// A device number in the kernel's encoding, from that of stat(2).
pub fn number(dev: u64) -> u32 {
    libc::major(dev) << 20 | libc::minor(dev)
}

/// The folder of a device in sysfs.
fn sysfs(device: u32) -> PathBuf {
    let (major, minor) = (device >> 20, device & 0xf_ffff);
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// The position of `device` on its disk, from sysfs.
fn place(device: u32) -> Option<StackPosition> {
    let folder = sysfs(device);
    let sectors = read_number(&folder.join("size"))?;
    if !folder.join("partition").exists() {
        return Some(StackPosition {
            disk: device,
            start: 0,
            sectors,
        });
    }
    let start = read_number(&folder.join("start"))?;
    let disk = fs::read_to_string(folder.join("../dev")).ok()?;
    Some(StackPosition {
        disk: parse_number(disk.trim_end())?,
        start,
        sectors,
    })
}

/// The device with `major:minor` in `text`.
pub fn parse_number(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    (major < 1 << 12 && minor < 1 << 20).then_some(major << 20 | minor)
}

impl Stack {
    /// Discards the cached devices.
    pub fn forget(&mut self) {
        self.places.clear();
        self.below.clear();
    }

    /// The position of `device` on its disk; `None` if it no longer exists.
    pub fn place(&mut self, device: u32) -> Option<StackPosition> {
        *self.places.entry(device).or_insert_with(|| place(device))
    }

    /// What is below whole device `device`.
    pub fn below(&mut self, device: u32) -> Arc<Below> {
        if let Some(below) = self.below.get(&device) {
            return below.clone();
        }
        let below = Arc::new(self.look_below(device));
        self.below.insert(device, below.clone());
        below
    }

    fn look_below(&mut self, device: u32) -> Below {
        let folder = sysfs(device);
        if folder.join("loop").exists() {
            return below_loop(device, &folder).unwrap_or(Below::Opaque);
        }
        if folder.join("dm").exists() {
            let table = self.table(device, &folder);
            return table.map_or(Below::Opaque, Below::Segments);
        }
        match slaves(&folder).is_empty() {
            true => Below::Bottom,
            false => Below::Opaque,
        }
    }

    /// The linear parts of a table.
    ///
    /// Reading a table requires CAP_SYS_ADMIN. Without it, a table read before is used as long as
    /// the device's name, size and underlying devices have remained unchanged.
    fn table(&mut self, device: u32, folder: &Path) -> Option<Vec<Segment>> {
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let slaves = slaves(folder).join(" ");
        let state = format!("{} {} {slaves}", text("dm/uuid"), text("size"));
        match dm_table::read(device) {
            Ok(segments) => {
                self.tables.insert(device, (state, segments.clone()));
                Some(segments)
            }
            Err(_) => match self.tables.get(&device) {
                Some((before, segments)) if *before == state => Some(segments.clone()),
                _ => {
                    self.tables.remove(&device);
                    None
                }
            },
        }
    }
}

fn slaves(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("slaves")).into_iter().flatten();
    let names = entries.flatten().map(|e| e.file_name());
    let mut names: Vec<String> = names.map(|n| n.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn below_loop(device: u32, folder: &Path) -> Option<Below> {
    let path = PathBuf::from(first_line(&folder.join("loop/backing_file"))?);
    let start_bytes = read_number(&folder.join("loop/offset"))?;
    let limit_bytes = read_number(&folder.join("loop/sizelimit"))?;
    if start_bytes % 512 != 0 || limit_bytes % 512 != 0 {
        return None;
    }
    let name = fs::canonicalize(folder).ok()?;
    let node = Path::new("/dev").join(name.file_name()?);
    let identity = loop_status::identity(&File::open(node).ok()?).ok()?;
    let meta = fs::metadata(&path).ok()?;
    // The path is as of the setup of the device, in the mount namespace of the process that did it.
    if identity != (loop_status::encoded(meta.dev()), meta.ino()) || identity.1 == 0 {
        return None;
    }
    let limit = (limit_bytes != 0).then_some(limit_bytes / 512);
    if meta.file_type().is_block_device() {
        let own = place(device)?;
        return Some(Below::Segments(vec![Segment {
            start: 0,
            device: number(meta.rdev()),
            sector: start_bytes / 512,
            sectors: limit.unwrap_or(own.sectors),
            shared: false,
        }]));
    }
    Some(Below::File {
        path,
        start: start_bytes / 512,
        sectors: limit,
    })
}

fn read_number(path: &Path) -> Option<u64> {
    first_line(path)?.parse().ok()
}

fn first_line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!(number(libc::makedev(259, 300)), 259 << 20 | 300);
        assert_eq!(parse_number("8:17"), Some(8 << 20 | 17));
        assert_eq!(parse_number("8:"), None);
        assert_eq!(parse_number("5000:1"), None);
    }

    #[test]
    fn every_disk_of_this_host_is_its_own_place() {
        for disk in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let number = first_line(&disk.path().join("dev")).and_then(|d| parse_number(&d));
            let Some(number) = number else {
                continue;
            };
            let found = place(number).map(|p| (p.disk, p.start));
            assert_eq!(found, Some((number, 0)), "{}", disk.path().display());
        }
    }
}
