//! [`Attribution`]: maps each request to its VM, its disk, and the sector there.
//!
//! The rules, for a request on a device of the host:
//! 1. Submitted by a process that works for one VM: it belongs to that VM. Its disk is the VM's
//!    disk at that location.
//! 2. Submitted by a kernel thread (writeback, loop devices, throttled I/O): it belongs to the disk
//!    at that location, if there is exactly one.
//! 3. Submitted by a process that works for several VMs: it belongs to their disk at that location.
//! 4. Charged to a cgroup that contains one VM and nothing else: it belongs to that VM.
//! 5. Submitted by another process: it has no VM, whatever its location.
//!
//! If the rules contradict each other, the request is not attributed. Uncertain names are NULL.

mod groups;
mod images;
mod owner;
mod owner_sets;
mod owners;
mod spans;

use std::collections::{HashMap, HashSet};
use std::hint;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_model::{Op, Symbol};

use self::images::Images;
pub use self::owner::Owner;
use self::owner_sets::OwnerSets;
pub use self::owner_sets::{Extent, process, set};
pub(super) use self::owners::Owners;
use self::owners::{Spot, Target};
use self::spans::NO_SECTOR;
use super::cgroups::Cgroups;
use super::layout::{Record, Submitter, UNKNOWN, flag};
use crate::inventory::{InventoryWatch, ScanScope, Snapshot, TapdiskKey};

/// The submitter of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By {
    /// The process.
    pub pid: u32,
    /// True for a kernel thread.
    pub by_kernel: bool,
    /// The cgroup that the request is charged to.
    pub cgroup: u64,
}

/// What determines the owner of a request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The submitter.
    pub by: By,
    /// Position in [`Op::ALL`].
    pub op: u8,
    /// The whole device.
    pub disk: u32,
    /// The location on the device.
    pub location: Location,
}

/// The location of a request on a whole device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// None, as of a flush.
    Nowhere,
    /// These sectors.
    At {
        /// The first one.
        sector: u64,
        /// Their number.
        sectors: u64,
    },
    /// In extents of [`Attribution::extents`] with these owners.
    Among(u16),
}

/// The virtual disk whose image has a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnImage {
    /// None: the file is no image of a disk of this VM.
    Nothing,
    /// One of several with this image.
    Ambiguous,
    /// This one.
    Disk {
        /// Its VM.
        vm: Symbol,
        /// The disk as the VM sees it.
        vdisk: Symbol,
        /// The sector of the image's device where the disk begins; `None` if the image has the
        /// disk's sectors in another order, as qcow2.
        start_sector: Option<u64>,
    },
}

/// Attributes requests to VMs.
#[derive(Debug)]
pub struct Attribution {
    watch: Arc<InventoryWatch>,
    owners: Owners,
    /// The sets of disks that extents belong to, for groups.
    sets: OwnerSets,
    /// The images of the disks, once a request of a file is attributed.
    images: Option<Images>,
    /// Recent submitters, indexed by the low bits of the process id.
    recent: Box<[Recent; RECENT]>,
    /// Processes that were scanned for and work for no VM.
    without_owner: HashSet<u32>,
    /// Those that were added since groups last needed them.
    new_processes: Vec<u32>,
    /// Incremented when the processes of VMs change, or those without a VM are unknown again.
    processes_version: u64,
    /// Incremented when a disk is added or removed.
    disks_version: u64,
    /// Recently charged cgroups and their VMs, indexed by the low bits of their ids.
    charged: Box<[Charged; RECENT]>,
    /// Unknown names in the last records.
    open: Open,
    pids_looked: Pause,
    devices_looked: HashMap<(u32, Option<u32>), Pause>,
}

/// A process and its VM.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    pid: u32,
    vm: Option<u32>,
}

/// A cgroup and its VM.
#[derive(Clone, Copy, Debug, Default)]
struct Charged {
    cgroup: u64,
    vm: Option<u32>,
}

/// Unknown names that a scan of the host may resolve.
#[derive(Debug, Default)]
struct Open {
    /// Unknown processes.
    pids: Vec<u32>,
    /// Devices where an image may have grown, and the VM that wrote; none for a kernel thread.
    devices: Vec<(u32, Option<u32>)>,
}

/// The schedule of scans.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    span: Duration,
}

/// Number of processes, and of cgroups, that are cached by index.
const RECENT: usize = 1 << 10;

/// Number of requests whose locations are prefetched.
const AHEAD: usize = 32;

/// Maximum number of cached processes without a VM.
const WITHOUT_OWNER_MAX: usize = 1 << 13;

/// Maximum number of cached locations.
const REMEMBERED_MAX: usize = 1 << 16;

/// Maximum number of processes and devices in one scan.
const OPEN_MAX: usize = 16;

/// How long rows wait for a scan. The watch itself pauses 20 ms between two.
const SCAN_TIMEOUT: Duration = Duration::from_millis(60);

/// Minimum interval between scans for unknown processes, and for images that have grown.
pub const LOOKS_APART: Duration = Duration::from_millis(90);

/// Maximum interval between scans, to which it grows while scans find nothing.
const LOOKS_APART_MAX: Duration = Duration::from_secs(1);

impl Attribution {
    /// Attribution by the inventory of `watch`, whose first scan need not be complete yet: until
    /// then, requests have no owner.
    pub fn new(watch: Arc<InventoryWatch>) -> Attribution {
        Attribution {
            watch,
            owners: Owners::default(),
            sets: OwnerSets::default(),
            images: None,
            recent: Box::new([Recent::default(); RECENT]),
            without_owner: HashSet::new(),
            new_processes: Vec::new(),
            processes_version: 0,
            disks_version: 0,
            charged: Box::new([Charged::default(); RECENT]),
            open: Open::default(),
            pids_looked: Pause::new(),
            devices_looked: HashMap::new(),
        }
    }

    /// Fills `found` with the owner of each of `positions`: positions among the records, each with
    /// its whole device.
    pub fn attribute(
        &mut self,
        positions: impl Iterator<Item = (u32, u32)> + Clone,
        records: &[Record],
        submitters: &[Submitter],
        cgroups: &mut Cgroups,
        found: &mut Vec<Owner>,
    ) {
        self.refresh();
        self.decide_all(positions.clone(), records, submitters, cgroups, found);
        if self.look() {
            self.decide_all(positions, records, submitters, cgroups, found);
        }
    }

    /// The reason why new processes and disks are no longer attributed, if that is the case.
    pub fn notice(&self) -> Option<String> {
        self.watch.notice()
    }

    /// Loads changes of the inventory; true if there are any.
    pub fn refresh(&mut self) -> bool {
        let changed = self.watch.generation() != self.owners.snapshot.generation;
        if changed {
            self.renew();
        }
        changed
    }

    /// True if images are growing: records should then be read every [`LOOKS_APART`], so that none
    /// are reported between two scans.
    pub fn sees_growth(&self) -> bool {
        let now = Instant::now();
        let mut pauses = self.devices_looked.values();
        pauses.any(|p| p.span == LOOKS_APART && p.until > now)
    }

    fn renew(&mut self) {
        let snapshot = self.watch.snapshot();
        let before = self.owners.snapshot.clone();
        let same_processes = before.pids == snapshot.pids
            && before.servers == snapshot.servers
            && before.vms == snapshot.vms;
        if !same_processes {
            self.forget_processes();
        }
        let names = |snapshot: &Snapshot| -> Vec<(Symbol, Symbol)> {
            let disks = snapshot.disks.iter().map(|laid| &laid.disk);
            disks.map(|disk| (disk.vm, disk.vdisk)).collect()
        };
        if names(&before) != names(&snapshot) {
            self.disks_version += 1;
        }
        self.recent.fill(Recent::default());
        self.charged.fill(Charged::default());
        self.owners = Owners::new(snapshot, &self.owners);
        self.images = None;
    }

    /// Processes without a VM may have ended, and their numbers be those of others.
    fn forget_processes(&mut self) {
        self.without_owner.clear();
        self.new_processes.clear();
        self.processes_version += 1;
    }

    fn decide_all(
        &mut self,
        mut positions: impl Iterator<Item = (u32, u32)> + Clone,
        records: &[Record],
        submitters: &[Submitter],
        cgroups: &mut Cgroups,
        found: &mut Vec<Owner>,
    ) {
        self.open.pids.clear();
        self.open.devices.clear();
        found.clear();
        // The last submitter whose requests have no owner, wherever they are.
        let mut outside: Option<By> = None;
        loop {
            let mut loaded = 0;
            for (at, disk) in positions.clone().take(AHEAD) {
                let sector = records[at as usize].sector;
                loaded ^= self.touch(submitters[at as usize].pid, disk, sector);
            }
            hint::black_box(loaded);
            let before = found.len();
            for (at, disk) in positions.by_ref().take(AHEAD) {
                let (record, submitter) = (&records[at as usize], &submitters[at as usize]);
                let request = Request::of(record, submitter, disk);
                if outside != Some(request.by) {
                    let owner = self.decide(&request, cgroups);
                    outside = self.is_outside(owner, request.by).then_some(request.by);
                    found.push(owner);
                } else {
                    found.push(Owner::default());
                }
            }
            if found.len() - before < AHEAD {
                return;
            }
        }
    }

    /// Prefetches the entries that `decide` reads. A host's index does not fit into the nearest
    /// cache; independent loads run in parallel.
    fn touch(&self, pid: u32, disk: u32, sector: u64) -> u64 {
        let recent = &self.recent[pid as usize % RECENT];
        match recent.vm {
            Some(vm) if recent.pid == pid => self.owners.touch(vm, disk, sector),
            _ => 0,
        }
    }

    /// True if `owner`, of a request of `by`, does not depend on the location.
    fn is_outside(&self, owner: Owner, by: By) -> bool {
        owner == Owner::default() && !by.by_kernel && !self.owners.is_server(by.pid)
    }

    /// The owner of one request.
    fn decide(&mut self, request: &Request, cgroups: &mut Cgroups) -> Owner {
        let By { pid, by_kernel, .. } = request.by;
        let charged = self.vm_of_cgroup(request.by.cgroup, cgroups);
        let working = self.vm_of_pid(pid, by_kernel);
        if let (Some(working), Some(charged)) = (working, charged)
            && working != charged
        {
            return Owner::default();
        }
        if working.is_none() && by_kernel {
            return self.by_place(request, charged);
        }
        if working.is_none() && self.owners.is_server(pid) {
            return self.by_server(request, charged);
        }
        match working.or(charged) {
            Some(vm) => self.by_vm(vm, request),
            None => Owner::default(),
        }
    }

    /// The VM of a process in a cgroup, where no location on a device is known. An unknown process
    /// is scanned for, if a scan is due.
    pub fn vm_of(
        &mut self,
        pid: u32,
        by_kernel: bool,
        cgroup: u64,
        cgroups: &mut Cgroups,
    ) -> Option<Symbol> {
        let mut vm = || {
            let charged = self.vm_of_cgroup(cgroup, cgroups);
            match self.vm_of_pid(pid, by_kernel).or(charged) {
                vm if charged.is_none() || vm == charged => vm,
                _ => None,
            }
        };
        let vm = match vm() {
            None if !self.open.pids.is_empty() && self.look() => self.vm_of_pid(pid, by_kernel),
            vm => vm,
        };
        self.owners.name(vm?)
    }

    /// The disk whose image has this path. A kernel thread writes for any VM; another process that
    /// works for no VM has no disk.
    pub fn on_image(&mut self, path: Symbol, by: By, cgroups: &mut Cgroups) -> OnImage {
        if self.images().is_empty() {
            return OnImage::Nothing;
        }
        let charged = self.vm_of_cgroup(by.cgroup, cgroups);
        let vm = self.vm_of_pid(by.pid, by.by_kernel).or(charged);
        let serves_several = self.owners.is_server(by.pid);
        if vm.is_none() && !by.by_kernel && !serves_several {
            return OnImage::Nothing;
        }
        let image = match self.images().only(path, vm) {
            (Some(image), _) => image,
            (None, true) => return OnImage::Ambiguous,
            (None, false) => return OnImage::Nothing,
        };
        if vm.is_none() && serves_several && !self.owners.serves(by.pid, image.vm) {
            return OnImage::Nothing;
        }
        match self.owners.name(image.vm) {
            None => OnImage::Nothing,
            Some(vm) => OnImage::Disk {
                vm,
                vdisk: image.vdisk,
                start_sector: image.is_whole.then_some(image.start_sector),
            },
        }
    }

    fn images(&mut self) -> &Images {
        self.images
            .get_or_insert_with(|| Images::new(&self.owners.snapshot))
    }

    /// The VM of a network device.
    pub fn vm_of_net_device(&self, name: Symbol) -> Option<Symbol> {
        let vm = self.owners.snapshot.taps.get(&name)?;
        self.owners.name(*vm)
    }

    /// The names of a disk that a tapdisk serves: of its VM, and of the disk there. An unknown
    /// process is scanned for, if a scan is due.
    pub fn served(&mut self, key: TapdiskKey) -> Option<(Symbol, Symbol)> {
        let unknown = self.owners.served(key).is_none();
        if unknown {
            self.vm_of_pid(key.pid, false);
            if !self.open.pids.is_empty() {
                self.look();
            }
        }
        let disk = self.owners.served(key)?;
        Some((disk.vm, disk.vdisk))
    }

    /// The request belongs to `vm`: finds its disk.
    fn by_vm(&mut self, vm: u32, request: &Request) -> Owner {
        let name = self.owners.name(vm).unwrap_or_default();
        let disk = request.disk;
        let (spot, files) = match request.location {
            Location::Nowhere => {
                let flush = usize::from(request.op) == Op::Flush as usize;
                let only = flush.then(|| self.owners.only_on(vm, disk)).flatten();
                return Owner {
                    vm: name,
                    vdisk: only.unwrap_or_default(),
                    vsector: NO_SECTOR,
                };
            }
            Location::At { sector, sectors } => {
                self.owners.of_vm(vm, Target::new(disk, sector, sectors))
            }
            Location::Among(set) => {
                let files = self.owners.grows_on(vm, disk);
                (self.sets.of_vm(set, (name, vm)), files)
            }
        };
        if spot == Spot::Nowhere && files {
            self.open.device(disk, Some(vm));
        }
        self.at(spot).unwrap_or(Owner::of(name))
    }

    /// A process that works for several VMs submitted it: only the location identifies the VM.
    fn by_server(&mut self, request: &Request, charged: Option<u32>) -> Owner {
        let Some((spot, files)) = self.of_all(request) else {
            return Owner::default();
        };
        match spot {
            Spot::Disk { vm, .. } if !self.owners.serves(request.by.pid, vm) => Owner::default(),
            Spot::Disk { vm, .. } if charged.is_some_and(|charged| charged != vm) => {
                Owner::default()
            }
            spot => {
                if spot == Spot::Nowhere && files {
                    self.open.device(request.disk, None);
                }
                self.at(spot).unwrap_or_default()
            }
        }
    }

    /// A kernel thread submitted it; its location and its cgroup identify the VM.
    fn by_place(&mut self, request: &Request, charged: Option<u32>) -> Owner {
        let name = charged.and_then(|vm| self.owners.name(vm));
        let by_cgroup = Owner::of(name.unwrap_or_default());
        let Some((spot, files)) = self.of_all(request) else {
            return by_cgroup;
        };
        match spot {
            Spot::Disk { vm, .. } if charged.is_some_and(|charged| charged != vm) => {
                Owner::default()
            }
            // A file system discards the sectors of deleted files: they have no owner any more.
            Spot::Disk { in_file: true, .. } if discards(request.op) => by_cgroup,
            Spot::Disk { .. } | Spot::Shared => self.at(spot).unwrap_or(by_cgroup),
            Spot::Nowhere => {
                if files {
                    self.open.device(request.disk, None);
                }
                by_cgroup
            }
        }
    }

    /// The owner of the request's location among all disks, and whether images in files are on that
    /// device; `None` without a location.
    fn of_all(&mut self, request: &Request) -> Option<(Spot, bool)> {
        let disk = request.disk;
        match request.location {
            Location::Nowhere => None,
            Location::At { sector, sectors } => {
                Some(self.owners.of_all(Target::new(disk, sector, sectors)))
            }
            Location::Among(set) => {
                let spot = self.sets.of_all(set, |name| self.owners.position(name));
                Some((spot, self.owners.any_grows_on(disk)))
            }
        }
    }

    /// The owner of a location, if it has one.
    fn at(&self, spot: Spot) -> Option<Owner> {
        let Spot::Disk {
            vm, vdisk, vsector, ..
        } = spot
        else {
            return None;
        };
        Some(Owner {
            vm: self.owners.name(vm)?,
            vdisk,
            vsector,
        })
    }

    /// The VM that a process works for. An unknown process is registered for the next scan.
    fn vm_of_pid(&mut self, pid: u32, by_kernel: bool) -> Option<u32> {
        if pid == 0 {
            return None;
        }
        let recent = &mut self.recent[pid as usize % RECENT];
        if recent.pid == pid {
            return recent.vm;
        }
        let vm = self.owners.vm_of_pid(pid);
        let is_known = vm.is_some() || self.owners.is_server(pid);
        if is_known || by_kernel || self.without_owner.contains(&pid) {
            *recent = Recent { pid, vm };
        } else {
            self.open.pid(pid);
        }
        vm
    }

    /// The VM that is alone in the cgroup.
    fn vm_of_cgroup(&mut self, id: u64, cgroups: &mut Cgroups) -> Option<u32> {
        if id == 0 || self.owners.snapshot.cgroups.is_empty() {
            return None;
        }
        let charged = &mut self.charged[id as usize % RECENT];
        if charged.cgroup == id {
            return charged.vm;
        }
        // An unknown path may become known soon.
        let vm = self.owners.vm_of_cgroup(cgroups.path(id)?);
        *charged = Charged { cgroup: id, vm };
        vm
    }

    /// Scans for unknown names, if a scan is due; true if the inventory has changed.
    fn look(&mut self) -> bool {
        let now = Instant::now();
        let pids = match self.open.pids.is_empty() || self.pids_looked.until > now {
            true => Vec::new(),
            false => std::mem::take(&mut self.open.pids),
        };
        let mut devices = std::mem::take(&mut self.open.devices);
        devices.retain(|open| self.devices_looked.get(open).is_none_or(|p| p.until <= now));
        let looks = pids.iter().map(|pid| ScanScope::Pid(*pid));
        let mut looks: Vec<ScanScope> = looks
            .chain(devices.iter().map(|(device, _)| ScanScope::Device(*device)))
            .collect();
        let Some(last) = looks.pop() else {
            return false;
        };
        for look in looks {
            self.watch.look(look, Duration::ZERO);
        }
        let before = self.owners.snapshot.clone();
        let seen = self.watch.look(last, SCAN_TIMEOUT);
        let changed = seen.generation != before.generation;
        if changed {
            self.renew();
        }
        if !pids.is_empty() {
            self.pids_looked.next(true);
            if self.without_owner.len() >= WITHOUT_OWNER_MAX {
                self.forget_processes();
            }
            // If the scan was not completed in time, they are removed when it is.
            let snapshot = &self.owners.snapshot;
            let is_known =
                |pid: &u32| snapshot.pids.contains_key(pid) || snapshot.servers.contains_key(pid);
            let unknown = pids.iter().copied().filter(|pid| !is_known(pid));
            for pid in unknown {
                self.without_owner.insert(pid);
                self.new_processes.push(pid);
            }
        }
        let moved = changed && before.disks != self.owners.snapshot.disks;
        if self.devices_looked.len() >= REMEMBERED_MAX {
            self.devices_looked.clear();
        }
        for open in devices {
            let pause = self.devices_looked.entry(open).or_insert_with(Pause::new);
            pause.next(moved);
        }
        changed
    }
}

impl Open {
    fn pid(&mut self, pid: u32) {
        if self.pids.len() < OPEN_MAX && !self.pids.contains(&pid) {
            self.pids.push(pid);
        }
    }

    fn device(&mut self, disk: u32, vm: Option<u32>) {
        let open = (disk, vm);
        if self.devices.len() < OPEN_MAX && !self.devices.contains(&open) {
            self.devices.push(open);
        }
    }
}

impl Pause {
    /// No scan yet.
    fn new() -> Pause {
        Pause {
            until: Instant::now(),
            span: LOOKS_APART,
        }
    }

    /// Starts a pause after a scan; `found` is whether that found something.
    fn next(&mut self, found: bool) {
        self.span = match found {
            true => LOOKS_APART,
            false => (self.span * 2).min(LOOKS_APART_MAX),
        };
        self.until = Instant::now() + self.span;
    }
}

impl Request {
    fn of(record: &Record, submitter: &Submitter, disk: u32) -> Request {
        Request {
            by: By {
                pid: submitter.pid,
                by_kernel: record.flags & flag::KERNEL != 0,
                cgroup: submitter.cgroup,
            },
            op: record.op,
            disk,
            location: match record.sector {
                UNKNOWN => Location::Nowhere,
                sector => Location::At {
                    sector,
                    sectors: u64::from(record.bytes >> 9),
                },
            },
        }
    }
}

/// True if the operation discards sectors.
fn discards(op: u8) -> bool {
    let op = usize::from(op);
    op == Op::Discard as usize || op == Op::WriteZeroes as usize
}

#[cfg(test)]
mod tests;
