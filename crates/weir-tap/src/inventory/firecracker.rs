//! Firecracker, from its command line and configuration file, otherwise from its open files.
//!
//! Source: docs/getting-started.md and docs/jailer.md of Firecracker: `--id`, `--config-file`, and
//! in that file `drives` with `drive_id`, `path_on_host`, `is_root_device`, `is_read_only`,
//! `io_engine` or `socket`. A jailed process has its own root folder, which contains those paths.

use serde_json::Value;
use weir_model::inventory::VmKind;

use super::found::{FoundDisk, FoundVm, Source};
use super::process::Process;
use super::qemu::disks::letters;
use super::{Inventory, Scene};

/// Processes of Firecracker.
pub(super) static INVENTORY: Inventory = Inventory {
    name: "firecracker",
    programs: is_it,
    concerns: |process, _| is_it(&process.program),
    look,
};

fn is_it(program: &str) -> bool {
    program == "firecracker" || program.starts_with("firecracker-v")
}

fn look(scene: &Scene) -> Vec<FoundVm> {
    let processes = scene.processes.all().into_iter();
    let own = processes.filter(|p| is_it(&p.program));
    own.map(|process| of_process(scene, process)).collect()
}

fn of_process(scene: &Scene, process: &Process) -> FoundVm {
    let value = |option: &str| value_of(&process.arguments, option);
    let id = value("--id").filter(|id| *id != "anonymous-instance");
    let config = value("--config-file").and_then(|path| {
        let folder = if path.starts_with('/') { "root" } else { "cwd" };
        let path = path.trim_start_matches('/');
        let text = scene.host.text_of(
            format!("/proc/{}/{folder}/{path}", process.pid),
            "configuration files of Firecracker",
        )?;
        serde_json::from_str(&text).ok()
    });
    let vm = config.map_or(FoundVm::new(VmKind::Firecracker), |c| of_config(&c));
    FoundVm {
        name: id.map(String::from),
        pid: Some(process.pid),
        ..vm
    }
}

/// The argument after an option, or after its `=`.
fn value_of<'a>(arguments: &'a [String], option: &str) -> Option<&'a str> {
    let at = arguments.iter().position(|word| word == option);
    let behind = at.and_then(|at| arguments.get(at + 1));
    let joined = || {
        let mut words = arguments.iter();
        words.find_map(|word| word.strip_prefix(option)?.strip_prefix('='))
    };
    behind.map(String::as_str).or_else(joined)
}

fn of_config(config: &Value) -> FoundVm {
    let machine = config.get("machine-config");
    let number = |key| machine?.get(key)?.as_i64();
    let drives = config.get("drives").and_then(Value::as_array);
    let mut drives: Vec<&Value> = drives.into_iter().flatten().collect();
    // The guest enumerates its root device first, regardless of its position in the file.
    let is_root = |drive: &&Value| drive.get("is_root_device").and_then(Value::as_bool);
    drives.sort_by_key(|drive| is_root(drive) != Some(true));
    let disks: Vec<FoundDisk> = drives
        .iter()
        .enumerate()
        .map(|(at, d)| of_drive(at, d))
        .collect();
    let backends = disks.iter().filter_map(|disk| match &disk.source {
        Source::Backend(socket) => Some(socket.clone()),
        _ => None,
    });
    FoundVm {
        vcpus: number("vcpu_count"),
        memory_bytes: number("mem_size_mib").and_then(|mib| mib.checked_mul(1 << 20)),
        backends: backends.collect(),
        disks: Some(disks),
        ..FoundVm::new(VmKind::Firecracker)
    }
}

fn of_drive(position: usize, drive: &Value) -> FoundDisk {
    let text = |key| drive.get(key).and_then(Value::as_str).map(String::from);
    let flag = |key| drive.get(key).and_then(Value::as_bool);
    let source = match (text("socket"), text("path_on_host")) {
        (Some(socket), _) => Source::Backend(socket),
        (None, Some(path)) => Source::File(path),
        (None, None) => Source::Unknown,
    };
    let by_socket = matches!(source, Source::Backend(_));
    FoundDisk {
        vdisk: Some(format!("/dev/vd{}", letters(position))),
        // Firecracker supports no other format.
        format: (!by_socket).then(|| "raw".to_owned()),
        bus: Some(
            if by_socket {
                "vhost-user-blk"
            } else {
                "virtio-blk"
            }
            .to_owned(),
        ),
        device: text("drive_id"),
        aio: text("io_engine").map(|engine| match engine.as_str() {
            "Async" => "io_uring".to_owned(),
            other => other.to_ascii_lowercase(),
        }),
        direct: Some(false),
        read_only: flag("is_read_only"),
        source,
        ..FoundDisk::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONFIG: &str = r#"{"machine-config": {"vcpu_count": 2, "mem_size_mib": 256},
        "drives": [{"drive_id": "data", "path_on_host": "/data.img", "is_root_device": false,
                    "is_read_only": true, "io_engine": "Async"},
                   {"drive_id": "rootfs", "path_on_host": "/root.ext4", "is_root_device": true}]}"#;

    #[test]
    fn the_root_device_comes_first() {
        let vm = of_config(&serde_json::from_str(CONFIG).unwrap());
        assert_eq!((vm.vcpus, vm.memory_bytes), (Some(2), Some(256 << 20)));
        let disks = vm.disks.unwrap();
        let names = |d: &FoundDisk| (d.vdisk.clone().unwrap(), d.device.clone().unwrap());
        assert_eq!(names(&disks[0]), ("/dev/vda".into(), "rootfs".into()));
        assert_eq!(names(&disks[1]), ("/dev/vdb".into(), "data".into()));
        assert_eq!(disks[1].aio.as_deref(), Some("io_uring"));
    }

    #[test]
    fn an_option_has_its_value_behind_it() {
        let words = ["firecracker", "--id", "web", "--config-file=/c.json"].map(String::from);
        assert_eq!(value_of(&words, "--id"), Some("web"));
        assert_eq!(value_of(&words, "--config-file"), Some("/c.json"));
        assert_eq!(value_of(&words, "--api-sock"), None);
    }

    proptest! {
        #[test]
        fn no_configuration_is_too_strange(
            at in 0..CONFIG.len(), len in 0usize..60, more in "[\\[\\]{}:,\"a-z0-9 ]{0,30}"
        ) {
            let mut text = CONFIG.to_owned();
            text.replace_range(at..(at + len).min(text.len()), &more);
            if let Ok(config) = serde_json::from_str(&text) {
                of_config(&config);
            }
        }
    }
}
