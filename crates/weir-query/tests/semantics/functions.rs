//! The examples of every function, computed by the oracle and by the engine, give the results in
//! the reference.

use weir_model::{Catalog, Declaration, Field, Schema, Shape, Type, Value};
use weir_query::engine::{Engine, EngineOptions};
use weir_query::function::Example;
use weir_query::function::aggregate::AGGREGATES;
use weir_query::function::scalar::SCALARS;
use weir_query::{CheckOptions, Dialect, compile, compile_unoptimized};

use crate::support::feed::{self, Event};
use crate::support::history::Element;
use crate::support::oracle;
use crate::support::run::Run;

#[test]
fn oracle_and_engine_agree_with_the_examples() {
    let aggregates = AGGREGATES.iter().map(|f| f.doc());
    let docs = aggregates.chain(SCALARS.iter().map(|f| f.doc()));
    let mut wrong = Vec::new();
    for doc in docs {
        assert!(
            !doc.examples.is_empty(),
            "{} shows how it is used",
            doc.name
        );
        // `1 @` is a timestamp in the examples, but not in CQL.
        for example in doc.examples.iter().filter(|e| !e.call.contains('@')) {
            for (who, got) in results(example) {
                if !same(&got, example.result) {
                    let Example { call, rows, result } = example;
                    wrong.push(format!(
                        "{call} of {rows:?} is {result}, the {who} gives {got}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The results of the oracle and of the engine for an example; none for an aggregate over no rows,
/// which has no result row.
fn results(example: &Example) -> Vec<(&'static str, String)> {
    let lines: Vec<Vec<&str>> = example
        .rows
        .lines()
        .map(|l| l.split(',').collect())
        .collect();
    let width = lines.first().map_or(1, Vec::len);
    let is_aggregate = example.call.contains('x') && !lines.is_empty();
    if !is_aggregate && example.call.contains("(x") {
        return vec![];
    }
    let column = |i: usize| -> Vec<&str> { lines.iter().map(|l| l[i].trim()).collect() };
    let types: Vec<Type> = (0..width)
        .map(|i| {
            if lines.is_empty() {
                Type::Int
            } else {
                type_of(&column(i))
            }
        })
        .collect();
    let fields = types.iter().zip(["x", "y"]);
    let fields = fields.map(|(ty, name)| Field::new(name, *ty).nullable());
    let source = Declaration::new("e", Shape::Stream, Schema::new(fields.collect()));
    let row = |line: &Vec<&str>| -> Vec<Value> {
        line.iter()
            .zip(&types)
            .map(|(text, ty)| value(text.trim(), *ty))
            .collect()
    };
    let rows = match lines.is_empty() {
        true => vec![vec![Value::Null]],
        false => lines.iter().map(row).collect(),
    };
    let event = |row| {
        Event::Row(
            0,
            Element {
                ts: 1,
                weight: 1,
                row,
            },
        )
    };
    let feed: Vec<Event> = rows.into_iter().map(event).collect();

    let catalog = Catalog {
        declarations: vec![source.clone()],
        ..Catalog::default()
    };
    let options = CheckOptions {
        second: 1_000_000_000,
        dialect: Dialect::Cql,
        live: false,
    };
    let text = format!("SELECT {} FROM e", example.call);
    let plan = compile(&text, &catalog, &options).unwrap_or_else(|d| panic!("{text}: {d:?}"));
    let unoptimized = compile_unoptimized(&text, &catalog, &options).expect("it compiled before");

    let history = feed::history(&feed, &["e".to_string()], &unoptimized.plan);
    let recomputed = oracle::evaluate(&unoptimized.plan, &history).changes;
    let mut run = Run::new(Engine::new(EngineOptions::default()), vec![source]);
    let query = run.add(&plan.plan);
    run.act(&feed::whole(&feed, 1));
    run.finish();
    let running = run.query(query).changes.clone();
    let only = |changes: crate::support::changes::Changes| {
        let rows = changes
            .instants
            .get(&1)
            .and_then(|rows| rows.keys().next().cloned());
        rows.map_or("nothing".to_string(), |row| row[0].to_string())
    };
    vec![("oracle", only(recomputed)), ("engine", only(running))]
}

fn type_of(values: &[&str]) -> Type {
    let all = |fits: fn(&str) -> bool| values.iter().all(|v| *v == "NULL" || fits(v));
    if all(|v| v.parse::<i64>().is_ok()) {
        Type::Int
    } else if all(|v| v.parse::<f64>().is_ok()) {
        Type::Float
    } else {
        Type::Text
    }
}

fn value(text: &str, ty: Type) -> Value {
    match ty {
        _ if text == "NULL" => Value::Null,
        Type::Int => text.parse().map(Value::Int).expect("an integer"),
        Type::Float => text.parse().map(Value::Float).expect("a float"),
        _ => Value::text(text),
    }
}

/// Equal as texts, or as floats up to rounding.
fn same(a: &str, b: &str) -> bool {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-12 * a.abs().max(b.abs());
    a == b || matches!((a.parse(), b.parse()), (Ok(a), Ok(b)) if close(a, b))
}
