//! The benchmark of the engine: rows per second on one core for five queries over generated events,
//! and their ratio to the floor, the same query written by hand (`floor.rs`).
//!
//! 5,000,000 events of 10 VMs with 2 disks each, 200,000 of them per second of stream time (every
//! event has an instant of its own), requests and responses with lognormal latencies, in batches of
//! 1,024. Generating them is not measured; times are processor time of the thread. First both
//! results are compared, by the number of their rows and a checksum. Then engine and floor
//! alternate in rounds; the figures are medians, the ratio has its minimum and maximum. The first
//! line compares a floor with itself, which shows how much of a difference is noise: a bound is met
//! only if it is exceeded by more than that.
//!
//! Then ratios of processor time within this run: 100 queries that share a window to one of them
//! (W), a join of requests with their responses that is answered from pairs to the join (P), and a
//! group-by that three agents and a monitor compute to one that a single engine computes (A). Last
//! ten queries of the cookbook (C).
//!
//! `cargo run --release -p weir-query --example engine_bench [F|f|S|G|J|M|W|P|A|C ..]`;
//! `EVENTS=500000` makes it shorter, `ROUNDS=9` more precise. `.. --write FILE` writes the events
//! for other engines (`peer.rs`), `.. --once F` measures one query once, to compare it with them.

mod cookbook;
mod floor;
mod generator;
mod peer;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use weir_model::event::IO_PAIRS;
use weir_model::{Batch, Catalog, Column, Event, EventBatch, EventKind, IoBatch, IoEvent};
use weir_query::place::fleet::{CutOptions, PlacementStrategy, cut};
use weir_query::place::pairing::{PairingGuarantee, pair};
use weir_query::{CheckOptions, Engine, EngineOptions, EngineOutput, Plan, compile};
use weir_testing::cpu_time;

use floor::{Floor, floor};
use generator::Generator;

const EVENTS: usize = 5_000_000;
const BATCH_ROWS: usize = 1024;
const ROUNDS: usize = 3;

/// Agents that share the events; each receives this many batches in turn: about as many as arrive
/// in the 50 ms between two heartbeats.
const AGENTS: usize = 3;
const AGENT_BATCHES: usize = 3;

/// Events over which the results of engine and floor are compared.
const COMPARED: usize = 1_500_000;

/// A query of the benchmark.
struct Query {
    name: &'static str,
    what: &'static str,
    /// The required part of the floor's rate, and the target of the design.
    bound: f64,
    aim: f64,
    text: &'static str,
}

const QUERIES: [Query; 6] = [
    Query {
        name: "F",
        what: "filter, half pass",
        bound: 0.65,
        aim: 0.8,
        text: "select * from IOstream where type = 'Q'",
    },
    Query {
        name: "f",
        what: "filter, a tenth pass",
        bound: 0.65,
        aim: 0.8,
        text: "select * from IOstream where vm = 'vm3'",
    },
    Query {
        name: "S",
        what: "running sum",
        bound: 0.4,
        aim: 0.6,
        text: "select sum(sectors) from IOstream",
    },
    Query {
        name: "G",
        what: "group-by over 3 s",
        bound: 0.4,
        aim: 0.6,
        text: "select vm, vdisk, op, count(*), avg(sectors) from IOstream [range 3 s] group by vm, vdisk, op",
    },
    Query {
        name: "J",
        what: "request/response join over 3 s",
        bound: 0.45,
        aim: 0.6,
        text: "select Q.req_id, R.ts - Q.ts from IOstream [range 3 s] as Q, IOstream [range 3 s] as R
         where Q.type = 'Q' and R.type = 'R' and Q.req_id = R.req_id and Q.vm = R.vm and Q.vdisk = R.vdisk",
    },
    Query {
        name: "M",
        what: "join and group-by over 3 s",
        bound: 0.4,
        aim: 0.6,
        text: "select Q.vm, Q.vdisk, avg(R.ts - Q.ts) from IOstream [range 3 s] as Q, IOstream [range 3 s] as R
         where Q.type = 'Q' and R.type = 'R' and Q.req_id = R.req_id and Q.vm = R.vm and Q.vdisk = R.vdisk
         group by Q.vm, Q.vdisk",
    },
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    let events = variable("EVENTS").unwrap_or(EVENTS);
    let rounds = variable("ROUNDS").unwrap_or(ROUNDS);
    match wanted.as_slice() {
        [option, file] if option == "--write" => return peer::write(file, events),
        [option, name] if option == "--once" => return peer::measure_once(name, events),
        _ => (),
    }
    println!(
        "query                              M rows/s   floor  ratio  (min - max)   bound   aim        \
           rows out  MiB held"
    );
    let noise = calibrate(events, rounds);
    for query in QUERIES.iter().filter(|query| is_wanted(query.name)) {
        compare(query, events.min(COMPARED));
        measure(query, events, rounds, noise);
    }
    if is_wanted("W") {
        share_a_window(events);
    }
    if is_wanted("P") {
        answer_from_pairs(events);
    }
    if is_wanted("A") {
        merge_partials(events);
    }
    if is_wanted("C") {
        cookbook::measure(events, rounds);
    }
}

fn variable(name: &str) -> Option<usize> {
    std::env::var(name)
        .ok()
        .and_then(|number| number.parse().ok())
}

/// The ratios of pairs of times, sorted.
fn ratios(pairs: &[(Duration, Duration)]) -> Vec<f64> {
    let ratio = |(of, to): &(Duration, Duration)| of.as_secs_f64() / to.as_secs_f64();
    let mut ratios: Vec<f64> = pairs.iter().map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// The greatest difference of a floor's time from its own, as a part of it.
fn calibrate(events: usize, rounds: usize) -> f64 {
    let time = || of_floor(floor("G"), events, &mut |_| ()).time;
    let pairs: Vec<_> = (0..rounds).map(|_| (time(), time())).collect();
    let ratios = ratios(&pairs);
    let (least, most) = (ratios[0], ratios[rounds - 1]);
    println!(
        "= {:<50} {:.3}  ({least:.3} - {most:.3})",
        "a floor against itself",
        ratios[rounds / 2]
    );
    (1.0 - least).max(most - 1.0)
}

/// Checks that engine and floor have the same result.
fn compare(query: &Query, events: usize) {
    let (mut of_engine, mut of_floor) = (0u64, 0u64);
    let ours = run_with(
        &[compiled(query.text)],
        events,
        "IOstream",
        events_of(),
        &mut |batch| {
            of_engine = of_engine.wrapping_add(checksum(batch));
        },
    );
    let floor = self::of_floor(floor(query.name), events, &mut |batch| {
        of_floor = of_floor.wrapping_add(checksum(batch));
    });
    assert_eq!(
        (ours.rows_out, of_engine),
        (floor.rows_out, of_floor),
        "{}: engine and floor have the same rows",
        query.name
    );
}

/// Runs engine and floor in turn, and prints a line.
fn measure(query: &Query, events: usize, rounds: usize, noise: f64) {
    let plan = [compiled(query.text)];
    let mut pairs = Vec::new();
    let mut last = None;
    for _ in 0..rounds {
        let ours = run(&plan, events);
        let least = of_floor(floor(query.name), events, &mut |_| ());
        // The ratio of rates, ours to the floor's.
        pairs.push((least.time, ours.time));
        last = Some(ours);
    }
    let last = last.expect("at least one round");
    let ratios = ratios(&pairs);
    let rate = |times: &mut dyn Iterator<Item = Duration>| {
        let mut times: Vec<_> = times.collect();
        times.sort();
        events as f64 / times[rounds / 2].as_secs_f64() / 1e6
    };
    let ratio = ratios[rounds / 2];
    let verdict = match ratio / query.bound {
        above if above >= 1.0 + noise => "met",
        below if below <= 1.0 - noise => "missed",
        _ => "in noise",
    };
    println!(
        "{} {:<32} {:>8.1} {:>7.1}  {ratio:.3}  ({:.3} - {:.3})   {:<5}  {:<4}  {verdict:<8} {:>10} {:>9.1}",
        query.name,
        query.what,
        rate(&mut pairs.iter().map(|pair| pair.1)),
        rate(&mut pairs.iter().map(|pair| pair.0)),
        ratios[0],
        ratios[rounds - 1],
        query.bound,
        query.aim,
        last.rows_out,
        last.bytes as f64 / f64::from(1 << 20)
    );
}

/// A sum over all rows that does not depend on their order.
fn checksum(batch: &Batch) -> u64 {
    let of_row = |row: usize| {
        let mut hasher = DefaultHasher::new();
        (batch.ts[row], batch.weight(row)).hash(&mut hasher);
        for column in &batch.columns {
            match column {
                _ if column.is_null(row) => 0.hash(&mut hasher),
                Column::Int(values) => values.value(row).hash(&mut hasher),
                Column::Float(values) => values.value(row).to_bits().hash(&mut hasher),
                Column::Text(values) => values.value(row).hash(&mut hasher),
                other => panic!("{other:?} is in no result"),
            }
        }
        hasher.finish()
    };
    (0..batch.len()).map(of_row).fold(0, u64::wrapping_add)
}

fn compiled(text: &str) -> Arc<Plan> {
    let checked = compile(text, &Catalog::builtin(), &CheckOptions::live());
    checked.expect("the queries are sound").plan
}

/// The cost of 100 queries over one window relative to one of them.
fn share_a_window(events: usize) {
    let plan = |least: usize| {
        compiled(&format!(
            "select vm, op, count(*), avg(sectors) from IOstream [range 3 s slide 1 s] \
             group by vm, op having count(*) > {least}"
        ))
    };
    let one = run(&[plan(0)], events);
    let plans: Vec<Arc<Plan>> = (0..100).map(|i| plan(i * 300)).collect();
    let hundred = run(&plans, events);
    println!(
        "W 100 queries over one window cost {:.2} times as much as one (bound 1.5)",
        hundred.time.as_secs_f64() / one.time.as_secs_f64()
    );
}

/// The cost of thesis query 4 from the pairs of the tap relative to the join.
fn answer_from_pairs(events: usize) {
    let join = compiled(
        "select R.ts - Q.ts from IOstream [range 3 s] as Q, IOstream [range 3 s] as R \
         where Q.type = 'Q' and R.type = 'R' and Q.req_id = R.req_id",
    );
    let pairs = pair(&join, &[PairingGuarantee::new(&IO_PAIRS, 1, Ok(()))]);
    assert_eq!(pairs.replaced, 1, "it is such a join");
    let joined = run(&[join], events);
    let paired = run_over(&[pairs.plan], events, "IO", pairs_of());
    assert_eq!(joined.rows_out, paired.rows_out, "both give the same");
    println!(
        "P query 4 from pairs costs {:.2} times as much as its join; {} requests",
        paired.time.as_secs_f64() / joined.time.as_secs_f64(),
        paired.rows_in
    );
}

/// The cost of a group-by that is merged from partials of three agents relative to one in a single
/// engine.
fn merge_partials(events: usize) {
    let whole = compiled(
        "select vm, vdisk, op, count(*), avg(sectors), max(sectors), quantile(sectors, 0.99) \
         from IOstream [range 3 s slide 1 s] group by vm, vdisk, op",
    );
    let options = CutOptions {
        hint: Some(PlacementStrategy::Partials),
        ..CutOptions::default()
    };
    let cut = cut(&whole, &options).expect("it can be put together of parts");
    let mut agents = [(); AGENTS].map(|()| Running::new(&cut.fragments[0].plan, "IOstream"));
    let mut monitor = Running::new(&cut.monitor, "#0");
    let mut generator = Generator::new();
    let mut left = events;
    while left > 0 {
        let mut sent = Vec::new();
        for agent in &mut agents {
            let batches = batches(&mut generator, &mut left, AGENT_BATCHES, &mut events_of());
            sent.extend(agent.push_all(batches));
        }
        // The latest instant of all agents.
        let now = agents.iter().map(|agent| agent.now).max().unwrap_or(0);
        for agent in &mut agents {
            sent.extend(agent.advance(now));
        }
        sent.sort_by_key(|batch| batch.ts[0]);
        monitor.push_all(sent);
        monitor.advance(now);
    }
    let one = run(&[whole], events);
    let of_agents: Duration = agents.iter().map(|agent| agent.time).sum();
    let ratio = |time: Duration| time.as_secs_f64() / one.time.as_secs_f64();
    println!(
        "A {AGENTS} agents' partials cost {:.2} times as much as the group-by at once, their merge {:.4}; \
         {} rows make {} partials",
        ratio(of_agents),
        ratio(monitor.time),
        events,
        agents.iter().map(|agent| agent.rows_out).sum::<usize>()
    );
}

/// The result of a run.
#[derive(Default)]
struct Run {
    time: Duration,
    rows_in: usize,
    rows_out: usize,
    bytes: u64,
}

/// An engine that runs one plan over one source.
struct Running {
    engine: Engine,
    source: &'static str,
    time: Duration,
    rows_out: usize,
    /// The instant of the last row.
    now: i64,
}

impl Running {
    fn new(plan: &Plan, source: &'static str) -> Running {
        let mut engine = Engine::new(EngineOptions::default());
        engine.add(plan);
        Running {
            engine,
            source,
            time: Duration::ZERO,
            rows_out: 0,
            now: i64::MIN,
        }
    }

    /// Pushes rows and returns the results.
    fn push_all(&mut self, batches: Vec<Batch>) -> Vec<Batch> {
        let last = batches.last().and_then(|batch| batch.ts.last());
        self.now = last.map_or(self.now, |ts| *ts);
        let start = cpu_time();
        for batch in batches {
            self.engine.push(self.source, batch);
        }
        self.step(start)
    }

    /// Advances to an instant.
    fn advance(&mut self, at: i64) -> Vec<Batch> {
        let start = cpu_time();
        self.engine.heartbeat(self.source, at);
        self.step(start)
    }

    fn step(&mut self, start: Duration) -> Vec<Batch> {
        let mut given = Vec::new();
        self.engine.step(&mut |output| given.push(rows_of(output)));
        self.time += cpu_time() - start;
        self.rows_out += given.iter().map(Batch::len).sum::<usize>();
        given
    }
}

fn rows_of(output: EngineOutput) -> Batch {
    match output {
        EngineOutput::Rows { batch, .. } => batch,
        EngineOutput::Failed { error, .. } => panic!("a benchmark's query failed: {error}"),
    }
}

/// Pushes the events through the plans and measures the time of the engine.
fn run(plans: &[Arc<Plan>], events: usize) -> Run {
    run_over(plans, events, "IOstream", events_of())
}

/// As [`run`], with the rows of `source` that `rows` makes of the events.
fn run_over(
    plans: &[Arc<Plan>],
    events: usize,
    source: &str,
    rows: impl FnMut(Vec<Event>) -> Batch,
) -> Run {
    run_with(plans, events, source, rows, &mut |_| ())
}

/// As [`run_over`]; `result` receives each batch of the result.
fn run_with(
    plans: &[Arc<Plan>],
    events: usize,
    source: &str,
    rows: impl FnMut(Vec<Event>) -> Batch,
    result: &mut dyn FnMut(&Batch),
) -> Run {
    let mut engine = Engine::new(EngineOptions::default());
    for plan in plans {
        engine.add(plan);
    }
    let (mut bytes, mut now) = (0, i64::MIN);
    let push = |batch: Option<Batch>, output: &mut dyn FnMut(Batch)| {
        match batch {
            Some(batch) => {
                now = batch.ts.last().copied().unwrap_or(now);
                engine.push(source, batch);
            }
            None => engine.heartbeat(source, now),
        }
        engine.step(&mut |rows| output(rows_of(rows)));
        bytes = bytes.max(engine.counts().queries[0].bytes);
    };
    let run = pass(events, rows, push, result);
    Run { bytes, ..run }
}

/// As [`run`], for a query written by hand.
fn of_floor(mut floor: Floor, events: usize, result: &mut dyn FnMut(&Batch)) -> Run {
    let push = |batch: Option<Batch>, output: &mut dyn FnMut(Batch)| {
        if let Some(batch) = batch {
            output(floor(&batch));
        }
    };
    pass(events, events_of(), push, result)
}

/// Passes all events to `push`, at last their end, and measures its time.
fn pass(
    events: usize,
    mut rows: impl FnMut(Vec<Event>) -> Batch,
    mut push: impl FnMut(Option<Batch>, &mut dyn FnMut(Batch)),
    result: &mut dyn FnMut(&Batch),
) -> Run {
    let mut generator = Generator::new();
    let mut run = Run::default();
    let mut left = events;
    while left > 0 {
        let batches = batches(&mut generator, &mut left, 64, &mut rows);
        run.rows_in += batches.iter().map(Batch::len).sum::<usize>();
        let end = (left == 0).then_some(None);
        let start = cpu_time();
        for batch in batches.into_iter().map(Some).chain(end) {
            push(batch, &mut |batch| {
                run.rows_out += batch.len();
                result(black_box(&batch));
            });
        }
        run.time += cpu_time() - start;
    }
    run
}

/// The next events, at most `most` batches of them, converted by `rows`.
fn batches(
    generator: &mut Generator,
    left: &mut usize,
    most: usize,
    rows: &mut impl FnMut(Vec<Event>) -> Batch,
) -> Vec<Batch> {
    let mut batches = Vec::new();
    while *left > 0 && batches.len() < most {
        let events: Vec<Event> = (0..(*left).min(BATCH_ROWS))
            .map(|_| generator.event())
            .collect();
        *left -= events.len();
        let batch = rows(events);
        if !batch.is_empty() {
            batches.push(batch);
        }
    }
    batches
}

/// Rows of `IOstream`.
fn events_of() -> impl FnMut(Vec<Event>) -> Batch {
    let builder = EventBatch::new(Some(&columns_in_use()));
    move |events| builder.build(&events)
}

/// Rows of `IO`.
fn pairs_of() -> impl FnMut(Vec<Event>) -> Batch {
    let mut issued: HashMap<i64, i64> = HashMap::new();
    let builder = IoBatch::new(None);
    move |events| {
        let mut rows = Vec::new();
        for event in events {
            if event.kind == EventKind::Request {
                issued.insert(event.req_id, event.ts);
                continue;
            }
            rows.push(IoEvent {
                issue_ts: issued.remove(&event.req_id),
                ..IoEvent::new(event)
            });
        }
        builder.build(&rows)
    }
}

/// The thesis's ten columns.
fn columns_in_use() -> Vec<usize> {
    let names = [
        "ts", "type", "op", "req_id", "sector", "sectors", "vm", "vdisk", "pdisk", "agent_ts",
    ];
    let catalog = Catalog::builtin();
    let schema = &catalog.find("IOstream").expect("a built-in stream").schema;
    names.map(|name| schema.index(name)).to_vec()
}
