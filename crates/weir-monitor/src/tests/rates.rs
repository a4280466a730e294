//! The costs that agents report determine how the next query is split.

use weir_model::{Catalog, NANOS_PER_SECOND, Nanos};
use weir_query::place::fleet::{Cut, CutOptions, PlacementStrategy, cut};
use weir_query::{CheckOptions, compile};
use weir_wire::{AgentMessage, ChannelCost, Status};

use super::fleet::{Fleet, Link, Results, START, options};
use crate::MonitorOptions;

const QUERY: &str = "select pid, sum(bytes) from IOstream [range 1 s slide 1 s] group by pid";

/// A query over the built-in streams, split by the monitor's rates.
fn cut_by(fleet: &Fleet, text: &str, hint: Option<PlacementStrategy>) -> Cut {
    let checked = compile(text, &Catalog::builtin(), &CheckOptions::live()).expect("it is sound");
    let options = CutOptions {
        hint,
        rates: fleet.monitor.rates(),
        ..CutOptions::default()
    };
    cut(&checked.plan, &options).expect("it can be cut")
}

/// A fleet whose agents run the fragment of a query, and report its costs per second: rows and
/// bytes by agent.
fn running(text: &str, strategy: PlacementStrategy, costs: &[(u64, u64)]) -> (Fleet, Vec<Link>) {
    let status = Status {
        requests_per_second: 10_000.0,
        ..Status::default()
    };
    running_as(text, strategy, costs, &status)
}

/// The same with the other fields of the agents' status; the processor time is that of a second.
fn running_as(
    text: &str,
    strategy: PlacementStrategy,
    costs: &[(u64, u64)],
    status: &Status,
) -> (Fleet, Vec<Link>) {
    let mut fleet = Fleet::new(MonitorOptions {
        forget_after: Nanos::MAX,
        ..options()
    });
    let cut = cut_by(&fleet, text, Some(strategy));
    let publisher = Results::default().publisher(&cut);
    let started = fleet.monitor.start("q", &cut, false, publisher, START);
    started.expect("nothing is written down");
    let mut links = Vec::new();
    for (number, _) in costs.iter().enumerate() {
        let mut link = fleet.join(&format!("host {number}"), 1);
        let channels = link.starts();
        let [channel] = channels[..] else {
            panic!("one fragment runs, not {channels:?}");
        };
        let capabilities = weir_tap::live::capabilities().encode();
        fleet.send(&mut link, AgentMessage::Capabilities(capabilities));
        fleet.send(&mut link, AgentMessage::started(channel, START));
        links.push(link);
    }
    for second in 0..5 {
        fleet.now = START + second as i64 * NANOS_PER_SECOND;
        for (link, (rows, bytes)) in links.iter_mut().zip(costs) {
            let status = Status {
                cpu_ns: status.cpu_ns.saturating_mul(second as i64),
                channels: vec![ChannelCost {
                    channel: 1,
                    rows_in: 20_000 * second,
                    rows_out: rows * second,
                    bytes_out: bytes * second,
                }],
                ..status.clone()
            };
            fleet.send(link, AgentMessage::Status(status));
        }
    }
    (fleet, links)
}

#[test]
fn rates_are_means_of_the_reports_of_agents() {
    let costs = [(100, 4_000), (300, 8_000)];
    let (mut fleet, links) = running(QUERY, PlacementStrategy::Partials, &costs);
    let rates = fleet.monitor.rates();
    assert_eq!(rates.hosts, 2.0);
    assert_eq!(rates.requests_per_second, 10_000.0);
    let [measured] = &rates.measured[..] else {
        panic!("one fragment runs: {rates:?}");
    };
    assert_eq!(measured.rows_in, 20_000.0);
    assert_eq!(measured.rows_out, 200.0);
    assert_eq!(measured.bytes_out, 6_000.0);
    // Disconnected agents do not affect the current rates.
    fleet.leave(&links[1]);
    let rates = fleet.monitor.rates();
    assert_eq!((rates.hosts, rates.measured[0].rows_out), (1.0, 100.0));
}

#[test]
fn a_query_is_cut_by_what_its_fragments_were_seen_to_cost() {
    let fleet = Fleet::new(options());
    assert_eq!(
        cut_by(&fleet, QUERY, None).strategy,
        PlacementStrategy::Partials
    );
    let (few, _links) = running(QUERY, PlacementStrategy::Partials, &[(100, 4_000)]);
    assert_eq!(
        cut_by(&few, QUERY, None).strategy,
        PlacementStrategy::Partials
    );
    let (many, _links) = running(QUERY, PlacementStrategy::Partials, &[(19_000, 1_500_000)]);
    assert_eq!(cut_by(&many, QUERY, None).strategy, PlacementStrategy::Rows);
    // A hint overrides it, and another query with the same number of groups is split likewise.
    let asked = cut_by(&many, QUERY, Some(PlacementStrategy::Partials));
    assert_eq!(asked.strategy, PlacementStrategy::Partials);
    let other = "select pid, max(sector) from IOstream [range 3 s slide 1 s] group by pid";
    assert_eq!(
        cut_by(&few, other, None).strategy,
        PlacementStrategy::Partials
    );
    assert_eq!(cut_by(&many, other, None).strategy, PlacementStrategy::Rows);
}

#[test]
fn idle_hosts_do_not_contribute_to_rates() {
    let idle = Status::default();
    let other = "select sector from IO where latency > 1 s";
    let (fleet, _links) = running_as(other, PlacementStrategy::Rows, &[(0, 0)], &idle);
    assert_eq!(
        cut_by(&fleet, QUERY, None).strategy,
        PlacementStrategy::Partials
    );
}

#[test]
fn processor_time_of_agents_gives_the_speed_of_their_hosts() {
    let factor = |cpu_ns: i64, requests_per_second: f64| {
        let status = Status {
            cpu_ns,
            requests_per_second,
            ..Status::default()
        };
        let (fleet, _links) =
            running_as(QUERY, PlacementStrategy::Partials, &[(100, 4_000)], &status);
        fleet.monitor.rates().cpu_factor
    };
    let busy = |cpu_ns| factor(cpu_ns, 100_000.0);
    let (slow, slower) = (busy(10_000_000), busy(40_000_000));
    assert!((slower / slow - 4.0).abs() < 0.01, "{slow} {slower}");
    // The limit holds for any reported value.
    assert_eq!(busy(i64::MAX), 10.0);
    assert_eq!(busy(-1), 0.1);
    // The processor time of an idle agent is ignored.
    assert_eq!(factor(10_000_000, 100.0), 1.0);
}
