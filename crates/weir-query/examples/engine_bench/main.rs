//! The benchmark of the engine: rows per second on one core for five queries over generated events.
//!
//! 5,000,000 events of 10 VMs with 2 disks each, 200,000 of them per second of stream time (every
//! event has an instant of its own), requests and responses with lognormal latencies, in batches of
//! 1,024. Generating them is not measured; times are processor time of the thread.
//!
//! Then ratios of processor time within this run: 100 queries that share a window to one of them
//! (W), a join of requests with their responses that is answered from pairs to the join (P), and a
//! group-by that three agents and a monitor compute to one that a single engine computes (A).
//!
//! `cargo run --release -p weir-query --example engine_bench [F|f|S|G|J|M|W|P|A ..]`;
//! `EVENTS=500000` makes it shorter.

mod generator;

use std::collections::HashMap;
use std::fs;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use weir_model::event::IO_PAIRS;
use weir_model::{Batch, Catalog, Event, EventBatch, EventKind, IoBatch, IoEvent};
use weir_query::place::fleet::{CutOptions, PlacementStrategy, cut};
use weir_query::place::pairing::{PairingGuarantee, pair};
use weir_query::{CheckOptions, Engine, EngineOptions, EngineOutput, Plan, compile};

use generator::Generator;

const EVENTS: usize = 5_000_000;
const BATCH_ROWS: usize = 1024;

/// Agents that share the events; each receives this many batches in turn: about as many as arrive
/// in the 50 ms between two heartbeats.
const AGENTS: usize = 3;
const AGENT_BATCHES: usize = 3;

/// The queries, with the required rate and the target of the design, in millions of rows per
/// second.
const QUERIES: [(&str, &str, f64, f64, &str); 6] = [
    ("F", "filter, half pass", 50.0, 100.0, "select * from IOstream where type = 'Q'"),
    ("f", "filter, a tenth pass", 50.0, 100.0, "select * from IOstream where vm = 'vm3'"),
    ("S", "running sum", 25.0, 45.0, "select sum(sectors) from IOstream"),
    (
        "G",
        "group-by over 3 s",
        8.0,
        16.0,
        "select vm, vdisk, op, count(*), avg(sectors) from IOstream [range 3 s] group by vm, vdisk, op",
    ),
    (
        "J",
        "request/response join over 3 s",
        3.0,
        6.0,
        "select Q.req_id, R.ts - Q.ts from IOstream [range 3 s] as Q, IOstream [range 3 s] as R
         where Q.type = 'Q' and R.type = 'R' and Q.req_id = R.req_id and Q.vm = R.vm and Q.vdisk = R.vdisk",
    ),
    (
        "M",
        "join and group-by over 3 s",
        2.5,
        5.0,
        "select Q.vm, Q.vdisk, avg(R.ts - Q.ts) from IOstream [range 3 s] as Q, IOstream [range 3 s] as R
         where Q.type = 'Q' and R.type = 'R' and Q.req_id = R.req_id and Q.vm = R.vm and Q.vdisk = R.vdisk
         group by Q.vm, Q.vdisk",
    ),
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    let events = std::env::var("EVENTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(EVENTS);
    println!("query                               M rows/s   bound     aim   rows out   MiB held");
    for (name, what, bound, aim, text) in QUERIES {
        if !is_wanted(name) {
            continue;
        }
        let run = run(&[compiled(text)], events);
        let rate = events as f64 / run.time.as_secs_f64() / 1e6;
        println!(
            "{name} {what:<32} {rate:>9.1} {bound:>7.1} {aim:>7.1} {:>10} {:>10.1}",
            run.rows_out,
            run.bytes as f64 / f64::from(1 << 20)
        );
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
        "W 100 queries over one window cost {:.2} times as much as one (bound 3)",
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

/// The processor time of this thread so far, which depends less on the load of the machine than
/// elapsed time (`Documentation/scheduler/sched-stats.rst`: the first figure, in ns).
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells run times");
    let ran = stat
        .split_whitespace()
        .next()
        .and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ran.expect("the first figure is the time on the processor"))
}

/// The result of a run.
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
        let start = processor_time();
        for batch in batches {
            self.engine.push(self.source, batch);
        }
        self.step(start)
    }

    /// Advances to an instant.
    fn advance(&mut self, at: i64) -> Vec<Batch> {
        let start = processor_time();
        self.engine.heartbeat(self.source, at);
        self.step(start)
    }

    fn step(&mut self, start: Duration) -> Vec<Batch> {
        let mut given = Vec::new();
        self.engine.step(&mut |output| given.push(rows_of(output)));
        self.time += processor_time() - start;
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
    mut rows: impl FnMut(Vec<Event>) -> Batch,
) -> Run {
    let mut engine = Engine::new(EngineOptions::default());
    for plan in plans {
        engine.add(plan);
    }
    let mut generator = Generator::new();
    let mut run = Run {
        time: Duration::ZERO,
        rows_in: 0,
        rows_out: 0,
        bytes: 0,
    };
    let mut left = events;
    while left > 0 {
        let batches = batches(&mut generator, &mut left, 64, &mut rows);
        run.rows_in += batches.iter().map(Batch::len).sum::<usize>();
        let start = processor_time();
        for batch in batches {
            engine.push(source, batch);
            engine.step(&mut |output| run.rows_out += black_box(rows_of(output)).len());
        }
        run.time += processor_time() - start;
        run.bytes = run.bytes.max(engine.counts().queries[0].bytes);
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
