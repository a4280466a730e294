//! Malicious or faulty front ends: each is disconnected, and the next one is served as usual.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;
use crate::server::Server;

/// An address without memory.
const NOWHERE: u64 = 1 << 50;

/// The back end still serves correct front ends.
fn still_serves(server: &Server, after: &str) {
    let guest = Guest::new();
    let (_front_end, mut driver) = started(server, &guest, ALL);
    assert_eq!(driver.run(0, READ, 0, 512).0, OK, "after {after}");
}

#[test]
fn invalid_messages_end_only_their_connection() {
    let server = Server::new();
    let guest = Guest::new();
    let file = guest.file.as_fd();
    // No byte of it is there.
    let huge = memfd_create("huge", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&huge, 17 << 40).unwrap();
    let huge = huge.as_fd();
    let region = |values: &[u64]| longs(values);
    let none: &[_] = &[];
    let cases = [
        (
            "features that were not offered",
            SET_FEATURES,
            longs(&[1 << 60]),
            none,
        ),
        (
            "memory without a file",
            ADD_MEM_REG,
            region(&[0, 0, 4096, 0, 0]),
            none,
        ),
        (
            "memory of no length",
            ADD_MEM_REG,
            region(&[0, 0, 0, 0, 0]),
            &[file][..],
        ),
        (
            "memory that is longer than its file",
            ADD_MEM_REG,
            region(&[0, 0, 1 << 40, 0, 0]),
            &[file],
        ),
        (
            "memory behind its file",
            ADD_MEM_REG,
            region(&[0, 0, 4096, 0, MEMORY_BYTES]),
            &[file],
        ),
        (
            "memory around the address space",
            ADD_MEM_REG,
            region(&[0, u64::MAX - 4095, 8192, 0, 0]),
            &[file],
        ),
        (
            "memory that nobody shared",
            REM_MEM_REG,
            region(&[0, 0, 4096, 0, 0]),
            none,
        ),
        (
            "a table of memory without files",
            SET_MEM_TABLE,
            [words(&[1, 0]), region(&[0, 4096, 0, 0])].concat(),
            none,
        ),
        (
            "a table of memory that is cut",
            SET_MEM_TABLE,
            words(&[8, 0]),
            &[file],
        ),
        (
            "memory that overlaps",
            SET_MEM_TABLE,
            [
                words(&[2, 0]),
                region(&[0, 8192, 0, 0]),
                region(&[4096, 8192, 8192, 0]),
            ]
            .concat(),
            &[file, file],
        ),
        (
            "more memory than leaves room for others",
            SET_MEM_TABLE,
            [words(&[1, 0]), region(&[0, 17 << 40, 0, 0])].concat(),
            &[huge],
        ),
        (
            "a region more than leaves room for others",
            ADD_MEM_REG,
            region(&[0, 0, 17 << 40, 0, 0]),
            &[huge],
        ),
        (
            "a queue that there is not",
            SET_VRING_NUM,
            words(&[4, 128]),
            none,
        ),
        (
            "no queue anybody has",
            SET_VRING_NUM,
            words(&[u32::MAX, 128]),
            none,
        ),
        ("an invalid size", SET_VRING_NUM, words(&[0, 100]), none),
        ("no size", SET_VRING_NUM, words(&[0, 0]), none),
        ("a giant size", SET_VRING_NUM, words(&[0, 1 << 31]), none),
        ("a giant base", SET_VRING_BASE, words(&[0, 1 << 16]), none),
        ("half a number", SET_VRING_NUM, vec![0; 4], none),
        (
            "rings that are not aligned",
            SET_VRING_ADDR,
            [words(&[0, 0]), longs(&[1, 1, 1, 0])].concat(),
            none,
        ),
        (
            "a kick that is a file",
            SET_VRING_KICK,
            longs(&[0]),
            &[file],
        ),
        (
            "a call that is a file",
            SET_VRING_CALL,
            longs(&[0]),
            &[file],
        ),
        (
            "no kick where one is due",
            SET_VRING_KICK,
            longs(&[0]),
            none,
        ),
        ("two calls", SET_VRING_CALL, longs(&[0]), &[file, file]),
        (
            "tracking of nothing",
            GET_INFLIGHT_FD,
            inflight(0, 0, 0, 0),
            none,
        ),
        (
            "tracking of too much",
            GET_INFLIGHT_FD,
            inflight(0, 0, 0xffff, 0xffff),
            none,
        ),
        (
            "tracking without a file",
            SET_INFLIGHT_FD,
            inflight(4096, 0, 1, 128),
            none,
        ),
        (
            "tracking in too little",
            SET_INFLIGHT_FD,
            inflight(64, 0, 1, 128),
            &[file],
        ),
        (
            "tracking behind its file",
            SET_INFLIGHT_FD,
            inflight(1 << 20, MEMORY_BYTES, 4, 1024),
            &[file],
        ),
        (
            "tracking at an invalid offset",
            SET_INFLIGHT_FD,
            inflight(1 << 20, 7, 4, 1024),
            &[file],
        ),
        (
            "a configuration that is written",
            25,
            [words(&[32, 1, 0]), vec![0]].concat(),
            none,
        ),
        (
            "a configuration beyond its end",
            GET_CONFIG,
            [words(&[4096, 60, 0]), vec![0; 60]].concat(),
            none,
        ),
        ("a file where none is due", GET_FEATURES, vec![], &[file]),
        ("a log", 6, longs(&[4096, 0]), &[file]),
        ("a message that there is not", 99, vec![], none),
        ("the number 0", 0, vec![], none),
    ];
    for (name, code, payload, files) in cases {
        let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
        let result = front_end.try_send(code, &payload, files);
        assert!(result.is_err(), "{name}");
        assert!(front_end.is_disconnected(), "{name}");
    }
    still_serves(&server, "all of them");
    // Invalid headers: too long, another version, undefined flags.
    for header in [
        [1, 1, 4097],
        [1, 1, u32::MAX],
        [1, 2, 0],
        [1, 0x11, 0],
        [u32::MAX; 3],
    ] {
        let front_end = FrontEnd::connect(&server.path());
        front_end.send_bytes(&words(&header), &[]).unwrap();
        assert!(front_end.is_disconnected(), "{header:?}");
    }
    still_serves(&server, "bad headers");
}

#[test]
fn invalid_ring_settings_end_only_their_connection() {
    let server = Server::new();
    let guest = Guest::new();
    let outside = MEMORY_BYTES - 64;
    let addresses = [
        ("descriptors that end outside", [outside, 0x6000, 0x4000]),
        ("a used ring that ends outside", [0x1000, outside, 0x4000]),
        (
            "an available ring that ends outside",
            [0x1000, 0x6000, outside],
        ),
        ("rings nowhere", [NOWHERE, NOWHERE, NOWHERE]),
        ("rings around the address space", [!15; 3]),
    ];
    for (name, rings) in addresses {
        let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
        guest.share(&mut front_end);
        front_end.send_ok(SET_VRING_NUM, &words(&[0, 128]), &[]);
        let mut payload = words(&[0, 0]);
        payload.extend(longs(&rings.map(|at| at.wrapping_add(FRONT_END))));
        payload.extend(longs(&[0]));
        front_end.send_ok(SET_VRING_ADDR, &payload, &[]);
        front_end.send_ok(SET_VRING_KICK, &longs(&[0]), &[event().as_fd()]);
        let enabled = front_end.try_send(SET_VRING_ENABLE, &words(&[0, 1]), &[]);
        assert!(enabled.is_err(), "{name}");
        assert!(front_end.is_disconnected(), "{name}");
    }
    // In-flight memory with an unknown layout.
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    guest.share(&mut front_end);
    let tracking = front_end.track(1, QUEUE_SIZE);
    let file = &tracking.file;
    std::os::unix::fs::FileExt::write_all_at(file, &7_u16.to_le_bytes(), 8).unwrap();
    let driver = Driver::new(&guest, 0);
    let queue = 0;
    front_end.send_ok(SET_VRING_NUM, &words(&[queue, 128]), &[]);
    let mut payload = words(&[queue, 0]);
    let rings = [driver.table(), driver.used_ring(), driver.avail_ring()];
    payload.extend(longs(&rings.map(|at| FRONT_END + at)));
    payload.extend(longs(&[0]));
    front_end.send_ok(SET_VRING_ADDR, &payload, &[]);
    front_end.send_ok(SET_VRING_KICK, &longs(&[0]), &[driver.kick.as_fd()]);
    let enabled = front_end.try_send(SET_VRING_ENABLE, &words(&[queue, 1]), &[]);
    assert!(enabled.is_err());
    still_serves(&server, "all of them");
}

#[test]
fn random_input_and_many_connections_do_not_end_the_tap() {
    let server = Server::new();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let guest = Guest::new();
    for round in 0..300 {
        let front_end = match round % 2 {
            0 => FrontEnd::negotiate(&server.path(), ALL),
            _ => FrontEnd::connect(&server.path()),
        };
        for _ in 0..random() % 8 {
            let code = (random() % 48) as u32;
            let payload: Vec<u8> = (0..random() % 64).map(|_| (random() % 4) as u8).collect();
            let event = event();
            let files = [guest.file.as_fd(), event.as_fd()];
            let first = (random() % 2) as usize;
            let files = &files[first..first + (random() % 2) as usize];
            if front_end.send(code, 8, &payload, files).is_err() {
                break;
            }
        }
    }
    // Disconnecting within a message.
    for length in 1..40 {
        let front_end = FrontEnd::connect(&server.path());
        let message = [words(&[SET_FEATURES, 1, 28]), vec![0; 28]].concat();
        front_end.send_bytes(&message[..length], &[]).unwrap();
    }
    for _ in 0..500 {
        if let Ok(mut socket) = UnixStream::connect(server.path()) {
            let _closed = socket.write_all(b"GET / HTTP/1.1\r\n\r\n");
        }
    }
    still_serves(&server, "noise");
}

/// A full call descriptor, for which a write blocks, would hold the queue's thread for ever.
#[test]
fn a_blocked_call_descriptor_does_not_prevent_the_end() {
    let mut server = Server::with(
        |_| {},
        |options| options.drain_timeout = std::time::Duration::from_millis(100),
    );
    let guest = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, F_VERSION_1);
    let full = event();
    front_end.send_ok(SET_VRING_CALL, &longs(&[0]), &[full.as_fd()]);
    assert!(wait_for(&full));
    // The back end has made it non-blocking; the front end undoes that.
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    driver.submit(0, READ, 0, 512);
    while driver.next_used().is_none() {
        std::thread::yield_now();
    }
    server.stop();
    server.wait_for_message("still in flight");
    // Now it can.
    rustix::io::read(&full, &mut [0; 8]).unwrap();
}

#[test]
fn a_reset_device_has_its_initial_state() {
    let server = Server::new();
    let guest = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, ALL);
    assert_eq!(driver.run(0, READ, 0, 512).0, OK);
    // RESET_DEVICE
    front_end.send_ok(34, &[], &[]);
    driver.submit(1, READ, 0, 512);
    assert_eq!(front_end.get_base(0), 0);
    assert_eq!(driver.next_used(), None);
    let mut driver = Driver::new(&guest, 0);
    driver.set_up(&mut front_end, 0);
    assert_eq!(driver.run(0, READ, 0, 512).0, OK);
}

#[test]
fn a_full_call_descriptor_delays_no_other_queue() {
    let server = Server::new();
    let guest = Guest::new();
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    guest.share(&mut front_end);
    let mut driver = Driver::new(&guest, 0);
    let waits = rustix::event::EventfdFlags::CLOEXEC;
    driver.call = rustix::event::eventfd(0, waits).unwrap();
    rustix::io::write(&driver.call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    driver.set_up(&mut front_end, 0);
    driver.submit(0, READ, 0, 512);
    assert_eq!(driver.wait_used(), (0, 513));
    front_end.get_base(0);
}

/// The address of a region of huge pages in the guest's and, further on, in the front end's memory.
const HUGE_AT: u64 = 1 << 30;

#[test]
fn truncated_or_partial_huge_pages_end_only_their_own_queue() {
    let test = "truncated_or_partial_huge_pages_end_only_their_own_queue";
    let server = Server::new();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
    let huge = match memfd_create("huge", flags) {
        Ok(huge) => huge,
        Err(why) => {
            weir_testing::skipped(test, format_args!("{why}"));
            return;
        }
    };
    let page = rustix::fs::fstat(&huge).unwrap().st_blksize as u64;
    for (bytes, offset, is_fine) in [
        (2 * page, 0, true),
        (page + page / 2, 0, false),
        (page + 4096, 0, false),
        (page, page, true),
        (page, page / 2, false),
    ] {
        ftruncate(&huge, 4 * page).unwrap();
        let guest = Guest::new();
        let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
        guest.share(&mut front_end);
        let region = longs(&[0, HUGE_AT, bytes, FRONT_END + HUGE_AT, offset]);
        let shared = front_end.try_send(ADD_MEM_REG, &region, &[huge.as_fd()]);
        assert_eq!(shared.is_ok(), is_fine, "{bytes} at {offset}");
        if is_fine {
            ftruncate(&huge, 0).unwrap();
            let driver = Driver::new(&guest, 0);
            driver.set_up_at(&mut front_end, 0, FRONT_END + HUGE_AT);
            driver.wait_broken();
            server.wait_for_message("truncated the file");
        }
        drop(front_end);
        still_serves(&server, "huge pages");
    }
}

#[test]
fn a_front_end_may_share_the_announced_number_of_regions() {
    let server = Server::with(|_| {}, |options| options.memory_slots = 2);
    let guest = Guest::new();
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    assert_eq!(front_end.get(GET_MAX_MEM_SLOTS), 2);
    // Any number of times, one after the other.
    for _ in 0..20 {
        for number in 0..2 {
            let at = number << 30;
            let region = longs(&[0, at, MEMORY_BYTES, FRONT_END + at, 0]);
            front_end.send_ok(ADD_MEM_REG, &region, &[guest.file.as_fd()]);
        }
        for number in 0..2 {
            let at = number << 30;
            let region = longs(&[0, at, MEMORY_BYTES, FRONT_END + at, 0]);
            front_end.send_ok(REM_MEM_REG, &region, &[]);
        }
    }
    for number in 0..3 {
        let at = number << 30;
        let region = longs(&[0, at, MEMORY_BYTES, FRONT_END + at, 0]);
        let shared = front_end.try_send(ADD_MEM_REG, &region, &[guest.file.as_fd()]);
        assert_eq!(shared.is_ok(), number < 2, "region {number}");
    }
    still_serves(&server, "too many regions");
}
