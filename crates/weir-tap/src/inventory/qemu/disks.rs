//! The disks of a QEMU, from its command line, each with the name that a guest assigns.
//!
//! Linux names virtio disks in the order in which it finds them on the PCI bus, `/dev/vda` first;
//! SCSI, IDE and USB disks share `/dev/sda`, `/dev/sdb`, .., drives with removable media
//! `/dev/sr0`. A guest may use other names; the device's own name is reported as well.

use std::collections::HashMap;

use super::command_line::{CommandLine, socket};
use super::nodes::Medium;
use super::options::{Options, number};
use crate::inventory::found::{FoundDisk, Source};

/// Maximum depth of PCI bridges.
const BRIDGES_MAX: usize = 16;

/// Slots of a PCI bus for devices without an address; the first ones are used by the machine.
const SLOTS: std::ops::Range<u64> = 3..32;

/// Disks whose names share one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// `/dev/vda`, ..
    Virtio,
    /// `/dev/sda`, ..
    Scsi,
    /// `/dev/sr0`, ..
    Optical,
    /// `/dev/nvme0n1`, ..
    Nvme,
}

/// Drivers of disks: the bus that the guest sees, and the family of names.
pub const DRIVERS: [(&str, &str, Family); 22] = [
    ("virtio-blk", "virtio-blk", Family::Virtio),
    ("virtio-blk-pci", "virtio-blk", Family::Virtio),
    ("virtio-blk-pci-transitional", "virtio-blk", Family::Virtio),
    (
        "virtio-blk-pci-non-transitional",
        "virtio-blk",
        Family::Virtio,
    ),
    ("virtio-blk-ccw", "virtio-blk", Family::Virtio),
    ("virtio-blk-device", "virtio-blk", Family::Virtio),
    ("vhost-user-blk", "vhost-user-blk", Family::Virtio),
    ("vhost-user-blk-pci", "vhost-user-blk", Family::Virtio),
    (
        "vhost-user-blk-pci-transitional",
        "vhost-user-blk",
        Family::Virtio,
    ),
    (
        "vhost-user-blk-pci-non-transitional",
        "vhost-user-blk",
        Family::Virtio,
    ),
    ("vhost-user-blk-ccw", "vhost-user-blk", Family::Virtio),
    ("ide-hd", "ide", Family::Scsi),
    ("ide-drive", "ide", Family::Scsi),
    ("ide-cd", "ide", Family::Optical),
    ("scsi-hd", "scsi", Family::Scsi),
    ("scsi-disk", "scsi", Family::Scsi),
    ("scsi-block", "scsi", Family::Scsi),
    ("scsi-cd", "scsi", Family::Optical),
    ("usb-storage", "usb", Family::Scsi),
    ("usb-bot", "usb", Family::Scsi),
    ("nvme", "nvme", Family::Nvme),
    ("nvme-ns", "nvme", Family::Nvme),
];

/// A disk, and the attributes that determine its name.
#[derive(Clone, Debug)]
struct Plugged {
    disk: FoundDisk,
    family: Family,
    /// Guests enumerate IDE disks before SCSI before USB, each in the order of the addresses.
    order: (u8, Vec<u64>),
    /// For an NVMe disk, the number of its namespace.
    namespace: u64,
}

/// The disks of a VM, in the order of their names.
pub fn disks(line: &CommandLine) -> Vec<FoundDisk> {
    let drives = Drives::new(line);
    let slots = Slots::new(line);
    let mut plugged: Vec<Plugged> = Vec::new();
    for (position, device) in line.devices.iter().enumerate() {
        plugged.extend(of_device(line, &drives, &slots, device, position));
    }
    plugged.extend(
        drives
            .plain
            .iter()
            .map(|(drive, of)| of_drive(line, drive, of)),
    );
    name(plugged)
}

/// The `-drive`s of a command line.
struct Drives<'a> {
    by_id: HashMap<&'a str, &'a Options>,
    /// Drives that include their device, and their bus.
    plain: Vec<(&'a Options, Plain)>,
}

/// The bus position of a drive that includes its device.
struct Plain {
    interface: &'static str,
    index: u64,
}

impl<'a> Drives<'a> {
    fn new(line: &'a CommandLine) -> Drives<'a> {
        let default = default_interface(line.machine.as_deref().unwrap_or_default());
        let mut drives = Drives {
            by_id: HashMap::new(),
            plain: Vec::new(),
        };
        let mut next: HashMap<&str, u64> = HashMap::new();
        for drive in &line.drives {
            drives.by_id.extend(drive.get("id").map(|id| (id, drive)));
            let interface = match drive.get("if").unwrap_or(default) {
                "virtio" => "virtio",
                "scsi" => "scsi",
                "ide" => "ide",
                // With `none` a -device uses it; others are not disks: firmware, floppies.
                _ => continue,
            };
            let free = next.entry(interface).or_default();
            let index = drive.number("index").unwrap_or(*free);
            *free = index.saturating_add(1);
            drives.plain.push((drive, Plain { interface, index }));
        }
        drives
    }
}

/// The default interface of a `-drive` (`block_default_type` of QEMU's machines).
fn default_interface(machine: &str) -> &'static str {
    match machine {
        m if m.starts_with("virt") || m.starts_with("s390") || m == "microvm" => "virtio",
        m if m.starts_with("pseries") => "scsi",
        _ => "ide",
    }
}

fn of_drive(line: &CommandLine, drive: &Options, of: &Plain) -> Plugged {
    let optical = drive.get("media") == Some("cdrom");
    let (family, rank, bus) = match (of.interface, optical) {
        ("virtio", _) => (Family::Virtio, 1, "virtio-blk"),
        (bus, true) => (Family::Optical, 0, bus),
        ("scsi", false) => (Family::Scsi, 1, "scsi"),
        (bus, false) => (Family::Scsi, 0, bus),
    };
    let disk = FoundDisk {
        bus: Some(bus.to_owned()),
        drive: drive.text("id").or_else(|| Some(made_up(of, optical))),
        node: drive.text("node-name"),
        read_only: optical.then_some(true),
        ..FoundDisk::default()
    };
    Plugged {
        disk: medium_of_drive(line, drive).fill(disk),
        family,
        // Each of the machine's IDE buses has two positions; other devices are plugged in after all
        // that were requested.
        order: match of.interface {
            "ide" => (rank, vec![of.index / 2, of.index % 2]),
            _ => (rank, vec![u64::MAX, of.index]),
        },
        namespace: 1,
    }
}

/// The name that QEMU generates for a drive without an id (`drive_new` of blockdev.c).
fn made_up(of: &Plain, optical: bool) -> String {
    let kind = if optical { "cd" } else { "hd" };
    match of.interface {
        "virtio" => format!("virtio{}", of.index),
        "ide" => format!("ide{}-{kind}{}", of.index / 2, of.index % 2),
        // `MAX_SCSI_DEVS` units per bus.
        other => format!("{other}{}-{kind}{}", of.index / 7, of.index % 7),
    }
}

fn medium_of_drive(line: &CommandLine, drive: &Options) -> Medium {
    let mut medium = Medium::of_drive(drive, &line.nodes);
    if line.snapshot || drive.flag("snapshot") == Some(true) {
        // Writes go to a file without a name: only reads of the image are observed.
        medium.format = None;
    }
    medium
}

fn of_device(
    line: &CommandLine,
    drives: &Drives,
    slots: &Slots,
    device: &Options,
    position: usize,
) -> Option<Plugged> {
    let driver = device.get("driver")?;
    let (_, bus, family) = *DRIVERS.iter().find(|(name, ..)| *name == driver)?;
    let optical = family == Family::Optical;
    let mut disk = FoundDisk {
        bus: Some(controller(line, device, bus).to_owned()),
        device: device.text("id"),
        read_only: optical.then_some(true),
        ..FoundDisk::default()
    };
    match device.get("drive") {
        Some(id) => match (drives.by_id.get(id), line.nodes.get(id)) {
            (Some(drive), _) => {
                disk.drive = Some(id.to_owned());
                disk.node = drive.text("node-name");
                disk = medium_of_drive(line, drive).fill(disk);
            }
            (None, Some(node)) => {
                disk.node = Some(id.to_owned());
                disk = Medium::of_node(node, &line.nodes).fill(disk);
            }
            (None, None) => {}
        },
        None if bus == "vhost-user-blk" => {
            let chardev = device.get("chardev").and_then(|id| line.chardevs.get(id));
            let backend = chardev.and_then(socket).map(Source::Backend);
            disk.source = backend.unwrap_or_default();
        }
        // A controller without a disk of its own, as `nvme` with namespaces.
        None if family == Family::Nvme => return None,
        None => disk.source = Source::Empty,
    }
    let rank = match bus {
        "ide" => 0,
        "usb" => 2,
        _ => 1,
    };
    Some(Plugged {
        disk,
        family,
        order: (rank, slots.address(line, device, position)),
        namespace: device.number("nsid").unwrap_or(1),
    })
}

/// The controller to which a SCSI disk is attached.
fn controller(line: &CommandLine, device: &Options, bus: &'static str) -> &'static str {
    if bus != "scsi" {
        return bus;
    }
    let named = device.get("bus").map(|b| b.split('.').next().unwrap_or(b));
    let is_it = |d: &&Options| match named {
        Some(id) => d.get("id") == Some(id),
        None => d.get("driver").is_some_and(|d| d.contains("scsi-")),
    };
    let found = line.devices.iter().find(is_it);
    match found.and_then(|d| d.get("driver")) {
        Some(driver) if driver.starts_with("virtio-scsi") => "virtio-scsi",
        Some(driver) if driver.starts_with("usb") => "usb",
        _ => "scsi",
    }
}

/// The slots of PCI devices without an address.
struct Slots {
    by_position: HashMap<usize, u64>,
}

impl Slots {
    /// QEMU assigns the first free slot, in the order of the command line.
    fn new(line: &CommandLine) -> Slots {
        let mut free = SLOTS;
        let mut by_position = HashMap::new();
        let taken: Vec<u64> = line
            .devices
            .iter()
            .filter_map(|d| Some(address(d)?[0]))
            .collect();
        for (position, device) in line.devices.iter().enumerate() {
            let driver = device.get("driver").unwrap_or_default();
            let is_pci = driver.contains("-pci") || matches!(driver, "nvme" | "ahci" | "lsi");
            if is_pci && address(device).is_none() {
                let slot = free.find(|slot| !taken.contains(slot));
                by_position.insert(position, slot.unwrap_or(SLOTS.end));
            }
        }
        Slots { by_position }
    }

    /// The address of a device, from the root of the buses.
    fn address(&self, line: &CommandLine, device: &Options, position: usize) -> Vec<u64> {
        let mut path = Vec::new();
        let (mut device, mut position) = (device, position);
        for _ in 0..BRIDGES_MAX {
            let own = own_address(device).or_else(|| Some(vec![*self.by_position.get(&position)?]));
            let own = own.unwrap_or_else(|| vec![position as u64]);
            path.splice(0..0, own);
            let bus = device
                .get("bus")
                .map(|b| (b, b.split('.').next().unwrap_or(b)));
            let above = bus.and_then(|(whole, first)| {
                let is_it = |d: &Options| d.get("id").is_some_and(|id| id == whole || id == first);
                line.devices.iter().position(is_it)
            });
            match above {
                Some(above) if above != position => {
                    device = &line.devices[above];
                    position = above;
                }
                _ => {
                    // A bus of the machine, as `ide.1`.
                    let number = bus.and_then(|(b, _)| b.rsplit_once('.')?.1.parse().ok());
                    path.insert(0, number.unwrap_or(0));
                    break;
                }
            }
        }
        path
    }
}

/// The address on its bus that a device specifies.
fn own_address(device: &Options) -> Option<Vec<u64>> {
    let scsi = ["channel", "scsi-id", "lun", "unit", "nsid"];
    let given: Vec<u64> = scsi.iter().filter_map(|key| device.number(key)).collect();
    match given.is_empty() {
        false => Some(given),
        true => address(device).or_else(|| {
            let port = device.get("port")?;
            port.split('.').map(|part| part.parse().ok()).collect()
        }),
    }
}

/// A PCI address `slot.function`.
fn address(device: &Options) -> Option<Vec<u64>> {
    let addr = device.get("addr")?;
    let (slot, function) = addr.split_once('.').unwrap_or((addr, "0"));
    // A slot is hexadecimal also without 0x.
    let hex = |text: &str| number(text).or_else(|| u64::from_str_radix(text, 16).ok());
    Some(vec![hex(slot)?, hex(function)?])
}

fn name(mut plugged: Vec<Plugged>) -> Vec<FoundDisk> {
    plugged.sort_by(|a, b| (a.family, &a.order).cmp(&(b.family, &b.order)));
    let mut counts: HashMap<Family, usize> = HashMap::new();
    let mut names: Vec<String> = Vec::new();
    let mut controller: Option<Vec<u64>> = None;
    let mut disks = Vec::new();
    for Plugged {
        mut disk,
        family,
        order: (_, address),
        namespace,
    } in plugged
    {
        let count = counts.entry(family).or_default();
        let bus = address[..address.len().min(2)].to_vec();
        let same_controller = namespace > 1 && controller.as_ref() == Some(&bus);
        let mut number = match family == Family::Nvme && same_controller {
            true => *count - 1,
            false => *count,
        };
        controller = Some(bus);
        let mut vdisk = family.name(number, namespace);
        while names.contains(&vdisk) {
            number += 1;
            vdisk = family.name(number, namespace);
        }
        *count = number + 1;
        names.push(vdisk.clone());
        disk.vdisk = Some(vdisk);
        disks.push(disk);
    }
    disks
}

impl Family {
    /// The name of disk number `number`.
    pub fn name(self, number: usize, namespace: u64) -> String {
        match self {
            Family::Virtio => format!("/dev/vd{}", letters(number)),
            Family::Scsi => format!("/dev/sd{}", letters(number)),
            Family::Optical => format!("/dev/sr{number}"),
            Family::Nvme => format!("/dev/nvme{number}n{namespace}"),
        }
    }
}

/// `a` to `z`, `aa`, `ab`, ... as `sd_format_disk_name` of drivers/scsi/sd.c counts.
pub fn letters(number: usize) -> String {
    let mut rest = number + 1;
    let mut text = Vec::new();
    while rest > 0 {
        rest -= 1;
        text.push(b'a' + (rest % 26) as u8);
        rest /= 26;
    }
    text.iter().rev().map(|byte| *byte as char).collect()
}
