//! Whatever answers at the monitor's address, the agent continues, reports the error, keeps within
//! its memory, and loses nothing when it reaches a working monitor.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_flight::FlightData;
use prost::Message;
use support::agent_rows::{options, rows};
use support::random::Random;
use support::recording_monitor::{Behavior, RecordingMonitor};
use support::scripted_monitor::{Script, ScriptedMonitor};
use support::until;
use weir_testing::Relay;
use weir_wire::message::{FromMonitor, MonitorMessage, Pong, VERSION, Welcome};
use weir_wire::outbox::OutboxCapacity;
use weir_wire::{AgentMessage, ChannelId, Dial, Uplink, UplinkEvent, UplinkOptions};

const ROOM: OutboxCapacity = OutboxCapacity {
    memory_bytes: 1 << 20,
    disk_bytes: 0,
};
const CHANNEL: ChannelId = ChannelId(1);
/// The silence timeout of tests about silence, and of others: a working monitor on a busy machine
/// must not count as silent.
const SHORT: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(40);

/// An agent that connects to a faulty monitor, and then to a working one.
struct Trial {
    relay: Relay,
    uplink: Uplink,
    last: i64,
}

impl Trial {
    /// The agent disconnects from a monitor that is silent for `silence_max`.
    fn new(bad: SocketAddr, silence_max: Duration) -> Trial {
        let relay = Relay::new(Ipv4Addr::LOCALHOST, bad).unwrap();
        let dial = Dial::new(relay.address().to_string().parse().unwrap());
        let uplink = Uplink::dial(UplinkOptions {
            room: ROOM,
            silence_max,
            ..options(dial, 7)
        });
        Trial {
            relay,
            uplink: uplink.unwrap(),
            last: 0,
        }
    }

    fn send(&mut self, count: i64) {
        self.uplink.send(AgentMessage::Rows {
            channel: CHANNEL,
            batch: rows(self.last + 1, count),
        });
        self.last += count;
    }

    /// The failure is reported with the expected reason.
    fn fails(&mut self, why: &str) {
        self.send(10);
        let mut last = None;
        until(&format!("it fails with `{why}`"), || {
            let state = self.uplink.state();
            if state.last_failure != last {
                eprintln!("{:?}", state.last_failure);
                last = state.last_failure.clone();
            }
            last.as_ref().is_some_and(|last| last.contains(why))
        });
    }

    /// A working monitor receives everything that was not dropped for lack of memory.
    fn goes_on(mut self) {
        let good = RecordingMonitor::new(1, Behavior::default());
        self.relay.set_target(Some(good.address()));
        self.relay.close_connections();
        self.send(10);
        until("the good monitor has everything", || {
            while self.uplink.receive(Duration::ZERO).is_some() {}
            let state = self.uplink.state();
            state.waiting.messages == 0 && good.account(7).acked > 0
        });
        let account = good.account(7);
        account.check_order();
        let void = self.uplink.state().rows_void;
        assert_eq!(account.accounted(CHANNEL) + void, self.last as u64);
        assert_eq!(account.rows[&CHANNEL].last(), Some(&self.last));
        assert!(self.uplink.close());
    }
}

fn body(body: MonitorMessage) -> FlightData {
    FromMonitor::data(body)
}

fn welcome() -> Welcome {
    Welcome {
        version_major: VERSION.major,
        version_minor: VERSION.minor,
        term: 0,
        monitor: 1,
        acked: 0,
        channels: vec![1],
        heartbeat_interval_ns: 50_000_000,
    }
}

fn check_script(script: Script, why: &str) {
    let monitor = ScriptedMonitor::new(script);
    let silence_max = if why.ends_with("for 6 s") {
        SHORT
    } else {
        LONG
    };
    let mut trial = Trial::new(monitor.address, silence_max);
    trial.fails(why);
    trial.goes_on();
}

fn check_word(word: FlightData, why: &str) {
    let first = body(MonitorMessage::Welcome(welcome()));
    check_script(Script::sends(vec![first, word]), why);
}

/// A server that runs `answer` for each connection.
struct Raw {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Raw {
    fn new(answer: impl Fn(&mut std::net::TcpStream) + Send + 'static) -> Raw {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        std::thread::spawn(move || {
            let mut open = Vec::new();
            while let Ok((mut tcp, _)) = listener.accept() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                answer(&mut tcp);
                // Half open: nothing reads it any more.
                open.push(tcp);
            }
        });
        Raw { address, stop }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = std::net::TcpStream::connect(self.address);
    }
}

#[test]
fn a_monitor_that_never_answers_times_out() {
    let raw = Raw::new(|_| {});
    let mut trial = Trial::new(raw.address, SHORT);
    trial.fails("did not answer for 6 s");
    trial.goes_on();
}

#[test]
fn a_monitor_that_sends_noise_is_rejected() {
    let numbers = Mutex::new(Random::new(1));
    let raw = Raw::new(move |tcp| {
        let noise = numbers.lock().unwrap().bytes(100_000);
        let _ = tcp.write_all(&noise);
    });
    let mut trial = Trial::new(raw.address, LONG);
    trial.fails("the monitor at 127.0.0.1");
    trial.goes_on();
}

#[test]
fn a_web_server_is_reported() {
    let raw = Raw::new(|tcp| {
        let mut request = [0; 24];
        let _ = tcp.read(&mut request);
        let _ = tcp.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    });
    let mut trial = Trial::new(raw.address, LONG);
    trial.fails("the monitor at 127.0.0.1");
    trial.goes_on();
}

#[test]
fn a_monitor_without_a_welcome_times_out() {
    check_script(Script::sends(vec![]), "did not answer for 6 s");
    let end = Script {
        holds: false,
        ..Script::sends(vec![])
    };
    check_script(end, "it ended before the welcome");
    let first = body(MonitorMessage::Ack(0));
    check_script(
        Script::sends(vec![first]),
        "its first message is not a welcome",
    );
}

#[test]
fn a_monitor_of_another_version_is_rejected() {
    let first = MonitorMessage::Welcome(Welcome {
        version_major: 9,
        ..welcome()
    });
    check_script(
        Script::sends(vec![body(first)]),
        &format!(
            "the monitor uses version 9.{} of the protocol, this agent version {VERSION}; \
             run the same release",
            VERSION.minor
        ),
    );
}

#[test]
fn a_monitor_that_violates_the_protocol_is_rejected() {
    check_word(
        body(MonitorMessage::Ack(1_000_000)),
        "acknowledges message 1000000, which was never sent",
    );
    check_word(body(MonitorMessage::Welcome(welcome())), "a second welcome");
    check_word(
        body(MonitorMessage::HeartbeatInterval(0)),
        "heartbeat interval: 0 ns",
    );
    let first = MonitorMessage::Welcome(Welcome {
        acked: 5,
        ..welcome()
    });
    check_script(
        Script::sends(vec![body(first)]),
        "acknowledges message 5, which was never sent",
    );
    let noise = FlightData {
        app_metadata: Random::new(3).bytes(500).into(),
        ..FlightData::default()
    };
    check_word(noise, "message of the monitor: ");
    let long = MonitorMessage::start(CHANNEL, vec![0; (1 << 20) + 1]);
    check_word(body(long), "start: bytes of a fragment: 1048577");
}

#[test]
fn oversized_frames_of_a_monitor_are_rejected() {
    let giant = FlightData {
        data_body: vec![0; 20 << 20].into(),
        ..FlightData::default()
    };
    check_word(giant, "decoded message length too large");
}

/// Its messages are valid but for the timestamps, which are random.
#[test]
fn random_clock_replies_are_tolerated() {
    let mut words = vec![body(MonitorMessage::Welcome(welcome()))];
    let mut numbers = Random::new(4);
    for _ in 0..100 {
        words.push(body(MonitorMessage::Pong(Pong {
            origin_ns: numbers.next() as i64,
            receive_ns: numbers.next() as i64,
            transmit_ns: numbers.next() as i64,
        })));
    }
    // These replies were not requested; then nothing more follows.
    check_script(Script::sends(words), "sent nothing for 6 s");
}

/// It reads everything and never acknowledges: half of the memory is for sent messages, and the
/// oldest of the rest is dropped.
#[test]
fn a_monitor_that_never_acknowledges_is_bounded() {
    let first = body(MonitorMessage::Welcome(Welcome {
        channels: vec![CHANNEL.0],
        ..welcome()
    }));
    let monitor = ScriptedMonitor::new(Script::sends(vec![first]));
    let mut trial = Trial::new(monitor.address, LONG);
    until("it is welcomed", || trial.uplink.state().connected);
    for _ in 0..2_000 {
        trial.send(400);
        let waiting = trial.uplink.state().waiting.bytes;
        assert!(waiting <= ROOM.memory_bytes as u64, "{waiting} bytes wait");
    }
    assert!(!trial.uplink.dropped().is_empty());
    trial.goes_on();
}

/// It does not read.
#[test]
fn a_monitor_that_never_reads_is_disconnected() {
    let first = body(MonitorMessage::Welcome(welcome()));
    let monitor = ScriptedMonitor::new(Script {
        reads: false,
        ..Script::sends(vec![first])
    });
    let mut trial = Trial::new(monitor.address, SHORT);
    for _ in 0..2_000 {
        trial.send(400);
    }
    trial.fails("sent nothing for 6 s");
    assert_eq!(monitor.read.load(Ordering::Relaxed), 0);
    trial.goes_on();
}

/// It sends orders without end to an agent that does not read them.
#[test]
fn a_monitor_that_sends_orders_without_end_is_disconnected() {
    for bytes in [0, 1 << 20] {
        let pong = |origin_ns| Pong {
            origin_ns,
            receive_ns: origin_ns,
            transmit_ns: origin_ns,
        };
        let words = vec![
            body(MonitorMessage::Welcome(welcome())),
            body(MonitorMessage::Pong(pong(1))),
            body(MonitorMessage::start(CHANNEL, vec![0; bytes])),
        ];
        let monitor = ScriptedMonitor::new(Script {
            is_endless: true,
            ..Script::sends(words)
        });
        let mut trial = Trial::new(monitor.address, LONG);
        trial.fails("messages of the monitor were not read");
        trial.goes_on();
    }
}

/// Orders arrive in the order sent, and none before the clock is synchronised.
#[test]
fn orders_wait_for_clock_synchronisation() {
    let good = RecordingMonitor::new(1, Behavior::default());
    good.run_channels(&[1, 2, 3]);
    let uplink = Uplink::dial(options(good.dial(), 7)).unwrap();
    let clock = uplink.clock();
    let first = uplink.receive(support::WAIT_MAX);
    assert!(clock.is_synchronised());
    let channels = [1, 2, 3].map(ChannelId).to_vec();
    let heartbeat = 50_000_000;
    assert_eq!(
        first,
        Some(UplinkEvent::Welcome {
            channels: channels.clone(),
            heartbeat
        })
    );
    for expected in channels {
        match uplink.receive(support::WAIT_MAX) {
            Some(UplinkEvent::Message(MonitorMessage::Start(start))) => {
                assert_eq!(start.channel, expected.0)
            }
            other => panic!("{other:?}"),
        }
    }
    // Messages of a later release have fields that this one does not know.
    assert!(
        FromMonitor::decode(&[0x7a, 1, 0][..])
            .unwrap()
            .body
            .is_none()
    );
}
