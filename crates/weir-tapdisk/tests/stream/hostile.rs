//! A peer that misbehaves at the tap's socket or in its memory only affects itself.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_tap::TapError;
use weir_tap::control::message::encode_request;
use weir_tap::tapdisk::words::{Answer, Ask, Tapdisk, Wanted};
use weir_tap::tapdisk::{ClientError, TapdiskClient, open};
use weir_testing::wait_until;

use super::simulated_queues::{
    Received, SimulatedQueue, TestTap, all, assert_same, count, options,
};

fn records() -> Ask {
    Ask::Records(Wanted::of(&all(), 1 << 20))
}

#[test]
fn garbage_in_the_memory_affects_no_other_consumer() {
    let mut test_tap = TestTap::new(1);
    let mut client = TapdiskClient::connect(&test_tap.scratch.socket()).unwrap();
    assert!(matches!(client.ask(records()), Ok(Answer::Records(_))));
    let memory = File::from(client.passed().unwrap());
    let length = memory.metadata().unwrap().size();
    assert!(memory.set_len(length / 2).is_err(), "nobody can shrink it");
    assert!(memory.set_len(length * 2).is_err());
    let mut tap = test_tap.open(&all(), 64 << 20);
    let stop = Arc::new(AtomicBool::new(false));
    let scribbler = {
        let stop = stop.clone();
        thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(77);
            // The header, the I/O queues' state and the first rings.
            let words = (length / 8).min(64 << 10);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    let word = match random.u64(..3) {
                        0 => random.u64(..1 << 62).wrapping_mul(5),
                        1 => u64::MAX,
                        _ => random.u64(..10),
                    };
                    let at = random.u64(..words) * 8;
                    memory.write_all_at(&word.to_ne_bytes(), at).unwrap();
                }
                thread::yield_now();
            }
        })
    };
    let recorded = SimulatedQueue::new(&test_tap.hub, 0, 0, 1).run(20_000);
    stop.store(true, Ordering::Relaxed);
    scribbler.join().unwrap();
    test_tap.end();
    let mut received = Received::default();
    received.receive_until(&mut tap, |_| false);
    assert_eq!(count(&mut tap, "events_lost"), 0);
    assert_same(recorded, received.rows);
}

#[test]
fn endless_or_malformed_messages_end_only_their_connection() {
    let test_tap = TestTap::new(1);
    let mut steady = TapdiskClient::connect(&test_tap.scratch.socket()).unwrap();
    let connect = || UnixStream::connect(test_tap.scratch.socket()).unwrap();
    let mut endless = connect();
    let wrote = (0..1_000).try_for_each(|_| endless.write_all(&[b'x'; 4096]));
    assert!(wrote.is_err(), "it was let go");
    let mut senseless = connect();
    for text in [
        &b"\xff\xfe{"[..],
        br#"{"service":"tapdisk","version":1,"body":{"request":{}}}"#,
        br#"{"service":"tapdisk","version":2,"body":{"request":"status"}}"#,
    ] {
        let length = (text.len() as u32).to_le_bytes();
        senseless.write_all(&length).unwrap();
        senseless.write_all(text).unwrap();
    }
    senseless
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let (mut received, mut received_text) = (Vec::new(), String::new());
    while received_text.matches("\"error\"").count() < 3 {
        let mut bytes = [0; 4096];
        let read = senseless.read(&mut bytes).unwrap();
        assert!(read > 0, "{received_text}");
        received.extend_from_slice(&bytes[..read]);
        received_text = String::from_utf8_lossy(&received).into_owned();
    }
    assert_eq!(
        received_text.matches("malformed").count(),
        2,
        "{received_text}"
    );
    assert!(
        received_text.contains("version 2 of the tapdisk protocol"),
        "{received_text}"
    );
    assert!(matches!(steady.ask(Ask::Status), Ok(Answer::Status(_))));
}

#[test]
fn a_client_that_never_reads_is_disconnected_and_others_are_served() {
    let test_tap = TestTap::new(200);
    let mut deaf = UnixStream::connect(test_tap.scratch.socket()).unwrap();
    deaf.set_nonblocking(true).unwrap();
    let request = encode_request::<Tapdisk>(&Ask::Status).unwrap();
    // Until neither side accepts more.
    while deaf.write_all(&request).is_ok() {}
    let mut steady = TapdiskClient::connect(&test_tap.scratch.socket()).unwrap();
    for _ in 0..10 {
        assert!(matches!(steady.ask(Ask::Status), Ok(Answer::Status(_))));
    }
}

#[test]
fn a_thousand_connections_do_not_exclude_other_clients() {
    let test_tap = TestTap::new(1);
    let mut crowd = Vec::new();
    for _ in 0..1_000 {
        // The kernel rejects more than may wait at a time.
        crowd.extend(UnixStream::connect(test_tap.scratch.socket()));
        if crowd.len() > 300 {
            crowd.drain(..100);
        }
    }
    let mut client = TapdiskClient::connect(&test_tap.scratch.socket());
    while matches!(&client, Err(ClientError::System(e)) if e.kind() == std::io::ErrorKind::WouldBlock)
    {
        thread::sleep(Duration::from_millis(5));
        client = TapdiskClient::connect(&test_tap.scratch.socket());
    }
    let status = client.unwrap().ask(Ask::Status);
    assert!(matches!(status, Ok(Answer::Status(_))), "{status:?}");
}

#[test]
fn the_number_of_consumers_is_bounded() {
    let test_tap = TestTap::new(1);
    let mut taps: Vec<_> = (0..8).map(|_| test_tap.open(&all(), 1 << 20)).collect();
    let socket = test_tap.scratch.socket();
    let refused = open(&socket, &all(), options(0)).err();
    let Some(TapError::Unavailable { what, .. }) = &refused else {
        panic!("{refused:?}");
    };
    assert!(
        what.contains("the limit of 8 consumers is reached"),
        "{what}"
    );
    taps.pop();
    let consumers = || test_tap.hub.status().consumers.len();
    wait_until("a consumer has left", || consumers() == 7);
    taps.push(test_tap.open(&all(), 1 << 20));
    // A second request for records on one connection is rejected as well.
    taps.clear();
    wait_until("all consumers have left", || consumers() == 0);
    let mut client = TapdiskClient::connect(&socket).unwrap();
    assert!(client.ask(records()).is_ok());
    assert!(matches!(
        client.ask(records()),
        Err(ClientError::Refused(_))
    ));
}
