//! The devices that a kernel's test adds to its guest, and their loads.

use weir_testing::DiskLoad;

use super::boot::Watched;

/// A kind of device.
struct Kind {
    name: &'static str,
    /// The modules that it needs, with options.
    modules: &'static [&'static str],
    /// Adds it; returns the kernel's name, or `None` if this kernel has none.
    add: fn(&mut Watched) -> Option<String>,
}

/// An NVMe disk with two controllers, whose requests go to one of two hidden disks.
pub const HEAD: &str = "nvme with two controllers";

/// A disk that has no requests, and whose driver counts nothing in `/proc/diskstats`.
pub const BIOS: &str = "null_blk without requests";

/// A disk in memory that is read through the page cache.
pub const PAGES: &str = "zram through the page cache";

/// A disk whose requests are larger than its chunks.
pub const SPLIT: &str = "dm split";

/// A mirror whose disks, devices of dm on one disk, keep what is written to them.
pub const MIRROR: &str = "md raid1 on dm";

/// The disks without requests that the kernel counts, except [`PAGES`].
pub const COUNTED_BIOS: [&str; 8] = [
    "dm linear",
    SPLIT,
    "dm crypt",
    "dm thin",
    MIRROR,
    "md raid1",
    "md raid5",
    "zram",
];

/// Two disks for a mirror, three for an array with parity, and one of its own.
const NULL_BLK: &str = "null_blk nr_devices=6 queue_mode=2 submit_queues=2 gb=1";

/// Every kind, in the order of their creation.
const KINDS: &[Kind] = &[
    Kind {
        name: "virtio_scsi",
        modules: &[],
        add: |_| Some("sda".to_owned()),
    },
    Kind {
        name: "partition",
        modules: &[],
        add: |guest| Some(guest.add_part()),
    },
    Kind {
        name: "nvme",
        modules: &["nvme"],
        add: |guest| {
            guest.run(
                "until [ $(ls /dev/nvme*n1 2> /dev/null | wc -l) -ge 2 ]; do usleep 100000; done",
            );
            guest.disk_with_serial("queues")
        },
    },
    Kind {
        name: HEAD,
        modules: &["nvme"],
        add: |guest| guest.disk_with_serial("shared"),
    },
    Kind {
        name: "dm linear",
        modules: &["dm_mod"],
        add: |guest| Some(guest.map("lin", "0 32768 linear /dev/sda 65536")),
    },
    Kind {
        name: SPLIT,
        modules: &["dm_mod"],
        add: |guest| {
            let disks = "/dev/sda 196608 /dev/sda 212992";
            Some(guest.map("split", &format!("0 32768 striped 2 8 {disks}")))
        },
    },
    Kind {
        name: "dm crypt",
        modules: &["dm_crypt"],
        add: |guest| {
            // Ciphers are looked up when they are used.
            guest.run("load_module xts; load_module aesni_intel; true");
            let key = "0123456789abcdef".repeat(4);
            let table = format!("0 16384 crypt aes-xts-plain64 {key} 0 /dev/sda 98304");
            Some(guest.map("crypt", &table))
        },
    },
    Kind {
        name: "dm thin",
        modules: &["dm_thin_pool"],
        add: |guest| {
            guest.map("meta", "0 4096 linear /dev/sda 114688");
            guest.map("data", "0 65536 linear /dev/sda 131072");
            let devices = "/dev/mapper/meta /dev/mapper/data";
            guest.map("pool", &format!("0 65536 thin-pool {devices} 128 0"));
            guest.run("/tools/dmsetup message pool 0 'create_thin 0'");
            Some(guest.map("thin", "0 32768 thin /dev/mapper/pool 0"))
        },
    },
    Kind {
        name: MIRROR,
        modules: &["dm_mod", "raid1"],
        add: |guest| {
            let [first, second] = [("first", 0), ("second", 32768)]
                .map(|(name, at)| guest.map(name, &format!("0 32768 linear /dev/sda {at}")));
            Some(guest.array("md_kept", "raid1", &[&first, &second]))
        },
    },
    Kind {
        name: "null_blk",
        modules: &[NULL_BLK],
        add: |_| Some("nullb0".to_owned()),
    },
    Kind {
        name: BIOS,
        modules: &[NULL_BLK],
        add: bios_of_null_blk,
    },
    Kind {
        name: "md raid1",
        modules: &[NULL_BLK, "raid1"],
        add: |guest| Some(guest.array("md_mirror", "raid1", &["nullb1", "nullb2"])),
    },
    Kind {
        name: "md raid5",
        modules: &[NULL_BLK, "raid456"],
        add: |guest| Some(guest.array("md_parity", "raid5", &["nullb3", "nullb4", "nullb5"])),
    },
    Kind {
        name: "scsi_debug",
        modules: &["scsi_debug dev_size_mb=16 lbpu=1 opts=2"],
        add: |guest| {
            let found = "ls -d /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block/*";
            guest.run(&format!(
                "until {found} > /dev/null 2>&1; do usleep 100000; done"
            ));
            let found = guest.run(found);
            found.trim().rsplit('/').next().map(str::to_owned)
        },
    },
    Kind {
        name: "zram",
        modules: &["zram num_devices=2"],
        add: |guest| Some(guest.zram(0)),
    },
    Kind {
        name: PAGES,
        modules: &["zram num_devices=2"],
        add: |guest| Some(guest.zram(1)),
    },
];

/// File systems, and the disk of each: a loop device is on a file of it.
const FILE_SYSTEMS: [(&str, &str); 3] = [("ext4", "vdc1"), ("xfs", "vdd"), ("btrfs", "vde")];

/// A null_blk without requests, which 6.12 has not any more.
fn bios_of_null_blk(guest: &mut Watched) -> Option<String> {
    let found = guest.run(
        "mkdir -p /sys/kernel/config; mount -t configfs none /sys/kernel/config; \
         mkdir /sys/kernel/config/nullb/bios && cd /sys/kernel/config/nullb/bios && \
         echo 0 > queue_mode; echo 64 > size; echo 1 > power; cd /; \
         for name in bios nullb$(cat /sys/kernel/config/nullb/bios/index); do \
         [ ! -e /sys/block/$name ] || [ -e /sys/block/$name/mq ] || echo $name; done",
    );
    let found = found.lines().last().map(str::to_owned);
    if found.is_none() {
        guest.skip(BIOS);
    }
    found
}

impl Watched {
    /// Adds the devices that the kernel has modules for.
    pub fn add_devices(&mut self) {
        for kind in KINDS {
            if kind.modules.iter().all(|module| self.has_module(module))
                && let Some(device) = (kind.add)(self)
            {
                self.devices.insert(kind.name, device);
            }
        }
    }

    /// The NVMe disk with a serial number that is not the hidden path to another.
    fn disk_with_serial(&mut self, serial: &str) -> Option<String> {
        let found = self.run(&format!(
            "for path in /dev/nvme*n1; do name=$(basename $path); \
             grep -q {serial} /sys/block/$name/device/serial && echo $name; done; true"
        ));
        found.lines().next().map(str::to_owned)
    }

    /// Creates a device of the device mapper, with a node since no udev creates links.
    pub fn map(&mut self, name: &str, table: &str) -> String {
        self.run(&format!(
            "/tools/dmsetup --noudevsync --noudevrules create {name} --table '{table}'"
        ));
        let number = self.run(&format!(
            "minor=$(/tools/dmsetup info -c --noheadings -o minor {name} | tr -d ' '); \
             [ -e /dev/mapper/{name} ] || \
             mknod /dev/mapper/{name} b $(tr : ' ' < /sys/block/dm-$minor/dev); echo $minor"
        ));
        format!("dm-{}", number.trim())
    }

    /// Creates an array without metadata, whose disks are equal from the start.
    fn array(&mut self, name: &str, level: &str, disks: &[&str]) -> String {
        let count = disks.len();
        let chunk = match level {
            "raid5" => "echo 65536 > chunk_size; echo 2 > layout; ",
            _ => "",
        };
        let mut line = format!(
            "echo {name} > /sys/module/md_mod/parameters/new_array; (set -e; cd /sys/block/{name}/md; \
             echo none > metadata_version; echo {level} > level; echo {count} > raid_disks; \
             {chunk}echo 16384 > component_size; "
        );
        for (slot, disk) in disks.iter().enumerate() {
            line +=
                &format!("cat /sys/block/{disk}/dev > new_dev; echo {slot} > dev-{disk}/slot; ");
        }
        self.run(&format!(
            "{line}echo none > resync_start; echo active > array_state)"
        ));
        name.to_owned()
    }

    /// Gives a disk in compressed memory its size.
    fn zram(&mut self, number: u32) -> String {
        let name = format!("zram{number}");
        // Newer kernels have the compressor in the driver.
        self.run(&format!(
            "load_module lzo_rle; echo lzo-rle > /sys/block/{name}/comp_algorithm; \
             echo 16M > /sys/block/{name}/disksize"
        ));
        name
    }

    /// Loads each device, and at last writes everything.
    pub fn load_devices(&mut self) {
        let devices: Vec<String> = self.devices.values().cloned().collect();
        let (pages, split) = (self.path_of(PAGES), self.path_of(SPLIT));
        for (seed, device) in devices.into_iter().enumerate() {
            if Some(&device) != pages.as_ref() {
                let bytes = match Some(&device) == split.as_ref() {
                    true => 65536,
                    false => 4096,
                };
                let done = self.load(&DiskLoad {
                    read: 60,
                    write: 40,
                    count: 120,
                    fsync: 20,
                    span: 8 << 20,
                    bytes,
                    seed: seed as u64,
                    ..DiskLoad::on(&format!("/dev/{device}"))
                });
                self.loads.insert(device, done);
            }
        }
        if let Some(disk) = pages {
            self.run(&format!(
                "/tools/dd if=/dev/zero of=/dev/{disk} bs=64k count=16 oflag=direct 2> /dev/null; \
                 /tools/dd if=/dev/{disk} of=/dev/null bs=64k count=16 2> /dev/null"
            ));
        }
        if let Some(disk) = self.path_of("scsi_debug") {
            self.run(&format!("blkdiscard -o 1048576 -l 1048576 /dev/{disk}"));
            // This sector is defective (drivers/scsi/scsi_debug.c, OPT_MEDIUM_ERR_ADDR).
            self.run(&format!(
                "! /tools/dd if=/dev/{disk} of=/dev/null bs=512 skip=4660 count=1 iflag=direct 2> /dev/null"
            ));
        }
        if self.path_of("dm thin").is_some() {
            // A pool writes what has changed in its metadata once a second.
            self.run("/tools/dmsetup suspend thin && /tools/dmsetup suspend pool");
        }
        if self.has_module("loop") {
            self.run("/tools/mke2fs -q -F -t ext4 -E lazy_itable_init=0 /dev/vdc1");
            for (kind, disk) in FILE_SYSTEMS {
                if self.has_module(kind) {
                    self.loop_on_file_system(kind, disk);
                }
            }
        }
    }

    /// Loads a loop device on a file of a file system.
    fn loop_on_file_system(&mut self, kind: &str, disk: &str) {
        self.run(&format!(
            "mount -t {kind} /dev/{disk} /mnt && \
             /tools/dd if=/dev/zero of=/mnt/file bs=1M count=8 2> /dev/null; sync; \
             [ -e /dev/loop0 ] || mknod /dev/loop0 b 7 0; losetup /dev/loop0 /mnt/file && \
             load disk=/dev/loop0,count=100,read=60,write=40,span=8388608,seed=77 && \
             losetup -d /dev/loop0; umount /mnt && sync"
        ));
    }
}
