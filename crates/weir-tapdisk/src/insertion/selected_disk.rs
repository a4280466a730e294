//! [`SelectedDisk`]: the VM and the disk of `--vm` and `--disk`, and its node in QEMU's graph.

use super::InsertionError;
use std::time::Duration;

use weir_model::inventory::Disk;
use weir_model::suggest;
use weir_tap::inventory::{InventoryWatch, WatchOptions};
use weir_tap::qmp::{self, Drive, QemuMonitor, QmpAddress, QmpError, QmpSubject};

/// How long QEMU may take for an answer: it lets requests in flight finish before it exchanges the
/// node below them.
pub const QMP_TIMEOUT: Duration = Duration::from_secs(60);

/// A disk of a running VM.
pub struct SelectedDisk {
    /// The VM's name.
    pub vm: String,
    /// The disk's name in the VM, such as `/dev/vda`.
    pub vdisk: String,
    /// QEMU's process.
    pub pid: u32,
    /// The address of QEMU's monitor.
    pub address: QmpAddress,
    subject: QmpSubject,
    disk: Disk,
}

impl SelectedDisk {
    /// The disk called `disk` (its name in the VM, with or without `/dev/`, its device or its node)
    /// of the VM called `vm`; `None` if no such VM runs. `monitor` replaces the monitor in the
    /// inventory.
    ///
    /// # Errors
    /// When the host cannot be scanned, QEMU cannot be queried, or the VM has no such disk.
    pub fn find(
        vm: &str,
        disk: &str,
        monitor: Option<&QmpAddress>,
    ) -> Result<Option<SelectedDisk>, InsertionError> {
        let snapshot = InventoryWatch::start(&WatchOptions::default())?.snapshot();
        let found = snapshot.vm(vm).map_err(|conflict| {
            let what = conflict.to_string();
            InsertionError::failed(format_args!(
                "{what}: identify the VM by its process, pid:PID"
            ))
        })?;
        let Some(number) = found else {
            return Ok(None);
        };
        let vm = snapshot.vms[number].name;
        let known = QmpSubject::all(&snapshot).into_iter().find(|s| s.vm == vm);
        let disks = || {
            let own = snapshot.disks.iter().filter(|d| d.vm as usize == number);
            own.map(|d| d.disk.clone()).collect()
        };
        let mut subject = match (known, monitor) {
            (Some(subject), _) => subject,
            (None, Some(address)) => QmpSubject {
                vm,
                pid: snapshot.vms[number]
                    .pid
                    .and_then(|pid| u32::try_from(pid).ok()),
                address: address.clone(),
                disks: disks(),
            },
            (None, None) => {
                return Err(InsertionError::failed(format_args!(
                    "VM {vm} has no QMP monitor that weir can reach: start it with -qmp \
                     unix:PATH,server=on,wait=off, or use --qmp"
                )));
            }
        };
        if let Some(address) = monitor {
            subject.address = address.clone();
        }
        let pid = subject.pid.ok_or_else(|| {
            InsertionError::failed(format_args!(
                "VM {vm}: its process is unknown; run weir on the VM's host"
            ))
        })?;
        let found = subject.disks.iter().find(|d| is_named(d, disk));
        let Some(found) = found.cloned() else {
            return Err(no_disk(vm.as_str(), disk, &subject.disks));
        };
        Ok(Some(SelectedDisk {
            vm: vm.to_string(),
            vdisk: found.vdisk.as_str().to_owned(),
            pid,
            address: subject.address.clone(),
            disk: found,
            subject,
        }))
    }

    /// The root node of the disk; `None` if QEMU does not have the disk, such as those of
    /// vhost-user back ends, or its drive is empty.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn root(&self, qemu: &mut dyn QemuMonitor) -> Result<Option<String>, QmpError> {
        let drives = qmp::drives(qemu)?;
        let node = |drive: &Drive| drive.node.as_ref()?.name.clone();
        let is_it = |drive: &&Drive| {
            let found = self
                .subject
                .disk(drive.qdev.as_deref(), node(drive).as_deref());
            found.is_some_and(|found| found.vdisk == self.disk.vdisk)
        };
        if let Some(drive) = drives.iter().find(is_it) {
            return Ok(node(drive));
        }
        // Neither device nor node has a configured name: the only drive of that file.
        let image = self.disk.image.map(|image| image.as_str());
        let has_image = |drive: &&Drive| {
            let file = drive.node.as_ref().and_then(|node| node.file.as_deref());
            drive.qdev.is_some() && file.is_some() && file == image
        };
        let mut of_image = drives.iter().filter(has_image);
        Ok(match (of_image.next(), of_image.next()) {
            (Some(drive), None) => node(drive),
            _ => None,
        })
    }
}

fn is_named(disk: &Disk, name: &str) -> bool {
    let vdisk = disk.vdisk.as_str();
    let others = [disk.device, disk.node];
    vdisk == name
        || vdisk.strip_prefix("/dev/") == Some(name)
        || others.iter().flatten().any(|other| other.as_str() == name)
}

fn no_disk(vm: &str, name: &str, disks: &[Disk]) -> InsertionError {
    let names: Vec<&str> = disks.iter().map(|d| d.vdisk.as_str()).collect();
    let near = suggest::nearest(name, names.iter().map(|n| n.trim_start_matches("/dev/")));
    let meant = near
        .map(|near| format!(" (did you mean {near}?)"))
        .unwrap_or_default();
    match names.is_empty() {
        true => InsertionError::usage(format_args!("VM {vm} has no known disk")),
        false => InsertionError::usage(format_args!(
            "VM {vm} has no disk {name}{meant}; its disks are {}",
            names.join(", ")
        )),
    }
}
