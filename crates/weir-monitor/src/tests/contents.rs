//! The content of a relation that is forwarded at the ends of windows is that of the engine: while
//! changes arrive late, agents leave, restart and fail, and the monitor is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde_json::Value as Json;
use weir_forward::{Broker, BrokerError, Forwarder, PartitionBatch, TopicUse};
use weir_model::{Batch, Column, Nanos, Value};
use weir_query::place::fleet::PlacementStrategy;

use super::super::{Monitor, MonitorOptions, Running};
use super::fleet::{Delta, Directory, Fleet, Results, START, cut_of, options, publisher, rows};
use super::host::Host;

/// The unit of the times of a run, 10 ms.
const UNIT: Nanos = 10_000_000;

/// The slide of the windows.
const SLIDE: Nanos = 20 * UNIT;

/// Two queries of a relation: one reads it at the ends of windows, the other has its content.
struct Queries {
    joined: &'static str,
    content: &'static str,
    /// The second column of the content; the first one is the host.
    column: &'static str,
}

/// A relation of the agents.
const OF_AGENTS: Queries = Queries {
    joined: "SELECT r.host, r.a, count(*) FROM S [Range 600 ms Slide 200 ms] s, R r \
             WHERE s.host = r.host GROUP BY r.host, r.a",
    content: "SELECT host, a FROM R",
    column: "a",
};

/// The hosts, which the monitor has.
const OF_HOSTS: Queries = Queries {
    joined: "SELECT h.host, h.state, count(*) FROM S [Range 600 ms Slide 200 ms] s, hosts h \
             WHERE s.host = h.host GROUP BY h.host, h.state",
    content: "SELECT host, state FROM hosts",
    column: "state",
};

/// The values of messages by key; a later one replaces an earlier one.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>);

impl Broker for Messages {
    fn partitions(&mut self, _topic: &str) -> Result<u32, BrokerError> {
        Ok(1)
    }

    fn append(&mut self, batches: Vec<PartitionBatch>) -> Vec<Result<(), BrokerError>> {
        let mut messages = self.0.lock().unwrap();
        let append = |batch: PartitionBatch| {
            let records = batch.records.into_iter();
            messages.extend(records.map(|record| (record.key, record.value)));
            Ok(())
        };
        batches.into_iter().map(append).collect()
    }
}

/// The rows of a relation, sorted: hosts and values.
type Content = Vec<(String, String)>;

impl Messages {
    /// The contents of a relation by instant, as far as they are the host and this column.
    fn contents(&self, column: &str) -> BTreeMap<Nanos, Content> {
        let mut contents: BTreeMap<Nanos, Content> = BTreeMap::new();
        for value in self.0.lock().unwrap().values() {
            let message: Json = serde_json::from_slice(value).unwrap();
            let rows = message["query"]
                .as_str()
                .and_then(|name| message[name].as_array());
            let (Some(rows), Some(at)) = (rows, message["ts"].as_i64()) else {
                continue;
            };
            let row = |row: &Json| {
                // Each message has a column `host` of its own.
                assert_eq!(row["host_2"], message["host"]);
                let value = match &row[column] {
                    Json::String(text) => text.clone(),
                    number => number.to_string(),
                };
                (row["host_2"].as_str().unwrap().to_owned(), value)
            };
            contents.entry(at).or_default().extend(rows.iter().map(row));
        }
        contents.values_mut().for_each(|rows| rows.sort());
        contents
    }
}

/// The content after the changes up to an instant.
fn content_at(changes: &[Delta], at: Nanos) -> Content {
    let mut content: BTreeMap<(String, String), i64> = BTreeMap::new();
    for (_, row, weight) in changes.iter().filter(|change| change.0 <= at) {
        let [Value::Text(host), value] = &row[..] else {
            panic!("a host and a value, not {row:?}");
        };
        *content
            .entry((host.as_str().to_owned(), value.to_string()))
            .or_default() += weight;
    }
    let copies = content.into_iter().flat_map(|(row, count)| {
        let count = usize::try_from(count).expect("a row goes after it came");
        std::iter::repeat_n(row, count)
    });
    copies.collect()
}

/// A host, and the rows of its relation.
struct Inventory {
    host: Host,
    rows: Vec<i64>,
}

impl Inventory {
    fn push(&mut self, at: Nanos, changes: &[(i64, i64)]) {
        let (values, weights): (Vec<i64>, Vec<i64>) = changes.iter().copied().unzip();
        let hosts = Column::texts(changes.iter().map(|_| self.host.name.as_str()));
        let instants = vec![at; changes.len()];
        let batch = Batch::deltas(instants, weights, vec![hosts, Column::ints(values)]);
        self.host.push("R", batch);
    }

    /// Adds a row or removes one.
    fn change(&mut self, at: Nanos, random: &mut fastrand::Rng) {
        let change = match !self.rows.is_empty() && random.bool() {
            true => (self.rows.swap_remove(random.usize(..self.rows.len())), -1),
            false => (random.i64(0..4), 1),
        };
        if change.1 > 0 {
            self.rows.push(change.0);
        }
        self.push(at, &[change]);
    }

    /// Ends the process, and starts another one, which has the same rows.
    fn restart(&mut self, at: Nanos, fleet: &mut Fleet) {
        self.host.leave(fleet);
        self.host = Host::new(&self.host.name, self.host.instance + 10);
        let all: Vec<(i64, i64)> = self.rows.iter().map(|value| (*value, 1)).collect();
        if !all.is_empty() {
            self.push(at, &all);
        }
    }
}

/// A monitor with the state in a directory, which forwards, and the content of the relation.
fn opened(dir: &Directory, queries: &Queries, messages: &Messages, now: Nanos) -> (Fleet, Results) {
    let options = MonitorOptions {
        heartbeat: 10 * UNIT,
        exclude_after: 100 * UNIT,
        ahead_max: 1_000 * UNIT,
        forget_after: 400 * UNIT,
        timeout: 50 * UNIT,
        checkpoint_every: 20 * UNIT,
        hold_max: 1_000 * UNIT,
        recovery: 10_000 * UNIT,
        ..options()
    };
    // Checkpoints are written when a run selects it, so that a run can be repeated.
    let monitor = Monitor::open_without_thread(dir.path(), options, now).unwrap();
    let mut fleet = Fleet::of(monitor, now);
    let broker = Box::new(messages.clone());
    let spool = dir.path().join("forward");
    let forwarder = Forwarder::with_broker("w".into(), broker, &spool, 1 << 20).unwrap();
    fleet
        .monitor
        .forward_to(forwarder.with_topics(TopicUse::Shared));
    let (results, path) = (Results::default(), dir.path().join("content"));
    // A checkpoint has its size.
    std::fs::write(&path, "").unwrap();
    let cut = cut_of(queries.content, PlacementStrategy::Rows);
    let to = publisher(&cut, Box::new(results.clone()), path);
    fleet.monitor.start("content", &cut, true, to, now).unwrap();
    let joined = cut_of(queries.joined, PlacementStrategy::Rows);
    let to = Results::default().publisher(&joined);
    fleet
        .monitor
        .start("joined", &joined, true, to, now)
        .unwrap();
    (fleet, results)
}

/// Compares the contents of a random run, in which the monitor is perhaps killed; false if it ends
/// early.
fn compare(queries: &Queries, seed: u64, kills: bool) -> bool {
    let mut random = fastrand::Rng::with_seed(seed);
    let (dir, messages) = (Directory::new(), Messages::default());
    let mut now = START * UNIT;
    let (mut fleet, mut results) = opened(&dir, queries, &messages, now);
    let mut changes: Vec<Delta> = Vec::new();
    let mut hosts: Vec<Inventory> = ["a", "b", "c"]
        .iter()
        .zip(1..)
        .map(|(name, instance)| Inventory {
            host: Host::new(name, instance),
            rows: Vec::new(),
        })
        .collect();
    for step in 0..150 {
        let is_last = step > 130;
        now += random.i64(1..15) * UNIT;
        for of in &mut hosts {
            if of.host.link.is_none() && (is_last || step < 2 || random.u8(0..4) == 0) {
                of.host.join(&mut fleet);
            }
            if random.u8(0..3) == 0 {
                of.change(now - random.i64(0..3) * UNIT, &mut random);
            }
            match random.u8(0..100) {
                _ if is_last || step < 5 => {}
                0 | 1 => of.host.leave(&mut fleet),
                // Changes that are not safe when both are killed are known to neither.
                2 if !kills => of.restart(now, &mut fleet),
                3 => of.host.fail_relations(),
                4 => of.host.resend(),
                _ => {}
            }
            let name = of.host.name.clone();
            of.host.live(Some(rows(&name, &[(now, 1)])), now);
            let words = if is_last { 1_000 } else { random.usize(0..12) };
            of.host.deliver(words, &mut fleet);
        }
        fleet.tick(now + 1);
        if random.bool() {
            fleet.monitor.write_checkpoint();
        }
        if kills && step % 50 == 40 && random.bool() {
            // The monitor is killed.
            hosts.iter_mut().for_each(|of| of.host.link = None);
            fleet.monitor.end_forwarding();
            let before = results.net();
            (fleet, results) = opened(&dir, queries, &messages, now);
            let shown_to = fleet.monitor.continued_from();
            let restarts = |(_, running): (_, &Running)| running.restarted_at.is_some();
            if fleet.monitor.queries().any(restarts) {
                // Some rows are missing, and that is reported.
                fleet.monitor.end_forwarding();
                return false;
            }
            changes.extend(before.into_iter().filter(|change| change.0 <= shown_to));
        }
    }
    changes.extend(results.net());
    fleet.monitor.end_forwarding();
    let contents = messages.contents(queries.column);
    let last = fleet.monitor.watermark().div_euclid(SLIDE);
    let ends: BTreeSet<Nanos> = (START * UNIT / SLIDE + 1..=last)
        .map(|n| n * SLIDE)
        .collect();
    let late: Vec<Nanos> = contents
        .keys()
        .filter(|at| !ends.contains(at))
        .copied()
        .collect();
    assert!(late.is_empty(), "{late:?}");
    for end in ends {
        let found = contents.get(&end).cloned().unwrap_or_default();
        assert_eq!(found, content_at(&changes, end), "seed {seed} at {end}");
    }
    true
}

#[test]
fn the_content_of_a_relation_at_the_ends_of_windows_is_that_of_the_engine() {
    let of_agents = |seed: &u64| compare(&OF_AGENTS, *seed, seed.is_multiple_of(2));
    let whole = (0..40).filter(of_agents).count();
    assert!(whole > 20, "of 20 runs with kills {} end early", 40 - whole);
}

#[test]
fn the_content_of_hosts_at_the_ends_of_windows_is_that_of_the_engine() {
    assert!((0..20).all(|seed| compare(&OF_HOSTS, seed, false)));
}

/// The monitor, or the agents, stood still. Time advances in steps, and no content is missing.
#[test]
fn after_a_pause_the_content_is_sent_at_each_end() {
    const ENDS: i64 = 180;
    let (dir, messages) = (Directory::new(), Messages::default());
    let mut now = START * UNIT;
    let (mut fleet, _) = opened(&dir, &OF_AGENTS, &messages, now);
    let mut of = Inventory {
        host: Host::new("a", 1),
        rows: Vec::new(),
    };
    of.host.join(&mut fleet);
    of.host.live(None, now);
    of.push(now + 1, &[(1, 1), (2, 2)]);
    now += SLIDE;
    let mut watermarks = Vec::new();
    for pause in [0, ENDS * SLIDE, 0, 0, 0, 0] {
        now += pause;
        of.host.live(None, now);
        of.host.deliver(100, &mut fleet);
        fleet.tick(now + 1);
        watermarks.push(fleet.monitor.watermark().div_euclid(SLIDE));
    }
    fleet.monitor.end_forwarding();
    let (first, last) = (watermarks[0], watermarks[5]);
    assert!(last >= now / SLIDE - 1, "{watermarks:?}");
    let steps = [first, first + 50, first + 100, first + 150, last, last];
    assert_eq!(watermarks, steps);
    let row = |value: i32| ("a".to_owned(), value.to_string());
    let expected = (first..=last).map(|n| (n * SLIDE, vec![row(1), row(2), row(2)]));
    assert_eq!(messages.contents("a"), expected.collect());
}
