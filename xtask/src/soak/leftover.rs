//! What a run has left on the host after its end.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::sample::BpfObject;

/// What must not exist after the end.
pub struct Traces {
    /// Processes.
    pub pids: BTreeSet<u32>,
    /// The files of loop devices.
    pub devices: Vec<PathBuf>,
    /// The folder of all other files.
    pub folder: String,
    /// Network namespaces and interfaces.
    pub hosts: Vec<String>,
    /// TCP ports.
    pub ports: Vec<u16>,
}

/// What exists before the run and may exist after it.
pub struct Existing {
    pins: BTreeSet<PathBuf>,
}

/// The kernel frees programs and maps some time after their last user has ended.
const GRACE: Duration = Duration::from_secs(10);

impl Existing {
    /// The present state.
    pub fn now() -> Existing {
        Existing { pins: pins() }
    }
}

/// Everything that is left, as text; empty if all is removed.
pub fn find(before: &Existing, traces: &Traces, objects: &BTreeSet<BpfObject>) -> Vec<String> {
    let started = Instant::now();
    loop {
        let left = left(before, traces, objects);
        if left.is_empty() || started.elapsed() > GRACE {
            return left;
        }
        sleep(Duration::from_millis(200));
    }
}

fn left(before: &Existing, traces: &Traces, objects: &BTreeSet<BpfObject>) -> Vec<String> {
    let mut left = Vec::new();
    for pid in &traces.pids {
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let name = exe
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        // A number may have been assigned to another process.
        if name.starts_with("weir") || name.starts_with("qemu") {
            left.push(format!("process {pid}: {}", exe.display()));
        }
    }
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        let file = file.trim().trim_end_matches(" (deleted)");
        if traces.devices.iter().any(|image| image == Path::new(file)) {
            left.push(format!("loop device {}: {file}", entry.path().display()));
        }
    }
    for (what, file) in [("socket", "/proc/net/unix"), ("mount", "/proc/mounts")] {
        let text = fs::read_to_string(file).unwrap_or_default();
        let lines = text
            .lines()
            .filter(|line| line.contains(traces.folder.trim_end_matches('/')));
        left.extend(lines.map(|line| format!("{what}: {line}")));
    }
    if Path::new(&traces.folder).exists() {
        left.push(format!("folder {}", traces.folder));
    }
    for host in &traces.hosts {
        for folder in ["/run/netns", "/sys/class/net"] {
            let path = Path::new(folder).join(host);
            if path.exists() {
                left.push(format!("network: {}", path.display()));
            }
        }
    }
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    for port in &traces.ports {
        let (address, listening) = (format!(":{port:04X}"), "0A");
        let is_open = sockets.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.len() > 3 && fields[1].ends_with(&address) && fields[3] == listening
        });
        if is_open {
            left.push(format!("TCP port {port}"));
        }
    }
    left.extend(
        pins()
            .difference(&before.pins)
            .map(|path| format!("BPF pin {}", path.display())),
    );
    left.extend(existing(objects));
    left
}

/// The files of BPF file systems.
fn pins() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![PathBuf::from("/sys/fs/bpf")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                true => folders.push(entry.path()),
                false => {
                    found.insert(entry.path());
                }
            }
        }
    }
    found
}

/// Those of `objects` that the kernel still has. The kernel does not use a number twice.
fn existing(objects: &BTreeSet<BpfObject>) -> Vec<String> {
    let mut found = Vec::new();
    for kind in ["prog", "map", "link"] {
        let output = Command::new("bpftool").args([kind, "list", "-j"]).output();
        let output = output.map(|o| o.stdout).unwrap_or_default();
        let Ok(Value::Array(listed)) = serde_json::from_slice(&output) else {
            found.push(format!(
                "unknown: bpftool does not list the BPF objects of kind {kind}"
            ));
            continue;
        };
        let ids = listed
            .iter()
            .filter_map(|object| u32::try_from(object["id"].as_u64()?).ok());
        let ours = ids.filter(|id| objects.contains(&(kind, *id)));
        found.extend(ours.map(|id| format!("BPF {kind} {id}")));
    }
    found
}
