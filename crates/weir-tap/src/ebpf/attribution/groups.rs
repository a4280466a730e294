//! What the kernel programs have to know to group requests by owner, and the owners of the groups.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Attribution, Extent, Open, Owner, Request, process};
use crate::ebpf::cgroups::Cgroups;

impl Attribution {
    /// The owners of requests.
    pub fn owners_of(&mut self, requests: &[Request], cgroups: &mut Cgroups) -> Vec<Owner> {
        self.refresh();
        let decide_all = |attribution: &mut Attribution, cgroups: &mut Cgroups| {
            attribution.open = Open::default();
            let owners = requests.iter().map(|r| attribution.decide(r, cgroups));
            owners.collect()
        };
        let owners = decide_all(self, cgroups);
        match self.look() {
            true => decide_all(self, cgroups),
            false => owners,
        }
    }

    /// The extents of virtual disks on a whole device of this many sectors, from sector 0 on.
    pub fn extents(&mut self, disk: u32, sectors: u64) -> Arc<[Extent]> {
        self.sets.extents(&self.owners, disk, sectors)
    }

    /// See [`super::owner_sets::OwnerSets::vms`].
    pub fn owner_vms(&mut self) -> Vec<u32> {
        self.sets.vms()
    }

    /// Changes with [`Attribution::processes`], except for those of
    /// [`Attribution::take_new_processes`].
    pub fn processes_version(&self) -> u64 {
        self.processes_version
    }

    /// The processes of no VM that became known since the last call.
    pub fn take_new_processes(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.new_processes)
    }

    /// Changes when a disk of a VM is added or removed.
    pub fn disks_version(&self) -> u64 {
        self.disks_version
    }

    /// The processes of which it is known whether they work for a VM, each with the number of its
    /// VM as in [`Attribution::owner_vms`], or [`process::OTHER`].
    pub fn processes(&mut self) -> HashMap<u32, u32> {
        let snapshot = self.owners.snapshot.clone();
        let others = snapshot.servers.keys().chain(&self.without_owner);
        let mut all: HashMap<u32, u32> = others.map(|pid| (*pid, process::OTHER)).collect();
        for (pid, vm) in &snapshot.pids {
            let name = snapshot.vms.get(*vm as usize).map(|vm| vm.name);
            all.insert(*pid, self.sets.vm_number(name.unwrap_or_default()));
        }
        all
    }

    /// The number of the inventory in use, which changes with it.
    pub fn generation(&self) -> u64 {
        self.owners.snapshot.generation
    }
}
