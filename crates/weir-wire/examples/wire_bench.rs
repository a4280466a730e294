//! The cost of rows on the wire: bytes, and processor time to encode and decode, per row.
//!
//! `cargo run --release -p weir-wire --example wire_bench`, or `cargo xtask bench wire`. The rows
//! are those of 200,000 requests a second on 10 disks. Times are processor times of the thread, the
//! minimum of several rounds; a round encodes or decodes about a million rows, or `ROWS`.

use std::hint::black_box;
use std::sync::Arc;

use weir_model::{Batch, Column};
use weir_testing::cpu_time;
use weir_wire::ChannelId;
use weir_wire::frame::texts::{ReceivedTexts, TextBudget, TextTable};
use weir_wire::frame::{self, Compression, Decoded};
use weir_wire::message::{AgentBody, encode_body};

/// Rows per round.
const ROWS: usize = 1_000_000;
const ROUNDS: usize = 5;
/// Between two requests, in nanoseconds.
const PACE_NS: i64 = 5_000;

/// A kind of rows: a name, and a function that creates the columns of that many rows.
type Shape = (&'static str, fn(usize) -> Vec<Column>);

static SHAPES: &[Shape] = &[("narrow", narrow), ("whole", whole), ("partial", partial)];

fn main() {
    let all = std::env::var("ROWS").ok().and_then(|n| n.parse().ok());
    let all = all.unwrap_or(ROWS);
    println!("rows      in a word  compression  bytes/row  write ns/row  read ns/row");
    for (name, columns) in SHAPES {
        for rows in [100, 1_000, 4_096] {
            for compression in [Compression::None, Compression::Zstd] {
                let cost = measure(&batch(rows, *columns), compression, all);
                println!(
                    "{name:<9} {rows:>9}  {:<11} {:>10.1} {:>13.1} {:>12.1}",
                    format!("{compression:?}").to_lowercase(),
                    cost.bytes,
                    cost.write_ns,
                    cost.read_ns
                );
            }
        }
    }
}

/// Per row.
struct Cost {
    bytes: f64,
    write_ns: f64,
    read_ns: f64,
}

fn measure(batch: &Batch, compression: Compression, all: usize) -> Cost {
    let mut texts = TextTable::default();
    let frame = frame::encode(ChannelId(1), batch, &mut texts, compression).expect("it fits");
    let mut known = ReceivedTexts::new(Arc::new(TextBudget::new(10_000, 1 << 20)));
    while known.len() < texts.len() {
        let more = texts.from(known.len());
        known.add(&more).expect("they are in order");
    }
    let bytes = encode_body(AgentBody::Rows(frame.head.clone())).len();
    let bytes = bytes + frame.header.len() + frame.body.len();
    let write_ns = least(batch.len(), all, || {
        let frame = frame::encode(ChannelId(1), batch, &mut texts, compression);
        black_box(encode_body(AgentBody::Rows(frame.expect("as before").head)));
    });
    let read_ns = least(batch.len(), all, || {
        let read = frame::decode(&frame.head, &frame.header, &frame.body, &known);
        assert!(matches!(black_box(read), Ok(Decoded::Rows(_))));
    });
    Cost {
        bytes: bytes as f64 / batch.len() as f64,
        write_ns,
        read_ns,
    }
}

/// The minimum time per row over several rounds with `all` rows in messages of `rows`.
fn least(rows: usize, all: usize, mut word: impl FnMut()) -> f64 {
    let words = all.div_ceil(rows);
    let rounds = (0..ROUNDS).map(|_| {
        let before = cpu_time();
        (0..words).for_each(|_| word());
        (cpu_time() - before).as_nanos() as f64 / (words * rows) as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}

fn batch(rows: usize, columns: fn(usize) -> Vec<Column>) -> Batch {
    let ts = (0..rows as i64).map(|i| 1_700_000_000_000_000_000 + i * PACE_NS + i * 7919 % 3_001);
    let mut ts: Vec<i64> = ts.collect();
    ts.sort_unstable();
    Batch::stream(ts, columns(rows))
}

fn texts(rows: usize, text: impl Fn(i64) -> String) -> Column {
    let texts: Vec<String> = (0..rows as i64).map(text).collect();
    Column::texts(texts.iter().map(String::as_str))
}

fn ints(rows: usize, value: impl Fn(i64) -> i64) -> Column {
    Column::ints((0..rows as i64).map(value).collect())
}

/// Of a query that groups by VM and operation: VM, operation, bytes, latency.
fn narrow(rows: usize) -> Vec<Column> {
    vec![
        texts(rows, |i| format!("vm{}", i * 7 % 10)),
        texts(rows, |i| if i % 4 == 0 { "w" } else { "r" }.to_owned()),
        ints(rows, |i| 4096 << (i * 13 % 5)),
        ints(rows, |i| 80_000 + i * 104_729 % 2_000_000),
    ]
}

/// Of `select *`: the request, its location, its owner, and its latency.
fn whole(rows: usize) -> Vec<Column> {
    let mut columns = narrow(rows);
    columns.extend([
        texts(rows, |_| "host1".to_owned()),
        texts(rows, |i| format!("/dev/vd{}", ["a", "b"][i as usize % 2])),
        texts(rows, |i| format!("/dev/nvme0n1p{}", i * 7 % 10)),
        texts(rows, |_| "block".to_owned()),
        ints(rows, |i| (1 << 48) + i),
        ints(rows, |i| i * 15_485_863 % (1 << 28)),
        ints(rows, |i| 8 << (i * 13 % 5)),
        ints(rows, |i| i * 6_700_417 % 50_000),
        ints(rows, |i| 80_000 + i * 104_729 % 1_900_000),
        ints(rows, |i| 1 + i * 31 % 32),
        ints(rows, |i| i * 15_485_863 % (1 << 29) - (1 << 28)),
        ints(rows, |i| 1000 + i * 7 % 10),
        Column::Nulls(rows),
    ]);
    columns
}

/// Of a partial aggregation: VM, and two states of about 20 bytes.
fn partial(rows: usize) -> Vec<Column> {
    use weir_model::{Type, Value};
    let state = |salt: i64| {
        let bytes = |i: i64| {
            (0..20)
                .map(|b| (i * 31 + b * salt) as u8)
                .collect::<Vec<_>>()
        };
        let values = (0..rows as i64).map(|i| Value::Bytes(bytes(i).into()));
        Column::from_values(Type::Partial, values)
    };
    vec![texts(rows, |i| format!("vm{i}")), state(7), state(11)]
}
