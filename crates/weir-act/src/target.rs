//! [`LimitTarget`]: a disk of a VM, or a device in a cgroup, and the knob that limits it.
//!
//! QEMU's own throttling is used where QEMU serves the disk and its QMP is reachable, else the
//! cgroup of the VM's process. What another manager owns is left to it: libvirt and systemd would
//! overwrite the value or store another one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use weir_model::inventory::{BlockDevice, Disk, Vm};
use weir_model::suggest::nearest;
use weir_tap::inventory::Snapshot;
use weir_tap::qmp::{QmpAddress, device_id};

use crate::ActError;
use crate::knob::{Knob, shares_group};

/// The longest wait for QEMU.
const QEMU_MAX: Duration = Duration::from_secs(5);

/// The root of cgroup v1's blkio controller.
const V1_ROOT: &str = "/sys/fs/cgroup/blkio";

/// The roots of cgroup v2, alone and beside v1.
const V2_ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// A disk and its knob.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitTarget {
    /// The VM, if it is one.
    pub vm: Option<String>,
    /// The disk in the VM, or the device.
    pub disk: String,
    /// The knob.
    pub knob: Knob,
}

impl LimitTarget {
    /// A disk of a VM; without a name, its only one.
    ///
    /// # Errors
    /// [`ActError::Refused`] with the reason: no such VM or disk, or nothing that could limit it
    /// alone.
    pub fn of_vm(
        snapshot: &Snapshot,
        name: &str,
        disk: Option<&str>,
    ) -> Result<LimitTarget, ActError> {
        let refused = |why: String| ActError::Refused(why);
        let at = snapshot.vm(name).map_err(|_| {
            refused(format!(
                "several VMs are called {name}; `pid:PID` names one by its process"
            ))
        })?;
        let Some(at) = at else {
            let near = nearest(name, snapshot.vms.iter().map(|vm| vm.name.as_str()));
            let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
            return Err(refused(format!("there is no VM {name}{near}")));
        };
        let vm = &snapshot.vms[at];
        let laid: Vec<_> = snapshot
            .disks
            .iter()
            .filter(|d| d.vm as usize == at)
            .collect();
        let chosen = match disk {
            Some(disk) => laid.iter().find(|laid| is_called(&laid.disk, disk)),
            None if laid.len() == 1 => laid.first(),
            None => None,
        };
        let Some(laid) = chosen else {
            let names: Vec<&str> = laid.iter().map(|laid| laid.disk.vdisk.as_str()).collect();
            return Err(refused(match (disk, names.is_empty()) {
                (_, true) => format!("{name} has no disk that weir knows"),
                (Some(disk), _) => format!("{name} has no disk {disk}, but {}", names.join(", ")),
                (None, _) => format!(
                    "{name} has several disks; give --disk {}",
                    names.join(" or ")
                ),
            }));
        };
        let (vm_name, disk) = (vm.name.as_str().to_owned(), &laid.disk);
        let knob = match snapshot.monitors.get(&(at as u32)) {
            Some(QmpAddress::Libvirt { domain, .. }) => {
                let target = disk.vdisk.as_str().trim_start_matches("/dev/");
                return Err(refused(format!(
                    "libvirt owns the limits of {vm_name}; set them with `virsh blkdeviotune \
                     {domain} {target} --live --total-iops-sec N`"
                )));
            }
            Some(address) if laid.tapdisk.is_none() => of_qemu(address, disk)?,
            _ => None,
        };
        let knob = match knob {
            Some(knob) => knob,
            None => of_process(snapshot, at, vm, disk)?,
        };
        Ok(LimitTarget {
            vm: Some(vm_name),
            disk: disk.vdisk.as_str().to_owned(),
            knob,
        })
    }

    /// A device, by its path, in the group at `group`.
    ///
    /// # Errors
    /// [`ActError::Refused`] with the reason.
    pub fn of_group(
        snapshot: &Snapshot,
        group: &Path,
        device: &str,
    ) -> Result<LimitTarget, ActError> {
        let number = whole_device(&snapshot.devices, device)?;
        owned_by_systemd(group)?;
        Ok(LimitTarget {
            vm: None,
            disk: device.to_owned(),
            knob: Knob::of_group(group, &number)?,
        })
    }
}

/// Whether a disk has this name in the VM, with or without `/dev/`, or in QEMU.
fn is_called(disk: &Disk, name: &str) -> bool {
    let vdisk = disk.vdisk.as_str();
    let names = [disk.device, disk.node];
    let mut names = names.iter().flatten().map(|name| name.as_str());
    vdisk == name || vdisk.strip_prefix("/dev/") == Some(name) || names.any(|n| n == name)
}

/// QEMU's throttling of a disk; `None` if QEMU does not serve it, as with vhost-user.
fn of_qemu(address: &QmpAddress, disk: &Disk) -> Result<Option<Knob>, ActError> {
    let drives = address.visit(QEMU_MAX, |qemu| qemu.execute("query-block", Value::Null))?;
    let drives = drives.as_array().into_iter().flatten();
    let of_disk = |drive: &&Value| {
        let qdev = drive["qdev"].as_str();
        let node = drive["inserted"]["node-name"].as_str();
        let same = |name: Option<&str>, of: Option<weir_model::Symbol>| {
            name.is_some() && name == of.as_ref().map(|symbol| symbol.as_str())
        };
        drive["inserted"].is_object()
            && (same(qdev.map(device_id), disk.device) || same(node, disk.node))
    };
    let found: Vec<&Value> = drives.filter(of_disk).collect();
    let [drive] = found[..] else {
        return Ok(None);
    };
    let Some(qdev) = drive["qdev"].as_str() else {
        return Ok(None);
    };
    let others = shares_group(address, qdev)?;
    if !others.is_empty() {
        return Err(ActError::Refused(format!(
            "the disk shares its throttle group with {}, which would be limited too",
            others.join(", ")
        )));
    }
    Ok(Some(Knob::Qemu {
        address: address.clone(),
        qdev: qdev.to_owned(),
    }))
}

/// The cgroup of the VM's process, for the device of the disk.
fn of_process(snapshot: &Snapshot, at: usize, vm: &Vm, disk: &Disk) -> Result<Knob, ActError> {
    let name = vm.name.as_str();
    let refused = |why: String| Err(ActError::Refused(why));
    let (Some(pid), Some(pdisk)) = (vm.pid, disk.pdisk) else {
        let what = if vm.pid.is_none() {
            "process"
        } else {
            "device of its disk"
        };
        return refused(format!("{name}: the {what} on this host is not known"));
    };
    let number = whole_device(&snapshot.devices, pdisk.as_str())?;
    let Some(group) = group_of(pid) else {
        return refused(format!(
            "{name}: its process is in no group that can be limited; start it in a cgroup of its own"
        ));
    };
    let others = snapshot.vms.iter().enumerate().filter(|(other, vm)| {
        *other != at && vm.pid.and_then(group_of).as_deref() == Some(group.as_path())
    });
    let others: Vec<&str> = others.map(|(_, vm)| vm.name.as_str()).collect();
    if !others.is_empty() {
        return refused(format!(
            "{name} shares the group {} with {}, which would be limited too",
            group.display(),
            others.join(", ")
        ));
    }
    owned_by_systemd(&group)?;
    let knob = Knob::of_group(&group, &number)?;
    if matches!(knob, Knob::CgroupV1 { .. }) && disk.direct != Some(true) {
        return refused(format!(
            "{name} writes through the page cache, which cgroup v1 does not limit: the kernel writes \
             the pages later in its own group"
        ));
    }
    Ok(knob)
}

/// The group of a process that can have limits of I/O: of v2, else of v1 (cgroups(7)).
fn group_of(pid: i64) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let line = |of: &dyn Fn(&str) -> bool| {
        let mut lines = text.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            of(controllers).then(|| path.trim_start_matches('/').to_owned())
        });
        lines.next().filter(|path| !path.is_empty())
    };
    let v2 = line(&|controllers| controllers.is_empty());
    let mut v2 = v2
        .iter()
        .flat_map(|path| V2_ROOTS.map(|root| Path::new(root).join(path)));
    if let Some(group) = v2.find(|group| group.join("io.max").exists()) {
        return Some(group);
    }
    let v1 = line(&|controllers| controllers.split(',').any(|name| name == "blkio"))?;
    Some(Path::new(V1_ROOT).join(v1))
}

/// `major:minor` of the whole disk of a device.
fn whole_device(devices: &[BlockDevice], path: &str) -> Result<String, ActError> {
    let of_path = |path: &str| devices.iter().find(|device| device.device.as_str() == path);
    let whole = of_path(path).and_then(|device| of_path(device.disk.as_str()));
    let whole = whole
        .ok_or_else(|| ActError::Refused(format!("{path} is no block device of this host")))?;
    Ok(format!("{}:{}", whole.major, whole.minor))
}

/// An error if systemd owns the group: it is the only writer of its units' limits.
fn owned_by_systemd(group: &Path) -> Result<(), ActError> {
    let unit = group
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    let is_unit = [".service", ".scope", ".slice"]
        .iter()
        .any(|kind| unit.ends_with(kind));
    match is_unit && Path::new("/run/systemd/system").exists() {
        true => Err(ActError::Refused(format!(
            "systemd owns the limits of {unit}; set them with `systemctl set-property --runtime \
             {unit} 'IOReadIOPSMax=DEVICE N' 'IOWriteIOPSMax=DEVICE N'`"
        ))),
        false => Ok(()),
    }
}
