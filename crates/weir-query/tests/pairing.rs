//! A join of requests with their responses has the same result at every instant when it is answered
//! from finished requests, for any requests, any windows and any start of the query.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use weir_model::event::IO_PAIRS;
use weir_model::event::{Event, EventBatch, EventKind, IoBatch, IoEvent, Op};
use weir_model::{Batch, Catalog, Symbol, Value};
use weir_query::place::fleet::{Cut, CutError, CutOptions, PlacementStrategy, cut};
use weir_query::place::pairing::{Paired, PairingGuarantee, pair};
use weir_query::{CheckOptions, Engine, EngineOptions, EngineOutput, Plan, QueryId, compile};

/// A request and its completion.
#[derive(Clone, Debug)]
struct Request {
    issued: i64,
    latency: Option<i64>,
    failed: bool,
    /// Whether the tap saw its issue.
    seen: bool,
    op: Op,
    sectors: i64,
    vm: Option<usize>,
    vdisk: Option<usize>,
}

/// The rows that the tap delivers.
struct TapRows {
    events: Vec<Event>,
    finished: Vec<IoEvent>,
}

fn tap_rows(requests: &[Request]) -> TapRows {
    let mut rows = TapRows {
        events: Vec::new(),
        finished: Vec::new(),
    };
    let name = |at: Option<usize>| at.map(|at| Symbol::new(["a", "b"][at]));
    for (i, request) in requests.iter().enumerate() {
        let sector = (request.op != Op::Flush).then_some(8 * i as i64);
        let event = Event {
            vm: name(request.vm),
            vdisk: name(request.vdisk),
            pid: (i % 3 > 0).then_some(i as i64 % 3),
            ..Event::new(
                request.issued,
                EventKind::Request,
                request.op,
                i as i64 + 1,
                sector,
                request.sectors,
            )
        };
        rows.events.extend(request.seen.then_some(event));
        let Some(latency) = request.latency else {
            continue;
        };
        let event = Event {
            ts: request.issued + latency,
            kind: match request.failed {
                true => EventKind::Error,
                false => EventKind::Response,
            },
            ..event
        };
        rows.events.push(event);
        rows.finished.push(IoEvent {
            latency_ns: Some(latency),
            issue_ts: request.seen.then_some(request.issued),
            ..IoEvent::new(event)
        });
    }
    rows.events.sort_by_key(|e| e.ts);
    rows.finished.sort_by_key(|e| e.event.ts);
    rows
}

type Results = BTreeMap<(usize, i64, Vec<Value>), i64>;

/// The results of plans that start after the given instants; rows arrive in event order, an instant
/// of the engine has `instant_ns` nanoseconds.
fn run(plans: &[(i64, &Plan)], rows: &TapRows, instant_ns: i64, end: i64) -> Results {
    let mut engine = Engine::new(EngineOptions::default());
    let mut ids = vec![None; plans.len()];
    let mut results = Results::new();
    for now in 0..=end {
        for (id, (started, plan)) in ids.iter_mut().zip(plans) {
            if now == *started {
                *id = Some(engine.add(plan));
            }
        }
        push_events(&mut engine, rows, instant_ns, now);
        for (query, batch) in results_so_far(&mut engine) {
            let at = ids.iter().position(|id| *id == Some(query));
            note(&mut results, at.expect("it was started"), &batch);
        }
    }
    results.retain(|_, weight| *weight != 0);
    results
}

/// The result of a split query that starts at the beginning, where an agent runs `fragment`.
fn run_cut(fragment: &Plan, monitor: &Plan, rows: &TapRows, end: i64) -> Results {
    let [mut agent, mut above] = [(); 2].map(|()| Engine::new(EngineOptions::default()));
    let sent = Cut::source_name(0);
    agent.add(fragment);
    above.add(monitor);
    let mut results = Results::new();
    for now in 0..=end {
        push_events(&mut agent, rows, 1, now);
        for (_, batch) in results_so_far(&mut agent) {
            above.push(&sent, batch);
        }
        above.heartbeat(&sent, now);
        for (_, batch) in results_so_far(&mut above) {
            note(&mut results, 0, &batch);
        }
    }
    results.retain(|_, weight| *weight != 0);
    results
}

/// Pushes the events of an instant, which has `instant_ns` nanoseconds, into an engine.
fn push_events(engine: &mut Engine, rows: &TapRows, instant_ns: i64, now: i64) {
    let here = |ts: i64| ts.div_euclid(instant_ns) == now;
    let events: Vec<Event> = rows.events.iter().copied().filter(|e| here(e.ts)).collect();
    let finished = rows.finished.iter().copied();
    let finished: Vec<IoEvent> = finished.filter(|e| here(e.event.ts)).collect();
    let mut events = EventBatch::new(None).build(&events);
    let mut finished = IoBatch::new(None).build(&finished);
    for batch in [&mut events, &mut finished] {
        batch.ts = vec![now; batch.len()].into();
    }
    engine.push("IOstream", events);
    engine.push("IO", finished);
    engine.heartbeat("IOstream", now);
    engine.heartbeat("IO", now);
}

/// The results of an engine so far.
fn results_so_far(engine: &mut Engine) -> Vec<(QueryId, Batch)> {
    let mut batches = Vec::new();
    engine.step(&mut |output| match output {
        EngineOutput::Rows { query, batch } => batches.push((query, batch)),
        EngineOutput::Failed { error, .. } => panic!("{}", error.message),
    });
    batches
}

fn note(results: &mut Results, query: usize, batch: &Batch) {
    for row in 0..batch.len() {
        let key = (query, batch.ts[row], batch.row(row));
        *results.entry(key).or_default() += batch.weight(row);
    }
}

fn paired(plan: &Arc<Plan>, instant_ns: i64) -> Paired {
    pair(
        plan,
        &[PairingGuarantee::new(&IO_PAIRS, instant_ns, Ok(()))],
    )
}

fn compiled(query: &str) -> Arc<Plan> {
    let catalog = Catalog::builtin();
    let checked = compile(query, &catalog, &CheckOptions::live());
    checked
        .unwrap_or_else(|d| panic!("{query}: {}", d[0].message))
        .plan
}

fn any_request() -> impl Strategy<Value = Request> {
    let op = prop::sample::select(vec![Op::Read, Op::Read, Op::Write, Op::Flush]);
    let latency = prop::option::weighted(0.9, 0..25_i64);
    let name = || prop::option::weighted(0.8, 0..2_usize);
    let odd = (prop::bool::weighted(0.1), prop::bool::weighted(0.9));
    (0..60_i64, latency, odd, op, 1..9_i64, name(), name()).prop_map(
        |(issued, latency, (failed, seen), op, sectors, vm, vdisk)| Request {
            issued,
            latency,
            failed,
            seen,
            op,
            sectors,
            vm,
            vdisk,
        },
    )
}

/// Equal windows of requests and of responses.
const SAME_WINDOWS: [&str; 6] = [
    "[range 3 ns]|[range 3 ns]",
    "[range 12 ns]|[range 12 ns]",
    "[range 40 ns slide 10 ns]|[range 40 ns slide 10 ns]",
    "[range 7 ns slide 3 ns]|[range 7 ns slide 3 ns]",
    "[range 2 ns slide 5 ns]|[range 2 ns slide 5 ns]",
    "|",
];

/// Different windows; that of requests is the shorter one.
const OTHER_WINDOWS: [&str; 2] = ["[range 5 ns]|[range 9 ns]", "[range 12 ns]|"];

fn any_query() -> impl Strategy<Value = String> {
    prop_oneof![3 => query_over(&SAME_WINDOWS), 1 => query_over(&OTHER_WINDOWS)]
}

fn query_over(windows: &'static [&'static str]) -> impl Strategy<Value = String> {
    let pick = |choices: &'static [&'static str]| prop::sample::select(choices);
    let windows = pick(windows);
    let condition = pick(&[
        "",
        "and q.op = 'r'",
        "and r.sectors > 3",
        "and q.sectors < r.sectors + 1",
        "and r.ts - q.ts > 3 ns",
        "and (q.op = 'w' or r.pid = 1)",
        "and q.vm = r.vm and q.vdisk = r.vdisk",
        "and q.vm = r.vdisk",
        "and q.sector = r.sector and q.ts <= r.ts",
    ]);
    // The select list and the conditions.
    let answer = pick(&[
        "select r.ts - q.ts|",
        "select r.ts - q.ts, q.req_id, q.ts, r.type, q.type|",
        "select r.op, r.sector, r.ts|",
        "select q.vm, q.vdisk, avg(r.ts - q.ts), count(*)|group by q.vm, q.vdisk",
        "select max(q.req_id), sum(r.ts - q.ts)|",
        "istream(select q.req_id|)",
        "dstream(select q.req_id|)",
        "rstream(select q.op|) every 4 ns",
        "select distinct q.op|",
    ]);
    (windows, condition, answer, any::<bool>()).prop_map(|(windows, condition, answer, turned)| {
        let (of_request, of_response) = windows.split_once('|').expect("a window each");
        let (head, tail) = answer.split_once('|').expect("a head and a tail");
        let (q, r) = (
            format!("IOstream {of_request} as q"),
            format!("IOstream {of_response} as r"),
        );
        let (first, second) = if turned { (r, q) } else { (q, r) };
        format!(
            "{head} from {first}, {second} where q.type = 'Q' and r.type = 'R' \
             and q.req_id = r.req_id {condition} {tail}"
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pairs_equal_the_join(
        requests in prop::collection::vec(any_request(), 0..40),
        query in any_query(),
        started in 0..50_i64,
    ) {
        let mut requests = requests;
        requests.sort_by_key(|r| r.issued);
        let join = compiled(&query);
        let pairs = paired(&join, 1);
        prop_assert_eq!(pairs.replaced, 1, "{}\n{}\n{:?}", query, join, pairs.reasons);
        let rows = tap_rows(&requests);
        // The same plan, started at the beginning and halfway.
        let of = |plan: &Arc<Plan>| run(&[(0, plan), (started, plan)], &rows, 1, 140);
        let (joined, replaced) = (of(&join), of(&pairs.plan));
        prop_assert_eq!(joined, replaced, "{}\n{}", query, pairs.plan);
    }

    /// An agent receives the original join, and answers its part from pairs. The monitor applies
    /// the windows again.
    #[test]
    fn a_fragment_is_answered_from_pairs(
        requests in prop::collection::vec(any_request(), 0..40),
        query in query_over(&SAME_WINDOWS),
    ) {
        let mut requests = requests;
        requests.sort_by_key(|r| r.issued);
        let rows = tap_rows(&requests);
        let join = compiled(&query);
        let cut = on_agents(&join).expect("both sides of the join are local");
        prop_assert_eq!(cut.fragments.len(), 1, "{}", query);
        let fragment = Arc::new(cut.fragments[0].plan.clone());
        let pairs = paired(&fragment, 1);
        prop_assert_eq!(pairs.replaced, 1, "{}\n{}\n{:?}", query, fragment, pairs.reasons);
        prop_assert_eq!(&pairs.plan.schema, &fragment.schema);
        let of = |plan: &Arc<Plan>| run(&[(0, plan)], &rows, 1, 140);
        prop_assert_eq!(of(&fragment), of(&pairs.plan), "{}\n{}", query, pairs.plan);
        let replaced = run_cut(&pairs.plan, &cut.monitor, &rows, 140);
        prop_assert_eq!(of(&join), replaced, "{}\n{}\n{}", query, pairs.plan, cut.monitor);
    }

    /// A pair is sent with one time, which does not determine when it leaves two windows.
    #[test]
    fn requests_and_responses_in_other_windows_are_joined_at_the_monitor(
        query in query_over(&OTHER_WINDOWS),
    ) {
        let refused = on_agents(&compiled(&query)).expect_err("its windows differ");
        prop_assert!(refused.0.contains("its windows differ"), "{}\n{}", query, refused);
    }
}

fn on_agents(plan: &Plan) -> Result<Cut, CutError> {
    let options = CutOptions {
        hint: Some(PlacementStrategy::Agent),
        ..CutOptions::default()
    };
    cut(plan, &options)
}
