//! The same through libvirt: a domain whose disks are `<disk type='vhostuser'>`, in a QEMU of
//! another user.

use std::fs;
use std::path::Path;

use weir_testing::libvirt::{Session, USER, domain, served_disk};
use weir_testing::{Kit, MemoryFolder, Socket, Tools, run};

use crate::guests::{HARD_WORK, TOOLS, fio};
use crate::process::{Tapdisk, ready, skip, wait_until};

#[test]
fn a_libvirt_domain_survives_kills_under_load() {
    const TEST: &str = "a_libvirt_domain_survives_kills_under_load";
    let programs = [&TOOLS[..], &["libvirtd", "virsh", "ldd"]].concat();
    let Some(_turn) = ready(TEST, &programs) else {
        return;
    };
    let kit = match Kit::find() {
        Ok(kit) if run("id", &["-u"]).unwrap() == "0" => kit,
        Ok(_) => return skip(TEST, "only root can start libvirt as another user").unwrap_or(()),
        Err(why) => return skip(TEST, why.to_string()).unwrap_or(()),
    };
    let folder = MemoryFolder::new(420).unwrap();
    let tools = Tools::make(Path::new(&folder.file("tools.raw")), &TOOLS).unwrap();
    let image = folder.file("work.raw");
    fs::write(&image, vec![0; 64 << 20]).unwrap();
    let sockets = ["work.sock", "tools.sock"].map(|name| folder.file(name));
    let disks = [
        format!("image={image},socket={},vm=shop,vdisk=/dev/vda", sockets[0]),
        format!(
            "image={},socket={},vm=shop,vdisk=/dev/vdb,read-only",
            tools.image().display(),
            sockets[1]
        ),
    ];
    // libvirt's QEMU runs as another user than the tapdisk, and is in this group.
    let group = USER.to_string();
    let rights = ["--socket-mode", "660", "--socket-group", &group];
    let args = [&["--disk", &disks[0], "--disk", &disks[1]][..], &rights].concat();
    let mut tapdisk = Tapdisk::start(&args);

    let session = Session::start(&folder).unwrap();
    let port = Socket::bind(Path::new(&folder.file("port"))).unwrap();
    // The build directory may not be accessible to other users.
    let (kernel, initramfs) = (folder.file("kernel"), folder.file("initramfs"));
    fs::copy(kit.kernel(), &kernel).unwrap();
    fs::copy(kit.initramfs(), &initramfs).unwrap();
    let disks = served_disk(&sockets[0], "vda") + &served_disk(&sockets[1], "vdb");
    let description = folder.file("domain.xml");
    fs::write(
        &description,
        domain(&kernel, &initramfs, &folder.file("port"), &disks),
    )
    .unwrap();
    session.virsh(&["define", &description]).unwrap();
    let mut guest = session.boot("shop", &port).unwrap();

    guest.run(&Tools::mount("/dev/vdb")).unwrap();
    guest
        .begin("/tools/mke2fs -q -t ext4 /dev/vda && mkdir /mnt && mount -t ext4 /dev/vda /mnt")
        .unwrap();
    guest.finish_within(HARD_WORK).unwrap();
    guest.begin(&fio(16, "--rate_iops=1500")).unwrap();
    for _ in 0..3 {
        wait_until("the guest is at work", || tapdisk.requests("w") >= 200);
        tapdisk.kill();
        tapdisk = Tapdisk::start(&args);
    }
    guest.finish_within(HARD_WORK).unwrap();
    guest
        .begin("umount /mnt && /tools/e2fsck -fn /dev/vda")
        .unwrap();
    guest.finish_within(HARD_WORK).unwrap();
    session.virsh(&["destroy", "shop"]).unwrap();
    tapdisk.stop();
    run("e2fsck", &["-fn", &image]).unwrap();
}
