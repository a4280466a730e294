//! [`Devices`]: the block devices of the host as sysfs tells of them, and which of them the demands
//! want.
//!
//! By default a demand gets the leaf devices, where an I/O ends, so that nothing is counted twice:
//! a dm or md device is left out because its I/O comes again on the devices below it, and so is a
//! loop device whose file lies on one. A device that a query names is always in.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use weir_model::Symbol;

use super::filesystem;
use super::rows::Place;
use super::selection::Clause;

/// Which devices a demand gets that names none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Those where an I/O ends.
    #[default]
    Leaves,
    /// All; an I/O through a stack of devices is then told once per level.
    All,
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
    /// Whether I/O ends here.
    pub leaf: bool,
    /// Whether it has no requests, only bios.
    pub bio_based: bool,
    /// Whether there is a medium: an idle loop device has none.
    pub present: bool,
    /// Row of the disk in the counters; 0 if there are more disks than rows.
    pub index: u32,
    /// The demands that want it, a bit each.
    pub demands: u64,
}

/// All devices seen so far.
#[derive(Debug)]
pub struct Devices {
    choice: DeviceChoice,
    clauses: Vec<Clause>,
    demand_count: usize,
    by_number: HashMap<u32, Device>,
    /// The text of `/proc/partitions` when sysfs was read.
    partitions: String,
    rows: u32,
    rows_max: u32,
}

impl Devices {
    /// The devices there are now. `rows_max` is how many disks can be counted apart.
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
            partitions: String::new(),
            rows: 1,
            rows_max,
        };
        devices.refresh();
        devices
    }

    /// Reads sysfs again if a disk, a partition or a size has changed; the devices that are new or
    /// have changed.
    pub fn refresh(&mut self) -> Vec<Device> {
        let mut changed = Vec::new();
        let partitions = fs::read_to_string("/proc/partitions").unwrap_or_default();
        if !partitions.is_empty() && partitions == self.partitions {
            return changed;
        }
        self.partitions = partitions;
        for mut device in read_sysfs() {
            let known = self.by_number.get(&device.number);
            device.index = match known.or_else(|| self.by_number.get(&device.disk)) {
                Some(known) => known.index,
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

    /// The device with this number.
    pub fn get(&self, number: u32) -> Option<&Device> {
        self.by_number.get(&number)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        self.by_number.values()
    }

    /// The sectors of a whole disk; `None` if it is gone.
    pub fn sectors(&self, disk: u32) -> Option<u64> {
        let size = Path::new(&self.get(disk)?.sysfs).join("size");
        read_text(&size)?.parse().ok()
    }

    /// The whole disks of which every request is wanted, partitions and all: those that the
    /// kernel's counts can be held against.
    pub fn whole_disks(&self) -> Vec<&Device> {
        let mut disks = self.wanted_disks();
        disks.retain(|disk| {
            let mut parts = self.iter().filter(|p| p.disk == disk.number);
            parts.all(|p| self.marks(p) != 0)
        });
        disks
    }

    /// The disks with a medium that are wanted, or a partition of which is, by their paths.
    pub fn wanted_disks(&self) -> Vec<&Device> {
        let wanted = |d: &&Device| {
            let mut parts = self.iter().filter(|p| p.disk == d.number);
            d.number == d.disk && d.present && parts.any(|p| self.marks(p) != 0)
        };
        let mut disks: Vec<&Device> = self.iter().filter(wanted).collect();
        disks.sort_by_key(|d| d.path.as_str());
        disks
    }

    /// What the kernel side is told of a device: bit 0, wanted at all; bit 1 + i, passes clause i.
    pub fn marks(&self, device: &Device) -> u32 {
        let passes = |clause: &Clause| {
            let named = clause.devices.as_ref();
            named.is_none_or(|d| d.contains(&device.path)) && clause.demands & device.demands != 0
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

    /// The demands that get the I/O of a device that sysfs does not tell of.
    fn demands_for_unknown(&self) -> u64 {
        match self.choice {
            DeviceChoice::Named(_) => 0,
            DeviceChoice::Leaves | DeviceChoice::All => {
                (0..self.demand_count).fold(0, |all, d| all | 1 << d)
            }
        }
    }

    fn demands_for(&self, device: &Device) -> u64 {
        let by_default = match &self.choice {
            DeviceChoice::Leaves => device.leaf,
            DeviceChoice::All => true,
            DeviceChoice::Named(paths) => {
                let whole = whole_path(&device.sysfs);
                let path = device.path.as_str();
                paths.iter().any(|p| p == path || *p == whole)
            }
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

/// `/dev/sda` for `/sys/block/sda`; sysfs writes `!` where a name has a slash.
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
        let Some(number) = read_number(&sysfs) else {
            continue;
        };
        // Paths below a multipath disk are told of by the disk itself.
        let hidden = read_text(&sysfs.join("hidden")).is_some_and(|text| text == "1");
        let leaf = !hidden && is_leaf(&sysfs);
        let sysfs_text = sysfs.to_string_lossy().into_owned();
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

/// False for a device whose I/O comes again on another block device below it.
fn is_leaf(sysfs: &Path) -> bool {
    let stacked =
        fs::read_dir(sysfs.join("slaves")).is_ok_and(|mut slaves| slaves.next().is_some());
    if stacked {
        return false;
    }
    match read_text(&sysfs.join("loop/backing_file")) {
        None => true,
        Some(file) => {
            let path = Path::new(&file);
            let on_device = |meta: fs::Metadata| {
                use std::os::unix::fs::FileTypeExt;
                meta.file_type().is_block_device() || filesystem::on_block_device(path, meta.dev())
            };
            // A file that is gone still lies somewhere; a device most likely.
            !fs::metadata(path).map_or(true, on_device)
        }
    }
}

/// The number in `DIR/dev`, which reads `major:minor`.
fn read_number(dir: &Path) -> Option<u32> {
    let text = read_text(&dir.join("dev"))?;
    let (major, minor) = text.split_once(':')?;
    Some(self::number(major.parse().ok()?, minor.parse().ok()?))
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
