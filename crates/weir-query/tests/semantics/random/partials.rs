//! Merging the parts of a split equals the whole: rows are distributed at random over agents that
//! emit partial aggregates, and the merged partials have the result of one engine over all rows;
//! for every aggregate that splits, and windows of one slide, of several, and unbounded. The
//! agents' sources may pre-aggregate.

use std::sync::Arc;

use proptest::prelude::*;
use weir_model::{Catalog, Declaration, Shape, Type, Value};
use weir_query::engine::{Engine, EngineOptions, PartialCombiner};
use weir_query::function::aggregate::AGGREGATES;
use weir_query::plan::{Node, Window, wire};
use weir_query::{Plan, place};

use super::choices::Choices;
use super::{Query, agree, config, data, folding, numbers};
use crate::support::feed::{self, Action, Event, Random};
use crate::support::history::Element;
use crate::support::oracle;
use crate::support::run::{Run, batch};
use weir_query::window::{Range, Unbounded};

const KEYS: &[&str] = &["", "a", "t", "a, t", "g", "f", "b + 1", "w"];

/// Every aggregate that splits, over every type that it accepts.
const CALLS: &[&str] = &[
    "count(*)",
    "count(t)",
    "count(b)",
    "sum(b)",
    "sum(f)",
    "avg(b)",
    "avg(f)",
    "avg(w)",
    "min(b)",
    "min(t)",
    "max(f)",
    "max(t)",
    "median(b)",
    "median(f)",
    "median(w)",
    "quantile(b, 0.5)",
    "quantile(b, 0.9)",
    "quantile(f, 0.25)",
    "histogram(b)",
    "histogram(b, 0, 2)",
    "top(t, 2)",
    "top(a, 1)",
    "stddev(b)",
    "var(f)",
    "stddev_pop(f)",
    "var_pop(b)",
    "percentile_cont(b, 0.5)",
    "percentile_cont(f, 0.9)",
    "percentile_disc(b, 0.9)",
    "percentile_disc(w, 0.1)",
    "mode(b)",
    "mode(t)",
    "approx_count_distinct(b)",
    "max_by(t, b)",
    "max_by(b, f)",
    "min_by(f, t)",
    "min_by(w, a)",
    "string_agg(t, '-')",
    "array_agg(b)",
    "array_agg(f)",
    "corr(b, f)",
    "corr(f, a)",
    "covar_pop(a, b)",
    "covar_samp(f, b)",
    "regr_count(b, f)",
    "regr_avgx(a, f)",
    "regr_avgy(f, a)",
    "regr_sxx(a, b)",
    "regr_syy(f, b)",
    "regr_sxy(a, f)",
    "regr_slope(b, a)",
    "regr_intercept(f, b)",
    "regr_r2(b, f)",
    "sum(case when g then b else 1 end)",
];

/// Parts of the names of aggregates whose states are rounded when they are merged.
const ROUNDED: &[&str] = &["corr", "covar", "regr", "stddev", "var_", "var("];

const WINDOWS: &[&str] = &[
    "[range 2 second slide 2 second]",
    "[range 6 second slide 2 second]",
    "[range 3 second slide 3 second]",
    "[range 12 second slide 3 second]",
    "[range unbounded slide 2 second]",
    "[range unbounded slide 3 second]",
];

/// Queries around the groups.
const OUTER_QUERIES: &[(&str, &str)] = &[
    ("", ""),
    ("", ""),
    ("istream(", ")"),
    ("dstream(", ")"),
    ("rstream(", ") every 2 second"),
];

/// Maximum number of agents.
const AGENTS_MAX: usize = 5;

/// The name of the stream of partials at the monitor.
const PARTIALS: &str = "agents";

proptest! {
    #![proptest_config(config())]

    #[test]
    fn partials_of_agents_merge_to_the_whole(
        query in numbers(8..40),
        data in numbers(20..220),
        agents in 1..=AGENTS_MAX,
        seed in any::<u64>(),
    ) {
        let query = Query::compile(&text(&mut Choices::new(&query)));
        let mut feed = data::feed(&mut Choices::new(&data));
        feed.retain(|event| matches!(event, Event::Row(0, _)));
        let last = feed.iter().map(at).max().unwrap_or(0);
        feed.push(Event::Heartbeat(None, last + 20));
        let history = feed::history(&feed, &["s".to_owned()], &query.unoptimized);
        let expected = query.expected(&history);

        let mut random = Random::new(seed);
        let (fragment, monitor) = cut(&query.plan);
        let mut partials = Vec::new();
        for dealt in deal(&feed, agents, &mut random) {
            partials.push(given_of(&fragment, &dealt, &mut random));
        }
        let partials = combined_on_the_way(&fragment, partials, &mut random);
        let mut run = engine_over(&fragment, &mut random);
        let id = run.add(&monitor);
        run.begin(history.begin);
        merge(&mut run, partials, last + 20, &mut random);
        let result = agree(&expected, run.query(id));
        prop_assert!(result.is_ok(), "{}\n{}{feed:?}", query.text, result.unwrap_err());
    }

    #[test]
    fn partials_of_pre_aggregated_groups_merge_to_the_whole(
        query in numbers(30..60),
        data in numbers(20..200),
        agents in 1..=AGENTS_MAX,
        seed in any::<u64>(),
    ) {
        let text = folding::plain_text(&mut Choices::new(&query));
        let (plan, unoptimized) = super::placement::compiled(&text).expect("it is right");
        let feed = folding::rows(&mut Choices::new(&data));
        let last = feed.iter().map(at).max().unwrap_or(0);
        let history = feed::history(&feed, &["IO".to_owned()], &unoptimized);
        let expected = oracle::evaluate(&unoptimized, &history).changes;

        let mut random = Random::new(seed);
        let (fragment, monitor) = cut(&plan);
        let placement = place::place(&[&fragment], &folding::foldable());
        prop_assert!(placement.demands.iter().all(|d| d.fold.is_some()), "{text}");
        let mut partials = Vec::new();
        for dealt in deal(&feed, agents, &mut random) {
            let engine = Engine::new(options(&mut random));
            let mut agent = Run::new(engine, folding::sources(&placement));
            let id = agent.add(&Arc::new(placement.plans[0].clone()));
            folding::deliver(&dealt, &placement, &mut agent, &mut random);
            prop_assert_eq!(&agent.query(id).failure, &None);
            partials.extend(agent.query(id).emitted.clone());
        }
        let mut run = engine_over(&fragment, &mut random);
        let id = run.add(&monitor);
        run.begin(history.begin);
        merge(&mut run, partials, last, &mut random);
        let result = agree(&expected, run.query(id));
        prop_assert!(result.is_ok(), "{text}\n{}{feed:?}", result.unwrap_err());
    }
}

#[test]
fn every_aggregate_that_splits_is_dealt() {
    for aggregate in AGGREGATES.iter().filter(|a| a.splits()) {
        let name = aggregate.doc().name;
        let dealt = CALLS
            .iter()
            .any(|call| call.starts_with(&format!("{name}(")));
        assert!(dealt, "{name} is among the calls");
    }
}

#[test]
fn bytes_that_are_no_partial_end_the_query_alone() {
    let query = "select a, sum(b), quantile(b, 0.9), top(t, 2) from s [range 4 second slide 2 second] group by a";
    let query = Query::compile(query);
    let (fragment, monitor) = cut(&query.plan);
    let mut random = Random::new(7);
    for bytes in [
        &[][..],
        &[9, 9, 9],
        &[1],
        &[1, 255, 255, 255, 255, 255, 255, 255, 255, 1],
    ] {
        let mut run = engine_over(&fragment, &mut random);
        let (bad, other) = (run.add(&monitor), run.add(&stream_of(&fragment)));
        let bytes = Value::Bytes(bytes.into());
        let one = Value::Int(1);
        let row = vec![one.clone(), bytes.clone(), bytes.clone(), bytes, one];
        let rows = vec![Element {
            ts: 2,
            weight: 1,
            row,
        }];
        merge(&mut run, rows, 9, &mut random);
        let failure = run
            .query(bad)
            .failure
            .as_deref()
            .unwrap_or("nothing failed");
        assert!(failure.contains("partial aggregate"), "{failure}");
        assert_eq!(run.query(other).failure, None);
    }
}

#[test]
fn partials_that_come_too_late_are_counted() {
    let query = Query::compile("select count(*) from s [range 2 second slide 2 second]");
    let (fragment, monitor) = cut(&query.plan);
    let mut random = Random::new(7);
    let row = data::feed(&mut Choices::new(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    let row = row.iter().find_map(|event| match event {
        Event::Row(_, element) => Some(element.row.clone()),
        Event::Heartbeat(..) => None,
    });
    let row = Element {
        ts: 1,
        weight: 1,
        row: row.expect("there is a row"),
    };
    let feed = [Event::Row(0, row), Event::Heartbeat(None, 9)];
    let partials = given_of(&fragment, &feed, &mut random);
    assert_eq!(partials.len(), 1);

    let mut run = engine_over(&fragment, &mut random);
    let id = run.add(&monitor);
    run.act(&[
        Action::Heartbeat(0, 2),
        Action::Step,
        Action::Push(0, partials),
    ]);
    run.act(&[Action::Heartbeat(0, 9), Action::Step]);
    assert!(run.query(id).changes.instants.is_empty());
    assert_eq!(run.engine.counts().sources[0].rows_late, 1);
}

/// A group-by over a window with a slide.
fn text(choices: &mut Choices<'_>) -> String {
    let keys = choices.one(KEYS);
    let calls: Vec<&str> = (0..=choices.pick(4)).map(|_| choices.one(CALLS)).collect();
    let calls = calls.join(", ");
    let (select, group) = match keys.is_empty() {
        true => (calls, String::new()),
        false => (format!("{keys}, {calls}"), format!("group by {keys}")),
    };
    let filter = choices.one(&["", "", "where b > 0", "where t = 'x' or g"]);
    let (mut before, mut behind) = choices.one(OUTER_QUERIES);
    // A last digit that depends on the order of merging would be a change of the relation.
    if ["istream(", "dstream("].contains(&before)
        && ROUNDED.iter().any(|name| select.contains(name))
    {
        (before, behind) = ("", "");
    }
    let window = choices.one(WINDOWS);
    format!("{before}select {select} from s {window} {filter} {group}{behind}")
}

/// A query's aggregation as partials, and the query over their merge.
fn cut(plan: &Arc<Plan>) -> (Plan, Arc<Plan>) {
    let Node::Aggregate {
        input,
        keys,
        calls,
        global,
    } = &plan.node
    else {
        let (fragment, below) = cut(plan.inputs()[0]);
        return (fragment, plan.with_inputs(vec![below]));
    };
    let Node::Window { input, window } = &input.node else {
        panic!("it is over a window:\n{plan}");
    };
    let (size, slide) = match window {
        Window::Range(Range { size, slide }) => (Some(*size), *slide),
        Window::Unbounded(Unbounded { slide }) => (None, *slide),
        other => panic!("a window with a slide: {other:?}"),
    };
    let slide = slide.expect("it has a slide");
    let fields = plan.schema.fields.clone();
    let named = fields[..keys.len()].to_vec();
    let partial = Plan::partial(input.clone(), slide, keys.clone(), calls.clone(), named);
    let source = Plan::source(declaration(&partial));
    let merge = Plan::merge(
        source,
        (size, slide),
        keys.len(),
        calls.clone(),
        *global,
        fields,
    );
    // An agent receives its fragment over the network.
    let sources = partial.sources().into_iter().cloned().collect();
    let catalog = Catalog {
        declarations: sources,
        ..Catalog::default()
    };
    let partial = wire::decode(&wire::encode(&partial), &catalog).expect("it was encoded");
    (partial, merge)
}

fn declaration(fragment: &Plan) -> Declaration {
    Declaration::new(PARTIALS, Shape::Stream, fragment.schema.clone())
}

/// The rows that the agents send, as a query of its own.
fn stream_of(fragment: &Plan) -> Arc<Plan> {
    Plan::source(declaration(fragment))
}

fn options(random: &mut Random) -> EngineOptions {
    EngineOptions {
        span_rows_max: [1, 3, 1 << 16][random.below(3) as usize],
        ..EngineOptions::default()
    }
}

fn engine_over(fragment: &Plan, random: &mut Random) -> Run {
    Run::new(Engine::new(options(random)), vec![declaration(fragment)])
}

fn at(event: &Event) -> i64 {
    match event {
        Event::Row(_, element) => element.ts,
        Event::Heartbeat(_, ts) => *ts,
    }
}

/// Each row goes to one agent, heartbeats to all.
fn deal(feed: &[Event], agents: usize, random: &mut Random) -> Vec<Vec<Event>> {
    let mut dealt = vec![Vec::new(); agents];
    for event in feed {
        match event {
            Event::Row(..) => dealt[random.below(agents as u64) as usize].push(event.clone()),
            Event::Heartbeat(..) => dealt.iter_mut().for_each(|d| d.push(event.clone())),
        }
    }
    dealt
}

/// The results of an agent for rows of `s`, cut anywhere.
fn given_of(fragment: &Plan, feed: &[Event], random: &mut Random) -> Vec<Element> {
    let sources = data::catalog().declarations;
    let mut agent = Run::new(Engine::new(options(random)), sources);
    let id = agent.add(&Arc::new(fragment.clone()));
    agent.act(&feed::cut(feed, 1, random));
    assert_eq!(agent.query(id).failure, None);
    agent.query(id).emitted.clone()
}

/// The partials of several agents, some of which pass one or several monitors of sites.
fn combined_on_the_way(
    fragment: &Plan,
    mut agents: Vec<Vec<Element>>,
    random: &mut Random,
) -> Vec<Element> {
    let mut combiner = PartialCombiner::of(fragment).expect("it emits partials");
    while agents.len() > 1 && random.below(4) > 0 {
        let at = random.below(agents.len() as u64) as usize;
        let mut site = agents.swap_remove(at);
        if random.below(4) > 0 {
            site.extend(agents.pop().expect("there is another one"));
        }
        site.sort_by_cached_key(|element| (element.ts, random.below(1 << 20)));
        let batch = batch(&declaration(fragment), &site);
        let pieces = match batch.is_empty() {
            true => Vec::new(),
            false => {
                let cut = random.below(batch.len() as u64) as usize;
                vec![batch.slice(0, cut), batch.slice(cut, batch.len() - cut)]
            }
        };
        let combined = combiner.combine(&pieces).expect("they are partials");
        let mut instants = std::collections::HashSet::new();
        let row = |at| Element {
            ts: combined.ts[at],
            weight: 1,
            row: combined.row(at),
        };
        let rows: Vec<Element> = (0..combined.len()).map(row).collect();
        let keys = fragment.schema.len() - states(fragment) - 1;
        for element in &rows {
            let key = format!("{} {:?}", element.ts, &element.row[..keys]);
            assert!(instants.insert(key), "one row for each instant and group");
        }
        agents.push(rows);
    }
    agents.into_iter().flatten().collect()
}

/// The columns of a fragment that have states.
fn states(fragment: &Plan) -> usize {
    let fields = fragment.schema.fields.iter();
    fields.filter(|field| field.ty == Type::Partial).count()
}

/// Merges partials in timestamp order, those of one instant in any order.
fn merge(run: &mut Run, mut partials: Vec<Element>, end: i64, random: &mut Random) {
    partials.sort_by_cached_key(|element| (element.ts, random.below(1 << 20)));
    let mut feed: Vec<Event> = partials.into_iter().map(|p| Event::Row(0, p)).collect();
    feed.push(Event::Heartbeat(None, end));
    run.act(&feed::cut(&feed, 1, random));
    run.finish();
}
