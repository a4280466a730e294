//! Encoding and decoding of plans; other bytes are rejected with a reason.

use proptest::prelude::*;
use weir_model::{Batch, Catalog, Column, Field, Schema, Shape, Type, Value, packed};

use super::{BYTES_MAX, PlanError, PlanStep, Steps, decode, encode};
use crate::engine::{Engine, EngineOptions};
use crate::plan::validate::{EXPR_HEIGHT_MAX, HEIGHT_MAX};
use crate::plan::{GlobalGroup, Node, Plan, Window};
use crate::window::{Now, Since};
use crate::{CheckOptions, compile, compile_unoptimized};

/// Queries with every kind of node, window, expression and function call.
const QUERIES: &[&str] = &[
    "select * from IO",
    "select op, vm, sum(bytes) as total, avg(latency), count(*), quantile(latency, 0.99) \
     from IO [range 5 s slide 1 s] where latency > 1 ms group by op, vm having count(*) > 3",
    "select distinct vm from IO [rows 10]",
    "select op, case when bytes > 4 KiB then 'large' else 'small' end as size, \
     coalesce(vm, 'nobody'), cast(bytes as float) / 3, -latency, not (op = 'r') from IO \
     where vm like 'a%' or op in ('r', 'w') and latency between 1 us and 1 s and pid is not null",
    "select a.req_id, b.latency from IO [range 3 s] as a, IO [now] as b \
     where a.req_id = b.req_id and a.latency < b.latency",
    "select a.vm, b.vm from IO [rows 2] as a left join IO [range 1 s] as b on a.vm = b.vm",
    "select vm from IO [range 1 s] where vm not in (select vm from vms)",
    "select vm from IO [range 1 s] where exists (select * from disks where disks.vm = IO.vm)",
    "select vm, latency from IO [partition by vm rows 3] order by latency desc, vm limit 3 offset 1",
    "istream(select op, count(distinct vm), top(bytes, 3), histogram(latency), stddev(latency), \
     min(latency), max(latency), first(op), last(op), median(bytes) from IO [range 2 s] group by op)",
    "select vm, lag(latency, 2, 0) over (partition by vm order by ts), rank() over (order by bytes), \
     sum(bytes) over (order by ts range between 1 s preceding and current row) from IO [rows 9]",
    "select * from IO match_recognize (partition by vm order by ts, pid desc \
     measures first(a.ts) as begin, count(b.*) as n, sum(b.bytes) as bytes, match_number() as m, \
     classifier() as last after match skip to next row pattern (a (b | c{2,3}?)+ not d) \
     within interval '1' second define a as op = 'f', b as latency > prev(latency, 2), \
     c as bytes > first(b.bytes) and pid = a.pid, d as op = 'r')",
    "select verdict, r from correlations [range 2 min slide 500 ms] where metric <> 'latency'",
    "rstream(select max(latency) from IO [range 10 s slide 2 s])",
    "select vm from IO [range 1 s] union all select vm from vms",
    "select vm from IO [range 1 s] except select vm from vms",
    "select substr(comm, 1, 2) || op, round(latency / 3.0, 2), bucket(bytes, 4 KiB) from IO",
];

fn plans() -> Vec<Plan> {
    let (catalog, options) = (Catalog::builtin(), CheckOptions::live());
    let both = QUERIES.iter().flat_map(|query| {
        let optimized = compile(query, &catalog, &options);
        let written = compile_unoptimized(query, &catalog, &options);
        [optimized, written].map(|c| c.unwrap_or_else(|why| panic!("{query}: {why:?}")))
    });
    let mut plans: Vec<Plan> = both.map(|checked| Plan::clone(&checked.plan)).collect();
    plans.extend(cut_in_two(&plans[2]));
    plans.push(since());
    plans
}

/// Requests by the time of their issue, which has no syntax in CQL.
fn since() -> Plan {
    let source = source();
    let ts = source.schema.index("ts");
    let window = Window::Since(Since {
        origin: source.columns().swap_remove(ts),
        size: Some(5),
        slide: Some(2),
    });
    Plan::clone(&Plan::window(source, window))
}

/// The aggregation of a plan as partials of its stream, and as their merge.
fn cut_in_two(plan: &Plan) -> Vec<Plan> {
    fn aggregation(plan: &Plan) -> Option<&Plan> {
        match &plan.node {
            Node::Aggregate { .. } => Some(plan),
            _ => plan
                .inputs()
                .into_iter()
                .find_map(|input| aggregation(input)),
        }
    }
    let whole = aggregation(plan).expect("the query aggregates");
    let Node::Aggregate {
        input, keys, calls, ..
    } = &whole.node
    else {
        unreachable!("it was found by that");
    };
    let stream = input.inputs()[0].clone();
    let (slide, named) = (1_000_000_000, whole.schema.fields[..keys.len()].to_vec());
    let partial = Plan::partial(stream, slide, keys.clone(), calls.clone(), named);
    let fields = whole.schema.fields.clone();
    let merge = |size| {
        Plan::merge(
            partial.clone(),
            (size, slide),
            keys.len(),
            calls.clone(),
            GlobalGroup::FromStart,
            fields.clone(),
        )
    };
    let merged = [merge(Some(5 * slide)), merge(None)];
    merged
        .into_iter()
        .chain([partial.clone()])
        .map(|p| (*p).clone())
        .collect()
}

fn decoded(bytes: &[u8]) -> Result<Plan, PlanError> {
    decode(bytes, &Catalog::builtin())
}

#[test]
fn a_decoded_plan_is_the_encoded_one() {
    for plan in plans() {
        let bytes = encode(&plan);
        let again = decoded(&bytes).unwrap_or_else(|why| panic!("{plan}: {why}"));
        assert_eq!(again.to_string(), plan.to_string());
        assert_eq!(encode(&again), bytes);
        assert_eq!(decoded(&encode(&again)), Ok(again));
    }
}

#[test]
fn other_bytes_are_reported() {
    assert!(matches!(decoded(b"hello"), Err(PlanError::Malformed(_))));
    assert_eq!(
        decoded(&vec![0; BYTES_MAX + 1]),
        Err(PlanError::TooLong(BYTES_MAX + 1))
    );
}

#[test]
fn an_unknown_function_is_reported_by_name() {
    let plan = plans()[2].clone();
    let mut bytes = encode(&plan);
    let at = bytes.windows(8).position(|w| w == b"quantile").unwrap();
    bytes[at..at + 8].copy_from_slice(b"quantify");
    let error = decoded(&bytes).unwrap_err().to_string();
    assert!(error.contains("function `quantify` is unknown"), "{error}");
    assert!(error.contains("same release"), "{error}");
}

/// Steps that are not those of a tree.
#[test]
fn nodes_without_inputs_and_inputs_without_nodes_are_rejected() {
    let rows = |steps: Vec<PlanStep>| decoded(&packed::encode(&Steps(steps)).unwrap());
    let all: Steps = packed::decode(&encode(&plans()[0]), 1_000).unwrap();
    assert!(rows(all.0.clone()).is_ok());
    for steps in [
        Vec::new(),
        all.0[1..].to_vec(),
        [all.0.clone(), all.0.clone()].concat(),
    ] {
        let rejected = rows(steps);
        assert!(
            matches!(rejected, Err(PlanError::Invalid(_))),
            "{rejected:?}"
        );
    }
}

#[test]
fn a_source_with_other_columns_is_rejected() {
    let plan = plans()[0].clone();
    let mut catalog = Catalog::builtin();
    let io = catalog
        .declarations
        .iter_mut()
        .find(|d| d.name == "IO")
        .unwrap();
    io.schema = Schema::new(vec![Field::new("op", Type::Text)]).into();
    let rejected = decode(&encode(&plan), &catalog);
    assert!(
        matches!(rejected, Err(PlanError::Source { .. })),
        "{rejected:?}"
    );
}

#[test]
fn a_repeated_name_is_resolved_for_each_node() {
    let catalog = Catalog::builtin();
    let io = catalog.find("IO").expect("it is built in");
    let other = weir_model::Declaration {
        schema: Schema::new(vec![Field::new("op", Type::Text)]).into(),
        star: None,
        ..io.clone()
    };
    let join = |right: weir_model::Declaration| {
        let now = |source| Plan::window(Plan::source(source), Window::from(Now));
        let (left, right) = (now(io.clone()), now(right));
        Plan::join(left, right, crate::plan::JoinKind::Inner, Vec::new(), None)
    };
    let decoded = |plan: &Plan| decode(&encode(plan), &catalog);
    assert!(decoded(&join(io.clone())).is_ok());
    let rejected = decoded(&join(other));
    assert!(
        matches!(rejected, Err(PlanError::Source { .. })),
        "{rejected:?}"
    );
}

#[test]
fn every_truncated_plan_is_rejected() {
    for plan in plans() {
        let bytes = encode(&plan);
        for end in 0..bytes.len() {
            assert!(decoded(&bytes[..end]).is_err(), "{end} bytes of {plan}");
        }
    }
}

#[test]
fn nesting_is_bounded() {
    let mut plan = std::sync::Arc::new(plans()[0].clone());
    for _ in 0..HEIGHT_MAX {
        plan = Plan::select(plan, crate::Expr::bool(true));
    }
    assert!(matches!(
        decoded(&encode(&plan)),
        Err(PlanError::Invalid(_))
    ));
}

/// The deepest expression that is accepted is decoded in the stack of a thread; a deeper one is
/// rejected before it is built.
#[test]
fn nesting_of_expressions_is_bounded() {
    let source = source();
    let nested = |levels: usize| {
        let mut expr = crate::Expr::bool(true);
        for _ in 1..levels {
            expr = crate::Expr::Unary {
                op: crate::expr::UnaryOp::Not,
                expr: Box::new(expr),
            };
        }
        let plan = Plan::select(source.clone(), expr);
        // The sender of a plan is not trusted: its stack may be larger.
        let encoding = std::thread::Builder::new().stack_size(16 << 20);
        let bytes = encoding.spawn(move || encode(&plan)).unwrap().join();
        decoded(&bytes.unwrap())
    };
    assert!(nested(EXPR_HEIGHT_MAX).is_ok());
    assert!(nested(EXPR_HEIGHT_MAX + 1).is_err());
    assert!(nested(2 * EXPR_HEIGHT_MAX).is_err());
}

/// Runs a plan over a few rows with the columns that its sources declare.
fn run(plan: &Plan) {
    let options = EngineOptions {
        query_bytes_max: 1 << 22,
        span_rows_max: 64,
    };
    let mut engine = Engine::new(options);
    engine.add(plan);
    let mut ignored = |_| {};
    for source in plan.sources() {
        let fields = source.schema.fields.iter();
        let column = |field: &Field| {
            let value = |row: i64| match field.ty {
                _ if row == 3 => Value::Null,
                Type::Bool => Value::Bool(row % 2 == 0),
                Type::Int | Type::Time => Value::Int(row * 1_000_000_007),
                Type::Float => Value::Float(row as f64 / 3.0),
                Type::Text => Value::text(["r", "w", "aaa"][row as usize % 3]),
                Type::Tally => Value::Null,
                Type::Partial => Value::Bytes([1, row as u8].as_slice().into()),
            };
            Column::from_values(field.ty, (0..6).map(value))
        };
        let columns = fields.map(column).collect();
        let ts = vec![1, 1, 5, 700, 701, 2_000];
        let batch = match source.shape {
            Shape::Stream => Batch::stream(ts, columns),
            Shape::Relation => Batch::deltas(ts, vec![1; 6], columns),
        };
        engine.push(&source.name, batch);
    }
    engine.step(&mut ignored);
    engine.finish(&mut ignored);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn malformed_plans_never_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..4),
    ) {
        let plans = PLANS.with(Clone::clone);
        let mut bytes = plans[which.index(plans.len())].clone();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        if let Ok(plan) = decoded(&bytes) {
            prop_assert_eq!(decoded(&encode(&plan)), Ok(plan.clone()));
            run(&plan);
        }
    }

    /// Random bytes, alone and after the start of a plan, are an error or a plan that is encoded
    /// again as it is and runs.
    #[test]
    fn random_bytes_are_an_error_or_a_plan_that_runs(
        which in any::<prop::sample::Index>(),
        kept in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let plans = PLANS.with(Clone::clone);
        let start = &plans[which.index(plans.len())];
        for start in [&start[..kept.index(start.len())], &[]] {
            if let Ok(plan) = decoded(&[start, &bytes].concat()) {
                prop_assert_eq!(decoded(&encode(&plan)), Ok(plan.clone()));
                run(&plan);
            }
        }
    }
}

fn source() -> std::sync::Arc<Plan> {
    Plan::source(Catalog::builtin().declarations[0].clone())
}

thread_local! {
    static PLANS: Vec<Vec<u8>> = plans().iter().map(encode).collect();
}
