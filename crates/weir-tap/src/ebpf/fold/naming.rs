//! [`Naming`]: maps the numbers by which kernel programs group to the names used in rows.

use weir_model::{EventKind, Level, Op, Symbol};

use super::NameGroups;
use super::block::{BlockFold, Key};
use super::groups::Named;
use super::layout::cell;
use super::tables::RawKey;
use crate::ebpf::attribution::{Attribution, By, Location, Owner, Request};
use crate::ebpf::devices::Devices;
use crate::ebpf::rows::Names;

/// The sources of names.
#[derive(Debug)]
pub struct Naming<'a> {
    /// The folds.
    pub folds: &'a [BlockFold],
    /// Names of devices.
    pub devices: &'a Devices,
    /// Names of processes and cgroups.
    pub names: &'a mut Names,
    /// Names of VMs and their disks.
    pub attribution: Option<&'a mut Attribution>,
}

/// The key of a group of requests. Keys that the fold does not use are 0.
#[derive(Clone, Copy, Debug)]
struct GroupKey {
    /// The device, as the kernel keeps it.
    device: u32,
    /// Thread group.
    pid: u32,
    /// Position in `weir_model::Op::ALL`.
    op: u8,
    /// True if a kernel thread submitted the request.
    by_kernel: bool,
    /// Cgroup.
    cgroup: u64,
    /// Command name.
    comm: [u64; 2],
    /// The set of virtual disks at its sectors.
    owners: u16,
}

impl GroupKey {
    fn decode(raw: &RawKey) -> GroupKey {
        GroupKey {
            device: raw[0] as u32,
            op: (raw[0] >> cell::OP_SHIFT) as u8,
            by_kernel: raw[0] & cell::KERNEL != 0,
            pid: raw[1] as u32,
            cgroup: raw[2],
            comm: [raw[3], raw[4]],
            owners: (raw[1] >> cell::OWNERS_SHIFT) as u16,
        }
    }
}

impl NameGroups for Naming<'_> {
    fn name(&mut self, fold: usize, keys: &[RawKey]) -> Vec<Named> {
        let fold = &self.folds[fold];
        let keys: Vec<GroupKey> = keys.iter().map(GroupKey::decode).collect();
        let owners = match fold.owner {
            true => self.owners(&keys),
            false => Vec::new(),
        };
        let named = keys.iter().enumerate().map(|(i, raw)| {
            let owner = owners.get(i).copied().unwrap_or_default();
            let values = fold.keys.iter().map(|key| self.value(*key, raw, &owner));
            values.collect()
        });
        named.collect()
    }
}

impl Naming<'_> {
    fn value(&mut self, key: Key, raw: &GroupKey, owner: &Owner) -> Option<i64> {
        let text = |symbol: Symbol| i64::from(symbol.id());
        match key {
            Key::Op => Some(text(Op::ALL[usize::from(raw.op)].symbol())),
            Key::Pdisk => self.devices.place(raw.device).path.map(text),
            Key::Pid => (raw.pid != 0).then_some(i64::from(raw.pid)),
            Key::Comm => self.names.comm(raw.comm).map(text),
            Key::Cgroup => self.names.cgroups.path(raw.cgroup).map(text),
            Key::Vm => owner.vm().map(text),
            Key::Vdisk => owner.vdisk().map(text),
            Key::Kind => Some(text(EventKind::Response.symbol())),
            Key::Host => self.names.host().map(text),
            Key::Level => Some(text(Level::Block.symbol())),
        }
    }

    /// The owner of each group's requests.
    fn owners(&mut self, keys: &[GroupKey]) -> Vec<Owner> {
        let Some(attribution) = &mut self.attribution else {
            return Vec::new();
        };
        let requests = keys.iter().map(|key| Request {
            by: By {
                pid: key.pid,
                by_kernel: key.by_kernel,
                cgroup: key.cgroup,
            },
            op: key.op,
            disk: self.devices.place(key.device).disk,
            location: match usize::from(key.op) == Op::Flush as usize {
                true => Location::Nowhere,
                false => Location::Among(key.owners),
            },
        });
        let requests: Vec<Request> = requests.collect();
        attribution.owners_of(&requests, &mut self.names.cgroups)
    }
}
