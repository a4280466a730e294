//! Two guests whose disks are served by one tapdisk, from images on one device: each request of the
//! tapdisk on the device is reported with the right VM, disk and sector, and the tapdisk's own tap
//! reports the same.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use weir_testing::{Guest, LoopDisk, MemoryFolder, VhostDisk, run};

use crate::host::{counts, extents};
use crate::kit;
use crate::libvirt::{DISK, is_reported, known, load};
use crate::places::{Places, adds_up};
use crate::watching::{Relation, Seen, Watching};

/// A tapdisk process that is killed at the end of the test.
pub struct Tapdisk(Child);

impl Tapdisk {
    /// Serves these images to these VMs; it accepts connections on return.
    pub fn start(folder: &MemoryFolder, images: &[String], vms: &[&str]) -> Tapdisk {
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.arg("tapdisk");
        for (image, vm) in images.iter().zip(vms) {
            let socket = folder.file(vm);
            weir.args([
                "--disk",
                &format!("image={image},socket={socket},vm={vm},vdisk=/dev/vda"),
            ]);
        }
        let log = fs::File::create(folder.file("tapdisk.log")).unwrap();
        let mut tapdisk = Tapdisk(weir.stdin(Stdio::null()).stderr(log).spawn().unwrap());
        let tap = tap(folder, vms[0]);
        while !Path::new(&tap).exists() {
            let log_text = fs::read_to_string(folder.file("tapdisk.log")).unwrap();
            assert_eq!(tapdisk.0.try_wait().unwrap(), None, "{log_text}");
            thread::sleep(Duration::from_millis(10));
        }
        tapdisk
    }
}

impl Tapdisk {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

/// The socket of the events of a tapdisk whose first VM this is.
pub fn tap(folder: &MemoryFolder, vm: &str) -> String {
    folder.file(&format!("{vm}.tap"))
}

impl Drop for Tapdisk {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_tapdisk_does_for_two_vms_is_theirs() {
    const TEST: &str = "what_a_tapdisk_does_for_two_vms_is_theirs";
    let Some((kit, _turn)) = kit(TEST) else {
        return;
    };
    let folder = MemoryFolder::new(64).unwrap();
    let device = LoopDisk::new(100).unwrap();
    let mounted = device.file_system().unwrap();
    let (device, mounted) = (device.path(), mounted.to_str().unwrap());
    let vms = ["web", "mail"];
    let images = vms.map(|vm| format!("{mounted}/{vm}.raw"));
    for image in &images {
        fs::write(image, vec![0x11; (DISK << 20) as usize]).unwrap();
    }
    run("sync", &["-f", mounted]).unwrap();
    let _tapdisk = Tapdisk::start(&folder, &images, &vms);
    let mut guests = vms.map(|vm| {
        let disk = VhostDisk::new("disk0", &folder.file(vm));
        let args = [VhostDisk::shared_memory(), disk.args()].concat();
        Guest::start(&kit, vm, &args).unwrap()
    });
    for guest in &mut guests {
        guest.ready().unwrap();
    }
    let disks = Relation::watch(
        &folder.file("disks"),
        "select vm, vdisk, image, bus, found_by from disks",
    );
    for (vm, image) in vms.iter().zip(&images) {
        let columns = [
            ("vm", *vm),
            ("vdisk", "/dev/vda"),
            ("image", image.as_str()),
            ("bus", "vhost-user-blk"),
            ("found_by", "extents"),
        ];
        disks.wait(1, &columns);
    }
    let mut watching = Watching::start(&folder.file("seen"), &[device]);
    for (number, (guest, vm)) in guests.iter_mut().zip(vms).enumerate() {
        known(
            &mut watching,
            guest,
            vm,
            &[load("/dev/vda", 20 + number as u64)],
        );
    }
    let started = watching.mark();
    let before = counts(device);
    let loads = [load("/dev/vda", 1), load("/dev/vda", 2)];
    for (guest, load) in guests.iter_mut().zip(&loads) {
        guest.begin_load(std::slice::from_ref(load)).unwrap();
    }
    for (guest, load) in guests.iter_mut().zip(&loads) {
        guest.finish_load(std::slice::from_ref(load)).unwrap();
    }
    run("sync", &["-f", mounted]).unwrap();
    watching.mark();
    let after = counts(device);
    let mut delivered = watching.stop();
    delivered.rows.retain(|row| row.ts > started);
    adds_up(&delivered, device, after.since(&before));
    let mut places = Places::default();
    for (number, image) in images.iter().enumerate() {
        places.add(device, number, extents(Path::new(image)));
    }
    let missed = delivered.missed(device);
    for (number, (vm, load)) in vms.iter().zip(&loads).enumerate() {
        is_reported(&delivered.rows, &places, number, vm, load, missed);
        let rows: Vec<(&Seen, u64)> = places.rows(&delivered.rows, number);
        for (row, within) in rows {
            assert_eq!(row.vsector, Some(within), "{row:?}");
        }
    }
}
