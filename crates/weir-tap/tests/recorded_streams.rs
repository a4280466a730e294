//! Recordings of any stream or relation: what is read is what was written, and the file describes
//! it.

mod traces;

use std::path::Path;
use std::time::Duration;

use traces::Scratch;
use weir_model::{
    Alias, Batch, Catalog, ClosedSet, Column, Declaration, Demand, Event, EventKind, Field,
    IoBatch, IoEvent, Op, Schema, Shape, Type, Unit, Value,
};
use weir_tap::TapEvent;
use weir_tap::format::recording::RecordingWriter;
use weir_tap::format::{Header, Input, Trace, TraceInput, TraceOptions, TraceWriter, convert};

/// In November 2023.
const START: i64 = 1_700_000_000_000_000_000;

/// A stream that no code of weir knows, with a column of each type.
fn sensors() -> Declaration {
    let aliases = [
        Alias::same("Total"),
        Alias::in_unit("Blocks", Unit::Sectors),
    ];
    let fields = vec![
        Field::new("sensor", Type::Text)
            .doc("where it is, \u{b0}C")
            .nullable(),
        Field::new("celsius", Type::Float)
            .doc("its temperature")
            .nullable(),
        Field::new("read_at", Type::Time).unit(Unit::Nanoseconds),
        Field::new("worn", Type::Bool).nullable(),
        Field::new("written", Type::Int)
            .unit(Unit::Bytes)
            .aliases(&aliases),
        Field::new("op", Type::Text)
            .values(ClosedSet::Op)
            .nullable(),
    ];
    Declaration {
        doc: "temperatures of disks".into(),
        ..Declaration::new("sensors", Shape::Stream, Schema::new(fields))
    }
}

/// Rows of [`sensors`], two at each instant.
fn of_sensors(rows: i64) -> Batch {
    let types = sensors()
        .schema
        .fields
        .iter()
        .map(|f| f.ty)
        .collect::<Vec<_>>();
    let mut columns = vec![Vec::new(); types.len()];
    for i in 0..rows {
        let null = |value: Value| match i % 3 {
            0 => Value::Null,
            _ => value,
        };
        let values = [
            null(Value::text(&format!("sensor {}", i % 7))),
            null(Value::Float(i as f64 / 8.0)),
            Value::Int(START - i),
            null(Value::Bool(i % 2 == 0)),
            Value::Int(i << 40),
            null(Value::text("w")),
        ];
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    let columns = types.iter().zip(columns);
    let columns = columns.map(|(ty, values)| Column::from_values(*ty, values));
    let ts: Vec<i64> = (0..rows).map(|i| START + i / 2).collect();
    Batch::stream(ts, columns.collect())
}

fn record(path: &Path, stream: &Declaration, batch: &Batch) {
    let header = Header {
        stream: stream.clone(),
        ..Header::default()
    };
    let mut writer = RecordingWriter::create(path, &header).unwrap();
    writer.write(&batch.slice(0, batch.len() / 2)).unwrap();
    writer.flush_group().unwrap();
    writer
        .write(&batch.slice(batch.len() / 2, batch.len() - batch.len() / 2))
        .unwrap();
    Box::new(writer).finish().unwrap();
}

/// The rows of a trace for one demand: instant, weight and values of each.
fn rows_of(trace: Trace, demand: Demand) -> Vec<(i64, i64, Vec<Value>)> {
    let mut tap = trace.start(&[demand]).unwrap();
    let mut rows = Vec::new();
    loop {
        match tap.next(Duration::ZERO).unwrap() {
            TapEvent::Rows { batch, .. } => {
                rows.extend((0..batch.len()).map(|i| (batch.ts[i], batch.weight(i), batch.row(i))));
            }
            TapEvent::End => return rows,
            _ => {}
        }
    }
}

fn opened(source: &TraceInput) -> Trace {
    Trace::open(Input::open(source).unwrap(), &TraceOptions::default()).unwrap()
}

#[test]
fn a_recording_describes_a_stream_that_weir_does_not_know() {
    let scratch = Scratch::new();
    let path = scratch.path().join("sensors.parquet");
    let (stream, written) = (sensors(), of_sensors(50));
    record(&path, &stream, &written);
    let expected: Vec<_> = (0..50)
        .map(|i| (written.ts[i], 1, written.row(i)))
        .collect();
    let trace = opened(&TraceInput::file(&path));
    assert_eq!(trace.content(), stream);
    let capabilities = trace.capabilities();
    let described: Vec<_> = capabilities
        .streams
        .iter()
        .map(|s| &s.declaration)
        .collect();
    assert_eq!(described, [&stream]);
    assert!(!capabilities.is_of_requests("sensors"));
    assert_eq!(rows_of(trace, Demand::whole(&stream)), expected);
    // A part of its columns, and a stream that it does not have.
    let some = Demand {
        columns: vec![1, 4],
        ..Demand::whole(&stream)
    };
    let rows = rows_of(opened(&TraceInput::file(&path)), some);
    for ((_, _, row), (_, _, whole)) in rows.iter().zip(&expected) {
        assert_eq!(
            (&row[1], &row[4], &row[0]),
            (&whole[1], &whole[4], &Value::Null)
        );
    }
    assert_eq!(rows.len(), 50);
    let requests = rows_of(opened(&TraceInput::file(&path)), traces::all_of("IO"));
    assert_eq!(requests, []);
    // What is left of it after a crash, and a copy.
    let whole = std::fs::read(&path).unwrap();
    let cut = opened(&TraceInput::bytes(&whole[..whole.len() - 9]));
    assert_eq!(cut.content(), stream);
    assert_eq!(rows_of(cut, Demand::whole(&stream)), expected[..25]);
    let copy = scratch.path().join("copy.parquet");
    let input = || Input::open(&TraceInput::file(&path)).unwrap();
    convert(input(), &TraceOptions::default(), &copy, None, &mut |_| {
        true
    })
    .unwrap();
    let copy = opened(&TraceInput::file(&copy));
    assert_eq!(copy.content(), stream);
    assert_eq!(rows_of(copy, Demand::whole(&stream)), expected);
    let iolog = scratch.path().join("x.iolog");
    let refused = convert(input(), &TraceOptions::default(), &iolog, None, &mut |_| {
        true
    });
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("no `sensors`"), "{refused}");
}

#[test]
fn a_recording_of_a_relation_keeps_what_is_inserted_and_retracted() {
    let scratch = Scratch::new();
    let path = scratch.path().join("r.parquet");
    let fields = vec![Field::new("ts", Type::Int), Field::new("vm", Type::Text)];
    let relation = Declaration::new("guests", Shape::Relation, Schema::new(fields));
    let columns = vec![Column::ints(vec![7, 8, 7]), Column::texts(["a", "b", "a"])];
    let batch = Batch::deltas(vec![START, START, START + 9], vec![1, 2, -1], columns);
    record(&path, &relation, &batch);
    let trace = opened(&TraceInput::file(&path));
    assert_eq!(trace.content().shape, Shape::Relation);
    let rows = rows_of(trace, Demand::whole(&relation));
    let written: Vec<_> = (0..3)
        .map(|i| (batch.ts[i], batch.weight(i), batch.row(i)))
        .collect();
    assert_eq!(rows, written);
}

#[test]
fn a_stream_of_the_catalog_is_recorded_alone() {
    let scratch = Scratch::new();
    let path = scratch.path().join("io.parquet");
    let catalog = Catalog::builtin();
    let io_stream = catalog.find("IO").unwrap();
    let event = |i| Event::new(START + i, EventKind::Response, Op::Read, i, Some(i), 8);
    let events: Vec<IoEvent> = (0..9).map(|i| IoEvent::new(event(i))).collect();
    record(&path, io_stream, &IoBatch::new(None).build(&events));
    let trace = opened(&TraceInput::file(&path));
    let capabilities = trace.capabilities();
    assert!(capabilities.is_of_requests("IO") && capabilities.stream("IOstream").is_none());
    assert_eq!(rows_of(trace, traces::all_of("IO")).len(), 9);
    let tally = Declaration::new(
        "t",
        Shape::Stream,
        Schema::new(vec![Field::new("sizes", Type::Tally)]),
    );
    let header = Header {
        stream: tally,
        ..Header::default()
    };
    let refused = RecordingWriter::create(&path, &header).err().unwrap();
    assert!(refused.to_string().contains("column `sizes`"), "{refused}");
}
