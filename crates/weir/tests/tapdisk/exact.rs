//! The requests of a guest in `weir query --from tapdisk:PATH` equal the counts of the guest's own
//! kernel, to the sector.

use weir_testing::Counts;

use crate::guests::{Served, fill_database, fio};
use crate::process::{Query, wait_until};

#[test]
fn records_equal_the_counters_of_the_guest() {
    const TEST: &str = "records_equal_the_counters_of_the_guest";
    let Some(mut served) = Served::boot(TEST, "exact") else {
        return;
    };
    let query = Query::start(
        served.tapdisk(),
        "select vdisk, op, vm, level, count(*) as requests, sum(sectors) as sectors from IO \
         group by vdisk, op, vm, level",
    );
    let before = served.guest.disk_stats().unwrap();
    served.make_file_system();
    served.work(&fio(8, ""));
    served.work(&fill_database(40));
    served.work("dd if=/dev/urandom of=/mnt/f bs=64k count=64 && sync && rm /mnt/f && umount /mnt");
    served.work("sync; echo 3 > /proc/sys/vm/drop_caches; md5sum < /dev/vda");
    let after = served.guest.disk_stats().unwrap();
    wait_until("the disks are idle", || {
        let status = served.tapdisk().status();
        let mut disks = status["disks"].as_array().unwrap().iter();
        disks.all(|disk| disk["in_flight"] == 0)
    });
    let (rows, printed) = query.stop();
    assert!(!printed.contains("lost"), "{printed}");
    for (disk, name) in [("vda", "/dev/vda"), ("vdb", "/dev/vdb")] {
        let counted: Counts = after[disk].since(&before[disk]);
        let emitted = |op: &str, column: &str| {
            let row = rows
                .iter()
                .find(|row| row["vdisk"] == name && row["op"] == op);
            if let Some(row) = row {
                assert_eq!(
                    (&row["vm"], &row["level"]),
                    (&"exact".into(), &"vdisk".into())
                );
            }
            row.and_then(|row| row[column].as_i64()).unwrap_or(0)
        };
        assert_eq!(
            emitted("r", "requests"),
            counted.reads,
            "reads of {disk}: {rows:?}"
        );
        assert_eq!(
            emitted("r", "sectors"),
            counted.read_sectors,
            "sectors read of {disk}: {rows:?}"
        );
        // Linux counts write-zeroes requests as writes, and flushes without data as well.
        let written = emitted("w", "sectors") + emitted("z", "sectors");
        assert_eq!(
            written, counted.write_sectors,
            "sectors written of {disk}: {rows:?}"
        );
        assert_eq!(
            emitted("f", "requests"),
            counted.flushes,
            "flushes of {disk}: {rows:?}"
        );
        assert_eq!(
            emitted("d", "sectors"),
            counted.discard_sectors,
            "discarded of {disk}: {rows:?}"
        );
    }
    served.end();
}
