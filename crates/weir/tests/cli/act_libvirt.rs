//! `weir act limit` on a VM of libvirt: a real libvirtd in system mode, and its `virsh`.

use std::process::Command;

use weir_testing::libvirt::in_system_mode;

use crate::support::{Scratch, skipped};

/// A domain without a system: QEMU runs, and its disk has limits.
const DOMAIN: &str = "<domain type='qemu'><name>mail</name><memory unit='MiB'>128</memory>
    <vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os><devices>
    <disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='IMAGE'/>
    <target dev='vda' bus='virtio'/></disk><controller type='usb' model='none'/>
    <memballoon model='none'/></devices></domain>";

/// The functions of the script: `limit` begins a lease in the background, `end` ends it by a
/// signal, `tuned` prints the limits that are not 0.
const FUNCTIONS: &str = "
tuned() { virsh -q -c qemu:///system blkdeviotune mail vda | grep -v ': 0$' | grep '[0-9]$' || true; }
limit() {
    rm -f \"$FOLDER/limit\"
    \"$WEIR\" act limit --vm mail --iops 300 --for 10m --apply --state \"$FOLDER/leases\" \\
        > \"$FOLDER/limit\" 2>&1 &
    lease=$!
    until grep -qs 'limited to' \"$FOLDER/limit\"; do kill -0 $lease; sleep 0.05; done
}
ended() { wait $lease || true; cat \"$FOLDER/limit\"; }
";

const SCRIPT: &str = "
virsh -q -c qemu:///system create \"$FOLDER/mail.xml\" > /dev/null
\"$WEIR\" act limit --vm mail --iops 300 --state \"$FOLDER/leases\"
echo == limited; limit; tuned
echo == stopped; kill -INT $lease; ended; tuned
echo == another; limit
virsh -q -c qemu:///system blkdeviotune mail vda --live --total-iops-sec 300 --read-bytes-sec 9000000
kill -INT $lease; ended; tuned
virsh -q -c qemu:///system blkdeviotune mail vda --live --read-bytes-sec 0
echo == killed; limit; kill -KILL $lease; ended; tuned
\"$WEIR\" act undo --all --state \"$FOLDER/leases\"; tuned
echo == gone; limit
virsh -q -c qemu:///system destroy mail > /dev/null
ended
";

#[test]
fn libvirt_sets_and_restores_the_limit_of_its_vm() {
    let test = "libvirt_sets_and_restores_the_limit_of_its_vm";
    let has = |program: &str| {
        let found = Command::new(program).arg("--version").output();
        found.is_ok_and(|output| output.status.success())
    };
    if !(has("libvirtd") && has("virsh") && has("qemu-system-x86_64")) {
        return skipped(test, "libvirt or QEMU is not installed");
    }
    if !rustix::process::geteuid().is_root() {
        return skipped(test, "not root");
    }
    let scratch = Scratch::new();
    let (folder, image) = (scratch.file(""), scratch.file("mail.raw"));
    std::fs::File::create(&image)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    scratch.write("mail.xml", &DOMAIN.replace("IMAGE", &image));
    let weir = env!("CARGO_BIN_EXE_weir");
    let script = format!("WEIR='{weir}' FOLDER='{folder}'\n{FUNCTIONS}{SCRIPT}");
    let printed = in_system_mode(&folder, &script).unwrap();
    let part = |name: &str| {
        let after = printed
            .split(&format!("== {name}\n"))
            .nth(1)
            .expect(&printed);
        after.split("== ").next().unwrap().to_owned()
    };
    assert!(printed.contains("--total-iops-sec 300"), "{printed}");
    assert_eq!(part("limited").trim(), "total_iops_sec : 300");
    let stopped = part("stopped");
    assert!(
        stopped.trim_end().ends_with("restored to no limit"),
        "{stopped}"
    );
    let another = part("another");
    assert!(another.contains("another program"), "{another}");
    assert!(
        another.trim_end().ends_with("read_bytes_sec : 9000000"),
        "{another}"
    );
    let killed = part("killed");
    assert!(killed.contains("total_iops_sec : 300\n"), "{killed}");
    assert!(
        killed.trim_end().ends_with("restored to no limit"),
        "{killed}"
    );
    assert!(
        part("gone").contains("nothing to restore"),
        "{}",
        part("gone")
    );
}
