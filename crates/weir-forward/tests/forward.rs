//! Messages reach a broker in order, each at least once, whatever fails; what does not is counted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_forward::{
    Broker, BrokerError, BrokerRecord, Forwarder, PartitionBatch, RowOrigin, TopicRows, TopicUse,
    description_key, fleet_topic, host_topic, host_topics, instant_of,
};
use weir_model::{
    Batch, Catalog, Column, ColumnBuilder, Field, NANOS_PER_SECOND, Shape, Type, Value,
};
use weir_query::place::fleet::{Cut, CutOptions, Fragment, PlacementStrategy, cut};
use weir_query::plan::Node;
use weir_query::{CheckOptions, compile};
use weir_testing::wait_until as until;

const SECOND: i64 = NANOS_PER_SECOND;

/// A value that [`TestBroker`] refuses.
const REFUSED: &[u8] = b"/13/0";

/// What a broker holds, by topic and partition.
type Stored = BTreeMap<(String, u32), Vec<BrokerRecord>>;

/// A broker in memory.
#[derive(Clone)]
struct TestBroker {
    stored: Arc<Mutex<Stored>>,
    /// The number of requests that fail from now on; each is stored nevertheless, or not.
    failures: Arc<Mutex<u32>>,
    /// The number of partitions of each topic.
    partitions: Arc<Mutex<u32>>,
    /// How long a request takes.
    pause: Duration,
}

impl Default for TestBroker {
    fn default() -> TestBroker {
        TestBroker {
            stored: Arc::default(),
            failures: Arc::default(),
            partitions: Arc::new(Mutex::new(3)),
            pause: Duration::ZERO,
        }
    }
}

impl TestBroker {
    fn fails(&self) -> Option<u32> {
        let mut failures = self.failures.lock().unwrap();
        let left = *failures;
        *failures = left.saturating_sub(1);
        (left > 0).then_some(left)
    }

    /// The keys in a partition.
    fn keys(&self, topic: &str, partition: u32) -> Vec<String> {
        let stored = self.stored.lock().unwrap();
        let records = stored.get(&(topic.to_owned(), partition));
        let records = records.map_or(&[][..], Vec::as_slice);
        let text = |record: &BrokerRecord| String::from_utf8(record.key.clone()).unwrap();
        records.iter().map(text).collect()
    }

    /// The keys in all partitions.
    fn all(&self, topic: &str) -> Vec<String> {
        let partitions = 0..4;
        partitions
            .flat_map(|partition| self.keys(topic, partition))
            .collect()
    }

    fn store(&self, batch: PartitionBatch) -> Result<(), BrokerError> {
        let fails = self.fails();
        if fails.is_some_and(|left| left % 2 == 0) {
            return Err(away());
        }
        if batch.partition >= *self.partitions.lock().unwrap() {
            return Err(away());
        }
        if batch
            .records
            .iter()
            .any(|record| record.key.ends_with(REFUSED))
        {
            return Err(BrokerError {
                why: "too large".into(),
                is_final: true,
            });
        }
        let mut stored = self.stored.lock().unwrap();
        let there = stored.entry((batch.topic, batch.partition)).or_default();
        there.extend(batch.records);
        // It was stored, and the answer was lost.
        fails.map_or(Ok(()), |_| Err(away()))
    }
}

impl Broker for TestBroker {
    fn partitions(&mut self, _topic: &str) -> Result<u32, BrokerError> {
        std::thread::sleep(self.pause);
        match self.fails() {
            Some(_) => Err(away()),
            None => Ok(*self.partitions.lock().unwrap()),
        }
    }

    fn append(&mut self, batches: Vec<PartitionBatch>) -> Vec<Result<(), BrokerError>> {
        batches.into_iter().map(|batch| self.store(batch)).collect()
    }
}

fn away() -> BrokerError {
    BrokerError {
        why: "the broker is away".into(),
        is_final: false,
    }
}

fn cut_by(query: &str, strategy: PlacementStrategy) -> Cut {
    let checked = compile(query, &Catalog::builtin(), &CheckOptions::live()).unwrap();
    let options = CutOptions {
        hint: Some(strategy),
        ..CutOptions::default()
    };
    cut(&checked.plan, &options).unwrap()
}

/// The number of the fragment that is a relation.
fn relation_of(cut: &Cut) -> usize {
    let is_relation = |f: &Fragment| f.plan.shape == Shape::Relation;
    cut.fragments.iter().position(is_relation).unwrap()
}

/// The rows of `select bytes from IO`.
fn rows(instants: &[i64]) -> Batch {
    let bytes = instants.iter().map(|ts| ts % 7).collect();
    Batch::stream(instants.to_vec(), vec![Column::ints(bytes)])
}

fn origin(host: &str, sequence: u64) -> RowOrigin<'_> {
    RowOrigin {
        host,
        epoch: 7,
        sequence,
        first: 0,
        counts: None,
    }
}

fn forwarder(broker: &TestBroker, directory: &Path) -> Forwarder {
    let broker = Box::new(broker.clone());
    Forwarder::with_broker("t".into(), broker, directory, 64 << 20).unwrap()
}

#[test]
fn rows_and_watermarks_arrive_in_order() {
    let (broker, home) = (TestBroker::default(), tempfile::tempdir().unwrap());
    let mut forwarder = forwarder(&broker, home.path());
    let of = cut_by("select bytes from IO", PlacementStrategy::Rows);
    let topic = forwarder.add("all rows", &of, 0).unwrap();
    assert!(topic.starts_with("t.all_rows."), "{topic}");
    for second in 1..=4 {
        for host in ["a", "b", "c", "d"] {
            let instants = [second * SECOND, second * SECOND + 1];
            forwarder.rows(&topic, &origin(host, second as u64), &rows(&instants));
        }
        forwarder.advance(second * SECOND + SECOND / 2);
        // It is too early for another watermark.
        forwarder.advance(second * SECOND + SECOND / 2 + 1);
    }
    forwarder.close();
    let keys = broker.all(&topic);
    assert_eq!(keys.len(), 4 * 4 * 2 + 3 * 4);
    for partition in 0..3 {
        let mut second = 1;
        for key in broker.keys(&topic, partition) {
            match key.split('/').nth(2) {
                Some(of_row) => assert_eq!(of_row, second.to_string(), "{key}"),
                None => second += 1,
            }
        }
        assert_eq!(second, 5, "each partition has every watermark");
    }
    // Kafka keeps the last of the messages with the same key: the description of each topic.
    assert_eq!(broker.all("t.queries"), [topic]);
}

#[test]
fn a_host_has_topics_of_its_own() {
    let (broker, home) = (TestBroker::default(), tempfile::tempdir().unwrap());
    *broker.partitions.lock().unwrap() = 1;
    let mut forwarder = forwarder(&broker, home.path()).of_host("db1.example.org");
    let of = cut_by("select bytes from IO", PlacementStrategy::Rows);
    let of_fleet = forwarder.add("load", &of, 0).unwrap();
    assert_eq!(of_fleet, TopicUse::PerQuery.rows("t", "load", &of, 0));
    let topic = forwarder.topic(&of_fleet).unwrap().to_owned();
    assert_eq!(topic, format!("{of_fleet}.db1.example.org"));
    // A day: the description is repeated, since brokers keep it for a limited time.
    for hour in 0..=24 {
        let instant = (1 + 3_600 * hour) * SECOND;
        let origin = origin("db1.example.org", 100 + hour as u64);
        forwarder.rows(&of_fleet, &origin, &rows(&[instant]));
        forwarder.advance(instant);
    }
    forwarder.close();
    let keys = broker.keys(&topic, 0);
    let watermarks = keys.iter().filter(|key| *key == "watermark").count();
    assert_eq!((keys.len(), watermarks), (50, 25));
    assert_eq!(broker.all("t.queries"), [&*of_fleet; 2]);
    let stored = broker.stored.lock().unwrap();
    let described: serde_json::Value =
        serde_json::from_slice(&stored[&("t.queries".to_owned(), 0)][0].value).unwrap();
    assert_eq!(described["topic"], of_fleet);
    assert_eq!(described["topics"], host_topics(&of_fleet));
}

#[test]
fn queries_share_a_topic() {
    for host in [None, Some("db1.example.org")] {
        let (broker, home) = (TestBroker::default(), tempfile::tempdir().unwrap());
        let mut forwarder = forwarder(&broker, home.path()).with_topics(TopicUse::Shared);
        if let Some(host) = host {
            forwarder = forwarder.of_host(host);
        }
        let of = cut_by("select bytes from IO", PlacementStrategy::Rows);
        let of_times = cut_by("select latency from IO", PlacementStrategy::Rows);
        let load = forwarder.add("load", &of, 0).unwrap();
        let slow = forwarder.add("slow", &of_times, 0).unwrap();
        let end = host.map_or(String::new(), |host| format!(".{host}"));
        let topic = format!("t.all.rows{end}");
        assert_eq!(forwarder.topic(&load), Some(&*topic));
        assert_eq!(forwarder.topic(&slow), Some(&*topic));
        let flags =
            [Value::Bool(true), Value::Null].map(|flag| Column::from_values(Type::Bool, [flag]));
        for (second, flag) in [1, 2].into_iter().zip(flags) {
            let from = origin("db1.example.org", second as u64);
            forwarder.rows(&load, &from, &rows(&[second * SECOND]));
            forwarder.rows(
                &slow,
                &from,
                &Batch::stream(vec![second * SECOND], vec![flag]),
            );
            forwarder.advance(second * SECOND);
        }
        forwarder.remove(&load);
        forwarder.rows(&load, &origin("db1.example.org", 3), &rows(&[3 * SECOND]));
        forwarder.advance(3 * SECOND);
        forwarder.close();
        let stored = broker.stored.lock().unwrap();
        let partitions = (0..3).filter_map(|at| stored.get(&(topic.clone(), at)));
        let mut of_host = partitions.clone().filter(|records| records.len() > 3);
        let records = of_host.next().unwrap();
        assert!(
            of_host.next().is_none(),
            "rows of a host are in one partition"
        );
        // One watermark for all queries, in each partition.
        for records in partitions {
            let marks = records.iter().filter(|record| record.key == b"watermark");
            assert_eq!(marks.count(), 3, "{host:?}");
        }
        let found = records.iter().map(|record| {
            let value: serde_json::Value = serde_json::from_slice(&record.value).unwrap();
            (String::from_utf8(record.key.clone()).unwrap(), value)
        });
        let row = |name: &str, second: i64, columns: serde_json::Value| {
            let value = serde_json::json!({
                "host": "db1.example.org", "epoch": 7, "sequence": second, "position": 0,
                "ts": second * SECOND, "requests": 1, "query": name, name: columns,
            });
            (
                format!("{name}/db1.example.org/{:016x}/{second}/0", 7),
                value,
            )
        };
        let mark = |second: i64| {
            let value = serde_json::json!({ "ts": second * SECOND, "lost": 0 });
            ("watermark".to_owned(), value)
        };
        let bytes = |second: i64| serde_json::json!({ "bytes": second * SECOND % 7 });
        let expected = [
            row(&load, 1, bytes(1)),
            row(&slow, 1, serde_json::json!({ "latency": true })),
            mark(1),
            row(&load, 2, bytes(2)),
            row(&slow, 2, serde_json::json!({})),
            mark(2),
            mark(3),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected, "{host:?}");
        let described: Vec<serde_json::Value> = stored[&("t.queries".to_owned(), 0)]
            .iter()
            .map(|record| serde_json::from_slice(&record.value).unwrap())
            .collect();
        let members = described.iter().map(|d| d["member"].as_str().unwrap());
        let expected = [&*load, &*slow, &*load];
        assert_eq!(members.collect::<Vec<_>>(), expected[..described.len()]);
        let keys = [&load, &slow].map(|rows| description_key("t.all.rows", rows));
        let found = stored[&("t.queries".to_owned(), 0)].iter();
        let found = found.map(|record| String::from_utf8(record.key.clone()).unwrap());
        let ended = (host.is_none()).then(|| keys[0].clone());
        let keys: Vec<String> = keys.iter().cloned().chain(ended).collect();
        assert_eq!(found.collect::<Vec<_>>(), keys);
        let ended = described.iter().map(|d| d.get("ended").is_some());
        let expected = [false, false, true];
        assert_eq!(ended.collect::<Vec<_>>(), expected[..keys.len()]);
        for description in &described {
            assert_eq!(description["topic"], "t.all.rows");
            let topics = description.get("topics").and_then(|topics| topics.as_str());
            let of_fleet = topics.map(|topics| fleet_topic(topics).unwrap());
            assert_eq!(of_fleet, host.map(|_| "t.all.rows"));
        }
    }
}

#[test]
fn rows_in_shared_topics_have_the_same_names_whatever_the_prefix() {
    let mut of = cut_by("select bytes from IO", PlacementStrategy::Rows);
    of.fragments.push(of.fragments[0].clone());
    for query in ["load", "load of all", &"q".repeat(300)] {
        let [short, long] = ["w".to_owned(), "p".repeat(100)]
            .map(|prefix| TopicUse::Shared.rows(&prefix, query, &of, 0));
        assert_eq!(short, long);
        assert!(!short.starts_with("w.") && short.len() <= 80, "{short}");
        let other = TopicUse::Shared.rows("w", query, &of, 1);
        assert_ne!(short, other, "of another fragment");
        let own = TopicUse::PerQuery.rows("w", query, &of, 0);
        assert_eq!(description_key(&own, &own), own);
    }
}

#[test]
fn states_and_numbers_that_json_lacks_are_texts() {
    let query = "select vm, latency from IO";
    let of = cut_by(query, PlacementStrategy::Rows);
    let mut rows = TopicRows::shared("t", "t.q.1", &of, 0).unwrap();
    let values = [1e300, -0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let texts = Column::texts(["a", "\"", "ä\n", "", "\u{1f4bd}"]);
    let batch = Batch::stream(vec![1; 5], vec![texts, Column::floats(values.to_vec())]);
    let messages = rows.messages(&origin("a", 1), &batch).unwrap();
    let found = messages.iter().map(|message| {
        let value: serde_json::Value = serde_json::from_slice(&message.value).unwrap();
        value["t.q.1"].clone()
    });
    let expected = [
        serde_json::json!({ "latency": 1e300, "vm": "a" }),
        serde_json::json!({ "latency": -0.5, "vm": "\"" }),
        serde_json::json!({ "latency": "NaN", "vm": "ä\n" }),
        serde_json::json!({ "latency": "Infinity", "vm": "" }),
        serde_json::json!({ "latency": "-Infinity", "vm": "\u{1f4bd}" }),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    let query = "select quantile(latency, 0.5) from IO [range 1 s slide 1 s]";
    let of = cut_by(query, PlacementStrategy::Partials);
    let mut rows = TopicRows::shared("t", "t.q.1", &of, 0).unwrap();
    let bytes = Value::Bytes(vec![0_u8, 1, 2, 255].into());
    let state = Column::from_values(Type::Partial, [bytes]);
    let batch = Batch::stream(vec![1], vec![state, Column::ints(vec![3])]);
    let messages = rows.messages(&origin("a", 1), &batch).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&messages[0].value).unwrap();
    let columns = value["t.q.1"].as_object().unwrap();
    assert!(columns.values().any(|v| v == "AAEC/w=="), "{columns:?}");
}

#[test]
fn hosts_with_different_names_have_different_topics() {
    let long = "h".repeat(253);
    let hosts = [
        "a",
        "a b",
        "a_b",
        "a.b",
        "ä",
        "ö",
        &long,
        &format!("{long}x"),
    ];
    for topic in ["weir.load.0123abcd", &"t".repeat(249 - 64)] {
        // Kafka takes two topics for the same if they differ in dots and underscores only.
        let topics = hosts.map(|host| host_topic(topic, host).replace('.', "_"));
        let different: std::collections::BTreeSet<&String> = topics.iter().collect();
        assert_eq!(different.len(), hosts.len(), "{topics:?}");
        for of_host in &topics {
            let begin = format!("{topic}.").replace('.', "_");
            let name = of_host.strip_prefix(&begin).unwrap();
            let is_valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            assert!(
                name.chars().all(is_valid) && of_host.len() <= 249,
                "{of_host}"
            );
        }
    }
    // The longest topic of all hosts leaves room for a host.
    let of = cut_by("select bytes from IO", PlacementStrategy::Rows);
    let longest = TopicUse::PerQuery.rows(&"p".repeat(100), &"q".repeat(300), &of, 0);
    assert!(longest.len() <= 249 - 64, "{}", longest.len());
}

#[test]
fn the_instant_of_a_message_is_read_from_it() {
    let of = cut_by("select bytes from IO", PlacementStrategy::Rows);
    let mut topic = TopicRows::new("t", &of, 0).unwrap();
    let instants = [-1, 0, 1_700_000_000_123_456_789, i64::MAX];
    for host in [
        "a",
        "",
        "a name that is longer than sixty-four bytes, so that it has two",
    ] {
        for epoch in [0, 1, u64::MAX] {
            let origin = RowOrigin {
                epoch,
                ..origin(host, 3)
            };
            let messages = topic.messages(&origin, &rows(&instants)).unwrap();
            let found = messages.iter().map(|message| instant_of(&message.value));
            let expected = instants.map(Some);
            assert_eq!(found.collect::<Vec<_>>(), expected, "{host} {epoch}");
        }
    }
    let watermark = topic.watermark(42, 0).unwrap();
    assert_eq!(instant_of(&watermark.value), Some(42));
    let mut shared = TopicRows::shared("t", "t.load.1", &of, 0).unwrap();
    let messages = shared.messages(&origin("a", 3), &rows(&instants)).unwrap();
    let found = messages.iter().map(|message| instant_of(&message.value));
    assert_eq!(found.collect::<Vec<_>>(), instants.map(Some));
    let watermark = shared.watermark(42, 0).unwrap();
    assert_eq!(instant_of(&watermark.value), Some(42));
    for damaged in [
        &[][..],
        &[2],
        &[2, 0xff, 0xff],
        &[0xff; 40],
        b"{\"ts\":1",
        b"{}",
    ] {
        assert_eq!(instant_of(damaged), None, "{damaged:?}");
    }
}

#[test]
fn whatever_fails_is_sent_again() {
    for failures in [1, 2, 5] {
        let (broker, home) = (TestBroker::default(), tempfile::tempdir().unwrap());
        *broker.failures.lock().unwrap() = failures;
        let mut forwarder = forwarder(&broker, home.path());
        let of = cut_by("select bytes from IO", PlacementStrategy::Rows);
        let topic = forwarder.add("q", &of, 0).unwrap();
        for sequence in 0..10 {
            forwarder.rows(&topic, &origin("a", sequence), &rows(&[1, 2, 3]));
            forwarder.advance(0);
        }
        until("it is tried again", || broker.all(&topic).len() >= 30);
        assert!(forwarder.take_lost().is_empty());
        forwarder.close();
        let mut keys = broker.all(&topic);
        keys.retain(|key| key != "watermark");
        let mut once: Vec<String> = Vec::new();
        for key in &keys {
            if !once.contains(key) {
                once.push(key.clone());
            }
        }
        // The first of each is in order.
        let expected = (0..10).flat_map(|message| (0..3).map(move |row| (message, row)));
        let expected = expected.map(|(message, row)| format!("a/{:016x}/{message}/{row}", 7));
        assert_eq!(once, expected.collect::<Vec<_>>(), "{keys:?}");
    }
}

#[test]
fn a_message_that_is_refused_holds_up_no_other() {
    let (broker, home) = (TestBroker::default(), tempfile::tempdir().unwrap());
    let mut forwarder = forwarder(&broker, home.path());
    let of = cut_by("select bytes from IO", PlacementStrategy::Rows);
    let topic = forwarder.add("q", &of, 0).unwrap();
    for sequence in 10..20 {
        forwarder.rows(&topic, &origin("a", sequence), &rows(&[1]));
    }
    forwarder.advance(0);
    until("the others arrive", || broker.all(&topic).len() >= 9);
    let mut lost = BTreeMap::new();
    until("it is counted", || {
        lost.extend(forwarder.take_lost());
        !lost.is_empty()
    });
    assert_eq!(lost, BTreeMap::from([("refused", 1)]));
    forwarder.close();
}

#[test]
fn what_waited_when_the_process_ended_is_sent_by_the_next_one() {
    let (broker, home) = (TestBroker::default(), tempfile::tempdir().unwrap());
    *broker.failures.lock().unwrap() = u32::MAX;
    let of = cut_by("select bytes from IO", PlacementStrategy::Rows);
    let mut first = forwarder(&broker, home.path());
    let topic = first.add("q", &of, 0).unwrap();
    first.rows(&topic, &origin("a", 1), &rows(&[1, 2]));
    first.advance(0);
    until("the failure is reported", || {
        first.status().0.failure.is_some()
    });
    assert!(first.status().1 > 0, "messages wait");
    // As after `kill -9`: nothing is closed.
    std::mem::forget(first);
    let working = TestBroker::default();
    let mut second = forwarder(&working, home.path());
    second.add("q", &of, 0).unwrap();
    second.rows(&topic, &origin("a", 2), &rows(&[3]));
    second.advance(0);
    second.close();
    let mut keys = working.all(&topic);
    keys.retain(|key| key != "watermark");
    let expected = ["1/0", "1/1", "2/0"].map(|end| format!("a/{:016x}/{end}", 7));
    assert_eq!(keys, expected);
}

#[test]
fn a_topic_that_is_made_again_with_other_partitions_is_found() {
    let (broker, home) = (TestBroker::default(), tempfile::tempdir().unwrap());
    *broker.failures.lock().unwrap() = u32::MAX;
    let mut forwarder = forwarder(&broker, home.path());
    let of = cut_by("select bytes from IO", PlacementStrategy::Rows);
    let topic = forwarder.add("q", &of, 0).unwrap();
    for host in ["a", "b", "c", "d", "e"] {
        forwarder.rows(&topic, &origin(host, 1), &rows(&[1]));
    }
    forwarder.advance(SECOND);
    until("the failure is reported", || {
        forwarder.status().0.failure.is_some()
    });
    *broker.partitions.lock().unwrap() = 1;
    *broker.failures.lock().unwrap() = 0;
    until("all arrive", || broker.all(&topic).len() >= 6);
    assert_eq!(broker.keys(&topic, 0).len(), 6);
    forwarder.close();
}

#[test]
fn an_end_does_not_wait_for_a_broker_that_does_not_answer() {
    let home = tempfile::tempdir().unwrap();
    let broker = TestBroker {
        pause: Duration::from_secs(3_600),
        ..TestBroker::default()
    };
    let mut first = forwarder(&broker, home.path());
    let of = cut_by("select bytes from IO", PlacementStrategy::Rows);
    let topic = first.add("q", &of, 0).unwrap();
    first.rows(&topic, &origin("a", 1), &rows(&[1]));
    first.close();
    let working = TestBroker::default();
    let second = forwarder(&working, home.path());
    until("the next process sends it", || {
        working.all(&topic).len() == 1
    });
    second.close();
}

#[test]
fn a_row_that_cannot_be_encoded_takes_no_other_with_it() {
    let (broker, home) = (TestBroker::default(), tempfile::tempdir().unwrap());
    let mut forwarder = forwarder(&broker, home.path());
    let query = "select vm, sum(bytes) from IO [range 1 s slide 1 s] group by vm";
    let of = cut_by(query, PlacementStrategy::Partials);
    let topic = forwarder.add("q", &of, 0).unwrap();
    let Node::Partial { calls, .. } = &of.fragments[0].plan.node else {
        panic!("{}", of.fragments[0].plan);
    };
    let mut state = calls[0].function.append_only_state(&calls[0]);
    state.resize(1);
    let (values, mut none) = (Column::ints(vec![5]), ColumnBuilder::new(Type::Int, 0));
    state
        .update(&[0], &[1], &[values], &[false], &mut none)
        .unwrap();
    let mut bytes = Vec::new();
    state.partial(0, &mut bytes);
    let states = [bytes, vec![9, 9]].map(|bytes| Value::Bytes(bytes.into()));
    let column = Column::from_values(Type::Partial, states);
    let keys = Column::texts(["a", "b"]);
    let batch = Batch::stream(
        vec![SECOND; 2],
        vec![keys, column, Column::ints(vec![3, 4])],
    );
    let counts = of.fragments[0].plan.requests_column();
    forwarder.rows(
        &topic,
        &RowOrigin {
            counts,
            ..origin("a", 1)
        },
        &batch,
    );
    assert_eq!(forwarder.take_lost(), BTreeMap::from([("not_encoded", 4)]));
    forwarder.advance(0);
    until("the other arrives", || {
        broker.all(&topic).iter().any(|key| key.ends_with("/1/0"))
    });
    forwarder.close();
}

#[test]
fn relations_are_forwarded_as_their_content_at_the_ends_of_windows() {
    let joined = "select d.vdisk, sum(i.bytes) as bytes from IO [range 4 s slide 2 s] i join disks d \
                  on i.host = d.host and i.vdisk = d.vdisk group by d.vdisk";
    for topics in [TopicUse::PerQuery, TopicUse::Shared] {
        let (broker, home) = (TestBroker::default(), tempfile::tempdir().unwrap());
        let mut forwarder = forwarder(&broker, home.path()).with_topics(topics);
        let of = cut_by(joined, PlacementStrategy::Rows);
        let number = relation_of(&of);
        let name = forwarder.add("q", &of, number).unwrap();
        assert_eq!(forwarder.content_every(&name), Some(2 * SECOND));
        // At other instants it is another content.
        let other = joined.replace("slide 2 s", "slide 4 s");
        let other = cut_by(&other, PlacementStrategy::Rows);
        assert_eq!(other.fragments, of.fragments);
        assert_ne!(topics.rows("t", "q", &other, number), name);
        let fields = &of.fragments[number].plan.schema.fields;
        let rows = |disks: &[&str]| {
            let column = |field: &Field| match &*field.name {
                "vdisk" => Column::texts(disks.iter().copied()),
                "host" => Column::texts(disks.iter().map(|_| "db1")),
                other => panic!("{other}"),
            };
            Batch::stream(vec![0; disks.len()], fields.iter().map(column).collect())
        };
        for (host, disks) in [
            ("db1", &["sda", "sdb"][..]),
            ("db2", &[]),
            ("db1", &["sda"]),
        ] {
            forwarder.content(&name, host, 7, 2 * SECOND, &rows(disks));
        }
        forwarder.advance(2 * SECOND);
        let topic = forwarder.topic(&name).unwrap().to_owned();
        until("all arrive", || broker.all(&topic).len() >= 4);
        assert!(forwarder.take_lost().is_empty());
        // Of the most rows that a relation has at a host.
        let many = rows(&["sda"; 262_144]);
        forwarder.content(&name, "db1", 7, 4 * SECOND, &many);
        let lost = BTreeMap::from([("too_large", 262_144)]);
        assert_eq!(forwarder.take_lost(), lost);
        forwarder.close();
        let prefix = if topics == TopicUse::Shared {
            format!("{name}/")
        } else {
            String::new()
        };
        let of_db1 = format!("{prefix}db1/{}", 2 * SECOND);
        let keys = broker.all(&topic);
        assert_eq!(
            keys.iter().filter(|key| **key == of_db1).count(),
            2,
            "{keys:?}"
        );
        assert!(keys.contains(&format!("{prefix}db2/{}", 2 * SECOND)));
    }
}

#[test]
fn a_relation_without_windows_of_one_size_is_not_forwarded() {
    let (broker, home) = (TestBroker::default(), tempfile::tempdir().unwrap());
    let mut forwarder = forwarder(&broker, home.path());
    let windows = |other: &str| {
        format!(
            "select d.vdisk from disks d, IO [range 2 s slide 1 s] i, IO [{other}] j \
             where i.vdisk = d.vdisk and j.vdisk = d.vdisk and i.bytes < j.bytes"
        )
    };
    for (query, reason) in [
        ("select vdisk from disks".to_owned(), "no window"),
        (windows("range 3 s slide 1 s"), "different windows"),
        (
            windows("range 2 s slide 1 s").replace("slide 1 s", "slide 50 ms"),
            "100 ms",
        ),
    ] {
        let of = cut_by(&query, PlacementStrategy::Rows);
        let number = relation_of(&of);
        let why = forwarder.add("q", &of, number).unwrap_err();
        assert!(why.contains(reason), "{why}");
    }
    forwarder.close();
}
