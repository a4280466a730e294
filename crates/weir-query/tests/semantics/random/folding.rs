//! Pre-aggregation in the source does not change results: rows distributed at random into groups
//! and single rows have the result of all rows, for every aggregate that can be pre-aggregated and
//! every kind of key.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use weir_model::capabilities::Measure;
use weir_model::{
    Capabilities, Catalog, Column, Declaration, Fold, FoldCall, Folded, PartialKind, PartialState,
    Type, Value,
};
use weir_query::Plan;
use weir_query::engine::{Engine, EngineOptions};
use weir_query::place::{self, Placement};
use weir_sketch::{BucketLimits, Bucketed};

use super::choices::Choices;
use super::placement::{compiled, passes};
use super::{agree, config, numbers};
use crate::support::capabilities::of_any_groups;
use crate::support::feed::{self, Action, Event, Random};
use crate::support::history::Element;
use crate::support::oracle;
use crate::support::run::Run;

/// Grouping expressions over columns by which the source can group.
const KEYS: &[&str] = &[
    "",
    "op",
    "vm",
    "pid",
    "op, vm",
    "vm, vdisk, op",
    "op, pid",
    "case when vm is null then op else vm end",
    "pid + 1",
];

const CALLS: &[&str] = &[
    "count(*)",
    "count(latency)",
    "count(vm)",
    "sum(bytes)",
    "sum(latency)",
    "avg(latency)",
    "avg(sectors)",
    "min(wait)",
    "max(wait)",
    "max(latency)",
    "quantile(latency, 0.5)",
    "quantile(latency, 0.99)",
    "histogram(latency)",
    "histogram(latency, 1, 10, 1000)",
    "histogram(sectors)",
    "sum(case when vm is null then latency else 0 ns end)",
    "sum(case when op = 'r' then 1 when op = 'w' then 2 end)",
    "count(case when vm is null then wait end)",
    "min(case when vm = 'x' then latency when vm is null then wait end)",
    "sum(case when latency > 5 ns then 1 else 0 end)",
    "avg(case when 12 ns >= wait and not wait = 5 ns then 3 when wait is null then 7 end)",
    "count(*) filter (where latency in (5 ns, 1000003 ns))",
    "count(case when wait between -9 ns and 11 ns or wait = 1000 ns then 1 end)",
    "max(case when latency < 6 ns then -2 when latency is null then -5 end)",
    "min(case when sectors = 1 then 4 when sectors is not null then 2 end)",
];

/// Selections: exact in the kernel, over keys only, both, none.
const FILTERS: &[&str] = &[
    "",
    "",
    "where op = 'r'",
    "where vm = 'x'",
    "where latency > 5 and vm is null",
    "where sectors >= 2 or op = 'w'",
    "where vm is not null and op <> 'f'",
    "where pid < 0",
];

const WINDOWS: &[&str] = &[
    "[range 2 second slide 2 second]",
    "[range 3 second slide 3 second]",
    "[range 4 second slide 2 second]",
    "[range 9 second slide 3 second]",
];

/// Queries around the groups.
const OUTER_QUERIES: &[(&str, &str)] = &[
    ("", ""),
    ("", ""),
    ("istream(", ")"),
    ("dstream(", ")"),
    ("rstream(", ")"),
    ("rstream(", ") every 2 second"),
];

/// Times of requests: none, usual ones, and some that sources do not pre-aggregate.
const TIMES: [Option<i64>; 7] = [
    None,
    Some(0),
    Some(5),
    Some(12),
    Some(1_000),
    Some(1_000_003),
    Some(-7),
];

proptest! {
    #![proptest_config(config())]

    #[test]
    fn pre_aggregation_in_the_source_does_not_change_results(
        query in numbers(30..60),
        data in numbers(20..200),
        seed in any::<u64>(),
    ) {
        let mut choices = Choices::new(&query);
        let texts: Vec<String> = (0..=choices.pick(2)).map(|_| text(&mut choices)).collect();
        let plans: Vec<(Arc<Plan>, Arc<Plan>)> = texts.iter().map(|text| {
            compiled(text).unwrap_or_else(|| panic!("{text} is right"))
        }).collect();
        let asked: Vec<&Plan> = plans.iter().map(|(plan, _)| &**plan).collect();
        let placement = place::place(&asked, &foldable());
        prop_assert!(placement.demands.iter().all(|d| d.fold.is_some()), "{texts:?}");

        let feed = rows(&mut Choices::new(&data));
        let mut random = Random::new(seed);
        let options = EngineOptions {
            span_rows_max: [1, 3, 1 << 16][random.below(3) as usize],
            ..EngineOptions::default()
        };
        let mut run = Run::new(Engine::new(options), sources(&placement));
        run.begin(feed::begin(&feed));
        let ids: Vec<usize> = placement.plans.iter()
            .map(|plan| run.add(&Arc::new(plan.clone())))
            .collect();
        deliver(&feed, &placement, &mut run, &mut random);
        run.finish();

        let names = vec!["IO".to_owned()];
        for ((text, (_, unoptimized)), id) in texts.iter().zip(&plans).zip(ids) {
            let history = feed::history(&feed, &names, unoptimized);
            let expected = oracle::evaluate(unoptimized, &history).changes;
            let result = agree(&expected, run.query(id));
            prop_assert!(result.is_ok(), "{text}\n{}{feed:?}", result.unwrap_err());
        }
    }
}

/// A source that keeps any column of groups by any keys.
pub fn foldable() -> Capabilities {
    let mut all = of_any_groups();
    for column in &mut all.streams[0].columns {
        column.group = true;
        column.measure = Measure::Kept;
    }
    all
}

/// A query with one run over groups.
fn alone(text: &str) -> (Placement, Run) {
    let (plan, _) = compiled(text).expect("it is right");
    let placement = place::place(&[&plan], &foldable());
    let engine = Engine::new(EngineOptions::default());
    let run = Run::new(engine, sources(&placement));
    (placement, run)
}

/// A group without keys with `count` rows of this latency.
fn latencies(end: i64, count: u64, sum: i128) -> Folded {
    let moments = |sum| PartialState::Moments {
        count,
        sum,
        min: 0,
        max: i64::MAX,
    };
    Folded {
        end,
        keys: Vec::new(),
        kept: vec![vec![moments(0)], vec![moments(sum)]],
    }
}

#[test]
fn a_sum_that_groups_make_too_great_ends_the_query_as_rows_do() {
    let (placement, mut run) = alone("select sum(latency) from IO [range 2 second slide 2 second]");
    let id = run.add(&Arc::new(placement.plans[0].clone()));
    run.engine
        .push_folded("IO#1", latencies(2, 2, i128::from(i64::MAX)));
    run.engine
        .push_folded("IO#1", latencies(4, 2, i128::from(i64::MAX) + 1));
    run.act(&[Action::Heartbeat(0, 3), Action::Step]);
    assert_eq!(run.query(id).failure, None);
    run.act(&[Action::Heartbeat(0, 4), Action::Step]);
    let failure = run.query(id).failure.as_deref();
    assert!(
        failure.is_some_and(|why| why.contains("overflow in sum")),
        "{failure:?}"
    );
}

#[test]
fn groups_that_come_too_late_are_counted_with_all_their_rows() {
    let (placement, mut run) = alone("select sum(latency) from IO [range 2 second slide 2 second]");
    let id = run.add(&Arc::new(placement.plans[0].clone()));
    run.act(&[Action::Heartbeat(0, 4), Action::Step]);
    run.engine.push_folded("IO#1", latencies(4, 7, 100));
    run.act(&[Action::Heartbeat(0, 9), Action::Step]);
    assert!(run.query(id).changes.instants.is_empty());
    let counts = &run.engine.counts().sources[0];
    assert_eq!((counts.rows_in, counts.rows_late), (7, 7));
}

#[test]
fn a_query_that_comes_within_an_interval_begins_with_the_next() {
    let (placement, mut run) =
        alone("select sum(latency) from IO [range 10 second slide 10 second]");
    let plan = Arc::new(
        placement.rewrite(
            &compiled("select sum(latency) from IO [range 10 second slide 10 second]")
                .expect("it is right")
                .0,
        ),
    );
    let first = run.add(&plan);
    run.act(&[Action::Heartbeat(0, 3), Action::Step]);
    let late = run.add(&plan);
    run.engine.push_folded("IO#1", latencies(10, 1, 5));
    run.engine.push_folded("IO#1", latencies(20, 1, 6));
    run.act(&[Action::Heartbeat(0, 20), Action::Step]);
    let shown = |query: usize| {
        let instants = run.query(query).changes.instants.keys();
        instants.copied().collect::<Vec<i64>>()
    };
    assert_eq!(shown(first), [10, 20]);
    // At 4 the row over no rows, at the start of the query.
    assert_eq!(shown(late), [4, 20]);
}

#[test]
fn an_interval_without_rows_brings_no_row_before_the_query_begins() {
    let (placement, mut run) = alone("select sum(latency) from IO [range 2 second slide 2 second]");
    let empty = |end| Folded {
        kept: vec![Vec::new(); 2],
        ..latencies(end, 0, 0)
    };
    run.begin(Some(1));
    let id = run.add(&Arc::new(placement.plans[0].clone()));
    run.engine.push_folded("IO#1", empty(-4));
    run.engine.push_folded("IO#1", latencies(-2, 0, 0));
    run.engine.push_folded("IO#1", latencies(4, 1, 5));
    run.act(&[Action::Heartbeat(0, 4), Action::Step]);
    let instants = run.query(id).changes.instants.keys();
    assert_eq!(instants.copied().collect::<Vec<i64>>(), [1, 4]);
}

#[test]
fn groups_of_intervals_after_the_open_slide_are_ignored() {
    let (placement, mut run) =
        alone("select sum(latency) from IO [range 10 second slide 10 second]");
    run.add(&Arc::new(placement.plans[0].clone()));
    run.engine.push_folded("IO#1", latencies(10, 1, 5));
    run.engine.push_folded("IO#1", latencies(20, 1, 6));
    run.act(&[Action::Heartbeat(0, 8), Action::Step]);
    let mut instants: Vec<i64> = Vec::new();
    run.engine.finish_at(10, &mut |output| {
        if let weir_query::engine::EngineOutput::Rows { batch, .. } = output {
            instants.extend(batch.ts.iter());
        }
    });
    assert_eq!(instants, [10]);
}

/// A group-by of `IO` that can be pre-aggregated, and a query around it at the interval of its
/// slides.
pub fn plain_text(choices: &mut Choices<'_>) -> String {
    let around = OUTER_QUERIES
        .iter()
        .copied()
        .filter(|around| *around != ("rstream(", ")"));
    text_around(choices, &around.collect::<Vec<_>>())
}

fn text(choices: &mut Choices<'_>) -> String {
    text_around(choices, OUTER_QUERIES)
}

fn text_around(choices: &mut Choices<'_>, around: &[(&str, &str)]) -> String {
    let keys = choices.one(KEYS);
    let calls: Vec<&str> = (0..=choices.pick(4)).map(|_| choices.one(CALLS)).collect();
    let select = match keys.is_empty() {
        true => calls.join(", "),
        false => format!("{keys}, {}", calls.join(", ")),
    };
    let group = match keys.is_empty() {
        true => String::new(),
        false => format!("group by {keys}"),
    };
    let (before, behind) = choices.one(around);
    // Where every row matters, groups can be filtered by their keys only.
    let filter = choices.one(FILTERS);
    let filter = match (before, behind) {
        ("rstream(", ")") if filter.contains("latency") || filter.contains("sectors") => "",
        _ => filter,
    };
    let window = choices.one(WINDOWS);
    format!("{before}select {select} from IO {window} {filter} {group}{behind}")
}

fn io() -> Declaration {
    Catalog::builtin()
        .find("IO")
        .expect("it is built in")
        .clone()
}

/// The sources of the demands by the engine's names.
pub fn sources(placement: &Placement) -> Vec<Declaration> {
    let named = |name: &String| Declaration {
        name: name.clone(),
        ..io()
    };
    placement.sources.iter().map(named).collect()
}

/// Rows of `IO`, and at the end a heartbeat that expires all of them.
pub fn rows(choices: &mut Choices<'_>) -> Vec<Event> {
    let io = io();
    let mut feed = Vec::new();
    let mut ts = 0;
    while choices.any_left() {
        ts += choices.one(&[0, 0, 1, 0, 2, 0, 1, 7]);
        let sectors = choices.one(&[0, 1, 2, 8, 300]);
        let text = |text: Option<&str>| text.map_or(Value::Null, Value::text);
        let number = |x: Option<i64>| x.map_or(Value::Null, Value::Int);
        let row = io.schema.fields.iter().map(|field| match &*field.name {
            "op" => Value::text(choices.one(&["r", "w", "f"])),
            "vm" => text(choices.one(&[None, Some("x"), Some("y")])),
            "vdisk" => text(choices.one(&[None, Some("d")])),
            "pid" => number(choices.one(&[None, Some(1), Some(-2)])),
            "sectors" => Value::Int(sectors),
            "bytes" => Value::Int(512 * sectors),
            "latency" | "wait" => number(choices.one(&TIMES)),
            _ if field.ty == Type::Time => Value::Int(ts),
            _ => Value::Null,
        });
        let row = row.collect();
        feed.push(Event::Row(0, Element { ts, weight: 1, row }));
    }
    feed.push(Event::Heartbeat(None, ts + 30));
    feed
}

/// The open groups of one demand.
#[derive(Default)]
struct Groups(BTreeMap<(i64, Vec<Value>, u64), Vec<Element>>);

/// Delivers each row of each demand once, as a row or within a group.
pub fn deliver(feed: &[Event], placement: &Placement, run: &mut Run, random: &mut Random) {
    let mut groups: Vec<Groups> = placement
        .demands
        .iter()
        .map(|_| Groups::default())
        .collect();
    for event in feed {
        let ts = match event {
            Event::Row(_, element) => element.ts - 1,
            Event::Heartbeat(_, ts) => *ts,
        };
        let last_output: Vec<(usize, Folded)> = placement
            .demands
            .iter()
            .enumerate()
            .flat_map(|(i, demand)| {
                let fold = demand.fold.as_ref().expect("all fold");
                let over = groups[i].over(ts, fold, random);
                over.into_iter().map(move |folded| (i, folded))
            })
            .collect();
        for (i, folded) in last_output {
            run.engine.push_folded(&placement.sources[i], folded);
        }
        for (i, demand) in placement.demands.iter().enumerate() {
            let Event::Row(_, element) = event else {
                run.act(&[Action::Heartbeat(i, ts)]);
                continue;
            };
            let fold = demand.fold.as_ref().expect("all fold");
            if !passes(&demand.predicate, &element.row) {
                continue;
            }
            let whole = |call: &FoldCall| {
                let value = call.column.map(|column| &element.row[column]);
                !matches!(value, Some(Value::Int(x)) if *x < 0)
            };
            if fold.calls.iter().all(whole) && !random.once_in(3) {
                groups[i].take(element, fold, random);
                continue;
            }
            let mut element = element.clone();
            for (column, value) in element.row.iter_mut().enumerate() {
                if !demand.columns.contains(&column) {
                    *value = Value::Null;
                }
            }
            run.act(&[Action::Push(i, vec![element])]);
        }
        if random.once_in(4) {
            let beats = (0..placement.demands.len()).map(|i| Action::Heartbeat(i, ts));
            run.act(&beats.chain([Action::Step]).collect::<Vec<_>>());
        }
    }
    run.act(&[Action::Step]);
}

impl Groups {
    /// A group may be delivered in two parts.
    fn take(&mut self, element: &Element, fold: &Fold, random: &mut Random) {
        let rest = element.ts.rem_euclid(fold.interval);
        let end = element.ts + (fold.interval - rest) % fold.interval;
        let keys = fold.keys.iter().map(|key| element.row[*key].clone());
        let key = (end, keys.collect(), random.below(2));
        self.0.entry(key).or_default().push(element.clone());
    }

    /// The groups of the intervals that end by `ts`.
    fn over(&mut self, ts: i64, fold: &Fold, random: &mut Random) -> Vec<Folded> {
        let all = std::mem::take(&mut self.0);
        let (over, open) = all.into_iter().partition(|((end, ..), _)| *end <= ts);
        self.0 = open;
        let over: BTreeMap<(i64, Vec<Value>, u64), Vec<Element>> = over;
        let mut ends: Vec<i64> = over.keys().map(|(end, ..)| *end).collect();
        // An interval may be delivered in two parts, or empty.
        ends.push(ts - ts.rem_euclid(fold.interval));
        let part = |end: i64, half: u64| {
            let groups = over
                .iter()
                .filter(|((at, _, of), _)| *at == end && *of == half);
            let (keys, rows): (Vec<Vec<Value>>, Vec<Vec<Element>>) = groups
                .map(|((_, keys, _), rows)| (keys.clone(), rows.clone()))
                .unzip();
            folded(end, &keys, &rows, fold)
        };
        ends.sort_unstable();
        ends.dedup();
        let parts = ends.iter().flat_map(|end| [part(*end, 0), part(*end, 1)]);
        parts
            .filter(|part| part.groups() > 0 || random.once_in(9))
            .collect()
    }
}

fn folded(end: i64, keys: &[Vec<Value>], rows: &[Vec<Element>], fold: &Fold) -> Folded {
    let io = io();
    let column = |at: usize| {
        let ty = io.schema[fold.keys[at]].ty;
        Column::from_values(ty, keys.iter().map(|key| key[at].clone()))
    };
    let kept = |call: &FoldCall| {
        let groups = rows.iter();
        groups.map(|rows| kept(call, rows)).collect()
    };
    Folded {
        end,
        keys: (0..fold.keys.len()).map(column).collect(),
        kept: fold.calls.iter().map(kept).collect(),
    }
}

/// The partial of rows, by its definition.
fn kept(call: &FoldCall, rows: &[Element]) -> PartialState {
    let value = |row: &Element| match call.column.map(|column| &row.row[column]) {
        None | Some(Value::Text(_)) => Some(0),
        Some(Value::Int(x)) => Some(*x),
        Some(_) => None,
    };
    let values: Vec<i64> = rows.iter().filter_map(value).collect();
    match &call.keep {
        PartialKind::Moments => PartialState::Moments {
            count: values.len() as u64,
            sum: values.iter().map(|x| i128::from(*x)).sum(),
            min: values.iter().copied().min().unwrap_or(i64::MAX),
            max: values.iter().copied().max().unwrap_or(0),
        },
        PartialKind::Limits(limits) => {
            let of = BucketLimits::Explicit(limits.clone());
            let mut counts = vec![0; limits.len() + 1];
            values
                .iter()
                .for_each(|x| counts[of.bucket(*x) as usize] += 1);
            PartialState::Limits(counts)
        }
        PartialKind::LogLinear { bits } => {
            let mut bins: BTreeMap<i32, (u64, u64)> = BTreeMap::new();
            for value in values {
                let (bin, offset) = value.locate(*bits);
                let bin = bins.entry(bin).or_default();
                *bin = (bin.0 + 1, bin.1 + u64::from(offset));
            }
            PartialState::LogLinear(bins.into_iter().map(|(n, (c, o))| (n, c, o)).collect())
        }
    }
}
