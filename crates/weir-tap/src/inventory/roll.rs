//! [`Roll`]: one list of VMs from what all inventories found.

use std::collections::HashMap;

use weir_model::inventory::VmKind;

use super::Scene;
use super::found::{FoundDisk, FoundVm};

/// Most VMs that are listed.
pub const VMS_MAX: usize = 1 << 16;

/// A VM that is known, and which inventory knew it first.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What is known.
    pub found: FoundVm,
    /// The name, unique on the host.
    pub name: String,
    /// The inventory's name.
    pub origin: &'static str,
}

/// The names given so far: a VM keeps the one that it was given, for as long as it lives.
#[derive(Debug, Default)]
pub struct Roll {
    given: HashMap<Identity, Given>,
}

/// What tells a VM from all others: process and start, or what it calls itself.
type Identity = (Option<(u32, u64)>, String);

#[derive(Clone, Debug)]
struct Given {
    wanted: String,
    name: String,
}

impl Roll {
    /// The VMs that `found` tells of, in order of their names; of each inventory its name and what it
    /// found, the one that has the word first.
    pub fn call(&mut self, scene: &Scene, found: Vec<(&'static str, Vec<FoundVm>)>) -> Vec<Entry> {
        let mut merged: Vec<(&'static str, FoundVm)> = Vec::new();
        let mut by_pid: HashMap<u32, usize> = HashMap::new();
        for (origin, vms) in found {
            for vm in vms {
                let known = vm.pid.and_then(|pid| by_pid.get(&pid));
                match known {
                    Some(&at) => fill(&mut merged[at].1, vm),
                    None if merged.len() < VMS_MAX => {
                        by_pid.extend(vm.pid.map(|pid| (pid, merged.len())));
                        merged.push((origin, vm));
                    }
                    None => {}
                }
            }
        }
        self.name(scene, merged)
    }

    fn name(&mut self, scene: &Scene, merged: Vec<(&'static str, FoundVm)>) -> Vec<Entry> {
        let mut vms: Vec<_> = merged
            .into_iter()
            .map(|(origin, vm)| {
                let process = vm.pid.and_then(|pid| scene.processes.get(pid));
                let wanted = wanted_name(&vm, origin);
                let life = process.map(|p| (p.pid, p.start_ticks));
                let identity = (life, vm.uuid.clone().unwrap_or_default());
                (identity, wanted, origin, vm)
            })
            .collect();
        // Who was there first has the name; the others have their number behind it.
        vms.sort_by_key(|((life, uuid), ..)| (life.map(|(pid, start)| (start, pid)), uuid.clone()));
        let before = std::mem::take(&mut self.given);
        let mut taken: HashMap<String, ()> = HashMap::new();
        let keeps = |identity: &Identity, wanted: &String| {
            let given = before.get(identity)?;
            (given.wanted == *wanted).then(|| given.name.clone())
        };
        let mut names: Vec<Option<String>> = Vec::new();
        for (identity, wanted, ..) in &vms {
            let kept = keeps(identity, wanted).filter(|name| !taken.contains_key(name));
            taken.extend(kept.iter().map(|name| (name.clone(), ())));
            names.push(kept);
        }
        let mut entries = Vec::new();
        for ((identity, wanted, origin, found), kept) in vms.into_iter().zip(names) {
            let mut name = kept.clone().unwrap_or_else(|| wanted.clone());
            if kept.is_none() {
                let mut number = found.pid.unwrap_or(1);
                while taken.contains_key(&name) {
                    name = format!("{wanted}-{number}");
                    number += 1;
                }
                taken.insert(name.clone(), ());
            }
            let given = Given {
                wanted,
                name: name.clone(),
            };
            self.given.insert(identity, given);
            entries.push(Entry {
                found,
                name,
                origin,
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries
    }
}

/// What a VM is called that is not called anything: by its kind and number.
fn wanted_name(vm: &FoundVm, origin: &str) -> String {
    let named = vm.name.clone().filter(|name| !name.is_empty());
    let kind = vm.kind.as_str();
    named.unwrap_or_else(|| match (vm.pid, &vm.uuid) {
        (Some(pid), _) => format!("{kind}-{pid}"),
        (None, Some(uuid)) => uuid.clone(),
        (None, None) => origin.to_owned(),
    })
}

/// Fills in what `vm` lacks from what another inventory knows of it.
fn fill(vm: &mut FoundVm, other: FoundVm) {
    fn or<T>(here: &mut Option<T>, there: Option<T>) {
        if here.is_none() {
            *here = there;
        }
    }
    or(&mut vm.name, other.name);
    if vm.kind == VmKind::Process {
        vm.kind = other.kind;
    }
    or(&mut vm.uuid, other.uuid);
    or(&mut vm.state, other.state);
    or(&mut vm.cgroup, other.cgroup);
    or(&mut vm.address, other.address);
    or(&mut vm.vcpus, other.vcpus);
    or(&mut vm.memory_bytes, other.memory_bytes);
    vm.workers.extend(other.workers);
    vm.backends.extend(other.backends);
    vm.monitors.extend(other.monitors);
    match (&mut vm.disks, other.disks) {
        (Some(disks), Some(others)) => {
            for disk in disks {
                if let Some(other) = others.iter().find(|other| is_same(disk, other)) {
                    fill_disk(disk, other);
                }
            }
        }
        (disks, others) => or(disks, others),
    }
}

/// True if both tell of the same disk: by device, else by node, else by where its data are.
fn is_same(one: &FoundDisk, other: &FoundDisk) -> bool {
    let both = |a: &Option<String>, b: &Option<String>| match (a, b) {
        (Some(a), Some(b)) => Some(a == b),
        _ => None,
    };
    both(&one.device, &other.device)
        .or_else(|| both(&one.node, &other.node))
        .unwrap_or_else(|| one.source == other.source)
}

fn fill_disk(disk: &mut FoundDisk, other: &FoundDisk) {
    fn or<T: Clone>(here: &mut Option<T>, there: &Option<T>) {
        if here.is_none() {
            *here = there.clone();
        }
    }
    or(&mut disk.vdisk, &other.vdisk);
    or(&mut disk.bus, &other.bus);
    or(&mut disk.device, &other.device);
    or(&mut disk.bytes, &other.bytes);
    or(&mut disk.read_only, &other.read_only);
    // What lies below may have been exchanged since: only of the same source the rest holds.
    if disk.source == other.source {
        or(&mut disk.format, &other.format);
        or(&mut disk.node, &other.node);
        or(&mut disk.aio, &other.aio);
        or(&mut disk.direct, &other.direct);
        or(&mut disk.size_bytes, &other.size_bytes);
        disk.offset_bytes = disk.offset_bytes.max(other.offset_bytes);
    }
}
