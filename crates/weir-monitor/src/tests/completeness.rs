//! The completeness of results: hosts that are included, rows that were lost or late.

use weir_query::place::fleet::PlacementStrategy;
use weir_wire::{AgentMessage, ChannelHosts, ChannelId, Hello, SiteHosts};

use super::super::completeness::FleetCompleteness;
use super::fleet::{Fleet, Link, options, rows};

const QUERY: &str = "SELECT host, a FROM S [Range 100 ns]";

fn completeness(fleet: &Fleet) -> FleetCompleteness {
    let (_, running) = fleet.monitor.queries().next().expect("a query runs");
    let hosts = fleet.monitor.count_fleet();
    let away = fleet.monitor.requests_away();
    fleet.monitor.completeness(running, &hosts, &away)
}

fn started(fleet: &mut Fleet, host: &str, instance: u64) -> (Link, ChannelId) {
    let mut link = fleet.join(host, instance);
    let channel = link.starts()[0];
    let at = fleet.now;
    fleet.send(&mut link, AgentMessage::started(channel, at));
    (link, channel)
}

#[test]
fn hosts_and_rows_that_are_missing_are_counted() {
    let mut fleet = Fleet::new(options());
    fleet.query(QUERY, PlacementStrategy::Rows);
    let (mut a, channel) = started(&mut fleet, "a", 1);
    let (mut b, _) = started(&mut fleet, "b", 2);
    let gone = fleet.join("c", 3);
    fleet.leave(&gone);
    fleet.send(&mut a, AgentMessage::Watermark(1_010));
    fleet.send(&mut b, AgentMessage::Watermark(1_010));
    fleet.tick(1_011);
    let now = completeness(&fleet);
    assert_eq!((now.at, now.hosts, now.hosts_responded), (1_010, 3, 2));
    assert_eq!(
        (now.rows_late, now.rows_lost, now.hosts_missing()),
        (0, 0, 1)
    );

    // One is silent for longer than the limit, and excluded.
    fleet.send(&mut a, AgentMessage::Watermark(1_150));
    fleet.tick(1_150);
    fleet.send(&mut a, AgentMessage::Watermark(1_200));
    fleet.tick(1_200);
    assert_eq!(completeness(&fleet).hosts_responded, 1);

    // It reconnects, and its late rows are counted by host.
    let batch = rows("b", &[(1_050, 1), (1_060, 2), (1_205, 3)]);
    fleet.send(&mut b, AgentMessage::Rows { channel, batch });
    fleet.lose(&mut b, channel, 7);
    fleet.send(&mut b, AgentMessage::Watermark(1_210));
    fleet.send(&mut a, AgentMessage::Watermark(1_210));
    fleet.tick(1_211);
    let now = completeness(&fleet);
    assert_eq!(
        (now.hosts_responded, now.rows_late, now.rows_lost),
        (2, 2, 7)
    );
    let of_b = fleet
        .monitor
        .hosts(fleet.now)
        .into_iter()
        .find(|h| h.host.as_str() == "b");
    let of_b = of_b.expect("b is a host");
    assert_eq!((of_b.rows_in, of_b.rows_late, of_b.rows_lost), (1, 2, 7));

    // A host with a failed fragment is not included.
    let why = "no tap".to_owned();
    fleet.send(&mut b, AgentMessage::failed(channel, why));
    fleet.send(&mut a, AgentMessage::Watermark(1_220));
    fleet.tick(1_221);
    let now = completeness(&fleet);
    assert_eq!((now.hosts_responded, now.hosts_failed), (1, 1));

    // A disconnected agent is known until it is forgotten.
    fleet.leave(&a);
    fleet.leave(&b);
    fleet.tick(1_400);
    assert_eq!(completeness(&fleet).hosts_responded, 0);
    fleet.tick(20_000);
    assert_eq!(completeness(&fleet).hosts, 0);
}

#[test]
fn ended_hosts_count_as_responded_if_they_had_sent_rows() {
    let mut fleet = Fleet::new(options());
    fleet.query(QUERY, PlacementStrategy::Rows);
    let (mut a, _) = started(&mut fleet, "a", 1);
    let (mut b, _) = started(&mut fleet, "b", 2);
    let mut unstarted = fleet.join("c", 3);
    let seen = |fleet: &Fleet| {
        let now = completeness(fleet);
        (now.hosts, now.hosts_responded)
    };
    assert_eq!(seen(&fleet), (3, 2));
    for link in [&mut a, &mut unstarted] {
        fleet.send(link, AgentMessage::Watermark(i64::MAX));
        fleet.leave(link);
    }
    assert_eq!(seen(&fleet), (2, 2), "one never ran it");
    fleet.send(&mut b, AgentMessage::Watermark(i64::MAX));
    assert_eq!(seen(&fleet), (2, 2));

    // An agent that reconnects counts once.
    fleet.leave(&b);
    let again = started(&mut fleet, "b", 4);
    assert_eq!(seen(&fleet), (2, 2));
    fleet.leave(&again.0);
    fleet.tick(1_200);
    fleet.tick(30_000);
    assert_eq!(seen(&fleet), (0, 0), "they are forgotten");
}

/// A message of a site with hosts, some of which responded, about a channel.
fn of_site(hosts: [u32; 2], channel: Option<ChannelHosts>) -> AgentMessage {
    let [hosts, responded] = hosts;
    AgentMessage::Hosts(SiteHosts {
        hosts,
        responded,
        channels: channel.into_iter().collect(),
    })
}

#[test]
fn the_hosts_of_a_site_count_by_channel() {
    let mut fleet = Fleet::new(options());
    fleet.query(QUERY, PlacementStrategy::Rows);
    let seen = |fleet: &Fleet| {
        let now = completeness(fleet);
        (now.hosts, now.hosts_responded, now.hosts_failed)
    };
    let (mut a, channel) = started(&mut fleet, "a", 1);
    let mut site = fleet.connect_agent(Hello {
        host: "site".into(),
        instance: 2,
        is_site: true,
        ..Hello::default()
    });
    assert_eq!(seen(&fleet), (1, 1, 0), "it has not reported any host");
    fleet.send(&mut site, of_site([5, 5], None));
    assert_eq!(seen(&fleet), (6, 1, 0), "it has not started the query");
    let at = fleet.now;
    fleet.send(&mut site, AgentMessage::started(channel, at));
    let mut present = ChannelHosts {
        channel: channel.0,
        missing: 2,
        failed: 1,
        complete_from_ns: at,
        requests_away: 9,
    };
    fleet.send(&mut site, of_site([5, 5], Some(present)));
    let reach = |fleet: &mut Fleet, link: &mut Link, to: i64| {
        fleet.send(link, AgentMessage::Watermark(to));
        fleet.tick(fleet.now.max(to + 1));
    };
    reach(&mut fleet, &mut site, at + 10);
    reach(&mut fleet, &mut a, at + 10);
    assert_eq!(seen(&fleet), (6, 4, 1));
    assert_eq!(completeness(&fleet).rows_away, 9);
    assert_eq!(completeness(&fleet).complete_from, at);

    // A host of the site joins, for results after the last watermark.
    (present.missing, present.complete_from_ns) = (0, at + 3);
    fleet.send(&mut site, of_site([6, 6], Some(present)));
    reach(&mut fleet, &mut site, at + 30);
    assert_eq!(
        seen(&fleet),
        (6, 4, 1),
        "the other agent has not reached them"
    );
    assert_eq!(completeness(&fleet).complete_from, at + 3);
    reach(&mut fleet, &mut a, at + 20);
    assert_eq!(seen(&fleet), (7, 7, 1));

    // The query fails at the whole site.
    let why = "no tap".to_owned();
    fleet.send(&mut site, AgentMessage::failed(channel, why));
    assert_eq!(seen(&fleet), (7, 1, 6));
    fleet.send(&mut site, AgentMessage::started(channel, at + 25));
    assert_eq!(seen(&fleet), (7, 7, 1));

    // It is away, and has no hosts when another agent has its name.
    fleet.leave(&site);
    assert_eq!(seen(&fleet), (7, 1, 1));
    let _other = fleet.join("site", 3);
    assert_eq!(seen(&fleet), (2, 1, 0));
}

#[test]
fn hosts_of_the_earlier_process_are_missing_until_they_connect() {
    let mut fleet = Fleet::new(options());
    let (query, _) = fleet.query(QUERY, PlacementStrategy::Rows);
    let (_a, _) = started(&mut fleet, "a", 1);
    let names = ["a", "b", "c"].map(str::to_owned);
    let until = fleet.now + 500;
    fleet.monitor.expect_hosts(names.into(), until);
    let seen = |fleet: &Fleet| {
        let now = completeness(fleet);
        (now.hosts, now.hosts_responded)
    };
    assert_eq!(seen(&fleet), (3, 1));
    let of_site = fleet.monitor.site_hosts();
    assert_eq!((of_site.hosts, of_site.responded), (3, 1));
    assert!(!fleet.monitor.is_run_by_all(query));
    let (_b, _) = started(&mut fleet, "b", 2);
    assert_eq!(seen(&fleet), (3, 2));
    assert!(!fleet.monitor.is_run_by_all(query));
    let names: Vec<String> = fleet.monitor.present_hosts().into_iter().collect();
    assert_eq!(names, ["a", "b", "c"]);
    fleet.tick(until + 1);
    assert_eq!(completeness(&fleet).hosts, 2, "it has not come back");
    assert!(fleet.monitor.is_run_by_all(query));
}

#[test]
fn sites_without_hosts_are_not_hosts() {
    let mut fleet = Fleet::new(options());
    fleet.query(QUERY, PlacementStrategy::Rows);
    let mut site = fleet.connect_agent(Hello {
        host: "site".into(),
        instance: 1,
        is_site: true,
        ..Hello::default()
    });
    let channel = site.starts()[0];
    let at = fleet.now;
    fleet.send(&mut site, AgentMessage::started(channel, at));
    fleet.send(&mut site, of_site([0, 0], None));
    let now = completeness(&fleet);
    assert_eq!((now.hosts, now.hosts_responded), (0, 0));
}
