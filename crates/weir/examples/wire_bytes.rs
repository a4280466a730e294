//! What an agent sends of a query in each way that there is: bytes, for the events of the engine's
//! benchmark, as frames of 50 ms.
//!
//! The query is the first of the thesis's 10M, with a slide: requests of each disk, their number
//! and sizes. `cargo run --release -p weir --example wire_bytes`; `EVENTS=1000000` makes it
//! shorter.

#[path = "../../weir-query/examples/engine_bench/generator.rs"]
mod generator;

use weir_model::{Batch, Catalog, EventBatch, Symbol};
use weir_query::place::fleet::{CutOptions, PlacementStrategy, cut};
use weir_query::{CheckOptions, Engine, EngineOptions, EngineOutput, Plan, compile};
use weir_wire::ChannelId;
use weir_wire::frame::texts::TextTable;
use weir_wire::frame::{Compression, encode};

use generator::Generator;

/// 10 s of the generator's events.
const EVENTS: usize = 2_000_000;

/// Those that come between two heartbeats.
const BATCH_ROWS: usize = 10_000;

const QUERY: &str = "select host, vm, vdisk, avg(sectors), count(*), sum(sectors) \
    from IOstream [range 3 s slide 1 s] where type = 'Q' group by host, vm, vdisk";

/// The same with what takes more room: a sketch, and a histogram.
const SKETCHES: &str = "select host, vm, vdisk, count(*), quantile(sectors, 0.99), \
    histogram(sector) from IOstream [range 3 s slide 1 s] where type = 'Q' group by host, vm, vdisk";

fn main() {
    let events = std::env::var("EVENTS").ok().and_then(|n| n.parse().ok());
    let events = events.unwrap_or(EVENTS);
    println!("way          compression        rows        bytes  bytes/event   of the rows");
    for (name, query) in [("10M", QUERY), ("sketches", SKETCHES)] {
        println!("{name}:");
        for compression in [Compression::None, Compression::Zstd] {
            let sent = [PlacementStrategy::Rows, PlacementStrategy::Partials].map(|way| {
                let sent = sent(&fragment(query, way), events, compression);
                (way, sent)
            });
            let of_rows = sent[0].1.bytes as f64;
            for (way, Sent { rows, bytes }) in sent {
                let (each, part) = (bytes as f64 / events as f64, of_rows / bytes as f64);
                let compression = format!("{compression:?}");
                println!(
                    "{way:<12} {compression:<11} {rows:>11} {bytes:>12} {each:>12.3}        1/{part:.0}"
                );
            }
        }
    }
}

/// What every agent runs of a query.
fn fragment(query: &str, way: PlacementStrategy) -> Plan {
    let checked = compile(query, &Catalog::builtin(), &CheckOptions::live());
    let options = CutOptions {
        hint: Some(way),
        ..CutOptions::default()
    };
    let plan = checked.expect("the query is sound").plan;
    let cut = cut(&plan, &options).expect("it can be cut so");
    cut.fragments[0].plan.clone()
}

/// What went over the wire.
struct Sent {
    rows: usize,
    bytes: usize,
}

fn sent(fragment: &Plan, events: usize, compression: Compression) -> Sent {
    let mut engine = Engine::new(EngineOptions::default());
    engine.add(fragment);
    let mut generator = Generator::new();
    let builder = EventBatch::new(None);
    let host = Some(Symbol::new("server1"));
    let mut texts = TextTable::default();
    let mut sent = Sent { rows: 0, bytes: 0 };
    let mut send = |batch: &Batch| {
        let frame = encode(ChannelId(1), batch, &mut texts, compression);
        let frame = frame.expect("so few rows are a frame");
        sent.rows += batch.len();
        sent.bytes += frame.bytes();
    };
    for _ in 0..events / BATCH_ROWS {
        let rows: Vec<_> = (0..BATCH_ROWS)
            .map(|_| weir_model::Event {
                host,
                ..generator.event()
            })
            .collect();
        engine.push("IOstream", builder.build(&rows));
        engine.step(&mut |output| match output {
            EngineOutput::Rows { batch, .. } => send(&batch),
            EngineOutput::Failed { error, .. } => panic!("the query failed: {error}"),
        });
    }
    sent
}
