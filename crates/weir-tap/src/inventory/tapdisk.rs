//! Running tapdisks (`weir tapdisk`): the image behind each socket, from their command lines and
//! configuration files. A VM with such a socket as a disk has its data in that image; a VM that no
//! other inventory finds has the name in its tapdisk's configuration.

use toml::de::{DeTable, DeValue};
use weir_model::inventory::VmKind;

use super::found::{FoundDisk, FoundVm, Source, TapdiskKey};
use super::process::Process;
use super::qemu::options::Options;
use super::{Inventory, Scene};
use crate::tapdisk::SUFFIX;
use crate::tapdisk::mark::disk_key;

/// Processes that serve disks.
pub(super) static INVENTORY: Inventory = Inventory {
    name: "tapdisk",
    programs: |program| program == "weir",
    concerns: |process, _| is_it(process),
    look,
};

/// Maximum number of disks per tapdisk that are examined.
const DISKS_MAX: usize = 1 << 10;

/// A disk that a tapdisk serves.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Served {
    pid: u32,
    image: String,
    /// The vhost-user socket, as bound.
    socket: Option<String>,
    /// The NBD socket, as bound.
    nbd: Option<String>,
    /// The control socket, as bound; unknown of a tapdisk with a port only.
    control: Option<String>,
    vm: Option<String>,
    vdisk: Option<String>,
    read_only: Option<bool>,
    /// The process of the running VM into whose disk path it was inserted.
    under: Option<u32>,
}

/// The VMs named by tapdisks, each with the disks that are served to it.
fn look(scene: &Scene) -> Vec<FoundVm> {
    let mut vms: Vec<FoundVm> = Vec::new();
    for served in running(scene) {
        let Some(name) = &served.vm else {
            continue;
        };
        let known = vms.iter().position(|vm| vm.name.as_ref() == Some(name));
        let at = known.unwrap_or_else(|| {
            vms.push(FoundVm {
                name: Some(name.clone()),
                disks: Some(Vec::new()),
                ..FoundVm::new(VmKind::Process)
            });
            vms.len() - 1
        });
        let vm = &mut vms[at];
        vm.workers.push(served.pid);
        vm.backends
            .extend(served.socket.clone().or(served.nbd.clone()));
        let disk = FoundDisk {
            vdisk: served.vdisk.clone(),
            bus: served.socket.as_ref().map(|_| "vhost-user-blk".to_owned()),
            ..FoundDisk::default()
        };
        vm.disks
            .iter_mut()
            .for_each(|d| d.push(served.behind(disk.clone())));
    }
    vms
}

/// Replaces the sockets of tapdisks by the images behind them. A VM that other inventories find by
/// those sockets is then reported only by them.
pub(super) fn look_behind(scene: &Scene, found: &mut [(&'static str, Vec<FoundVm>)]) {
    let all = running(scene);
    if all.is_empty() {
        return;
    }
    let mut taken: Vec<&Served> = Vec::new();
    for (origin, vms) in found.iter_mut() {
        for vm in vms.iter_mut().filter(|_| *origin != INVENTORY.name) {
            for disk in vm.disks.iter_mut().flatten() {
                let is_it = |served: &&Served| {
                    served.is_at(scene, vm.pid, &disk.source) || served.is_under(vm.pid, disk)
                };
                let Some(served) = all.iter().find(is_it) else {
                    continue;
                };
                *disk = served.behind(std::mem::take(disk));
                // The process that accepts connections there works for the VM, whatever path the VM
                // uses.
                vm.backends.extend(served.socket.clone());
                vm.backends.extend(served.nbd.clone());
                taken.push(served);
            }
        }
    }
    let own = found
        .iter_mut()
        .filter(|(origin, _)| *origin == INVENTORY.name);
    for vms in own.map(|(_, vms)| vms) {
        vms.retain(|vm| !taken.iter().any(|served| served.vm == vm.name));
    }
}

/// True for a process that serves disks.
fn is_it(process: &Process) -> bool {
    let mut words = process.arguments.iter().skip(1);
    process.program == "weir"
        && words
            .find(|word| !word.starts_with('-'))
            .is_some_and(|word| word == "tapdisk")
}

/// All disks served by all tapdisks.
fn running(scene: &Scene) -> Vec<Served> {
    let processes = scene.processes.all().into_iter().filter(|p| is_it(p));
    processes
        .flat_map(|process| of_process(scene, process))
        .collect()
}

fn of_process(scene: &Scene, process: &Process) -> Vec<Served> {
    let line = of_arguments(&process.arguments);
    let mut disks = line.disks;
    let (mut nbd, mut tap) = (line.nbd, line.tap);
    if let Some(path) = line.config {
        let below = match path.strip_prefix('/') {
            Some(path) => format!("/proc/{}/root/{path}", process.pid),
            None => format!("/proc/{}/cwd/{path}", process.pid),
        };
        let text = scene
            .host
            .text_of(below, "configurations of tapdisks")
            .unwrap_or_default();
        let file = of_file(&text);
        disks.extend(file.disks);
        nbd = nbd.or(file.nbd);
        tap = tap.or(file.tap);
    }
    let absolute = |path: String| absolute(scene, process.pid, &path);
    let control = tap.or_else(|| {
        let mut sockets = disks.iter().filter_map(|disk| disk.text("socket"));
        let nbd = || nbd.as_deref().and_then(unix_path).map(str::to_owned);
        sockets.next().or_else(nbd).map(|first| first + SUFFIX)
    });
    let control = control.map(absolute);
    let served = |options: Options| {
        let nbd = options.text("nbd").or(nbd.clone());
        let nbd = nbd.and_then(|address| unix_path(&address).map(str::to_owned));
        Some(Served {
            pid: process.pid,
            image: absolute(options.text("image")?),
            socket: options.text("socket").map(absolute),
            nbd: nbd.map(absolute),
            control: control.clone(),
            vm: options.text("vm"),
            vdisk: options.text("vdisk"),
            read_only: options.flag("read-only"),
            under: options
                .number("until-exit")
                .and_then(|pid| pid.try_into().ok()),
        })
    };
    disks
        .into_iter()
        .take(DISKS_MAX)
        .filter_map(served)
        .collect()
}

/// A parsed command line or configuration file: the disks, the common NBD address, the control
/// socket, and the configuration file of a command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Line {
    disks: Vec<Options>,
    nbd: Option<String>,
    tap: Option<String>,
    config: Option<String>,
}

fn of_arguments(arguments: &[String]) -> Line {
    let mut line = Line::default();
    let mut single = Options::default();
    let mut words = arguments.iter().skip(1).peekable();
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix("--") else {
            continue;
        };
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, words.next_if(|next| !next.starts_with("--")).cloned()),
        };
        match (name, value) {
            ("disk", Some(value)) => line.disks.push(Options::parse(&value, "image")),
            ("nbd", Some(value)) => line.nbd = Some(value),
            ("tap", Some(value)) => line.tap = Some(value),
            ("config", Some(value)) => line.config = Some(value),
            (name, value) => single.set(name, value.as_deref().unwrap_or("on")),
        }
    }
    if single.get("image").is_some() {
        line.disks.insert(0, single);
    }
    line
}

/// A configuration; empty if it is not a valid one.
fn of_file(text: &str) -> Line {
    let Ok(root) = DeTable::parse(text) else {
        return Line::default();
    };
    let path = |key| {
        let value = root.get_ref().get(key).and_then(|v| v.get_ref().as_str());
        value.map(str::to_owned)
    };
    let disks = root
        .get_ref()
        .get("disk")
        .and_then(|v| v.get_ref().as_array());
    let options = |table: &DeTable| {
        let mut options = Options::default();
        for (key, value) in table {
            // Keys in files have underscores.
            let key = key.get_ref().replace('_', "-");
            match value.get_ref() {
                DeValue::String(text) => options.set(&key, text),
                DeValue::Boolean(flag) => options.set(&key, if *flag { "on" } else { "off" }),
                _ => {}
            }
        }
        options
    };
    let disks = disks
        .into_iter()
        .flatten()
        .filter_map(|d| d.get_ref().as_table());
    Line {
        disks: disks.map(options).collect(),
        nbd: path("nbd"),
        tap: path("tap"),
        config: None,
    }
}

/// The path of an NBD server's address, `unix:PATH` or a path; `None` for a port.
fn unix_path(address: &str) -> Option<&str> {
    let path = address.strip_prefix("unix:");
    path.or(address.contains('/').then_some(address))
}

/// An absolute path, resolved relative to the process.
fn absolute(scene: &Scene, pid: u32, path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    let cwd = scene
        .host
        .link(format!("/proc/{pid}/cwd"))
        .unwrap_or_default();
    cwd.join(path.strip_prefix("./").unwrap_or(path))
        .to_string_lossy()
        .into_owned()
}

impl Served {
    /// Whether this is a given disk of a VM; `pid` is the VM's process.
    fn is_at(&self, scene: &Scene, pid: Option<u32>, source: &Source) -> bool {
        match (source, pid) {
            (Source::Backend(path), Some(pid)) => {
                self.socket.as_deref() == Some(&absolute(scene, pid, path))
            }
            (Source::Backend(path), None) => self.socket.as_ref() == Some(path),
            (Source::Elsewhere(address), _) => self
                .nbd
                .as_ref()
                .is_some_and(|socket| is_nbd_at(address, socket, &self.export())),
            _ => false,
        }
    }

    /// Whether it was inserted below this disk of the VM with this process, whose command line does
    /// not include it.
    fn is_under(&self, pid: Option<u32>, disk: &FoundDisk) -> bool {
        self.under.is_some() && self.under == pid && self.vdisk == disk.vdisk
    }

    /// Its NBD export name.
    fn export(&self) -> String {
        let name = self.vdisk.as_deref().unwrap_or_default();
        name.trim_start_matches("/dev/").to_owned()
    }

    /// The disk with the image behind the socket.
    fn behind(&self, disk: FoundDisk) -> FoundDisk {
        FoundDisk {
            source: Source::File(self.image.clone()),
            backing: Vec::new(),
            format: Some("raw".to_owned()),
            holder: Some(self.pid),
            read_only: self.read_only.or(disk.read_only),
            aio: None,
            direct: None,
            offset_bytes: 0,
            size_bytes: None,
            tapdisk: Some(TapdiskKey {
                pid: self.pid,
                disk: disk_key(self.vm.as_deref(), self.vdisk.as_deref()),
            }),
            control: self.control.clone(),
            ..disk
        }
    }
}

/// Whether an address is an export of the NBD server at `socket`: in QEMU's form for an open one
/// (`nbd+unix:///EXPORT?socket=PATH`), or composed from the parts of a command line.
fn is_nbd_at(address: &str, socket: &str, export: &str) -> bool {
    let (path, named) = match address.strip_prefix("nbd+unix://") {
        Some(rest) => {
            let (named, query) = rest.split_once('?').unwrap_or((rest, ""));
            let path = query
                .split('&')
                .find_map(|word| word.strip_prefix("socket="));
            (path.unwrap_or_default(), named.trim_start_matches('/'))
        }
        None => {
            let rest = address.strip_prefix("nbd://").unwrap_or_default();
            match rest
                .strip_prefix(socket)
                .and_then(|rest| rest.strip_prefix('/'))
            {
                Some(named) => (socket, named),
                None => return false,
            }
        }
    };
    path == socket && (named.is_empty() || export.is_empty() || named == export)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(words: &str) -> Line {
        let words: Vec<String> = words.split(' ').map(String::from).collect();
        of_arguments(&words)
    }

    #[test]
    fn a_command_line_names_one_disk_or_several() {
        let one = line("weir tapdisk --read-only --image=/a --socket /s --vm web -v");
        assert_eq!(one.disks.len(), 1);
        let option = |key: &str| one.disks[0].get(key);
        assert_eq!(
            (option("image"), option("socket"), option("vm")),
            (Some("/a"), Some("/s"), Some("web"))
        );
        assert_eq!(one.disks[0].flag("read-only"), Some(true));
        let two =
            line("weir tapdisk --disk image=/a,socket=/s --disk image=/b,,c,vm=x --nbd unix:/n");
        assert_eq!(two.disks[1].get("image"), Some("/b,c"));
        assert_eq!(two.nbd.as_deref(), Some("unix:/n"));
        assert!(line("weir tapdisk status /s.tap").disks.is_empty());
    }

    #[test]
    fn a_file_names_disks() {
        let Line {
            disks, nbd, tap, ..
        } = of_file(
            "tap = \"/c\"\nnbd = \"unix:/n\"\n[[disk]]\nimage = \"/a\"\nread_only = true\nqueues = 4\n[[disk]]\nimage = \"/b\"\n",
        );
        assert_eq!(
            (nbd.as_deref(), tap.as_deref()),
            (Some("unix:/n"), Some("/c"))
        );
        assert_eq!(
            (disks[0].get("image"), disks[1].get("image")),
            (Some("/a"), Some("/b"))
        );
        assert_eq!(disks[0].flag("read-only"), Some(true));
    }

    #[test]
    fn an_address_of_nbd_is_that_of_a_socket() {
        let at = |address: &str| is_nbd_at(address, "/run/a.nbd", "vda");
        assert!(at("nbd+unix://?socket=/run/a.nbd"));
        assert!(at("nbd+unix:///vda?socket=/run/a.nbd"));
        assert!(!at("nbd+unix:///vdb?socket=/run/a.nbd"));
        assert!(at("nbd:///run/a.nbd/"));
        assert!(!at("nbd+unix:///?socket=/run/b.nbd"));
        assert!(!at("nbd:///run/a.nbd2/"));
        assert!(!at("/run/a.nbd"));
    }

    proptest! {
        #[test]
        fn nothing_is_too_strange(words: Vec<String>, text in "[\\[\\]a-z=\"\\n ]{0,60}", address: String) {
            of_arguments(&words);
            of_file(&text);
            is_nbd_at(&address, "/s", "e");
        }
    }
}
