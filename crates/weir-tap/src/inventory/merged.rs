//! [`MergedInventory`]: merges the VMs found by all inventories into one list.

use std::collections::{HashMap, HashSet};

use weir_model::Symbol;
use weir_model::inventory::VmKind;

use super::Scene;
use super::found::{FoundDisk, FoundVm};
use super::names::{Claim, NameConflict, NameRank};

/// Maximum number of VMs that are listed.
pub const VMS_MAX: usize = 1 << 16;

/// A known VM, and the first inventory that found it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The merged fields.
    pub found: FoundVm,
    /// The name, unique on the host.
    pub name: String,
    /// The inventory's name.
    pub origin: &'static str,
}

/// The names assigned so far: a VM keeps its name for its lifetime, unless a VM of better standing
/// claims it.
#[derive(Debug, Default)]
pub struct MergedInventory {
    given: HashMap<Identity, Given>,
}

/// Identity of a VM: process and start, or the name that it claims.
type Identity = (Option<(u32, u64)>, String);

#[derive(Clone, Debug)]
struct Given {
    wanted: String,
    name: String,
}

impl MergedInventory {
    /// The VMs of `found`, sorted by name, and the names claimed by several users. `found` has the
    /// name of each inventory and its results, the most reliable first.
    pub fn call(
        &mut self,
        scene: &Scene,
        found: Vec<(&'static str, Vec<FoundVm>)>,
    ) -> (Vec<Entry>, Vec<NameConflict>) {
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

    fn name(
        &mut self,
        scene: &Scene,
        merged: Vec<(&'static str, FoundVm)>,
    ) -> (Vec<Entry>, Vec<NameConflict>) {
        let before = std::mem::take(&mut self.given);
        let candidate = |(origin, vm)| Candidate::new(scene, &before, origin, vm);
        let mut candidates: Vec<Candidate> = merged.into_iter().map(candidate).collect();
        // Of VMs with equal standing, the one that has the name keeps it, otherwise the first one
        // gets it; the process number is appended to the names of the others.
        candidates.sort_by_key(Candidate::order);
        let mut worst: HashMap<String, NameRank> = HashMap::new();
        for candidate in &candidates {
            worst.insert(candidate.wanted.clone(), candidate.standing);
        }
        let mut used: HashSet<String> = HashSet::new();
        let mut claims: HashMap<String, Vec<Claim>> = HashMap::new();
        let mut entries = Vec::new();
        for candidate in candidates {
            let name = candidate.name(&used, worst[&candidate.wanted]);
            used.insert(name.clone());
            let wanted = candidate.wanted.clone();
            claims
                .entry(wanted)
                .or_default()
                .extend(candidate.claim(&name));
            let given = Given {
                wanted: candidate.wanted,
                name: name.clone(),
            };
            self.given.insert(candidate.identity, given);
            entries.push(Entry {
                found: candidate.found,
                name,
                origin: candidate.origin,
            });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let conflict = |(name, claims): (String, Vec<Claim>)| NameConflict::of(&name, claims);
        let mut conflicts: Vec<NameConflict> = claims.into_iter().filter_map(conflict).collect();
        conflicts.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        (entries, conflicts)
    }
}

/// A VM without an assigned name yet.
struct Candidate {
    identity: Identity,
    wanted: String,
    /// The name that was assigned to it for the one that it claims.
    kept: Option<String>,
    standing: NameRank,
    uid: Option<u32>,
    origin: &'static str,
    found: FoundVm,
}

impl Candidate {
    fn new(
        scene: &Scene,
        before: &HashMap<Identity, Given>,
        origin: &'static str,
        found: FoundVm,
    ) -> Candidate {
        let process = |pid: u32| scene.processes.get(pid);
        let own = found.pid.and_then(process);
        let working = own.or_else(|| found.workers.first().copied().and_then(process));
        let life = own.map(|p| (p.pid, p.start_ticks));
        let identity = (life, found.uuid.clone().unwrap_or_default());
        let wanted = wanted_name(&found, origin);
        let given = before.get(&identity).filter(|given| given.wanted == wanted);
        Candidate {
            kept: given.map(|given| given.name.clone()),
            standing: NameRank::of(scene, &found, working),
            uid: working.and_then(|p| p.uid),
            identity,
            wanted,
            origin,
            found,
        }
    }

    /// The order in which names are assigned.
    fn order(&self) -> impl Ord + use<> {
        let (life, uuid) = &self.identity;
        let born = life.map(|(pid, start)| (start, pid));
        (self.standing, self.kept.is_none(), born, uuid.clone())
    }

    /// The name: the previously assigned one, the claimed one, or that with a number. `worst` is
    /// the lowest standing of all VMs with the same claim.
    fn name(&self, used: &HashSet<String>, worst: NameRank) -> String {
        let is_free = |name: &String| !used.contains(name);
        // An earlier claim of lower standing does not keep the name.
        let overrides = worst > self.standing && is_free(&self.wanted);
        let kept = self.kept.as_ref().filter(|kept| is_free(kept));
        match kept {
            Some(kept) if !overrides => kept.clone(),
            _ if is_free(&self.wanted) => self.wanted.clone(),
            _ => {
                let first = self.found.pid.unwrap_or(1);
                let numbered = (first..).map(|number| format!("{}-{number}", self.wanted));
                let mut free = numbered.filter(is_free);
                free.next().expect("there are more numbers than VMs")
            }
        }
    }

    fn claim(&self, name: &str) -> Option<Claim> {
        Some(Claim {
            vm: Symbol::try_new(name).ok()?,
            pid: self.found.pid,
            uid: self.uid,
            standing: self.standing,
        })
    }
}

/// The name of a VM without a configured name: its kind and number.
fn wanted_name(vm: &FoundVm, origin: &str) -> String {
    let named = vm.name.clone().filter(|name| !name.is_empty());
    let kind = vm.kind.as_str();
    named.unwrap_or_else(|| match (vm.pid, &vm.uuid) {
        (Some(pid), _) => format!("{kind}-{pid}"),
        (None, Some(uuid)) => uuid.clone(),
        (None, None) => origin.to_owned(),
    })
}

/// Fills in missing fields of `vm` from another inventory's result.
fn fill(vm: &mut FoundVm, other: FoundVm) {
    fn or<T>(here: &mut Option<T>, there: Option<T>) {
        if here.is_none() {
            *here = there;
        }
    }
    // A trusted source of the VM does not make a name from another source trusted.
    vm.vouched = match vm.name {
        Some(_) => vm.vouched,
        None => other.vouched,
    };
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

/// True if both are the same disk: by device, else by node, else by the location of the data.
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
    or(&mut disk.tapdisk, &other.tapdisk);
    or(&mut disk.control, &other.control);
    // The backing images may have been replaced since: the other fields apply only to the same
    // source.
    if disk.source == other.source {
        or(&mut disk.format, &other.format);
        or(&mut disk.node, &other.node);
        or(&mut disk.aio, &other.aio);
        or(&mut disk.direct, &other.direct);
        or(&mut disk.size_bytes, &other.size_bytes);
        disk.offset_bytes = disk.offset_bytes.max(other.offset_bytes);
    }
}
