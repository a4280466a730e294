//! An optimized query has the same result as the original one at every instant, for any rows.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_model::{Batch, Catalog, Column, Declaration, Field, Schema, Shape, Type, Value};
use weir_query::{
    CheckOptions, Engine, EngineOptions, EngineOutput, Plan, compile, compile_unoptimized, render,
};

/// Streams `s` and `t` of four small integers and a text, which are often equal and sometimes NULL.
fn catalog() -> Catalog {
    let field = |name: &str, ty| Field::new(name, ty).nullable();
    let schema = Schema::new(vec![
        field("a", Type::Int),
        field("b", Type::Int),
        field("c", Type::Int),
        field("d", Type::Int),
        field("x", Type::Text),
    ]);
    let stream = |name: &str| Declaration::new(name, Shape::Stream, schema.clone());
    Catalog {
        declarations: vec![stream("s"), stream("t")],
        ..Catalog::default()
    }
}

type Row = (bool, i64, Vec<Option<i64>>);

/// The result of a plan over rows, by instant: each row and its net weight.
fn run(plan: &Plan, rows: &[Row]) -> Result<BTreeMap<(i64, Vec<Value>), i64>, String> {
    let mut engine = Engine::new(EngineOptions::default());
    engine.add(plan);
    for (stream, name) in [(false, "s"), (true, "t")] {
        let mine: Vec<&Row> = rows.iter().filter(|r| r.0 == stream).collect();
        let ts: Vec<i64> = mine.iter().map(|r| r.1).collect();
        let columns = (0..5).map(|i| {
            let value = |r: &&Row| match (r.2[i], i) {
                (None, _) => Value::Null,
                (Some(v), 4) => Value::text(["p", "q", "pq"][v as usize % 3]),
                (Some(v), _) => Value::Int(v),
            };
            let ty = if i == 4 { Type::Text } else { Type::Int };
            Column::from_values(ty, mine.iter().map(value))
        });
        let columns = columns.collect();
        engine.push(name, Batch::stream(ts, columns));
    }
    let mut results = BTreeMap::new();
    let mut failed = None;
    engine.finish(&mut |output| match output {
        EngineOutput::Rows { batch, .. } => {
            for i in 0..batch.len() {
                *results.entry((batch.ts[i], batch.row(i))).or_insert(0) += batch.weight(i);
            }
        }
        EngineOutput::Failed { error, .. } => failed = Some(error.message),
    });
    results.retain(|_, weight| *weight != 0);
    failed.map_or(Ok(results), Err)
}

fn any(choices: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(choices).prop_map(String::from)
}

fn window() -> impl Strategy<Value = String> {
    any(&[
        "",
        "[now]",
        "[rows 1]",
        "[rows 3]",
        "[range 2]",
        "[range 5]",
        "[range 4 slide 2]",
        "[range 3 slide 5]",
        "[partition by a rows 2]",
        "[partition by a, x rows 1]",
        "[range unbounded]",
        "[range unbounded slide 3]",
    ])
}

/// A condition on the columns of the source called `n`.
fn condition(n: &'static str) -> impl Strategy<Value = String> {
    let leaf = (
        any(&["a", "b", "c", "d", "a + b", "c * 2", "d % 3"]),
        any(&["=", "<>", "<", ">=", ">"]),
        any(&["1", "2", "3", "N.a", "N.d"]),
    )
        .prop_map(|(l, op, r)| {
            let mut l = l;
            for column in ["a", "b", "c", "d"] {
                l = l.replace(column, &format!("N.{column}"));
            }
            format!("{l} {op} {r}")
        });
    let other = any(&[
        "N.x = 'p'",
        "N.x like '%q'",
        "N.b is null",
        "N.c in (1, 2)",
        "N.x not in ('p')",
        "1 = 1",
        "(1 = 2 or N.a = 1)",
    ]);
    let leaf = prop_oneof![3 => leaf, 2 => other].prop_map(move |text| text.replace('N', n));
    leaf.prop_recursive(2, 6, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("{l} and {r}")),
            (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("({l} or {r})")),
            inner.prop_map(|x| format!("not ({x})")),
        ]
    })
}

fn relation() -> impl Strategy<Value = String> {
    let simple = (
        window(),
        condition("s"),
        any(&[
            "s.a, s.b",
            "*",
            "distinct s.a, s.x",
            "s.d as a, s.c + 1 as b",
        ]),
    )
        .prop_map(|(w, c, items)| format!("select {items} from s {w} where {c}"));
    let grouped = (window(), condition("s"), any(&["a = 1", "count(*) > 1", "a > 0 and sum(b) > 2", "x = 'p'"]))
        .prop_map(|(w, c, having)| {
            format!("select a, x, count(*) as n, sum(b), max(c) as m from s {w} where {c} group by a, x having {having}")
        });
    let total = (window(), condition("s"))
        .prop_map(|(w, c)| format!("select count(*), min(d) from s {w} where {c}"));
    let joined = (
        window(),
        window(),
        condition("s"),
        condition("t"),
        any(&["join", "left join", "right join", "full join"]),
        any(&[
            "s.a = t.a",
            "s.a = t.b and s.x = t.x",
            "s.a < t.a",
            "s.c + 1 = t.d and s.a = 1 and t.b > 0",
        ]),
        condition("s"),
    )
        .prop_map(|(v, w, c, d, join, on, e)| {
            format!(
                "select s.a, t.b, s.x from s {v} {join} t {w} on {on} and {e} where {c} and {d}"
            )
        });
    let crossed = (window(), window(), condition("s"), condition("t")).prop_map(|(v, w, c, d)| {
        format!("select s.a, t.d from s {v}, t {w} where {c} and s.b = t.b and {d}")
    });
    let semi = (window(), window(), condition("s"), condition("t"), any(&["s.a in", "s.a not in", "s.x in"]))
        .prop_map(|(v, w, c, d, test)| {
            let item = if test.starts_with("s.x") { "t.x" } else { "t.a" };
            format!("select s.a, s.c from s {v} where {c} and {test} (select {item} from t {w} where {d})")
        });
    let exists = (window(), window(), condition("s"), condition("t"), any(&["exists", "not exists"]), any(&["t.a = s.a", "t.a > s.b and t.x = s.x", "s.a = 1 and t.b = s.b"]))
        .prop_map(|(v, w, c, d, test, on)| format!("select s.b from s {v} where {c} and {test} (select * from t {w} where {d} and {on})"));
    let correlated = (window(), window(), condition("t")).prop_map(|(v, w, d)| {
        format!(
            "select s.b from s {v} where s.a not in (select t.a from t {w} where t.x = s.x and {d})"
        )
    });
    let set = (window(), window(), any(&["union", "union all", "intersect", "intersect all", "except", "except all"]), condition("s"), condition("t"), any(&["u.a = 1", "u.b > 1", "u.b + u.a = 3"]))
        .prop_map(|(v, w, op, c, d, outer)| format!("select u.b from (select a, b, c from s {v} where {c} {op} select a, b, d from t {w} where {d}) as u where {outer}"));
    let derived = (window(), condition("s"), any(&["u.k = 1", "u.k + u.a > 2", "u.x = 'q'"]), any(&["", "order by u.k", "order by u.k, u.a, u.x limit 2"]))
        .prop_map(|(w, c, outer, order)| format!("select u.a, u.x, u.k from (select s.a, s.b + s.c as k, s.x from s {w} where {c}) as u where {outer} {order}"));
    let rewindowed = (window(), condition("s"), any(&["[rows 2]", "[range 3]", "[now]"]), any(&["u.n > 1", "u.a = 1"]))
        .prop_map(|(v, c, w, outer)| format!("select u.n from (Istream(select a, count(*) as n from s {v} where {c} group by a)) {w} as u where {outer}"));
    prop_oneof![
        simple, grouped, total, joined, crossed, semi, exists, correlated, set, derived, rewindowed
    ]
}

fn query() -> impl Strategy<Value = String> {
    let streams =
        (any(&["Istream", "Dstream"]), relation()).prop_map(|(op, q)| format!("{op}({q})"));
    let paced = relation().prop_map(|q| format!("Rstream({q}) every 2"));
    let unpaced = relation().prop_map(|q| format!("Rstream({q})"));
    prop_oneof![4 => relation(), 1 => streams, 1 => paced, 1 => unpaced]
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let value = prop_oneof![1 => Just(None), 6 => (0_i64..4).prop_map(Some)];
    let row = (any_stream(), 0_i64..3, prop::collection::vec(value, 5));
    prop::collection::vec(row, 0..24).prop_map(|rows| {
        let mut ts = 0;
        let later = |(stream, gap, values)| {
            ts += gap;
            (stream, ts, values)
        };
        rows.into_iter().map(later).collect()
    })
}

fn any_stream() -> impl Strategy<Value = bool> {
    prop_oneof![3 => Just(false), 2 => Just(true)]
}

/// A thousand queries unless PROPTEST_CASES is set, and 20,000 with `cargo xtask test --all`.
fn config() -> ProptestConfig {
    let named = std::env::var_os("PROPTEST_CASES").is_some();
    let cases = match named {
        true => ProptestConfig::default().cases,
        false if weir_testing::is_full() => 20_000,
        false => 1_000,
    };
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn an_optimized_query_is_equivalent(query in query(), rows in rows()) {
        let (catalog, options) = (catalog(), CheckOptions::script());
        let shown = |d: Vec<weir_query::Diagnostic>| -> String {
            d.iter().map(|d| render(d, &query, None)).collect()
        };
        let written = compile_unoptimized(&query, &catalog, &options).map_err(shown);
        let written = written.unwrap_or_else(|e| panic!("{e}")).plan;
        let optimized = compile(&query, &catalog, &options).map_err(shown);
        let optimized = optimized.unwrap_or_else(|e| panic!("{e}")).plan;
        prop_assert_eq!(&written.schema, &optimized.schema);
        let (expected, got) = (run(&written, &rows), run(&optimized, &rows));
        prop_assert!(expected == got, "{}\nas written\n{}{:?}\noptimized\n{}{:?}", query, written, expected, optimized, got);
    }
}
