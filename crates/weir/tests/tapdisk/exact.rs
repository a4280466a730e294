//! What `weir query --from tapdisk:PATH` tells of a guest is what the guest's own kernel counts, to the sector.

use std::process::{Child, Command, Stdio};

use serde_json::Value;
use weir_guest::Counts;

use crate::guests::{Served, fill_database, fio};
use crate::process::{WEIR, wait_until};

/// `weir query` on a tap, and what it says at its end.
struct Query(Child);

impl Query {
    fn start(tap: &str, text: &str) -> Query {
        let source = format!("tapdisk:{tap}");
        let child = Command::new(WEIR)
            .args([
                "query", "--from", &source, "--format", "json", "--final", text,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Query(child.unwrap())
    }

    /// Interrupts it; its rows, and its remarks.
    fn stop(self) -> (Vec<Value>, String) {
        let kill = Command::new("kill")
            .args(["-s", "INT", &self.0.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        let output = self.0.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(130), "{said}");
        let text = String::from_utf8(output.stdout).unwrap();
        let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
        (rows.collect(), said)
    }
}

#[test]
fn what_is_told_is_what_the_guest_counts() {
    const TEST: &str = "what_is_told_is_what_the_guest_counts";
    let Some(mut served) = Served::boot(TEST, "exact") else {
        return;
    };
    let query = Query::start(
        served.tapdisk().tap(),
        "select vdisk, op, vm, level, count(*) as requests, sum(sectors) as sectors from IO \
         group by vdisk, op, vm, level",
    );
    wait_until("somebody listens", || {
        !served.tapdisk().status()["consumers"]
            .as_array()
            .unwrap()
            .is_empty()
    });
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
    let (rows, said) = query.stop();
    assert!(!said.contains("lost"), "{said}");
    for (disk, name) in [("vda", "/dev/vda"), ("vdb", "/dev/vdb")] {
        let counted: Counts = after[disk].since(&before[disk]);
        let told = |op: &str, column: &str| {
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
            told("r", "requests"),
            counted.reads,
            "reads of {disk}: {rows:?}"
        );
        assert_eq!(
            told("r", "sectors"),
            counted.read_sectors,
            "sectors read of {disk}: {rows:?}"
        );
        // Linux counts zeroes that the disk is to write as writes, and flushes without data as well.
        let written = told("w", "sectors") + told("z", "sectors");
        assert_eq!(
            written, counted.write_sectors,
            "sectors written of {disk}: {rows:?}"
        );
        assert_eq!(
            told("f", "requests"),
            counted.flushes,
            "flushes of {disk}: {rows:?}"
        );
        assert_eq!(
            told("d", "sectors"),
            counted.discard_sectors,
            "discarded of {disk}: {rows:?}"
        );
    }
    served.end();
}
