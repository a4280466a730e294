//! Selection in the tap does not change results: rows that the demand's selection drops, and
//! columns that it omits.

use std::sync::Arc;

use proptest::prelude::*;
use weir_model::event::value;
use weir_model::{Catalog, Declaration, Demand, Predicate, Test, Type, Value};
use weir_query::engine::{Engine, EngineOptions};
use weir_query::{CheckOptions, Dialect, Plan, compile, compile_unoptimized, place};

use super::choices::Choices;
use super::grammar::{Grammar, Kind, Vocabulary};
use super::{agree, config, numbers};
use crate::support::capabilities::live;
use crate::support::feed::{self, Event, Random};
use crate::support::history::Element;
use crate::support::oracle;
use crate::support::run::Run;

/// Columns of finished requests, some of them durations.
static REQUESTS: Vocabulary = Vocabulary {
    streams: ["IO", "IO"],
    relation: None,
    columns: &[
        ("op", Kind::Text),
        ("latency", Kind::Int),
        ("wait", Kind::Int),
        ("comm", Kind::Text),
        ("pid", Kind::Int),
        ("ts", Kind::Time),
    ],
    texts: ["r", "x", "w"],
    keys: ["op", "comm", "op, pid"],
    has_patterns: true,
};

/// Columns of all events, among them amounts of data.
static EVENTS: Vocabulary = Vocabulary {
    streams: ["IOstream", "IO"],
    relation: None,
    columns: &[
        ("type", Kind::Text),
        ("sectors", Kind::Int),
        ("sector", Kind::Int),
        ("pdisk", Kind::Text),
        ("bytes", Kind::Int),
        ("ts", Kind::Time),
    ],
    texts: ["R", "x", "Q"],
    keys: ["type", "pdisk", "type, sector"],
    has_patterns: true,
};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn selection_in_the_tap_does_not_change_results(
        query in numbers(0..80),
        data in numbers(20..160),
        seed in any::<u64>(),
    ) {
        let words = if seed % 2 == 0 { &REQUESTS } else { &EVENTS };
        let text = Grammar::new(&mut Choices::new(&query), words).query();
        let plans = compiled(&text);
        // The query needs an interval for Rstream, or its units do not match.
        prop_assume!(plans.is_some());
        let (plan, unoptimized) = plans.expect("it was assumed");

        let catalog = Catalog::builtin();
        let names: Vec<String> = catalog.declarations.iter().map(|d| d.name.clone()).collect();
        let feed = rows(&catalog, &mut Choices::new(&data));
        let history = feed::history(&feed, &names, &unoptimized);
        let expected = oracle::evaluate(&unoptimized, &history).changes;

        let demands = place::demands(&[&plan], &live());
        let tapped: Vec<Event> = feed
            .iter()
            .filter_map(|event| tapped(event, &catalog, &demands))
            .collect();
        let mut random = Random::new(seed);
        let mut run = Run::new(Engine::new(EngineOptions::default()), catalog.declarations);
        run.begin(history.begin);
        let id = run.add(&plan);
        run.act(&feed::cut(&tapped, names.len(), &mut random));
        run.finish();
        let result = agree(&expected, run.query(id));
        prop_assert!(result.is_ok(), "{text}\n{}{demands:#?}\n{feed:?}", result.unwrap_err());
    }
}

pub fn compiled(text: &str) -> Option<(Arc<Plan>, Arc<Plan>)> {
    let options = CheckOptions {
        second: 1,
        dialect: Dialect::Cql,
        live: true,
    };
    let catalog = Catalog::builtin();
    let plan = compile(text, &catalog, &options).ok()?.plan;
    Some((
        plan,
        compile_unoptimized(text, &catalog, &options).ok()?.plan,
    ))
}

/// An event as the tap delivers it.
fn tapped(event: &Event, catalog: &Catalog, demands: &[Demand]) -> Option<Event> {
    let Event::Row(source, element) = event else {
        return Some(event.clone());
    };
    let declaration = &catalog.declarations[*source];
    let demand = demands.iter().find(|d| d.stream == declaration.name)?;
    if !passes(&demand.predicate, &element.row) {
        return None;
    }
    let mut element = element.clone();
    for (i, value) in element.row.iter_mut().enumerate() {
        if !demand.columns.contains(&i) {
            *value = Value::Null;
        }
    }
    Some(Event::Row(*source, element))
}

pub fn passes(predicate: &Predicate, row: &[Value]) -> bool {
    let holds = |test: &Test| {
        let value = &row[test.operand().column()];
        match (test, value) {
            (Test::Between { operand, low, high }, Value::Int(x)) => {
                (low..=high).contains(&&operand.of(*x))
            }
            (Test::In { texts, .. }, Value::Text(x)) => texts.contains(x),
            _ => false,
        }
    };
    predicate
        .clauses
        .iter()
        .any(|clause| clause.tests.iter().all(holds))
}

/// Rows of `IO` and `IOstream`, and at the end a heartbeat that expires all of them.
fn rows(catalog: &Catalog, choices: &mut Choices<'_>) -> Vec<Event> {
    let mut feed = Vec::new();
    let mut ts = 0;
    while choices.any_left() {
        ts += choices.one(&[0, 1, 0, 2, 1, 3]);
        let source = choices.pick(2);
        let declaration = &catalog.declarations[source];
        let row = row(declaration, ts, choices);
        feed.push(Event::Row(source, Element { ts, weight: 1, row }));
    }
    feed.push(Event::Heartbeat(None, ts + 9));
    feed
}

fn row(declaration: &Declaration, ts: i64, choices: &mut Choices<'_>) -> Vec<Value> {
    let mut row = Vec::new();
    for field in &declaration.schema.fields {
        let known = [&REQUESTS, &EVENTS]
            .into_iter()
            .flat_map(|words| words.columns);
        row.push(match field.ty {
            Type::Time => Value::Int(ts),
            Type::Int | Type::Text if !known.clone().any(|(name, _)| *name == field.name) => {
                Value::Null
            }
            _ if field.nullable && choices.once_in(6) => Value::Null,
            Type::Int => Value::Int(choices.one(&[1, 0, 2, 3, -1, 10])),
            _ => Value::text(choices.one(match field.name.as_str() {
                "type" => &["Q", "R", "E"],
                "op" => &["r", "w", "f"],
                _ => &["x", "r", "R"],
            })),
        });
    }
    // A sector always has 512 bytes.
    if let Value::Int(sectors) = row[declaration.schema.index("sectors")] {
        row[declaration.schema.index("bytes")] = Value::Int(512 * sectors);
    }
    row
}

#[test]
fn a_text_is_not_tested_in_the_kernel_as_a_number() {
    let (plan, _) = compiled("select ts from IO where op is not null and pid is not null")
        .expect("it is right");
    let demands = place::demands(&[&plan], &live());
    let fields = demands[0]
        .predicate
        .clauses
        .iter()
        .flat_map(|c| &c.tests)
        .map(Test::operand);
    assert_eq!(fields.collect::<Vec<_>>(), [value("pid")]);
}
