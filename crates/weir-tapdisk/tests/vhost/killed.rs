//! A back end that is killed with requests in flight: the next one executes the unfinished ones,
//! once, in order.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use weir_tapdisk::StopEvent;
use weir_tapdisk::disk::ServedDisk;
use weir_tapdisk::vhost::{self, VhostOptions};

use super::*;
use crate::server::{Folder, disk_options, listen};

/// The folder of this program as a back end.
const FOLDER: &str = "WEIR_TEST_VHOST_FOLDER";

/// Not a test: what [`Process`] runs until it is killed.
#[test]
fn a_process_that_serves() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = PathBuf::from(folder);
    let disk = ServedDisk::open(disk_options(&folder.join("disk.raw"))).unwrap();
    let socket = listen(&folder.join("s"));
    let options = VhostOptions::new(Arc::new(|message: &str| eprintln!("{message}")));
    vhost::serve(&disk, &socket, &options, &StopEvent::new().unwrap()).unwrap();
}

struct Process(Child);

impl Process {
    fn start(folder: &Folder) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "killed::a_process_that_serves"]);
        command.env(FOLDER, folder.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Process(command.spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Each slot writes a number of its own, incremented each time, to sectors of its own, and reads it
/// back. Now and then the back end is killed. Each request ends once, with its effect.
#[test]
fn after_a_kill_each_request_ends_once() {
    let folder = Folder::new();
    folder.make_image();
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, 0);
    let mut process = Process::start(&folder);
    let mut front_end = FrontEnd::negotiate(&folder.socket(), ALL);
    guest.share(&mut front_end);
    let tracking = front_end.track(1, QUEUE_SIZE);
    driver.set_up(&mut front_end, 0);
    let mut slots = [Progress::default(); SLOTS as usize];
    for slot in 0..SLOTS {
        slots[usize::from(slot)].next(&mut driver, slot);
    }
    let mut interrupted = 0;
    for kill in 0..40 {
        // After this number of requests.
        for _ in 0..50 + 37 * (kill % 7) {
            end_one(&mut driver, &mut slots);
        }
        drop(process);
        drop(front_end);
        // The actions of a front end that finds the back end again (QEMU, vhost-user-blk.c).
        interrupted += usize::from(SLOTS) - uncollected(&driver);
        process = Process::start(&folder);
        front_end = FrontEnd::negotiate(&folder.socket(), ALL);
        guest.share(&mut front_end);
        front_end.keep_tracking(&tracking);
        let used = guest.load(driver.used_ring() + 2);
        driver.set_up(&mut front_end, used);
    }
    for _ in 0..1000 {
        end_one(&mut driver, &mut slots);
    }
    // All requests in flight end, and then nothing more.
    for _ in 0..SLOTS {
        let (head, _) = driver.wait_used();
        slots[head as usize / 4].ended(&driver, head as u16 / 4);
    }
    front_end.get_base(0);
    assert_eq!(driver.next_used(), None);
    assert!(slots.iter().all(|slot| !slot.on_its_way));
    assert!(interrupted > 0, "no kill met a request on its way");
    drop(process);
}

/// Requests that the back end has ended and the driver has not seen.
fn uncollected(driver: &Driver) -> usize {
    let used = driver.guest.load(driver.used_ring() + 2);
    usize::from(used.wrapping_sub(driver.seen))
}

fn end_one(driver: &mut Driver, slots: &mut [Progress]) {
    let (head, _) = driver.wait_used();
    assert_eq!(head % 4, 0, "a request begins there");
    let slot = head as u16 / 4;
    let progress = &mut slots[usize::from(slot)];
    progress.ended(driver, slot);
    progress.next(driver, slot);
}

/// The actions of a slot: a write of `count`, and a read of it, in turns.
#[derive(Clone, Copy, Default)]
struct Progress {
    count: u32,
    reads: bool,
    on_its_way: bool,
}

const SLOT_SECTORS: u64 = 8;

impl Progress {
    fn data(self, slot: u16) -> Vec<u8> {
        pattern(self.count * 64 + u32::from(slot), 4096)
    }

    fn next(&mut self, driver: &mut Driver, slot: u16) {
        let sector = SLOT_SECTORS * u64::from(slot);
        let at = Driver::data_at(slot);
        let kind = if self.reads { READ } else { WRITE };
        if !self.reads {
            self.count += 1;
        }
        let data = if self.reads {
            vec![0; 4096]
        } else {
            self.data(slot)
        };
        driver.guest.write(at, &data);
        driver.submit(slot, kind, sector, 4096);
        self.on_its_way = true;
    }

    fn ended(&mut self, driver: &Driver, slot: u16) {
        assert!(self.on_its_way, "slot {slot} ended twice");
        assert_eq!(driver.status(slot), OK);
        let there = driver.guest.read(Driver::data_at(slot), 4096);
        assert!(
            there == self.data(slot),
            "slot {slot}, {} writes",
            self.count
        );
        self.on_its_way = false;
        self.reads = !self.reads;
    }
}

/// The tracked requests are executed first, oldest first, and then the rest of the ring.
#[test]
fn unfinished_requests_are_executed_in_their_order() {
    let server = Server::with(
        |disk| disk.engine = weir_tapdisk::engine::EngineOption::Sync,
        |options| options.poll = Duration::ZERO,
    );
    let guest = Guest::new();
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    guest.share(&mut front_end);
    let tracking = front_end.track(2, QUEUE_SIZE);
    let mut driver = Driver::new(&guest, 1);
    // Seven were offered and five taken. The ends of slots 1 and 3 are in the used ring; that of
    // slot 3 was not removed from tracking.
    for slot in [1, 3, 5, 4, 2, 0, 6] {
        driver.submit(slot, READ, 0, 512);
    }
    guest.write(driver.used_ring() + 2, &2_u16.to_le_bytes());
    driver.seen = 2;
    let stride = 16 + 16 * u64::from(QUEUE_SIZE);
    let start = stride.next_multiple_of(64);
    let put = |at: u64, bytes: &[u8]| tracking.file.write_all_at(bytes, start + at).unwrap();
    put(8, &1_u16.to_le_bytes());
    put(10, &QUEUE_SIZE.to_le_bytes());
    put(12, &(3 * 4_u16).to_le_bytes());
    put(14, &1_u16.to_le_bytes());
    for (slot, counter) in [(5_u64, 7_u64), (2, 9), (4, 8), (3, 6)] {
        put(16 + 16 * slot * 4, &[1]);
        put(16 + 16 * slot * 4 + 8, &counter.to_le_bytes());
    }
    driver.set_up(&mut front_end, 2);
    let order: Vec<u32> = (0..5).map(|_| driver.wait_used().0 / 4).collect();
    assert_eq!(order, [5, 4, 2, 0, 6]);
    assert_eq!(front_end.get_base(1), 7);
}

/// The driver may not have been notified of requests that were put into the used ring just before a
/// kill.
#[test]
fn a_driver_is_notified_when_its_ring_starts_and_when_its_call_changes() {
    let server = Server::new();
    let guest = Guest::new();
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    guest.share(&mut front_end);
    front_end.track(1, QUEUE_SIZE);
    let mut driver = Driver::new(&guest, 0);
    driver.submit(0, READ, 0, 512);
    guest.write(driver.used_ring() + 2, &1_u16.to_le_bytes());
    driver.set_up(&mut front_end, 1);
    assert!(wait_for(&driver.call), "nobody calls");
    let other = event();
    front_end.send_ok(SET_VRING_CALL, &0_u64.to_le_bytes(), &[other.as_fd()]);
    assert!(wait_for(&other), "nobody calls the other one");
}
