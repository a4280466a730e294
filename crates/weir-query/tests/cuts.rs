//! How queries are split for a fleet: those of the thesis and typical ones, with every placement
//! strategy that makes a difference. `WEIR_BLESS=1` rewrites the expected files.

#[path = "support/capabilities.rs"]
mod capabilities;

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;

use weir_model::{Catalog, Declaration, Field, NANOS_PER_SECOND, Schema, Shape, Type};
use weir_query::place::fleet::{
    Cut, CutOptions, MeasuredFragment, PlacementStrategy, cut, explain_cut,
};
use weir_query::{CheckOptions, Plan, compile, compile_script, render};
use weir_testing::repository::root;

/// A tick of the thesis's scripts is a microsecond.
const TICKS: i64 = 1_000_000;

fn live_options() -> CutOptions {
    options(NANOS_PER_SECOND)
}

fn options(second: i64) -> CutOptions {
    CutOptions {
        second,
        capabilities: capabilities::live(),
        ..CutOptions::default()
    }
}

/// The built-in sources and those of a monitor.
fn catalog() -> Catalog {
    let mut catalog = Catalog::builtin();
    if catalog.find("hosts").is_none() {
        catalog.declarations.push(Declaration::new(
            "hosts",
            Shape::Relation,
            Schema::new(vec![Field::new("host", Type::Text)]),
        ));
    }
    catalog
}

fn compiled(text: &str) -> Arc<Plan> {
    let checked = compile(text, &catalog(), &CheckOptions::live());
    let plan = checked.map(|checked| checked.plan);
    plan.unwrap_or_else(|diagnostics| {
        let pictures = diagnostics.iter().map(|d| render(d, text, None));
        panic!("{}", pictures.collect::<String>())
    })
}

/// Every placement of a plan.
fn placements(plan: &Plan, options: &CutOptions) -> String {
    let mut text = String::new();
    let taken = cut(plan, options).expect("a query can be cut").strategy;
    for strategy in PlacementStrategy::ALL {
        let hint = Some(strategy);
        let asked = CutOptions {
            hint,
            ..options.clone()
        };
        let mark = if strategy == taken { " (chosen)" } else { "" };
        match cut(plan, &asked) {
            Err(why) => {
                let _ = writeln!(text, "{strategy}: {why}");
            }
            Ok(cut) => {
                let _ = writeln!(text, "{strategy}{mark}");
                for (number, fragment) in cut.fragments.iter().enumerate() {
                    let _ = writeln!(text, "  fragment {number}");
                    text += &indented(&fragment.plan.to_string(), 4);
                }
                let _ = writeln!(text, "  monitor");
                text += &indented(&cut.monitor.to_string(), 4);
                for reason in &cut.reasons {
                    let _ = writeln!(text, "  `{}`: {}", reason.operator, reason.why);
                }
            }
        }
    }
    text
}

fn indented(text: &str, by: usize) -> String {
    let line = |line: &str| format!("{:by$}{line}\n", "");
    text.lines().map(line).collect()
}

/// Compares a text with the file of that name, or writes it there.
fn compare(name: &str, text: &str) {
    let path = root().join("tests/cuts").join(name);
    if std::env::var_os("WEIR_BLESS").is_some() {
        fs::write(&path, text).expect("the file can be written");
    }
    let held = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        held == text,
        "{name} is cut otherwise; see it with WEIR_BLESS=1 and git diff\n{text}"
    );
}

#[test]
fn the_thesis_queries_are_cut_as_written_down() {
    let mut text = String::new();
    let names = [
        "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "10M",
    ];
    for name in names {
        let path = root().join(format!("tests/thesis/query_{name}.cql"));
        let script = fs::read_to_string(path).expect("the thesis's scripts are there");
        let script = compile_script(&script).expect("they are right");
        for query in &script.queries {
            let dest = query.dest.as_deref().unwrap_or_default();
            let _ = writeln!(text, "== query {name}: {dest}");
            text += &placements(&query.plan, &options(TICKS));
            text.push('\n');
        }
    }
    compare("thesis.txt", &text);
}

#[test]
fn typical_queries_are_cut_as_written_down() {
    let path = root().join("tests/cuts/typical.cql");
    let file = fs::read_to_string(path).expect("the queries are there");
    let mut text = String::new();
    for part in file.split_inclusive(';') {
        let part = part.trim().trim_end_matches(';');
        if part.is_empty() {
            continue;
        }
        let lines = part.lines().filter(|line| !line.starts_with('#'));
        let query = lines.collect::<Vec<_>>().join("\n");
        let _ = writeln!(text, "{part}");
        let options = live_options();
        text += &placements(&compiled(&query), &options);
        text.push('\n');
    }
    compare("typical.txt", &text);
}

#[test]
fn a_cut_query_is_explained_with_what_was_measured() {
    let plan =
        compiled("select vm, count(*) from IO [range 5 s slide 1 s] where op = 'r' group by vm");
    let mut options = live_options();
    options.rates.requests_per_second = 5_000.0;
    let parts = cut(&plan, &options).expect("it can be cut");
    assert_eq!(parts.strategy, PlacementStrategy::Partials);
    options.rates.measured.push(MeasuredFragment {
        plan: parts.fragments[0].plan.clone(),
        rows_in: 5_000.0,
        rows_out: 12.0,
        bytes_out: 640.0,
        cpu_ns: None,
    });
    let parts = cut(&plan, &options).expect("it can be cut");
    let explanation = explain_cut(&parts, &options);
    compare("explained.txt", &explanation.to_string());
    let json = explanation.to_json();
    assert!(json.contains(r#""strategy":"partials""#), "{json}");
    assert!(
        json.contains(r#""measured":{"rows_in":5000,"rows_out":12,"bytes_out":640"#),
        "{json}"
    );
    assert!(json.contains(r#""place":"monitor""#), "{json}");
}

#[test]
fn a_strategy_that_makes_no_difference_is_refused_with_the_reason() {
    let plan = compiled("select avg(latency) from IO [rows 1000]");
    let asked = |strategy| CutOptions {
        hint: Some(strategy),
        ..live_options()
    };
    let why = |strategy| {
        cut(&plan, &asked(strategy))
            .expect_err("it makes no difference")
            .to_string()
    };
    let [partials, agent] = [PlacementStrategy::Partials, PlacementStrategy::Agent].map(why);
    assert!(
        partials.starts_with("`partials` is not possible"),
        "{partials}"
    );
    assert!(agent.contains("counts rows across hosts"), "{agent}");
    assert!("everywhere".parse::<PlacementStrategy>().is_err());
}

#[test]
fn groups_that_are_as_many_as_rows_are_not_worth_sending_in_parts() {
    let plan = compiled("select pid, sum(bytes) from IOstream [range 1 s slide 1 s] group by pid");
    let mut options = live_options();
    let strategy = |options: &CutOptions| cut(&plan, options).expect("it can be cut").strategy;
    assert_eq!(strategy(&options), PlacementStrategy::Partials);
    options.rates.groups = 1e9;
    assert_eq!(strategy(&options), PlacementStrategy::Rows);
}

/// The measured rates of the fragments of a query: rows and bytes per second of each.
fn measured(
    query: &str,
    strategy: PlacementStrategy,
    rows_out: f64,
    bytes_out: f64,
) -> Vec<MeasuredFragment> {
    let asked = CutOptions {
        hint: Some(strategy),
        ..live_options()
    };
    let cut = cut(&compiled(query), &asked).expect("it can be cut so");
    let fragments = cut.fragments.into_iter();
    let measured = fragments.map(|fragment| MeasuredFragment {
        plan: fragment.plan,
        rows_in: 20_000.0,
        rows_out,
        bytes_out,
        cpu_ns: None,
    });
    measured.collect()
}

#[test]
fn what_a_fragment_was_seen_to_send_decides_how_its_query_is_cut() {
    let query = "select pid, sum(bytes) from IOstream [range 1 s slide 1 s] group by pid";
    let plan = compiled(query);
    let mut options = live_options();
    let strategy = |options: &CutOptions| cut(&plan, options).expect("it can be cut").strategy;
    assert_eq!(strategy(&options), PlacementStrategy::Partials);
    // Nearly as many groups as rows, and each is larger than a row.
    options.rates.measured = measured(query, PlacementStrategy::Partials, 19_500.0, 1_560_000.0);
    assert_eq!(strategy(&options), PlacementStrategy::Rows);
    options.rates.measured = measured(query, PlacementStrategy::Partials, 100.0, 8_000.0);
    assert_eq!(strategy(&options), PlacementStrategy::Partials);
}

#[test]
fn a_running_fragment_gives_the_selectivity_of_others() {
    let few = "select pid, sum(bytes) from IO [range 1 s slide 1 s] \
               where latency > 1 ms group by pid";
    let plan = compiled(few);
    let options = live_options();
    let before = cut(&plan, &options).expect("it can be cut");
    // Another query forwards the same rows with other columns, or groups them for another call.
    let forwarding = "select sector from IO where latency > 1 ms";
    let grouping = "select pid, max(sectors) from IO [range 5 s slide 1 s] \
                    where latency > 1 ms group by pid";
    let rates = [
        measured(forwarding, PlacementStrategy::Rows, 40.0, 1_000.0),
        measured(grouping, PlacementStrategy::Partials, 7.0, 1_000.0),
    ];
    let [rows, groups] = rates.map(|measured| {
        let mut options = options.clone();
        options.rates.measured = measured;
        cut(&plan, &options).expect("it can be cut")
    });
    let cost = |cut: &Cut, strategy: PlacementStrategy| {
        cut.candidates[strategy as usize]
            .cost
            .clone()
            .expect("possible")
    };
    assert!(cost(&before, PlacementStrategy::Rows).rows_out > 1_000.0);
    assert_eq!(cost(&rows, PlacementStrategy::Rows).rows_out, 40.0);
    assert!(cost(&rows, PlacementStrategy::Partials).rows_out <= 40.0);
    assert_eq!(cost(&groups, PlacementStrategy::Partials).rows_out, 7.0);
}

#[test]
fn what_a_host_takes_grows_with_how_slow_it_is() {
    let query = "select pid, sum(bytes) from IOstream [range 1 s slide 1 s] group by pid";
    let plan = compiled(query);
    let mut options = live_options();
    let cpu_ns = |options: &CutOptions| {
        let cut = cut(&plan, options).expect("it can be cut");
        let costs = cut.candidates.into_iter();
        let costs = costs.filter_map(|candidate| Some(candidate.cost.ok()?.cpu_ns));
        costs.collect::<Vec<f64>>()
    };
    let before = cpu_ns(&options);
    options.rates.cpu_factor = 3.0;
    let after = cpu_ns(&options);
    assert!(before.iter().zip(&after).all(|(b, a)| *a > 1.5 * b));
}
