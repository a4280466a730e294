//! Stream `weir` of the fleet: events of agents are rows, which queries read and join.

use std::collections::BTreeSet;

use weir_model::{NANOS_PER_SECOND, Value};
use weir_query::place::fleet::PlacementStrategy;
use weir_wire::{AgentMessage, Note, SELF_TEST};

use super::super::MonitorOptions;
use super::fleet::{Fleet, Results, options, rows};

fn note(at: i64, counter: &str, cause: &str) -> AgentMessage {
    AgentMessage::Note(Note {
        at_ns: at,
        place: "agent".into(),
        counter: counter.into(),
        cause: Some(cause.into()),
        device: None,
        value: 1,
        total: 1,
    })
}

/// Host and counter of the received rows.
fn notes(results: &Results) -> BTreeSet<(String, String)> {
    let text = |value: &Value| match value {
        Value::Text(text) => text.as_str().to_owned(),
        _ => String::new(),
    };
    let rows = results.net().into_iter();
    rows.map(|(_, row, _)| (text(&row[0]), text(&row[1])))
        .collect()
}

#[test]
fn the_result_of_a_self_test_is_that_of_the_agents_process() {
    let mut fleet = Fleet::new(options());
    let result = |fleet: &Fleet| fleet.monitor.hosts(1_000)[0].self_test;
    let mut link = fleet.join("a", 1);
    assert_eq!(result(&fleet), None);
    for (total, expected) in [
        (0, Some("ok")),
        (1, Some("degraded")),
        (2, Some("missing")),
        (3, None),
    ] {
        let AgentMessage::Note(mut note) = note(1_005, SELF_TEST, "/dev/sda: 16 test reads") else {
            unreachable!("it is a note");
        };
        note.total = total;
        fleet.send(&mut link, AgentMessage::Note(note));
        assert_eq!(result(&fleet), expected);
    }
    fleet.leave(&link);
    fleet.join("a", 2);
    assert_eq!(result(&fleet), None);
}

#[test]
fn what_happens_to_agents_are_rows() {
    let mut fleet = Fleet::new(options());
    let weir = "Istream(SELECT host, counter, cause, value FROM weir [Now])";
    let (_, results) = fleet.query(weir, PlacementStrategy::Rows);
    fleet.query(
        "SELECT host, a FROM S [Range 100 ns]",
        PlacementStrategy::Rows,
    );
    let (mut a, mut b) = (fleet.join("a", 1), fleet.join("b", 2));
    let channel = a.starts()[0];
    for link in [&mut a, &mut b] {
        fleet.send(link, AgentMessage::started(channel, 1_000));
    }
    fleet.send(&mut b, note(1_005, "shedding", "cpu"));
    fleet.send(&mut b, note(1_006, "probe_failed", "no kernel symbol"));
    for now in [1_070, 1_101, 1_110, 1_150] {
        fleet.send(&mut a, AgentMessage::Watermark(now));
        fleet.tick(now);
    }
    let batch = rows("b", &[(1_020, 1)]);
    fleet.send(&mut b, AgentMessage::Rows { channel, batch });
    fleet.lose(&mut b, channel, 7);
    let why = "division".to_owned();
    fleet.send(&mut b, AgentMessage::failed(channel, why));
    fleet.leave(&b);
    fleet.send(&mut a, AgentMessage::Watermark(1_200));
    fleet.tick(1_200);
    let wanted = [
        ("a", "agent_up"),
        ("b", "agent_up"),
        ("b", "shedding"),
        ("b", "probe_failed"),
        ("b", "agent_lagging"),
        ("b", "agent_excluded"),
        ("b", "rows_late"),
        ("b", "rows_lost"),
        ("b", "query_failed"),
        ("b", "agent_down"),
    ];
    let wanted = wanted.map(|(host, counter)| (host.to_owned(), counter.to_owned()));
    assert_eq!(notes(&results), BTreeSet::from(wanted));
}

#[test]
fn its_rows_join_with_the_fleets_rows_and_hosts() {
    let mut fleet = Fleet::new(options());
    let with_rows = "Istream(SELECT w.host, w.counter, s.a FROM weir [Range 100 ns] w, \
                     S [Range 100 ns] s WHERE w.host = s.host AND w.counter = 'shedding')";
    let (_, joined) = fleet.query(with_rows, PlacementStrategy::Rows);
    let with_hosts = "Istream(SELECT w.host, w.counter, h.state FROM weir [Range 100 ns] w, \
                      hosts h WHERE w.host = h.host AND w.counter = 'shedding')";
    let (_, hosts) = fleet.query(with_hosts, PlacementStrategy::Rows);
    let (mut a, mut b) = (fleet.join("a", 1), fleet.join("b", 2));
    let channel = a.starts()[0];
    for (link, host) in [(&mut a, "a"), (&mut b, "b")] {
        fleet.send(link, AgentMessage::started(channel, 1_000));
        let batch = rows(host, &[(1_010, 5)]);
        fleet.send(link, AgentMessage::Rows { channel, batch });
    }
    fleet.tick(1_016);
    fleet.send(&mut b, note(1_015, "shedding", "cpu"));
    for link in [&mut a, &mut b] {
        fleet.send(link, AgentMessage::Watermark(1_020));
    }
    fleet.tick(1_020);
    let row = vec![Value::text("b"), Value::text("shedding"), Value::Int(5)];
    assert_eq!(joined.net(), [(1_015, row, 1)]);
    let row = vec![Value::text("b"), Value::text("shedding"), Value::text("up")];
    let rows: Vec<_> = hosts.net().into_iter().map(|(_, row, _)| row).collect();
    assert_eq!(rows, [row]);
}

#[test]
fn the_cost_of_the_monitor_is_reported_by_agent_and_by_query() {
    let mut fleet = Fleet::new(MonitorOptions {
        exclude_after: NANOS_PER_SECOND,
        ahead_max: NANOS_PER_SECOND,
        ..options()
    });
    let weir = "Istream(SELECT place, counter, total FROM weir [Now])";
    let (_, results) = fleet.query(weir, PlacementStrategy::Rows);
    fleet.query(
        "SELECT host, a FROM S [Range 1 hour]",
        PlacementStrategy::Rows,
    );
    let mut a = fleet.join("a", 1);
    let channel = a.starts()[0];
    fleet.send(&mut a, AgentMessage::started(channel, 1_000));
    let batch = rows("a", &[(1_010, 5), (1_011, 6)]);
    fleet.send(&mut a, AgentMessage::Rows { channel, batch });
    fleet.tick(NANOS_PER_SECOND / 2);
    let now = 3 * NANOS_PER_SECOND;
    fleet.tick(now);
    let bytes_in = weir_wire::ServerCount {
        counter: "bytes_in",
        cause: None,
        total: 77,
    };
    fleet.monitor.read_counters(|| vec![bytes_in], now);
    fleet.tick(now + NANOS_PER_SECOND);
    let total = |place: &str, counter: &str| {
        let is_it = |row: &[Value]| row[0] == Value::text(place) && row[1] == Value::text(counter);
        let row = results.net().into_iter().find(|(_, row, _)| is_it(row));
        match row.expect("a row is published").1[2] {
            Value::Int(total) => total,
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!(total("network", "bytes_in"), 77);
    assert_eq!(total("monitor", "events_in"), 2);
    assert_eq!(total("monitor", "messages_in"), 2);
    assert_eq!(total("monitor", "agents"), 1);
    assert!(total("monitor", "agents_bytes") > 0);
    assert!(total("other queries", "bytes") > 0);
    assert!(total("process", "memory_bytes") > 0);
}
