//! Properties of a running engine that small random runs do not cover: long input, many queries at
//! once, memory, relations with content from before the query.

use std::sync::Arc;

use weir_model::{Catalog, Declaration, Field, Schema, Shape, Type, Value};
use weir_query::engine::{Engine, EngineOptions};
use weir_query::{CheckOptions, Dialect, Plan, compile, compile_unoptimized};

use crate::support::feed::{self, Action, Event, Random};
use crate::support::history::Element;
use crate::support::oracle;
use crate::support::run::Run;

/// A query for each operator and each window, with keys in the hundreds.
const QUERIES: &[&str] = &[
    "select k, x from s [range 20 s] where x > 50",
    "select k, count(*), sum(x), min(x), max(x), avg(x) from s [range 30 s] group by k",
    "select k, median(x), count(distinct x), first(x), last(x) from s [rows 100] group by k",
    "select max(x), quantile(x, 0.9), top(k, 3), histogram(x) from s [range 40 s slide 7 s]",
    "select s.k, s.x, u.x from s [range 15 s], u [range 25 s] where s.k = u.k",
    "select s.k, u.x from s [range 15 s] left join u [range 10 s] on s.k = u.k and s.x < u.x",
    "select s.k, u.k from s [rows 30] full join u [range 10 s] on s.k = u.k",
    "select k from s [range 20 s] where k not in (select k from u [range 20 s])",
    "select k from s [range 20 s] where not exists (select 1 from u [now] where u.k = s.k)",
    "select distinct k from s [partition by k rows 2] where x % 3 = 0",
    "select k from s [range 9 s] except all select k from u [range 9 s]",
    "select k from s [range 9 s] intersect select k from u [range 9 s]",
    "select k, count(*) as n from s [range 20 s] group by k order by n desc, k limit 10",
    "Istream(select k, max(x) from s [range 20 s] group by k having max(x) > 40)",
    "Dstream(select k, x from u [rows 64])",
    "Rstream(select count(*) from s [range 20 s]) every 5 s",
    "select k, sum(x), baseline(sum(x)) from s [range 20 s slide 5 s] group by k",
    "select max(n) from (select k, count(*) as n from s [range 20 s slide 5 s] group by k) as g",
];

fn source(name: &str, shape: Shape) -> Declaration {
    let fields = [("k", Type::Int), ("x", Type::Int)];
    let fields = fields.map(|(name, ty)| Field::new(name, ty).nullable());
    Declaration::new(name, shape, Schema::new(fields.to_vec()))
}

fn sources() -> Vec<Declaration> {
    vec![
        source("s", Shape::Stream),
        source("u", Shape::Stream),
        source("r", Shape::Relation),
    ]
}

const OPTIONS: CheckOptions = CheckOptions {
    second: 1,
    dialect: Dialect::Cql,
    live: false,
};

fn plan(text: &str) -> Arc<Plan> {
    let catalog = Catalog {
        declarations: sources(),
        ..Catalog::default()
    };
    compile(text, &catalog, &OPTIONS)
        .expect("the query is right")
        .plan
}

fn element(ts: i64, weight: i64, k: i64, x: i64) -> Element {
    Element {
        ts,
        weight,
        row: vec![Value::Int(k), Value::Int(x)],
    }
}

/// Rows of both streams, most with few keys and some with many.
fn feed(rows: usize, random: &mut Random) -> Vec<Event> {
    let mut ts = 0;
    let mut event = || {
        ts += [0, 0, 0, 1, 1, 4][random.below(6) as usize];
        let keys = [5, 20, 400][random.below(3) as usize];
        let (k, x) = (random.below(keys) as i64, random.below(100) as i64);
        Event::Row(random.below(2) as usize, element(ts, 1, k, x))
    };
    (0..rows).map(|_| event()).collect()
}

#[test]
fn long_runs_agree_with_the_oracle_however_they_are_cut() {
    let mut random = Random::new(11);
    let feed = feed(400, &mut random);
    let names: Vec<String> = sources().into_iter().map(|s| s.name).collect();
    let catalog = Catalog {
        declarations: sources(),
        ..Catalog::default()
    };
    for text in QUERIES {
        let unoptimized =
            compile_unoptimized(text, &catalog, &OPTIONS).expect("the query is right");
        let history = feed::history(&feed, &names, &unoptimized.plan);
        let expected = oracle::evaluate(&unoptimized.plan, &history).changes;
        assert!(expected.instants.len() > 10, "{text} has something to say");
        for rows in [3, 1 << 16] {
            let actions = feed::cut(&feed, 3, &mut random);
            let mut run = engine(rows);
            run.begin(history.begin);
            let query = run.add(&plan(text));
            run.act(&actions);
            run.finish();
            let result = expected.agree(&run.query(query).changes, ["oracle", "engine"]);
            assert_eq!(result, Ok(()), "{text}");
        }
    }
}

/// Each with its past as a join with the same windows that are delayed.
const BASELINES: &[[&str; 2]] = &[
    [
        "select k, sum(x), baseline(sum(x)), baseline(count(*), 12 s) from s [range 6 s slide 3 s] group by k",
        "select a.k, a.x, b.x, c.n \
         from (select k, sum(x) as x from s [range 6 s slide 3 s] group by k) as a \
         left join (select k, sum(x) as x from s [range 6 s slide 3 s delay 6 s] group by k) as b \
         on a.k is not distinct from b.k \
         left join (select k, count(*) as n from s [range 6 s slide 3 s delay 12 s] group by k) as c \
         on a.k is not distinct from c.k",
    ],
    [
        "select k, avg(x) from s [range 16 s slide 4 s] group by k having avg(x) > baseline(x)",
        "select a.k, a.x from (select k, avg(x) as x from s [range 16 s slide 4 s] group by k) as a \
         join (select k, avg(x) as x from s [range 16 s slide 4 s delay 16 s] group by k) as b \
         on a.k is not distinct from b.k where a.x > b.x",
    ],
];

#[test]
fn a_baseline_is_the_same_window_delayed() {
    let mut random = Random::new(14);
    let feed = feed(400, &mut random);
    let names: Vec<String> = sources().into_iter().map(|s| s.name).collect();
    let catalog = Catalog {
        declarations: sources(),
        ..Catalog::default()
    };
    for [text, delayed] in BASELINES {
        let delayed = compile_unoptimized(delayed, &catalog, &OPTIONS).expect("it is right");
        let history = feed::history(&feed, &names, &delayed.plan);
        let expected = oracle::evaluate(&delayed.plan, &history).changes;
        assert!(expected.instants.len() > 10, "{text} has something to say");
        let mut run = engine(64);
        run.begin(history.begin);
        let query = run.add(&plan(text));
        run.act(&feed::cut(&feed, 3, &mut random));
        run.finish();
        let result = expected.agree(&run.query(query).changes, ["delayed", "baseline"]);
        assert_eq!(result, Ok(()), "{text}");
    }
}

#[test]
fn longer_runs_do_not_depend_on_the_cut() {
    let mut random = Random::new(12);
    let feed = feed(6_000, &mut random);
    let plans: Vec<Arc<Plan>> = QUERIES.iter().map(|q| plan(q)).collect();
    let outcomes = |run: &mut Run, actions: &[Action]| {
        let queries: Vec<usize> = plans.iter().map(|p| run.add(p)).collect();
        run.act(actions);
        run.finish();
        queries
    };
    let mut whole = engine(1 << 16);
    let queries = outcomes(&mut whole, &feed::whole(&feed, 3));
    let mut cut = engine(100);
    outcomes(&mut cut, &feed::cut(&feed, 3, &mut random));
    for (query, text) in queries.into_iter().zip(QUERIES) {
        let [a, b] = [&whole, &cut].map(|run| &run.query(query).changes);
        assert_eq!(a.agree(b, ["whole", "cut"]), Ok(()), "{text}");
    }
}

#[test]
fn a_query_that_is_removed_leaves_nothing_behind() {
    let mut random = Random::new(13);
    let mut run = engine(1 << 16);
    let kept = run.add(&plan("select count(*) from u [range 5 s]"));
    let big = "select s.k, u.x from s [range 1000 s] left join u [range 1000 s] on s.k = u.k";
    let bytes = |run: &Run| {
        run.engine
            .counts()
            .queries
            .last()
            .expect("a query runs")
            .bytes
    };
    let first = run.add(&plan(big));
    let fresh = bytes(&run);
    let rows = feed(2_000, &mut random);
    run.act(&feed::whole(&rows, 3));
    let full = bytes(&run);
    assert!(full > fresh + 100_000, "{full} bytes hold 2,000 rows");
    run.remove(first);
    assert_eq!(run.engine.counts().queries.len(), 1);
    // The same query, started again, starts without rows, although another one has kept its source
    // in use.
    run.add(&plan(big));
    run.act(&[Action::Step]);
    assert!(
        bytes(&run) <= fresh + 1_000,
        "{} bytes hold no row",
        bytes(&run)
    );
    assert_eq!(run.query(kept).failure, None);
}

#[test]
fn a_query_finds_what_a_relation_holds() {
    let mut run = engine(1 << 16);
    for declaration in sources() {
        run.engine.declare(&declaration);
    }
    let before = [
        element(1, 1, 7, 70),
        element(2, 1, 8, 80),
        element(3, -1, 7, 70),
    ];
    run.act(&[
        Action::Push(2, before.to_vec()),
        Action::Heartbeat(2, 4),
        Action::Step,
    ]);
    let query = run.add(&plan("select s.x, r.x from s [now], r where s.k = r.k"));
    run.act(&[
        Action::Push(0, vec![element(10, 1, 7, 1), element(10, 1, 8, 2)]),
        Action::Push(2, vec![element(11, 1, 7, 71)]),
        Action::Push(0, vec![element(12, 1, 7, 3)]),
    ]);
    run.finish();
    let lines = run.query(query).changes.lines(Shape::Relation);
    let expected = [(10, "+ 2 80"), (11, "- 2 80"), (12, "+ 3 71")];
    assert_eq!(lines, expected.map(|(ts, row)| (ts, row.to_string())));
}

fn engine(span_rows_max: usize) -> Run {
    let options = EngineOptions {
        span_rows_max,
        ..EngineOptions::default()
    };
    Run::new(Engine::new(options), sources())
}
