//! [`OwnerTable`]: maps processes, cgroups and devices to VMs for the kernel side, and stores the
//! number of each VM.

use std::collections::HashMap;
use std::sync::Arc;

use weir_model::Symbol;

use crate::ebpf::attribution::Owners;
use crate::ebpf::cgroups::Cgroups;
use crate::ebpf::devices::{Device, Devices};
use crate::ebpf::tables::Known;
use crate::inventory::{InventoryWatch, Piece};
use crate::shared::Shared;

/// Keys of the table of owners (`OWNS_PROCESS` and so on in `hist.h`).
const PROCESS: u64 = 1 << 62;
const CGROUP: u64 = 2 << 62;
const DEVICE: u64 = 3 << 62;

/// The VMs in the table of the kernel side.
#[derive(Debug)]
pub struct OwnerTable {
    watch: Arc<InventoryWatch>,
    owners: Owners,
    table_keys: Known,
    /// The number written for each key.
    keys: HashMap<u64, u32>,
    /// Names of the VMs, by number less 1; a number is never reused.
    names: Vec<Symbol>,
    /// The last known disk of a VM on a device.
    vdisks: HashMap<(Symbol, u32), Symbol>,
}

impl OwnerTable {
    /// Owners from the inventory of `watch`; [`OwnerTable::write`] writes them.
    pub fn new(watch: Arc<InventoryWatch>) -> OwnerTable {
        OwnerTable {
            owners: Owners::new(watch.snapshot(), &Owners::default()),
            watch,
            table_keys: Known::default(),
            keys: HashMap::new(),
            names: Vec::new(),
            vdisks: HashMap::new(),
        }
    }

    /// True if the inventory has changed since it was written.
    pub fn is_stale(&self) -> bool {
        self.watch.generation() != self.owners.snapshot.generation
    }

    /// Writes the owners in the inventory to the kernel side's table.
    pub fn write(&mut self, table: &Shared, devices: &Devices, cgroups: &Cgroups) {
        self.owners = Owners::new(self.watch.snapshot(), &self.owners);
        let mut keys = self.known_keys(devices, cgroups);
        // Ended processes have no owner: the process id may be reused.
        for gone in self.keys.keys() {
            keys.entry(*gone).or_insert(0);
        }
        for (key, owner) in &keys {
            if self.keys.get(key) != Some(owner) {
                self.table_keys.insert(table, *key, *owner, 0);
            }
        }
        keys.retain(|key, owner| {
            if *owner == 0 {
                self.table_keys.forget(table, *key);
            }
            *owner != 0
        });
        self.keys = keys;
    }

    /// The VM with this number.
    pub fn vm(&self, number: u64) -> Option<Symbol> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        self.names.get(at).copied()
    }

    /// The only disk that `vm` has on a whole device, as the VM sees it.
    pub fn vdisk(&mut self, vm: Symbol, disk: u32) -> Option<Symbol> {
        let vms = &self.owners.snapshot.vms;
        let Some(at) = vms.iter().position(|v| v.name == vm) else {
            // The VM was removed; its name remains valid for what was counted.
            return self.vdisks.get(&(vm, disk)).copied();
        };
        let only = self.owners.only_on(at as u32, disk);
        match only {
            Some(vdisk) => self.vdisks.insert((vm, disk), vdisk),
            None => self.vdisks.remove(&(vm, disk)),
        };
        only
    }

    /// All keys with exactly one known VM.
    fn known_keys(&mut self, devices: &Devices, cgroups: &Cgroups) -> HashMap<u64, u32> {
        let snapshot = self.owners.snapshot.clone();
        let numbers: Vec<u32> = snapshot.vms.iter().map(|vm| self.number(vm.name)).collect();
        let number = |vm: u32| numbers.get(vm as usize).copied().unwrap_or(0);
        let mut keys = HashMap::new();
        for (pid, vm) in &snapshot.pids {
            keys.insert(PROCESS | u64::from(*pid), number(*vm));
        }
        for (id, path) in cgroups.iter() {
            if let Some(vm) = self.owners.vm_of_cgroup(path) {
                keys.insert(CGROUP | id, number(vm));
            }
        }
        for device in devices.iter() {
            if let Some(vm) = self.sole_owner(device) {
                keys.insert(DEVICE | u64::from(device.number), number(vm));
            }
        }
        keys
    }

    /// The VM whose disk covers all of a device, if that is one VM.
    fn sole_owner(&self, device: &Device) -> Option<u32> {
        let snapshot = &self.owners.snapshot;
        let found = snapshot.devices.iter().find(|d| d.device == device.path)?;
        let first = found.start_sectors.unwrap_or(0) as u64;
        let end = first + found.bytes as u64 / weir_model::SECTOR_BYTES as u64;
        let is_here =
            |p: &&Piece| p.device == device.disk && p.sector < end && p.sector + p.sectors > first;
        let mut owner = None;
        for laid in &snapshot.disks {
            for piece in laid.layout.pieces.iter().filter(is_here) {
                let all = piece.sector <= first && piece.sector + piece.sectors >= end;
                if !all || piece.shared || owner.is_some_and(|other| other != laid.vm) {
                    return None;
                }
                owner = Some(laid.vm);
            }
        }
        owner
    }

    /// The number of a VM.
    fn number(&mut self, name: Symbol) -> u32 {
        let known = self.names.iter().position(|known| *known == name);
        let at = known.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        at as u32 + 1
    }
}
