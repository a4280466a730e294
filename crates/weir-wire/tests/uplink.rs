//! An agent's uplink and a monitor's server over the loopback: messages arrive once and in order,
//! and acknowledged messages are released.

mod support;

use std::net::Ipv4Addr;

use support::agent_rows::{BEHIND, now, options, rows};
use support::authority::{Authority, Directory};
use support::recording_monitor::{Behavior, MonitorState, RecordingMonitor};
use support::{Monitor, WAIT_MAX, until};
use weir_testing::Relay;
use weir_wire::{
    AgentMessage, ChannelId, Dial, LeaderTerm, MonitorMessage, Note, Status, Uplink, UplinkEvent,
};

fn welcome(uplink: &Uplink) -> Vec<ChannelId> {
    match uplink.receive(WAIT_MAX) {
        Some(UplinkEvent::Welcome { channels, .. }) => channels,
        other => panic!("{other:?} in place of a welcome"),
    }
}

#[test]
fn messages_arrive_and_are_released() {
    let ledger = RecordingMonitor::new(1, Behavior::default());
    ledger.run_channels(&[3]);
    let uplink = Uplink::dial(options(ledger.dial(), 7)).unwrap();
    assert_eq!(welcome(&uplink), [ChannelId(3)]);
    let channel = ChannelId(3);
    let start = MonitorMessage::start(channel, vec![7; 3]);
    assert_eq!(uplink.receive(WAIT_MAX), Some(UplinkEvent::Message(start)));

    // Timestamps can be converted from the welcome on, although the host's clock is wrong.
    let clock = uplink.clock();
    assert!(clock.is_synchronised());
    let (agent, monitor) = (now() - BEHIND, now());
    let error = clock.error_ns(agent);
    let off = clock.to_monitor(agent) - monitor;
    assert!(off.abs() <= error + 1_000_000, "{off} ns off, {error} told");
    assert!((clock.offset_ns(agent) - BEHIND).abs() <= error);

    uplink.send(AgentMessage::started(channel, 0));
    for first in (1..=10_000).step_by(100) {
        uplink.send(AgentMessage::Rows {
            channel,
            batch: rows(first, 100),
        });
        uplink.send(AgentMessage::Watermark(first + 99));
    }
    uplink.send(AgentMessage::Note(Note {
        at_ns: 10_000,
        place: "tap".to_owned(),
        counter: "events_in".to_owned(),
        cause: None,
        device: None,
        value: 10_000,
        total: 10_000,
    }));
    uplink.send(AgentMessage::Status(Status {
        kept_share: 1.0,
        ..Status::default()
    }));
    until("everything is taken", || {
        uplink.state().waiting.messages == 0
    });
    let account = ledger.account(7);
    account.check_order();
    let values: Vec<i64> = (1..=10_000).collect();
    assert_eq!(account.rows[&channel], values);
    assert_eq!(account.started, [channel]);
    assert_eq!(account.notes["events_in"], 10_000);
    assert_eq!(account.reached, 10_000);
    let state = uplink.state();
    assert!(state.connected);
    assert_eq!((state.welcomes, state.failures), (1, 0));
    assert_eq!((state.waiting.bytes, state.rows_void), (0, 0));
    assert!(uplink.bytes_out(channel) > 0);
    assert!(uplink.close());
}

#[test]
fn a_monitor_started_late_receives_everything() {
    let early = RecordingMonitor::new(1, Behavior::default());
    let relay = Relay::new(Ipv4Addr::LOCALHOST, early.address()).unwrap();
    relay.set_target(None);
    let dial = Dial::new(relay.address().to_string().parse().unwrap());
    let uplink = Uplink::dial(options(dial, 7)).unwrap();
    let channel = ChannelId(1);
    uplink.send(AgentMessage::Rows {
        channel,
        batch: rows(1, 1000),
    });
    until("nobody answers", || uplink.state().failures > 2);
    let state = uplink.state();
    assert!(!state.connected && state.waiting.messages == 1);
    let why = state.last_failure.unwrap();
    assert!(
        why.contains(&format!("the monitor at {}", relay.address())),
        "{why}"
    );
    assert!(matches!(
        uplink.receive(WAIT_MAX),
        Some(UplinkEvent::Disconnected(_))
    ));
    relay.set_target(Some(early.address()));
    until("the rows came", || {
        early.account(7).delivered(channel) == 1000
    });
    assert!(uplink.close());
}

/// Monitor 1 in a term, with the state of an earlier one.
fn leading(term: u64, state: MonitorState) -> RecordingMonitor {
    let state = MonitorState {
        monitor: 1,
        term,
        ..state
    };
    RecordingMonitor::open(state, Behavior::default())
}

#[test]
fn an_agent_finds_the_leader_and_rejects_an_earlier_one() {
    let standby = Monitor::local(|options| {
        options.standby = Some("is a standby; the leader is m1".to_owned());
    });
    let leader = leading(5, MonitorState::default());
    let relay = Relay::new(Ipv4Addr::LOCALHOST, leader.address()).unwrap();
    let addresses = format!("{},{}", standby.server.address(), relay.address());
    let uplink = Uplink::dial(options(Dial::to(&addresses).unwrap(), 7)).unwrap();
    let channel = ChannelId(1);
    let send = |from: i64| {
        let batch = rows(from, 100);
        uplink.send(AgentMessage::Rows { channel, batch });
    };
    send(1);
    until("the leader has the rows", || {
        leader.account(7).delivered(channel) == 100
    });
    assert!(standby.counted("requests_refused", Some("standby")) > 0);
    let why = uplink.state().last_failure.unwrap();
    assert!(why.contains("is a standby; the leader is m1"), "{why}");
    assert_eq!(leader.hello(), (0, 0));

    // The process of an earlier term, which was stopped until now, answers in the place of it.
    let state = leader.kill();
    let earlier = leading(4, state.clone());
    relay.set_target(Some(earlier.address()));
    relay.close_connections();
    send(101);
    let is_rejected = || {
        let why = uplink.state().last_failure.unwrap_or_default();
        why.contains("it leads in term 4") && why.contains("in term 5 since")
    };
    until("it is rejected", is_rejected);
    assert_eq!(earlier.hello(), (1, 5), "the monitor knows why");
    assert_eq!(
        earlier.account(7).delivered(channel),
        100,
        "no row was sent"
    );

    // The leader after that has a higher term.
    let next = leading(6, state);
    relay.set_target(Some(next.address()));
    relay.close_connections();
    until("the next leader has the rows", || {
        next.account(7).delivered(channel) == 200
    });
    next.account(7).check_order();
    assert_eq!(uplink.state().leader.term, 6);
    assert!(uplink.close());
}

#[test]
fn the_earlier_leader_is_rejected_by_a_restarted_agent_and_another_monitor_is_not() {
    let earlier = leading(4, MonitorState::default());
    let mut known = options(earlier.dial(), 7);
    known.leader = LeaderTerm {
        monitor: 1,
        term: 5,
    };
    let uplink = Uplink::dial(known.clone()).unwrap();
    until("it is rejected", || {
        let why = uplink.state().last_failure.unwrap_or_default();
        why.contains("it leads in term 4")
    });
    drop(uplink);
    // Terms are those of one monitor.
    for (monitor, term) in [(2, 4), (1, 0), (1, 5), (1, 6)] {
        let state = MonitorState {
            monitor,
            term,
            ..MonitorState::default()
        };
        let other = RecordingMonitor::open(state, Behavior::default());
        known.dial = other.dial();
        let uplink = Uplink::dial(known.clone()).unwrap();
        assert_eq!(welcome(&uplink), []);
    }
}

const TOKEN: &str = "web1web1web1web1web1web1";

/// Over TLS, with a token; and the errors for an unknown token, an authority that did not sign, and
/// missing TLS.
#[test]
fn an_agent_authenticates() {
    let directory = Directory::new();
    let authority = Authority::new(&directory, "authority");
    let tokens = directory.secret("tokens", &format!("{TOKEN} w agent:web1\n"));
    let tls = authority.server(&directory, None);
    let monitor = Monitor::local(|options| {
        (options.tls, options.tokens) = (Some(tls), Some(tokens));
    });
    let good = Dial {
        token: Some(TOKEN.to_owned()),
        authority: Some(authority.certificate.clone()),
        server_name: Some("localhost".to_owned()),
        ..monitor.dial()
    };
    let uplink = Uplink::dial(options(good.clone(), 7)).unwrap();
    uplink.send(AgentMessage::Watermark(5));
    until("it is received", || monitor.has_received("Watermark(5)"));
    drop(uplink);

    let stranger = Authority::new(&directory, "stranger");
    let unknown = "0000000000000000".to_owned();
    let wrong = [
        (
            Dial {
                token: Some(unknown),
                ..good.clone()
            },
            "rejected the request: unknown token",
        ),
        (
            Dial {
                token: None,
                ..good.clone()
            },
            "rejected the request: no token was presented",
        ),
        (
            Dial {
                authority: Some(stranger.certificate),
                ..good.clone()
            },
            "was not signed by the given authority",
        ),
        (
            Dial {
                authority: None,
                ..good
            },
            "if it uses TLS, use https://",
        ),
    ];
    for (dial, why) in wrong {
        let uplink = Uplink::dial(options(dial, 8)).unwrap();
        let failed = || uplink.state().last_failure;
        until("it fails", || failed().is_some());
        let failed = failed().unwrap();
        assert!(failed.contains(why), "{failed}");
        assert_eq!(uplink.state().welcomes, 0);
    }
}
