//! Faulty agents: the monitor continues, and never counts a received row as lost.

use weir_model::Nanos;
use weir_query::place::fleet::PlacementStrategy;
use weir_wire::{AgentMessage, ChannelId, ChannelTally, EarlierProcess};

use super::fleet::{Fleet, Link, options, rows};

const QUERY: &str = "SELECT host, a FROM S [Range 100 ns]";

/// Starts the query at an agent, and sends the rows of two requests.
fn send_two(fleet: &mut Fleet, link: &mut Link) -> ChannelId {
    let channel = link.starts()[0];
    let at = fleet.now;
    fleet.send(link, AgentMessage::started(channel, at));
    let batch = rows("a", &[(at + 5, 1), (at + 6, 2)]);
    fleet.send(link, AgentMessage::Rows { channel, batch });
    channel
}

/// The tally of an earlier process.
fn earlier(instance: u64, channel: ChannelId, produced: u64) -> EarlierProcess {
    let channel = channel.0;
    let tally = ChannelTally {
        channel,
        produced,
        lost: 0,
    };
    EarlierProcess {
        instance,
        tallies: vec![tally],
    }
}

/// The requests of the only agent that were in time, and that are lost.
fn counted(fleet: &Fleet) -> (u64, u64) {
    let agent = fleet.monitor.agents().next().expect("it is known");
    (agent.account.in_time, agent.account.lost)
}

#[test]
fn an_ended_agent_that_stays_connected_counts_as_responded() {
    let mut fleet = Fleet::new(options());
    fleet.query(QUERY, PlacementStrategy::Rows);
    let mut link = fleet.join("a", 1);
    let channel = link.starts()[0];
    let at = fleet.now;
    fleet.send(&mut link, AgentMessage::started(channel, at));
    fleet.send(&mut link, AgentMessage::Watermark(Nanos::MAX));
    // Longer than disconnected agents are remembered.
    fleet.tick(1_100);
    fleet.tick(20_000);
    fleet.send(&mut link, AgentMessage::Watermark(20_001));
    assert_eq!(fleet.monitor.agents().count(), 1);
    fleet.leave(&link);
    fleet.tick(20_100);
    assert_eq!(fleet.monitor.agents().count(), 0);
}

#[test]
fn rows_of_a_query_that_ended_are_not_lost_when_their_agent_restarts() {
    let mut fleet = Fleet::new(options());
    let (query, _) = fleet.query(QUERY, PlacementStrategy::Rows);
    let mut link = fleet.join("a", 1);
    let channel = send_two(&mut fleet, &mut link);
    fleet.monitor.stop(query, "cancelled");
    fleet.leave(&link);
    fleet.join_after("a", 2, vec![earlier(1, channel, 2)]);
    assert_eq!(counted(&fleet), (2, 0));
}

#[test]
fn a_delayed_hello_of_an_ended_process_does_not_replace_the_one_that_runs() {
    let mut fleet = Fleet::new(options());
    fleet.query(QUERY, PlacementStrategy::Rows);
    let ended = EarlierProcess {
        instance: 1,
        tallies: Vec::new(),
    };
    let mut link = fleet.join_after("a", 2, vec![ended.clone()]);
    let channel = send_two(&mut fleet, &mut link);
    // Longer than an agent that sends nothing is waited for.
    fleet.tick(fleet.now + 200);
    let refused = fleet.join("a", 1);
    assert!(refused.welcome.is_err(), "{:?}", refused.welcome);
    fleet.leave(&link);
    fleet.join_after("a", 3, vec![ended, earlier(2, channel, 7)]);
    assert_eq!(counted(&fleet), (2, 5));
}

#[test]
fn a_process_that_was_replaced_continues_where_it_was() {
    let mut fleet = Fleet::new(options());
    fleet.query(QUERY, PlacementStrategy::Rows);
    let mut first = fleet.join("a", 1);
    let channel = send_two(&mut fleet, &mut first);
    fleet.leave(&first);
    let mut second = fleet.join("a", 2);
    send_two(&mut fleet, &mut second);
    fleet.leave(&second);
    // It runs the channel already, and sends what was not acknowledged once more.
    let mut again = fleet.join("a", 1);
    let acked = again.welcome.as_ref().expect("it is welcome").acked;
    assert!(acked <= first.number, "{acked}");
    let batch = rows("a", &[(fleet.now + 5, 3), (fleet.now + 6, 4)]);
    let repeated = AgentMessage::Rows { channel, batch };
    fleet.send_as(again.session, first.number, repeated.clone());
    assert_eq!(counted(&fleet), (4, 0));
    again.number = first.number;
    fleet.send(&mut again, repeated);
    assert_eq!(counted(&fleet), (6, 0));
    let agent = fleet.monitor.agents().next().expect("it is known");
    assert!(agent.runs[&channel].is_running());
    fleet.leave(&again);
    let earlier = vec![earlier(1, channel, 5), earlier(2, channel, 2)];
    fleet.join_after("a", 3, earlier);
    assert_eq!(counted(&fleet), (6, 1));
}
