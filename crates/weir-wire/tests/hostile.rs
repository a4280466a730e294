//! Whatever an attacker sends, a well-behaved agent and client are served meanwhile, and no
//! resources remain in use.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use arrow_flight::FlightData;
use prost::Message;
use support::agent::{Agent, hello, numbered};
use support::attacked_server::AttackedServer;
use support::authority::{Authority, Directory};
use support::random::Random;
use support::{Monitor, until};
use weir_wire::event::{ResultUpdate, Submit};
use weir_wire::message::{AgentBody, ColumnEncoding, FromAgent, RowsHeader, Texts, VERSION};
use weir_wire::{Client, Dial};

/// HTTP/2's connection preface (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame (RFC 9113, 6.5).
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Reads until the peer closes the connection.
fn ends(mut tcp: TcpStream) {
    let mut rest = Vec::new();
    // A reset counts as the end.
    if let Err(error) = tcp.read_to_end(&mut rest) {
        assert_ne!(
            error.kind(),
            std::io::ErrorKind::WouldBlock,
            "it is left open"
        );
    }
}

#[test]
fn random_bytes_are_rejected() {
    let mut attacked = AttackedServer::new(|o| o.limits.first_request_ms = 2_000);
    let mut numbers = Random::new(1);
    for round in 0..200 {
        let mut tcp = attacked.tcp();
        let noise = numbers.bytes(1 + round * 7);
        // Some start as valid HTTP/2, so that the noise reaches later stages.
        let begin: &[u8] = if round % 2 == 0 { PREFACE } else { b"" };
        let settings: &[u8] = if round % 4 == 0 { SETTINGS } else { b"" };
        // The server may have closed it meanwhile.
        let _ = tcp.write_all(&[begin, settings, &noise].concat());
        if round % 50 == 0 {
            attacked.serves();
            ends(tcp);
        }
    }
    attacked.nothing_remains();
}

#[test]
fn another_protocol_is_rejected() {
    let attacked = AttackedServer::new(|o| o.limits.first_request_ms = 2_000);
    // A truncated TLS 1.2 client hello.
    let client_hello = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
    let http1 = b"GET / HTTP/1.1\r\nHost: monitor\r\n\r\n";
    for words in [&client_hello[..], http1, b"\n", b"EHLO x\r\n"] {
        let mut tcp = attacked.tcp();
        tcp.write_all(words).unwrap();
        ends(tcp);
    }
    attacked.nothing_remains();
}

#[test]
fn plain_text_and_silence_on_a_tls_port_are_disconnected() {
    let directory = Directory::new();
    let authority = Authority::new(&directory, "authority");
    let tls = authority.server(&directory, None);
    let monitor = Monitor::local(|o| {
        o.tls = Some(tls);
        o.limits.tls_handshake_ms = 500;
    });
    let dial = Dial {
        authority: Some(authority.certificate.clone()),
        server_name: Some("localhost".to_owned()),
        ..monitor.dial()
    };
    let attacked = AttackedServer::with(monitor, dial);
    for words in [PREFACE, b"GET / HTTP/1.1\r\n\r\n", b"", &[22, 3, 1]] {
        let mut tcp = attacked.tcp();
        tcp.write_all(words).unwrap();
        ends(tcp);
    }
    let counted = |cause| attacked.monitor.counted("connections_closed", Some(cause));
    // A connection ends slightly before it is counted.
    until("all four are counted", || {
        counted("tls_failed") + counted("tls_slow") == 4
    });
    assert!(counted("tls_slow") >= 2);
    attacked.nothing_remains();
}

#[test]
fn thousands_of_half_open_connections_are_bounded() {
    let mut attacked = AttackedServer::new(|o| {
        o.limits.connections_max = 500;
        o.limits.first_request_ms = 5_000;
    });
    let mut half_open = Vec::new();
    for number in 0..3_000 {
        let mut tcp = attacked.tcp();
        // A third sends nothing, a third only the HTTP/2 preface, a third a part of it.
        let begin = [b"", PREFACE, &PREFACE[..5]][number % 3];
        // It may have been closed for others already.
        let _ = tcp.write_all(begin);
        half_open.push(tcp);
        if number % 1_000 == 999 {
            attacked.serves();
            assert!(attacked.monitor.server.connections() <= 500);
        }
    }
    assert!(
        attacked
            .monitor
            .counted("connections_closed", Some("made_room"))
            >= 2_400
    );
    until("those without a request are let go", || {
        attacked.monitor.server.connections() <= 2
    });
    assert!(
        attacked
            .monitor
            .counted("connections_closed", Some("no_request"))
            >= 1
    );
    attacked.nothing_remains();
    drop(half_open);
}

#[test]
fn slow_senders_are_disconnected() {
    let mut attacked = AttackedServer::new(|o| o.limits.first_request_ms = 1_000);
    let mut tcp = attacked.tcp();
    // Repeated SETTINGS frames keep the connection alive without a request.
    tcp.write_all(PREFACE).unwrap();
    until("the drip is cut off", || {
        std::thread::sleep(Duration::from_millis(20));
        tcp.write_all(SETTINGS).is_err()
    });
    attacked.serves();
    assert_eq!(
        attacked
            .monitor
            .counted("connections_closed", Some("no_request")),
        1
    );
    attacked.nothing_remains();
}

#[test]
fn oversized_frames_and_messages_are_rejected() {
    let mut attacked = AttackedServer::new(|_| {});
    // An HTTP/2 frame of 16 MiB less one byte.
    let mut tcp = attacked.tcp();
    let frame = [0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1];
    tcp.write_all(&[PREFACE, SETTINGS, &frame].concat())
        .unwrap();
    ends(tcp);
    // A query of a megabyte.
    let mut client = Client::connect(attacked.dial.clone()).unwrap();
    let submit = |bytes: usize| Submit {
        query: "x".repeat(bytes),
        ..Submit::default()
    };
    let error = client.submit(&submit(1 << 20)).unwrap_err().to_string();
    assert!(error.contains("message length too large"), "{error}");
    let error = client.submit(&submit(100 << 10)).unwrap_err().to_string();
    assert!(error.contains("the maximum is 65536"), "{error}");
    client.queries().unwrap();
    // A message of an agent of 8 MiB.
    let mut giant = Agent::join(&attacked.dial, "giant").unwrap();
    giant.send_data(FlightData {
        data_body: vec![0; 8 << 20].into(),
        ..FlightData::default()
    });
    let status = giant.ended();
    assert!(
        status.message().contains("message length too large"),
        "{status}"
    );
    attacked.serves();
    drop((client, giant));
    attacked.nothing_remains();
}

#[test]
fn oversized_length_prefixes_and_rapid_resets_are_rejected() {
    let mut attacked = AttackedServer::new(|_| {});
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let address = attacked.address();
    runtime.block_on(async {
        let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(tcp).await.unwrap();
        let connection = tokio::spawn(connection);
        let (answer, mut body) = sender.send_request(request(address), false).unwrap();
        let claim = [0, 0xff, 0xff, 0xff, 0xff];
        body.send_data(claim.to_vec().into(), false).unwrap();
        let answer = answer.await.unwrap();
        assert_ne!(answer.headers()["grpc-status"], "0");
        // "Rapid reset" (CVE-2023-44487); the server may close the connection, but need not.
        for _ in 0..5_000 {
            let Ok(ready) = sender.clone().ready().await else {
                break;
            };
            sender = ready;
            match sender.send_request(request(address), false) {
                Ok((_, mut body)) => {
                    // Without this the request would not be sent before it is reset.
                    tokio::task::yield_now().await;
                    body.send_reset(h2::Reason::CANCEL);
                }
                Err(_) => break,
            }
        }
        drop((sender, body));
        let _ = connection.await;
    });
    attacked.serves();
    drop(runtime);
    attacked.nothing_remains();
}

fn request(address: SocketAddr) -> http::Request<()> {
    let uri = format!("http://{address}/arrow.flight.protocol.FlightService/GetFlightInfo");
    http::Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap()
}

#[test]
fn protocol_violations_of_an_agent_end_its_session() {
    let mut attacked = AttackedServer::new(|_| {});
    let raw = |bytes: &[u8]| FlightData {
        app_metadata: bytes.to_vec().into(),
        ..FlightData::default()
    };
    // Before the welcome: no message, noise, another message, another version.
    let changed = |version, host: &str| {
        let mut up = FromAgent::read(&hello("v")).unwrap().message;
        match &mut up.body {
            Some(AgentBody::Hello(body)) => {
                (body.version_major, body.host) = (version, host.to_owned());
            }
            other => panic!("{other:?}"),
        }
        raw(&up.encode_to_vec())
    };
    let firsts = [
        (FlightData::default(), "must be hello"),
        (raw(b"\xff\xff\xff"), "message of the agent"),
        (numbered(1, AgentBody::Watermark(1)), "must be hello"),
        (changed(99, "v"), "version"),
        (changed(VERSION.major, ""), "is not a host name"),
    ];
    for (first, part) in firsts {
        let status = Agent::dial(&attacked.dial, first).unwrap().ended();
        assert!(status.message().contains(part), "{part}: {status}");
    }
    // After it.
    let form = ColumnEncoding {
        kind: 1,
        width_bytes: 8,
        shift: 0,
        base: 0,
    };
    let rows = |columns| {
        AgentBody::Rows(RowsHeader {
            channel: 999,
            rows: 3,
            ts: Some(form),
            weights: None,
            columns,
            requests: 0,
        })
    };
    let texts = AgentBody::Texts(Texts {
        first: 5,
        texts: vec!["gap".into()],
    });
    let second_hello = support::agent::hello("again");
    let words = [
        raw(&Random::new(3).bytes(200)),
        numbered(2, AgentBody::Watermark(1)),
        numbered(1, AgentBody::Watermark(-1)),
        numbered(1, rows(vec![form; 2])),
        FlightData {
            data_header: Random::new(5).bytes(300).into(),
            data_body: Random::new(7).bytes(300).into(),
            ..numbered(1, rows(vec![form]))
        },
        numbered(0, texts),
        second_hello,
    ];
    let count = words.len() as u64;
    for (number, word) in words.into_iter().enumerate() {
        let mut agent = Agent::join(&attacked.dial, &format!("liar{number}")).unwrap();
        agent.send_data(word);
        let status = agent.ended();
        assert_eq!(
            status.code(),
            tonic::Code::InvalidArgument,
            "{number}: {status}"
        );
        attacked.serves();
    }
    let malformed = attacked
        .monitor
        .counted("sessions_ended", Some("malformed"));
    assert!(malformed >= count + 4, "{malformed}");
    assert!(!attacked.monitor.has_received("ChannelId(999)"));
    let refused = Agent::dial(&attacked.dial, hello("refused"))
        .unwrap()
        .ended();
    assert_eq!(refused.message(), "there is a host of that name");
    attacked.nothing_remains();
}

#[test]
fn silent_agents_are_disconnected_and_fast_ones_slowed() {
    let mut attacked = AttackedServer::new(|o| {
        o.limits.first_request_ms = 500;
        o.limits.agent_silence_ms = 2_000;
        o.limits.agent_messages_per_second = 50;
    });
    let mut chatty = Agent::join(&attacked.dial, "chatty").unwrap();
    for at in 1..=120 {
        chatty.send_numbered(AgentBody::Watermark(at));
    }
    attacked.serves();
    until("all of it is received, more slowly", || {
        attacked.monitor.has_received("Watermark(120)")
    });
    assert!(
        attacked
            .monitor
            .counted("agents_slowed", Some("messages_per_second"))
            > 0
    );
    let status = chatty.ended();
    assert!(
        status
            .message()
            .contains("no message from the agent for 2000 ms"),
        "{status}"
    );
    until("it is reported", || {
        attacked
            .monitor
            .has_received("left no message from the agent")
    });
}

#[test]
fn a_client_that_never_reads_is_bounded() {
    let mut attacked = AttackedServer::new(|_| {});
    let mut lazy = Client::connect(attacked.dial.clone()).unwrap();
    let lazy_watch = lazy.watch("endless").unwrap();
    until("it watches", || {
        !attacked.monitor.watchers.lock().unwrap().is_empty()
    });
    let sender = attacked.monitor.watchers.lock().unwrap()[0].clone();
    let shown = ResultUpdate {
        note: serde_json::Value::String("x".repeat(100_000)),
        ..support::shown_batches().remove(0)
    };
    // Updates fill the network buffers and then wait; memory does not grow further.
    let (mut taken, mut refused) = (0, 0);
    while refused < 100 {
        match sender.try_send(shown.clone()) {
            Ok(()) => (taken, refused) = (taken + 1, 0),
            Err(_) => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert!(
            taken < 1_000,
            "100 MB are on their way to somebody who does not read"
        );
    }
    attacked.serves();
    drop((lazy_watch, lazy));
    until("the watcher is gone", || sender.is_closed());
    attacked.nothing_remains();
}
