//! Random queries on random data, distributed over one to four hosts whose agents start late, end,
//! are killed and restart: split with every strategy, they have the result of the oracle over
//! everything that the agents saw.

use std::sync::Arc;

use proptest::prelude::*;
use weir_model::{Catalog, Value};
use weir_query::place::fleet::{CutOptions, PlacementStrategy, cut};
use weir_query::{CheckOptions, Dialect, Plan, compile, compile_unoptimized, render};

use super::choices::Choices;
use super::grammar::{Grammar, hosts};
use super::{config, numbers};
use crate::support::feed::Random;
use crate::support::fleet::{Fleet, Life, is_by_arrival};
use crate::support::history::{Element, History};
use crate::support::oracle;

const HOSTS_MAX: u64 = 4;

fn catalog() -> Catalog {
    hosts::catalog(&[])
}

/// The columns of the host and of the request, whose number contains its host.
const HOST: usize = 2;

fn host_of(element: &Element) -> u64 {
    let hosts = (0..HOSTS_MAX).map(|host| Value::text(&format!("h{host}")));
    let mut hosts = hosts.zip(0..);
    let found = hosts.find(|(name, _)| *name == element.row[HOST]);
    found.expect("every row has its host").1
}

/// The first instant, before the first row or with it.
const BEGIN: i64 = 0;

/// The maximum interval of a query.
const SLIDE_MAX: i64 = 5;

/// The lifetimes of the agents of `hosts` hosts, in time order for each host: one from the
/// beginning to the end, or several. A killed process has seen nothing since the last intervals
/// began: its rows would be lost, and counted.
fn lives(hosts: u64, random: &mut Random) -> Vec<Life> {
    let mut lives = Vec::new();
    for agent in 0..hosts {
        let mut from = match random.below(2) {
            0 => i64::MIN,
            _ => random.below(20) as i64,
        };
        for _ in 0..random.below(3) {
            let to = from.max(0) + random.below(30) as i64;
            let killed = (random.below(2) == 0).then(|| to + SLIDE_MAX + random.below(4) as i64);
            lives.push(Life {
                agent,
                from,
                to,
                killed,
            });
            from = killed.unwrap_or(to) + 2 + random.below(12) as i64;
        }
        // Some agents end for good, and some never start.
        if random.below(3) > 0 {
            lives.push(Life {
                agent,
                from,
                to: i64::MAX,
                killed: None,
            });
        }
    }
    lives
}

/// Rows of `hosts` hosts as their agents see them. With `apart`, no two hosts have rows at the same
/// instant.
fn history(choices: &mut Choices<'_>, hosts: u64, apart: bool, lives: &[Life]) -> History {
    let mut rows: Vec<Vec<Element>> = vec![Vec::new(); 3];
    let mut content: Vec<Element> = Vec::new();
    let mut ts = BEGIN;
    let mut last = 0;
    while choices.any_left() {
        ts += choices.one(&[0, 1, 0, 2, 1, 3, 7]);
        let source = choices.one(&[0, 1, 2, 0, 1]);
        let host = choices.pick(hosts as usize) as u64;
        if apart && host != last {
            ts += 1;
        }
        let row = row(choices, host, ts, lives);
        let mut element = Element { ts, weight: 1, row };
        if source == 2 {
            // The rows of an earlier process are retracted below.
            let sees =
                |e: &Element| life_at(lives, host_of(e), e.ts) == life_at(lives, host_of(e), ts);
            let held: Vec<usize> = (0..content.len())
                .filter(|&at| sees(&content[at]))
                .collect();
            if choices.once_in(3) && !held.is_empty() {
                let gone = content.swap_remove(held[choices.pick(held.len())]);
                element = Element {
                    weight: -1,
                    ts,
                    ..gone
                };
            } else {
                content.push(element.clone());
            }
        }
        if apart && host_of(&element) != host {
            ts += 1;
            element.ts = ts;
        }
        last = host_of(&element);
        rows[source].push(element);
    }
    for rows in &mut rows {
        rows.retain(|e| life_at(lives, host_of(e), e.ts).is_some());
    }
    retract_with_lives(&mut rows[2], lives);
    let names = ["s", "u", "r"].map(String::from);
    let mut history = History::new(names.into_iter().zip(rows));
    history.begin = Some(BEGIN);
    history.end = history.end.max(BEGIN);
    if ts % 2 == 0 {
        history.end = history.end.max(ts + 11);
    }
    history
}

/// The index of the lifetime of a host's agent that sees an instant.
fn life_at(lives: &[Life], host: u64, ts: i64) -> Option<usize> {
    lives.iter().position(|l| l.agent == host && l.sees(ts))
}

/// The rows of an agent in a relation are retracted when its next process starts.
fn retract_with_lives(rows: &mut Vec<Element>, lives: &[Life]) {
    let mut gone = Vec::new();
    for (number, life) in lives.iter().enumerate() {
        let later = &lives[number + 1..];
        let Some(next) = later.iter().find(|l| l.agent == life.agent) else {
            continue;
        };
        let mut held: Vec<Element> = Vec::new();
        for e in rows
            .iter()
            .filter(|e| life_at(lives, host_of(e), e.ts) == Some(number))
        {
            match held.iter().position(|h| h.row == e.row && e.weight < 0) {
                Some(at) => drop(held.swap_remove(at)),
                None => held.push(e.clone()),
            }
        }
        gone.extend(held.into_iter().map(|e| Element {
            ts: next.from,
            weight: -1,
            ..e
        }));
    }
    rows.extend(gone);
    rows.sort_by_key(|e| e.ts);
}

fn row(choices: &mut Choices<'_>, host: u64, ts: i64, lives: &[Life]) -> Vec<Value> {
    let int = |x: Option<i64>| x.map_or(Value::Null, Value::Int);
    let text = |x: Option<&str>| x.map_or(Value::Null, Value::text);
    let float = |x: Option<f64>| x.map_or(Value::Null, Value::Float);
    let life = life_at(lives, host, ts);
    let number = life.map_or(0, |life| 1 + life as i64);
    vec![
        int(choices.one(&[Some(1), Some(0), Some(2), None])),
        text(choices.one(&[Some("y"), Some("h1"), None])),
        Value::text(&format!("h{host}")),
        // Request numbers are unique within a process.
        Value::Int(number * 10 + choices.one(&[1, 0, 2])),
        float(choices.one(&[Some(1.0), Some(0.5), Some(-2.0), None])),
        int(choices.one(&[Some(5), Some(6), Some(8), None])),
        Value::Int(ts),
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
    fn a_split_query_has_the_result_of_one_engine(
        query in numbers(0..80),
        data in numbers(20..220),
        seed in any::<u64>(),
    ) {
        let text = Grammar::new(&mut Choices::new(&query), &hosts::VOCABULARY).query();
        let query = compiled(&text);
        let mut random = Random::new(seed);
        let hosts = 1 + random.below(HOSTS_MAX);
        let apart = is_by_arrival(&query.unoptimized);
        let lives = lives(hosts, &mut random);
        let history = history(&mut Choices::new(&data), hosts, apart, &lives);
        let expected = oracle::evaluate(&query.unoptimized, &history);
        prop_assert_eq!(&expected.failure, &None, "small values do not overflow: {}", text);
        let central = if seed % 3 == 0 { vec!["r".to_owned()] } else { vec![] };
        for strategy in PlacementStrategy::ALL {
            let options = CutOptions {
                hint: Some(strategy),
                monitor_sources: central.clone(),
                second: 1,
                ..CutOptions::default()
            };
            let Ok(cut) = cut(&query.plan, &options) else { continue };
            prop_assert_eq!(&cut.monitor.schema, &query.plan.schema, "{}", text);
            let fleet = Fleet {
                cut: &cut,
                sources: &catalog().declarations,
                monitor_sources: &central,
                agents: hosts,
            };
            let outcome = fleet.run_lives(&lives, &history, &|_, e| host_of(e), &mut random);
            prop_assert_eq!(&outcome.failure, &None);
            let result = expected.changes.agree(&outcome.changes, ["oracle", "fleet"]);
            let fragments = cut.fragments.iter().map(|f| f.plan.to_string());
            prop_assert!(
                result.is_ok(),
                "{text}\nstrategy {strategy}\n{}{}\n{}\n{lives:?}\n{history:?}",
                result.unwrap_err(),
                fragments.collect::<Vec<_>>().join("\n"),
                cut.monitor,
            );
        }
    }
}
