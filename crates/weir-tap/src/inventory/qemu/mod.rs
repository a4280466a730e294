//! QEMU, with or without KVM: from its command line, and the changes since, from its QMP monitor.

mod command_line;
pub mod disks;
mod nodes;
pub mod options;
mod refresh;
pub mod reported;
#[cfg(test)]
mod tests;

use weir_model::inventory::VmKind;

use super::found::FoundVm;
use super::process::Process;
use super::{Inventory, Scene};
use command_line::{CommandLine, socket};

/// VMs of QEMU processes.
pub(super) static INVENTORY: Inventory = Inventory {
    name: "qemu",
    programs: is_qemu,
    concerns: |process, _| is_qemu(&process.program),
    look,
};

/// True for a program that runs a VM; `qemu-img`, `qemu-nbd` and the like do not.
fn is_qemu(program: &str) -> bool {
    // Nix wraps programs: `.qemu-system-x86_64-wrapped`.
    let program = program.trim_start_matches('.');
    program.starts_with("qemu-system-")
        || matches!(program, "qemu-kvm" | "kvm" | "qemu" | "qemu-dm")
}

fn look(scene: &Scene) -> Vec<FoundVm> {
    let processes = scene.processes.all().into_iter();
    let qemus = processes.filter(|p| is_qemu(&p.program) && p.arguments.len() > 1);
    qemus
        .map(|process| {
            let mut vm = of_process(process);
            let life = (process.pid, process.start_ticks);
            if let Some(answer) = scene.monitors.answer(life) {
                refresh::refresh(&mut vm, &answer);
            }
            vm
        })
        .collect()
}

fn of_process(process: &Process) -> FoundVm {
    let line = CommandLine::parse(&process.arguments);
    let serves = |device: &options::Options| {
        let by_socket = device.get("driver")?.starts_with("vhost-user-");
        let chardev = line.chardevs.get(device.get("chardev")?)?;
        by_socket.then(|| socket(chardev))?
    };
    FoundVm {
        disks: Some(disks::disks(&line)),
        backends: line.devices.iter().filter_map(serves).collect(),
        monitors: line.monitors.clone(),
        name: line.name,
        uuid: line.uuid,
        pid: Some(process.pid),
        vcpus: line.vcpus,
        memory_bytes: line.memory_bytes,
        ..FoundVm::new(VmKind::Qemu)
    }
}
