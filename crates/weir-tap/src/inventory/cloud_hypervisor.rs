//! Cloud Hypervisor, from its command line: `--disk path=/x.raw,readonly=on`,
//! `--api-socket /x.sock`.
//!
//! Source: docs/device_model.md and `vmm/src/config.rs` of Cloud Hypervisor. Several disks are
//! given as several arguments of one `--disk`, or with one `--disk` each.

use weir_model::inventory::VmKind;

use super::found::{FoundDisk, FoundVm, Source};
use super::qemu::disks::letters;
use super::qemu::options::{Options, size};
use super::{Inventory, Scene};

/// Processes of Cloud Hypervisor.
pub(super) static INVENTORY: Inventory = Inventory {
    name: "cloud-hypervisor",
    programs: is_it,
    concerns: |process, _| is_it(&process.program),
    look,
};

fn is_it(program: &str) -> bool {
    matches!(program, "cloud-hypervisor" | "cloud-hypervisor-static")
}

fn look(scene: &Scene) -> Vec<FoundVm> {
    let processes = scene.processes.all().into_iter();
    let own = processes.filter(|p| is_it(&p.program));
    own.map(|process| FoundVm {
        pid: Some(process.pid),
        ..of_arguments(&process.arguments)
    })
    .collect()
}

fn of_arguments(arguments: &[String]) -> FoundVm {
    let mut vm = FoundVm::new(VmKind::CloudHypervisor);
    let mut disks = Vec::new();
    let mut option = String::new();
    for word in arguments.iter().skip(1) {
        let value = match word.strip_prefix("--") {
            Some(name) => {
                let (name, value) = name.split_once('=').unwrap_or((name, ""));
                option = name.to_owned();
                value
            }
            None => word,
        };
        if value.is_empty() {
            continue;
        }
        match option.as_str() {
            "disk" => disks.push(of_disk(&Options::parse(value, "path"), disks.len())),
            "fs" => vm
                .backends
                .extend(Options::parse(value, "tag").text("socket")),
            "cpus" => {
                let boot = Options::parse(value, "boot").number("boot");
                vm.vcpus = boot.and_then(|count| i64::try_from(count).ok());
            }
            "memory" => {
                let options = Options::parse(value, "size");
                let bytes = options.get("size").and_then(|text| size(text, 1));
                vm.memory_bytes = bytes.and_then(|bytes| i64::try_from(bytes).ok());
            }
            "platform" => vm.uuid = Options::parse(value, "").text("uuid"),
            "api-socket" => vm.name = vm.name.or(name_of(value)),
            _ => {}
        }
    }
    let served = disks
        .iter()
        .filter_map(|disk: &FoundDisk| match &disk.source {
            Source::Backend(socket) => Some(socket.clone()),
            _ => None,
        });
    vm.backends.extend(served);
    vm.disks = Some(disks);
    vm
}

/// A VM has no name of its own; its API socket usually has: `web` of `/run/web.sock`.
fn name_of(socket: &str) -> Option<String> {
    let path = socket.strip_prefix("path=").unwrap_or(socket);
    let file = path.rsplit('/').next()?;
    let name = file.strip_suffix(".sock").unwrap_or(file);
    // Generic names do not identify a VM.
    let progress = !name.is_empty() && !matches!(name, "api" | "ch" | "cloud-hypervisor" | "clh");
    progress.then(|| name.to_owned())
}

fn of_disk(options: &Options, position: usize) -> FoundDisk {
    let by_socket = options.flag("vhost_user") == Some(true);
    let path = options.text("path");
    let source = match options.text("socket").or(options.text("vhost_socket")) {
        Some(socket) if by_socket => Source::Backend(socket),
        _ => path.map_or(Source::Unknown, Source::File),
    };
    FoundDisk {
        vdisk: Some(format!("/dev/vd{}", letters(position))),
        source,
        // Newer versions have an option for the format, older versions detect it.
        format: options
            .text("image_type")
            .map(|kind| kind.to_ascii_lowercase()),
        bus: Some(
            if by_socket {
                "vhost-user-blk"
            } else {
                "virtio-blk"
            }
            .to_owned(),
        ),
        device: options.text("id"),
        direct: Some(options.flag("direct").unwrap_or(false)),
        read_only: Some(options.flag("readonly").unwrap_or(false)),
        ..FoundDisk::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn disks_stand_behind_one_option_or_several() {
        let line = "cloud-hypervisor --api-socket /run/web.sock --cpus boot=2 --memory size=1G \
            --disk path=/a.raw,direct=on path=/b.qcow2,readonly=on --disk vhost_user=true,socket=/s.sock";
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        let vm = of_arguments(&words);
        assert_eq!(vm.name.as_deref(), Some("web"));
        assert_eq!((vm.vcpus, vm.memory_bytes), (Some(2), Some(1 << 30)));
        let disks = vm.disks.unwrap();
        let sources: Vec<&Source> = disks.iter().map(|d| &d.source).collect();
        let file = |path: &str| Source::File(path.into());
        let backend = Source::Backend("/s.sock".into());
        assert_eq!(sources, [&file("/a.raw"), &file("/b.qcow2"), &backend]);
        assert_eq!(
            (disks[0].direct, disks[1].read_only),
            (Some(true), Some(true))
        );
        assert_eq!(disks[2].vdisk.as_deref(), Some("/dev/vdc"));
        assert_eq!(vm.backends, ["/s.sock"]);
    }

    proptest! {
        #[test]
        fn no_command_line_is_too_strange(words: Vec<String>) {
            of_arguments(&words);
        }
    }
}
