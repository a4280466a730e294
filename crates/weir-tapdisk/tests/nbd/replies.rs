//! The effect of each request, and its reply.

use weir_model::Op;
use weir_tapdisk::DiskOptions;
use weir_tapdisk::inject::Injections;
use weir_tapdisk::nbd::NbdOptions;

use crate::client::{Ask, Client, DISCONNECT, FLUSH, FUA, READ, TRIM, WRITE, WRITE_ZEROES};
use crate::server::{TestServer, noise};

const BLOCK: u32 = 4096;

fn at(kind: u16, cookie: u64, offset: u64, length: u32) -> Ask {
    Ask {
        flags: 0,
        kind,
        cookie,
        offset,
        length,
    }
}

#[test]
fn written_data_are_in_the_image_and_are_read_again() {
    for structured in [false, true] {
        let server = TestServer::new(4);
        let mut client = Client::new(server.connect(), "disk", structured);
        assert_eq!(client.size_bytes, 4 << 20);
        let data = noise(3 * BLOCK as usize, 1);
        let write = at(WRITE, 1, 8192, 3 * BLOCK);
        assert_eq!(client.ask(write, &data).error, 0);
        let fua = Ask {
            flags: FUA,
            ..at(WRITE, 2, 1 << 20, 3 * BLOCK)
        };
        assert_eq!(client.ask(fua, &data).error, 0);
        assert_eq!(client.ask(at(READ, 3, 8192, 3 * BLOCK), &[]).data, data);
        let part = client.ask(at(READ, 4, 8192 + 512, 512), &[]).data;
        assert_eq!(part, data[512..1024]);
        assert_eq!(client.ask(at(FLUSH, 5, 0, 0), &[]).error, 0);
        assert_eq!(client.ask(at(WRITE_ZEROES, 6, 8192, BLOCK), &[]).error, 0);
        let mut expected = data.clone();
        expected[..BLOCK as usize].fill(0);
        assert_eq!(client.ask(at(READ, 7, 8192, 3 * BLOCK), &[]).data, expected);
        let trimmed = client.ask(at(TRIM, 8, 1 << 20, BLOCK), &[]).error;
        assert!(
            [0, 95].contains(&trimmed),
            "done, or not supported: {trimmed}"
        );
        let content = server.content("disk");
        assert_eq!(content[8192..][..expected.len()], expected);
        assert_eq!(
            content[(1 << 20) + BLOCK as usize..][..8192],
            data[BLOCK as usize..]
        );
        client.send(&at(DISCONNECT, 9, 0, 0).bytes());
        client.ends();
        let counted = server.disks[0].counters();
        assert_eq!(
            (
                counted.of(Op::Read).requests,
                counted.of(Op::Write).requests
            ),
            (3, 2)
        );
        assert_eq!((counted.of(Op::Flush).requests, counted.in_flight), (1, 0));
    }
}

#[test]
fn invalid_requests_fail_alone_and_are_counted() {
    for structured in [false, true] {
        let server = TestServer::new(1);
        let mut client = Client::new(server.connect(), "disk", structured);
        let size = client.size_bytes;
        let mut error = |ask: Ask, data: &[u8]| {
            let next_reply = client.ask(ask, data);
            assert_eq!(
                next_reply.message.is_empty(),
                !structured || next_reply.error == 0
            );
            next_reply.error
        };
        assert_eq!(error(at(READ, 1, size, BLOCK), &[]), 22);
        assert_eq!(error(at(READ, 2, 1, BLOCK), &[]), 22);
        assert_eq!(
            error(at(READ, 3, 0, (32 << 20) + 512), &[]),
            22,
            "beyond the end too"
        );
        // The data of a rejected write are skipped.
        assert_eq!(error(at(WRITE, 4, size - 512, 1024), &noise(1024, 2)), 28);
        assert_eq!(error(at(WRITE, 5, u64::MAX - 511, 512), &noise(512, 2)), 28);
        assert_eq!(error(at(99, 6, 0, 0), &[]), 22, "no such command");
        assert_eq!(
            error(at(WRITE, 7, 0, 512), &noise(512, 3)),
            0,
            "and on it goes"
        );
        let counted = server.disks[0].counters();
        assert_eq!(counted.of(Op::Read).errors, 3);
        assert_eq!(
            (counted.of(Op::Write).errors, counted.of(Op::Write).requests),
            (2, 3)
        );
    }
}

#[test]
fn a_read_only_export_is_not_written() {
    let read_only = |options: DiskOptions| DiskOptions {
        read_only: true,
        ..options
    };
    let server = TestServer::with(1, read_only);
    let mut client = Client::new(server.connect(), "", true);
    assert_eq!(
        client.flags & 0b0110_0010,
        0b10,
        "read-only, no trim, no zeroes"
    );
    for kind in [WRITE, TRIM, WRITE_ZEROES] {
        let data = if kind == WRITE {
            noise(512, 1)
        } else {
            Vec::new()
        };
        let next_reply = client.ask(at(kind, 1, 0, 512), &data);
        assert_eq!(
            (next_reply.error, next_reply.message.as_str()),
            (1, "the export is read-only")
        );
    }
    assert_eq!(client.ask(at(READ, 2, 0, 512), &[]).data, [0; 512]);
}

#[test]
fn an_error_of_the_image_is_an_error_of_its_request_only() {
    for structured in [false, true] {
        let failing = |options: DiskOptions| DiskOptions {
            injections: Injections {
                errors: vec!["EIO,op=r,sectors=8..16".parse().unwrap()],
                ..Injections::default()
            },
            ..options
        };
        let server = TestServer::with(1, failing);
        let mut client = Client::new(server.connect(), "disk", structured);
        let next_reply = client.ask(at(READ, 1, 4096, 4096), &[]);
        assert_eq!((next_reply.error, next_reply.data.len()), (5, 0));
        assert_eq!(client.ask(at(READ, 2, 8192, 4096), &[]).data, [0; 4096]);
    }
}

#[test]
fn many_requests_in_flight_receive_their_own_replies() {
    // More than a connection may have open, so that it must wait.
    const REQUESTS: u64 = 1000;
    let server = TestServer::new(8);
    let mut client = Client::new(server.connect(), "disk", true);
    let data = |n: u64| noise(BLOCK as usize, n);
    let mut writer = client.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        use std::io::Write;
        for n in 0..REQUESTS {
            let ask = at(WRITE, n, n * u64::from(BLOCK), BLOCK);
            writer.write_all(&[ask.bytes(), data(n)].concat()).unwrap();
        }
    });
    let mut seen: Vec<u64> = (0..REQUESTS)
        .map(|_| client.next_reply(0))
        .map(|next_reply| {
            assert_eq!(next_reply.error, 0);
            next_reply.cookie
        })
        .collect();
    sending.join().unwrap();
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..REQUESTS));
    let asks: Vec<u8> = (0..REQUESTS)
        .flat_map(|n| at(READ, n, n * u64::from(BLOCK), BLOCK).bytes())
        .collect();
    // All requests first, and only then the replies: the server buffers up to its limit, and waits.
    let mut writer = client.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        use std::io::Write;
        writer.write_all(&asks).unwrap();
    });
    std::thread::sleep(std::time::Duration::from_millis(50));
    for _ in 0..REQUESTS {
        let next_reply = client.next_reply(BLOCK);
        assert_eq!(
            next_reply.data,
            data(next_reply.cookie),
            "{}",
            next_reply.cookie
        );
    }
    sending.join().unwrap();
}

#[test]
fn the_largest_request_is_served_and_a_larger_one_is_rejected() {
    const LARGEST: u32 = 32 << 20;
    let server = TestServer::new(40);
    let mut client = Client::new(server.connect(), "disk", true);
    let data = noise(LARGEST as usize, 7);
    assert_eq!(client.ask(at(WRITE, 1, 1 << 20, LARGEST), &data).error, 0);
    assert!(client.ask(at(READ, 2, 1 << 20, LARGEST), &[]).data == data);
    assert_eq!(client.ask(at(READ, 3, 0, LARGEST + 512), &[]).error, 75);
    let more = vec![0; LARGEST as usize + 512];
    assert_eq!(client.ask(at(WRITE, 4, 0, LARGEST + 512), &more).error, 75);
    assert!(client.ask(at(READ, 5, 1 << 20, LARGEST), &[]).data == data);
}

#[test]
fn each_disk_is_an_export_and_a_connection_uses_one() {
    let server = TestServer::of(&["vda", "vdb"], 1, |o| o, NbdOptions::default(), None);
    let mut a = Client::new(server.connect(), "vda", true);
    let mut b = Client::new(server.connect(), "vdb", false);
    let data = noise(512, 1);
    assert_eq!(a.ask(at(WRITE, 1, 0, 512), &data).error, 0);
    assert_eq!(b.ask(at(READ, 2, 0, 512), &[]).data, [0; 512]);
    // Another connection to the first one reads what was written there.
    let mut again = Client::new(server.connect(), "vda", false);
    assert_eq!(again.ask(at(READ, 3, 0, 512), &[]).data, data);
    assert_eq!(server.disks[1].counters().of(Op::Write).requests, 0);
}

#[test]
fn a_stop_waits_for_requests_in_flight() {
    let slow = |options: DiskOptions| DiskOptions {
        injections: Injections {
            delays: vec!["300ms,op=w".parse().unwrap()],
            ..Injections::default()
        },
        ..options
    };
    let mut server = TestServer::with(1, slow);
    let mut client = Client::new(server.connect(), "disk", true);
    let data = noise(512, 9);
    client.send(&[at(WRITE, 1, 0, 512).bytes(), data.clone()].concat());
    weir_testing::wait_until("the write is under way", || {
        server.disks[0].counters().in_flight > 0
    });
    server.stop();
    assert_eq!(client.next_reply(0).error, 0, "it is done and answered");
    client.ends();
    server.join();
    assert_eq!(server.content("disk")[..512], data);
    assert!(!server.socket().exists(), "the socket is gone");
}
