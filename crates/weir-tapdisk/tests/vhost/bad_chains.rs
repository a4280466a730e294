//! Malicious or faulty guests: each gets an error, and other queues are not affected.

use super::*;
use crate::server::Server;

/// The expected effect of a guest's chain.
enum Expected {
    /// The request ends with this status.
    Ends(u8),
    /// The queue breaks.
    Breaks,
}

use Expected::{Breaks, Ends};

const HEADER: Desc = Desc(0x40_0000, 16, NEXT, 1);
const STATUS_AT: u64 = 0x40_0010;
const STATUS: Desc = Desc(STATUS_AT, 1, WRITABLE, 0);
const DATA: u64 = 0x40_1000;
/// A table of descriptors in the guest's memory.
const TABLE: u64 = 0x60_0000;
const NOWHERE: u64 = 1 << 50;

/// Chains that begin with descriptor 0, of requests of a kind at a sector, whose status is at
/// `STATUS_AT` if they have one.
fn chains() -> Vec<(&'static str, u32, u64, Vec<Desc>, Expected)> {
    let data = |bytes, flags| Desc(DATA, bytes, NEXT | flags, 2);
    let all = |second| vec![HEADER, second, STATUS];
    let end = SECTORS;
    vec![
        (
            "no status",
            WRITE,
            0,
            vec![HEADER, Desc(DATA, 512, 0, 0)],
            Breaks,
        ),
        (
            "nothing to write at all",
            FLUSH,
            0,
            vec![Desc(DATA, 16, 0, 0)],
            Breaks,
        ),
        (
            "a status nowhere",
            FLUSH,
            0,
            vec![HEADER, Desc(NOWHERE, 1, WRITABLE, 0)],
            Breaks,
        ),
        (
            "a status at the end of the address space",
            READ,
            0,
            vec![HEADER, Desc(u64::MAX - 3, 512, WRITABLE, 0)],
            Breaks,
        ),
        (
            "a loop",
            READ,
            0,
            vec![HEADER, Desc(DATA, 512, NEXT | WRITABLE, 0)],
            Breaks,
        ),
        (
            "itself",
            READ,
            0,
            vec![Desc(0x40_0000, 16, NEXT, 0)],
            Breaks,
        ),
        (
            "a successor that is not there",
            READ,
            0,
            vec![Desc(0x40_0000, 16, NEXT, 128)],
            Breaks,
        ),
        (
            "the last number there is",
            READ,
            0,
            vec![Desc(0x40_0000, 16, NEXT, 0xffff)],
            Breaks,
        ),
        (
            "a table nowhere",
            READ,
            0,
            vec![Desc(NOWHERE, 64, INDIRECT, 0)],
            Breaks,
        ),
        (
            "a table that ends nowhere",
            READ,
            0,
            vec![Desc(MEMORY_BYTES - 16, 64, INDIRECT, 0)],
            Breaks,
        ),
        (
            "a table of no length",
            READ,
            0,
            vec![Desc(TABLE, 0, INDIRECT, 0)],
            Breaks,
        ),
        (
            "a table of half a descriptor",
            READ,
            0,
            vec![Desc(TABLE, 24, INDIRECT, 0)],
            Breaks,
        ),
        (
            "a giant table",
            READ,
            0,
            vec![Desc(TABLE, !15, INDIRECT, 0)],
            Breaks,
        ),
        (
            "a table with a successor",
            READ,
            0,
            vec![Desc(TABLE, 48, INDIRECT | NEXT, 1), STATUS],
            Breaks,
        ),
        (
            "data nowhere",
            READ,
            0,
            all(Desc(NOWHERE, 512, NEXT | WRITABLE, 2)),
            Ends(IOERR),
        ),
        (
            "data that end nowhere",
            READ,
            0,
            all(Desc(MEMORY_BYTES - 256, 512, NEXT | WRITABLE, 2)),
            Ends(IOERR),
        ),
        (
            "data around the address space",
            READ,
            0,
            all(Desc(u64::MAX - 255, 512, NEXT | WRITABLE, 2)),
            Ends(IOERR),
        ),
        (
            "a header nowhere",
            READ,
            0,
            vec![Desc(NOWHERE, 16, NEXT, 1), STATUS],
            Ends(IOERR),
        ),
        (
            "half a header",
            READ,
            0,
            vec![Desc(0x40_0000, 8, NEXT, 1), STATUS],
            Ends(IOERR),
        ),
        (
            "no header",
            READ,
            0,
            vec![Desc(DATA, 512, WRITABLE | NEXT, 1), STATUS],
            Ends(IOERR),
        ),
        (
            "giant data",
            READ,
            0,
            all(data(u32::MAX, WRITABLE)),
            Ends(IOERR),
        ),
        (
            "data of no length",
            READ,
            0,
            all(data(0, WRITABLE)),
            Ends(IOERR),
        ),
        (
            "no data to read",
            READ,
            0,
            vec![HEADER, STATUS],
            Ends(IOERR),
        ),
        (
            "no data to write",
            WRITE,
            0,
            vec![HEADER, STATUS],
            Ends(IOERR),
        ),
        (
            "a read into what is to be read",
            READ,
            0,
            all(data(512, 0)),
            Ends(IOERR),
        ),
        (
            "a write of what is to be written",
            WRITE,
            0,
            all(data(512, WRITABLE)),
            Ends(IOERR),
        ),
        (
            "part of a sector",
            READ,
            0,
            all(data(100, WRITABLE)),
            Ends(IOERR),
        ),
        (
            "the sector behind the last",
            READ,
            end,
            all(data(512, WRITABLE)),
            Ends(IOERR),
        ),
        (
            "across the end",
            WRITE,
            end - 1,
            all(data(1024, 0)),
            Ends(IOERR),
        ),
        (
            "sectors beyond all numbers",
            WRITE,
            u64::MAX,
            all(data(512, 0)),
            Ends(IOERR),
        ),
        (
            "sectors beyond all bytes",
            READ,
            u64::MAX / 512,
            all(data(512, WRITABLE)),
            Ends(IOERR),
        ),
        (
            "to read behind to write",
            READ,
            0,
            vec![
                HEADER,
                Desc(DATA, 512, NEXT | WRITABLE, 2),
                Desc(DATA, 512, NEXT, 3),
                STATUS,
            ],
            Ends(IOERR),
        ),
        (
            "a command of SCSI",
            2,
            0,
            all(data(512, WRITABLE)),
            Ends(UNSUPP),
        ),
        ("a lifetime", 10, 0, all(data(40, WRITABLE)), Ends(UNSUPP)),
        ("a secure erase", 14, 0, all(data(16, 0)), Ends(UNSUPP)),
        ("a zone", 16, 0, all(data(512, WRITABLE)), Ends(UNSUPP)),
        (
            "no known command",
            0xdead_beef,
            0,
            vec![HEADER, STATUS],
            Ends(UNSUPP),
        ),
    ]
}

#[test]
fn a_bad_chain_is_an_error_for_its_guest() {
    let server = Server::new();
    let guest = Guest::new();
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    guest.share(&mut front_end);
    let mut other = Driver::new(&guest, 1);
    other.set_up(&mut front_end, 0);
    let before = std::fs::read(server.folder.image()).unwrap();
    for (name, kind, sector, descriptors, fate) in chains() {
        let mut driver = Driver::new(&guest, 0);
        driver.set_up(&mut front_end, 0);
        driver.header(0, kind, sector);
        driver.describe(0, &descriptors);
        driver.offer(0);
        match fate {
            Ends(status) => {
                assert_eq!(driver.wait_used(), (0, 1), "{name}");
                assert_eq!(driver.status(0), status, "{name}");
                assert_eq!(driver.run(3, READ, 0, 512).0, OK, "after {name}");
            }
            Breaks => {
                driver.wait_broken();
                assert_eq!(driver.next_used(), None, "{name}");
                // It stays broken until it is set up again.
                driver.submit(3, READ, 0, 512);
            }
        }
        let slot = SLOTS - 1;
        assert_eq!(other.run(slot, READ, 0, 512).0, OK, "beside {name}");
        front_end.get_base(0);
        assert_eq!(driver.next_used(), None, "{name}");
    }
    assert_eq!(std::fs::read(server.folder.image()).unwrap(), before);
    assert_eq!(server.disk.counters().in_flight, 0);
}

#[test]
fn nested_tables_and_long_chains_break_only_their_queue() {
    let server = Server::new();
    let guest = Guest::new();
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    guest.share(&mut front_end);
    let nested = vec![Desc(TABLE, 64, INDIRECT, 0); 4];
    let circle: Vec<Desc> = (0..1024)
        .map(|i| Desc(DATA, 1, NEXT, (i + 1) % 1024))
        .collect();
    let outside = vec![Desc(DATA, 1, NEXT, 4); 4];
    for table in [nested, circle, outside] {
        let mut driver = Driver::new(&guest, 0);
        driver.set_up(&mut front_end, 0);
        let bytes: Vec<u8> = table.iter().flat_map(|d| d.bytes()).collect();
        guest.write(TABLE, &bytes);
        driver.describe(0, &[Desc(TABLE, bytes.len() as u32, INDIRECT, 0)]);
        driver.offer(0);
        driver.wait_broken();
        front_end.get_base(0);
    }
    // Without the feature such tables are invalid.
    drop(front_end);
    let (_front_end, mut driver) = started(&server, &guest, F_VERSION_1);
    driver.describe(0, &[Desc(TABLE, 64, INDIRECT, 0)]);
    driver.offer(0);
    driver.wait_broken();
}

#[test]
fn inconsistent_rings_break_only_their_queue() {
    let server = Server::new();
    let guest = Guest::new();
    let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
    guest.share(&mut front_end);
    type Lie = fn(&mut Driver);
    let lies: [(&str, Lie); 4] = [
        ("more than there is room for", |driver| {
            driver.guest.store(driver.avail_ring() + 2, QUEUE_SIZE + 1);
        }),
        ("backwards", |driver| {
            driver.guest.store(driver.avail_ring() + 2, 0xffff)
        }),
        ("a head that is not there", |driver| {
            driver.offer_quietly(QUEUE_SIZE)
        }),
        ("the same twice", |driver| {
            // It is still in flight when it is offered again: both are processed at once.
            driver.submit(0, READ, 0, 512);
            driver.offer_quietly(0);
        }),
    ];
    for (name, lie) in lies {
        let mut driver = Driver::new(&guest, 0);
        let queue = u32::from(driver.index);
        driver.set_up(&mut front_end, 0);
        front_end.send_ok(SET_VRING_ENABLE, &words(&[queue, 0]), &[]);
        lie(&mut driver);
        front_end.send_ok(SET_VRING_ENABLE, &words(&[queue, 1]), &[]);
        driver.kick();
        driver.wait_broken();
        front_end.get_base(0);
        let mut driver = Driver::new(&guest, 0);
        driver.set_up(&mut front_end, 0);
        assert_eq!(driver.run(1, READ, 0, 512).0, OK, "after {name}");
        front_end.get_base(0);
    }
}

/// Accessing memory beyond the end of its file usually kills the process.
#[test]
fn truncated_memory_breaks_only_its_queue() {
    let server = Server::new();
    for bytes in [0, 0x1_4000] {
        let guest = Guest::new();
        let (mut front_end, mut driver) = started(&server, &guest, ALL);
        let tracking = front_end.track(1, QUEUE_SIZE);
        assert_eq!(driver.run(0, READ, 0, 512).0, OK);
        // Descriptors are at 0x1_0000, the available ring at 0x1_4000.
        rustix::fs::ftruncate(&guest.file, bytes).unwrap();
        driver.kick();
        driver.wait_broken();
        drop(front_end);
        let guest = Guest::new();
        let mut front_end = FrontEnd::negotiate(&server.path(), ALL);
        guest.share(&mut front_end);
        let other = tracking.file.set_len(0);
        assert!(other.is_err(), "what we make cannot be cut off");
        let mut driver = Driver::new(&guest, 0);
        driver.set_up(&mut front_end, 0);
        assert_eq!(driver.run(0, READ, 0, 512).0, OK);
    }
}
