//! Only selected records are written: the I/O queue's selection equals the model's, row by row.

use proptest::prelude::*;
use weir_model::event::{sample, value};
use weir_model::{
    Batch, Clause, Demand, EventKind, IoBatch, Op, Operand, Predicate, Symbol, Test, Value,
};
use weir_tap::tapdisk::layout::Record;
use weir_tap::tapdisk::ring::Read;
use weir_tap::tapdisk::words::Wanted;
use weir_tap::tapdisk::{Names, everything};
use weir_tapdisk::selection::RecordSelection;

use super::simulated_queues::{Received, SimulatedQueue, TestTap, all, assert_same, count, names};

/// Whether a row passes, by the model: from the columns and their tests.
fn passes(predicate: &Predicate, batch: &Batch, row: usize) -> bool {
    let value = |operand: Operand| batch.columns[operand.column()].value(row);
    let holds = |test: &Test| match (test, value(test.operand())) {
        (Test::Between { operand, low, high }, Value::Int(x)) => {
            (*low..=*high).contains(&operand.of(x))
        }
        (Test::In { texts, .. }, Value::Text(text)) => texts.contains(&text),
        (_, Value::Null) => false,
        (test, value) => panic!("{test:?} tests {value}"),
    };
    predicate.clauses.iter().any(|c| c.tests.iter().all(holds))
}

/// A row of the recording.
fn batch_of(record: Record) -> Batch {
    let mut all = Names::new(None, 0);
    let numbered = |number: u16| weir_tap::tapdisk::words::DiskWord {
        number,
        ..names(usize::from(number))
    };
    all.learn(&[numbered(0), numbered(1)]);
    let read = Read {
        record,
        started_before: false,
    };
    IoBatch::new(None).build(&[all.event(&read)])
}

fn any_record() -> impl Strategy<Value = Record> {
    let number = prop_oneof![0..20u64, any::<u64>()];
    (
        (0..4usize, 0..5usize, 0..2u16),
        prop::option::of(number.clone()),
        0..20u32,
        prop::array::uniform3(number),
        any::<bool>(),
    )
        .prop_map(
            |((kind, op, disk), sector, sectors, times, submitted)| Record {
                kind: EventKind::ALL[kind],
                op: Op::ALL[op],
                fua: false,
                folded: 0,
                errno: 5,
                disk,
                queue: 0,
                id: 1,
                ts_ns: times[0],
                // All ones represent none.
                sector: sector.filter(|s| *s != u64::MAX),
                sectors,
                in_flight: 1,
                taken_ns: times[1],
                submitted_ns: (submitted && times[2] > 0).then_some(times[2]),
                seek_sectors: None,
                interarrival_ns: None,
            },
        )
}

fn any_test() -> impl Strategy<Value = Test> {
    let numbers = prop::sample::select(vec![
        value("sector"),
        value("vsector"),
        value("sectors"),
        value("pid"),
        value("wait"),
        value("service"),
        value("latency"),
    ]);
    let near = prop_oneof![-2..22i64, any::<i64>()];
    let between = (numbers, near.clone(), near).prop_map(|(operand, low, high)| Test::Between {
        operand,
        low,
        high,
    });
    let sampled = (0..1i64 << 32).prop_map(|high| Test::Between {
        operand: sample("sector"),
        low: 0,
        high,
    });
    let texts = |operand, texts: &'static [&'static str]| {
        prop::sample::subsequence(texts.to_vec(), 0..=texts.len()).prop_map(move |chosen| {
            Test::In {
                operand,
                texts: chosen.into_iter().map(Symbol::new).collect(),
            }
        })
    };
    prop_oneof![
        between,
        sampled,
        texts(value("type"), &["Q", "R", "E", "N", "QR", ""]),
        texts(value("op"), &["r", "w", "f", "d", "z", "rw"]),
        texts(value("pdisk"), &["/images/0.img", "/images/1.img", "other"]),
        texts(value("vm"), &["web", "db", ""]),
        texts(value("vdisk"), &["/dev/vd0", "/dev/vd1", "/dev/vd2"]),
        texts(value("comm"), &["fio"]),
        texts(value("cgroup"), &["/a"]),
    ]
}

fn any_predicate() -> impl Strategy<Value = Predicate> {
    let clause = prop::collection::vec(any_test(), 0..4).prop_map(|tests| Clause { tests });
    prop::collection::vec(clause, 0..4).prop_map(|clauses| Predicate { clauses })
}

fn demand(stream: &str, predicate: Predicate) -> Demand {
    Demand {
        stream: stream.into(),
        predicate,
        ..everything()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn a_queue_writes_the_selected_records_only(
        predicate in any_predicate(),
        record in any_record(),
        finished_only in any::<bool>(),
    ) {
        let stream = if finished_only { "IO" } else { "IOstream" };
        let wanted = Wanted::of(&[demand(stream, predicate.clone())], 0);
        let selection = RecordSelection::new(&wanted.clauses, &names(usize::from(record.disk)));
        let is_row = !finished_only || record.is_end();
        let expected = is_row && passes(&predicate, &batch_of(record), 0);
        prop_assert_eq!(selection.holds(&record), expected);
        prop_assert!(!expected || selection.is_of(record.kind));
    }
}

#[test]
fn a_selection_delivers_its_rows_and_others_are_not_recorded() {
    let slow = Test::Between {
        operand: value("latency"),
        low: 20_000,
        high: i64::MAX,
    };
    let text = |operand, text| Test::In {
        operand,
        texts: vec![Symbol::new(text)],
    };
    let predicate = Predicate {
        clauses: vec![
            Clause {
                tests: vec![slow, text(value("op"), "w")],
            },
            Clause {
                tests: vec![
                    text(value("pdisk"), "/images/1.img"),
                    text(value("type"), "E"),
                ],
            },
        ],
    };
    let mut test_tap = TestTap::new(2);
    let mut whole = test_tap.open(&all(), 64 << 20);
    let mut some = test_tap.open(&[demand("recording", predicate.clone())], 64 << 20);
    let mut recorded = 0;
    for disk in 0..2 {
        recorded += SimulatedQueue::new(&test_tap.hub, disk, 0, 1)
            .run(3_000)
            .len();
    }
    let status = test_tap.hub.status();
    test_tap.end();
    let (mut all_received, mut some_received) = (Received::default(), Received::default());
    all_received.receive_until(&mut whole, |_| false);
    some_received.receive_until(&mut some, |_| false);
    let mut expected = Vec::new();
    let mut rows = all_received.rows.iter();
    for batch in &all_received.batches {
        for (row, key) in (0..batch.len()).zip(rows.by_ref()) {
            if passes(&predicate, batch, row) {
                expected.push(key.clone());
            }
        }
    }
    assert!(!expected.is_empty());
    assert_eq!(status.consumers[1].records, expected.len() as u64);
    let avoided = recorded - expected.len();
    assert_eq!(status.consumers[1].avoided, avoided as u64);
    assert_eq!(count(&mut some, "events_avoided"), avoided as i64);
    assert_same(expected, some_received.rows);
}
