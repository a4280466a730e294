//! The disks of three guests: each kind of storage, of asynchronous I/O in QEMU and of device in
//! the guest, with a load for each disk.

use std::fs;

use weir_testing::{DiskLoad, GuestDisk, LoopDisk, MemoryFolder, run};

/// The size of each disk, MiB.
pub const DISK: u64 = 16;

/// The storage of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A whole device of the host.
    Device,
    /// A partition; a device has several.
    Partition,
    /// A raw image.
    Raw,
    /// A raw image through the host's page cache.
    Buffered,
    /// A qcow2 image with all clusters allocated.
    Qcow2,
    /// A qcow2 image without allocated clusters, which grows.
    Growing,
}

/// A disk of a guest.
pub struct Cell {
    /// Its number among [`VMS`].
    pub vm: usize,
    /// The name that weir should report.
    pub vdisk: String,
    pub store: Store,
    /// The file or device.
    pub path: String,
    pub disk: GuestDisk,
    pub load: DiskLoad,
}

/// The kinds of asynchronous I/O in QEMU; each guest uses one.
pub const AIO: [&str; 3] = ["threads", "native", "io_uring"];

/// The names of the guests.
pub const VMS: [&str; 3] = ["web", "mail", "db"];

/// The devices of the disks: a whole device for one disk, one with partitions, one with images.
pub struct TestDevices {
    pub folder: MemoryFolder,
    pub whole: LoopDisk,
    pub parted: LoopDisk,
    pub imaged: LoopDisk,
    mounted: String,
    partitions: u32,
}

impl TestDevices {
    /// The empty devices.
    pub fn new() -> TestDevices {
        let [whole, parted, imaged] =
            [DISK, 96, 400].map(|mebibytes| LoopDisk::new(mebibytes).unwrap());
        let mounted = imaged.file_system().unwrap();
        TestDevices {
            folder: MemoryFolder::new(64).unwrap(),
            whole,
            parted,
            imaged,
            mounted: mounted.to_str().unwrap().to_owned(),
            partitions: 0,
        }
    }

    /// All devices.
    pub fn devices(&self) -> [&str; 3] {
        [&self.whole, &self.parted, &self.imaged].map(LoopDisk::path)
    }

    /// Creates the storage of a disk.
    fn make(&mut self, store: Store, name: &str) -> String {
        let path = format!("{}/{name}", self.mounted);
        match store {
            Store::Device => return self.whole.path().to_owned(),
            Store::Partition => {
                self.partitions += 1;
                let (mebibyte, before) = (2048, u64::from(self.partitions - 1) * DISK);
                let (start, sectors) = ((1 + before) * mebibyte, DISK * mebibyte);
                let made = self.parted.partition(self.partitions, start, sectors);
                return made.unwrap();
            }
            Store::Raw | Store::Buffered => fs::write(&path, content()).unwrap(),
            Store::Qcow2 => {
                let raw = self.folder.file("content");
                fs::write(&raw, content()).unwrap();
                run("qemu-img", &["convert", "-O", "qcow2", &raw, &path]).unwrap();
                fs::remove_file(raw).unwrap();
            }
            Store::Growing => {
                let size = format!("{DISK}M");
                run("qemu-img", &["create", "-q", "-f", "qcow2", &path, &size]).unwrap();
            }
        }
        path
    }

    /// Writes all dirty pages to the devices.
    pub fn settle(&self) {
        run("sync", &["-f", &self.mounted]).unwrap();
    }

    /// The disks of all guests; no two have the same load.
    pub fn cells(&mut self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (vm, aio) in AIO.into_iter().enumerate() {
            let (mut blk, mut scsi) = (b'a'..=b'z', b'a'..=b'z');
            let device = |vm| [Store::Device, Store::Partition][usize::from(vm > 0)];
            let mut stores = vec![
                (device(vm), false),
                (Store::Partition, true),
                (Store::Raw, false),
                (Store::Raw, true),
                (Store::Qcow2, false),
                (Store::Qcow2, true),
            ];
            // QEMU has no native I/O through the page cache.
            if aio != "native" {
                stores.extend([(Store::Buffered, vm == 0), (Store::Growing, vm == 2)]);
            }
            for (store, is_scsi) in stores {
                let letters = if is_scsi { &mut scsi } else { &mut blk };
                let letter = char::from(letters.next().unwrap());
                let number = cells.len() as u64;
                let id = format!("d{number}");
                let path = self.make(store, &format!("{id}.img"));
                let mut disk = GuestDisk::new(&id, &path).aio(aio);
                if is_scsi {
                    disk = disk.scsi();
                }
                match store {
                    Store::Buffered => disk = disk.buffered(),
                    Store::Qcow2 | Store::Growing => disk = disk.format("qcow2"),
                    _ => {}
                }
                cells.push(Cell {
                    vm,
                    vdisk: format!("/dev/{}d{letter}", if is_scsi { 's' } else { 'v' }),
                    store,
                    path,
                    disk,
                    load: load(number, store),
                });
            }
        }
        cells
    }
}

/// A load whose mix, size, number and depth differ from all others.
fn load(number: u64, store: Store) -> DiskLoad {
    let read = [70, 50, 30, 100, 10][number as usize % 5];
    let on_device = matches!(store, Store::Device | Store::Partition);
    DiskLoad {
        read: if store == Store::Growing { 0 } else { read },
        write: if store == Store::Growing {
            1
        } else {
            100 - read
        },
        bytes: [4096, 8192, 16384, 4096][number as usize % 4],
        count: 150 + 7 * number,
        depth: [1, 4, 2][number as usize % 3],
        seed: number + 1,
        span: DISK << 20,
        fsync: if on_device && read < 100 { 40 } else { 0 },
        ..DiskLoad::on("")
    }
}

/// The content of an image: no zeroes, so that each cluster of a qcow2 image is allocated.
fn content() -> Vec<u8> {
    vec![0x11; (DISK << 20) as usize]
}
