//! [`Scanner`]: scans the host repeatedly and reports changes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_model::inventory::{BlockDevice, Disk, FoundBy, Vm};
use weir_model::{Nanos, Symbol};

use super::declared::Pinned;
use super::devices;
use super::found::{FoundDisk, FoundVm, Source};
use super::host::Host;
use super::layout::{Image, Layouts, Located};
use super::libvirt::StatusFiles;
use super::location::Locations;
use super::merged::{Entry, MergedInventory};
use super::monitors::{Life, Monitors};
use super::net_taps;
use super::process::{Process, Processes};
use super::snapshot::{LaidDisk, Snapshot};
use super::tapdisk;
use super::watch::{ScanScope, WatchOptions};
use super::workers::Workers;
use super::{INVENTORIES, Scene, is_wanted};
use crate::ebpf::clock::epoch_ns;
use crate::qmp::QmpAddress;

/// The devices are read again after this many times the duration of the last read: half a percent
/// of a processor.
const DEVICES_SHARE: u32 = 200;

/// How long a scan waits for QMP monitors that were not queried before.
const FIRST_ANSWERS: Duration = Duration::from_millis(500);

/// The host as last scanned.
pub struct Scanner {
    host: Host,
    declared: Vec<Pinned>,
    processes: Processes,
    devices: Vec<BlockDevice>,
    /// The text of /proc/partitions when the devices were read.
    partitions: String,
    devices_due: Instant,
    status_files: RefCell<StatusFiles>,
    monitors: Monitors,
    workers: Workers,
    merged: MergedInventory,
    places: Locations,
    layouts: Layouts,
    /// Whether recently written files are read again.
    fresh: bool,
    /// The last snapshot that was reported.
    emitted: Snapshot,
    /// Permanent errors.
    remarks: Vec<String>,
}

impl Scanner {
    /// The state before the first scan.
    pub fn new(options: &WatchOptions) -> Scanner {
        let host = Host::new(&options.root);
        Scanner {
            processes: Processes::new(&host, epoch_ns(), is_wanted),
            declared: options.declared.iter().map(Pinned::new).collect(),
            devices: Vec::new(),
            partitions: String::new(),
            devices_due: Instant::now(),
            status_files: RefCell::default(),
            monitors: Monitors::new(),
            workers: Workers::default(),
            merged: MergedInventory::default(),
            places: Locations::default(),
            layouts: Layouts::default(),
            fresh: false,
            emitted: Snapshot::default(),
            remarks: Vec::new(),
            host,
        }
    }

    /// Adds a remark for the user.
    pub fn remark(&mut self, text: String) {
        self.remarks.push(text);
    }

    /// Scans what may have changed; `None` if nothing has.
    pub fn look(&mut self, asked: &[ScanScope]) -> Option<Snapshot> {
        if !self.is_due(asked) {
            return None;
        }
        let taken = epoch_ns();
        self.processes.look(&self.host);
        for declared in &mut self.declared {
            declared.pin(&self.processes);
        }
        let changed = self.look_at_devices(asked);
        self.places.begin(&self.devices, changed);
        self.layouts.begin(changed);
        self.fresh = asked
            .iter()
            .any(|look| matches!(look, ScanScope::Device(_)));
        let mut seen = self.compose(taken);
        if self.monitors.ask(self.lives(&seen)) {
            self.monitors.wait(FIRST_ANSWERS);
            seen = self.compose(taken);
        }
        let mut as_reported = seen.clone();
        as_reported.taken = self.emitted.taken;
        if self.emitted.taken != 0 && as_reported == self.emitted {
            return None;
        }
        self.emitted = seen.clone();
        Some(seen)
    }

    /// The QMP monitors that can be queried; libvirt reports changes itself.
    fn lives(&self, seen: &Snapshot) -> HashMap<Life, QmpAddress> {
        let life = |(vm, address): (&u32, &QmpAddress)| {
            let pid = seen.vms.get(*vm as usize)?.pid?;
            let process = self.processes.get(u32::try_from(pid).ok()?)?;
            let is_socket = matches!(address, QmpAddress::Process { .. });
            is_socket.then(|| ((process.pid, process.start_ticks), address.clone()))
        };
        seen.monitors.iter().filter_map(life).collect()
    }

    /// True unless the requests are only for processes that belong to no VM, now or before.
    fn is_due(&mut self, asked: &[ScanScope]) -> bool {
        let mut due = false;
        for look in asked {
            let ScanScope::Pid(pid) = look else {
                return true;
            };
            let concerns = |process: &Process| {
                let concerns = |i: &&super::Inventory| (i.concerns)(process, &self.declared);
                process.kernel || INVENTORIES.iter().any(concerns)
            };
            if let Some((before, now)) = self.processes.look_at(&self.host, *pid) {
                due |= before.iter().chain(&now).any(concerns);
            }
        }
        due
    }

    /// Reads the devices again if it is time, or if they have changed; true if they have.
    fn look_at_devices(&mut self, asked: &[ScanScope]) -> bool {
        let partitions = self.host.text("/proc/partitions").unwrap_or_default();
        let asked = asked
            .iter()
            .any(|look| matches!(look, ScanScope::Device(_)));
        let started = Instant::now();
        if partitions == self.partitions && started < self.devices_due && !asked {
            return false;
        }
        self.partitions = partitions;
        let devices = devices::read(&self.host);
        let took = started.elapsed();
        self.devices_due = started + (took * DEVICES_SHARE).min(Duration::from_secs(60));
        let changed = devices != self.devices;
        self.devices = devices;
        changed
    }

    fn compose(&mut self, taken: Nanos) -> Snapshot {
        let scene = Scene {
            host: &self.host,
            processes: &self.processes,
            declared: &self.declared,
            status_files: &self.status_files,
            monitors: &self.monitors,
        };
        let look = |i: &&'static super::Inventory| (i.name, (i.look)(&scene));
        let mut found: Vec<_> = INVENTORIES.iter().map(look).collect();
        tapdisk::look_behind(&scene, &mut found);
        let (mut entries, conflicts) = self.merged.call(&scene, found);
        let vms = entries.iter_mut().map(|entry| &mut entry.found);
        self.workers.assign(&self.host, &self.processes, vms);
        let mut vms = Vec::new();
        let mut disks = Vec::new();
        for entry in &entries {
            let Some(vm) = vm_row(&self.processes, entry) else {
                continue;
            };
            let number = vms.len() as u32;
            for disk in entry.found.disks.iter().flatten() {
                disks.extend(self.lay(entry, vm.name, number, disk));
            }
            vms.push((vm, entry));
        }
        let owners = owners(&self.processes, &vms);
        let processes = vms.iter().map(|(_, entry)| entry.found.pid);
        let taps = net_taps::of_vms(&self.host, processes);
        let monitors = vms.iter().enumerate().filter_map(|(number, (_, entry))| {
            let address = monitor(&self.host, &entry.found)?;
            Some((number as u32, address))
        });
        let monitors = monitors.collect();
        let mut remarks = self.remarks.clone();
        remarks.extend(self.host.remarks());
        let too_long = entries.iter().filter(|e| e.name.len() > NAME_BYTES_MAX);
        remarks.extend(too_long.map(|entry| {
            let bytes = entry.name.len();
            format!(
                "a VM is omitted because its name has {bytes} bytes, more than {NAME_BYTES_MAX}"
            )
        }));
        Snapshot {
            generation: 0,
            taken,
            vms: vms.into_iter().map(|(vm, _)| vm).collect(),
            disks,
            devices: self.devices.clone(),
            pids: owners.pids,
            servers: owners.servers,
            cgroups: owners.cgroups,
            taps,
            monitors,
            conflicts,
            remarks,
        }
    }

    /// The row of a disk, and the location of its data; `None` without a name or if its texts do
    /// not fit.
    fn lay(
        &mut self,
        entry: &Entry,
        vm: Symbol,
        number: u32,
        found: &FoundDisk,
    ) -> Option<LaidDisk> {
        let holder = found.holder.or(entry.found.pid);
        let process = holder.and_then(|pid| self.processes.get(pid));
        let place = self.places.of(&self.host, process, found);
        let located = self.locate(found, &place.images);
        let short = |text: &&str| text.len() <= NAME_BYTES_MAX;
        let text = |text: &Option<String>| Symbol::try_new(text.as_deref().filter(short)?).ok();
        let image = match &found.source {
            Source::File(path) | Source::Backend(path) | Source::Elsewhere(path) => {
                Symbol::try_new(path).ok()
            }
            Source::Unknown | Source::Empty => None,
        };
        let disk = Disk {
            vm,
            vdisk: text(&found.vdisk)?,
            image,
            pdisk: place.pdisk,
            format: text(&found.format),
            bus: text(&found.bus),
            device: text(&found.device),
            node: text(&found.node),
            aio: text(&found.aio),
            direct: found.direct,
            read_only: found.read_only,
            bytes: found.bytes.or(place.bytes),
            found_by: located.found_by,
            origin: Symbol::new(entry.origin),
        };
        Some(LaidDisk {
            layout: located.layout,
            disk,
            vm: number,
            tapdisk: found.tapdisk,
            control: text(&found.control),
        })
    }
}

impl Scanner {
    fn locate(&mut self, found: &FoundDisk, images: &[Image]) -> Located {
        let nowhere = |found_by| Located {
            layout: Arc::default(),
            found_by,
            device: None,
        };
        match &found.source {
            Source::File(_) if !images.is_empty() => self.layouts.locate(images, self.fresh),
            Source::File(_) | Source::Backend(_) | Source::Unknown => nowhere(FoundBy::Process),
            Source::Elsewhere(_) | Source::Empty => nowhere(FoundBy::Nothing),
        }
    }
}

/// The address of a VM's QMP; a socket's path is resolved as in the VM's process.
fn monitor(host: &Host, found: &FoundVm) -> Option<QmpAddress> {
    if found.address.is_some() {
        return found.address.clone();
    }
    let (pid, path) = (found.pid?, found.monitors.first()?);
    let below = match path.strip_prefix('/') {
        Some(path) => format!("/proc/{pid}/root/{path}"),
        None => format!("/proc/{pid}/cwd/{path}"),
    };
    Some(QmpAddress::Process {
        path: host.path(below),
        pid,
    })
}

/// Maximum length of the name of a VM or a disk. A process chooses its own name, and all VMs have
/// to fit into one message.
const NAME_BYTES_MAX: usize = 1024;

fn vm_row(processes: &Processes, entry: &Entry) -> Option<Vm> {
    let found = &entry.found;
    if entry.name.len() > NAME_BYTES_MAX {
        return None;
    }
    let process = found.pid.and_then(|pid| processes.get(pid));
    let text = |text: &Option<String>| Symbol::try_new(text.as_deref()?).ok();
    Some(Vm {
        name: Symbol::try_new(&entry.name).ok()?,
        uuid: text(&found.uuid),
        kind: found.kind,
        origin: Symbol::new(entry.origin),
        state: text(&found.state),
        pid: found.pid.map(i64::from),
        cgroup: text(&found.cgroup).or(process.and_then(|p| p.cgroup)),
        vcpus: found.vcpus,
        memory_bytes: found.memory_bytes,
        started: process.and_then(|p| processes.started(p)),
        uid: process.and_then(|p| p.uid).map(i64::from),
    })
}

/// The processes and cgroups of a [`Snapshot`].
struct Works {
    pids: HashMap<u32, u32>,
    servers: HashMap<u32, Vec<u32>>,
    cgroups: HashMap<Symbol, u32>,
}

/// The VM or VMs that each process works for, and the VM of each cgroup that contains no other.
fn owners(processes: &Processes, vms: &[(Vm, &Entry)]) -> Works {
    let mut pids: HashMap<u32, u32> = HashMap::new();
    let mut servers: HashMap<u32, Vec<u32>> = HashMap::new();
    for (number, (_, entry)) in vms.iter().enumerate() {
        for pid in entry.found.pid.iter().chain(&entry.found.workers) {
            let number = number as u32;
            let other = pids.insert(*pid, number);
            if let Some(other) = other.filter(|other| *other != number) {
                servers.entry(*pid).or_insert(vec![other]).push(number);
            }
        }
    }
    // A process that works for two VMs belongs to neither alone.
    pids.retain(|pid, _| !servers.contains_key(pid));
    let cgroups = own_cgroups(processes, vms, &pids, &servers);
    Works {
        pids,
        servers,
        cgroups,
    }
}

/// The cgroups of exactly one VM: those created for a VM, unless they contain another VM's process,
/// and those that contain only the VM's own processes.
fn own_cgroups(
    processes: &Processes,
    vms: &[(Vm, &Entry)],
    pids: &HashMap<u32, u32>,
    servers: &HashMap<u32, Vec<u32>>,
) -> HashMap<Symbol, u32> {
    // The VM of each path, or `None` if there are several.
    let mut claims: HashMap<&str, Option<u32>> = HashMap::new();
    for (number, (vm, _)) in vms.iter().enumerate() {
        let path = vm.cgroup.map(Symbol::as_str).filter(|path| *path != "/");
        if let Some(path) = path {
            let claim = claims.entry(path).or_insert(Some(number as u32));
            *claim = claim.filter(|claim| *claim == number as u32);
        }
    }
    for process in processes.all() {
        let Some(cgroup) = process.cgroup else {
            continue;
        };
        for path in folders(cgroup.as_str()) {
            let Some(claim) = claims.get_mut(path) else {
                continue;
            };
            *claim = claim.filter(|number| match pids.get(&process.pid) {
                Some(owner) => owner == number,
                None => {
                    let (_, entry) = &vms[*number as usize];
                    entry.found.cgroup.is_some() && !servers.contains_key(&process.pid)
                }
            });
        }
    }
    let own = claims
        .into_iter()
        .filter_map(|(path, claim)| Some((path, claim?)));
    own.filter_map(|(path, number)| Some((Symbol::try_new(path).ok()?, number)))
        .collect()
}

/// A path and its parent folders, as `/a/b` and `/a` of `/a/b`.
fn folders(path: &str) -> impl Iterator<Item = &str> {
    fn above<'a>(path: &&'a str) -> Option<&'a str> {
        let at = path.rfind('/').filter(|at| *at > 0)?;
        Some(&path[..at])
    }
    std::iter::successors(Some(path), above)
}
