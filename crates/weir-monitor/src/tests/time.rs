//! The watermark of the fleet: which agents are waited for, and which rows are late.

use weir_model::Value;
use weir_query::place::fleet::PlacementStrategy;
use weir_wire::{AgentMessage, MonitorMessage};

use super::fleet::{Fleet, Link, START, options, rows};
use super::host::Host;

#[test]
fn results_wait_for_the_slowest_agent() {
    let mut fleet = Fleet::new(options());
    let (_, results) = fleet.query(
        "Istream(SELECT host, a FROM S [Now])",
        PlacementStrategy::Rows,
    );
    let (mut a, mut b) = (fleet.join("a", 1), fleet.join("b", 2));
    let channel = a.starts()[0];
    assert_eq!(b.starts(), [channel]);
    for link in [&mut a, &mut b] {
        fleet.send(link, AgentMessage::started(channel, 1_000));
    }
    let batch = rows("a", &[(1_010, 1), (1_030, 2)]);
    fleet.send(&mut a, AgentMessage::Rows { channel, batch });
    fleet.send(&mut a, AgentMessage::Watermark(1_040));
    fleet.tick(1_050);
    assert!(results.net().is_empty(), "b may still say something");

    let batch = rows("b", &[(1_020, 3)]);
    fleet.send(&mut b, AgentMessage::Rows { channel, batch });
    fleet.send(&mut b, AgentMessage::Watermark(1_025));
    fleet.tick(1_051);
    let row = |ts, host: &str, a: i64| (ts, vec![Value::text(host), Value::Int(a)], 1);
    assert_eq!(results.net(), [row(1_010, "a", 1), row(1_020, "b", 3)]);

    // b sends nothing more; after the limit time advances without it.
    fleet.send(&mut a, AgentMessage::Watermark(1_120));
    fleet.tick(1_129);
    assert_eq!(results.net().len(), 2);
    fleet.tick(1_140);
    assert_eq!(results.net().len(), 3);
    fleet.tick(1_141);
    let state = |fleet: &Fleet| {
        fleet
            .monitor
            .hosts(fleet.now)
            .into_iter()
            .map(|h| h.state.as_str())
    };
    assert_eq!(state(&fleet).collect::<Vec<_>>(), ["up", "excluded"]);

    // Its rows before the watermark are then late, and counted.
    let batch = rows("b", &[(1_030, 4), (1_040, 5), (1_130, 6)]);
    fleet.send(&mut b, AgentMessage::Rows { channel, batch });
    fleet.send(&mut b, AgentMessage::Watermark(1_150));
    fleet.send(&mut a, AgentMessage::Watermark(1_150));
    fleet.tick(1_151);
    assert_eq!(results.net()[3..], [row(1_130, "b", 6)]);
    let hosts = fleet.monitor.hosts(fleet.now);
    assert_eq!((hosts[1].rows_in, hosts[1].rows_late), (2, 2));
    assert_eq!(state(&fleet).collect::<Vec<_>>(), ["up", "up"]);
}

#[test]
fn an_agent_that_is_steadily_behind_is_waited_for_again() {
    let mut fleet = Fleet::new(options());
    let (_, results) = fleet.query(
        "Istream(SELECT host, a FROM S [Now])",
        PlacementStrategy::Rows,
    );
    let mut a = fleet.join("a", 1);
    let channel = a.starts()[0];
    fleet.send(&mut a, AgentMessage::started(channel, START));
    // The only agent is silent for longer than the limit, so time advances by the clock.
    fleet.tick(START + 199);
    fleet.tick(START + 200);
    assert_eq!(fleet.monitor.watermark(), START + 180);

    // Then it is constantly 40 behind: more than two heartbeats, and less than half of the limit.
    let mut lates = Vec::new();
    for now in (START + 210..START + 400).step_by(10) {
        fleet.now = now;
        let batch = rows("a", &[(now - 40, now)]);
        fleet.send(&mut a, AgentMessage::Rows { channel, batch });
        fleet.send(&mut a, AgentMessage::Watermark(now - 40));
        fleet.tick(now);
        lates.push(fleet.monitor.hosts(now)[0].rows_late);
        assert!(fleet.monitor.watermark() >= START + 180, "time went back");
    }
    assert_eq!(lates[..3], [1, 2, 2], "what is before the frontier is late");
    assert_eq!(lates.last(), Some(&2));
    assert_eq!(results.net().len(), lates.len() - 2);
}

#[test]
fn acks_to_an_agent_are_sent_at_intervals() {
    let mut fleet = Fleet::new(options());
    fleet.query(
        "Istream(SELECT host, a FROM S [Now])",
        PlacementStrategy::Rows,
    );
    let mut a = fleet.join("a", 1);
    let channel = a.starts()[0];
    let at = START;
    fleet.send(&mut a, AgentMessage::started(channel, at));
    let taken = |link: &mut Link| -> Vec<u64> {
        let number = |word| match word {
            MonitorMessage::Ack(number) => Some(number),
            _ => None,
        };
        link.received().into_iter().filter_map(number).collect()
    };
    for now in START + 1..START + 40 {
        fleet.tick(now);
    }
    assert!(
        taken(&mut a).is_empty(),
        "less than four heartbeats have passed"
    );
    fleet.tick(START + 40);
    assert_eq!(taken(&mut a), [1]);
    for _ in 0..16 {
        fleet.send(&mut a, AgentMessage::Watermark(START + 40));
    }
    fleet.tick(START + 41);
    assert_eq!(taken(&mut a), [17], "many are told at once");
    fleet.tick(START + 100);
    assert!(taken(&mut a).is_empty(), "nothing new is safe");
}

#[test]
fn a_new_agent_is_waited_for_until_it_has_started() {
    let mut fleet = Fleet::new(options());
    let (_, results) = fleet.query(
        "Istream(SELECT host, a FROM S [Now])",
        PlacementStrategy::Rows,
    );
    let mut a = fleet.join("a", 1);
    let channel = a.starts()[0];
    fleet.send(&mut a, AgentMessage::started(channel, 1_000));
    fleet.send(&mut a, AgentMessage::Watermark(1_050));
    fleet.tick(1_050);
    assert_eq!(fleet.monitor.watermark(), 1_050);

    // b is welcomed at 1,060 and starts at 1,065, which is received when a is far ahead.
    fleet.tick(1_060);
    let mut b = fleet.join("b", 2);
    fleet.send(&mut a, AgentMessage::Watermark(1_100));
    fleet.tick(1_100);
    assert_eq!(fleet.monitor.watermark(), 1_050);
    fleet.send(&mut b, AgentMessage::started(channel, 1_065));
    let batch = rows("b", &[(1_066, 1), (1_110, 2)]);
    fleet.send(&mut b, AgentMessage::Rows { channel, batch });
    fleet.send(&mut b, AgentMessage::Watermark(1_110));
    fleet.send(&mut a, AgentMessage::Watermark(1_110));
    fleet.tick(1_111);
    assert_eq!(results.net().len(), 2);
    assert_eq!(fleet.monitor.hosts(fleet.now)[1].rows_late, 0);

    // An agent that never starts is waited for no longer than one that is silent.
    fleet.tick(1_120);
    let c = fleet.join("c", 3);
    for (now, watermark) in [(1_200, 1_110), (1_211, 1_111), (1_230, 1_210)] {
        for link in [&mut a, &mut b] {
            fleet.send(link, AgentMessage::Watermark(now - 20));
        }
        fleet.tick(now);
        assert_eq!(fleet.monitor.watermark(), watermark);
    }
    drop(c);
}

#[test]
fn a_query_starts_when_the_idle_agents_have_started() {
    let mut fleet = Fleet::new(options());
    let (mut a, mut b) = (fleet.join("a", 1), fleet.join("b", 2));
    fleet.tick(1_100);
    let (_, results) = fleet.query(
        "Istream(SELECT host, a FROM S [Now])",
        PlacementStrategy::Rows,
    );
    fleet.tick(1_100);
    let channel = a.starts()[0];
    fleet.send(&mut a, AgentMessage::started(channel, 1_105));
    fleet.send(&mut a, AgentMessage::Watermark(1_150));
    fleet.tick(1_150);
    assert_eq!(fleet.monitor.watermark(), 1_080);
    // An agent that cannot start is not waited for.
    let why = "no tap".to_owned();
    fleet.send(&mut b, AgentMessage::failed(channel, why));
    let batch = rows("a", &[(1_160, 1)]);
    fleet.send(&mut a, AgentMessage::Rows { channel, batch });
    fleet.send(&mut a, AgentMessage::Watermark(1_160));
    fleet.tick(1_161);
    assert_eq!(fleet.monitor.watermark(), 1_160);
    assert_eq!(results.net().len(), 1);
}

#[test]
fn what_agents_hold_of_a_slide_when_they_end_is_in_the_answer() {
    // The slide is longer than the usual limit for timestamps in the future.
    let query = "SELECT host, count(*) FROM S [Range 5000 ns Slide 5000 ns] GROUP BY host";
    let mut fleet = Fleet::new(options());
    let (_, results) = fleet.query(query, PlacementStrategy::Partials);
    let mut hosts = [("a", 1), ("b", 2)].map(|(name, instance)| Host::new(name, instance));
    for host in &mut hosts {
        host.join(&mut fleet);
        host.live(None, 1_001);
        let batch = rows(&host.name, &[(1_010, 1), (1_020, 2), (1_030, 3)]);
        host.live(Some(batch), 1_025);
        host.end(1_035);
    }
    fleet.tick(1_040);
    for host in &mut hosts {
        host.deliver(100, &mut fleet);
    }
    fleet.tick(1_050);
    assert!(results.net().is_empty(), "the slide is not over");
    fleet.tick(5_050);
    let row = |host: &str| (5_000, vec![Value::text(host), Value::Int(3)], 1);
    assert_eq!(results.net(), [row("a"), row("b")]);
    let refused = fleet.monitor.agents().any(|a| a.banned.is_some());
    assert!(!refused);
}
