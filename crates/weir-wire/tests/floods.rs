//! Excessive load from one client, agent or address does not affect the others.

mod support;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::agent::{Agent, hello};
use support::attacked_server::AttackedServer;
use support::authority::Directory;
use support::{Monitor, WAIT_MAX, until};
use weir_wire::message::AgentBody;
use weir_wire::{Client, Dial, Refusal, WatchEvent, WireError};

const FLOODER: &str = "f100df100df100df100df100";
const GOOD: &str = "900d900d900d900d900d900d";

fn tokens(directory: &Directory) -> PathBuf {
    let lines = format!("{FLOODER} flooder place\n{GOOD} good place,agent\n");
    directory.secret("tokens", &lines)
}

fn with(dial: &Dial, token: &str) -> Dial {
    Dial {
        token: Some(token.to_owned()),
        ..dial.clone()
    }
}

#[test]
fn thousands_of_requests_of_one_client_are_limited() {
    let directory = Directory::new();
    let monitor = Monitor::local(|o| {
        o.tokens = Some(tokens(&directory));
        o.limits.requests_per_second = 50;
    });
    let plain = monitor.dial();
    let mut attacked = AttackedServer::with(monitor, with(&plain, GOOD));
    // Four threads at full speed, each over its own connection.
    let flood = |dial: Dial| {
        move || {
            let mut client = Client::connect(dial).unwrap();
            let (mut answered, mut refused) = (0, 0);
            for _ in 0..1_500 {
                match client.queries() {
                    Ok(_) => answered += 1,
                    Err(WireError::Refused(Refusal::LimitReached(why))) => {
                        assert!(
                            why.contains("`flooder` sends more than 50 requests"),
                            "{why}"
                        );
                        refused += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            (answered, refused)
        }
    };
    let threads: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(flood(with(&plain, FLOODER))))
        .collect();
    attacked.serves();
    let (mut answered, mut refused) = (0, 0);
    for thread in threads {
        let (a, r) = thread.join().unwrap();
        (answered, refused) = (answered + a, refused + r);
    }
    assert_eq!(answered + refused, 6_000);
    assert!(answered >= 50 && refused > 0, "{answered} {refused}");
    let counted = attacked
        .monitor
        .counted("requests_refused", Some("requests_per_second"));
    assert_eq!(counted, refused);
    attacked.nothing_remains();
}

#[test]
fn connections_beyond_the_address_limit_are_rejected() {
    let attacked = AttackedServer::new(|o| o.limits.connections_per_address_max = 20);
    // Each has a granted request, so none of them is closed for another.
    let mut clients = Vec::new();
    while clients.len() < 19 {
        let mut client = Client::connect(attacked.dial.clone()).unwrap();
        client.queries().unwrap();
        clients.push(client);
    }
    for _ in 0..5 {
        let one_more = Client::connect(attacked.dial.clone()).and_then(|mut c| c.queries());
        assert!(one_more.is_err());
    }
    for client in &mut clients {
        client.queries().unwrap();
    }
    let refused = attacked
        .monitor
        .counted("connections_refused", Some("address_max"));
    assert!(refused >= 5, "{refused}");
    clients.clear();
    let server = &attacked.monitor.server;
    until("there is room again", || server.connections() <= 1);
    attacked.nothing_remains();
}

#[test]
fn reconnecting_watchers_leave_nothing_behind() {
    let attacked = AttackedServer::new(|o| {
        o.limits.watches_per_principal_max = 8;
        o.limits.requests_per_second = 100_000;
    });
    let mut client = Client::connect(attacked.dial.clone()).unwrap();
    for round in 0..500 {
        // The slot of a closed connection is free a little later.
        let mut watch = None;
        until("there is a place to watch from", || {
            watch = client.watch("endless").ok();
            watch.is_some()
        });
        if round % 2 == 0 {
            let seen = watch.unwrap().next(WAIT_MAX).unwrap();
            assert!(matches!(seen, WatchEvent::Update(_)));
        }
    }
    drop(client);
    let monitor = &attacked.monitor;
    until("each was told that nobody watches", || {
        let watchers = monitor.watchers.lock().unwrap();
        watchers.len() == 500 && watchers.iter().all(|w| w.is_closed())
    });
    attacked.nothing_remains();
}

#[test]
fn a_busy_monitor_delays_peers_and_loses_nothing() {
    let attacked = AttackedServer::new(|o| {
        o.limits.events_waiting_max = 16;
        o.limits.request_ms = 1_000;
    });
    let monitor = &attacked.monitor;
    let mut fast = Agent::join(&attacked.dial, "fast").unwrap();
    monitor.busy.store(true, Ordering::Relaxed);
    // Its thread may still wait for one event.
    std::thread::sleep(Duration::from_millis(100));
    let sending = std::thread::spawn(move || {
        for at in 1..=2_000 {
            fast.send_numbered(AgentBody::Watermark(at));
        }
        fast
    });
    let mut client = Client::connect(attacked.dial.clone()).unwrap();
    let error = client.queries().unwrap_err();
    assert!(error.to_string().contains("in time"), "{error}");
    let waited = monitor.counted("requests_refused", Some("unanswered"));
    assert_eq!(waited, 1);
    monitor.busy.store(false, Ordering::Relaxed);
    until("all of it is received", || {
        monitor.has_received("Watermark(2000)")
    });
    let received = monitor.received.lock().unwrap();
    let numbers = received.iter().filter(|h| h.contains("sent Some(")).count();
    drop(received);
    assert_eq!(numbers, 2_000);
    drop((sending.join().unwrap(), client));
    attacked.nothing_remains();
}

#[test]
fn hundreds_of_reconnecting_hosts_are_served() {
    let mut attacked = AttackedServer::new(|o| {
        o.limits.requests_per_second = 100_000;
        o.limits.first_request_ms = 1_000;
    });
    for number in 0..200 {
        match number % 4 {
            // Disconnects before the welcome, after it, within a message, without a hello.
            0 => drop(Agent::dial(&attacked.dial, hello(&format!("host{number}")))),
            1 => drop(Agent::join(&attacked.dial, &format!("host{number}"))),
            2 => {
                let mut agent = Agent::join(&attacked.dial, &format!("host{number}")).unwrap();
                agent.send_numbered(AgentBody::Watermark(number));
            }
            _ => drop(Agent::dial(&attacked.dial, Default::default())),
        }
        if number % 50 == 0 {
            attacked.serves();
        }
    }
    let monitor = &attacked.monitor;
    until("the end of each accepted connection is reported", || {
        let received = monitor.received.lock().unwrap();
        let count = |what: &str| received.iter().filter(|h| h.starts_with(what)).count();
        count("left") >= 100
    });
    attacked.nothing_remains();
}
