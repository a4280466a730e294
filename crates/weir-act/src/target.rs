//! [`LimitTarget`]: a disk of a VM, or a device in a cgroup, and the knob that limits it.
//!
//! A tapdisk limits the disks that it serves. QEMU's own throttling is used where QEMU serves the
//! disk and its QMP is reachable, else the cgroup of the VM's process. Where libvirt or systemd
//! owns the limits, it writes them: it would overwrite the value of another program.

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
use crate::tapdisk::TapdiskDisk;

/// The longest wait for QEMU.
const QEMU_MAX: Duration = Duration::from_secs(5);

/// The root of cgroup v1's blkio controller.
const V1_ROOT: &str = "/sys/fs/cgroup/blkio";

/// The roots of cgroup v2, alone and beside v1.
const V2_ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// What is set of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnobKind {
    /// Requests or bytes per second.
    Limit,
    /// A share of the device.
    Weight,
}

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
        kind: KnobKind,
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
        if let (true, Some(path)) = (laid.is_empty(), disk) {
            // A process or container, which uses devices of the host.
            let device = whole_device(&snapshot.devices, path)?;
            return Ok(LimitTarget {
                vm: Some(vm.name.as_str().to_owned()),
                disk: path.to_owned(),
                knob: knob_of(&own_group(snapshot, at, vm)?, device, kind)?,
            });
        }
        let Some(laid) = chosen else {
            let names: Vec<&str> = laid.iter().map(|laid| laid.disk.vdisk.as_str()).collect();
            return Err(refused(match (disk, names.is_empty()) {
                (_, true) => format!(
                    "{name} has no disk that weir knows; of a process or container, name a device \
                     of this host, such as /dev/sda"
                ),
                (Some(disk), _) => format!("{name} has no disk {disk}, but {}", names.join(", ")),
                (None, _) => format!(
                    "{name} has several disks; give --disk {}",
                    names.join(" or ")
                ),
            }));
        };
        let (vm_name, disk) = (vm.name.as_str().to_owned(), &laid.disk);
        let served = laid.tapdisk.zip(laid.control).zip(disk.image);
        let served = served.filter(|_| kind == KnobKind::Limit);
        let knob = match (served, snapshot.monitors.get(&(at as u32))) {
            (Some(((key, control), image)), _) => {
                let control = Path::new(control.as_str());
                let disk = TapdiskDisk::find(control, key, image.as_str())?;
                Some(Knob::Tapdisk(disk))
            }
            (None, Some(QmpAddress::Libvirt { uri, domain })) => {
                let target = disk.vdisk.as_str().trim_start_matches("/dev/");
                if kind == KnobKind::Weight {
                    return Err(refused(format!(
                        "libvirt owns the weight of {vm_name}; set it with `virsh -c {uri} \
                         blkiotune {domain} --live --weight N`"
                    )));
                }
                Some(Knob::Libvirt {
                    uri: uri.clone(),
                    domain: domain.clone(),
                    target: target.to_owned(),
                })
            }
            (None, Some(address)) if laid.tapdisk.is_none() && kind == KnobKind::Limit => {
                of_qemu(address, disk)?
            }
            _ => None,
        };
        let knob = match knob {
            Some(knob) => knob,
            None => of_process(snapshot, at, vm, disk, kind)?,
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
        kind: KnobKind,
    ) -> Result<LimitTarget, ActError> {
        Ok(LimitTarget {
            vm: None,
            disk: device.to_owned(),
            knob: knob_of(group, whole_device(&snapshot.devices, device)?, kind)?,
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

/// The knob of a group; through systemd where that owns it.
fn knob_of(group: &Path, device: &BlockDevice, kind: KnobKind) -> Result<Knob, ActError> {
    let number = format!("{}:{}", device.major, device.minor);
    let knob = match kind {
        KnobKind::Limit => Knob::of_group(group, &number)?,
        KnobKind::Weight => Knob::weight_of_group(group)?,
    };
    let Some(unit) = unit_of(group) else {
        return Ok(knob);
    };
    if group
        .iter()
        .any(|part| part.to_string_lossy().starts_with("user@"))
    {
        return Err(ActError::Refused(format!(
            "the systemd of a user owns the limits of {unit}; set them with `systemctl --user \
             set-property --runtime {unit} 'IOReadIOPSMax=DEVICE N' 'IOWriteIOPSMax=DEVICE N'`"
        )));
    }
    Ok(Knob::Systemd {
        unit,
        device: device.device.as_str().to_owned(),
        group: Box::new(knob),
    })
}

/// The cgroup of the VM's process, for the device of the disk.
fn of_process(
    snapshot: &Snapshot,
    at: usize,
    vm: &Vm,
    disk: &Disk,
    kind: KnobKind,
) -> Result<Knob, ActError> {
    let name = vm.name.as_str();
    let refused = |why: String| Err(ActError::Refused(why));
    let Some(pdisk) = disk.pdisk else {
        return refused(format!(
            "{name}: the device of its disk on this host is not known"
        ));
    };
    let device = whole_device(&snapshot.devices, pdisk.as_str())?;
    let group = own_group(snapshot, at, vm)?;
    let knob = knob_of(&group, device, kind)?;
    let is_v1 = !group.join("cgroup.controllers").exists();
    if is_v1 && disk.direct != Some(true) {
        return refused(format!(
            "{name} writes through the page cache, which cgroup v1 does not limit: the kernel writes \
             the pages later in its own group"
        ));
    }
    Ok(knob)
}

/// The group of a VM's process, if no other VM is in it.
fn own_group(snapshot: &Snapshot, at: usize, vm: &Vm) -> Result<PathBuf, ActError> {
    let name = vm.name.as_str();
    let refused = |why: String| Err(ActError::Refused(why));
    let Some(pid) = vm.pid else {
        return refused(format!("{name}: its process on this host is not known"));
    };
    let Some(group) = group_of(pid) else {
        return refused(format!(
            "{name}: its process is in no group that can be limited; start it in a cgroup of its own"
        ));
    };
    let others = snapshot.vms.iter().enumerate().filter(|(other, vm)| {
        *other != at && vm.pid.and_then(group_of).as_deref() == Some(group.as_path())
    });
    let others: Vec<&str> = others.map(|(_, vm)| vm.name.as_str()).collect();
    match others.is_empty() {
        true => Ok(group),
        false => refused(format!(
            "{name} shares the group {} with {}, which would be limited too",
            group.display(),
            others.join(", ")
        )),
    }
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

/// The whole disk of a device.
fn whole_device<'d>(devices: &'d [BlockDevice], path: &str) -> Result<&'d BlockDevice, ActError> {
    let of_path = |path: &str| devices.iter().find(|device| device.device.as_str() == path);
    let whole = of_path(path).and_then(|device| of_path(device.disk.as_str()));
    whole.ok_or_else(|| ActError::Refused(format!("{path} is no block device of this host")))
}

/// The unit of systemd that owns a group: systemd is then the only writer of its limits.
fn unit_of(group: &Path) -> Option<String> {
    let unit = group.file_name()?.to_str()?;
    let kinds = [".service", ".scope", ".slice"];
    let is_unit = kinds.iter().any(|kind| unit.ends_with(kind));
    (is_unit && Path::new("/run/systemd/system").exists()).then(|| unit.to_owned())
}
