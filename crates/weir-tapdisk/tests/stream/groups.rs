//! Groups that the I/O queues compute: together with the rows that they do not contain, they are
//! exactly those of the rows of another consumer.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weir_model::event::{io_schema, value};
use weir_model::{
    Batch, Clause, Demand, Fold, FoldCall, Folded, PartialKind, Predicate, Symbol, Test, Value,
};
use weir_tap::tapdisk::TapdiskClient;
use weir_tap::tapdisk::layout::VERSION;
use weir_tap::tapdisk::words::{Answer, Ask, CallWord, ClauseWord, FoldWord, KeepWord, Wanted};
use weir_tap::tapdisk::{groups::BlockMeasure, words};
use weir_tap::{FOLDED, Tap, TapEvent};

use super::groups_by_definition::{Groups, column, merge, of_folded, of_rows, rows_in};
use super::simulated_queues::{SimulatedQueue, TestTap, count};

const MILLISECOND: i64 = 1_000_000;

/// Limits on both sides of 0, as for `seek`.
const LIMITS: &[i64] = &[-5, 0, 1, 512, 4_096, 10_000, 40_000, 1_000_000];

fn call(name: &str, keep: PartialKind) -> FoldCall {
    let column = (!name.is_empty()).then(|| column(name));
    FoldCall { column, keep }
}

/// Each kind of value, of every column that has values; those of `merges` are always NULL.
fn all_calls() -> Vec<FoldCall> {
    let numbers = [
        "sectors",
        "bytes",
        "wait",
        "service",
        "latency",
        "in_flight",
        "seek",
        "interarrival",
    ];
    let moments = ["", "merges"].into_iter().chain(numbers);
    let mut calls: Vec<FoldCall> = moments
        .map(|name| call(name, PartialKind::Moments))
        .collect();
    for name in ["latency", "wait", "seek", "interarrival", "bytes"] {
        calls.push(call(name, PartialKind::Limits(LIMITS.to_vec())));
    }
    for name in ["latency", "seek"] {
        calls.push(call(name, PartialKind::LogLinear { bits: 7 }));
    }
    calls
}

fn demand(interval: i64, keys: &str, calls: &[FoldCall], tests: Vec<Test>) -> Demand {
    Demand {
        stream: "IO".into(),
        columns: (0..io_schema().len()).collect(),
        predicate: Predicate {
            clauses: vec![Clause { tests }],
        },
        fold: Some(Fold {
            interval,
            keys: keys.split_whitespace().map(column).collect(),
            calls: calls.to_vec(),
        }),
    }
}

/// All rows of `IO`.
fn rows() -> Demand {
    Demand {
        fold: None,
        ..demand(1, "", &[], Vec::new())
    }
}

/// What a consumer received.
#[derive(Default)]
struct Seen {
    /// The rows of each demand.
    rows: Vec<Vec<Vec<Value>>>,
    folded: Vec<(usize, Folded)>,
    heartbeat: i64,
    is_over: bool,
}

impl Seen {
    fn new(demands: usize) -> Seen {
        Seen {
            rows: vec![Vec::new(); demands],
            ..Seen::default()
        }
    }

    /// Receives until `enough`, or the end.
    fn receive_until(&mut self, tap: &mut dyn Tap, enough: impl Fn(&Seen) -> bool) {
        while !self.is_over && !enough(self) {
            match tap.next(Duration::from_millis(2)).unwrap() {
                TapEvent::Rows { demand, batch } => self.take(demand, &batch),
                TapEvent::Folded { demand, folded } => {
                    assert!(folded.end > self.heartbeat, "no interval is late");
                    self.folded.push((demand, folded));
                }
                TapEvent::Heartbeat(at) => {
                    assert!(at >= self.heartbeat, "time does not go back");
                    self.heartbeat = at;
                }
                TapEvent::End => self.is_over = true,
                TapEvent::Quiet => {}
            }
        }
    }

    fn take(&mut self, demand: usize, batch: &Batch) {
        for row in 0..batch.len() {
            assert!(batch.ts[row] > self.heartbeat, "no row is late");
            self.rows[demand].push(batch.row(row));
        }
    }

    fn groups(&self, demand: usize) -> impl Iterator<Item = &Folded> {
        let own = self.folded.iter().filter(move |(of, _)| *of == demand);
        own.map(|(_, folded)| folded)
    }
}

/// The groups of a demand: those that were delivered, and those of the rows that were.
fn both(seen: &Seen, demand: usize, fold: &Fold) -> [Groups; 2] {
    let rows = of_rows(seen.rows[demand].iter(), fold, &|_| true);
    [of_folded(seen.groups(demand), fold), rows]
}

/// Receives from `taps` while two disks with two queues each work on threads of their own, and
/// returns the number of events.
fn load(test_tap: &TestTap, events: usize, taps: &mut [(&mut dyn Tap, &mut Seen)]) -> usize {
    let run = |number: u16| {
        let queue = SimulatedQueue::new(&test_tap.hub, usize::from(number / 2), number % 2, 2);
        thread::spawn(move || queue.run(events).len())
    };
    let queues: Vec<_> = (0..4).map(run).collect();
    while !queues.iter().all(JoinHandle::is_finished) {
        for (tap, seen) in &mut *taps {
            let until = seen.heartbeat + 1;
            seen.receive_until(*tap, |seen| seen.heartbeat > until);
        }
    }
    queues.into_iter().map(|queue| queue.join().unwrap()).sum()
}

#[test]
fn groups_and_the_remaining_rows_are_those_of_all_rows() {
    let slow = Test::Between {
        operand: value("latency"),
        low: 20_000,
        high: i64::MAX,
    };
    let writes = Test::In {
        operand: value("op"),
        texts: vec![Symbol::new("w"), Symbol::new("z")],
    };
    let of_disk = Test::In {
        operand: value("vdisk"),
        texts: vec![Symbol::new("/dev/vd1")],
    };
    let is = |row: &[Value], name: &str, texts: &[&str]| {
        let text = row[column(name)].to_string();
        texts.contains(&text.as_str())
    };
    let is_slow = |row: &[Value]| match row[column("latency")] {
        Value::Int(ns) => ns >= 20_000,
        _ => false,
    };
    type Passes<'a> = &'a dyn Fn(&[Value]) -> bool;
    let cases: [(&str, Vec<Test>, Passes<'_>); 6] = [
        ("op vm vdisk pdisk", vec![], &|_| true),
        ("", vec![], &|_| true),
        ("type level host pid comm cgroup", vec![], &|_| true),
        ("vdisk", vec![slow], &is_slow),
        ("op", vec![writes], &|row| is(row, "op", &["w", "z"])),
        ("op", vec![of_disk], &|row| is(row, "vdisk", &["/dev/vd1"])),
    ];
    for (number, (keys, tests, passes)) in cases.into_iter().enumerate() {
        let mut test_tap = TestTap::new(2);
        let calls = all_calls();
        let interval = [5, 20, 1_000][number % 3] * MILLISECOND;
        let folding = demand(interval, keys, &calls, tests);
        let fold = folding.fold.clone().unwrap();
        let mut tap = test_tap.open(&[folding, rows()], 64 << 20);
        let described = tap.describe().join("\n");
        assert!(described.contains("tapdisk: groups"), "{described}");
        let mut seen = Seen::new(2);
        let recorded = load(&test_tap, 8_000, &mut [(&mut tap, &mut seen)]);
        // The interval of their last event passes.
        let end = weir_tap::monotonic_ns() as i64 + interval;
        seen.receive_until(&mut tap, |seen| seen.heartbeat > end);
        assert_eq!(count(&mut tap, "events_lost"), 0);
        assert_eq!(count(&mut tap, "events_late"), 0);
        assert_eq!(count(&mut tap, "bad_records"), 0);
        let [folded, rest] = both(&seen, 0, &fold);
        let expected = of_rows(seen.rows[1].iter(), &fold, passes);
        // A shorter interval may be over before this thread gets a processor.
        let is_folded = |row: &Vec<Value>| is(row, "type", &["R"]);
        let folded_rows = seen.rows[0].iter().filter(|row| is_folded(row));
        assert!(interval < 1_000 * MILLISECOND || folded_rows.count() == 0);
        assert!(rows_in(&folded) > 0, "{keys}");
        assert_eq!(merge(folded, rest), expected, "{keys}");
        assert!(recorded > 2 * seen.rows[1].len() - 100);
        // Nothing is delivered twice at the end.
        let before = (seen.folded.len(), seen.rows[0].len());
        test_tap.end();
        seen.receive_until(&mut tap, |_| false);
        assert_eq!((seen.folded.len(), seen.rows[0].len()), before);
    }
}

#[test]
fn a_consumer_of_groups_alone_gets_no_record_of_what_they_contain() {
    let mut test_tap = TestTap::new(2);
    let calls = [
        call("", PartialKind::Moments),
        call("latency", PartialKind::Moments),
    ];
    let folding = demand(10 * MILLISECOND, "op vdisk", &calls, Vec::new());
    let fold = folding.fold.clone().unwrap();
    let mut all = test_tap.open(&[rows()], 64 << 20);
    let mut tap = test_tap.open(&[folding], 64 << 20);
    let (mut seen, mut expected) = (Seen::new(1), Seen::new(1));
    let taps: &mut [(&mut dyn Tap, &mut Seen)] =
        &mut [(&mut tap, &mut seen), (&mut all, &mut expected)];
    let recorded = load(&test_tap, 10_000, taps);
    let status = test_tap.hub.status().consumers[1].clone();
    test_tap.end();
    // The interval that is open at the end is delivered as well.
    seen.receive_until(&mut tap, |_| false);
    expected.receive_until(&mut all, |_| false);
    let [folded, rest] = both(&seen, 0, &fold);
    let in_groups = rows_in(&folded);
    assert!(in_groups > 500 && in_groups == status.grouped, "{status:?}");
    assert_eq!(count(&mut tap, FOLDED), in_groups as i64);
    let rows = seen.rows[0].len() as i64;
    assert_eq!(count(&mut tap, "events_in"), in_groups as i64 + rows);
    let totals = status.records + status.grouped + status.avoided;
    assert_eq!((totals, status.lost), (recorded as u64, 0));
    let expected = of_rows(expected.rows[0].iter(), &fold, &|_| true);
    assert_eq!(merge(folded, rest), expected);
}

#[test]
fn failed_requests_and_those_without_an_open_interval_are_rows() {
    let test_tap = TestTap::new(1);
    let calls = [call("", PartialKind::Moments)];
    let folding = demand(MILLISECOND, "op", &calls, Vec::new());
    let fold = folding.fold.clone().unwrap();
    let mut tap = test_tap.open(&[folding], 64 << 20);
    // Both windows have ended before the first event.
    thread::sleep(Duration::from_millis(20));
    let queue = SimulatedQueue::new(&test_tap.hub, 0, 0, 1);
    let recorded = queue.run(500);
    let ended = recorded.iter().filter(|event| event.2 != "Q").count();
    let end = weir_tap::monotonic_ns() as i64 + MILLISECOND;
    let mut seen = Seen::new(1);
    seen.receive_until(&mut tap, |seen| seen.heartbeat > end);
    assert_eq!(rows_in(&of_folded(seen.groups(0), &fold)), 0);
    assert_eq!(seen.rows[0].len(), ended);
    let mut seen = Seen::new(1);
    let queue = SimulatedQueue::new(&test_tap.hub, 0, 1, 2);
    let recorded = thread::spawn(move || queue.run(5_000));
    seen.receive_until(&mut tap, |_| recorded.is_finished());
    let recorded = recorded.join().unwrap();
    let end = weir_tap::monotonic_ns() as i64 + MILLISECOND;
    seen.receive_until(&mut tap, |seen| seen.heartbeat > end);
    let failed = recorded
        .iter()
        .filter(|event| event.2 == "E" || event.2 == "N");
    let is_failed = |row: &&Vec<Value>| row[column("type")].to_string() != "R";
    assert_eq!(
        seen.rows[0].iter().filter(is_failed).count(),
        failed.count()
    );
    assert!(rows_in(&of_folded(seen.groups(0), &fold)) > 0);
}

#[test]
fn disks_that_are_added_later_and_share_a_ring_have_their_names_in_groups() {
    // Long enough for a busy machine: no interval ends unread.
    const INTERVAL: i64 = 2_000 * MILLISECOND;
    let test_tap = TestTap::new(1);
    let calls = [call("", PartialKind::Moments)];
    let folding = demand(INTERVAL, "vdisk", &calls, Vec::new());
    let fold = folding.fold.clone().unwrap();
    let mut tap = test_tap.open(&[folding], 64 << 20);
    let names = super::simulated_queues::names(7);
    let figures = Arc::new(words::DiskFigures::default);
    let number = test_tap
        .hub
        .register(names, figures, Arc::default())
        .unwrap();
    let mut responses = Vec::new();
    // One ring after the other: the ring of a queue that has ended is that of the next queue.
    for disk in [0, usize::from(number), 0] {
        let queue = SimulatedQueue::new(&test_tap.hub, disk, 0, 1);
        let recorded = queue.run(1_000);
        responses.push(recorded.iter().filter(|event| event.2 == "R").count() as u64);
    }
    let end = weir_tap::monotonic_ns() as i64 + INTERVAL;
    let mut seen = Seen::new(1);
    seen.receive_until(&mut tap, |seen| seen.heartbeat > end);
    let groups = of_folded(seen.groups(0), &fold);
    let of_disk = |name: &str| {
        let mut own = groups.clone();
        own.retain(|(_, key), _| key[0] == name);
        rows_in(&own)
    };
    assert_eq!(of_disk("/dev/vd0"), responses[0] + responses[2]);
    assert_eq!(of_disk("/dev/vd7"), responses[1]);
    assert_eq!(rows_in(&groups), responses.iter().sum::<u64>());
}

/// A request for groups, and its memory.
fn subscribed(test_tap: &TestTap, folds: Vec<FoldWord>) -> Result<(TapdiskClient, File), String> {
    let mut client = TapdiskClient::connect(&test_tap.scratch.socket()).unwrap();
    let wanted = Wanted {
        clauses: vec![ClauseWord::all("REN")],
        folds,
        ring_bytes: 1 << 20,
        layout: VERSION,
    };
    match client.ask(Ask::Records(wanted)) {
        Ok(Answer::Records(answer)) => assert!(answer.groups.is_some()),
        Ok(answer) => panic!("{answer:?}"),
        Err(error) => return Err(error.to_string()),
    }
    let memory = File::from(client.passed().unwrap());
    Ok((client, memory))
}

fn fold_word() -> FoldWord {
    let call = |measure, keep| CallWord { measure, keep };
    FoldWord {
        interval_ns: 1_000_000_000,
        by_disk: true,
        by_op: true,
        clauses: vec![0],
        calls: vec![
            call(BlockMeasure::Latency, KeepWord::LogLinear),
            call(BlockMeasure::Seek, KeepWord::Limits(LIMITS.to_vec())),
            call(BlockMeasure::Bytes, KeepWord::Moments),
        ],
    }
}

#[test]
fn groups_that_no_table_can_hold_are_refused() {
    let test_tap = TestTap::new(1);
    let fold = fold_word();
    let calls = |calls: Vec<CallWord>| {
        vec![FoldWord {
            calls,
            ..fold.clone()
        }]
    };
    let limits = |limits: Vec<i64>| CallWord {
        measure: BlockMeasure::Bytes,
        keep: KeepWord::Limits(limits),
    };
    let cases = [
        (vec![fold.clone(); 3], "the limit is 2 group-bys"),
        (
            calls(vec![fold.calls[2].clone(); 17]),
            "the limit is 16 values",
        ),
        (calls(vec![limits(vec![2, 1])]), "in ascending order"),
        (
            calls(vec![limits((0..513).collect())]),
            "at most 512 limits",
        ),
        (
            calls((0..3).map(|_| limits((0..512).collect())).collect()),
            "the limit is 1024 limits",
        ),
        (
            vec![FoldWord {
                interval_ns: 5,
                ..fold.clone()
            }],
            "an interval of groups cannot have 5 ns",
        ),
        (
            vec![FoldWord {
                clauses: vec![1],
                ..fold.clone()
            }],
            "a clause that does not exist",
        ),
    ];
    for (folds, expected) in cases {
        let error = subscribed(&test_tap, folds).map(drop).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert!(subscribed(&test_tap, vec![fold]).is_ok());
}

/// Any words in the tables of one consumer, which it can write.
#[test]
fn garbage_in_the_tables_of_groups_affects_no_other_consumer() {
    let mut test_tap = TestTap::new(1);
    let (_client, memory) = subscribed(&test_tap, vec![fold_word(); 2]).unwrap();
    let calls = all_calls();
    let folding = demand(20 * MILLISECOND, "op", &calls, Vec::new());
    let fold = folding.fold.clone().unwrap();
    let mut tap = test_tap.open(&[folding, rows()], 64 << 20);
    let stop = Arc::new(AtomicBool::new(false));
    let scribbler = {
        let stop = stop.clone();
        thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(78);
            let layout = weir_tap::tapdisk::layout::Layout::new(0);
            let groups = weir_tap::tapdisk::layout::GroupTables::new(1, true, 1 << 15);
            let layout = layout.with_groups(Some(groups));
            assert_eq!(memory.metadata().unwrap().len(), layout.words() as u64 * 8);
            let parts = [
                layout.group_windows(),
                layout.group_cpus().start..layout.group_cpus().start + 128,
                layout.group_cells(groups, 0),
                layout.group_blocks(groups, 0),
            ];
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    let part = parts[random.usize(..4)].clone();
                    let word = match random.u64(..4) {
                        0 => random.u64(..),
                        1 => u64::MAX,
                        // A window that is open.
                        2 => weir_tap::monotonic_ns() + 500_000_000,
                        _ => random.u64(..10),
                    };
                    let at = random.usize(part) as u64 * 8;
                    memory.write_all_at(&word.to_ne_bytes(), at).unwrap();
                }
                thread::yield_now();
            }
        })
    };
    let mut seen = Seen::new(2);
    let queue = SimulatedQueue::new(&test_tap.hub, 0, 0, 1);
    let queue = thread::spawn(move || queue.run(20_000));
    seen.receive_until(&mut tap, |_| queue.is_finished());
    queue.join().unwrap();
    stop.store(true, Ordering::Relaxed);
    scribbler.join().unwrap();
    test_tap.end();
    seen.receive_until(&mut tap, |_| false);
    let expected = of_rows(seen.rows[1].iter(), &fold, &|_| true);
    let [folded, rest] = both(&seen, 0, &fold);
    assert_eq!(merge(folded, rest), expected);
}

/// A later version may have tests that this one ignores: it then writes records, which the consumer
/// tests again.
#[test]
fn groups_of_a_selection_with_unknown_tests_are_not_computed() {
    let test_tap = TestTap::new(1);
    let clause = |text: &str| serde_json::from_str::<ClauseWord>(text).unwrap();
    let known = clause(r#"{"kinds":"R","ops":"rw"}"#);
    let unknown = clause(r#"{"kinds":"R","ops":"rw","weekdays":["monday"]}"#);
    for (clause, is_computed) in [(known, true), (unknown, false)] {
        let mut client = TapdiskClient::connect(&test_tap.scratch.socket()).unwrap();
        let wanted = Wanted {
            clauses: vec![clause],
            folds: vec![fold_word()],
            ring_bytes: 1 << 20,
            layout: VERSION,
        };
        let answer = client.ask(Ask::Records(wanted)).unwrap();
        let Answer::Records(answer) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(answer.groups.is_some(), is_computed);
    }
}
