//! Command lines as written by users, libvirt and Proxmox, and the disks that they define.

use proptest::prelude::*;

use super::command_line::CommandLine;
use super::disks;
use crate::inventory::found::{FoundDisk, Source};

/// The disks of a command line whose arguments are separated by spaces.
fn found(line: &str) -> Vec<FoundDisk> {
    let words = std::iter::once("qemu-system-x86_64").chain(line.split_whitespace());
    let words: Vec<String> = words.map(String::from).collect();
    disks::disks(&CommandLine::parse(&words))
}

/// Name, bus, format, aio, direct and source of each disk.
fn drives(line: &str) -> Vec<String> {
    let text = |text: &Option<String>| text.clone().unwrap_or("-".into());
    let source = |source: &Source| match source {
        Source::File(path) => path.clone(),
        Source::Backend(path) => format!("backend {path}"),
        Source::Elsewhere(address) => format!("elsewhere {address}"),
        Source::Empty => "empty".into(),
        Source::Unknown => "unknown".into(),
    };
    let line = found(line);
    let disks = line.iter().map(|d| {
        let direct = d
            .direct
            .map_or("-", |direct| if direct { "direct" } else { "cached" });
        [
            text(&d.vdisk),
            text(&d.bus),
            text(&d.format),
            text(&d.aio),
            direct.into(),
            source(&d.source),
        ]
        .join(" ")
    });
    disks.collect()
}

#[test]
fn drives_bring_their_devices_along() {
    assert_eq!(
        drives(
            "-drive file=/a.qcow2,if=virtio,format=qcow2,cache=none,aio=native -drive file=/b.img,if=virtio"
        ),
        [
            "/dev/vda virtio-blk qcow2 native direct /a.qcow2",
            "/dev/vdb virtio-blk - - - /b.img"
        ]
    );
    assert_eq!(
        drives("-hda a.img -cdrom b.iso -drive file=/p.fd,if=pflash"),
        ["/dev/sda ide - - - a.img", "/dev/sr0 ide - - - b.iso"]
    );
    assert_eq!(
        drives("-M virt -drive file=/a"),
        ["/dev/vda virtio-blk - - - /a"]
    );
}

#[test]
fn a_device_takes_a_drive_by_its_id() {
    assert_eq!(
        drives(
            "-drive if=none,id=d0,file=/x,format=raw,cache=writeback -device virtio-blk-pci,drive=d0,id=disk0"
        ),
        ["/dev/vda virtio-blk raw - cached /x"]
    );
}

#[test]
fn nodes_are_followed_to_the_file() {
    let nodes = "-blockdev node-name=f0,driver=file,filename=d0.raw,cache.direct=on,aio=io_uring \
        -blockdev node-name=n0,driver=raw,file=f0,offset=1048576,size=4096 \
        -blockdev driver=throttle,node-name=t0,throttle-group=g,file=n0 \
        -device virtio-blk-pci,drive=t0,id=disk0";
    assert_eq!(
        drives(nodes),
        ["/dev/vda virtio-blk raw io_uring direct d0.raw"]
    );
    let disk = &found(nodes)[0];
    assert_eq!((disk.offset_bytes, disk.size_bytes), (1 << 20, Some(4096)));
    assert_eq!(
        (disk.device.as_deref(), disk.node.as_deref()),
        (Some("disk0"), Some("t0"))
    );
}

#[test]
fn libvirt_writes_json_and_pci_addresses() {
    let line = r#"-device {"driver":"pcie-root-port","id":"pci.1","bus":"pcie.0","addr":"0x1"}
        -device {"driver":"pcie-root-port","id":"pci.2","bus":"pcie.0","addr":"0x1.0x1"}
        -blockdev {"driver":"file","filename":"/top","aio":"threads","node-name":"libvirt-1-storage","cache":{"direct":false}}
        -blockdev {"driver":"file","filename":"/base","node-name":"libvirt-2-storage"}
        -blockdev {"driver":"raw","file":"libvirt-2-storage","node-name":"libvirt-2-format","read-only":true}
        -blockdev {"node-name":"libvirt-1-format","driver":"qcow2","file":"libvirt-1-storage","backing":"libvirt-2-format"}
        -blockdev {"node-name":"libvirt-3-format","driver":"raw","file":{"driver":"host_device","filename":"/dev/vg/lv"}}
        -device {"driver":"virtio-blk-pci","bus":"pci.2","addr":"0x0","drive":"libvirt-1-format","id":"virtio-disk1"}
        -device {"driver":"virtio-blk-pci","bus":"pci.1","addr":"0x0","drive":"libvirt-3-format","id":"virtio-disk0"}"#;
    assert_eq!(
        drives(line),
        [
            "/dev/vda virtio-blk raw - - /dev/vg/lv",
            "/dev/vdb virtio-blk qcow2 threads cached /top"
        ]
    );
    let backing = &found(line)[1].backing;
    assert_eq!(
        (backing[0].path.as_str(), backing[0].format.as_deref()),
        ("/base", Some("raw"))
    );
}

#[test]
fn each_bus_has_names_of_its_own() {
    let line = "-device virtio-scsi-pci,id=scsi0 -drive if=none,id=a,file=/a -drive if=none,id=b,file=/b \
        -drive if=none,id=c,file=/c -drive if=none,id=n,file=/n -drive if=none,id=e \
        -device scsi-hd,bus=scsi0.0,scsi-id=2,drive=b -device scsi-hd,bus=scsi0.0,scsi-id=1,drive=a \
        -device ide-hd,bus=ide.0,unit=0,drive=c -device nvme,drive=n,serial=1 -device scsi-cd,drive=e";
    assert_eq!(
        drives(line),
        [
            "/dev/sda ide - - - /c",
            "/dev/sdb virtio-scsi - - - /a",
            "/dev/sdc virtio-scsi - - - /b",
            "/dev/sr0 virtio-scsi - - - empty",
            "/dev/nvme0n1 nvme - - - /n",
        ]
    );
}

#[test]
fn remote_images_are_marked_as_remote() {
    let line = "-chardev socket,id=vu0,path=/tap.sock -device vhost-user-blk-pci,chardev=vu0 \
        -drive file=nbd://host/x,if=virtio -drive file=rbd:pool/image,if=virtio \
        -blockdev driver=null-co,node-name=z -device virtio-blk-pci,drive=z";
    assert_eq!(
        drives(line),
        [
            "/dev/vda vhost-user-blk - - - backend /tap.sock",
            "/dev/vdb virtio-blk - - - elsewhere null-co:///",
            "/dev/vdc virtio-blk - - - elsewhere nbd://host/x",
            "/dev/vdd virtio-blk - - - elsewhere rbd:pool/image",
        ]
    );
}

#[test]
fn what_is_written_to_a_snapshot_is_not_written_to_the_image() {
    let disks = found("-snapshot -drive file=/a,format=raw,if=virtio");
    assert_eq!(disks[0].format, None);
}

#[test]
fn disks_are_counted_as_linux_counts() {
    let names: Vec<String> = [0, 25, 26, 701, 702].map(disks::letters).into();
    assert_eq!(names, ["a", "z", "aa", "zz", "aaa"]);
}

/// Arguments of command lines, valid and invalid.
fn word() -> impl Strategy<Value = String> {
    let known = [
        "-drive",
        "-device",
        "-blockdev",
        "-chardev",
        "-mon",
        "-smp",
        "-m",
        "-name",
        "-hda",
        "-cdrom",
        "driver=raw,file=n0,node-name=n0",
        "virtio-blk-pci,drive=n0,addr=0x1.z",
        "scsi-hd,bus=a.0,id=a",
        "nvme,id=n,bus=n",
        "nvme-ns,drive=n0,nsid=2",
        "if=virtio,file=,index=18446744073709551615",
        "{\"driver\":\"raw\",\"file\":{\"driver\":\"raw\"}}",
        "socket,id=m",
        "chardev=m,mode=control",
        "99999999999999999999G",
        "sockets=9999999999,cores=9999999999",
        "file=json:{\"a\":[1]}",
    ];
    prop_oneof![
        proptest::sample::select(known.to_vec()).prop_map(String::from),
        "[a-z0-9,=.{}\":-]{0,24}",
    ]
}

proptest! {
    #[test]
    fn no_command_line_is_too_strange(words in proptest::collection::vec(word(), 0..24)) {
        let line = CommandLine::parse(&words);
        let disks = disks::disks(&line);
        let mut names: Vec<_> = disks.iter().map(|d| d.vdisk.clone().unwrap()).collect();
        names.sort();
        names.dedup();
        prop_assert_eq!(names.len(), disks.len());
    }
}
