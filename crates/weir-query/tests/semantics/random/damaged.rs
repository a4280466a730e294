//! Random queries and damaged ones: the parser, the checker and the engine never panic. Each query
//! runs, or is refused with a diagnostic.
//!
//! `WEIR_QUERIES=1000000` sets their number, `WEIR_SEED=17` the first, as a failure prints it; with
//! only the latter, one runs.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use fastrand::Rng;
use weir_query::function::aggregate::AGGREGATES;
use weir_query::function::scalar::SCALARS;
use weir_query::{CheckOptions, Diagnostic, Dialect, compile, render, syntax};
use weir_testing::is_full;

use super::choices::Choices;
use super::grammar::Grammar;
use super::{data, engine};
use crate::support::feed::{self, Random};

/// The number of queries; a debug build runs them in half a minute.
const QUERIES: u64 = 20_000;

/// The same with `cargo xtask test --all`; `cargo xtask fuzz` runs any number.
const QUERIES_ALL: u64 = 200_000;

/// A damaged query that reads more sources is only checked: their product has too many rows.
const SOURCES_MAX: usize = 4;

/// The most rows of the sources.
const NUMBERS_MAX: usize = 40;

/// What the queries came to.
#[derive(Default)]
struct Counts {
    ran: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

#[test]
fn random_and_damaged_queries_run_or_are_refused() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let usual = if is_full() { QUERIES_ALL } else { QUERIES };
    let first = number("WEIR_SEED");
    let one = first.map_or(usual, |_| 1);
    let end = first.unwrap_or(0) + number("WEIR_QUERIES").unwrap_or(one);
    let first = first.unwrap_or(0);
    let counts = Counts::default();
    let next = AtomicU64::new(first);
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let failures: Vec<String> = thread::scope(|scope| {
        let work = || {
            let mut failures = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    return failures;
                }
                failures.extend(failure(seed, &counts));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let found = workers
            .into_iter()
            .map(|w| w.join().expect("panics are caught"));
        found.flatten().collect()
    });
    let [ran, failed, refused] =
        [&counts.ran, &counts.failed, &counts.refused].map(|n| n.load(Ordering::Relaxed));
    println!(
        "{} queries: {ran} ran, {failed} of them failed, {refused} were refused",
        end - first
    );
    assert!(
        failures.is_empty(),
        "{} queries:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(
        end - first < 100 || (ran > 0 && refused > 0),
        "both were tested"
    );
}

/// Checks and runs the query of a seed; returns its text if that panics.
fn failure(seed: u64, counts: &Counts) -> Option<String> {
    let mut rng = Rng::with_seed(seed);
    let (text, is_valid) = match seed % 4 {
        0 => (valid(&mut rng), true),
        1 | 2 => (damaged(&valid(&mut rng), &mut rng), false),
        _ => (soup(&mut rng), false),
    };
    let run = AssertUnwindSafe(|| check(&text, is_valid, &mut rng, counts));
    let panic = panic::catch_unwind(run).err()?;
    let message = panic.downcast_ref::<String>().cloned();
    let message = message.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
    Some(format!(
        "seed {seed}: {text:?}\n    {}",
        message.unwrap_or_default()
    ))
}

fn numbers(max: usize, rng: &mut Rng) -> Vec<u32> {
    (0..rng.usize(0..max)).map(|_| rng.u32(..)).collect()
}

/// A query of the grammar.
fn valid(rng: &mut Rng) -> String {
    let numbers = numbers(80, rng);
    Grammar::new(&mut Choices::new(&numbers), &data::VOCABULARY).query()
}

/// The query with one to three tokens removed, repeated, exchanged or replaced.
fn damaged(text: &str, rng: &mut Rng) -> String {
    let mut tokens: Vec<String> = tokens(text).into_iter().map(str::to_owned).collect();
    for _ in 0..rng.usize(1..=3) {
        let at = rng.usize(0..tokens.len());
        // Half of the changes keep the kinds of tokens.
        match rng.choice([0, 1, 2, 3, 3, 3, 3, 3, 3, 4, 5]).unwrap_or(3) {
            0 if tokens.len() > 1 => {
                tokens.remove(at);
            }
            1 => tokens.insert(at, tokens[at].clone()),
            2 => {
                let other = rng.usize(0..tokens.len());
                tokens.swap(at, other);
            }
            3 => exchange(&mut tokens, rng),
            4 => tokens.insert(at, word(rng)),
            _ => tokens[at] = word(rng),
        }
    }
    // Rarely the text ends within a token.
    let mut text = tokens.join(" ");
    if rng.u8(0..10) == 0 {
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        text.truncate(rng.choice(ends).unwrap_or(0));
    }
    text
}

/// A column, number or text becomes another one of the query, which is often valid again.
fn exchange(tokens: &mut [String], rng: &mut Rng) {
    let of = |kind: u8| {
        let found = tokens
            .iter()
            .enumerate()
            .filter(move |(_, t)| class(t) == kind);
        found.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let places = of(rng.choice([0, 1, 2, 2]).unwrap_or(2));
    if let (Some(to), Some(from)) = (rng.choice(&places), rng.choice(&places)) {
        tokens[*to] = tokens[*from].clone();
    }
}

/// Random tokens, most of them after the start of a query.
fn soup(rng: &mut Rng) -> String {
    let words: Vec<String> = (0..rng.usize(1..30)).map(|_| word(rng)).collect();
    let start = rng.choice([
        "",
        "select ",
        "select a from s ",
        "select a, count(*) from s group by ",
    ]);
    start.unwrap_or_default().to_owned() + &words.join(" ")
}

/// Characters that are one sign beside each other.
const SIGNS: &str = "<>=!|:~";

/// The kind of a token: a number 0, a text 1, a column with its table 2, any other 3.
fn class(token: &str) -> u8 {
    match token.chars().next() {
        Some('0'..='9') => 0,
        Some('\'') => 1,
        Some(_) if token.contains('.') => 2,
        _ => 3,
    }
}

/// Words, numbers, texts and signs.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let len = match first {
            '\'' => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c if SIGNS.contains(c) => rest.find(|c| !SIGNS.contains(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        tokens.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    tokens
}

/// Keywords, names, literals, units and signs of CQL, and some that it does not have.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "select", "distinct", "all", "from", "where", "group", "by", "having", "order", "limit",
    "offset", "union", "except", "intersect", "with", "as", "join", "left", "right", "full", "cross",
    "on", "using", "and", "or", "not", "in", "exists", "is", "null", "true", "false", "unknown",
    "between", "like", "ilike", "case", "when", "then", "else", "end", "cast", "try_cast", "extract",
    "interval", "timestamp", "integer", "text", "float", "boolean", "over", "partition", "rows",
    "range", "groups", "unbounded", "preceding", "following", "current", "row", "nulls", "first",
    "last", "desc", "asc", "rollup", "cube", "grouping", "sets", "filter", "within", "create",
    "view", "stream", "probe", "register", "istream", "dstream", "rstream", "every", "slide",
    "delay", "session", "now", "emit", "final", "changes", "tumble", "hop", "table", "descriptor",
    "s", "u", "r", "IO", "weir", "x0", "x1", "c0", "v0", "a", "b", "t", "f", "g", "w", "x0.a",
    "x1.t", "s.a", "0", "1", "2", "-1", "0.5", "1e308", "1e999", "9223372036854775807",
    "9223372036854775808", "''", "'x'", "'2026-01-31'", "\"y\"", "`a`", "'", "\"", "`", "ns", "us",
    "ms", "seconds", "days", "KiB", "sectors", "(", ")", "[", "]", "((", "))", ",", ";", ".", "*",
    "+", "-", "/", "%", "=", "<>", "<", ">=", "||", "::", "~", "!~*", "&", "|", "<<", ">>", "#",
    "--", "/*", "*/", "$1", "?", "@", "\\", "{", "}", "\u{e9}", "\u{1f600}", "\0",
    "[range 2 s]", "[rows 1]", "[partition by a rows 1]", "[now]", "[range 3 s slide 2 s]",
    "[session 1 s by t]", "over (order by a)", "(select a from s)", "(select max(b) from u [rows 2])",
    "group by rollup (a, t)", "order by 1 limit 1", "union all select a from u", "in (1, null)",
];

fn word(rng: &mut Rng) -> String {
    let function = |name: &str| format!("{name}(");
    match rng.u8(0..10) {
        0 => function(SCALARS[rng.usize(0..SCALARS.len())].doc().name),
        1 => function(AGGREGATES[rng.usize(0..AGGREGATES.len())].doc().name),
        _ => WORDS[rng.usize(0..WORDS.len())].to_owned(),
    }
}

/// Checks the query in each dialect, and runs it where it is valid.
fn check(text: &str, must_be_valid: bool, rng: &mut Rng, counts: &Counts) {
    let parsed = syntax::parse(text);
    diagnosed(&parsed.diagnostics, text);
    if parsed.diagnostics.is_empty() {
        let statements = parsed.tree.iter().map(|s| s.to_string());
        let printed = statements.collect::<Vec<_>>().join(";\n");
        let again = syntax::parse(&printed);
        assert_eq!(again.diagnostics, [], "what is printed is valid: {printed}");
        assert_eq!(
            parsed.tree, again.tree,
            "the printed query is the same one: {printed}"
        );
    }
    let catalog = data::catalog();
    for options in [CheckOptions::live(), CheckOptions::script()] {
        let warnings = compile(text, &catalog, &options).map(|checked| checked.warnings);
        diagnosed(&warnings.unwrap_or_else(|errors| errors), text);
    }
    let options = CheckOptions {
        second: 1,
        dialect: Dialect::Cql,
        live: false,
    };
    match compile(text, &catalog, &options) {
        Ok(checked) => {
            diagnosed(&checked.warnings, text);
            counts.ran.fetch_add(1, Ordering::Relaxed);
            if must_be_valid || sources(text) <= SOURCES_MAX {
                let failure = run(&checked.plan, rng);
                assert!(failure.is_none() || !must_be_valid, "it fails: {failure:?}");
                counts
                    .failed
                    .fetch_add(u64::from(failure.is_some()), Ordering::Relaxed);
            }
        }
        Err(diagnostics) => {
            assert!(!must_be_valid, "it is refused: {diagnostics:?}");
            assert!(
                diagnostics.iter().any(Diagnostic::is_error),
                "a refusal has a reason"
            );
            diagnosed(&diagnostics, text);
            counts.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Diagnostics lie within the text, and can be shown.
fn diagnosed(diagnostics: &[Diagnostic], text: &str) {
    for diagnostic in diagnostics {
        let span = diagnostic.span;
        assert!(
            span.start <= span.end && span.end <= text.len(),
            "{diagnostic:?} is in the text"
        );
        assert!(render(diagnostic, text, None).contains(&diagnostic.message));
        assert!(!diagnostic.message.is_empty());
    }
}

/// How often the text names a source or something that may be one.
fn sources(text: &str) -> usize {
    let names = ["s", "u", "r", "v0", "v1"];
    let is_source = |token: &&str| names.iter().any(|name| token.eq_ignore_ascii_case(name));
    tokens(text).into_iter().filter(is_source).count()
}

/// Runs a plan over random rows; returns the message of its failure.
fn run(plan: &std::sync::Arc<weir_query::Plan>, rng: &mut Rng) -> Option<String> {
    let numbers = numbers(NUMBERS_MAX, rng);
    let feed = data::feed(&mut Choices::new(&numbers));
    let history = feed::history(&feed, &super::names(), plan);
    let mut random = Random::new(rng.u64(..));
    let actions = feed::cut(&feed, 3, &mut random);
    let mut run = engine(&mut random);
    run.begin(history.begin);
    let id = run.add(plan);
    run.act(&actions);
    run.finish();
    run.query(id).failure.clone()
}
