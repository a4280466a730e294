//! The queries of a simulation: a fixed set of every placement, and random ones from the grammar of
//! weir-query's tests.

use std::collections::BTreeSet;

use fastrand::Rng;
use weir_model::{Catalog, Field, NANOS_PER_SECOND, Shape, Type};
use weir_query::place::fleet::{Cut, CutError, CutOptions, PlacementStrategy, cut};
use weir_query::{CheckOptions, Dialect, Plan, compile};

use crate::grammar::choices::Choices;
use crate::grammar::query::{Grammar, Vocabulary, hosts};
use crate::scenario::FaultKind as ScenarioKind;

/// The sources, in the order of [`catalog`].
pub const SOURCES: [&str; 3] = ["s", "u", "r"];

/// Every row of stream `s`: what is delivered is counted by it.
const ALL_ROWS: (&str, PlacementStrategy) = (
    "Istream(SELECT host, n FROM s [Now])",
    PlacementStrategy::Rows,
);

/// The same as groups that agents make.
const GROUPS: (&str, PlacementStrategy) = (
    "SELECT host, count(*) FROM s [Range 1 s Slide 1 s] GROUP BY host",
    PlacementStrategy::Partials,
);

/// Queries whose agents send streams.
const OF_STREAMS: &[(&str, PlacementStrategy)] = &[
    (
        "SELECT host, a FROM s [Range 2 s] WHERE a > 0",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT count(*), sum(a), avg(f) FROM s [Range 3 s]",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT a, count(*), avg(f) FROM s [Range 3 s Slide 1 s] GROUP BY a",
        PlacementStrategy::Partials,
    ),
    (
        "SELECT sum(n), max(m) FROM (SELECT host, count(*) AS n, max(a) AS m FROM u [Range 4 s] \
         GROUP BY host) c",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT x.a, y.t FROM s [Range 2 s] x, u [Range 3 s] y \
         WHERE x.a = y.a AND x.host <> y.host",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT x.host, y.f FROM s [Range 2 s] x LEFT JOIN u [Range 1 s] y ON x.a = y.a",
        PlacementStrategy::Rows,
    ),
];

/// Queries whose agents keep windows, or that read a relation.
const OF_RELATIONS: &[(&str, PlacementStrategy)] = &[
    (
        "SELECT host, count(*), sum(a) FROM s [Range 2 s] GROUP BY host",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT s.host, r.t FROM s [Range 2 s], r WHERE s.host = r.host AND s.a = r.a",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT t, count(*) FROM r GROUP BY t",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT s.a, r.host FROM s [Range 1 s], r WHERE s.a = r.a",
        PlacementStrategy::Rows,
    ),
    ("Istream(SELECT host, a FROM r)", PlacementStrategy::Rows),
];

/// The names of random queries. These have no patterns, which only the monitor computes: they would
/// be drawn in place of queries that agents compute.
static VOCABULARY: Vocabulary = Vocabulary {
    has_patterns: false,
    ..hosts::VOCABULARY
};

/// Random queries that are tried for one that a scenario can check.
const ATTEMPTS: usize = 60;

/// A query that runs.
pub struct Query {
    /// Its text.
    pub text: String,
    /// The whole plan, for one engine.
    pub plan: std::sync::Arc<Plan>,
    /// As it runs on the fleet.
    pub cut: Cut,
}

/// Streams `s` and `u` and relation `r`, with the same columns.
pub fn catalog() -> Catalog {
    hosts::catalog(&[Field::new("n", Type::Int)])
}

/// Compiles a query and cuts it by a placement strategy.
///
/// # Errors
/// When that strategy does not exist for it.
pub fn query(text: &str, strategy: PlacementStrategy) -> Result<Query, CutError> {
    let options = CheckOptions {
        second: NANOS_PER_SECOND,
        dialect: Dialect::Cql,
        live: false,
    };
    let checked = compile(text, &catalog(), &options)
        .unwrap_or_else(|diagnostics| panic!("{text}: {diagnostics:?}"));
    let options = CutOptions {
        hint: Some(strategy),
        ..CutOptions::default()
    };
    let cut = cut(&checked.plan, &options)?;
    Ok(Query {
        text: text.to_owned(),
        plan: checked.plan,
        cut,
    })
}

/// The queries of a scenario. The first two count what arrives.
pub fn draw(kind: ScenarioKind, hold_max: i64, random: &mut Rng) -> Vec<Query> {
    let fixed = |(text, strategy): (&str, PlacementStrategy)| {
        query(text, strategy)
            .unwrap_or_else(|why| panic!("{text} is not placed by {strategy}: {why}"))
    };
    let mut queries = vec![fixed(ALL_ROWS), fixed(GROUPS)];
    let pool = match kind.has_relations() {
        true => [OF_STREAMS, OF_RELATIONS].concat(),
        false => OF_STREAMS.to_vec(),
    };
    for _ in 0..3 {
        queries.push(fixed(pool[random.usize(..pool.len())]));
    }
    for _ in 0..3 {
        let drawn = (0..ATTEMPTS).find_map(|_| {
            let numbers: Vec<u32> = (0..random.usize(0..80)).map(|_| random.u32(..)).collect();
            let text = Grammar::new(&mut Choices::new(&numbers), &VOCABULARY).query();
            let strategy = PlacementStrategy::ALL[random.usize(..PlacementStrategy::ALL.len())];
            query(&text, strategy)
                .ok()
                .filter(|query| is_checked(query, kind, hold_max))
        });
        queries.extend(drawn);
    }
    queries
}

/// True if the answer of a scenario to a query is known.
fn is_checked(query: &Query, kind: ScenarioKind, hold_max: i64) -> bool {
    let fragments = &query.cut.fragments;
    // Without a bound of its memory a query starts again after a restart.
    let resumes =
        !kind.kills_monitor() || query.cut.monitor.memory().is_some_and(|m| m <= hold_max);
    // What a process that ends leaves in a relation stays there until the next one begins.
    let streams = fragments.iter().all(|f| f.plan.shape == Shape::Stream);
    let mut read = BTreeSet::new();
    let apart = fragments
        .iter()
        .flat_map(|f| f.plan.sources())
        .all(|source| read.insert(source.name.clone()));
    resumes && (kind.has_relations() || streams && apart)
}
