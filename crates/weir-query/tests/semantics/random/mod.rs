//! Random queries on random input: the engine agrees with the oracle at each instant.
//!
//! `PROPTEST_CASES` sets the number of cases. A failure prints enough to write a golden case from
//! it.

mod choices;
mod damaged;
mod data;
mod fleet;
mod folding;
mod grammar;
mod lives;
mod partials;
mod placement;
mod row_match;

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use weir_query::engine::{Engine, EngineOptions};
use weir_query::{CheckOptions, Dialect, Plan, compile, compile_unoptimized, render};

use crate::support::changes::Changes;
use crate::support::feed::{self, Event, Random};
use crate::support::history::History;
use crate::support::oracle;
use crate::support::run::Run;
use choices::Choices;
use grammar::Grammar;
use weir_testing::is_full;

/// The number of cases unless `PROPTEST_CASES` is set; a debug build runs them in a few seconds.
const CASES: u32 = 250;

/// The same with `cargo xtask test --all`.
const CASES_ALL: u32 = 5_000;

fn config() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok());
    ProptestConfig {
        cases: asked.unwrap_or(if is_full() { CASES_ALL } else { CASES }),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    }
}

fn numbers(count: Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    vec(any::<u32>(), count)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_random_query_has_the_result_of_the_oracle(
        query in numbers(0..80),
        data in numbers(20..220),
        seed in any::<u64>(),
    ) {
        let query = Query::write(&query);
        let feed = data::feed(&mut Choices::new(&data));
        let history = feed::history(&feed, &names(), &query.unoptimized);
        let expected = query.expected(&history);
        let mut random = Random::new(seed);
        for actions in [feed::whole(&feed, 3), feed::cut(&feed, 3, &mut random)] {
            let mut run = engine(&mut random);
            run.begin(history.begin);
            let id = run.add(&query.plan);
            run.act(&actions);
            run.finish();
            let result = agree(&expected, run.query(id));
            prop_assert!(result.is_ok(), "{}\n{}{}", query.text, result.unwrap_err(), listing(&feed));
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_final_content_alone_is_the_sum_of_all_changes(
        query in numbers(0..80),
        data in numbers(20..220),
        seed in any::<u64>(),
    ) {
        let query = Query::write(&query);
        let feed = data::feed(&mut Choices::new(&data));
        let history = feed::history(&feed, &names(), &query.unoptimized);
        let expected = query.expected(&history);
        let mut random = Random::new(seed);
        let actions = feed::cut(&feed, 3, &mut random);
        let mut run = engine(&mut random);
        run.begin(history.begin);
        let (all, last) = (run.add(&query.plan), run.add_final(&query.plan));
        run.act(&actions);
        run.finish();
        let result = agree(&expected, run.query(all));
        prop_assert!(result.is_ok(), "{}\n{}{}", query.text, result.unwrap_err(), listing(&feed));
        let failure = &run.query(last).failure;
        prop_assert!(failure.is_none(), "{}\n{failure:?}", query.text);
        let content = run.query(last).changes.content();
        let result = expected.content().agree(&content, ["oracle", "engine"]);
        prop_assert!(result.is_ok(), "{}\n{}{}", query.text, result.unwrap_err(), listing(&feed));
    }
}

/// An engine that processes few or many rows at once.
fn engine(random: &mut Random) -> Run {
    let options = EngineOptions {
        span_rows_max: [1, 2, 3, 10, 1 << 16][random.below(5) as usize],
        ..EngineOptions::default()
    };
    Run::new(Engine::new(options), data::catalog().declarations)
}

struct Query {
    text: String,
    plan: Arc<Plan>,
    unoptimized: Arc<Plan>,
}

impl Query {
    fn write(numbers: &[u32]) -> Query {
        Query::compile(&Grammar::new(&mut Choices::new(numbers), &data::VOCABULARY).query())
    }

    fn compile(text: &str) -> Query {
        let options = CheckOptions {
            second: 1,
            dialect: Dialect::Cql,
            live: false,
        };
        let catalog = data::catalog();
        let checked = compile(text, &catalog, &options).unwrap_or_else(|diagnostics| {
            let pictures = diagnostics.iter().map(|d| render(d, text, None));
            panic!("{text}\n{}", pictures.collect::<Vec<_>>().join("\n"))
        });
        let unoptimized = compile_unoptimized(text, &catalog, &options);
        Query {
            plan: checked.plan,
            unoptimized: unoptimized.expect("it passed the checker before").plan,
            text: text.to_string(),
        }
    }

    fn expected(&self, history: &History) -> Changes {
        let outcome = oracle::evaluate(&self.unoptimized, history);
        assert_eq!(outcome.failure, None, "small values do not overflow");
        outcome.changes
    }
}

fn agree(expected: &Changes, query: &crate::support::run::RunningQuery) -> Result<(), String> {
    if let Some(failure) = &query.failure {
        return Err(format!("the query failed: {failure}"));
    }
    expected.agree(&query.changes, ["oracle", "engine"])
}

fn names() -> Vec<String> {
    let declarations = data::catalog().declarations;
    declarations.iter().map(|d| d.name.clone()).collect()
}

/// The input in the format of a golden case.
fn listing(feed: &[Event]) -> String {
    let names = names();
    let mut text = String::from(
        "ticks\nstream s (a int, b int, t text, f float, g bool, w time)\nstream u (a int, b int, t text, f float, g bool, w time)\nrelation r (a int, b int, t text, f float, g bool, w time)\n",
    );
    for event in feed {
        let _ = match event {
            Event::Row(source, e) => {
                let values: Vec<String> = e.row.iter().map(|v| v.to_string()).collect();
                let sign = match (source, e.weight < 0) {
                    (2, false) => "+ ",
                    (2, true) => "- ",
                    _ => "",
                };
                writeln!(
                    text,
                    "< {} {} {sign}{}",
                    e.ts,
                    names[*source],
                    values.join(" ")
                )
            }
            Event::Heartbeat(_, ts) => writeln!(text, "< {ts}"),
        };
    }
    text
}
