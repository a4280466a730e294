//! Requests that an agent had received when it was killed are counted.

use weir_query::place::fleet::PlacementStrategy;
use weir_wire::{AgentMessage, ServerEvent, Status};

use super::fleet::{Fleet, options, rows};
use super::host::Host;
use crate::Account;

const GROUPS: &str = "SELECT host, count(*) FROM S [Range 100 ns Slide 100 ns] GROUP BY host";

/// A fleet with an agent that has delivered a group of three requests, and has four in the current
/// interval.
fn interrupted() -> (Fleet, Host) {
    let mut fleet = Fleet::new(options());
    fleet.query(GROUPS, PlacementStrategy::Partials);
    let mut host = Host::new("a", 1);
    host.join(&mut fleet);
    host.live(None, 1_000);
    host.deliver(100, &mut fleet);
    fleet.tick(1_150);
    host.live(
        Some(rows("a", &[(1_010, 1), (1_020, 2), (1_030, 3)])),
        1_110,
    );
    host.live(
        Some(rows("a", &[(1_120, 1), (1_130, 2), (1_140, 3), (1_145, 4)])),
        1_150,
    );
    host.deliver(100, &mut fleet);
    fleet.tick(1_160);
    assert_eq!(account(&fleet), (3, 0, 0));
    (fleet, host)
}

/// Requests in time, late and lost.
fn account(fleet: &Fleet) -> (u64, u64, u64) {
    let agent = fleet.monitor.agents().next().expect("an agent");
    let Account {
        in_time,
        late,
        lost,
    } = agent.account;
    (in_time, late, lost)
}

/// Sends the agent's report of received requests, as it does once a second, without a number.
fn report(fleet: &mut Fleet, host: &Host) {
    let status = Status {
        tallies: host.tallies().tallies,
        ..Status::default()
    };
    let lost_rows = ServerEvent::Message {
        session: host.link.as_ref().expect("it is connected").session,
        number: None,
        message: AgentMessage::Status(status),
    };
    assert!(fleet.monitor.take(lost_rows, fleet.now).is_none());
}

/// [`interrupted`], after the agent was away for so long that it was forgotten.
fn forgotten() -> (Fleet, Host) {
    let (mut fleet, mut host) = interrupted();
    report(&mut fleet, &host);
    host.leave(&mut fleet);
    fleet.tick(2_000);
    fleet.tick(30_000);
    assert_eq!(fleet.monitor.agents().count(), 0);
    assert_eq!(lost_rows(&fleet), (4, 0));
    (fleet, host)
}

/// Requests that are lost, and requests of disconnected hosts, as in the note of a result.
fn lost_rows(fleet: &Fleet) -> (u64, u64) {
    let (_, running) = fleet.monitor.queries().next().expect("a query runs");
    let away = fleet.monitor.requests_away();
    let hosts = fleet.monitor.count_fleet();
    let lost_rows = fleet.monitor.completeness(running, &hosts, &away);
    (lost_rows.rows_lost, lost_rows.rows_away)
}

#[test]
fn the_open_interval_of_an_agent_that_was_killed_is_lost_when_the_next_one_comes() {
    let (mut fleet, mut host) = interrupted();
    let tallies = host.tallies();
    let tally = tallies.tallies[0];
    assert_eq!((tally.produced, tally.lost), (7, 0));
    host.leave(&mut fleet);
    let mut next = Host::new("a", 2);
    next.earlier = vec![tallies.clone()];
    next.join(&mut fleet);
    assert_eq!(account(&fleet), (3, 0, 4));
    assert_eq!(lost_rows(&fleet), (4, 0));
    // Repeating the same count changes nothing.
    next.leave(&mut fleet);
    next.join(&mut fleet);
    assert_eq!(account(&fleet), (3, 0, 4));
}

#[test]
fn without_its_own_count_what_an_agent_reported_last_is_lost() {
    let (mut fleet, mut host) = interrupted();
    report(&mut fleet, &host);
    assert_eq!(lost_rows(&fleet), (0, 0), "it is there");
    host.leave(&mut fleet);
    assert_eq!(lost_rows(&fleet), (0, 4), "it may come back");
    Host::new("a", 2).join(&mut fleet);
    assert_eq!(account(&fleet), (3, 0, 4));
    assert_eq!(lost_rows(&fleet), (4, 0));
}

#[test]
fn what_an_agent_that_is_forgotten_had_reported_is_lost() {
    forgotten();
}

#[test]
fn the_next_process_of_an_agent_that_was_forgotten_loses_nothing_twice() {
    let (mut fleet, host) = forgotten();
    let mut next = Host::new("a", 2);
    next.earlier = vec![host.tallies()];
    next.join(&mut fleet);
    assert_eq!(account(&fleet), (3, 0, 4));
    assert_eq!(lost_rows(&fleet), (4, 0));
    // Nor does forgetting it again.
    next.leave(&mut fleet);
    fleet.tick(31_000);
    fleet.tick(60_000);
    assert_eq!(fleet.monitor.agents().count(), 0);
    next.join(&mut fleet);
    assert_eq!(account(&fleet), (3, 0, 4));
    assert_eq!(lost_rows(&fleet), (4, 0));
}

#[test]
fn the_same_process_of_an_agent_that_was_forgotten_loses_nothing_twice() {
    let (mut fleet, mut host) = forgotten();
    host.join(&mut fleet);
    assert_eq!(account(&fleet), (3, 0, 4));
    report(&mut fleet, &host);
    host.leave(&mut fleet);
    assert_eq!(
        lost_rows(&fleet),
        (4, 0),
        "all of it was delivered or is lost"
    );
    fleet.tick(31_000);
    fleet.tick(60_000);
    assert_eq!(fleet.monitor.agents().count(), 0);
    assert_eq!(lost_rows(&fleet), (4, 0));
    let mut next = Host::new("a", 2);
    next.earlier = vec![host.tallies()];
    next.join(&mut fleet);
    assert_eq!(account(&fleet), (3, 0, 4));
    assert_eq!(lost_rows(&fleet), (4, 0));
}

#[test]
fn an_agent_that_ends_in_order_loses_nothing() {
    let (mut fleet, mut host) = interrupted();
    report(&mut fleet, &host);
    host.end(1_150);
    host.deliver(100, &mut fleet);
    assert_eq!(account(&fleet), (7, 0, 0));
    assert_eq!(lost_rows(&fleet), (0, 0));
}

#[test]
fn a_group_that_is_late_counts_its_requests() {
    let (mut fleet, mut host) = interrupted();
    // Time advances without it.
    fleet.tick(1_500);
    host.live(None, 1_500);
    host.deliver(100, &mut fleet);
    assert_eq!(account(&fleet), (3, 4, 0));
}
