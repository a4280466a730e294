//! The cases under `tests/cases`: each runs in several ways whose results must equal the expected
//! ones. `WEIR_BLESS=1` writes the results into the cases instead.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::Trial;
use weir_model::Shape;
use weir_query::engine::{Engine, EngineOptions};
use weir_query::place::fleet::{CutOptions, PlacementStrategy, cut};
use weir_query::{CheckOptions, Dialect, Plan, compile, compile_unoptimized, render};

use crate::blesses;
use crate::support::case::{self, Case, Expected};
use crate::support::changes::Changes;
use crate::support::feed::{self, Action, Random};
use crate::support::fleet::{Deal, Fleet, is_by_arrival};
use crate::support::history::Element;
use crate::support::oracle::{self, Outcome};
use crate::support::run::Run;

/// The ways in which each case runs.
static EXECUTIONS: &[(&str, Execution)] = &[
    ("recomputed from scratch", recomputed),
    ("one engine, whole batches", in_whole_batches),
    ("one engine, random cuts", in_random_cuts),
    ("three agents and a monitor", over_a_fleet),
];

/// A way to run a case; returns the result of each run.
type Execution = fn(&Prepared) -> Result<Vec<Outcome>, String>;

/// The number of agents to which a case is distributed.
const AGENTS: u64 = 3;

/// The number of random cuts of each case.
const CUTS: usize = 5;

/// A case whose query passed the checker.
struct Prepared {
    case: Case,
    seed: u64,
    plan: Arc<Plan>,
    unoptimized: Arc<Plan>,
}

/// A test for each case, named by its path: `window::rows_evicts_oldest`.
pub fn tests() -> Vec<Trial> {
    let folder = case::folder();
    let test = |file: PathBuf| {
        let path = file.strip_prefix(&folder).expect("it is in the folder");
        let path = path.with_extension("").to_string_lossy().into_owned();
        let run = move || match check(&file, false) {
            Err(_) if blesses() => Ok(check(&file, true)?),
            checked => Ok(checked?),
        };
        Trial::test(path.replace('/', "::"), run)
    };
    case::files().into_iter().map(test).collect()
}

fn check(file: &Path, bless: bool) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|e| e.to_string())?;
    let case = Case::parse(&text)?;
    let actual = match prepare(case.clone(), file) {
        Err(diagnostics) => Expected {
            diagnostics,
            ..Expected::default()
        },
        Ok(prepared) => run(&prepared, bless)?,
    };
    if bless {
        let blessed = case.with_outcome(&actual);
        if blessed != text {
            fs::write(file, blessed).map_err(|e| e.to_string())?;
        }
        return Ok(());
    }
    if actual.diagnostics != case.expected.diagnostics {
        let [expected, actual] = [&case.expected, &actual].map(|e| e.diagnostics.join("\n  "));
        return Err(format!(
            "expected\n  {expected}\nbut the checker says\n  {actual}"
        ));
    }
    // A message may end in `..` where the rest depends on the cut.
    let as_expected = match case
        .expected
        .failure
        .as_deref()
        .and_then(|m| m.strip_suffix(".."))
    {
        Some(begin) => actual
            .failure
            .as_ref()
            .is_some_and(|m| m.starts_with(begin)),
        None => actual.failure == case.expected.failure,
    };
    if !as_expected {
        let [expected, actual] = [&case.expected, &actual].map(|e| e.failure.as_deref());
        return Err(format!("expected failure {expected:?}, got {actual:?}"));
    }
    Ok(())
}

/// The case's plans, or the lines of its diagnostics.
fn prepare(case: Case, file: &Path) -> Result<Prepared, Vec<String>> {
    let options = CheckOptions {
        second: case.second,
        dialect: Dialect::Cql,
        live: false,
    };
    let lines = |diagnostics: Vec<weir_query::Diagnostic>| {
        let pictures = diagnostics.iter().map(|d| render(d, &case.query, None));
        let text = pictures.collect::<Vec<_>>().join("\n");
        text.lines()
            .map(|l| l.trim_end().to_string())
            .collect::<Vec<_>>()
    };
    let plan = compile(&case.query, &case.catalog(), &options)
        .map_err(lines)?
        .plan;
    let unoptimized = compile_unoptimized(&case.query, &case.catalog(), &options)
        .map_err(lines)?
        .plan;
    let mut hasher = DefaultHasher::new();
    file.file_name().hash(&mut hasher);
    Ok(Prepared {
        seed: hasher.finish(),
        plan,
        unoptimized,
        case,
    })
}

/// Runs a case in every way and compares the results with the expected one (when blessing: with the
/// first way).
fn run(prepared: &Prepared, bless: bool) -> Result<Expected, String> {
    let Prepared { case, plan, .. } = prepared;
    let mut expected = match bless {
        true => None,
        false => Some(case.expected_changes(&plan.schema, plan.shape)?),
    };
    let mut failure = None;
    for (name, execution) in EXECUTIONS {
        for outcome in execution(prepared).map_err(|why| format!("{name}: {why}"))? {
            let expected = expected.get_or_insert_with(|| outcome.changes.clone());
            // A query that fails emits nothing from that step on, which may begin before the
            // instant of the failure.
            let last_output = outcome.changes.instants.last_key_value();
            let upto = last_output.map_or(i64::MIN, |(ts, _)| ts + 1);
            let before = outcome.failure.as_ref().map(|_| expected.before(upto));
            before
                .as_ref()
                .unwrap_or(expected)
                .agree(&outcome.changes, ["case", "outcome"])
                .map_err(|difference| {
                    let all = listing(case, &outcome.changes, plan.shape);
                    format!("{name}:\n{difference}{all}")
                })?;
            let failed = outcome.failure.map(|(_, message)| message);
            // The oracle has no memory limit.
            let bounded = case.bytes_max.is_some() && *name == EXECUTIONS[0].0;
            if failed.is_some() != case.expected.failure.is_some() && !bless && !bounded {
                return Err(format!("{name}: failure is {failed:?}"));
            }
            failure = failed;
        }
    }
    let changes = expected.expect("there is a first way");
    Ok(Expected {
        diagnostics: vec![],
        lines: changes.lines(plan.shape),
        failure,
    })
}

fn listing(case: &Case, changes: &Changes, shape: Shape) -> String {
    let lines = changes.lines(shape);
    let lines = lines
        .iter()
        .map(|(ts, row)| format!("    > {} {row}\n", case.write_time(*ts)));
    format!("  the whole output:\n{}", lines.collect::<String>())
}

fn recomputed(prepared: &Prepared) -> Result<Vec<Outcome>, String> {
    let case = &prepared.case;
    let plan = &prepared.unoptimized;
    let history = feed::history(&case.feed(), &case.source_names(), plan);
    Ok(vec![oracle::evaluate(plan, &history)])
}

fn in_whole_batches(prepared: &Prepared) -> Result<Vec<Outcome>, String> {
    let case = &prepared.case;
    let actions = feed::whole(&case.feed(), case.sources.len());
    let rows = EngineOptions::default().span_rows_max;
    Ok(vec![engine(prepared, &actions, rows)?])
}

fn in_random_cuts(prepared: &Prepared) -> Result<Vec<Outcome>, String> {
    let case = &prepared.case;
    let mut random = Random::new(prepared.seed);
    let mut cut = || feed::cut(&case.feed(), case.sources.len(), &mut random);
    // Few rows per step, so that steps are cut as well.
    (1..=CUTS)
        .map(|rows| engine(prepared, &cut(), rows))
        .collect()
}

/// Rows distributed at random over three agents, the query split with every strategy.
fn over_a_fleet(prepared: &Prepared) -> Result<Vec<Outcome>, String> {
    let case = &prepared.case;
    // The memory limit applies to each engine separately.
    if case.bytes_max.is_some() {
        return Ok(Vec::new());
    }
    let sources = case.catalog().declarations;
    let history = feed::history(&case.feed(), &case.source_names(), &prepared.unoptimized);
    let mut random = Random::new(prepared.seed);
    let mut outcomes = Vec::new();
    for strategy in PlacementStrategy::ALL {
        let options = CutOptions {
            hint: Some(strategy),
            second: case.second,
            ..CutOptions::default()
        };
        let Ok(cut) = cut(&prepared.plan, &options) else {
            continue;
        };
        if cut.monitor.schema != prepared.plan.schema {
            let columns = [&cut.monitor.schema, &prepared.plan.schema];
            return Err(format!(
                "strategy {strategy} has other columns: {columns:?}"
            ));
        }
        let by_instant = is_by_arrival(&prepared.unoptimized);
        let deal = Deal::new(&sources, &history, AGENTS, by_instant, &mut random);
        let fleet = Fleet {
            cut: &cut,
            sources: &sources,
            monitor_sources: &options.monitor_sources,
            agents: AGENTS,
        };
        let agent = |source: usize, element: &Element| deal.agent(source, element);
        outcomes.push(fleet.run(&history, &agent, &mut random));
    }
    Ok(outcomes)
}

fn engine(
    prepared: &Prepared,
    actions: &[Action],
    span_rows_max: usize,
) -> Result<Outcome, String> {
    let case = &prepared.case;
    let mut options = EngineOptions {
        span_rows_max,
        ..EngineOptions::default()
    };
    if let Some(bytes) = case.bytes_max {
        options.query_bytes_max = bytes;
    }
    let declarations = case.sources.iter().map(|s| s.declaration.clone());
    let mut run = Run::new(Engine::new(options), declarations.collect());
    run.begin(feed::begin(&case.feed()));
    let query = run.add(&prepared.plan);
    run.act(actions);
    run.finish();
    let late: u64 = run
        .engine
        .counts()
        .sources
        .iter()
        .map(|s| s.rows_late)
        .sum();
    if late != case.late {
        return Err(format!("{late} rows were late, not {}", case.late));
    }
    let query = run.query(query);
    Ok(Outcome {
        changes: query.changes.clone(),
        failure: query.failure.clone().map(|message| (i64::MAX, message)),
    })
}
