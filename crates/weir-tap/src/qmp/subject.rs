//! [`QmpSubject`]: a VM that can be queried through QMP, and the names of its disks.

use weir_model::Symbol;
use weir_model::inventory::Disk;

use super::QmpAddress;
use crate::inventory::Snapshot;

/// A VM that can be queried.
#[derive(Clone, Debug)]
pub struct QmpSubject {
    /// Its name.
    pub vm: Symbol,
    /// QEMU's process.
    pub pid: Option<u32>,
    /// Its QMP address.
    pub address: QmpAddress,
    /// Its disks, as far as the inventory contains them.
    pub disks: Vec<Disk>,
}

impl QmpSubject {
    /// The VMs of `snapshot` that can be queried, in its order.
    pub fn all(snapshot: &Snapshot) -> Vec<QmpSubject> {
        let mut monitors: Vec<_> = snapshot.monitors.iter().collect();
        monitors.sort_by_key(|(vm, _)| **vm);
        let subject = |(at, address): (&u32, &QmpAddress)| {
            let vm = snapshot.vms.get(*at as usize)?;
            let disks = snapshot.disks.iter().filter(|d| d.vm == *at);
            Some(QmpSubject {
                vm: vm.name,
                pid: vm.pid.and_then(|pid| u32::try_from(pid).ok()),
                address: address.clone(),
                disks: disks.map(|d| d.disk.clone()).collect(),
            })
        };
        monitors.into_iter().filter_map(subject).collect()
    }

    /// The disk with this device id or path in QEMU's object tree, and this top node: the only one
    /// with that device, else the only one with that node. A device keeps its name while snapshots
    /// and jobs change the nodes under it.
    pub fn disk(&self, qdev: Option<&str>, node: Option<&str>) -> Option<&Disk> {
        let device = qdev.map(device_id);
        let by = |name: Option<&str>, of: fn(&Disk) -> Option<Symbol>| {
            let name = name?;
            let mut named = self
                .disks
                .iter()
                .filter(|d| of(d).is_some_and(|s| s.as_str() == name));
            named.next().filter(|_| named.next().is_none())
        };
        by(device, |d| d.device).or_else(|| by(node, |d| d.node))
    }
}

/// The id of a device at a path in QEMU's object tree: `/machine/peripheral/disk0/virtio-backend`
/// is `disk0`. A device without an id keeps its path.
pub fn device_id(qdev: &str) -> &str {
    match qdev.strip_prefix("/machine/peripheral/") {
        Some(rest) => rest.split('/').next().unwrap_or(rest),
        None => qdev.trim_end_matches("/virtio-backend"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_id() {
        let id = device_id("/machine/peripheral/disk0/virtio-backend");
        assert_eq!((id, device_id("disk2")), ("disk0", "disk2"));
        let anonymous = "/machine/peripheral-anon/device[3]";
        let backend = format!("{anonymous}/virtio-backend");
        assert_eq!(device_id(&backend), anonymous);
    }
}
