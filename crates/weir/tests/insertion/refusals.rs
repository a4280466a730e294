//! Disks that do not support a tap, and usage errors.

use std::fs;
use std::process::Command;

use weir_testing::{Guest, GuestDisk, Scratch};

use crate::machine::{DISK_BYTES, image, kit, nodes, taps_of, weir};

#[test]
fn disks_of_each_kind_are_accepted_or_rejected_with_a_remedy() {
    let Some((kit, _turn)) = kit("disks_of_each_kind_are_accepted_or_rejected_with_a_remedy")
    else {
        return;
    };
    let name = format!("kinds-{}", std::process::id());
    let scratch = Scratch::new();
    let images: Vec<_> = [
        "raw", "qcow2", "drive", "named", "inline", "part", "file", "ro",
    ]
    .map(|name| image(&scratch, name))
    .into();
    let path = |n: usize| images[n].to_str().unwrap().to_owned();
    let size = DISK_BYTES.to_string();
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", &path(1), &size])
        .status();
    assert!(made.unwrap().success());
    let empty = scratch.path().join("none");
    let mut args = GuestDisk::new("raw", &path(0)).buffered().args();
    args.extend(GuestDisk::new("qcow2", &path(1)).format("qcow2").args());
    let mut add = |words: &[&str]| args.extend(words.iter().map(|w| w.to_string()));
    let drive =
        |n: usize, more: &str| format!("file={},format=raw,if=none,id=dr{n}{more}", path(n));
    add(&[
        "-drive",
        &drive(2, ""),
        "-device",
        "virtio-blk-pci,drive=dr2,id=drive",
    ]);
    let named = drive(
        3,
        ",node-name=named0,discard=unmap,cache=none,detect-zeroes=unmap",
    );
    add(&[
        "-drive",
        &named,
        "-device",
        "virtio-blk-pci,drive=dr3,id=named",
    ]);
    let inline = format!(
        "driver=raw,node-name=in0,file.driver=file,file.node-name=in1,file.filename={}",
        path(4)
    );
    add(&[
        "-blockdev",
        &inline,
        "-device",
        "virtio-blk-pci,drive=in0,id=inline",
    ]);
    let part = format!(
        "driver=raw,node-name=pa0,offset=1048576,file.driver=file,file.filename={}",
        path(5)
    );
    add(&[
        "-blockdev",
        &part,
        "-device",
        "virtio-blk-pci,drive=pa0,id=part",
    ]);
    let file = format!("driver=file,node-name=fi0,filename={}", path(6));
    add(&[
        "-blockdev",
        &file,
        "-device",
        "virtio-blk-pci,drive=fi0,id=file",
    ]);
    let ro = format!(
        "driver=file,node-name=ro1,read-only=on,filename={}",
        path(7)
    );
    add(&[
        "-blockdev",
        &ro,
        "-blockdev",
        "driver=raw,node-name=ro0,file=ro1,read-only=on",
    ]);
    add(&["-device", "virtio-blk-pci,drive=ro0,id=ro"]);
    let mut guest = Guest::start(&kit, &name, &args).unwrap();
    guest.ready().unwrap();
    let tapdisk = |verb: &str, disk: &str| weir(&["tapdisk", verb, "--vm", &name, "--disk", disk]);
    for (disk, words) in [
        ("qcow2", "clusters and tables of the format"),
        ("drive", "node-name=NAME"),
        ("part", "part of a larger file"),
        ("file", "-blockdev driver=raw"),
    ] {
        let printed = tapdisk("insert", disk);
        assert_eq!(printed.code, Some(1), "{disk}: {printed:?}");
        assert!(printed.err.contains(words), "{disk}: {printed:?}");
        assert!(printed.err.contains(&name), "{disk}: {printed:?}");
    }
    let read = |guest: &mut Guest, device: &str| {
        let line = format!("dd if=/dev/{device} of=/dev/null bs=64k count=16 iflag=direct");
        guest.run(&line).unwrap()
    };
    // The guest names them in the order of their slots.
    for (disk, device) in [
        ("raw", "vda"),
        ("named", "vdd"),
        ("inline", "vde"),
        ("ro", "vdh"),
    ] {
        let before = nodes(&guest);
        let printed = tapdisk("insert", disk);
        assert_eq!(printed.code, Some(0), "{disk}: {printed:?}");
        read(&mut guest, device);
        if disk == "ro" {
            let written = guest.run("dd if=/dev/zero of=/dev/vdh bs=512 count=1 oflag=direct 2>&1");
            assert!(written.is_err(), "it is read-only still");
        }
        let printed = tapdisk("remove", disk);
        assert_eq!(printed.code, Some(0), "{disk}: {printed:?}");
        read(&mut guest, device);
        assert_eq!(nodes(&guest), before, "{disk}");
    }
    let unknown = tapdisk("insert", "vdq");
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.err.contains("/dev/vda"), "{unknown:?}");
    let not_running = weir(&["tapdisk", "insert", "--vm", "absent", "--disk", "vda"]);
    assert_eq!(not_running.code, Some(2), "{not_running:?}");
    assert!(
        not_running
            .err
            .contains("VM absent is not running on this host"),
        "{not_running:?}"
    );
    // An image file that was replaced while QEMU has it open is not served in its place.
    fs::rename(&images[0], &empty).unwrap();
    fs::write(&images[0], vec![0; DISK_BYTES]).unwrap();
    let replaced = tapdisk("insert", "raw");
    assert_eq!(replaced.code, Some(1), "{replaced:?}");
    assert!(replaced.err.contains("renamed or replaced"), "{replaced:?}");
    assert_eq!(taps_of(&name), Vec::<u32>::new());
    let left = fs::read_dir("/run/weir-tapdisk").unwrap().flatten();
    let left = left.filter(|f| f.file_name().to_string_lossy().starts_with(&name));
    assert_eq!(left.count(), 0, "folders");
    drop(guest);
}
