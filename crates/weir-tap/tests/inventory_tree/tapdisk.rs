//! The inventory of disks that a tapdisk serves.

use std::fs;

use super::{Tree, disks, vms};

/// Two VMs of QEMU and one found only through its tapdisk; one tapdisk serves all their disks.
fn served() -> Tree {
    let tree = Tree::new();
    for (pid, name, socket) in [(100, "web", "/run/a.sock"), (101, "mail", "b.sock")] {
        let line = format!(
            "/usr/bin/qemu-system-x86_64 -name {name} -chardev socket,id=c0,path={socket},reconnect=1 \
             -device vhost-user-blk-pci,chardev=c0,id=disk0"
        );
        tree.process(pid, u64::from(pid), &line, "/");
        tree.link(&format!("/proc/{pid}/cwd"), "/run");
        let table = "0000000000000000: 00000003 00000000 00000000 0001 03   903 /run/a.sock\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03   904 /run/b.sock\n";
        tree.write(&format!("/proc/{pid}/net/unix"), table);
    }
    tree.process(
        102,
        102,
        "/usr/bin/weir tapdisk --config etc/t.toml --tap /run/t",
        "/",
    );
    tree.write(
        "/proc/102/cwd/etc/t.toml",
        "[[disk]]\nimage = \"/a.raw\"\nsocket = \"/run/a.sock\"\nvm = \"other\"\n\
         [[disk]]\nimage = \"/b.raw\"\nsocket = \"/run/b.sock\"\nread_only = true\n\
         [[disk]]\nimage = \"/c.raw\"\nsocket = \"/run/c.sock\"\nvm = \"db\"\nvdisk = \"/dev/vdq\"\n",
    );
    for (number, socket) in [(20, 903), (21, 904)] {
        tree.link(
            &format!("/proc/102/fd/{number}"),
            &format!("socket:[{socket}]"),
        );
    }
    for (number, name) in [(10, "a.raw"), (11, "b.raw"), (12, "c.raw")] {
        let file = format!("/proc/102/root/{name}");
        fs::create_dir_all(tree.path("/proc/102/root")).unwrap();
        fs::write(tree.path(&file), vec![1; 4096 * (number - 9)]).unwrap();
        tree.link(
            &format!("/proc/102/fd/{number}"),
            &format!("../root/{name}"),
        );
    }
    tree
}

#[test]
fn disks_of_a_tapdisk_are_the_images_that_it_has_open() {
    let tree = served();
    let watch = tree.watch(&[]);
    let seen = watch.snapshot();
    assert_eq!(
        vms(&seen),
        [
            "db process tapdisk - -",
            "mail qemu qemu - 101",
            "web qemu qemu - 100"
        ]
    );
    assert_eq!(
        disks(&seen),
        [
            "db /dev/vdq /c.raw raw -",
            "mail /dev/vda /b.raw raw disk0",
            "web /dev/vda /a.raw raw disk0"
        ]
    );
    let sizes: Vec<_> = seen.disks.iter().map(|d| d.disk.bytes).collect();
    assert_eq!(sizes, [Some(3 * 4096), Some(2 * 4096), Some(4096)]);
    assert_eq!(seen.disks[1].disk.read_only, Some(true));
    let buses: Vec<_> = seen
        .disks
        .iter()
        .map(|d| d.disk.bus.unwrap().as_str())
        .collect();
    assert_eq!(buses, ["vhost-user-blk"; 3]);
    // It works for several VMs: only the location identifies the VM.
    assert_eq!(seen.pids.get(&102), None);
    let mut served = seen.servers[&102].clone();
    served.sort_unstable();
    assert_eq!(served, [0, 1, 2]);
}

#[test]
fn the_report_of_a_tapdisk_counts_for_files_that_it_has_open() {
    let tree = served();
    // The file was changed since, and names an image that the process has never opened.
    let text = fs::read_to_string(tree.path("/proc/102/cwd/etc/t.toml")).unwrap();
    tree.write(
        "/proc/102/cwd/etc/t.toml",
        &text.replace("/a.raw", "/other.raw"),
    );
    fs::write(tree.path("/proc/102/root/other.raw"), vec![1; 4096]).unwrap();
    let seen = tree.watch(&[]).snapshot();
    let web = seen.disks.iter().find(|d| d.disk.vm.as_str() == "web");
    let web = web.unwrap();
    assert!(web.layout.pieces.is_empty(), "{web:?}");
    assert_eq!((web.disk.pdisk, web.disk.bytes), (None, None));
    // Without disks of several VMs it works for the VM that is connected.
    tree.write(
        "/proc/102/cwd/etc/t.toml",
        "[[disk]]\nimage = \"/a.raw\"\nsocket = \"/run/a.sock\"\n",
    );
    tree.remove("/proc/101");
    let seen = tree.watch(&[]).snapshot();
    assert_eq!(
        (seen.pids.get(&102), seen.servers.is_empty()),
        (Some(&0), true)
    );
}
