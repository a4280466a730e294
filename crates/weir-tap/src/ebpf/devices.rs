//! [`Devices`]: the block devices of the host as listed in sysfs, and the demands that include
//! each.
//!
//! By default a demand gets the leaf devices, where an I/O ends, so that nothing is counted twice:
//! a dm or md device is excluded because its I/O is repeated on the devices below it, and so is a
//! loop device whose file lies on one. A device that a query names is always included.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use weir_model::Symbol;

use super::filesystem;
use super::layout::test;
use super::rows::Place;
use super::selection::Clause;
use crate::RECORDING;

/// The devices of a demand that names none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Those where an I/O ends.
    #[default]
    Leaves,
    /// All; an I/O through a stack of devices is then reported once per level.
    All,
    /// Those where an I/O ends, and these, as `/dev/dm-0`.
    LeavesAnd(Vec<String>),
    /// These, as `/dev/sda`.
    Named(Vec<String>),
}

/// A disk or a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// As the kernel keeps it: `major << 20 | minor`.
    pub number: u32,
    /// `/dev/sda3`
    pub path: Symbol,
    /// The number of the whole disk; its own for a disk.
    pub disk: u32,
    /// The directory of the disk in sysfs, as `/sys/block/sda`.
    pub sysfs: String,
    /// True if I/O ends here.
    pub leaf: bool,
    /// True if it has no requests, only bios.
    pub bio_based: bool,
    /// True if there is a medium: an idle loop device has none.
    pub present: bool,
    /// Row of the disk in the counters; 0 if there are more disks than rows.
    pub index: u32,
    /// The demands that include it, a bit each.
    pub demands: u64,
}

/// All known devices.
#[derive(Debug)]
pub struct Devices {
    choice: DeviceChoice,
    clauses: Vec<Clause>,
    demand_count: usize,
    by_number: HashMap<u32, Device>,
    /// The listing when sysfs was last read.
    listed: Listed,
    rows: u32,
    rows_max: u32,
}

/// Listing that changes when a device is added, removed or resized.
#[derive(Debug, Default, PartialEq, Eq)]
struct Listed {
    /// The text of `/proc/partitions`.
    partitions: String,
    /// The disks in sysfs, for the hidden ones, which `/proc/partitions` leaves out.
    disks: BTreeSet<OsString>,
}

impl Listed {
    fn now() -> Listed {
        let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        Listed {
            partitions: fs::read_to_string("/proc/partitions").unwrap_or_default(),
            disks: disks.map(|disk| disk.file_name()).collect(),
        }
    }
}

impl Devices {
    /// The current devices. `rows_max` is the number of disks that can be counted separately.
    pub fn new(
        choice: DeviceChoice,
        clauses: Vec<Clause>,
        demand_count: usize,
        rows_max: u32,
    ) -> Devices {
        let mut devices = Devices {
            choice,
            clauses,
            demand_count,
            by_number: HashMap::new(),
            listed: Listed::default(),
            rows: 1,
            rows_max,
        };
        devices.refresh();
        devices
    }

    /// Reads sysfs again if a disk, a partition or a size has changed; returns the devices that are
    /// new or have changed.
    pub fn refresh(&mut self) -> Vec<Device> {
        let mut changed = Vec::new();
        let listed = Listed::now();
        if !listed.partitions.is_empty() && listed == self.listed {
            return changed;
        }
        self.listed = listed;
        for mut device in read_sysfs() {
            let known = self.by_number.get(&device.number);
            device.index = match self.row_of(&device) {
                Some(row) => row,
                None if self.rows < self.rows_max => {
                    self.rows += 1;
                    self.rows - 1
                }
                None => 0,
            };
            device.demands = self.demands_for(&device);
            if known != Some(&device) {
                self.by_number.insert(device.number, device.clone());
                changed.push(device);
            }
        }
        changed
    }

    /// The row of the disk of `device`, if it has one. The number of an earlier device may be that
    /// of a device on another disk now.
    fn row_of(&self, device: &Device) -> Option<u32> {
        let known = |number: u32| self.by_number.get(&number);
        let same = known(device.number).filter(|known| known.disk == device.disk);
        let disk = || known(device.disk).filter(|known| known.number == known.disk);
        Some(same.or_else(disk)?.index)
    }

    /// The device with this number.
    pub fn get(&self, number: u32) -> Option<&Device> {
        self.by_number.get(&number)
    }

    /// All known devices.
    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        self.by_number.values()
    }

    /// The number of sectors of a whole disk; `None` if it was removed.
    pub fn sectors(&self, disk: u32) -> Option<u64> {
        let size = Path::new(&self.get(disk)?.sysfs).join("size");
        read_text(&size)?.parse().ok()
    }

    /// The whole disks of which every request is demanded, including partitions: those that can be
    /// compared with the kernel's counters. Bios that no clause passes are not counted at their
    /// ends, so a disk without requests needs a clause that tests only the device.
    pub fn whole_disks(&self) -> Vec<&Device> {
        let clauses = self.clauses.iter().enumerate();
        let open = clauses.filter(|(_, clause)| clause.raw.tests & !test::DEVICE == 0);
        let open: u32 = open.map(|(i, _)| 1 << (1 + i)).sum();
        let mut disks = self.wanted_disks();
        disks.retain(|disk| {
            let counted = if disk.bio_based { open } else { u32::MAX };
            let mut parts = self.iter().filter(|p| p.disk == disk.number);
            parts.all(|p| self.marks(p) & counted != 0)
        });
        disks
    }

    /// The disks with a medium that are demanded, or a partition of which is, by their paths.
    pub fn wanted_disks(&self) -> Vec<&Device> {
        let wanted = |d: &&Device| {
            let mut parts = self.iter().filter(|p| p.disk == d.number);
            d.number == d.disk && d.present && parts.any(|p| self.marks(p) != 0)
        };
        let mut disks: Vec<&Device> = self.iter().filter(wanted).collect();
        disks.sort_by_key(|d| d.path.as_str());
        disks
    }

    /// A sentence about the demanded disks without requests, if there are any, for a tap without
    /// probes for bios: these run for each bio of the host, and are attached only if there is such
    /// a disk when the tap is opened.
    pub fn added_without_probes(&self) -> Option<String> {
        let disks = self.wanted_disks().into_iter().filter(|d| d.bio_based);
        let paths: Vec<&str> = disks.map(|d| d.path.as_str()).collect();
        (!paths.is_empty()).then(|| {
            format!(
                "not observed: {}, added after the probes were attached; start weir again to \
                 observe it",
                paths.join(", ")
            )
        })
    }

    /// The marks of a device for the kernel programs: bit 0, demanded at all; bit 1 + i, passes
    /// clause i. One that follows requests follows those of the whole disk, so that the relation of
    /// a request to the others does not depend on what is selected.
    pub fn marks(&self, device: &Device) -> u32 {
        let names = |clause: &Clause, device: &Device| {
            let named = clause.devices.as_ref();
            named.is_none_or(|d| d.contains(&device.path)) && clause.demands & device.demands != 0
        };
        let passes = |clause: &Clause| match clause.follows {
            true => {
                let mut parts = self.iter().filter(|part| part.disk == device.disk);
                parts.any(|part| names(clause, part))
            }
            false => names(clause, device),
        };
        let clauses = self.clauses.iter().enumerate();
        let bits = clauses.map(|(i, c)| u32::from(passes(c)) << (1 + i));
        let bits: u32 = bits.sum();
        bits | u32::from(bits != 0)
    }

    /// The device with this number as rows name it.
    pub fn place(&self, number: u32) -> Place {
        match self.get(number) {
            Some(device) => Place {
                path: Some(device.path),
                disk: device.disk,
                demands: device.demands,
            },
            None => Place {
                path: None,
                disk: number,
                demands: self.demands_for_unknown(),
            },
        }
    }

    /// The demands that get the I/O of a device that is not in sysfs.
    fn demands_for_unknown(&self) -> u64 {
        match self.choice {
            DeviceChoice::Named(_) => 0,
            DeviceChoice::Leaves | DeviceChoice::LeavesAnd(_) | DeviceChoice::All => {
                (0..self.demand_count).fold(0, |all, d| all | 1 << d)
            }
        }
    }

    fn demands_for(&self, device: &Device) -> u64 {
        let by_default = match &self.choice {
            DeviceChoice::Leaves => device.leaf,
            DeviceChoice::All => true,
            DeviceChoice::LeavesAnd(paths) => device.leaf || is_among(device, paths),
            DeviceChoice::Named(paths) => is_among(device, paths),
        };
        let names = |demand: usize| {
            let own = self.clauses.iter().filter(|c| c.demands >> demand & 1 == 1);
            let mut named = own.filter_map(|c| c.devices.as_ref());
            named.any(|devices| devices.contains(&device.path))
        };
        let demands = 0..self.demand_count;
        let wanted = demands.filter(|d| by_default || names(*d));
        wanted.fold(0, |all, d| all | 1 << d)
    }
}

/// The columns that name block devices as [`kernel_name`] does: stream or relation, and column.
pub const DEVICE_COLUMNS: [(&str, &str); 7] = [
    ("IO", "pdisk"),
    ("IOstream", "pdisk"),
    (RECORDING, "pdisk"),
    ("disks", "pdisk"),
    ("devices", "device"),
    ("devices", "below"),
    ("devices", "disk"),
];

/// The path by which the kernel and rows name a block device, for any path of it: `/dev/dm-0` for
/// `/dev/mapper/root`, `/dev/sda` for a link in `/dev/disk`. The device's number is decisive, since
/// a path in `/dev` may be a separate node instead of a link.
///
/// # Errors
/// If `path` does not exist, or is not a block device.
pub fn kernel_name(path: &Path) -> io::Result<String> {
    let meta = fs::metadata(path)?;
    if !meta.file_type().is_block_device() {
        return Err(io::Error::other("not a block device"));
    }
    let number = meta.rdev();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let sysfs = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))?;
    Ok(whole_path(&sysfs.to_string_lossy()))
}

/// True if a device, or the whole disk of a partition, is one of these.
fn is_among(device: &Device, paths: &[String]) -> bool {
    let whole = whole_path(&device.sysfs);
    let path = device.path.as_str();
    paths.iter().any(|p| p == path || *p == whole)
}

/// The disks that [`DeviceChoice::Leaves`] excludes, by path, each with the number of requests that
/// it has finished since its creation (Documentation/block/stat.rst).
pub fn stacked_devices() -> Vec<(String, u64)> {
    let devices = read_sysfs().into_iter();
    let mut stacked: Vec<(String, u64)> = devices
        .filter(|d| !d.leaf && d.present && d.number == d.disk)
        .map(|device| {
            let text = read_text(&Path::new(&device.sysfs).join("stat")).unwrap_or_default();
            let fields: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
            // Reads, writes, discards and flushes.
            let requests = [0, 4, 11, 15].into_iter().filter_map(|at| fields.get(at));
            (device.path.as_str().to_owned(), requests.sum())
        })
        .collect();
    stacked.sort();
    stacked
}

/// `/dev/sda` for `/sys/block/sda`; sysfs has `!` for a slash in a name.
fn whole_path(sysfs: &str) -> String {
    let name = sysfs.rsplit('/').next().unwrap_or_default();
    format!("/dev/{}", name.replace('!', "/"))
}

fn read_sysfs() -> Vec<Device> {
    let mut devices = Vec::new();
    let Ok(disks) = fs::read_dir("/sys/block") else {
        return devices;
    };
    for disk in disks.flatten() {
        let sysfs = disk.path();
        let sysfs_text = sysfs.to_string_lossy().into_owned();
        // A path of a multipath disk: the I/O of the disk itself is repeated here.
        let hidden = read_text(&sysfs.join("hidden")).is_some_and(|text| text == "1");
        let number = match hidden {
            true => hidden_number(&whole_path(&sysfs_text)),
            false => read_number(&sysfs),
        };
        let Some(number) = number else {
            continue;
        };
        let leaf = !hidden && is_leaf(&sysfs, |file| file.into());
        let device = |number: u32, path: &str, disk: u32| Device {
            number,
            path: Symbol::new(path),
            disk,
            sysfs: sysfs_text.clone(),
            leaf,
            bio_based: !sysfs.join("mq").exists(),
            present: read_text(&sysfs.join("size")).is_some_and(|size| size != "0"),
            index: 0,
            demands: 0,
        };
        devices.push(device(number, &whole_path(&sysfs_text), number));
        for part in fs::read_dir(&sysfs).into_iter().flatten().flatten() {
            let part = part.path();
            if !part.join("partition").exists() {
                continue;
            }
            if let Some(part_number) = read_number(&part) {
                let path = whole_path(&part.to_string_lossy());
                devices.push(device(part_number, &path, number));
            }
        }
    }
    devices
}

/// False for a disk whose I/O is repeated on another block device below it. `sysfs` is its
/// directory in sysfs; `path_of` returns the path in this process of a path of the host.
pub fn is_leaf(sysfs: &Path, path_of: impl FnOnce(&str) -> PathBuf) -> bool {
    let below = fs::read_dir(sysfs.join("slaves"));
    if below.is_ok_and(|mut below| below.next().is_some()) {
        return false;
    }
    let Some(file) = read_text(&sysfs.join("loop/backing_file")) else {
        return true;
    };
    let path = path_of(&file);
    // A deleted file still has a location; most likely on a device.
    !fs::metadata(&path).map_or(true, |meta| {
        meta.file_type().is_block_device() || filesystem::on_block_device(&path, meta.dev())
    })
}

/// The number in `DIR/dev`, which has the form `major:minor`.
fn read_number(dir: &Path) -> Option<u32> {
    let text = read_text(&dir.join("dev"))?;
    let (major, minor) = text.split_once(':')?;
    Some(self::number(major.parse().ok()?, minor.parse().ok()?))
}

/// The number of a hidden disk, which has no `dev` in sysfs.
fn hidden_number(path: &str) -> Option<u32> {
    number_in(&fs::read_to_string("/proc/diskstats").ok()?, path)
}

/// The number of a disk by its line in the text of `/proc/diskstats`, which includes hidden disks.
fn number_in(diskstats: &str, path: &str) -> Option<u32> {
    diskstats.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (major, minor) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let named = format!("/dev/{}", words.next()?) == path;
        named.then(|| number(major, minor))
    })
}

/// A device number as the kernel keeps it (`MKDEV` of include/linux/kdev_t.h).
pub fn number(major: u32, minor: u32) -> u32 {
    major << 20 | minor
}

/// A file's first line.
pub fn read_text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_disk_has_its_number_in_diskstats() {
        let text = " 259       1 nvme0n1 1 0 8 0 0 0 0 0 0 0 0\n 259       3 nvme0c1n1 1 0 8 0\n";
        let number_of = |path| number_in(text, path);
        assert_eq!(number_of("/dev/nvme0c1n1"), Some(259 << 20 | 3));
        assert_eq!(number_of("/dev/nvme0n1"), Some(259 << 20 | 1));
        assert_eq!(number_of("/dev/nvme0c0n1"), None);
    }

    #[test]
    fn a_number_that_is_used_again_has_the_row_of_its_disk() {
        let mut devices = Devices::new(DeviceChoice::All, Vec::new(), 0, 256);
        let device = |minor: u32, disk: u32, index| Device {
            number: 900 << 20 | minor,
            path: Symbol::new("/dev/test"),
            disk: 900 << 20 | disk,
            sysfs: "/sys/block/none".into(),
            leaf: true,
            bio_based: false,
            present: true,
            index,
            demands: 0,
        };
        for known in [device(0, 0, 101), device(1, 0, 101), device(2, 2, 102)] {
            devices.by_number.insert(known.number, known);
        }
        let row = |minor, disk| devices.row_of(&device(minor, disk, 0));
        assert_eq!(
            (row(0, 0), row(1, 0), row(2, 2)),
            (Some(101), Some(101), Some(102))
        );
        assert_eq!(row(3, 2), Some(102), "a new partition");
        assert_eq!(row(1, 2), Some(102), "a partition of another disk");
        assert_eq!(row(1, 1), None, "a disk with the number of a partition");
        assert_eq!(row(4, 1), None, "a partition of it, which is not known yet");
    }

    #[test]
    fn any_path_of_a_device_leads_to_the_kernel_s_name() {
        for path in read_sysfs().iter().map(|d| d.path.as_str()) {
            // A container may have few nodes, and hidden disks have none.
            if let Ok(name) = kernel_name(Path::new(path)) {
                assert_eq!(name, path);
            }
        }
        for path in ["/dev/null", "/dev/nosuchdisk", "/tmp"] {
            assert!(kernel_name(Path::new(path)).is_err(), "{path}");
        }
    }
}
