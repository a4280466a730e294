//! [`Naming`]: maps the numbers by which kernel programs group to the names used in rows.

use std::collections::HashSet;

use weir_model::{EventKind, Level, Op, Symbol};

use super::NameGroups;
use super::block::{BlockFold, Key};
use super::groups::Named;
use super::layout::cell;
use super::tables::RawKey;
use crate::ebpf::attribution::{Attribution, Owner};
use crate::ebpf::devices::Devices;
use crate::ebpf::layout::{Record, Submitter, UNKNOWN, flag, kind};
use crate::ebpf::rows::Names;

/// A location where no disk has a sector.
const NOWHERE: u64 = UNKNOWN - 1;

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
    /// The disks on which the owner of a request does not depend on its sector.
    pub single_owner: &'a HashSet<u32>,
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

    /// The owners of each group's requests. If a disk was divided among VMs since they were folded,
    /// the VM's disk is unknown.
    fn owners(&mut self, keys: &[GroupKey]) -> Vec<Owner> {
        let Some(attribution) = &mut self.attribution else {
            return Vec::new();
        };
        let disks = keys.iter().map(|key| self.devices.place(key.device).disk);
        let disks: Vec<u32> = disks.collect();
        let record = |(key, disk): (&GroupKey, &u32)| Record {
            device: key.device,
            kind: kind::RESPONSE,
            op: key.op,
            flags: if key.by_kernel { flag::KERNEL } else { 0 },
            bytes: 512,
            sector: match usize::from(key.op) {
                op if op == Op::Flush as usize => UNKNOWN,
                _ if self.single_owner.contains(disk) => 0,
                _ => NOWHERE,
            },
            ..Record::default()
        };
        let records: Vec<Record> = keys.iter().zip(&disks).map(record).collect();
        let submitter = |key: &GroupKey| Submitter {
            cgroup: key.cgroup,
            comm: key.comm,
            pid: key.pid,
        };
        let submitters: Vec<Submitter> = keys.iter().map(submitter).collect();
        let mut owners = Vec::new();
        attribution.attribute(
            (0u32..).zip(disks),
            &records,
            &submitters,
            &mut self.names.cgroups,
            &mut owners,
        );
        owners
    }
}
