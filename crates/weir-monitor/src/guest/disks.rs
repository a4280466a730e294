//! Which VM a guest is, and the disks of both sides.

use std::collections::HashMap;

use weir_model::{Symbol, Value};

use super::symbol;

/// A disk in a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskInGuest {
    /// The agent in the guest.
    pub host: Option<Symbol>,
    /// Its VM: the name or the UUID.
    pub vm: Option<Symbol>,
    /// The device in the guest.
    pub device: Option<Symbol>,
}

/// A virtual disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServedDisk {
    /// The host that serves it.
    pub host: Symbol,
    /// Its VM.
    pub vm: Symbol,
    /// Its name, as in relation `disks`.
    pub vdisk: Symbol,
}

/// The VMs of the hosts, from relation `vms`.
#[derive(Default)]
pub struct VmNames {
    /// How often each host, name and UUID is in the relation.
    vms: HashMap<(Symbol, Symbol, Option<Symbol>), i64>,
}

impl VmNames {
    /// Adds or removes a row: host, name, UUID.
    pub fn change(&mut self, row: &[Value], weight: i64) {
        let [host, name, uuid] = row else {
            return;
        };
        let (Some(host), Some(name)) = (symbol(host), symbol(name)) else {
            return;
        };
        let key = (host, name, symbol(uuid));
        let count = self.vms.entry(key).or_default();
        *count += weight;
        if *count <= 0 {
            self.vms.remove(&key);
        }
    }

    /// The host and name of the VM with this name or UUID; `None` if there is none or several. The
    /// names of virtual disks are used if the relation does not have it.
    pub fn vm<'a>(
        &self,
        named: Option<Symbol>,
        vdisks: impl Iterator<Item = &'a ServedDisk>,
    ) -> Option<(Symbol, Symbol)> {
        let named = named?;
        let is_uuid = |uuid: &Symbol| uuid.as_str().eq_ignore_ascii_case(named.as_str());
        let listed = self.vms.keys();
        let listed =
            listed.filter(|(_, name, uuid)| *name == named || uuid.is_some_and(|u| is_uuid(&u)));
        let mut found: Vec<(Symbol, Symbol)> =
            listed.map(|(host, name, _)| (*host, *name)).collect();
        if found.is_empty() {
            let named = vdisks.filter(|vdisk| vdisk.vm == named);
            found = named.map(|vdisk| (vdisk.host, vdisk.vm)).collect();
        }
        let name = |(host, vm): &(Symbol, Symbol)| (host.as_str(), vm.as_str());
        found.sort_by(|a, b| name(a).cmp(&name(b)));
        found.dedup();
        match found[..] {
            [only] => Some(only),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(inventory: &mut VmNames, row: [&str; 3], weight: i64) {
        inventory.change(&row.map(Value::text), weight);
    }

    #[test]
    fn a_vm_is_found_by_its_name_or_its_uuid_if_it_is_the_only_one() {
        let text = Symbol::new;
        let mut inventory = VmNames::default();
        change(&mut inventory, ["h1", "web", "AB-1"], 1);
        change(&mut inventory, ["h2", "db", "ab-2"], 1);
        let vm = |inventory: &VmNames, named: &str| inventory.vm(Some(text(named)), [].iter());
        assert_eq!(vm(&inventory, "web"), Some((text("h1"), text("web"))));
        assert_eq!(vm(&inventory, "ab-1"), Some((text("h1"), text("web"))));
        assert_eq!(vm(&inventory, "other"), None);
        // Migrated, and for a moment on both hosts.
        change(&mut inventory, ["h2", "web", "AB-1"], 1);
        assert_eq!(vm(&inventory, "web"), None);
        change(&mut inventory, ["h1", "web", "AB-1"], -1);
        assert_eq!(vm(&inventory, "ab-1"), Some((text("h2"), text("web"))));
        let vdisk = ServedDisk {
            host: text("h3"),
            vm: text("other"),
            vdisk: text("/dev/vda"),
        };
        let found = inventory.vm(Some(text("other")), [vdisk, vdisk].iter());
        assert_eq!(found, Some((text("h3"), text("other"))));
    }
}
