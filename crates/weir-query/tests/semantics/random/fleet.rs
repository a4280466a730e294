//! Random queries on random data, dealt over one to four hosts: cut in every way, they give what
//! the oracle gives that sees everything.

use std::sync::Arc;

use proptest::prelude::*;
use weir_model::{Catalog, Declaration, Field, Schema, Shape, Type, Value};
use weir_query::place::fleet::{CutOptions, Way, cut};
use weir_query::{CheckOptions, Dialect, Plan, compile, compile_unoptimized, render};

use super::choices::Choices;
use super::grammar::{Grammar, Kind, Vocabulary};
use super::{config, numbers};
use crate::support::feed::Random;
use crate::support::fleet::{Fleet, is_by_arrival};
use crate::support::history::{Element, History};
use crate::support::oracle;

/// Streams and a relation of the agents. Half of the text columns is the host.
static VOCABULARY: Vocabulary = Vocabulary {
    streams: ["s", "u"],
    relation: Some("r"),
    columns: &[
        ("a", Kind::Int),
        ("t", Kind::Text),
        ("host", Kind::Text),
        ("req_id", Kind::Int),
        ("f", Kind::Float),
        ("w", Kind::Time),
    ],
    texts: ["h1", "y", "h0"],
    keys: ["host", "host, a", "a"],
};

const HOSTS_MAX: u64 = 4;

fn catalog() -> Catalog {
    let fields = [
        Field::new("a", Type::Int).nullable(),
        Field::new("t", Type::Text).nullable(),
        Field::new("host", Type::Text).nullable(),
        Field::new("req_id", Type::Int),
        Field::new("f", Type::Float).nullable(),
        Field::new("w", Type::Time)
            .unit(weir_model::Unit::Nanoseconds)
            .nullable(),
    ];
    let source = |name: &str, shape| Declaration::new(name, shape, Schema::new(fields.to_vec()));
    Catalog {
        declarations: vec![
            source("s", Shape::Stream),
            source("u", Shape::Stream),
            source("r", Shape::Relation),
        ],
    }
}

/// The column of the host, and of the request, whose number tells its host.
const HOST: usize = 2;

fn host_of(element: &Element) -> u64 {
    let hosts = (0..HOSTS_MAX).map(|host| Value::text(&format!("h{host}")));
    let mut hosts = hosts.zip(0..);
    let found = hosts.find(|(name, _)| *name == element.row[HOST]);
    found.expect("every row has its host").1
}

/// Rows of `hosts` hosts. With `apart`, no two hosts have rows at the same instant.
fn history(choices: &mut Choices<'_>, hosts: u64, apart: bool) -> History {
    let mut rows: Vec<Vec<Element>> = vec![Vec::new(); 3];
    let mut content: Vec<Element> = Vec::new();
    let mut ts = 0;
    let mut last = 0;
    while choices.any_left() {
        ts += choices.one(&[0, 1, 0, 2, 1, 3, 7]);
        let source = choices.one(&[0, 1, 2, 0, 1]);
        let host = choices.pick(hosts as usize) as u64;
        let row = row(choices, host);
        let mut element = Element { ts, weight: 1, row };
        if source == 2 {
            if choices.once_in(3) && !content.is_empty() {
                let gone = content.swap_remove(choices.pick(content.len()));
                element = Element {
                    weight: -1,
                    ts,
                    ..gone
                };
            } else {
                content.push(element.clone());
            }
        }
        if apart && host_of(&element) != last {
            ts += 1;
            element.ts = ts;
        }
        last = host_of(&element);
        rows[source].push(element);
    }
    let names = ["s", "u", "r"].map(String::from);
    let mut history = History::new(names.into_iter().zip(rows));
    if ts % 2 == 0 {
        history.end = ts + 11;
    }
    history
}

fn row(choices: &mut Choices<'_>, host: u64) -> Vec<Value> {
    let int = |x: Option<i64>| x.map_or(Value::Null, Value::Int);
    let text = |x: Option<&str>| x.map_or(Value::Null, Value::text);
    let float = |x: Option<f64>| x.map_or(Value::Null, Value::Float);
    vec![
        int(choices.one(&[Some(1), Some(0), Some(2), None])),
        text(choices.one(&[Some("y"), Some("h1"), None])),
        Value::text(&format!("h{host}")),
        Value::Int(host as i64 * 100 + choices.one(&[1, 0, 2])),
        float(choices.one(&[Some(1.0), Some(0.5), Some(-2.0), None])),
        int(choices.one(&[Some(5), Some(6), Some(8), None])),
    ]
}

struct Query {
    plan: Arc<Plan>,
    unoptimized: Arc<Plan>,
}

fn compiled(text: &str) -> Query {
    let options = CheckOptions {
        second: 1,
        dialect: Dialect::Cql,
        live: false,
    };
    let checked = compile(text, &catalog(), &options).unwrap_or_else(|diagnostics| {
        let pictures = diagnostics.iter().map(|d| render(d, text, None));
        panic!("{text}\n{}", pictures.collect::<Vec<_>>().join("\n"))
    });
    let unoptimized = compile_unoptimized(text, &catalog(), &options);
    Query {
        plan: checked.plan,
        unoptimized: unoptimized.expect("it passed the checker before").plan,
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_query_that_is_cut_gives_what_one_engine_gives(
        query in numbers(0..80),
        data in numbers(20..220),
        seed in any::<u64>(),
    ) {
        let text = Grammar::new(&mut Choices::new(&query), &VOCABULARY).query();
        let query = compiled(&text);
        let mut random = Random(seed);
        let hosts = 1 + random.below(HOSTS_MAX);
        let apart = is_by_arrival(&query.unoptimized);
        let history = history(&mut Choices::new(&data), hosts, apart);
        let expected = oracle::evaluate(&query.unoptimized, &history);
        prop_assert_eq!(&expected.failure, &None, "small values do not overflow: {}", text);
        let central = if seed % 3 == 0 { vec!["r".to_owned()] } else { vec![] };
        for way in Way::ALL {
            let options = CutOptions {
                hint: Some(way),
                monitor_sources: central.clone(),
                second: 1,
                ..CutOptions::default()
            };
            let Ok(cut) = cut(&query.plan, &options) else { continue };
            let fleet = Fleet {
                cut: &cut,
                sources: &catalog().declarations,
                monitor_sources: &central,
                agents: hosts,
            };
            let outcome = fleet.run(&history, &|_, e| host_of(e), &mut random);
            prop_assert_eq!(&outcome.failure, &None);
            let result = expected.changes.agree(&outcome.changes, ["oracle", "fleet"]);
            let fragments = cut.fragments.iter().map(|f| f.plan.to_string());
            prop_assert!(
                result.is_ok(),
                "{text}\nway {way}\n{}{}\n{}\n{history:?}",
                result.unwrap_err(),
                fragments.collect::<Vec<_>>().join("\n"),
                cut.monitor,
            );
        }
    }
}
