//! A domain of libvirt, whose QEMU runs as another user and is reached through virsh.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use serde_json::Value;
use weir_testing::libvirt::{Session, USER, disk, domain};
use weir_testing::{MemoryFolder, Scratch, Socket, Tools, run};

use crate::machine::{begin_load, end_load, kit, no_error, taps_of, wait_until, weir};

/// The number of insertions and removals under load.
const TIMES: usize = 10;

#[test]
fn a_tap_comes_and_goes_under_a_domain_of_libvirt() {
    const TEST: &str = "a_tap_comes_and_goes_under_a_domain_of_libvirt";
    let Some((kit, _turn)) = kit(TEST) else {
        return;
    };
    let folder = MemoryFolder::new(400).unwrap();
    let image = folder.file("a.raw");
    fs::write(&image, vec![0x22; 32 << 20]).unwrap();
    let scratch = Scratch::new();
    let tools = Tools::make(&scratch.path().join("tools"), &["fio"]).unwrap();
    for file in [Path::new(&image), tools.image()] {
        chown(file, Some(USER), Some(USER)).unwrap();
    }
    let (kernel, initramfs) = (folder.file("kernel"), folder.file("initramfs"));
    fs::copy(kit.kernel(), &kernel).unwrap();
    fs::copy(kit.initramfs(), &initramfs).unwrap();
    let session = Session::start(&folder).unwrap();
    let socket = Socket::bind(Path::new(&folder.file("port"))).unwrap();
    let disks = [
        disk(&image, "raw", "threads", "vda")
            .replace("cache='none'", "cache='writeback' discard='unmap'"),
        disk(tools.image().to_str().unwrap(), "raw", "threads", "vdb").replace("cache='none'", ""),
    ];
    let description = domain(&kernel, &initramfs, &folder.file("port"), &disks.concat());
    let file = folder.file("domain.xml");
    fs::write(&file, description).unwrap();
    session.virsh(&["define", &file]).unwrap();
    let mut port = session.boot("shop", &socket).unwrap();
    port.run(&Tools::mount("/dev/vdb")).unwrap();
    begin_load(&mut port);
    let tapdisk = |verb: &str, more: &[&str]| {
        let args = ["tapdisk", verb, "--vm", "shop", "--disk", "vda"];
        let printed = weir(&[&args[..], more].concat());
        assert_eq!(printed.code, Some(0), "{printed:?}");
        printed
    };
    for _ in 0..TIMES {
        let printed = tapdisk("insert", &["--json"]);
        let inserted: Value = serde_json::from_str(&printed.out).unwrap();
        assert_eq!(
            (&inserted["vdisk"], &inserted["remarks"]),
            (&"/dev/vda".into(), &Value::Array(vec![]))
        );
        // The counters of libvirt continue.
        let before = session.requests("shop", "vda").unwrap();
        wait_until("requests pass", || {
            session.requests("shop", "vda").unwrap() > before
        });
        tapdisk("remove", &[]);
    }
    end_load(&mut port);
    no_error(&mut port);
    let sum = port
        .run("dd if=/dev/vda bs=1M iflag=direct 2>/dev/null | md5sum")
        .unwrap();
    let own = run("md5sum", &[&image]).unwrap();
    let first = |text: &str| text.split_whitespace().next().unwrap().to_owned();
    assert_eq!(first(&sum), first(&own));
    assert_eq!(taps_of("shop"), Vec::<u32>::new());
    session.virsh(&["destroy", "shop"]).unwrap();
    drop(session);
}
