//! Faulty agents: the monitor continues, and never counts a received row as lost.

use weir_model::Nanos;
use weir_query::place::fleet::PlacementStrategy;
use weir_wire::{AgentMessage, ChannelTally, EarlierProcess};

use super::fleet::{Fleet, options, rows};

const QUERY: &str = "SELECT host, a FROM S [Range 100 ns]";

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
    let channel = link.starts()[0];
    let at = fleet.now;
    fleet.send(&mut link, AgentMessage::started(channel, at));
    let batch = rows("a", &[(1_005, 1), (1_006, 2)]);
    fleet.send(&mut link, AgentMessage::Rows { channel, batch });
    fleet.monitor.stop(query, "cancelled");
    fleet.leave(&link);
    let tally = ChannelTally {
        channel: channel.0,
        produced: 2,
        lost: 0,
    };
    let earlier = EarlierProcess {
        instance: 1,
        tallies: vec![tally],
    };
    fleet.join_after("a", 2, vec![earlier]);
    let agent = fleet.monitor.agents().next().expect("it is known");
    assert_eq!((agent.account.in_time, agent.account.lost), (2, 0));
}
