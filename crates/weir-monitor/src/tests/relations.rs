//! Relations of agents: joins run where they are, and their content is complete after restarts and
//! losses.

use std::collections::BTreeMap;

use weir_model::inventory::{Disk, FoundBy, changes};
use weir_model::{Batch, Catalog, Column, Nanos, Symbol, Value};
use weir_query::place::fleet::PlacementStrategy;
use weir_query::plan::{Node, Plan};

use weir_wire::{AgentMessage, Hello};

use super::super::{FileSink, MonitorOptions};
use super::fleet::{
    Directory, Fleet, IDENTITY, Results, START, cut_of, options, publisher, publisher_to, rows,
};
use super::host::Host;

const QUERY: &str = "Istream(select i.host, i.sector, d.image, h.state \
                     from IO [Now] i, disks d, hosts h \
                     where i.host = d.host and i.vm = d.vm and i.vdisk = d.vdisk \
                     and h.host = i.host)";

/// A completed request of VM `web` at a host: its sector.
fn request(host: &str, ts: Nanos, sector: i64) -> Batch {
    let catalog = Catalog::builtin();
    let schema = &catalog.find("IO").expect("it is built in").schema;
    let column = |field: &weir_model::Field| {
        let value = match field.name.as_str() {
            "ts" => Value::Int(ts),
            "host" => host.into(),
            "vm" => "web".into(),
            "vdisk" => "/dev/vda".into(),
            "sector" => Value::Int(sector),
            _ => Value::Null,
        };
        Column::from_values(field.ty, [value])
    };
    Batch::stream(vec![ts], schema.fields.iter().map(column).collect())
}

/// A host's disk of VM `web`, with its data in `image`.
fn disk(image: &str) -> Disk {
    Disk {
        image: Some(Symbol::new(image)),
        ..Disk::new("web", "/dev/vda", FoundBy::Extents, "test")
    }
}

/// The sources below the joins of a plan, by join.
fn joined(plan: &Plan) -> Vec<Vec<String>> {
    let below = plan.inputs().into_iter().flat_map(|input| joined(input));
    let mut found: Vec<Vec<String>> = below.collect();
    if matches!(plan.node, Node::Join(_)) {
        found.push(plan.sources().into_iter().map(|s| s.name.clone()).collect());
    }
    found
}

/// The results: host, sector, image and state.
fn result_rows(results: &Results) -> Vec<String> {
    let rows = results.net().into_iter();
    let text = |row: &[Value]| {
        row.iter()
            .map(|v| v.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut rows: Vec<String> = rows.map(|(_, row, _)| text(&row)).collect();
    rows.sort();
    rows
}

#[test]
fn a_join_with_disks_is_made_by_the_agents_and_one_with_hosts_by_the_monitor() {
    let cut = cut_of(QUERY, PlacementStrategy::Agent);
    let [fragment] = &cut.fragments[..] else {
        panic!("one fragment, not {}", cut.fragments.len());
    };
    assert_eq!(joined(&fragment.plan), [["IO", "disks"]]);
    assert_eq!(joined(&cut.monitor).len(), 1);
    let sources: Vec<&str> = cut
        .monitor
        .sources()
        .iter()
        .map(|s| s.name.as_str())
        .collect();
    assert!(
        sources.contains(&"hosts") && sources.len() == 2,
        "{sources:?}"
    );

    let mut fleet = Fleet::new(options());
    let (_, results) = fleet.query(QUERY, PlacementStrategy::Agent);
    let mut hosts = [Host::new("a", 1), Host::new("b", 2)];
    for host in &mut hosts {
        host.join(&mut fleet);
        host.live(None, 1_010);
        host.deliver(100, &mut fleet);
    }
    fleet.tick(1_020);
    // Both have a disk of that name, with different images.
    for host in &mut hosts {
        let image = disk(&format!("/images/{}", host.name));
        let name = Some(Symbol::new(&host.name));
        host.push("disks", changes(1_020, name, &[], &[image]));
        host.push("IO", request(&host.name, 1_030, 8));
        host.live(None, 1_040);
        host.deliver(100, &mut fleet);
    }
    fleet.tick(1_050);
    assert_eq!(
        result_rows(&results),
        ["a 8 /images/a up", "b 8 /images/b up"]
    );
    // The disk of one host moves to another image.
    let [a, b] = &mut hosts;
    let moved = changes(
        1_060,
        Some(Symbol::new("a")),
        &[disk("/images/a")],
        &[disk("/new/a")],
    );
    a.push("disks", moved);
    a.push("IO", request("a", 1_070, 16));
    b.push("IO", request("b", 1_070, 24));
    for host in &mut hosts {
        host.live(None, 1_080);
        host.deliver(100, &mut fleet);
    }
    fleet.tick(1_090);
    let rows = result_rows(&results);
    assert_eq!(rows[1..3], ["a 8 /images/a up", "b 24 /images/b up"]);
    assert_eq!(rows[0], "a 16 /new/a up");
    assert_eq!(rows.len(), 4);
}

const CONTENT: &str = "SELECT host, a FROM R";

/// Changes of relation `R` of host `a` at an instant: rows with these values, and their weights.
fn values(at: Nanos, rows: &[(i64, i64)]) -> Batch {
    let (values, weights): (Vec<i64>, Vec<i64>) = rows.iter().copied().unzip();
    let hosts = Column::texts(rows.iter().map(|_| "a"));
    Batch::deltas(
        vec![at; rows.len()],
        weights,
        vec![hosts, Column::ints(values)],
    )
}

/// The values of the rows that results add up to, with their weights.
fn content(results: &Results) -> BTreeMap<i64, i64> {
    let mut content = BTreeMap::new();
    for (_, row, weight) in results.net() {
        let Value::Int(value) = row[1] else {
            panic!("an integer, not {:?}", row[1]);
        };
        *content.entry(value).or_default() += weight;
    }
    content.retain(|_, weight| *weight != 0);
    content
}

/// A fleet with host `a`, whose agent sends relation `R`.
struct OneHost {
    fleet: Fleet,
    host: Host,
    results: Results,
    now: Nanos,
}

impl OneHost {
    fn new(options: MonitorOptions) -> OneHost {
        let mut fleet = Fleet::new(options);
        let (_, results) = fleet.query(CONTENT, PlacementStrategy::Rows);
        let mut host = Host::new("a", 1);
        host.join(&mut fleet);
        OneHost {
            fleet,
            host,
            results,
            now: START,
        }
    }

    /// Runs for a number of steps, and delivers all messages.
    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.now += 10;
            self.host.live(None, self.now);
            self.host.deliver(100, &mut self.fleet);
            self.fleet.tick(self.now + 1);
        }
    }

    /// The relation changes.
    fn change(&mut self, rows: &[(i64, i64)]) {
        self.host.push("R", values(self.now + 5, rows));
        self.run(2);
    }

    /// The values of the relation's rows in the results, each once.
    fn values(&self) -> Vec<i64> {
        let content = content(&self.results);
        assert!(content.values().all(|weight| *weight == 1), "{content:?}");
        content.into_keys().collect()
    }
}

/// The monitor has retracted the rows of a host that was away for long; its agent, which ran all
/// the time, sends them again when it returns.
#[test]
fn a_relation_is_complete_after_its_agent_was_forgotten() {
    let mut fleet = OneHost::new(MonitorOptions {
        forget_after: 500,
        ..options()
    });
    fleet.run(3);
    fleet.change(&[(1, 1), (2, 1)]);
    assert_eq!(fleet.values(), [1, 2]);
    fleet.host.leave(&mut fleet.fleet);
    fleet.change(&[(3, 1)]);
    fleet.run(100);
    assert_eq!(fleet.fleet.monitor.agents().count(), 0);
    assert!(fleet.values().is_empty());
    fleet.change(&[(2, -1)]);
    fleet.host.join(&mut fleet.fleet);
    fleet.run(3);
    assert_eq!(fleet.values(), [1, 3]);
    fleet.change(&[(1, -1), (4, 1)]);
    assert_eq!(fleet.values(), [3, 4]);
}

/// An agent lost changes of a relation, and sends its content again.
#[test]
fn content_that_is_sent_again_replaces_the_earlier_one() {
    let mut fleet = OneHost::new(options());
    fleet.run(3);
    fleet.change(&[(1, 1), (2, 1)]);
    fleet.host.lose_next_rows();
    fleet.change(&[(1, -1), (3, 1)]);
    assert_eq!(fleet.values(), [1, 2]);
    fleet.host.resend();
    fleet.run(2);
    assert_eq!(fleet.values(), [2, 3]);
    fleet.change(&[(3, -1)]);
    assert_eq!(fleet.values(), [2]);
}

/// The agent stays connected, and its other channels continue.
#[test]
fn a_relation_with_too_many_rows_fails_at_its_host() {
    let mut fleet = OneHost::new(options());
    fleet.run(3);
    fleet.change(&[(1, 1)]);
    let rows: Vec<(i64, i64)> = (2..300_000).map(|value| (value, 1)).collect();
    fleet.change(&rows);
    fleet.change(&[(1, -1)]);
    fleet.run(20);
    assert!(fleet.values().is_empty());
    let agent = fleet.fleet.monitor.agents().next().expect("it is known");
    assert!(agent.session.is_some() && agent.banned.is_none());
    let (_, running) = fleet.fleet.monitor.queries().next().expect("it runs");
    let completeness = running.publisher.completeness().expect("time has advanced");
    assert_eq!(completeness.hosts_failed, 1);
    assert_eq!(agent.account.lost, 299_998 + 1);
}

/// Of this process the monitor knows nothing any more: it starts all its channels again.
#[test]
fn an_agent_that_was_dropped_from_memory_starts_its_channels_again() {
    let mut fleet = OneHost::new(options()).fleet;
    let channels = |fleet: &mut Fleet, host: &str, monitor| {
        let link = fleet.connect_agent(Hello {
            host: host.into(),
            instance: 5,
            program: "test".into(),
            monitor,
            ..Hello::default()
        });
        link.welcome.expect("it is accepted").channels.len()
    };
    assert_eq!(channels(&mut fleet, "b", IDENTITY), 1);
    for number in 0..1_000 {
        let link = fleet.join(&format!("h{number}"), 1);
        fleet.leave(&link);
    }
    fleet.tick(START + 1_000);
    fleet.tick(START + 20_000);
    assert_eq!(channels(&mut fleet, "c", 0), 1);
    assert_eq!(channels(&mut fleet, "d", IDENTITY), 0);
}

/// A row arrives and its fragment fails. Neither message is acknowledged when the monitor is
/// killed, so both are sent again.
#[test]
fn a_failure_that_is_sent_again_after_a_kill_retracts_the_rows_before_it() {
    const WINDOW: &str = "SELECT count(*) FROM S [Range 300 ns]";
    let start = |fleet: &mut Fleet, dir: &Directory| {
        [("window", WINDOW), ("content", CONTENT)].map(|(name, text)| {
            let (results, path) = (Results::default(), dir.path().join(name));
            // A checkpoint has its size.
            std::fs::write(&path, "").expect("a temporary directory");
            let cut = cut_of(text, PlacementStrategy::Rows);
            let publisher = publisher(&cut, Box::new(results.clone()), path);
            let now = fleet.now;
            let started = fleet.monitor.start(name, &cut, true, publisher, now);
            started.expect("a state directory");
            results
        })
    };
    for steps in 1..6 {
        let dir = Directory::new();
        let mut fleet = Fleet::open(dir.path(), options(), START);
        let [_, before] = start(&mut fleet, &dir);
        let mut host = Host::new("a", 1);
        host.join(&mut fleet);
        let mut now = START;
        run(&mut fleet, &mut host, &mut now, 5);
        let at = now;
        host.push("R", values(at + 5, &[(5, 1)]));
        run(&mut fleet, &mut host, &mut now, 4);
        host.fail_relations();
        run(&mut fleet, &mut host, &mut now, steps);
        // The monitor is killed.
        host.link = None;
        let shown_to = fleet.monitor.saved_to[0];
        fleet = Fleet::open(dir.path(), options(), now);
        let [_, after] = start(&mut fleet, &dir);
        host.join(&mut fleet);
        run(&mut fleet, &mut host, &mut now, 50);
        let shown = before.net().into_iter().filter(|row| row.0 <= shown_to);
        let weights = shown.chain(after.net()).map(|(.., weight)| weight);
        let weights: Vec<i64> = weights.collect();
        // The agent starts the fragment again when it connects, and sends the row once more.
        assert_eq!(weights, [1, -1, 1], "{steps} steps after the failure");
    }
}

/// The next process of an agent cannot run the fragment: the rows of the earlier one are no longer
/// true.
#[test]
fn rows_of_a_relation_end_when_its_fragment_fails() {
    let mut fleet = OneHost::new(options());
    fleet.run(3);
    fleet.change(&[(1, 1)]);
    assert_eq!(fleet.values(), [1]);
    fleet.host.leave(&mut fleet.fleet);
    let mut link = fleet.fleet.join("a", 2);
    let [channel] = link.starts()[..] else {
        panic!("one fragment");
    };
    let failed = AgentMessage::failed(channel, "no inventory".into());
    fleet.fleet.send(&mut link, failed);
    for _ in 0..20 {
        fleet.now += 10;
        fleet.fleet.tick(fleet.now);
    }
    assert!(fleet.values().is_empty());
}

/// Runs host `a` for a number of steps from `now` on, each with a row of stream `S`, and delivers
/// all messages; checkpoints are complete.
fn run(fleet: &mut Fleet, host: &mut Host, now: &mut Nanos, steps: usize) {
    for _ in 0..steps {
        *now += 10;
        let now = *now;
        host.live(Some(rows("a", &[(now, 1)])), now);
        host.deliver(100, fleet);
        fleet.tick(now + 1);
        fleet.monitor.await_checkpoint(now + 1);
    }
}

/// A query that is new when the monitor restarts begins with the content of its relations, and with
/// no result from before.
#[test]
fn a_query_that_is_new_after_a_restart_has_the_content_of_relations() {
    const WINDOW: &str = "SELECT count(*) FROM S [Range 300 ns]";
    const OLD: [(&str, &str); 2] = [("window", WINDOW), ("content", CONTENT)];
    let start = |fleet: &mut Fleet, name: &str, text: &str| {
        let results = Results::default();
        let cut = cut_of(text, PlacementStrategy::Rows);
        let now = fleet.now;
        let publisher = results.publisher(&cut);
        let started = fleet.monitor.start(name, &cut, true, publisher, now);
        started.expect("a state directory");
        results
    };
    let dir = Directory::new();
    let mut fleet = Fleet::open(dir.path(), options(), START);
    for (name, text) in OLD {
        start(&mut fleet, name, text);
    }
    let mut host = Host::new("a", 1);
    host.join(&mut fleet);
    let mut now = START;
    run(&mut fleet, &mut host, &mut now, 5);
    let at = now;
    host.push("R", values(at + 5, &[(5, 1)]));
    run(&mut fleet, &mut host, &mut now, 20);
    host.push("R", values(at + 205, &[(6, 1)]));
    run(&mut fleet, &mut host, &mut now, 5);
    // The monitor is killed.
    host.link = None;
    let shown_to = fleet.monitor.saved_to[0];
    fleet = Fleet::open(dir.path(), options(), now);
    assert!(fleet.monitor.watermark() < shown_to);
    start(&mut fleet, "window", WINDOW);
    // Another file was added.
    let [old_file, new_file] = [Results::default(), Results::default()];
    let cut = cut_of(CONTENT, PlacementStrategy::Rows);
    let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
    for path in [&old, &new] {
        // A checkpoint has its size.
        std::fs::write(path, "").expect("a temporary directory");
    }
    let mut added = FileSink::new(new, Box::new(new_file.clone()));
    added.begin_with_content();
    let old = FileSink::new(old, Box::new(old_file.clone()));
    let publisher = publisher_to(&cut, vec![old, added]);
    let started = fleet.monitor.start("content", &cut, true, publisher, now);
    started.expect("a state directory");
    let new = OLD.map(|(name, text)| start(&mut fleet, &format!("new {name}"), text));
    host.join(&mut fleet);
    run(&mut fleet, &mut host, &mut now, 50);
    for results in &new {
        let early = results.net().iter().filter(|row| row.0 <= shown_to).count();
        assert_eq!(early, 0);
    }
    assert_eq!(content(&new_file), BTreeMap::from([(5, 1), (6, 1)]));
    // It has both rows from before.
    assert!(old_file.net().is_empty());
    let [counts, relation] = new;
    assert_eq!(content(&relation), BTreeMap::from([(5, 1), (6, 1)]));
    // The window fills, beginning with no row.
    let counts: Vec<i64> = counts
        .net()
        .into_iter()
        .filter_map(|(_, row, weight)| match row[0] {
            Value::Int(count) if weight > 0 => Some(count),
            _ => None,
        })
        .collect();
    assert_eq!(counts[..3], [0, 1, 2]);
}

/// A row of relation `R` of a host arrives while another query reads it, before the query with its
/// results in a file starts. The message is not acknowledged before the monitor is killed, so it is
/// sent again.
#[test]
fn a_row_that_is_sent_again_after_a_kill_is_there_once() {
    const WINDOW: &str = "SELECT count(*) FROM S [Range 300 ns]";
    let start = |fleet: &mut Fleet, name: &str, text: &str| {
        let cut = cut_of(text, PlacementStrategy::Rows);
        let publisher = Results::default().publisher(&cut);
        let now = fleet.now;
        let started = fleet.monitor.start(name, &cut, true, publisher, now);
        started.expect("a state directory");
    };
    let dir = Directory::new();
    let mut fleet = Fleet::open(dir.path(), options(), START);
    start(&mut fleet, "window", WINDOW);
    fleet.query(CONTENT, PlacementStrategy::Rows);
    let mut host = Host::new("a", 1);
    host.join(&mut fleet);
    let mut now = START;
    run(&mut fleet, &mut host, &mut now, 5);
    let at = now;
    host.push("R", values(at + 5, &[(5, 1)]));
    run(&mut fleet, &mut host, &mut now, 2);
    start(&mut fleet, "content", CONTENT);
    run(&mut fleet, &mut host, &mut now, 5);
    // The monitor is killed.
    host.link = None;
    fleet = Fleet::open(dir.path(), options(), now);
    for (name, text) in [("window", WINDOW), ("content", CONTENT)] {
        assert!(fleet.monitor.saved(name).is_some(), "{name}");
        start(&mut fleet, name, text);
    }
    host.join(&mut fleet);
    run(&mut fleet, &mut host, &mut now, 50);
    let (_, results) = fleet.query(CONTENT, PlacementStrategy::Rows);
    run(&mut fleet, &mut host, &mut now, 2);
    let weights: Vec<i64> = results
        .net()
        .into_iter()
        .map(|(.., weight)| weight)
        .collect();
    assert_eq!(weights, [1]);
}
