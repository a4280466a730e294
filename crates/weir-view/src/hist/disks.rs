//! [`Listed`]: the VMs' disks and the host's, with their numbers in `weir hist`.
//!
//! vscsiStats names a VM by its world group and a disk by its handle. Here a VM's number is that of
//! its process, a disk's its position in the list; disks of no VM have VM number 0.

use weir_model::Symbol;
use weir_tap::inventory::Snapshot;
use weir_workload::Subject;

use super::choice::HistogramChoice;

/// A line of `weir hist -l`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number, from 1.
    pub handle: u64,
    /// Its VM's number.
    pub world_group: u64,
    /// Its VM.
    pub vm: Option<Symbol>,
    /// The disk as the VM sees it.
    pub vdisk: Option<Symbol>,
    /// The host's device below it, or the device itself.
    pub pdisk: Option<Symbol>,
    /// The file or device that contains a virtual disk's data.
    pub image: Option<Symbol>,
    /// Size in bytes.
    pub bytes: Option<i64>,
}

impl Listed {
    /// The name of the disk in its VM, or on the host.
    pub fn disk(&self) -> Symbol {
        let name = self.vdisk.or(self.pdisk);
        name.expect("a disk is seen by its VM or by the host")
    }

    /// Display name: `web:/dev/vda`.
    pub fn name(&self) -> String {
        super::counted::name(&self.subject())
    }

    /// Its subject in histograms.
    pub fn subject(&self) -> Subject {
        Subject {
            vm: self.vm,
            vdisk: self.vdisk,
            pdisk: self.pdisk,
            ..Subject::default()
        }
    }

    /// True when it belongs to the VM of that name.
    pub fn is_of(&self, vm: &str) -> bool {
        self.vm.is_some_and(|own| own.as_str() == vm)
    }
}

/// The disks of a host: VMs by name with their disks, then the host's own devices that have a size.
pub fn list(host: &Snapshot) -> Vec<Listed> {
    let mut all: Vec<Listed> = Vec::new();
    for laid in &host.disks {
        let disk = &laid.disk;
        let pid = host.vms[laid.vm as usize].pid.unwrap_or(0);
        all.push(Listed {
            handle: 0,
            world_group: u64::try_from(pid).unwrap_or(0),
            vm: Some(disk.vm),
            vdisk: Some(disk.vdisk),
            pdisk: disk.pdisk,
            image: disk.image,
            bytes: disk.bytes,
        });
    }
    // A device on several others has a row for each; it is listed once.
    for device in host
        .devices
        .iter()
        .filter(|d| d.device == d.disk && d.bytes > 0)
    {
        if !all
            .iter()
            .any(|l| l.vm.is_none() && l.pdisk == Some(device.device))
        {
            all.push(Listed {
                handle: 0,
                world_group: 0,
                vm: None,
                vdisk: None,
                pdisk: Some(device.device),
                image: device.file,
                bytes: Some(device.bytes),
            });
        }
    }
    all.sort_by_key(|l| {
        let vm = l.vm.map(Symbol::as_str);
        (vm.is_none(), vm, l.disk().as_str())
    });
    for (place, disk) in all.iter_mut().enumerate() {
        disk.handle = place as u64 + 1;
    }
    all
}

/// The selected virtual disk, if its VM has another one on the same device of the host.
pub fn with_others_on_its_device<'l>(
    listed: &'l [Listed],
    choice: &HistogramChoice,
) -> Option<&'l Listed> {
    choice.disk.as_ref()?;
    let mut chosen = listed
        .iter()
        .filter(|l| l.vm.is_some() && choice.has(&l.subject()));
    chosen.find(|disk| {
        let beside = |l: &Listed| (l.vm, l.pdisk) == (disk.vm, disk.pdisk) && l.vdisk != disk.vdisk;
        disk.pdisk.is_some() && listed.iter().any(beside)
    })
}
