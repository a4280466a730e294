//! The engine's benchmark: rows per second on one core for five queries over generated events.
//!
//! 5,000,000 events of 10 VMs with 2 disks each, 200,000 of them a second of stream time (every
//! event has an instant of its own), requests and responses with lognormal latencies, in batches of
//! 1,024. Generating them is not measured; times are those of the thread on its processor.
//!
//! `cargo run --release -p weir-query --example engine_bench [F|f|S|G|J|M|W ..]`; `EVENTS=500000`
//! makes it shorter.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use weir_model::{Catalog, Event, EventBatch, EventKind, Op, Symbol};
use weir_query::{CheckOptions, Engine, EngineOptions, Output, Plan, compile};

const EVENTS: usize = 5_000_000;
const BATCH_ROWS: usize = 1024;
const EVENT_GAP_NS: i64 = 5_000;
const VMS: usize = 10;
const DISKS: usize = 2;

/// The queries, with what the design holds us to and what it aims at, in millions of rows per
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
    let events = std::env::var("EVENTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(EVENTS);
    println!("query                               M rows/s   bound     aim   rows out   MiB held");
    for (name, what, bound, aim, text) in QUERIES {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        let catalog = Catalog::builtin();
        let checked =
            compile(text, &catalog, &CheckOptions::live()).expect("the queries are sound");
        let run = run(&[checked.plan], events);
        let rate = events as f64 / run.time.as_secs_f64() / 1e6;
        println!(
            "{name} {what:<32} {rate:>9.1} {bound:>7.1} {aim:>7.1} {:>10} {:>10.1}",
            run.rows_out,
            run.bytes as f64 / f64::from(1 << 20)
        );
    }
    if wanted.is_empty() || wanted.iter().any(|w| w == "W") {
        share_a_window(events);
    }
}

/// What 100 queries over one window cost against one of them.
fn share_a_window(events: usize) {
    let catalog = Catalog::builtin();
    let plan = |least: usize| {
        let text = format!(
            "select vm, op, count(*), avg(sectors) from IOstream [range 3 s slide 1 s] \
             group by vm, op having count(*) > {least}"
        );
        let checked = compile(&text, &catalog, &CheckOptions::live());
        checked.expect("the queries are sound").plan
    };
    let one = run(&[plan(0)], events);
    let plans: Vec<Arc<Plan>> = (0..100).map(|i| plan(i * 300)).collect();
    let hundred = run(&plans, events);
    println!(
        "W 100 queries over one window cost {:.2} times as much as one (bound 3)",
        hundred.time.as_secs_f64() / one.time.as_secs_f64()
    );
}

/// What this thread has run so far, which the load of the machine does not change as it changes the
/// time on the wall (`Documentation/scheduler/sched-stats.rst`: the first figure, in ns).
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells run times");
    let ran = stat
        .split_whitespace()
        .next()
        .and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ran.expect("the first figure is the time on the processor"))
}

struct Run {
    time: Duration,
    rows_out: usize,
    bytes: u64,
}

/// Pushes the events through the plan and takes the time that the engine needs.
fn run(plans: &[Arc<Plan>], events: usize) -> Run {
    let mut engine = Engine::new(EngineOptions::default());
    for plan in plans {
        engine.add(plan);
    }
    let mut generator = Generator::new();
    let builder = EventBatch::new(Some(&columns_in_use()));
    let mut run = Run {
        time: Duration::ZERO,
        rows_out: 0,
        bytes: 0,
    };
    let mut left = events;
    while left > 0 {
        let mut batches = Vec::new();
        while left > 0 && batches.len() < 64 {
            let rows: Vec<Event> = (0..left.min(BATCH_ROWS))
                .map(|_| generator.event())
                .collect();
            left -= rows.len();
            batches.push(builder.build(&rows));
        }
        let start = processor_time();
        for batch in batches {
            engine.push("IOstream", batch);
            engine.step(&mut |output| match output {
                Output::Rows { batch, .. } => run.rows_out += black_box(batch).len(),
                Output::Failed { error, .. } => panic!("a benchmark's query failed: {error}"),
            });
        }
        run.time += processor_time() - start;
        run.bytes = run.bytes.max(engine.counts().queries[0].bytes);
    }
    run
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

/// Makes events: at each tick the response that is due longest, else a new request.
struct Generator {
    ts: i64,
    seed: u64,
    req_id: i64,
    vms: Vec<Symbol>,
    vdisks: Vec<Symbol>,
    in_flight: BinaryHeap<Reverse<(i64, i64)>>,
    requests: std::collections::HashMap<i64, Event>,
}

impl Generator {
    fn new() -> Generator {
        Generator {
            ts: 1_700_000_000_000_000_000,
            seed: 42,
            req_id: 0,
            vms: (0..VMS).map(|i| Symbol::new(&format!("vm{i}"))).collect(),
            vdisks: (0..DISKS)
                .map(|i| Symbol::new(&format!("/dev/vd{}", ['a', 'b'][i])))
                .collect(),
            in_flight: BinaryHeap::new(),
            requests: Default::default(),
        }
    }

    /// A number in (0, 1).
    fn uniform(&mut self) -> f64 {
        // splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)
        self.seed = self.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::MIN_POSITIVE
    }

    fn event(&mut self) -> Event {
        self.ts += EVENT_GAP_NS;
        let due = self
            .in_flight
            .peek()
            .is_some_and(|Reverse((at, _))| *at <= self.ts);
        if due && let Some(Reverse((_, id))) = self.in_flight.pop() {
            let request = self
                .requests
                .remove(&id)
                .expect("what is in flight was requested");
            return Event {
                ts: self.ts,
                kind: EventKind::Response,
                agent_ts: Some(self.ts),
                ..request
            };
        }
        self.req_id += 1;
        let op = if self.uniform() < 0.6 {
            Op::Read
        } else {
            Op::Write
        };
        let sectors = 8 << (self.uniform() * 6.0) as i64;
        let sector = (self.uniform() * 1e9) as i64;
        let mut event = Event::new(
            self.ts,
            EventKind::Request,
            op,
            self.req_id,
            Some(sector),
            sectors,
        );
        let (vm, vdisk) = (self.uniform() * VMS as f64, self.uniform() * DISKS as f64);
        let (vm, vdisk) = (vm as usize, vdisk as usize);
        event.vm = Some(self.vms[vm]);
        event.vdisk = Some(self.vdisks[vdisk]);
        event.pdisk = event.vdisk;
        event.agent_ts = Some(self.ts);
        // Lognormal, median 1 ms, by Box and Muller.
        let normal =
            (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        let latency_ns = (1e6 * (0.8 * normal).exp()) as i64;
        self.in_flight
            .push(Reverse((self.ts + latency_ns, self.req_id)));
        self.requests.insert(self.req_id, event);
        event
    }
}
