//! The first ten queries of the cookbook, as they stand there: the engine is not tuned to them.

use std::time::Duration;

use weir_query::{CheckOptions, compile};

use super::{Catalog, pairs_of, run_over};

const COOKBOOK: &str = include_str!("../../../../docs/cookbook.md");

/// How many of them run.
const QUERIES: usize = 10;

/// The headings of the cookbook's queries over a recording, and their texts.
fn queries() -> impl Iterator<Item = (&'static str, &'static str)> {
    let sections = COOKBOOK.split("\n### ").skip(1);
    sections.filter_map(|section| {
        let (heading, rest) = section.split_once('\n')?;
        let (_, block) = rest.split_once("```cql\n")?;
        let (text, _) = block.split_once("```")?;
        Some((heading, text))
    })
}

/// Runs each over all requests, and prints its rate.
pub fn measure(events: usize, rounds: usize) {
    println!(
        "\ncookbook                                              M requests/s   rows out  MiB held"
    );
    for (heading, text) in queries().take(QUERIES) {
        let checked = compile(text, &Catalog::builtin(), &CheckOptions::default());
        let plan = checked.expect("the tests of the cookbook run it").plan;
        let run = || run_over(std::slice::from_ref(&plan), events, "IO", pairs_of());
        let mut runs: Vec<_> = (0..rounds).map(|_| run()).collect();
        runs.sort_by_key(|run| run.time);
        let median = &runs[rounds / 2];
        println!(
            "{heading:<54} {:>11.1} {:>10} {:>9.1}",
            rate(median.rows_in, median.time),
            median.rows_out,
            median.bytes as f64 / f64::from(1 << 20)
        );
    }
}

/// Millions of rows per second.
fn rate(rows: usize, time: Duration) -> f64 {
    rows as f64 / time.as_secs_f64() / 1e6
}
