//! Selections read the row groups of a recording that can have their rows: with them, the rows that
//! pass are those of the whole recording.

#[path = "traces/random_requests.rs"]
mod random_requests;

use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use random_requests::{Irregularity, Load};
use weir_model::capabilities::recording;
use weir_model::event::{io_schema, iostream_schema};
use weir_model::{Clause, Demand, IoBatch, IoEvent, Operand, Predicate, Symbol, Test, Value};
use weir_tap::TapEvent;
use weir_tap::format::recording::RecordingWriter;
use weir_tap::format::{self, Header, TraceInput, TraceOptions, TraceWriter};
use weir_testing::Scratch;

/// Events of a row group.
const GROUP: usize = 400;

/// Writes `groups` row groups; in file order their times ascend, or two row groups are exchanged.
fn write(path: &Path, seed: u64, groups: usize, exchanged: bool) {
    let irregularity = Irregularity {
        tick_ns: 1_000,
        one_in: Some(9),
    };
    let mut load = Load::new(seed, irregularity);
    let mut events = Vec::new();
    while events.len() < groups * GROUP {
        load.request(&mut events);
    }
    load.finish(&mut events);
    let mut parts: Vec<&[IoEvent]> = events.chunks(GROUP).collect();
    if exchanged {
        parts.swap(2, 3);
    }
    let header = Header {
        source: "a test".into(),
        ..Header::default()
    };
    let mut writer = RecordingWriter::create(path, &header).unwrap();
    for events in parts {
        writer.write(&IoBatch::new(None).build(events)).unwrap();
        writer.flush_group().unwrap();
    }
    Box::new(writer).finish().unwrap();
}

type Row = (i64, Vec<Value>);

/// The rows of a demand, the number of events, and of those that were not read.
fn read(path: &Path, demand: &Demand) -> (Vec<Row>, [i64; 2]) {
    let source = TraceInput::file(path);
    let options = TraceOptions::default();
    let mut tap = format::open_source(&source, std::slice::from_ref(demand), &options).unwrap();
    let (mut rows, mut heartbeat) = (Vec::new(), i64::MIN);
    loop {
        match tap.next(Duration::ZERO).unwrap() {
            TapEvent::Rows { batch, .. } => {
                for row in 0..batch.len() {
                    assert!(batch.ts[row] > heartbeat, "no row is late");
                    rows.push((batch.ts[row], batch.row(row)));
                }
            }
            TapEvent::Heartbeat(at) => {
                assert!(at >= heartbeat, "time does not go back");
                heartbeat = at;
            }
            TapEvent::End => break,
            TapEvent::Quiet => {}
            TapEvent::Folded { .. } => panic!("a recording has no groups"),
        }
    }
    let counts = tap.counts();
    let count = |name: &str| {
        let own = counts.iter().filter(|count| count.counter == name);
        own.map(|count| count.total).sum::<i64>()
    };
    (rows, [count("events_in"), count("events_avoided")])
}

/// Whether a row passes, by the definition.
fn passes(predicate: &Predicate, row: &[Value]) -> bool {
    let holds = |test: &Test| match (test, &row[test.operand().column()]) {
        (Test::Between { low, high, .. }, Value::Int(x)) => (*low..=*high).contains(x),
        (Test::In { texts, .. }, Value::Text(text)) => texts.contains(text),
        (_, Value::Null) => false,
        (test, value) => panic!("{test:?} tests {value}"),
    };
    predicate.clauses.iter().any(|c| c.tests.iter().all(holds))
}

/// A test of a column whose values are `values`.
fn any_test(random: &mut Rng, column: usize, values: &[Value]) -> Option<Test> {
    let operand = Operand::Value(column);
    let number = |value: &Value| match value {
        Value::Int(x) => Some(*x),
        _ => None,
    };
    let near =
        |random: &mut Rng| Some(number(&values[random.usize(..values.len())])? + random.i64(-2..3));
    match values.iter().find(|value| **value != Value::Null)? {
        Value::Int(_) => {
            let (a, b) = (near(random)?, near(random)?);
            let (low, high) = match random.u8(..4) {
                0 => (a, i64::MAX),
                1 => (i64::MIN, a),
                _ => (a.min(b), a.max(b)),
            };
            Some(Test::Between { operand, low, high })
        }
        Value::Text(_) => {
            let mut texts = vec![Symbol::new("nothing")];
            if let Value::Text(text) = &values[random.usize(..values.len())] {
                texts.push(*text);
            }
            Some(Test::In { operand, texts })
        }
        _ => None,
    }
}

#[test]
fn selected_rows_are_those_of_the_whole_recording() {
    let scratch = Scratch::new();
    let mut random = Rng::with_seed(81);
    let (mut avoided, mut all) = (0, 0);
    for seed in 0..4 {
        let path = scratch.path().join(format!("{seed}.parquet"));
        write(&path, seed, 8, seed == 3);
        for stream in ["IO", "IOstream", "recording"] {
            let schema = match stream {
                "IO" => io_schema().clone(),
                "IOstream" => iostream_schema().clone(),
                _ => recording().schema.as_ref().clone(),
            };
            let whole = Demand {
                stream: stream.into(),
                columns: (0..schema.len()).collect(),
                predicate: Predicate::all(),
                fold: None,
            };
            let (rows, [events, _]) = read(&path, &whole);
            assert!(rows.len() > 1_000);
            for _ in 0..20 {
                let clauses = (0..random.usize(1..3)).map(|_| {
                    let tests = (0..random.usize(1..4)).filter_map(|_| {
                        // Times are in a few row groups, other values in most.
                        let column = [0, random.usize(..schema.len())][random.usize(..2)];
                        let values: Vec<Value> =
                            rows.iter().map(|(_, row)| row[column].clone()).collect();
                        any_test(&mut random, column, &values)
                    });
                    Clause {
                        tests: tests.collect(),
                    }
                });
                let predicate = Predicate {
                    clauses: clauses.collect(),
                };
                let demand = Demand {
                    predicate: predicate.clone(),
                    ..whole.clone()
                };
                let (read, [read_events, skipped]) = read(&path, &demand);
                let own = |rows: &[Row]| -> Vec<Row> {
                    let passing = rows.iter().filter(|(_, row)| passes(&predicate, row));
                    passing.cloned().collect()
                };
                assert_eq!(own(&read), own(&rows), "{stream}: {predicate:?}");
                assert_eq!(read_events, events, "{stream}: {predicate:?}");
                let begin = |rows: &[Row]| rows.first().map(|row| row.0);
                assert_eq!(
                    begin(&read),
                    begin(&rows),
                    "the first row is read in any case"
                );
                avoided += i64::from(skipped > 0);
                all += 1;
            }
        }
    }
    assert!(
        avoided > all / 10,
        "{avoided} of {all} selections skip row groups"
    );
}

#[test]
fn a_recording_without_rows_has_none_for_any_demand() {
    let scratch = Scratch::new();
    let path = scratch.path().join("empty.parquet");
    let writer = RecordingWriter::create(&path, &Header::default()).unwrap();
    Box::new(writer).finish().unwrap();
    let operand = Operand::Value(0);
    let (low, high) = (0, 1);
    for stream in ["IO", "IOstream", "recording"] {
        for tests in [Vec::new(), vec![Test::Between { operand, low, high }]] {
            let demand = Demand {
                stream: stream.into(),
                columns: vec![0],
                predicate: Predicate {
                    clauses: vec![Clause { tests }],
                },
                fold: None,
            };
            assert_eq!(read(&path, &demand), (Vec::new(), [0, 0]), "{demand:?}");
        }
    }
}
