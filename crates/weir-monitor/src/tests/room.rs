//! Agents store messages for a restart of the monitor only within their limits.

use weir_query::place::fleet::PlacementStrategy;
use weir_wire::{AgentMessage, Hello, MonitorMessage};

use super::fleet::{Directory, Fleet, Link, Results, START, cut_of, options, rows};

/// Messages with rows that each agent sends.
const WORDS: i64 = 60;

/// The last acknowledged number.
fn taken(link: &mut Link) -> u64 {
    let number = |word: MonitorMessage| match word {
        MonitorMessage::Ack(number) => Some(number),
        _ => None,
    };
    let numbers = link.received().into_iter().filter_map(number);
    numbers.max().unwrap_or(0)
}

#[test]
fn one_with_little_room_is_not_made_to_hold_more() {
    let directory = Directory::new();
    let mut fleet = Fleet::open(directory.path(), options(), START);
    // After a restart it would need all rows of the last 900 ns again.
    let cut = cut_of(
        "SELECT host, a FROM S [Range 900 ns]",
        PlacementStrategy::Rows,
    );
    let publisher = Results::default().publisher(&cut);
    let started = fleet.monitor.start("q", &cut, true, publisher, START);
    started.unwrap();
    let held_bytes_max = 8_000;
    let mut links = [("little", held_bytes_max), ("ample", 0)].map(|(host, held_bytes_max)| {
        fleet.connect_agent(Hello {
            host: host.into(),
            instance: 1,
            held_bytes_max,
            ..Hello::default()
        })
    });
    for link in &mut links {
        let channel = link.starts()[0];
        fleet.send(link, AgentMessage::started(channel, START));
        for word in 1..=WORDS {
            let batch = rows("x", &[(START + word, word); 10]);
            fleet.send(link, AgentMessage::Rows { channel, batch });
        }
        fleet.send(link, AgentMessage::Watermark(START + WORDS));
    }
    for step in 1..=10 {
        let now = START + WORDS + 4 * step;
        fleet.tick(now);
        fleet.monitor.await_checkpoint(now);
    }
    let waits: Vec<u64> = fleet
        .monitor
        .agents()
        .map(|a| a.unsafe_bytes as u64)
        .collect();
    assert!(waits[1] > held_bytes_max, "it would fill that: {waits:?}");
    assert!(waits[0] <= held_bytes_max / 2, "{waits:?}");
    let [little, ample] = links.each_mut().map(taken);
    assert!(little > 1 && ample <= 1, "{little} and {ample}");
}
