//! weir where the kernel or its configuration restricts BPF: in lockdown, and without type
//! information; before that, probes at the functions of these kernels.

use std::time::Duration;

use weir_testing::kernel::{GuestKernel, LINUX_6_1, LINUX_6_12};
use weir_testing::{Guest, GuestDisk, Scratch, Tools};

use crate::{functions, kit_of};

/// The time that a command in the guest may take, in emulation on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

#[test]
fn linux_6_1_is_observed_in_lockdown() {
    restrict(&LINUX_6_1, "linux_6_1_is_observed_in_lockdown");
}

#[test]
fn linux_6_12_is_observed_in_lockdown() {
    restrict(&LINUX_6_12, "linux_6_12_is_observed_in_lockdown");
}

fn restrict(kernel: &GuestKernel, test: &str) {
    let Some((kit, _turn)) = kit_of(test, kernel) else {
        return;
    };
    let folder = Scratch::new();
    let programs = [env!("CARGO_BIN_EXE_weir")];
    let tools = Tools::make(&folder.path().join("tools"), &programs).unwrap();
    let disk = GuestDisk::new("tools", tools.image().to_str().unwrap()).buffered();
    let mut args = ["-m", "1024"].map(str::to_owned).to_vec();
    args.extend(disk.args());
    let mut guest = Guest::start(&kit, "refusals", &args).unwrap();
    guest.ready().unwrap();
    let mut run = |line: &str| {
        guest.begin(line).unwrap();
        let finished = guest.finish_within(TIMEOUT);
        finished.unwrap_or_else(|error| panic!("{line}: {error:#}"))
    };
    run(&Tools::mount("/dev/vda"));
    run("mkdir -p /lib64 && ln -s /tools/lib/ld-linux-x86-64.so.2 /lib64/");
    run("export LD_LIBRARY_PATH=/tools/lib");
    functions::match_the_calls(&mut run);
    functions::streams_are_attached(&mut run);
    run("mount -t securityfs none /sys/kernel/security");
    // It lists the modes, that in use in brackets.
    let modes = run("cat /sys/kernel/security/lockdown; true");
    let modes: Vec<&str> = modes.split_whitespace().collect();
    assert_eq!(modes, ["[none]", "integrity", "confidentiality"], "{test}");
    for mode in ["integrity", "confidentiality"] {
        run(&format!("echo {mode} > /sys/kernel/security/lockdown"));
        let report = run("/tools/bin/weir doctor");
        assert!(report.contains(mode), "{report}");
        assert!(report.contains("live I/O can be observed"), "{report}");
        let read = "every test read was reported exactly once: /dev/vda";
        assert!(report.contains(read), "{report}");
        for args in [
            "top -b -n 1",
            "hist --for 1s",
            "query --for 1s 'select op from IO'",
        ] {
            let errors = run(&format!("/tools/bin/weir {args} 2>&1 > /dev/null"));
            assert!(!errors.contains("cannot be observed"), "{args}: {errors}");
        }
    }
    run("mount -t tmpfs none /sys/kernel/btf");
    let cause = "the kernel's type information (BTF) is missing";
    for args in ["doctor", "top -b -n 1", "hist --for 1s"] {
        let report = run(&format!("! /tools/bin/weir {args} 2>&1"));
        assert!(report.contains(cause), "{args}: {report}");
        assert!(!report.contains("libbpf"), "{args}: {report}");
    }
}
