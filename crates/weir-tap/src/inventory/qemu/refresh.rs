//! Updates a VM from QEMU's responses: disks that were plugged in or out, and media that were
//! changed since the start.

use std::collections::HashSet;

use super::disks::{DRIVERS, Family};
use super::nodes::{FORMATS, of_file_name};
use crate::inventory::found::{FoundDisk, FoundVm, Source};
use crate::inventory::monitors::Answer;
use crate::qmp::{Drive, QmpNode};

/// Updates `vm`.
pub fn refresh(vm: &mut FoundVm, answer: &Answer) {
    vm.state = answer.state.clone().or(vm.state.take());
    vm.name = answer.name.clone().or(vm.name.take());
    vm.uuid = answer.uuid.clone().or(vm.uuid.take());
    let before = vm.disks.take().unwrap_or_default();
    vm.disks = Some(disks(before, answer));
}

/// The current disks; those of the command line keep their names.
fn disks(before: Vec<FoundDisk>, answer: &Answer) -> Vec<FoundDisk> {
    let attached = answer.drives.iter().filter(|(drive, _)| is_attached(drive));
    let mut attached: Vec<Option<&(Drive, Option<String>)>> = attached.map(Some).collect();
    let mut kept = Vec::new();
    for disk in before {
        // QEMU's block layer does not list the disks of a back end.
        if matches!(disk.source, Source::Backend(_)) {
            kept.push(disk);
            continue;
        }
        let mut places = attached.iter_mut();
        let found = places.find(|place| place.is_some_and(|(d, _)| is_same(&disk, d)));
        if let Some((drive, _)) = found.and_then(Option::take) {
            kept.push(updated(disk, drive));
        }
    }
    let mut names: HashSet<String> = kept.iter().filter_map(|d| d.vdisk.clone()).collect();
    for (drive, kind) in attached.into_iter().flatten() {
        let Some((bus, family)) = kind.as_deref().and_then(of_kind) else {
            continue;
        };
        let mut free = (0..).map(|number| family.name(number, 1));
        let vdisk = free.find(|name| !names.contains(name));
        names.extend(vdisk.clone());
        let disk = FoundDisk {
            vdisk,
            bus: Some(bus.to_owned()),
            device: drive.qdev.as_deref().and_then(device_id).map(String::from),
            ..FoundDisk::default()
        };
        kept.push(updated(disk, drive));
    }
    kept.sort_by(|a, b| by_name(a).cmp(&by_name(b)));
    kept
}

/// Shorter names come first: `/dev/sdz` before `/dev/sdaa`.
fn by_name(disk: &FoundDisk) -> (usize, Option<&String>) {
    let name = disk.vdisk.as_ref();
    (name.map_or(0, String::len), name)
}

/// A drive without a device is not a disk of the VM.
fn is_attached(drive: &Drive) -> bool {
    drive.qdev.is_some()
}

fn is_same(disk: &FoundDisk, drive: &Drive) -> bool {
    let id = drive.qdev.as_deref().and_then(device_id);
    match (&disk.device, id) {
        (Some(device), Some(id)) => return device == id,
        (Some(_), None) | (None, Some(_)) => {}
        (None, None) => {}
    }
    let node = drive.node.as_ref().and_then(|n| n.name.as_ref());
    let by_drive = disk.drive.is_some() && disk.drive == drive.drive;
    by_drive || (disk.node.is_some() && disk.node.as_ref() == node)
}

/// The id assigned by the user, in a path as `/machine/peripheral/disk0/virtio-backend`.
fn device_id(qdev: &str) -> Option<&str> {
    qdev.strip_prefix("/machine/peripheral/")?.split('/').next()
}

/// Bus and name family of a device of this kind. The block layer knows the inner part of a virtio
/// device, whose name ends in `-device`.
fn of_kind(kind: &str) -> Option<(&'static str, Family)> {
    let found = DRIVERS.iter().find(|(name, ..)| *name == kind);
    let (_, bus, family) = found?;
    Some((*bus, *family))
}

fn updated(mut disk: FoundDisk, drive: &Drive) -> FoundDisk {
    let Some(node) = &drive.node else {
        return FoundDisk {
            source: Source::Empty,
            backing: Vec::new(),
            format: None,
            bytes: None,
            ..disk
        };
    };
    disk.bytes = node.image.virtual_bytes.or(disk.bytes);
    disk.read_only = node.read_only.or(disk.read_only);
    disk.node = node
        .name
        .clone()
        .filter(|name| !name.starts_with('#'))
        .or(disk.node);
    let medium = node.file.as_deref().map(of_file_name);
    if let Some(medium) = medium.filter(|medium| medium.source != disk.source) {
        let format = format_of(node);
        return FoundDisk {
            source: medium.source,
            backing: Vec::new(),
            format,
            offset_bytes: medium.offset_bytes,
            size_bytes: medium.size_bytes,
            aio: None,
            direct: None,
            ..disk
        };
    }
    // The command line may leave the format to QEMU's detection.
    disk.format = disk.format.or(format_of(node));
    disk
}

fn format_of(node: &QmpNode) -> Option<String> {
    node.driver
        .clone()
        .filter(|driver| FORMATS.contains(&driver.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qmp::QmpImage;
    use weir_model::inventory::VmKind;

    fn drive(qdev: &str, file: &str, kind: &str) -> (Drive, Option<String>) {
        let node = QmpNode {
            name: Some("n".into()),
            driver: Some("raw".into()),
            file: Some(file.into()),
            backing_file: None,
            read_only: Some(false),
            direct: None,
            image: QmpImage {
                virtual_bytes: Some(4096),
                actual_bytes: None,
            },
        };
        let drive = Drive {
            qdev: Some(qdev.into()),
            drive: None,
            removable: false,
            node: (!file.is_empty()).then_some(node),
        };
        (drive, Some(kind.into()))
    }

    fn disk(vdisk: &str, device: &str, file: &str) -> FoundDisk {
        FoundDisk {
            vdisk: Some(vdisk.into()),
            device: Some(device.into()),
            source: Source::File(file.into()),
            format: Some("qcow2".into()),
            ..FoundDisk::default()
        }
    }

    #[test]
    fn disks_come_and_go_and_change_their_media() {
        let mut vm = FoundVm {
            disks: Some(vec![
                disk("/dev/vda", "disk0", "/a"),
                disk("/dev/vdb", "disk1", "/b"),
                disk("/dev/sr0", "cd0", "/c.iso"),
            ]),
            ..FoundVm::new(VmKind::Qemu)
        };
        let answer = Answer {
            state: Some("paused".into()),
            drives: vec![
                drive(
                    "/machine/peripheral/disk1/virtio-backend",
                    "/b2",
                    "virtio-blk-device",
                ),
                drive("/machine/peripheral/cd0", "", "scsi-cd"),
                drive(
                    "/machine/peripheral/hot/virtio-backend",
                    "/h",
                    "virtio-blk-device",
                ),
                drive("/machine/peripheral/s", "/s", "scsi-hd"),
            ],
            ..Answer::default()
        };
        refresh(&mut vm, &answer);
        assert_eq!(vm.state.as_deref(), Some("paused"));
        let text_of = |d: &FoundDisk| {
            let text = |t: &Option<String>| t.clone().unwrap_or("-".into());
            format!(
                "{} {} {:?} {}",
                text(&d.vdisk),
                text(&d.device),
                d.source,
                text(&d.format)
            )
        };
        let disks: Vec<String> = vm.disks.unwrap().iter().map(text_of).collect();
        assert_eq!(
            disks,
            [
                "/dev/sda s File(\"/s\") raw",
                "/dev/sr0 cd0 Empty -",
                "/dev/vda hot File(\"/h\") raw",
                "/dev/vdb disk1 File(\"/b2\") raw",
            ]
        );
    }
}
