//! libvirt, from the files in which it stores the state of running domains: no library, no
//! connection, and as up to date as libvirt itself.
//!
//! The system's daemon stores them in /run/libvirt/qemu, a user's daemon in `libvirt/qemu/run` of
//! the user's runtime folder (`virQEMUDriverConfigNew` of src/qemu/qemu_conf.c).

mod status;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::found::FoundVm;
use super::process::Process;
use super::{Inventory, Scene};
use crate::qmp::QmpAddress;

/// Domains of the libvirt daemons.
pub(super) static INVENTORY: Inventory = Inventory {
    name: "libvirt",
    programs: |_| false,
    concerns: |process, _| is_daemon(process),
    look,
};

/// The state folder of the system's daemon.
const SYSTEM: &str = "/run/libvirt/qemu";

/// Maximum number of status files that are read per daemon.
const DOMAINS_MAX: usize = 1 << 14;

/// Contents of the status files at the last read, reused while a file is unchanged.
pub(super) type StatusFiles = HashMap<PathBuf, (Stamp, Option<FoundVm>)>;

/// Attributes that change when a file is rewritten: inode, size, time of change.
type Stamp = (u64, u64, i64, i64);

fn is_daemon(process: &Process) -> bool {
    matches!(process.program.as_str(), "libvirtd" | "virtqemud")
}

fn look(scene: &Scene) -> Vec<FoundVm> {
    let mut before = scene.status_files.take();
    let mut kept = StatusFiles::new();
    let mut vms = Vec::new();
    for folder in folders(scene) {
        let files = scene
            .host
            .names_of(&folder, "libvirt's state in /run/libvirt/qemu");
        let domains = files.iter().filter(|name| name.ends_with(".xml"));
        for file in domains.take(DOMAINS_MAX) {
            let path = folder.join(file);
            let Some(stamp) = stamp(&scene.host.path(&path)) else {
                continue;
            };
            let known = before.remove(&path).filter(|(at, _)| *at == stamp);
            let (_, vm) = kept
                .entry(path.clone())
                .or_insert_with(|| known.unwrap_or_else(|| (stamp, read(scene, &path))));
            vms.extend(vm.clone().and_then(|vm| alive(scene, vm, &folder)));
        }
    }
    scene.status_files.replace(kept);
    vms
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.ino(), meta.size(), meta.ctime(), meta.ctime_nsec()))
}

fn read(scene: &Scene, path: &Path) -> Option<FoundVm> {
    let text = scene
        .host
        .text_of(path, "libvirt's state in /run/libvirt/qemu")?;
    status::parse(&text)
}

/// The folders of the system's daemon and of every user's daemon.
fn folders(scene: &Scene) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::from([PathBuf::from(SYSTEM)]);
    let users = scene.host.names("/run/user");
    folders.extend(
        users
            .iter()
            .map(|user| session(&Path::new("/run/user").join(user))),
    );
    let daemons = scene.processes.all().into_iter();
    for daemon in daemons.filter(|p| is_daemon(p)) {
        let environment = scene.host.bytes(format!("/proc/{}/environ", daemon.pid));
        let environment = environment.unwrap_or_default();
        let words = environment.split(|byte| *byte == 0);
        let mut named = words.filter_map(|word| word.strip_prefix(b"XDG_RUNTIME_DIR="));
        let folder = named.next().and_then(|path| std::str::from_utf8(path).ok());
        folders.extend(folder.map(|path| session(Path::new(path))));
    }
    folders.retain(|folder| scene.host.path(folder).exists());
    folders
}

fn session(runtime: &Path) -> PathBuf {
    runtime.join("libvirt/qemu/run")
}

/// The domain, if its process is running. A daemon that was killed leaves its files behind, and
/// process numbers are reused.
fn alive(scene: &Scene, mut vm: FoundVm, folder: &Path) -> Option<FoundVm> {
    let process = scene.processes.get(vm.pid?)?;
    let same = match process.arguments.is_empty() {
        // An emulator with an unknown name.
        true => !process.kernel,
        false => vm
            .uuid
            .as_ref()
            .is_none_or(|uuid| process.arguments.contains(uuid)),
    };
    // Every user can write such a file below a folder of their own: it is trusted only for
    // processes of that user.
    let owner = || Some(fs::metadata(scene.host.path(folder)).ok()?.uid());
    let own = || vm.uuid.is_some() && process.uid.is_some() && owner() == process.uid;
    if !same || (folder != Path::new(SYSTEM) && !own()) {
        return None;
    }
    vm.vouched = folder == Path::new(SYSTEM);
    vm.cgroup = process.cgroup.and_then(|path| machine(path.as_str()));
    vm.address = vm
        .uuid
        .clone()
        .zip(uri(scene, folder))
        .map(|(domain, uri)| QmpAddress::Libvirt { uri, domain });
    Some(vm)
}

/// The URI by which virsh reaches the daemon whose state is in `folder`, if it is running.
fn uri(scene: &Scene, folder: &Path) -> Option<String> {
    if folder == Path::new(SYSTEM) {
        return Some("qemu:///system".into());
    }
    let runtime = folder.parent().and_then(Path::parent).unwrap_or(folder);
    let sockets = ["virtqemud-sock", "libvirt-sock"].map(|name| runtime.join(name));
    let socket = sockets.iter().find(|path| scene.host.path(path).exists());
    socket.map(|socket| format!("qemu+unix:///session?socket={}", socket.display()))
}

/// The cgroup that libvirt created for a domain, above those of its threads:
/// `machine-qemu\x2d1\x2dweb.scope` with systemd, `qemu-1-web.libvirt-qemu` without.
fn machine(path: &str) -> Option<String> {
    let made = |part: &str| {
        (part.starts_with("machine-qemu") && part.ends_with(".scope"))
            || (part.starts_with("qemu-") && part.ends_with(".libvirt-qemu"))
    };
    let parts: Vec<&str> = path.split('/').collect();
    let at = parts.iter().position(|part| made(part))?;
    Some(parts[..=at].join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_below_the_cgroup_of_their_domain() {
        let scope = r"/machine.slice/machine-qemu\x2d1\x2dweb.scope";
        assert_eq!(
            machine(&format!("{scope}/libvirt/emulator")).as_deref(),
            Some(scope)
        );
        let plain = "/machine/qemu-1-web.libvirt-qemu";
        assert_eq!(machine(&format!("{plain}/vcpu0")).as_deref(), Some(plain));
        assert_eq!(machine("/user.slice/session-1.scope"), None);
    }
}
