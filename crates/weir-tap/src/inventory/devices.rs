//! The tree of the host's block devices, from sysfs and udev: partitions, device mapper, md, loop,
//! multipath, down to the disks.
//!
//! Sources: Documentation/ABI/stable/sysfs-block of the kernel, udev's database in /run/udev/data
//! (`S:` lines are links below /dev), and the naming of logical volumes of libdevmapper
//! (`dm_build_dm_name`: a dash between the parts, dashes inside them doubled).

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use weir_model::inventory::BlockDevice;
use weir_model::{SECTOR_BYTES, Symbol};

use super::host::Host;
use crate::ebpf::devices::{is_leaf, number};

/// Maximum number of devices that are listed.
const DEVICES_MAX: usize = 1 << 16;

/// The number of a device in the kernel's encoding: `major << 20 | minor`.
pub fn number_of(device: &BlockDevice) -> u32 {
    number(device.major as u32, device.minor as u32)
}

/// All block devices that have a medium, sorted by the names of their disks. A device on several
/// others is listed once for each.
pub fn read(host: &Host) -> Vec<BlockDevice> {
    let by_id = ById::read(host);
    let mut devices = Vec::new();
    for disk in host.names("/sys/block") {
        let folder = PathBuf::from("/sys/block").join(&disk);
        let Some(rows) = disk_rows(host, &by_id, &disk, &folder) else {
            continue;
        };
        if devices.len() + rows.len() > DEVICES_MAX {
            break;
        }
        devices.extend(rows);
    }
    devices
}

/// The rows of a disk and its partitions; `None` if it has no number or no medium.
fn disk_rows(host: &Host, by_id: &ById, name: &str, folder: &Path) -> Option<Vec<BlockDevice>> {
    let path = Symbol::try_new(&device_path(name)).ok()?;
    let disk = device(host, by_id, folder, path, path)?;
    let mut rows = Vec::new();
    let below = below(host, folder);
    if below.is_empty() {
        rows.push(disk.clone());
    }
    for below in below {
        rows.push(BlockDevice {
            below: Some(below),
            ..disk.clone()
        });
    }
    for part in host.names(folder) {
        let part_folder = folder.join(&part);
        if !host.path(part_folder.join("partition")).exists() {
            continue;
        }
        let Some(part) = Symbol::try_new(&device_path(&part))
            .ok()
            .and_then(|part| device(host, by_id, &part_folder, part, path))
        else {
            continue;
        };
        rows.push(BlockDevice {
            kind: Symbol::new("part"),
            below: Some(path),
            start_sectors: host.text(part_folder.join("start"))?.parse().ok(),
            scheduler: disk.scheduler,
            rotational: disk.rotational,
            leaf: disk.leaf,
            ..part
        });
    }
    Some(rows)
}

/// The attributes in the folder of a disk or a partition, without its children.
fn device(
    host: &Host,
    by_id: &ById,
    folder: &Path,
    path: Symbol,
    disk: Symbol,
) -> Option<BlockDevice> {
    let text = |file: &str| host.text(folder.join(file)).filter(|t| !t.is_empty());
    let symbol = |text: Option<String>| Symbol::try_new(&text?).ok();
    let dev = text("dev")?;
    let (major, minor) = dev.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    let sectors: i64 = text("size")?.parse().ok()?;
    if sectors <= 0 {
        return None;
    }
    let mapped = text("dm/name").map(|name| mapper_name(&name, text("dm/uuid").as_deref()));
    let name = path.as_str().rsplit('/').next().unwrap_or_default();
    Some(BlockDevice {
        device: path,
        kind: Symbol::new(kind(name, text("dm/uuid").as_deref(), &|file| {
            host.path(folder.join(file)).exists()
        })),
        below: None,
        disk,
        major,
        minor,
        start_sectors: None,
        bytes: sectors.saturating_mul(SECTOR_BYTES),
        by_id: by_id.of(host, path, &dev),
        name: symbol(mapped),
        file: symbol(text("loop/backing_file")),
        model: symbol(text("device/model").map(|model| model.trim().to_owned())),
        scheduler: symbol(text("queue/scheduler").map(|line| chosen(&line).to_owned())),
        rotational: text("queue/rotational").map(|flag| flag != "0"),
        leaf: is_leaf(&host.path(folder), |file| host.path(file)),
    })
}

/// The type of a device, by lsblk(8)'s names where it has one.
fn kind(name: &str, dm_uuid: Option<&str>, has: &dyn Fn(&str) -> bool) -> &'static str {
    const BY_UUID: [(&str, &str); 4] = [
        ("LVM-", "lvm"),
        ("mpath-", "mpath"),
        ("CRYPT-", "crypt"),
        ("part", "part"),
    ];
    const BY_NAME: [(&str, &str); 6] = [
        ("zram", "zram"),
        ("ram", "ram"),
        ("nbd", "nbd"),
        ("drbd", "drbd"),
        ("rbd", "rbd"),
        ("sr", "rom"),
    ];
    if has("dm") {
        let found = BY_UUID
            .iter()
            .find(|(start, _)| dm_uuid.is_some_and(|u| u.starts_with(start)));
        return found.map_or("dm", |(_, kind)| kind);
    }
    if has("md") {
        return "md";
    }
    if has("loop") || name.starts_with("loop") {
        return "loop";
    }
    let found = BY_NAME.iter().find(|(start, _)| name.starts_with(start));
    found.map_or("disk", |(_, kind)| kind)
}

/// The scheduler in brackets: `[none] mq-deadline kyber`; a line without brackets names the only
/// one.
fn chosen(line: &str) -> &str {
    line.split(['[', ']']).nth(1).unwrap_or(line)
}

/// `vg/lv` for a logical volume, which device mapper calls `vg-lv` with dashes inside doubled.
/// Other names, and those of a volume's hidden layers, are unchanged.
fn mapper_name(name: &str, uuid: Option<&str>) -> String {
    if !uuid.is_some_and(|u| u.starts_with("LVM-")) {
        return name.to_owned();
    }
    let single = name.replace("--", "\0");
    match single.split('-').collect::<Vec<_>>()[..] {
        [group, volume] => format!("{group}/{volume}").replace('\0', "-"),
        _ => name.to_owned(),
    }
}

/// `/dev/cciss/c0d0` for `cciss!c0d0`: sysfs writes `!` where a name has a slash.
fn device_path(name: &str) -> String {
    format!("/dev/{}", name.replace('!', "/"))
}

/// The devices that a disk is built on, or that contain the file of a loop device.
fn below(host: &Host, folder: &Path) -> Vec<Symbol> {
    let slaves = host.names(folder.join("slaves"));
    let mut below: Vec<Symbol> = slaves
        .iter()
        .filter_map(|name| Symbol::try_new(&device_path(name)).ok())
        .collect();
    let file = host.text(folder.join("loop/backing_file"));
    if let Some(number) = file.and_then(|file| device_under(host, Path::new(&file))) {
        below.extend(device_with(host, number));
    }
    below
}

/// The device that holds the data of `path`: `path` if it is a device, otherwise the device of its
/// file system; `None` if that is not a known device.
pub fn device_under(host: &Host, path: &Path) -> Option<u32> {
    use std::os::unix::fs::FileTypeExt;
    let meta = fs::metadata(host.path(path)).ok()?;
    let dev = match meta.file_type().is_block_device() {
        true => meta.rdev(),
        false => meta.dev(),
    };
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    (major != 0).then(|| number(major, minor))
}

/// The path of the device with this number.
fn device_with(host: &Host, number: u32) -> Option<Symbol> {
    let link = format!("/sys/dev/block/{}:{}", number >> 20, number & 0xf_ffff);
    let name = host.link(link)?.file_name()?.to_str()?.to_owned();
    Symbol::try_new(&device_path(&name)).ok()
}

/// The names in /dev/disk/by-id, by kernel name; read only where udev's database has no entry.
struct ById {
    links: HashMap<String, Vec<String>>,
}

impl ById {
    fn read(host: &Host) -> ById {
        let mut links: HashMap<String, Vec<String>> = HashMap::new();
        for name in host.names("/dev/disk/by-id") {
            let target = host.link(Path::new("/dev/disk/by-id").join(&name));
            let kernel_name = target.as_deref().and_then(Path::file_name);
            if let Some(kernel_name) = kernel_name.and_then(|n| n.to_str()) {
                links.entry(kernel_name.to_owned()).or_default().push(name);
            }
        }
        ById { links }
    }

    /// The best of the names of a device: a descriptive name is preferred to a purely numeric one.
    fn of(&self, host: &Host, device: Symbol, dev: &str) -> Option<Symbol> {
        const NUMBERS: [&str; 5] = ["wwn-", "nvme-eui.", "nvme-nvme.", "scsi-3", "dm-uuid-"];
        let database = host.text(format!("/run/udev/data/b{dev}"));
        let links = database.iter().flat_map(|text| text.lines());
        let mut names: Vec<&str> = links
            .filter_map(|line| line.strip_prefix("S:disk/by-id/"))
            .collect();
        let kernel_name = device.as_str().rsplit('/').next().unwrap_or_default();
        names.extend(
            self.links
                .get(kernel_name)
                .into_iter()
                .flatten()
                .map(String::as_str),
        );
        let rank = |name: &&&str| {
            (
                NUMBERS.iter().any(|n| name.starts_with(n)),
                name.to_string(),
            )
        };
        Symbol::try_new(names.iter().min_by_key(rank)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logical_volume_is_called_as_its_owner_calls_it() {
        let lvm = Some("LVM-abc");
        assert_eq!(mapper_name("vg-lv", lvm), "vg/lv");
        assert_eq!(mapper_name("my--vg-data--1", lvm), "my-vg/data-1");
        assert_eq!(mapper_name("vg-lv-real", lvm), "vg-lv-real");
        assert_eq!(mapper_name("vg-lv", Some("CRYPT-LUKS2")), "vg-lv");
        assert_eq!(mapper_name("vg-lv", None), "vg-lv");
    }

    #[test]
    fn the_scheduler_in_use_is_in_brackets() {
        assert_eq!(chosen("[none] mq-deadline kyber"), "none");
        assert_eq!(chosen("none [bfq]"), "bfq");
        assert_eq!(chosen("none"), "none");
    }
}
