//! [`Owners`]: an inventory indexed for the lookup of each request's owner.
//!
//! Each VM has its own index of the locations of its disks, which is reused while they do not
//! change. The index of all VMs together, for requests whose submitter does not identify the VM, is
//! built at its first use.

use std::collections::HashMap;
use std::sync::Arc;

use weir_model::Symbol;
use weir_model::inventory::{Disk, FoundBy};

use super::spans::{NO_SECTOR, SEVERAL, Span, Spans};
use crate::inventory::{DiskLayout, LaidDisk, Snapshot, TapdiskKey};

/// Maximum number of intervals of one device in the index of all VMs; with more, such requests have
/// no VM.
pub const SPANS_MAX: usize = 1 << 20;

/// The sectors of a device that a request reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The whole device.
    pub disk: u32,
    /// The first sector.
    pub sector: u64,
    /// The number of sectors.
    pub sectors: u64,
}

/// The owner of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// No disk lies there, or only part of the location belongs to one.
    Nowhere,
    /// Several disks lie there, or a file that belongs to no disk.
    Shared,
    /// One disk.
    Disk {
        /// Its VM, as a position in the snapshot.
        vm: u32,
        /// The disk as the VM sees it.
        vdisk: Symbol,
        /// Its first sector there, or [`NO_SECTOR`].
        vsector: u64,
        /// True if it was found by the extents of a file.
        in_file: bool,
    },
}

/// The indexed inventory.
#[derive(Debug, Default)]
pub struct Owners {
    /// The inventory.
    pub snapshot: Arc<Snapshot>,
    /// VMs by position in the snapshot.
    vms: Vec<Arc<VmDisks>>,
    /// Indexes by whole device, for the devices looked up so far.
    all: HashMap<u32, AllDisks>,
    /// The disks of tapdisks, as positions in the snapshot.
    served: HashMap<TapdiskKey, usize>,
}

/// What has sectors of a disk of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaidOn {
    /// A disk of the VM, as a position among its disks.
    Disk(u32),
    /// Several of its disks.
    Several,
    /// A disk of the VM, and possibly other files.
    Shared,
}

/// The disks of one VM.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VmDisks {
    disks: Vec<Known>,
    devices: Vec<VmDevice>,
    /// The devices on which its images may get further sectors.
    grows_on: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    vdisk: Symbol,
    in_file: bool,
    /// True if a disk's location is unknown.
    unplaced: bool,
    layout: Arc<DiskLayout>,
}

/// The locations of a VM's disks on a whole device. Owners of intervals are positions among its
/// disks.
#[derive(Debug, PartialEq, Eq)]
struct VmDevice {
    disk: u32,
    spans: Spans,
    /// The only one of its disks that can be on the device.
    only: Option<u32>,
}

/// The locations of all VMs' disks on a whole device. Owners of intervals are positions in `disks`.
#[derive(Debug, Default)]
struct AllDisks {
    spans: Spans,
    /// VM and position among its disks.
    disks: Vec<(u32, u32)>,
    /// True if images may get further sectors there.
    may_grow: bool,
}

impl Target {
    /// These sectors of a whole device.
    pub fn new(disk: u32, sector: u64, sectors: u64) -> Target {
        Target {
            disk,
            sector,
            sectors,
        }
    }
}

impl Owners {
    /// Indexes the owners in `snapshot`. Indexes that are unchanged since `before` are reused.
    pub fn new(snapshot: Arc<Snapshot>, before: &Owners) -> Owners {
        let mut disks: Vec<Vec<&LaidDisk>> = vec![Vec::new(); snapshot.vms.len()];
        for laid in &snapshot.disks {
            if let Some(own) = disks.get_mut(laid.vm as usize) {
                own.push(laid);
            }
        }
        let names = before.snapshot.vms.iter().map(|vm| vm.name);
        let old: HashMap<Symbol, &Arc<VmDisks>> = names.zip(&before.vms).collect();
        let own = snapshot.vms.iter().zip(&disks).map(|(vm, laid)| {
            let known: Vec<Known> = laid.iter().copied().map(known).collect();
            match old.get(&vm.name).filter(|old| unmoved(&old.disks, &known)) {
                Some(old) => (*old).clone(),
                None => Arc::new(VmDisks::new(known)),
            }
        });
        let vms = own.collect();
        let served = snapshot.disks.iter().enumerate();
        let served = served.filter_map(|(at, laid)| Some((laid.tapdisk?, at)));
        Owners {
            all: HashMap::new(),
            served: served.collect(),
            vms,
            snapshot,
        }
    }

    /// The VM that a process works for.
    pub fn vm_of_pid(&self, pid: u32) -> Option<u32> {
        self.snapshot.pids.get(&pid).copied()
    }

    /// A disk that a tapdisk serves.
    pub fn served(&self, key: TapdiskKey) -> Option<&Disk> {
        let at = self.served.get(&key)?;
        self.snapshot.disks.get(*at).map(|laid| &laid.disk)
    }

    /// True if a process works for several VMs.
    pub fn is_server(&self, pid: u32) -> bool {
        let servers = &self.snapshot.servers;
        !servers.is_empty() && servers.contains_key(&pid)
    }

    /// True if a process works for `vm` among others.
    pub fn serves(&self, pid: u32, vm: u32) -> bool {
        let served = self.snapshot.servers.get(&pid);
        served.is_some_and(|vms| vms.contains(&vm))
    }

    /// The VM that is alone in a cgroup or in one above it.
    pub fn vm_of_cgroup(&self, path: Symbol) -> Option<u32> {
        let cgroups = &self.snapshot.cgroups;
        if cgroups.is_empty() {
            return None;
        }
        let mut path = path.as_str();
        loop {
            let found = Symbol::try_new(path).ok().and_then(|p| cgroups.get(&p));
            if let Some(vm) = found {
                return Some(*vm);
            }
            path = &path[..path.rfind('/')?];
            if path.is_empty() {
                return None;
            }
        }
    }

    /// The VM's name.
    pub fn name(&self, vm: u32) -> Option<Symbol> {
        self.snapshot.vms.get(vm as usize).map(|vm| vm.name)
    }

    /// The owner of a location among `vm`'s disks, and whether the rest of the location may be
    /// theirs soon: its images on the device may have grown.
    pub fn of_vm(&self, vm: u32, target: Target) -> (Spot, bool) {
        let Some(own) = self.vms.get(vm as usize) else {
            return (Spot::Nowhere, false);
        };
        let Some(device) = own.devices.iter().find(|d| d.disk == target.disk) else {
            return (Spot::Nowhere, own.grows_on(target.disk));
        };
        let spot = spot(&device.spans, target, |owner, vsector| {
            own.spot(vm, owner, vsector)
        });
        (spot, own.grows_on(target.disk))
    }

    /// Prefetches the entries that [`Owners::of_vm`] reads; the result has no meaning.
    pub fn touch(&self, vm: u32, disk: u32, sector: u64) -> u64 {
        let own = self.vms.get(vm as usize);
        let device = own.and_then(|own| own.devices.iter().find(|d| d.disk == disk));
        device.map_or(0, |device| device.spans.touch(sector))
    }

    /// The only disk of `vm` that can be on a whole device.
    pub fn only_on(&self, vm: u32, disk: u32) -> Option<Symbol> {
        let own = self.vms.get(vm as usize)?;
        let device = own.devices.iter().find(|d| d.disk == disk)?;
        Some(own.disks[device.only? as usize].vdisk)
    }

    /// The position of a VM.
    pub fn position(&self, name: Symbol) -> Option<u32> {
        let at = self.snapshot.vms.iter().position(|vm| vm.name == name)?;
        Some(at as u32)
    }

    /// The VMs with a disk on a disk of the host, or possibly soon, by name.
    pub fn vms_on(&self, disk: u32) -> Vec<(Symbol, Arc<VmDisks>)> {
        let named = self.snapshot.vms.iter().zip(&self.vms);
        let on = named
            .filter(|(_, own)| own.grows_on(disk) || own.devices.iter().any(|d| d.disk == disk));
        on.map(|(vm, own)| (vm.name, own.clone())).collect()
    }

    /// True if images of this VM may grow on a disk of the host.
    pub fn grows_on(&self, vm: u32, disk: u32) -> bool {
        let own = self.vms.get(vm as usize);
        own.is_some_and(|own| own.grows_on(disk))
    }

    /// True if images of any VM may grow on a disk of the host.
    pub fn any_grows_on(&self, disk: u32) -> bool {
        self.vms.iter().any(|own| own.grows_on(disk))
    }

    /// The owner of a location among all disks, and whether images in files are on that device.
    pub fn of_all(&mut self, target: Target) -> (Spot, bool) {
        if !self.all.contains_key(&target.disk) {
            let all = self.gather(target.disk);
            self.all.insert(target.disk, all);
        }
        let all = &self.all[&target.disk];
        let spot = spot(&all.spans, target, |owner, vsector| {
            let (vm, disk) = all.disks[owner as usize];
            self.vms[vm as usize].spot(vm, disk, vsector)
        });
        (spot, all.may_grow)
    }

    fn gather(&self, disk: u32) -> AllDisks {
        let mut all = AllDisks::default();
        let mut spans = Vec::new();
        for (vm, own) in self.vms.iter().enumerate() {
            let first = all.disks.len() as u32;
            all.may_grow |= own.grows_on(disk);
            let disks = 0..own.disks.len() as u32;
            all.disks.extend(disks.map(|d| (vm as u32, d)));
            for device in own.devices.iter().filter(|d| d.disk == disk) {
                spans.extend(device.spans.iter().map(|span| Span {
                    owner: match span.owner {
                        SEVERAL => SEVERAL,
                        owner => first + owner,
                    },
                    ..*span
                }));
            }
            let shared = own.disks.iter().flat_map(|d| &d.layout.pieces);
            let shared = shared.filter(|p| p.shared && p.device == disk);
            spans.extend(shared.map(|piece| Span {
                first: piece.sector,
                end: piece.sector + piece.sectors,
                owner: SEVERAL,
                vsector: NO_SECTOR,
            }));
        }
        if spans.len() <= SPANS_MAX {
            all.spans = Spans::new(spans);
        }
        all
    }
}

fn known(laid: &LaidDisk) -> Known {
    Known {
        vdisk: laid.disk.vdisk,
        in_file: laid.disk.found_by == FoundBy::Extents,
        unplaced: laid.disk.found_by == FoundBy::Process,
        layout: laid.layout.clone(),
    }
}

/// True if these are the same disks at the same locations.
fn unmoved(before: &[Known], now: &[Known]) -> bool {
    let same = |(a, b): (&Known, &Known)| {
        (a.vdisk, a.in_file, a.unplaced) == (b.vdisk, b.in_file, b.unplaced)
            && Arc::ptr_eq(&a.layout, &b.layout)
    };
    before.len() == now.len() && before.iter().zip(now).all(same)
}

impl VmDisks {
    fn new(disks: Vec<Known>) -> VmDisks {
        let mut spans: Vec<(u32, Vec<Span>)> = Vec::new();
        for (owner, known) in disks.iter().enumerate() {
            for piece in &known.layout.pieces {
                let span = Span {
                    first: piece.sector,
                    end: piece.sector.saturating_add(piece.sectors),
                    owner: owner as u32,
                    vsector: piece.vsector.unwrap_or(NO_SECTOR),
                };
                match spans.iter_mut().find(|(disk, _)| *disk == piece.device) {
                    Some((_, spans)) => spans.push(span),
                    None => spans.push((piece.device, vec![span])),
                }
            }
        }
        let unplaced = disks.iter().any(|d| d.unplaced);
        let device = |(disk, spans): (u32, Vec<Span>)| {
            let owner = spans[0].owner;
            let alone = !unplaced && spans.iter().all(|s| s.owner == owner);
            VmDevice {
                disk,
                only: alone.then_some(owner),
                spans: Spans::new(spans),
            }
        };
        let devices = spans.into_iter().map(device).collect();
        let grows_on = disks.iter().flat_map(|known| &known.layout.grows_on);
        VmDisks {
            grows_on: grows_on.copied().collect(),
            disks,
            devices,
        }
    }

    /// True if its images may grow on a disk of the host.
    pub fn grows_on(&self, disk: u32) -> bool {
        self.grows_on.contains(&disk)
    }

    /// The disk as the VM sees it, and whether it was found by the extents of a file.
    pub fn disk(&self, at: u32) -> (Symbol, bool) {
        let known = &self.disks[at as usize];
        (known.vdisk, known.in_file)
    }

    /// What the VM has on a disk of the host: the first sector, the sector after the last one, and
    /// what it is there.
    pub fn laid_on(&self, disk: u32) -> impl Iterator<Item = (u64, u64, LaidOn)> {
        let devices = self.devices.iter().filter(move |d| d.disk == disk);
        let own = devices.flat_map(|d| d.spans.iter()).map(|span| {
            let laid = match span.owner {
                SEVERAL => LaidOn::Several,
                owner => LaidOn::Disk(owner),
            };
            (span.first, span.end, laid)
        });
        let pieces = self.disks.iter().flat_map(|d| &d.layout.pieces);
        let shared = pieces.filter(move |p| p.shared && p.device == disk);
        let shared = shared.map(|p| (p.sector, p.sector.saturating_add(p.sectors), LaidOn::Shared));
        own.chain(shared)
    }

    fn spot(&self, vm: u32, disk: u32, vsector: u64) -> Spot {
        let known = &self.disks[disk as usize];
        Spot::Disk {
            vm,
            vdisk: known.vdisk,
            vsector,
            in_file: known.in_file,
        }
    }
}

/// The owner of a location, if the whole location has one.
fn spot(spans: &Spans, target: Target, disk: impl Fn(u32, u64) -> Spot) -> Spot {
    let Some(span) = spans.find(target.sector) else {
        return Spot::Nowhere;
    };
    let end = target.sector.saturating_add(target.sectors);
    let mut reached = span.end;
    while reached < end {
        // A merged request may continue beyond the end of the file's extent.
        match spans.find(reached) {
            None => return Spot::Nowhere,
            Some(next) if next.owner != span.owner => return Spot::Shared,
            Some(next) => reached = next.end,
        }
    }
    match (span.owner, span.vsector) {
        (SEVERAL, _) => Spot::Shared,
        (owner, NO_SECTOR) => disk(owner, NO_SECTOR),
        (owner, vsector) => disk(owner, vsector + (target.sector - span.first)),
    }
}
