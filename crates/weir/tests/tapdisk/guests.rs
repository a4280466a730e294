//! A guest whose disks are served by a tapdisk: their properties in the guest, an ext4 file system,
//! fio with verification, a database.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::MutexGuard;
use std::time::Duration;

use weir_testing::{Guest, Kit, Tools, VhostDisk};

use crate::process::{Scratch, Tapdisk, ready, skip, wait_until};

/// The time that an expensive command in a guest may take, in emulation on a busy machine.
pub const HARD_WORK: Duration = Duration::from_secs(400);

/// The programs that guests run, from the host.
pub const TOOLS: [&str; 4] = ["fio", "sqlite3", "mke2fs", "e2fsck"];

/// A guest with a work disk, `/dev/vda`, and its tools on a read-only disk, `/dev/vdb`. Both are
/// served by one tapdisk.
pub struct Served {
    pub guest: Guest,
    /// `None` only while it is replaced.
    tapdisk: Option<Tapdisk>,
    args: Vec<String>,
    image: String,
    _tools: Tools,
    _scratch: Scratch,
    _turn: MutexGuard<'static, ()>,
}

impl Served {
    /// Boots a guest called `name`; otherwise logs that `test` is skipped.
    pub fn boot(test: &str, name: &str) -> Option<Served> {
        let turn = ready(test, &[&TOOLS[..], &["ldd"]].concat())?;
        let kit = match Kit::find() {
            Ok(kit) => kit,
            Err(why) => return skip(test, why.to_string()),
        };
        let scratch = Scratch::new();
        let tools = Tools::make(Path::new(&scratch.file("tools.raw")), &TOOLS).unwrap();
        let image = scratch.image("work.raw", 96);
        let sockets = ["work.sock", "tools.sock"].map(|name| scratch.file(name));
        let disks = [
            format!(
                "image={image},socket={},vm={name},vdisk=/dev/vda,serial=vol0",
                sockets[0]
            ),
            format!(
                "image={},socket={},vm={name},vdisk=/dev/vdb,read-only",
                tools.image().display(),
                sockets[1]
            ),
        ];
        let args: Vec<String> = disks
            .into_iter()
            .flat_map(|disk| ["--disk".to_owned(), disk])
            .collect();
        let tapdisk = start(&args);
        let mut options = VhostDisk::shared_memory();
        options.extend(["-smp", "2"].map(str::to_owned));
        options.extend(VhostDisk::new("disk0", &sockets[0]).queues(2).args());
        options.extend(VhostDisk::new("disk1", &sockets[1]).args());
        let mut guest = Guest::start(&kit, name, &options).unwrap();
        guest.ready().unwrap();
        guest.run(&Tools::mount("/dev/vdb")).unwrap();
        Some(Served {
            guest,
            tapdisk: Some(tapdisk),
            args,
            image,
            _tools: tools,
            _scratch: scratch,
            _turn: turn,
        })
    }

    /// The current tapdisk.
    pub fn tapdisk(&self) -> &Tapdisk {
        self.tapdisk.as_ref().expect("one serves")
    }

    /// Kills the tapdisk and starts another one in its place.
    pub fn kill(&mut self) {
        self.tapdisk.take().expect("one serves").kill();
        self.tapdisk = Some(start(&self.args));
    }

    /// Creates an ext4 file system on the work disk and mounts it.
    pub fn make_file_system(&mut self) {
        let make = "/tools/mke2fs -q -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda";
        self.work(make);
        self.work("mkdir -p /mnt && mount -t ext4 -o discard /dev/vda /mnt");
    }

    /// Runs a shell command that may take long.
    pub fn work(&mut self, line: &str) -> String {
        self.guest.begin(line).unwrap();
        self.guest.finish_within(HARD_WORK).unwrap()
    }

    /// Shuts down the guest, then the tapdisk, and checks the image on the host; returns the path
    /// of the image.
    pub fn end(self) -> (String, Scratch) {
        self.guest.quit().unwrap();
        self.tapdisk.expect("one serves").stop();
        let check = Command::new("e2fsck")
            .args(["-fn", &self.image])
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&check.stdout);
        assert!(
            check.status.success(),
            "the file system is whole: {printed}"
        );
        (self.image, self._scratch)
    }

    /// As [`Served::end`]; also asserts that guest and host read the same bytes from a consistent
    /// file system.
    pub fn ends_whole(mut self) {
        self.work("umount /mnt && /tools/e2fsck -fn /dev/vda");
        let sums = self.work("md5sum < /dev/vda");
        let (image, _scratch) = self.end();
        let host = Command::new("md5sum")
            .stdin(std::fs::File::open(&image).unwrap())
            .output()
            .unwrap();
        assert_eq!(
            sums,
            String::from_utf8(host.stdout).unwrap(),
            "guest and host read the same bytes"
        );
    }
}

fn start(args: &[String]) -> Tapdisk {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Tapdisk::start(&args)
}

/// fio in a guest: random writes of a file, each block with its checksum; all blocks are read back.
pub fn fio(mebibytes: u32, more: &str) -> String {
    format!(
        "/tools/fio --name=verified --thread --filename=/mnt/fio --size={mebibytes}M --bs=4k --rw=randwrite \
         --ioengine=libaio --iodepth=8 --direct=1 --fsync=100 --verify=crc32c --verify_fatal=1 \
         --do_verify=1 --output-format=terse {more}"
    )
}

/// Asserts that the database is intact: `rows` rows of known content, and no corruption.
pub fn database_is_whole(served: &mut Served, rows: u32) {
    let ask = "/tools/sqlite3 /mnt/db 'pragma integrity_check; select count(*) from t; \
               select count(*) from t where body = printf(\"%0500d\", n * n)'";
    assert_eq!(served.work(ask), format!("ok\n{rows}\n{rows}\n"));
}

/// A shell command that inserts this number of rows into a new database, each in its own
/// transaction.
pub fn fill_database(rows: u32) -> String {
    let one = "insert into t(n, body) values(&, printf(\"%0500d\", & * &));";
    format!(
        "(echo 'pragma synchronous=full; create table t(n integer primary key, body text);'; \
         seq 1 {rows} | sed 's/.*/{one}/') | /tools/sqlite3 /mnt/db"
    )
}

#[test]
fn a_guest_works_on_served_disks() {
    const TEST: &str = "a_guest_works_on_served_disks";
    let Some(mut served) = Served::boot(TEST, "lives") else {
        return;
    };
    let guest = &mut served.guest;
    assert_eq!(
        guest
            .run("echo $(cat /sys/block/vda/serial)")
            .unwrap()
            .trim(),
        "vol0"
    );
    assert_eq!(
        guest.run("ls /sys/block/vda/mq | wc -l").unwrap().trim(),
        "2",
        "two queues"
    );
    assert_eq!(
        guest
            .run("cat /sys/block/vda/ro /sys/block/vdb/ro")
            .unwrap(),
        "0\n1\n"
    );
    let refused = guest.run("dd if=/dev/zero of=/dev/vdb bs=4k count=1");
    assert!(
        refused.is_err(),
        "a read-only disk does not change: {refused:?}"
    );

    served.make_file_system();
    let zeroed = served.tapdisk().requests("z");
    assert!(zeroed > 0, "mke2fs sends requests to write zeroes");
    served.work(&fio(16, ""));
    served.work(&fill_database(150));
    database_is_whole(&mut served, 150);
    // Blocks that the guest discards are freed on the host.
    served.work("dd if=/dev/urandom of=/mnt/large bs=1M count=32 && sync");
    let (discarded, before) = (served.tapdisk().figure("d", "bytes"), blocks(&served.image));
    served.work("rm /mnt/large && sync && fstrim /mnt");
    let freed = before.saturating_sub(blocks(&served.image)) * 512;
    assert!(served.tapdisk().figure("d", "bytes") >= discarded + (32 << 20));
    assert!(freed >= 30 << 20, "{freed} bytes came back");
    database_is_whole(&mut served, 150);
    grows(&mut served);
    served.ends_whole();
}

/// Asserts that the guest detects the growth of its disk, both while it is served and while it is
/// not.
fn grows(served: &mut Served) {
    for (mebibytes, kill) in [(100, false), (104, true)] {
        let image = fs::File::options().write(true).open(&served.image);
        image.unwrap().set_len(mebibytes << 20).unwrap();
        if kill {
            served.kill();
        }
        let sectors = (mebibytes << 11).to_string();
        wait_until("the guest sees its new size", || {
            served.guest.run("cat /sys/block/vda/size").unwrap().trim() == sectors
        });
        let last = mebibytes - 1;
        served.work(&format!(
            "dd if=/dev/zero of=/dev/vda bs=1M seek={last} count=1 conv=fsync"
        ));
    }
}

/// The number of 512-byte blocks of a file.
fn blocks(path: &str) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap())
}
