//! SIGKILL of the tapdisk under load: the guest waits, continues with the next tapdisk, and no data
//! is wrong.

use crate::guests::{HARD_WORK, Served, database_is_whole, fill_database, fio};
use crate::process::wait_until;

/// The number of requests before the next kill, so that each kill is during the load.
const REQUESTS_BETWEEN: u64 = 200;

/// Kills the tapdisk this number of times while the guest does I/O.
fn kill_under_load(served: &mut Served, times: u32) {
    for _ in 0..times {
        wait_until("the guest is at work", || {
            let tapdisk = served.tapdisk();
            tapdisk.requests("w") + tapdisk.requests("r") >= REQUESTS_BETWEEN
        });
        served.kill();
    }
    wait_until("the guest goes on", || {
        let tapdisk = served.tapdisk();
        tapdisk.requests("w") + tapdisk.requests("r") >= REQUESTS_BETWEEN / 4
    });
}

#[test]
fn a_guest_survives_kills_under_load() {
    const TEST: &str = "a_guest_survives_kills_under_load";
    let Some(mut served) = Served::boot(TEST, "survives") else {
        return;
    };
    served.make_file_system();
    // Slow enough that the load outlasts the kills: the test asserts the data, not the time.
    served.guest.begin(&fio(24, "--rate_iops=1500")).unwrap();
    kill_under_load(&mut served, 5);
    served.guest.finish_within(HARD_WORK).unwrap();
    served.guest.begin(&fill_database(600)).unwrap();
    kill_under_load(&mut served, 3);
    served.guest.finish_within(HARD_WORK).unwrap();
    database_is_whole(&mut served, 600);
    served.work("echo 3 > /proc/sys/vm/drop_caches; md5sum /mnt/fio > /tmp/sum");
    served.kill();
    served.work("echo 3 > /proc/sys/vm/drop_caches; md5sum -c /tmp/sum");
    let complaints = served.work("dmesg | grep -iE 'i/o error|ext4-fs error|buffer i/o' | cat");
    assert_eq!(complaints, "", "the guest's kernel saw no error");
    served.ends_whole();
}
