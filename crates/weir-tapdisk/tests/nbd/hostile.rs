//! Clients that are broken, slow, or gone do not affect others.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use weir_tapdisk::DiskOptions;
use weir_tapdisk::nbd::NbdOptions;
use weir_testing::wait_until;

use crate::client::{Ask, Client, FLUSH, READ, WRITE, exactly, option};
use crate::server::{TestServer, noise};

/// A correct client is served, whatever others do.
fn serves(server: &TestServer, seed: u64) {
    let mut client = Client::new(server.connect(), "disk", true);
    let data = noise(4096, seed);
    let ask = |kind| Ask {
        kind,
        cookie: seed,
        offset: 4096 * (seed % 100),
        length: 4096,
        flags: 0,
    };
    assert_eq!(client.ask(ask(WRITE), &data).error, 0);
    assert_eq!(client.ask(ask(READ), &[]).data, data);
}

fn is_closed(mut stream: UnixStream) {
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut rest = Vec::new();
    if let Err(error) = stream.read_to_end(&mut rest) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
}

/// Requests more than a socket holds.
const MUCH: Ask = Ask {
    kind: READ,
    cookie: 1,
    offset: 0,
    length: 1 << 20,
    flags: 0,
};

#[test]
fn input_that_is_not_nbd_ends_the_connection() {
    let server = TestServer::new(1);
    let bad: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 100],
        &[&[0, 0, 0, 3], &[0; 16][..]].concat(),
        &[&[0, 0, 0, 3][..], &option(7, &[0; 16])[..8], &[0xff; 8]].concat(),
    ];
    for bytes in bad {
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        is_closed(stream);
    }
    // Past the handshake as well.
    let mut client = Client::new(server.connect(), "disk", true);
    client.send(&noise(1000, 3));
    is_closed(client.stream);
    serves(&server, 1);
}

#[test]
fn a_client_that_disconnects_midway_leaves_nothing_behind() {
    let server = TestServer::new(1);
    let write = Ask {
        kind: WRITE,
        cookie: 1,
        offset: 0,
        length: 8192,
        flags: 0,
    };
    let whole = [write.bytes(), vec![1; 8192]].concat();
    for cut in [1, 27, 28, 29, 5000, whole.len() - 1] {
        let mut client = Client::new(server.connect(), "disk", true);
        client.send(&whole[..cut]);
        drop(client);
    }
    // After a whole request, without waiting for its reply.
    let mut client = Client::new(server.connect(), "disk", true);
    client.send(&whole);
    drop(client);
    serves(&server, 2);
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while server.content("disk")[..8192] != [1; 8192] {
        assert!(
            std::time::Instant::now() < until,
            "a whole request is carried out"
        );
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.disks[0].counters().in_flight, 0);
}

#[test]
fn a_client_that_closes_its_side_still_receives_replies() {
    let server = TestServer::new(1);
    let mut client = Client::new(server.connect(), "disk", true);
    let read = |cookie| Ask {
        kind: READ,
        cookie,
        offset: 0,
        length: 65536,
        flags: 0,
    };
    let asks: Vec<u8> = (0..50).flat_map(|cookie| read(cookie).bytes()).collect();
    client.send(&asks);
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    for _ in 0..50 {
        assert_eq!(client.next_reply(65536).data.len(), 65536);
    }
    is_closed(client.stream);
}

#[test]
fn clients_that_do_not_read_or_finish_delay_no_others() {
    let server = TestServer::new(1);
    let mut idle = Vec::new();
    for number in 0..8 {
        let mut client = Client::new(server.connect(), "disk", true);
        if number % 2 == 0 {
            // Requests much and reads none of it.
            client.stream.set_nonblocking(true).unwrap();
            while client.stream.write_all(&MUCH.bytes()).is_ok() {}
        } else {
            // Announces much and sends little of it.
            let write = Ask {
                kind: WRITE,
                cookie: 1,
                offset: 0,
                length: 1 << 20,
                flags: 0,
            };
            client.send(&[write.bytes(), vec![0; 100]].concat());
        }
        idle.push(client);
    }
    for seed in 0..20 {
        serves(&server, seed);
    }
}

#[test]
fn a_stop_does_not_wait_for_clients_that_do_not_read() {
    let mut server = TestServer::new(1);
    let client = Client::new(server.connect(), "disk", true);
    client.stream.set_nonblocking(true).unwrap();
    while (&client.stream).write_all(&MUCH.bytes()).is_ok() {}
    server.stop();
    // The test harness would wait for ever.
    server.join();
}

#[test]
fn surplus_clients_are_rejected_until_a_slot_is_free() {
    let options = NbdOptions {
        connections_max: 3,
        ..NbdOptions::default()
    };
    let server = TestServer::of(&["disk"], 1, |o| o, options, None);
    let mut clients: Vec<Client> = (0..3)
        .map(|_| Client::new(server.connect(), "disk", true))
        .collect();
    is_closed(server.connect());
    clients.pop();
    // Its thread may need a moment to end.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let mut stream = server.connect();
        let mut greeting = [0; 18];
        if stream.read_exact(&mut greeting).is_ok() {
            break;
        }
        assert!(std::time::Instant::now() < until, "no room is made");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_slow_handshake_is_read_byte_by_byte() {
    let server = TestServer::new(1);
    let mut stream = server.connect();
    assert_eq!(exactly(&mut stream, 8), b"NBDMAGIC");
    let mut request = 3_u32.to_be_bytes().to_vec();
    request.extend(option(2, &[]));
    for byte in request {
        stream.write_all(&[byte]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    is_closed(stream);
}

#[test]
fn new_clients_replace_idle_ones_but_not_those_with_requests() {
    let options = NbdOptions {
        connections_max: 4,
        idle: Duration::from_millis(20),
        ..NbdOptions::default()
    };
    let slow = |mut disk: DiskOptions| {
        // Until the end of the test, whose stop does not wait for it.
        disk.injections.delays.push("3600s,op=f".parse().unwrap());
        disk
    };
    let server = TestServer::of(&["disk"], 1, slow, options, None);
    let read = Ask {
        kind: READ,
        cookie: 1,
        offset: 0,
        length: 4096,
        flags: 0,
    };
    let flush = Ask {
        kind: FLUSH,
        cookie: 2,
        offset: 0,
        length: 0,
        flags: 0,
    };
    // One that is idle after a request, like a VM; one whose request lasts; one that sends no
    // request; one that does not even choose an export.
    let mut quiet = Client::new(server.connect(), "disk", true);
    assert_eq!(quiet.ask(read, &[]).error, 0);
    let mut busy = Client::new(server.connect(), "disk", true);
    busy.send(&flush.bytes());
    wait_until("the flush is under way", || {
        server.disks[0].counters().in_flight > 0
    });
    let silent = Client::new(server.connect(), "disk", true);
    let mute = server.connect();
    // Each new client sends no request either, and is replaced by the next.
    let newcomers: Vec<Client> = (0..12).map(|_| eventually(&server)).collect();
    is_closed(silent.stream);
    is_closed(mute);
    assert_eq!(quiet.ask(read, &[]).error, 0, "it is still connected");
    assert_eq!(server.disks[0].counters().in_flight, 1);
    drop(newcomers);
    // Where all others are busy or have sent requests, the one that is idle longest is replaced.
    let mut asked: Vec<Client> = Vec::new();
    for _ in 0..6 {
        let mut client = eventually(&server);
        assert_eq!(client.ask(read, &[]).error, 0);
        asked.push(client);
    }
    is_closed(quiet.stream);
    assert_eq!(
        server.disks[0].counters().in_flight,
        1,
        "the busy one is served on"
    );
}

/// A client that is served in the end: until another one has been idle for long enough, it is
/// rejected.
fn eventually(server: &TestServer) -> Client {
    let until = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let stream = server.connect();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        if receives_greeting(&stream) {
            return Client::new(stream, "disk", true);
        }
        assert!(std::time::Instant::now() < until, "no room is made");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the server sends its greeting rather than closing the connection.
fn receives_greeting(stream: &UnixStream) -> bool {
    let mut byte = [0; 1];
    recv(stream, &mut byte[..], RecvFlags::PEEK).is_ok_and(|(read, _)| read > 0)
}
