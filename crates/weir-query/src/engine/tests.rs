//! The engine as its user sees it: time, several sources, queries that start and end, limits and
//! failures.

use std::sync::Arc;

use weir_model::{Batch, Column, Shape};

use super::testing::{Feed, aggregate, outputs};
use super::testing::{
    Given, binary, call, check, column, distinct, literal, order, project, range, run, select,
    set_op, source, stream, to_stream, unbounded, window,
};
use super::{Engine, EngineOptions, EngineOutput};
use crate::expr::BinaryOp;
use crate::plan::{Plan, SetOp, ToStream, Window};
use crate::window::{Delayed, Range};

#[test]
fn set_operators_of_bags_and_sets() {
    let left = range(&source("L", Shape::Stream, "a int"), 10);
    let right = range(&source("R", Shape::Stream, "a int"), 10);
    let case = "< 1 L 1
                < 2 L 1
                < 3 R 1
                < 4 R 2
                < 13 L
                < 13 R";
    let expect =
        |op, all, out: &str| check(&set_op(&left, &right, op, all), &format!("{case}\n{out}"));
    expect(
        SetOp::Union,
        true,
        "> 1 + 1\n> 2 + 1\n> 3 + 1\n> 4 + 2\n> 11 - 1\n> 12 - 1\n> 13 - 1",
    );
    expect(SetOp::Union, false, "> 1 + 1\n> 4 + 2\n> 13 - 1");
    expect(SetOp::Intersect, true, "> 3 + 1\n> 12 - 1");
    expect(SetOp::Intersect, false, "> 3 + 1\n> 12 - 1");
    expect(SetOp::Except, true, "> 1 + 1\n> 2 + 1\n> 3 - 1\n> 11 - 1");
    expect(SetOp::Except, false, "> 1 + 1\n> 3 - 1");
}

#[test]
fn limit_is_updated_by_insertions_and_retractions() {
    let plan = range(&stream("k text, a int"), 10);
    check(
        &order(&plan, &[(1, true)], Some(2), 0),
        "< 1 S x, 1
         < 2 S y, 2
         < 3 S z, 3
         < 4 S w, 2
         < 5 S v, 1
         < 13 S
         > 1 + x, 1
         > 2 + y, 2
         > 3 + z, 3
         > 3 - x, 1
         > 4 + w, 2
         > 4 - y, 2
         > 13 - z, 3
         > 13 + v, 1",
    );
    check(
        &order(&plan, &[(1, false)], Some(1), 1),
        "< 1 S x, 1
         < 2 S y, NULL
         < 3 S z, 3
         > 2 + y, NULL
         > 3 - y, NULL
         > 3 + z, 3",
    );
}

#[test]
fn istream_and_dstream_respect_multiplicity() {
    let plan = range(&stream("a int"), 2);
    let case = "< 1 S 5
                < 1 S 5
                < 3 S 5
                < 6 S 6";
    check(
        &to_stream(&plan, ToStream::Istream),
        &format!("{case}\n> 1 + 5\n> 1 + 5\n> 6 + 6"),
    );
    check(
        &to_stream(&plan, ToStream::Dstream),
        &format!("{case}\n> 3 + 5\n> 5 + 5"),
    );
}

#[test]
fn rstream_emits_the_relation_at_each_change() {
    let plan = window(&stream("a int"), Window::rows(2));
    check(
        &to_stream(&plan, ToStream::Rstream { every: None }),
        "< 1 S 5
         < 3 S 6
         < 3 S 7
         > 1 + 5
         > 3 + 6
         > 3 + 7",
    );
}

#[test]
fn rstream_emits_the_relation_when_an_equal_row_arrives() {
    let source = stream("a int");
    let big = binary(BinaryOp::Greater, column(&source, 0), literal(1));
    check(
        &to_stream(
            &select(&unbounded(&source), big.clone()),
            ToStream::Rstream { every: None },
        ),
        "< 1 S 0
         < 2 S 2
         < 3 S 0
         < 4 S
         > 2 + 2
         > 3 + 2",
    );
    let slide = window(&source, Window::range(20, Some(10)));
    let delayed = Delayed {
        range: Range {
            size: 20,
            slide: Some(10),
        },
        delay: 15,
    };
    let past = window(&source, delayed.into());
    check(
        &to_stream(
            &select(&past, big.clone()),
            ToStream::Rstream { every: None },
        ),
        "< 1 S 2
         < 13 S 0
         < 60 S 0
         > 20 + 2
         > 30 + 2",
    );
    check(
        &to_stream(&select(&slide, big), ToStream::Rstream { every: None }),
        "< 1 S 2
         < 2 S 2
         < 12 S 0
         < 35 S 0
         > 10 + 2
         > 10 + 2
         > 20 + 2
         > 20 + 2",
    );
}

#[test]
fn rstream_every_emits_without_input() {
    let plan = range(&stream("a int"), 25);
    check(
        &to_stream(&plan, ToStream::Rstream { every: Some(10) }),
        "< 1 S 5
         < 20 S 6
         < 1000000000000 S
         > 10 + 5
         > 20 + 5
         > 20 + 6
         > 30 + 6
         > 40 + 6",
    );
}

#[test]
fn a_stream_of_changes_can_be_windowed_again() {
    let source = stream("a int");
    let plan = aggregate(
        &unbounded(&source),
        &[],
        vec![call("sum", vec![column(&source, 0)], false)],
    );
    let plan = range(&to_stream(&plan, ToStream::Istream), 5);
    check(
        &plan,
        "< 1 S 1
         < 3 S 2
         < 10 S 3
         > 1 + 1
         > 3 + 3
         > 6 - 1
         > 8 - 3
         > 10 + 6",
    );
}

#[test]
fn a_slow_source_holds_time_back_until_it_closes() {
    let left = range(&source("L", Shape::Stream, "a int"), 10);
    let right = range(&source("R", Shape::Stream, "a int"), 10);
    let plan = set_op(&left, &right, SetOp::Union, true);
    let mut engine = Engine::new(EngineOptions::default());
    engine.add(&plan);
    let mut given = Given::default();
    engine.push(
        "l",
        Batch::stream(vec![1, 5, 9], vec![Column::ints(vec![1, 5, 9])]),
    );
    engine.step(&mut |o| given.note(o));
    assert_eq!(engine.now(), i64::MIN);
    engine.push("R", Batch::stream(vec![3], vec![Column::ints(vec![3])]));
    engine.step(&mut |o| given.note(o));
    assert_eq!(engine.now(), 2);
    engine.heartbeat("R", 6);
    engine.step(&mut |o| given.note(o));
    assert_eq!(engine.now(), 6);
    engine.close("R");
    engine.step(&mut |o| given.note(o));
    assert_eq!(engine.now(), 8);
    engine.finish(&mut |o| given.note(o));
    assert_eq!(engine.now(), 9);
    assert_eq!(given.lines(), outputs("> 1 + 1\n> 3 + 3\n> 5 + 5\n> 9 + 9"));
}

#[test]
fn late_rows_are_dropped_and_counted() {
    let plan = unbounded(&stream("a int"));
    let mut engine = Engine::new(EngineOptions::default());
    engine.add(&plan);
    let mut given = Given::default();
    engine.push(
        "S",
        Batch::stream(vec![1, 5], vec![Column::ints(vec![1, 2])]),
    );
    engine.push(
        "S",
        Batch::stream(vec![3, 5, 6], vec![Column::ints(vec![3, 4, 5])]),
    );
    engine.heartbeat("S", 10);
    engine.push(
        "S",
        Batch::stream(vec![9, 11], vec![Column::ints(vec![6, 7])]),
    );
    engine.finish(&mut |o| given.note(o));
    let counts = engine.counts();
    assert_eq!(
        (counts.sources[0].rows_in, counts.sources[0].rows_late),
        (7, 2)
    );
    assert_eq!(counts.queries[0].rows_out, 5);
    assert_eq!(
        given.lines(),
        outputs("> 1 + 1\n> 5 + 2\n> 5 + 4\n> 6 + 5\n> 11 + 7")
    );
}

/// A query receives only input from after its start, whatever else runs.
#[test]
fn a_query_added_midway_starts_without_earlier_rows() {
    let source = stream("a int");
    let plans = [
        select(
            &source,
            binary(BinaryOp::Greater, column(&source, 0), literal(1)),
        ),
        range(&source, 4),
        window(&source, Window::rows(2)),
        window(&source, Window::range(4, Some(3))),
        project(&range(&source, 4), vec![column(&source, 0)]),
        aggregate(
            &range(&source, 4),
            &[],
            vec![call("sum", vec![column(&source, 0)], false)],
        ),
        distinct(&window(&source, Window::rows(3))),
    ];
    for plan in &plans {
        for pushed_before_it_is_added in [false, true] {
            let mut alone = Engine::new(EngineOptions::default());
            let mut among = Engine::new(EngineOptions::default());
            let mut others: Vec<_> = plans.iter().map(|p| among.add(p)).collect();
            let mut outputs = [Given::default(), Given::default()];
            let mut late = Vec::new();
            for (engine, is_among) in [(&mut alone, false), (&mut among, true)] {
                let mut added = None;
                for ts in 0..30i64 {
                    if ts == 10 && !pushed_before_it_is_added {
                        added = Some(engine.add(plan));
                    }
                    engine.push(
                        "S",
                        Batch::stream(vec![ts, ts], vec![Column::ints(vec![ts, 1])]),
                    );
                    if ts == 10 && pushed_before_it_is_added {
                        added = Some(engine.add(plan));
                    }
                    if ts == 20 && is_among {
                        others.drain(..).for_each(|q| engine.remove(q));
                    }
                    if ts % 4 != 0 {
                        engine.step(&mut |o| late.push((is_among, o)));
                    }
                }
                engine.finish(&mut |o| late.push((is_among, o)));
                let added = added.expect("the query was added");
                for (_, output) in late.drain(..).filter(|(_, o)| is_of(o, added)) {
                    outputs[usize::from(is_among)].note(output);
                }
            }
            let [alone, among] = outputs.map(Given::lines);
            assert!(!alone.is_empty());
            assert_eq!(alone, among, "{plan:?}");
        }
    }
}

fn is_of(output: &EngineOutput, query: super::QueryId) -> bool {
    match output {
        EngineOutput::Rows { query: q, .. } | EngineOutput::Failed { query: q, .. } => *q == query,
    }
}

#[test]
fn a_query_receives_the_earlier_content_of_a_relation() {
    let plan = source("R", Shape::Relation, "a int");
    let mut engine = Engine::new(EngineOptions::default());
    engine.declare(plan.sources()[0]);
    engine.push(
        "R",
        Batch::deltas(vec![1, 2], vec![1, 1], vec![Column::ints(vec![1, 2])]),
    );
    engine.heartbeat("R", 5);
    engine.step(&mut |_| panic!("no query is running"));
    engine.add(&plan);
    let mut given = Given::default();
    engine.push(
        "R",
        Batch::deltas(vec![9], vec![-1], vec![Column::ints(vec![1])]),
    );
    engine.finish(&mut |o| given.note(o));
    assert_eq!(given.lines(), outputs("> 6 + 1\n> 6 + 2\n> 9 - 1"));
}

/// The plan with a description of its source's columns.
fn described(plan: &Plan) -> Arc<Plan> {
    let mut declaration = plan.sources()[0].clone();
    let mut schema = (*declaration.schema).clone();
    schema.fields[0].doc = "its number".into();
    declaration.schema = schema.into();
    Plan::source(declaration)
}

#[test]
fn queries_share_a_source_whose_declarations_have_different_texts() {
    for (name, shape) in [("S", Shape::Stream), ("R", Shape::Relation)] {
        let plan = source(name, shape, "a int");
        let mut engine = Engine::new(EngineOptions::default());
        let queries = [engine.add(&plan), engine.add(&described(&plan))];
        let mut rows = [0, 0];
        let push = |engine: &mut Engine, ts, rows: &mut [usize; 2]| {
            let batch = Batch::stream(vec![ts], vec![Column::ints(vec![ts])]);
            engine.push(name, batch);
            engine.heartbeat(name, ts);
            engine.step(&mut |output| {
                let EngineOutput::Rows { query, batch } = output else {
                    panic!("{output:?}");
                };
                let at = queries.iter().position(|q| *q == query).unwrap();
                rows[at] += batch.len();
            });
        };
        push(&mut engine, 1, &mut rows);
        assert_eq!(rows, [1, 1], "{name}");
        // The other one still reads it.
        engine.remove(queries[0]);
        push(&mut engine, 2, &mut rows);
        assert_eq!(rows, [1, 2], "{name}");
    }
}

#[test]
fn the_retraction_of_an_absent_row_is_ignored() {
    let plan = source("R", Shape::Relation, "a int");
    let mut engine = Engine::new(EngineOptions::default());
    engine.add(&distinct(&plan));
    let mut given = Given::default();
    let rows = Batch::deltas(
        vec![1, 2, 3, 4],
        vec![-1, 1, -1, -1],
        vec![Column::ints(vec![1; 4])],
    );
    engine.push("R", rows);
    engine.finish(&mut |o| given.note(o));
    assert_eq!(given.lines(), outputs("> 2 + 1\n> 3 - 1"));
    assert_eq!(engine.counts().sources[0].rows_unmatched, 2);
}

#[test]
fn a_query_beyond_its_memory_limit_ends_and_others_continue() {
    let source = stream("a int");
    let mut engine = Engine::new(EngineOptions {
        query_bytes_max: 100_000,
        ..EngineOptions::default()
    });
    let big = engine.add(&range(&source, 1_000_000));
    let small = engine.add(&range(&source, 10));
    let mut failures = Vec::new();
    let mut rows = 0;
    let mut note = |o: EngineOutput| match o {
        EngineOutput::Failed { query, error } => failures.push((query, error)),
        EngineOutput::Rows { query, batch } => rows += usize::from(query == small) * batch.len(),
    };
    for start in (0..50_000).step_by(1_000) {
        let ts: Vec<i64> = (start..start + 1_000).collect();
        engine.push("S", Batch::stream(ts.clone(), vec![Column::ints(ts)]));
        engine.step(&mut note);
    }
    engine.finish(&mut note);
    assert_eq!(rows, 50_000 + 49_990);
    assert_eq!(failures.len(), 1);
    let (query, error) = &failures[0];
    assert_eq!(*query, big);
    assert!(
        error.message.contains("the window [range 1000000] over S"),
        "{error}"
    );
    assert!(error.help.is_some());
    assert_eq!(engine.counts().queries.len(), 1);
}

#[test]
fn a_failing_query_does_not_end_other_queries() {
    let source = stream("a int");
    let twice = binary(BinaryOp::Add, column(&source, 0), column(&source, 0));
    let failing = project(&source, vec![twice]);
    let mut engine = Engine::new(EngineOptions::default());
    let (failing, sound) = (engine.add(&failing), engine.add(&source));
    let mut outputs = Vec::new();
    engine.push(
        "S",
        Batch::stream(vec![1, 2], vec![Column::ints(vec![1, i64::MAX])]),
    );
    engine.push("S", Batch::stream(vec![3], vec![Column::ints(vec![3])]));
    engine.finish(&mut |o| outputs.push(o));
    let failures = outputs
        .iter()
        .filter(|o| matches!(o, EngineOutput::Failed { query, .. } if *query == failing));
    assert_eq!(failures.count(), 1);
    let rows: usize = outputs
        .iter()
        .map(|o| match o {
            EngineOutput::Rows { query, batch } if *query == sound => batch.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(rows, 3);
}

#[test]
fn a_removed_query_emits_nothing_more_and_frees_its_sources() {
    let plan = range(&stream("a int"), 10);
    let mut engine = Engine::new(EngineOptions::default());
    let query = engine.add(&plan);
    engine.push(
        "S",
        Batch::stream(vec![1, 2], vec![Column::ints(vec![1, 2])]),
    );
    engine.step(&mut |_| ());
    engine.remove(query);
    engine.remove(query);
    engine.push(
        "S",
        Batch::stream(vec![3, 4], vec![Column::ints(vec![3, 4])]),
    );
    engine.finish(&mut |_| panic!("the query is gone"));
    assert!(engine.counts().queries.is_empty());
}

#[test]
fn results_do_not_depend_on_the_span_size() {
    let source = stream("a int");
    let plan = aggregate(
        &range(&source, 1_000),
        &[0],
        vec![call("count", vec![], false)],
    );
    let rows = 200_000i64;
    let mut given = [Given::default(), Given::default()];
    for (at_once, given) in [true, false].into_iter().zip(&mut given) {
        let mut engine = Engine::new(EngineOptions::default());
        engine.add(&plan);
        for start in (0..rows).step_by(10_000) {
            let ts: Vec<i64> = (start..start + 10_000).map(|t| t / 3).collect();
            let values = ts.iter().map(|t| t * 7 % 11).collect();
            engine.push("S", Batch::stream(ts, vec![Column::ints(values)]));
            if !at_once {
                engine.step(&mut |o| given.note(o));
            }
        }
        engine.finish(&mut |o| given.note(o));
    }
    let [a, b] = given.map(Given::lines);
    assert!(a.len() > 100_000 && a == b);
}

#[test]
fn a_case_branch_evaluates_only_its_own_rows() {
    let source = stream("a int");
    let fails = binary(BinaryOp::Multiply, column(&source, 0), literal(4));
    let small = binary(BinaryOp::Less, column(&source, 0), literal(100));
    let case = crate::Expr::Case {
        branches: vec![(small.clone(), fails.clone())],
        otherwise: None,
        ty: weir_model::Type::Int,
        unit: Default::default(),
    };
    let guarded = binary(
        BinaryOp::And,
        small,
        binary(BinaryOp::Greater, fails, literal(8)),
    );
    check(
        &project(&source, vec![case, guarded]),
        "< 1 S 5
         < 2 S 9223372036854775807
         < 3 S NULL
         < 4 S 1
         > 1 + 20, true
         > 2 + NULL, false
         > 3 + NULL, NULL
         > 4 + 4, false",
    );
}

#[test]
fn rows_are_in_time_order_for_every_slide() {
    let source = stream("a int");
    let case = "< 1 S 1\n< 1 S 2\n< 2 S 3";
    assert_eq!(
        run(&source, case, Feed::AtOnce),
        outputs("> 1 + 1\n> 1 + 2\n> 2 + 3")
    );
}

#[test]
fn the_position_of_a_removed_source_is_reused() {
    let reading = |name: &str| range(&source(name, Shape::Stream, "a int"), 10);
    let mut engine = Engine::new(EngineOptions::default());
    let kept = engine.add(&reading("kept"));
    let removed = engine.add(&reading("gone"));
    engine.heartbeat_all(5);
    engine.step(&mut |_| {});
    engine.remove_source("gone");
    assert_eq!(engine.counts().sources.len(), 2, "it is read");
    engine.remove(removed);
    engine.remove_source("gone");
    assert_eq!(engine.counts().sources.len(), 1);

    let next = engine.add(&reading("next"));
    engine.push("next", Batch::stream(vec![6], vec![Column::ints(vec![1])]));
    engine.push("kept", Batch::stream(vec![7], vec![Column::ints(vec![2])]));
    engine.heartbeat_all(8);
    let mut rows = Vec::new();
    engine.step(&mut |output| match output {
        EngineOutput::Rows { query, batch } => rows.push((query, batch.ts[0])),
        EngineOutput::Failed { error, .. } => panic!("{error}"),
    });
    rows.sort();
    assert_eq!(rows, [(kept, 7), (next, 6)]);
    assert_eq!(engine.counts().sources.len(), 2);
}

#[test]
fn rows_of_several_batches_are_sorted_stably_by_time() {
    let batch = |rows: &[(i64, i64)]| {
        let (ts, values): (Vec<i64>, Vec<i64>) = rows.iter().copied().unzip();
        Batch::stream(ts, vec![Column::ints(values)])
    };
    let pieces = [batch(&[(1, 1), (5, 2)]), batch(&[(1, 3), (2, 4), (5, 5)])];
    let all = super::in_time_order(&pieces);
    assert_eq!(all.ts[..], [1, 1, 2, 5, 5]);
    let values: Vec<String> = (0..5).map(|r| all.row(r)[0].to_string()).collect();
    assert_eq!(values, ["1", "3", "4", "2", "5"]);
}
