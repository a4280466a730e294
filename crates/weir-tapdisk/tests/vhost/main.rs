//! The vhost-user-blk front end, with valid and invalid front ends and drivers.

mod any_queue;
mod bad_chains;
mod bad_messages;
mod driver;
mod front_end;
mod growth;
mod killed;
mod loads;
mod server;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use driver::*;
use front_end::*;
use server::{SECTORS, Server};
use weir_model::Op;
use weir_tap::tapdisk::words::DiskLimits;
use weir_tapdisk::vhost::VhostOptions;

const ALL: u64 = F_VERSION_1 | F_EVENT_IDX | F_INDIRECT | F_FLUSH;

/// A front end that is connected, with queue 0 running.
fn started<'a>(server: &Server, guest: &'a Guest, features: u64) -> (FrontEnd, Driver<'a>) {
    let mut front_end = FrontEnd::negotiate(&server.path(), features);
    guest.share(&mut front_end);
    let driver = Driver::new(guest, 0);
    driver.set_up(&mut front_end, 0);
    (front_end, driver)
}

fn pattern(seed: u32, bytes: usize) -> Vec<u8> {
    let byte = |i: usize| (i as u32).wrapping_mul(31).wrapping_add(seed * 7 + 1) as u8;
    (0..bytes).map(byte).collect()
}

#[test]
fn written_data_are_in_the_image_and_are_read_back() {
    for features in [ALL, F_VERSION_1 | F_FLUSH, 0] {
        let server = Server::new();
        let guest = Guest::new();
        let (_front_end, mut driver) = started(&server, &guest, features);
        for (slot, bytes) in [(0_u16, 512_usize), (1, 4096), (2, 0x8000)] {
            let data = pattern(u32::from(slot), bytes);
            let sector = 64 * u64::from(slot) + 3;
            guest.write(Driver::data_at(slot), &data);
            let ended = driver.run(slot, WRITE, sector, bytes as u32);
            assert_eq!(ended, (OK, 1), "{bytes} bytes, features {features:#x}");
            assert_eq!(server.folder.read_image(sector, bytes), data);
            guest.write(Driver::data_at(slot), &vec![0; bytes]);
            let ended = driver.run(slot, READ, sector, bytes as u32);
            assert_eq!(ended, (OK, bytes as u32 + 1));
            assert_eq!(guest.read(Driver::data_at(slot), bytes), data);
        }
        assert_eq!(driver.run(0, FLUSH, 0, 0), (OK, 1));
        let counters = server.disk.counters();
        assert_eq!(counters.of(Op::Write).requests, 3);
        assert_eq!(counters.of(Op::Read).bytes, 512 + 4096 + 0x8000);
        assert_eq!(counters.of(Op::Flush).requests, 1);
        assert_eq!(counters.in_flight, 0);
    }
}

#[test]
fn the_serial_number_is_truncated_to_the_buffer() {
    let server = Server::new();
    let guest = Guest::new();
    let (_front_end, mut driver) = started(&server, &guest, ALL);
    guest.write(Driver::data_at(0), &[0xff; 32]);
    assert_eq!(driver.run(0, GET_ID, 0, 20), (OK, 21));
    let result = guest.read(Driver::data_at(0), 21);
    assert_eq!(&result, b"serial-of-a-test\0\0\0\0\xff");
    assert_eq!(driver.run(1, GET_ID, 0, 6), (OK, 7));
    assert_eq!(guest.read(Driver::data_at(1), 7), b"serial\0");
    // It does not access the medium.
    assert_eq!(server.disk.counters().of(Op::Read).requests, 0);
}

#[test]
fn the_configuration_space_describes_the_disk() {
    let server = Server::with(|disk| disk.block_size = Some(4096), |_| {});
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    let config = front_end.config();
    let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    assert_eq!(u64::from(word(0)), SECTORS);
    assert_eq!(word(12), 126, "seg_max");
    assert_eq!(word(20), 4096, "blk_size");
    assert_eq!(config[34..36], 4_u16.to_le_bytes(), "num_queues");
    assert_eq!(word(40), 32, "max_discard_seg");
    assert_eq!(word(44), 8, "discard_sector_alignment");
    assert_eq!(word(52), 32, "max_write_zeroes_seg");
    assert_eq!(front_end.get(GET_QUEUE_NUM), 4);
    // Seg_max, blk_size, flush, topology, mq, write zeroes; but not ro.
    let features = front_end.get(GET_FEATURES);
    for bit in [2, 6, 9, 10, 12, 14, 28, 29, 30, 32] {
        assert!(features & 1 << bit != 0, "feature {bit}");
    }
    assert_eq!(features & 1 << 5, 0);
}

#[test]
fn nothing_is_written_to_a_read_only_disk() {
    let server = Server::with(|disk| disk.read_only = true, |_| {});
    let guest = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, ALL);
    assert_ne!(front_end.get(GET_FEATURES) & 1 << 5, 0);
    guest.write(Driver::data_at(0), &[1; 512]);
    assert_eq!(driver.run(0, WRITE, 0, 512).0, IOERR);
    assert_eq!(driver.run(1, READ, 0, 512).0, OK);
    assert_eq!(server.folder.read_image(0, 512), [0; 512]);
    assert_eq!(server.disk.counters().of(Op::Write).errors, 1);
}

#[test]
fn buffers_can_be_split_anywhere_and_be_in_an_indirect_table() {
    let server = Server::new();
    let guest = Guest::new();
    let (_front_end, mut driver) = started(&server, &guest, ALL);
    let data = pattern(5, 1024);
    guest.write(Driver::data_at(0), &data);
    driver.header(0, WRITE, 10);
    // The header in three pieces, the last with the first bytes of the data behind it in memory.
    let at = Driver::header_at(0);
    let header = guest.read(at, 16);
    let place = Driver::data_at(0) - 4;
    guest.write(place, &header[12..]);
    let table = Driver::header_at(7);
    let chain = [
        Desc(at, 5, NEXT, 1),
        Desc(at + 5, 7, NEXT, 2),
        Desc(place, 4 + 100, NEXT, 3),
        Desc(Driver::data_at(0) + 100, 924, NEXT, 4),
        Desc(Driver::status_at(0), 1, WRITABLE, 0),
    ];
    guest.write(table, &chain.map(Desc::bytes).concat());
    driver.describe(9, &[Desc(table, 16 * 5, INDIRECT, 0)]);
    driver.offer(9);
    assert_eq!(driver.wait_used(), (9, 1));
    assert_eq!(driver.status(0), OK);
    assert_eq!(server.folder.read_image(10, 1024), data);
    // The status is the last byte of a buffer that data are in as well.
    driver.header(1, READ, 10);
    let end = Driver::data_at(1) + 1024;
    guest.write(end, &[PENDING]);
    driver.describe(
        20,
        &[
            Desc(Driver::header_at(1), 16, NEXT, 21),
            Desc(Driver::data_at(1), 1025, WRITABLE, 0),
        ],
    );
    driver.offer(20);
    assert_eq!(driver.wait_used(), (20, 1025));
    assert_eq!(guest.read(Driver::data_at(1), 1024), data);
    assert_eq!(guest.read(end, 1), [OK]);
}

#[test]
fn ranges_are_discarded_and_overwritten_with_zeroes() {
    let server = Server::new();
    let guest = Guest::new();
    let (_front_end, mut driver) = started(&server, &guest, ALL);
    guest.write(Driver::data_at(0), &[0x55; 0x8000]);
    assert_eq!(driver.run(0, WRITE, 0, 0x8000).0, OK);
    let range = |sector: u64, sectors: u32, flags: u32| {
        let mut range = sector.to_le_bytes().to_vec();
        range.extend(words(&[sectors, flags]));
        range
    };
    let mut run = |slot: u16, kind: u32, ranges: &[Vec<u8>]| {
        let ranges = ranges.concat();
        guest.write(Driver::data_at(slot), &ranges);
        driver.run(slot, kind, 0, ranges.len() as u32).0
    };
    // Three in one request: zeroes, zeroes that give space back, and zeroes.
    let three = [range(0, 8, 0), range(16, 8, 1), range(40, 1, 0)];
    assert_eq!(run(1, WRITE_ZEROES, &three), OK);
    let image = server.folder.read_image(0, 0x8000);
    for (sector, block) in image.chunks(512).enumerate() {
        let zero = matches!(sector, 0..8 | 16..24 | 40);
        let expected = if zero { 0 } else { 0x55 };
        assert!(block.iter().all(|b| *b == expected), "sector {sector}");
    }
    let counted = server.disk.counters().of(Op::WriteZeroes);
    assert_eq!((counted.requests, counted.bytes), (3, 17 * 512));
    if server.disk.discards() {
        assert_eq!(run(2, DISCARD, &[range(8, 8, 0), range(48, 8, 0)]), OK);
        assert_eq!(server.disk.counters().of(Op::Discard).requests, 2);
    } else {
        assert_eq!(run(2, DISCARD, &[range(8, 8, 0)]), UNSUPP);
    }
    // Undefined flags, and a discard with the unmap flag (virtio 1.2, 5.2.6.2).
    assert_eq!(run(3, WRITE_ZEROES, &[range(0, 8, 2)]), UNSUPP);
    assert_eq!(run(4, DISCARD, &[range(0, 8, 1)]), UNSUPP);
    // Of a request with one invalid range, none is executed.
    let bad = [range(24, 8, 0), range(SECTORS, 0, 0)];
    assert_eq!(run(5, WRITE_ZEROES, &bad), IOERR);
    assert_eq!(server.folder.read_image(24, 512), [0x55; 512]);
    // Beyond the end, too many, too long, not a whole one, none.
    assert_eq!(run(6, WRITE_ZEROES, &[range(SECTORS - 1, 2, 0)]), IOERR);
    assert_eq!(run(7, WRITE_ZEROES, &vec![range(0, 1, 0); 33]), IOERR);
    assert_eq!(run(8, WRITE_ZEROES, &[range(0, u32::MAX, 0)]), IOERR);
    assert_eq!(run(9, WRITE_ZEROES, &[vec![0; 17]]), IOERR);
    assert_eq!(run(10, WRITE_ZEROES, &[]), IOERR);
}

#[test]
fn several_queues_run_concurrently() {
    let server = Server::new();
    let guest = Guest::new();
    let (mut front_end, mut first) = started(&server, &guest, ALL);
    let mut second = Driver::new(&guest, 3);
    second.set_up(&mut front_end, 0);
    guest.write(Driver::data_at(0), &[1; 512]);
    guest.write(Driver::data_at(1), &[2; 512]);
    first.submit(0, WRITE, 0, 512);
    second.submit(1, WRITE, 1, 512);
    assert_eq!(first.wait_used(), (0, 1));
    assert_eq!(second.wait_used(), (4, 1));
    assert_eq!(server.folder.read_image(0, 512), [1; 512]);
    assert_eq!(server.folder.read_image(1, 512), [2; 512]);
}

#[test]
fn a_driver_that_disables_notifications_receives_none() {
    let server = Server::with(|_| {}, |options| options.poll = Duration::ZERO);
    let guest = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, F_VERSION_1);
    // VRING_AVAIL_F_NO_INTERRUPT
    guest.store(driver.avail_ring(), 1);
    assert!(wait_for(&driver.call), "a ring that starts calls once");
    driver.submit(0, READ, 0, 512);
    while driver.next_used().is_none() {
        std::thread::yield_now();
    }
    // The queue is halted, so all notifications were sent.
    let base = front_end.get_base(0);
    assert!(!driver.was_called());
    guest.store(driver.avail_ring(), 0);
    driver.set_up(&mut front_end, base);
    assert!(wait_for(&driver.call), "a ring that starts calls once");
    driver.submit(1, READ, 0, 512);
    while driver.next_used().is_none() {
        std::thread::yield_now();
    }
    front_end.get_base(0);
    assert!(driver.was_called());
}

#[test]
fn halting_a_queue_ends_injected_delays() {
    let server = Server::with(
        |disk| disk.injections.delays.push("3600s".parse().unwrap()),
        |_| {},
    );
    let guest = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, ALL);
    driver.submit(0, READ, 0, 512);
    while server.disk.counters().in_flight == 0 {
        std::thread::yield_now();
    }
    front_end.get_base(0);
    assert_eq!(driver.next_used(), Some((0, 513)));
}

#[test]
fn requests_that_a_limit_holds_end_when_it_is_removed_and_when_a_queue_is_halted() {
    let tight = DiskLimits {
        bytes_per_second: 1,
        ..DiskLimits::default()
    };
    let server = Server::with(|disk| disk.limits = tight, |_| {});
    let guest = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, ALL);
    let held = |count| {
        while server.disk.throttle().held() != count {
            std::thread::yield_now();
        }
    };
    assert_eq!(driver.run(0, READ, 0, 512), (OK, 513));
    driver.submit(0, READ, 0, 512);
    held(1);
    server.disk.throttle().set(DiskLimits::default());
    while driver.next_used().is_none() {
        std::thread::yield_now();
    }
    server.disk.throttle().set(tight);
    assert_eq!(driver.run(0, READ, 0, 512), (OK, 513));
    driver.submit(0, READ, 0, 512);
    held(1);
    front_end.get_base(0);
    assert_eq!(driver.next_used(), Some((0, 513)));
    held(0);
}

#[test]
fn without_protocol_features_a_ring_runs_when_it_is_set_up() {
    let server = Server::new();
    let guest = Guest::new();
    let mut front_end = FrontEnd::connect(&server.path());
    front_end.send_ok(SET_OWNER, &[], &[]);
    front_end.send_ok(SET_FEATURES, &F_VERSION_1.to_le_bytes(), &[]);
    let mut table = words(&[1, 0]);
    table.extend(longs(&[0, MEMORY_BYTES, FRONT_END, 0]));
    front_end.send_ok(SET_MEM_TABLE, &table, &[guest.file.as_fd()]);
    let mut driver = Driver::new(&guest, 0);
    let queue = u64::from(driver.index).to_le_bytes();
    front_end.send_ok(SET_VRING_NUM, &words(&[0, u32::from(QUEUE_SIZE)]), &[]);
    let mut addresses = words(&[0, 0]);
    let rings = [driver.table(), driver.used_ring(), driver.avail_ring()];
    addresses.extend(longs(&rings.map(|at| FRONT_END + at)));
    addresses.extend(longs(&[0]));
    front_end.send_ok(SET_VRING_ADDR, &addresses, &[]);
    front_end.send_ok(SET_VRING_CALL, &queue, &[driver.call.as_fd()]);
    front_end.send_ok(SET_VRING_KICK, &queue, &[driver.kick.as_fd()]);
    assert_eq!(driver.run(0, READ, 0, 512), (OK, 513));
}

#[test]
fn a_ring_without_kick_is_polled() {
    let server = Server::new();
    let guest = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, ALL);
    assert_eq!(front_end.get_base(0), 0);
    // Bit 8: there is no file descriptor.
    front_end.send_ok(SET_VRING_KICK, &0x100_u64.to_le_bytes(), &[]);
    driver.header(0, READ, 0);
    driver.describe(
        0,
        &[
            Desc(Driver::header_at(0), 16, NEXT, 1),
            Desc(Driver::data_at(0), 512, NEXT | WRITABLE, 2),
            Desc(Driver::status_at(0), 1, WRITABLE, 0),
        ],
    );
    driver.offer_quietly(0);
    assert_eq!(driver.wait_used(), (0, 513));
}

#[test]
fn a_ring_continues_where_it_was_halted() {
    let server = Server::new();
    let guest = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, ALL);
    for round in 0..300 {
        assert_eq!(driver.run(round % SLOTS, READ, 0, 512).0, OK);
        if round % 50 == 49 {
            let base = front_end.get_base(0);
            assert_eq!(base, round + 1);
            driver.set_up(&mut front_end, base);
        }
    }
    // Requests wait while it is not enabled.
    front_end.send_ok(SET_VRING_ENABLE, &words(&[0, 0]), &[]);
    driver.submit(0, READ, 0, 512);
    assert_eq!(server.disk.counters().of(Op::Read).requests, 300);
    front_end.send_ok(SET_VRING_ENABLE, &words(&[0, 1]), &[]);
    assert_eq!(driver.wait_used(), (0, 513));
}

#[test]
fn memory_can_be_added_and_removed_while_a_queue_runs() {
    let server = Server::new();
    let guest = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, ALL);
    for round in 0..50_u64 {
        let more = Guest::new();
        let far = 1 << 40;
        let region = longs(&[0, far, MEMORY_BYTES, FRONT_END + far, 0]);
        front_end.send_ok(ADD_MEM_REG, &region, &[more.file.as_fd()]);
        let data = pattern(round as u32, 512);
        more.write(0x3000, &data);
        driver.header(0, WRITE, round);
        driver.describe(
            0,
            &[
                Desc(Driver::header_at(0), 16, NEXT, 1),
                Desc(far + 0x3000, 512, NEXT, 2),
                Desc(Driver::status_at(0), 1, WRITABLE, 0),
            ],
        );
        driver.offer(0);
        driver.wait_used();
        assert_eq!(driver.status(0), OK, "round {round}");
        assert_eq!(server.folder.read_image(round, 512), data);
        front_end.send_ok(REM_MEM_REG, &region, &[]);
    }
    // It was removed for the next one.
    driver.guest.write(Driver::status_at(0), &[PENDING]);
    driver.offer(0);
    driver.wait_used();
    assert_eq!(driver.status(0), IOERR);
}

/// A front end changes a region by removing it and adding it again. QEMU does so while a guest
/// boots, with rings and requests in it.
#[test]
fn a_region_that_is_removed_and_added_again_is_waited_for() {
    for tracked in [false, true] {
        let server = Server::new();
        let guest = Guest::new();
        let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
        guest.share(&mut front_end);
        if tracked {
            front_end.track(1, QUEUE_SIZE);
        }
        let mut driver = Driver::new(&guest, 0);
        driver.set_up(&mut front_end, 0);
        let region = longs(&[0, 0, MEMORY_BYTES, FRONT_END, 0]);
        for round in 0..300_u32 {
            let count = 1 + (round % 8) as u16;
            for slot in 0..count {
                let kind = if slot % 2 == 0 { READ } else { WRITE };
                driver.submit(slot, kind, u64::from(slot) * 8, 4096);
                if u32::from(slot) == round % 3 {
                    front_end.send_ok(REM_MEM_REG, &region, &[]);
                }
            }
            if u32::from(count) <= round % 3 {
                front_end.send_ok(REM_MEM_REG, &region, &[]);
            }
            front_end.send_ok(ADD_MEM_REG, &region, &[guest.file.as_fd()]);
            for _ in 0..count {
                let (head, _) = driver.wait_used();
                assert_eq!(driver.status(head as u16 / 4), OK, "round {round}");
            }
        }
        assert_eq!(front_end.get_base(0), driver.available);
        assert_eq!(driver.next_used(), None);
    }
}

/// As above with the rings elsewhere, so that requests are started while their data are missing.
#[test]
fn data_in_a_region_that_is_added_again_are_waited_for() {
    let server = Server::new();
    let guest = Guest::new();
    let more = Guest::new();
    let (mut front_end, mut driver) = started(&server, &guest, ALL);
    let far = 1 << 40;
    let region = longs(&[0, far, MEMORY_BYTES, FRONT_END + far, 0]);
    front_end.send_ok(ADD_MEM_REG, &region, &[more.file.as_fd()]);
    for slot in 0..100 {
        let (slot, sector) = (slot % SLOTS, u64::from(slot) * 8);
        let data = pattern(u32::from(slot), 4096);
        more.write(Driver::data_at(slot), &data);
        driver.header(slot, WRITE, sector);
        driver.describe(
            slot * 4,
            &[
                Desc(Driver::header_at(slot), 16, NEXT, slot * 4 + 1),
                Desc(far + Driver::data_at(slot), 4096, NEXT, slot * 4 + 2),
                Desc(Driver::status_at(slot), 1, WRITABLE, 0),
            ],
        );
        front_end.send_ok(REM_MEM_REG, &region, &[]);
        driver.offer(slot * 4);
        // Later requests are not lost.
        let behind = (slot + 1) % SLOTS;
        driver.submit(behind, FLUSH, 0, 0);
        front_end.send_ok(ADD_MEM_REG, &region, &[more.file.as_fd()]);
        for _ in 0..2 {
            let (head, _) = driver.wait_used();
            assert_eq!(driver.status(head as u16 / 4), OK);
        }
        assert_eq!(server.folder.read_image(sector, 4096), data);
    }
    // Halted while a request waits, the ring continues with that request.
    front_end.send_ok(REM_MEM_REG, &region, &[]);
    let before = driver.available;
    driver.guest.write(Driver::status_at(3), &[PENDING]);
    driver.offer(3 * 4);
    let base = front_end.get_base(0);
    front_end.send_ok(ADD_MEM_REG, &region, &[more.file.as_fd()]);
    if base == before {
        driver.set_up(&mut front_end, base);
        driver.wait_used();
        assert_eq!(driver.status(3), OK);
    }
}

#[test]
fn a_second_front_end_is_rejected_and_may_reconnect() {
    let server = Server::new();
    let guest = Guest::new();
    let (first, mut driver) = started(&server, &guest, ALL);
    for _ in 0..200 {
        let second = std::os::unix::net::UnixStream::connect(server.path()).unwrap();
        let mut byte = [0; 1];
        let read = std::io::Read::read(&mut (&second), &mut byte).unwrap();
        assert_eq!(read, 0, "it is turned away");
    }
    server.wait_for_message("was rejected, because one is connected");
    assert_eq!(driver.run(0, READ, 0, 512).0, OK);
    drop(first);
    let (_third, mut driver) = started(&server, &guest, ALL);
    assert_eq!(driver.run(0, READ, 0, 512).0, OK);
}

#[test]
fn a_panic_ends_only_its_connection() {
    let panics = |options: &mut VhostOptions| {
        let log_line = Arc::clone(&options.log_line);
        options.log_line = Arc::new(move |message: &str| {
            log_line(message);
            assert!(!message.contains("was rejected"), "as is to be tested");
        });
    };
    let server = Server::with(|_| {}, panics);
    let guest = Guest::new();
    let (first, mut driver) = started(&server, &guest, ALL);
    assert_eq!(driver.run(0, READ, 0, 512).0, OK);
    let _second = std::os::unix::net::UnixStream::connect(server.path()).unwrap();
    server.wait_for_message("its thread panicked");
    drop(first);
    let (_third, mut driver) = started(&server, &guest, ALL);
    assert_eq!(driver.run(0, READ, 0, 512).0, OK);
}

#[test]
fn requests_in_flight_end_when_the_front_end_disconnects_or_the_tap_stops() {
    let mut server = Server::new();
    let guest = Guest::new();
    for stop in [false, true] {
        let (front_end, mut driver) = started(&server, &guest, ALL);
        for slot in 0..SLOTS {
            driver.submit(slot, READ, u64::from(slot), 4096);
        }
        match stop {
            false => drop(front_end),
            true => server.stop(),
        }
        server.wait_for_message(if stop { "shutting down" } else { "has left" });
        let mut ended = 0;
        while driver.next_used().is_some() {
            ended += 1;
        }
        let counters = server.disk.counters();
        assert_eq!(counters.in_flight, 0);
        assert_eq!(ended, front(&driver), "what was taken has ended");
    }
    assert!(!server.path().exists());
}

/// The number of requests with a status.
fn front(driver: &Driver) -> usize {
    (0..SLOTS)
        .filter(|slot| driver.status(*slot) != PENDING)
        .count()
}
