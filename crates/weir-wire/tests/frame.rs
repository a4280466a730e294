//! Decoded rows equal the encoded ones, for any rows.

use std::sync::Arc;

use proptest::prelude::*;
use weir_model::{Batch, Column, Symbol, Tally, Type, Value};
use weir_wire::ChannelId;
use weir_wire::frame::texts::{ReceivedTexts, TextBudget, TextTable};
use weir_wire::frame::{self, Compression, Decoded, FrameError};
use weir_wire::message::{ColumnEncoding, ColumnKind};

/// Encodes and decodes `batch` on a new connection.
fn over_the_wire(batch: &Batch, compression: Compression) -> Batch {
    let mut texts = TextTable::default();
    let frame = frame::encode(ChannelId(7), batch, &mut texts, compression).expect("a frame");
    assert_eq!(
        (frame.head.channel, frame.head.rows as usize),
        (7, batch.len())
    );
    let mut known = ReceivedTexts::new(Arc::new(TextBudget::new(1000, 1 << 20)));
    while known.len() < texts.len() {
        known.add(&texts.from(known.len())).expect("texts in order");
    }
    match frame::decode(&frame.head, &frame.header, &frame.body, &known) {
        Ok(Decoded::Rows(batch)) => batch,
        other => panic!("{other:?}"),
    }
}

fn assert_same(a: &Batch, b: &Batch) {
    assert_eq!(a.ts, b.ts);
    assert_eq!(a.weights, b.weights);
    assert_eq!(a.columns.len(), b.columns.len());
    for row in 0..a.len() {
        assert_eq!(a.row(row), b.row(row), "row {row}");
    }
}

fn value(ty: Type) -> BoxedStrategy<Value> {
    let int = prop_oneof![
        any::<i64>(),
        0..3i64,
        (0..300i64).prop_map(|n| n * 4096),
        Just(i64::MIN),
        Just(i64::MAX)
    ];
    let text = (0..300u32).prop_map(|n| Value::text(&format!("text {n}")));
    let some = match ty {
        Type::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
        Type::Int | Type::Time => int.prop_map(Value::Int).boxed(),
        Type::Float => any::<f64>().prop_map(Value::Float).boxed(),
        Type::Text => text.boxed(),
        Type::Partial => {
            let bytes = prop::collection::vec(any::<u8>(), 0..9);
            bytes.prop_map(|b| Value::Bytes(b.into())).boxed()
        }
        Type::Tally => {
            let inner = prop_oneof![text, int.prop_map(Value::Int), Just(Value::Null)];
            let entries = prop::collection::vec((inner, any::<i64>()), 0..4);
            entries
                .prop_map(|e| Value::Tally(Arc::new(Tally(e))))
                .boxed()
        }
    };
    prop_oneof![4 => some, 1 => Just(Value::Null)].boxed()
}

fn batches() -> impl Strategy<Value = Batch> {
    let types = [
        Type::Bool,
        Type::Int,
        Type::Float,
        Type::Text,
        Type::Time,
        Type::Tally,
    ];
    let columns = prop::collection::vec(prop::sample::select(types.to_vec()), 0..6);
    let shape = (columns, 0..40usize, any::<bool>(), 0..i64::MAX / 4);
    shape.prop_flat_map(|(types, rows, deltas, from)| {
        let columns: Vec<_> = types
            .iter()
            .map(|ty| {
                let ty = *ty;
                prop::collection::vec(value(ty), rows)
                    .prop_map(move |values| Column::from_values(ty, values))
            })
            .collect();
        let steps = prop::collection::vec(prop_oneof![Just(0i64), 0..5000i64, 0..1i64 << 40], rows);
        let weights = prop::collection::vec(prop_oneof![Just(-1i64), 1..5i64], rows);
        (columns, steps, weights).prop_map(move |(columns, steps, weights)| {
            let mut ts = from;
            let ts: Vec<i64> = steps
                .iter()
                .map(|step| {
                    ts += step;
                    ts
                })
                .collect();
            match deltas {
                true => Batch::deltas(ts, weights, columns),
                false => Batch::stream(ts, columns),
            }
        })
    })
}

proptest! {
    #[test]
    fn encoding_round_trips(batch in batches(), zstd in any::<bool>()) {
        let compression = if zstd { Compression::Zstd } else { Compression::None };
        assert_same(&batch, &over_the_wire(&batch, compression));
    }

    #[test]
    fn a_corrupt_frame_is_rejected_or_decodes_to_valid_rows(
        batch in batches(),
        zstd in any::<bool>(),
        damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..8),
        rows in proptest::option::of(0..70_000u32),
    ) {
        let compression = if zstd { Compression::Zstd } else { Compression::None };
        let mut texts = TextTable::default();
        let frame = frame::encode(ChannelId(7), &batch, &mut texts, compression).expect("a frame");
        let mut known = ReceivedTexts::new(Arc::new(TextBudget::new(1000, 1 << 20)));
        known.add(&texts.from(0)).expect("few texts");
        let (mut header, mut body) = (frame.header.to_vec(), frame.body.to_vec());
        for (at, byte) in damage {
            let length = (header.len() + body.len()).max(1);
            let at = usize::from(at) % length;
            match at.checked_sub(header.len()) {
                None => header[at] = byte,
                Some(at) if at < body.len() => body[at] = byte,
                Some(_) => {}
            }
        }
        let mut head = frame.head.clone();
        head.rows = rows.unwrap_or(head.rows);
        // Other rows are possible, but they are valid.
        let (header, body) = (header.into(), body.into());
        if let Ok(Decoded::Rows(batch)) = frame::decode(&head, &header, &body, &known) {
            (0..batch.len()).for_each(|row| drop(batch.row(row)));
        }
    }

    #[test]
    fn a_slice_is_encoded_as_its_rows(batch in batches(), a in 0..40usize, b in 0..40usize) {
        let (from, to) = (a.min(b).min(batch.len()), a.max(b).min(batch.len()));
        let slice = batch.slice(from, to - from);
        assert_same(&slice, &over_the_wire(&slice, Compression::None));
    }
}

/// Batches that an engine never produces, but a frame could contain.
fn odd_batches() -> Vec<Batch> {
    // Without the checks of `Batch::stream`.
    let stream = |ts: Vec<i64>, columns| Batch {
        ts: ts.into(),
        weights: None,
        columns,
    };
    let deltas = |ts: Vec<i64>, weights: Vec<i64>| Batch {
        ts: ts.into(),
        weights: Some(weights.into()),
        columns: vec![],
    };
    let nested = |depth| {
        let deeper = |inner: Value, _| Value::Tally(Arc::new(Tally(vec![(inner, 1)])));
        let tally = (0..depth).fold(Value::Int(1), deeper);
        stream(vec![1], vec![Column::from_values(Type::Tally, [tally])])
    };
    let wide = |rows: i64, columns: usize| {
        let column = Column::ints(vec![5; rows as usize]);
        stream((0..rows).collect(), vec![column; columns])
    };
    let long = |bytes: usize| {
        let value = Value::Bytes(vec![0; bytes].into());
        let column = Column::from_values(Type::Partial, vec![value; 8]);
        stream(vec![1; 8], vec![column])
    };
    vec![
        stream(vec![2, 1], vec![]),
        stream(vec![-1, 1], vec![]),
        stream(vec![1, i64::MAX], vec![]),
        deltas(vec![1, 1], vec![1, 0]),
        deltas(vec![1], vec![i64::MIN]),
        nested(4),
        nested(5),
        wide(65_536, 64),
        wide(65_536, 65),
        wide(65_537, 0),
        wide(4, 1025),
        long(100 << 10),
        long(3 << 20),
        stream(vec![], vec![Column::ints(vec![])]),
    ]
}

#[test]
fn invalid_rows_are_not_encoded() {
    let mut refused = 0;
    for (i, batch) in odd_batches().iter().enumerate() {
        for compression in [Compression::None, Compression::Zstd] {
            let mut texts = TextTable::default();
            match frame::encode(ChannelId(1), batch, &mut texts, compression) {
                Ok(_) => assert_same(batch, &over_the_wire(batch, compression)),
                Err(FrameError::TextBudget) => panic!("there are no texts in batch {i}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert_eq!(refused, 2 * 10);
}

#[test]
fn a_narrow_row_takes_few_bytes() {
    let rows = 1000;
    let ts: Vec<i64> = (0..rows)
        .map(|i| 1_700_000_000_000_000_000 + i * 20_011)
        .collect();
    let vm = |i: i64| format!("vm{}", i % 10);
    let names: Vec<String> = (0..rows).map(vm).collect();
    let batch = Batch::stream(
        ts,
        vec![
            Column::texts(names.iter().map(String::as_str)),
            Column::texts((0..rows).map(|i| if i % 3 == 0 { "w" } else { "r" })),
            Column::ints((0..rows).map(|i| 4096 * (1 + i % 64)).collect()),
        ],
    );
    let mut texts = TextTable::default();
    let frame = frame::encode(ChannelId(1), &batch, &mut texts, Compression::None).unwrap();
    // 4 bytes for the time, one each for the VM, the operation and the size.
    let bytes = frame.header.len() + frame.body.len();
    assert!(bytes <= 7 * rows as usize + 500, "{bytes} bytes");
}

#[test]
fn texts_beyond_the_budget_are_reported_and_known_texts_are_free() {
    let budget = Arc::new(TextBudget::new(1, 100));
    let fresh = |n: u32| Symbol::try_new(&format!("known before {n}")).unwrap();
    (0..3).for_each(|n| {
        fresh(n);
    });
    let mut known = ReceivedTexts::new(budget.clone());
    let body = |first, texts: &[&str]| weir_wire::message::Texts {
        first,
        texts: texts.iter().map(|t| t.to_string()).collect(),
    };
    let texts = [
        "known before 0",
        "new to all 1",
        "new to all 2",
        "known before 2",
    ];
    known.add(&body(0, &texts)).unwrap();
    // A new connection shares the exhausted budget; texts received before are known.
    let mut again = ReceivedTexts::new(budget);
    again
        .add(&body(0, &["new to all 3", "new to all 1"]))
        .unwrap();
    let lost = |known: &ReceivedTexts, number: i64| {
        let head = weir_wire::message::RowsHeader {
            channel: 1,
            rows: 2,
            ts: Some(form(ColumnKind::Int, 5)),
            weights: None,
            columns: vec![form(ColumnKind::Text, number)],
            requests: 0,
        };
        match frame::decode(&head, &Default::default(), &Default::default(), known).unwrap() {
            Decoded::Rows(batch) => Ok(batch.row(0)),
            Decoded::TextBudget(rows) => Err(rows),
        }
    };
    assert_eq!(lost(&known, 0), Ok(vec![Value::text("known before 0")]));
    assert_eq!(lost(&known, 1), Ok(vec![Value::text("new to all 1")]));
    assert_eq!(lost(&known, 2), Err(2));
    assert_eq!(lost(&known, 3), Ok(vec![Value::text("known before 2")]));
    assert_eq!(lost(&again, 0), Err(2));
    assert_eq!(lost(&again, 1), Ok(vec![Value::text("new to all 1")]));
}

#[test]
fn times_are_written_once() {
    let ts: Vec<i64> = (1..=100).map(|i| i * i * 1_000_003).collect();
    let mut other = ts.clone();
    other[99] += 1;
    let once = Batch::stream(ts.clone(), Vec::new());
    let twice = Batch::stream(ts.clone(), vec![Column::ints(ts.clone())]);
    let both = Batch::stream(ts.clone(), vec![Column::ints(ts), Column::ints(other)]);
    let body = |batch: &Batch| {
        let mut texts = TextTable::default();
        let frame = frame::encode(ChannelId(1), batch, &mut texts, Compression::None);
        frame.unwrap().body.len()
    };
    assert_eq!(body(&twice), body(&once));
    assert!(body(&both) >= 2 * body(&once));
    assert_same(&over_the_wire(&both, Compression::None), &both);
}

fn form(kind: ColumnKind, base: i64) -> ColumnEncoding {
    ColumnEncoding {
        kind: kind.into(),
        width_bytes: 0,
        shift: 0,
        base,
    }
}

#[test]
fn a_full_table_rejects_only_new_texts() {
    let mut texts = TextTable::default();
    let long = "x".repeat(frame::texts::TEXT_BYTES_MAX + 1);
    let batch = |text: &str| Batch::stream(vec![1], vec![Column::texts([text])]);
    let mut put =
        |text: &str| frame::encode(ChannelId(1), &batch(text), &mut texts, Compression::None);
    assert!(put("short").is_ok());
    assert_eq!(put(&long).unwrap_err(), FrameError::TextBudget);
    assert!(put("short").is_ok());
}
