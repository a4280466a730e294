//! Time in the fleet: who is waited for, and what comes late.

use weir_model::Value;
use weir_query::place::fleet::Way;
use weir_wire::{AgentWord, MonitorWord};

use super::fleet::{Fleet, Link, START, options, rows};

#[test]
fn results_wait_for_the_slowest_agent() {
    let mut fleet = Fleet::new(options());
    let (_, results) = fleet.query("Istream(SELECT host, a FROM S [Now])", Way::Rows);
    let (mut a, mut b) = (fleet.join("a", 1), fleet.join("b", 2));
    let channel = a.starts()[0];
    assert_eq!(b.starts(), [channel]);
    for link in [&mut a, &mut b] {
        fleet.say(link, AgentWord::Started { channel, at: 1_000 });
    }
    let batch = rows("a", &[(1_010, 1), (1_030, 2)]);
    fleet.say(&mut a, AgentWord::Rows { channel, batch });
    fleet.say(&mut a, AgentWord::Reached(1_040));
    fleet.tick(1_050);
    assert!(results.net().is_empty(), "b may still say something");

    let batch = rows("b", &[(1_020, 3)]);
    fleet.say(&mut b, AgentWord::Rows { channel, batch });
    fleet.say(&mut b, AgentWord::Reached(1_025));
    fleet.tick(1_051);
    let row = |ts, host: &str, a: i64| (ts, vec![Value::text(host), Value::Int(a)], 1);
    assert_eq!(results.net(), [row(1_010, "a", 1), row(1_020, "b", 3)]);

    // b says nothing more; after the bound the others go on without it.
    fleet.say(&mut a, AgentWord::Reached(1_120));
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
    assert_eq!(state(&fleet).collect::<Vec<_>>(), ["up", "overtaken"]);

    // What it says then of the time before is late, and counted.
    let batch = rows("b", &[(1_030, 4), (1_040, 5), (1_130, 6)]);
    fleet.say(&mut b, AgentWord::Rows { channel, batch });
    fleet.say(&mut b, AgentWord::Reached(1_150));
    fleet.say(&mut a, AgentWord::Reached(1_150));
    fleet.tick(1_151);
    assert_eq!(results.net()[3..], [row(1_130, "b", 6)]);
    let hosts = fleet.monitor.hosts(fleet.now);
    assert_eq!((hosts[1].rows_in, hosts[1].rows_late), (2, 2));
    assert_eq!(state(&fleet).collect::<Vec<_>>(), ["up", "up"]);
}

#[test]
fn an_agent_is_told_now_and_then_what_it_may_forget() {
    let mut fleet = Fleet::new(options());
    fleet.query("Istream(SELECT host, a FROM S [Now])", Way::Rows);
    let mut a = fleet.join("a", 1);
    let channel = a.starts()[0];
    let at = START;
    fleet.say(&mut a, AgentWord::Started { channel, at });
    let taken = |link: &mut Link| -> Vec<u64> {
        let number = |word| match word {
            MonitorWord::Taken { number } => Some(number),
            _ => None,
        };
        link.told().into_iter().filter_map(number).collect()
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
        fleet.say(&mut a, AgentWord::Reached(START + 40));
    }
    fleet.tick(START + 41);
    assert_eq!(taken(&mut a), [17], "many are told at once");
    fleet.tick(START + 100);
    assert!(taken(&mut a).is_empty(), "nothing new is safe");
}
