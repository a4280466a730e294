//! The law of pairing: a join of requests with their responses gives, instant by instant, what it
//! gives when it is answered from finished requests, whatever the requests are, how they lie in the
//! windows, and when the query came.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use weir_model::event::{Event, EventBatch, EventKind, IoBatch, IoEvent, Op};
use weir_model::{Catalog, Symbol, Value};
use weir_query::place::fleet::{CutOptions, Way, cut};
use weir_query::place::pairing::{Paired, Pairing, pair};
use weir_query::{CheckOptions, Engine, EngineOptions, Output, Plan, compile};

/// A request and what became of it.
#[derive(Clone, Debug)]
struct Request {
    issued: i64,
    latency: Option<i64>,
    failed: bool,
    /// Its issue was told.
    seen: bool,
    op: Op,
    sectors: i64,
    vm: Option<usize>,
    vdisk: Option<usize>,
}

/// What the tap says of it.
struct Told {
    events: Vec<Event>,
    finished: Vec<IoEvent>,
}

fn tell(requests: &[Request]) -> Told {
    let mut told = Told {
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
        told.events.extend(request.seen.then_some(event));
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
        told.events.push(event);
        told.finished.push(IoEvent {
            event,
            wait_ns: None,
            service_ns: None,
            latency_ns: Some(latency),
            in_flight: None,
            seek_sectors: None,
            issue_ts: request.seen.then_some(request.issued),
        });
    }
    told.events.sort_by_key(|e| e.ts);
    told.finished.sort_by_key(|e| e.event.ts);
    told
}

type Said = BTreeMap<(usize, i64, Vec<Value>), i64>;

/// What plans say that are asked after the instants `asked`; rows come as they happen, an instant
/// of the engine has `instant_ns` of their nanoseconds.
fn run(plans: &[(i64, &Plan)], told: &Told, instant_ns: i64, end: i64) -> Said {
    let mut engine = Engine::new(EngineOptions::default());
    let mut ids = vec![None; plans.len()];
    let mut said = Said::new();
    for now in 0..=end {
        for (id, (asked, plan)) in ids.iter_mut().zip(plans) {
            if now == *asked {
                *id = Some(engine.add(plan));
            }
        }
        let here = |ts: i64| ts.div_euclid(instant_ns) == now;
        let events: Vec<Event> = told.events.iter().copied().filter(|e| here(e.ts)).collect();
        let finished = told.finished.iter().copied();
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
        engine.step(&mut |output| match output {
            Output::Rows { query, batch } => {
                let at = ids.iter().position(|id| *id == Some(query));
                for row in 0..batch.len() {
                    let key = (at.expect("it was asked"), batch.ts[row], batch.row(row));
                    *said.entry(key).or_default() += batch.weight(row);
                }
            }
            Output::Failed { error, .. } => panic!("{}", error.message),
        });
    }
    said.retain(|_, weight| *weight != 0);
    said
}

fn paired(plan: &Arc<Plan>, instant_ns: i64) -> Paired {
    pair(plan, &[Pairing::of_io(instant_ns, Ok(()))])
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

fn any_query() -> impl Strategy<Value = String> {
    let pick = |choices: &'static [&'static str]| prop::sample::select(choices);
    let windows = pick(&[
        "[range 3 ns]|[range 3 ns]",
        "[range 12 ns]|[range 12 ns]",
        "[range 5 ns]|[range 9 ns]",
        "[range 12 ns]|",
        "[range 40 ns slide 10 ns]|[range 40 ns slide 10 ns]",
        "[range 7 ns slide 3 ns]|[range 7 ns slide 3 ns]",
        "[range 2 ns slide 5 ns]|[range 2 ns slide 5 ns]",
        "|",
    ]);
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
    // What is before FROM and what is behind the conditions.
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
    fn pairs_are_the_join(
        requests in prop::collection::vec(any_request(), 0..40),
        query in any_query(),
        asked in 0..50_i64,
    ) {
        let mut requests = requests;
        requests.sort_by_key(|r| r.issued);
        let join = compiled(&query);
        let pairs = paired(&join, 1);
        prop_assert_eq!(pairs.answered, 1, "{}\n{}\n{:?}", query, join, pairs.whys);
        let told = tell(&requests);
        // The same from the start and from the middle on.
        let of = |plan: &Arc<Plan>| run(&[(0, plan), (asked, plan)], &told, 1, 140);
        let (joined, answered) = (of(&join), of(&pairs.plan));
        prop_assert_eq!(joined, answered, "{}\n{}", query, pairs.plan);
    }

    /// An agent is sent the join as it was asked for, and answers its own part from pairs.
    #[test]
    fn an_agents_part_is_answered_from_pairs(
        requests in prop::collection::vec(any_request(), 0..40),
        query in any_query(),
    ) {
        let mut requests = requests;
        requests.sort_by_key(|r| r.issued);
        let told = tell(&requests);
        let options = CutOptions { hint: Some(Way::Agent), ..CutOptions::default() };
        let cut = cut(&compiled(&query), &options).expect("both sides of the join are local");
        prop_assert_eq!(cut.fragments.len(), 1, "{}", query);
        let fragment = Arc::new(cut.fragments[0].plan.clone());
        let pairs = paired(&fragment, 1);
        prop_assert_eq!(pairs.answered, 1, "{}\n{}\n{:?}", query, fragment, pairs.whys);
        prop_assert_eq!(&pairs.plan.schema, &fragment.schema);
        let of = |plan: &Arc<Plan>| run(&[(0, plan)], &told, 1, 140);
        prop_assert_eq!(of(&fragment), of(&pairs.plan), "{}\n{}", query, pairs.plan);
    }
}
