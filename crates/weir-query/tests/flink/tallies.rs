//! `top` and `histogram` of all types of values in Flink have the result of the oracle: over rows,
//! and merged from what agents send of them.

use weir_model::{NANOS_PER_SECOND, Value};
use weir_query::flink::translate;
use weir_query::{CheckOptions, Dialect, compile};

use crate::published::{Kind, Published};
use crate::support::history::{Element, History};
use crate::{Plans, Translated, flink, largest_window, none, of_values, plans, translated};

/// The aggregates, with limits in another unit, limits that values are equal to, and more values
/// requested than there are.
const TALLIES: &[&str] = &[
    "top(a, 2)",
    "top(f, 3)",
    "top(t, 4)",
    "top(u, 1)",
    "top(g, 2)",
    "top(w, 10000)",
    "top('x', 1)",
    "top(7, 1)",
    "top(a, 2) FILTER (WHERE b > 0)",
    "histogram(a)",
    "histogram(f)",
    "histogram(-f)",
    "histogram(a, -3, 0, 5)",
    "histogram(f, -2.5, 0.0, 2.25)",
    "histogram(a, 9223372036854775806)",
    "histogram(w - w + b, 1 us, 1 ms)",
    "histogram(a) FILTER (WHERE g)",
    // Infinities, and with 0 no numbers.
    "top(f * 1e300 * 1e300, 3)",
    "top(f * 1e300 * 1e300 * 0, 2)",
    "histogram(f * 1e300 * 1e300)",
    "histogram(f * 1e300 * 1e300 * 0)",
    "histogram(f * 1e300 * 1e300, -1.0, 0.5)",
];

/// Windows; the result over the last one is a table that Flink updates.
const WINDOWS: [&str; 3] = [
    "[Range 6 s Slide 2 s]",
    "[Range 2 s Slide 2 s]",
    "[Range Unbounded]",
];

/// Few texts, so that equally frequent ones are frequent. In UTF-16 the last but one is the least.
const TEXTS: [&str; 6] = ["", "a\"b", "\\", "Ä", "\u{1f600}", "\u{fb01}"];

/// The aggregates of each group of random rows.
fn all_in(window: &str, seed: u64) -> Translated {
    let calls = TALLIES.iter().zip(0..);
    let calls: Vec<String> = calls.map(|(call, at)| format!("{call} AS t{at}")).collect();
    let list = calls.join(", ");
    let query = format!("SELECT b, {list} FROM s {window} GROUP BY b");
    case(&query, seed).expect("it is translated")
}

/// A query over random rows, if it is translated.
fn case(query: &str, seed: u64) -> Option<Translated> {
    let catalog = of_values();
    let Plans {
        plan,
        optimized,
        flink,
    } = plans(query, &catalog, NANOS_PER_SECOND, &translated)?;
    let mut history = History::new([("s".to_owned(), rows(seed))]);
    history.end += 2 * largest_window(&plan);
    Some(Translated {
        name: query.to_owned(),
        plan,
        optimized,
        flink,
        history,
        sources: catalog.declarations,
    })
}

/// Rows within 20 s, some values of which are NULL.
fn rows(seed: u64) -> Vec<Element> {
    let mut random = fastrand::Rng::with_seed(seed);
    let extremes = [
        i64::MIN,
        i64::MIN + 1,
        i64::MAX,
        i64::MAX - 1,
        1 << 62,
        (1 << 62) + 1,
    ];
    let mut ts = NANOS_PER_SECOND;
    let row = |id| {
        ts += random.i64(0..200_000_000);
        let a = match random.u32(..6) {
            0 => extremes[random.usize(..extremes.len())],
            _ => random.i64(-6..7),
        };
        let f = match random.u32(..6) {
            0 => [1e300, -1e300, 1e-300, 0.3, -0.0][random.usize(..5)],
            _ => random.i32(-10..11) as f64 / 4.0,
        };
        let mut values = vec![
            Value::Int(a),
            Value::Int(random.i64(-1..2)),
            Value::Float(f),
            Value::text(TEXTS[random.usize(..TEXTS.len())]),
            Value::text(TEXTS[random.usize(..TEXTS.len())]),
            Value::Bool(random.bool()),
            Value::Int(random.i64(0..5)),
        ];
        for value in &mut values {
            if random.u32(..8) == 0 {
                *value = Value::Null;
            }
        }
        values.insert(0, Value::Int(id));
        Element {
            ts,
            weight: 1,
            row: values,
        }
    };
    (0..200).map(row).collect()
}

#[test]
fn tallies_have_the_same_values_in_flink() {
    let Some(mut flink) = flink("tallies_have_the_same_values_in_flink") else {
        return;
    };
    let cases = WINDOWS
        .iter()
        .zip(0..)
        .map(|(window, seed)| all_in(window, seed));
    let differences = cases.filter_map(|case| case.difference(&mut flink));
    none(&differences.collect::<Vec<_>>());
}

#[test]
fn tallies_that_agents_publish_have_the_same_values_in_flink() {
    let test = "tallies_that_agents_publish_have_the_same_values_in_flink";
    let Some(mut flink) = flink(test) else {
        return;
    };
    let mut differ = Vec::new();
    for (window, seed) in WINDOWS[..2].iter().zip(10..) {
        let case = Published::of(all_in(window, seed), seed).expect("its partials are published");
        assert_eq!(case.kind(), Kind::Partials, "{window}");
        differ.extend(case.difference(&mut flink));
    }
    none(&differ);
}

const GROUPS: &str = "FROM s [Range 2 s Slide 2 s] GROUP BY b";

fn nested(outer: &str, list: &str) -> String {
    format!("{outer} FROM (SELECT {list} {GROUPS}) AS x")
}

#[test]
fn queries_over_tallies_have_the_same_result_in_flink() {
    let Some(mut flink) = flink("queries_over_tallies_have_the_same_result_in_flink") else {
        return;
    };
    let tops = format!("SELECT b, top(a, 2) AS h {GROUPS}");
    let histograms = format!("SELECT b, histogram(b) AS h {GROUPS}");
    let queries = [
        nested("SELECT b, h", "b, histogram(a, 0) AS h"),
        nested("SELECT b, count(h)", "b, top(t, 1) AS h") + " GROUP BY b",
        format!("SELECT b, top(w, 2), count(a) {GROUPS} HAVING top(a, 2) IS NOT NULL"),
        format!("SELECT b, count(*) AS n, top(a, 2) {GROUPS} ORDER BY n LIMIT 2"),
        format!("{tops} UNION ALL {histograms}"),
        format!("SELECT x.b, x.h, y.h FROM ({tops}) AS x JOIN ({histograms}) AS y ON x.b = y.b"),
    ];
    let differences =
        queries
            .iter()
            .zip(20..)
            .filter_map(|(query, seed)| match case(query, seed) {
                Some(case) => case.difference(&mut flink),
                None => Some(format!("not translated: {query}")),
            });
    none(&differences.collect::<Vec<_>>());
}

/// What Flink would compare or type in another way is refused.
#[test]
fn tallies_that_flink_compares_in_another_way_are_refused() {
    let tops = format!("SELECT b, top(a, 2) AS h {GROUPS}");
    let floats = format!("SELECT b, top(f, 2) AS h {GROUPS}");
    let queries = [
        nested("SELECT DISTINCT h", "b, top(a, 2) AS h"),
        nested("SELECT h, count(*)", "b, top(a, 2) AS h") + " GROUP BY h",
        nested("SELECT b, count(DISTINCT h)", "b, top(t, 1) AS h") + " GROUP BY b",
        format!("SELECT top(a, 2), b, count(*) AS n {GROUPS} ORDER BY n LIMIT 2"),
        format!("SELECT b, top(a, 2) AS h {GROUPS} ORDER BY h LIMIT 2"),
        format!("{tops} UNION {tops}"),
        format!("{tops} UNION ALL {floats}"),
    ];
    for query in queries {
        let options = CheckOptions {
            second: NANOS_PER_SECOND,
            dialect: Dialect::Cql,
            live: false,
        };
        // Queries that weir itself refuses are none of these.
        let plan = compile(&query, &of_values(), &options).unwrap().plan;
        let why = translate(&plan).expect_err(&query).to_string();
        assert!(why.contains("tall"), "{query}: {why}");
    }
}
