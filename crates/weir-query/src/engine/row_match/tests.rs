//! Bounds of the operator: the stored rows, the forgotten partitions and the ways to continue.

use std::sync::Arc;

use weir_model::{Batch, Catalog, Column, Declaration, Field, Schema, Shape, Type};

use super::Match;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::plan::{Node, Plan};
use crate::{CheckOptions, Dialect, compile};

/// The operator of the pattern in a query of the stream `s (k int, x int)`, whose seconds are
/// instants.
fn operator(clause: &str) -> Match {
    let fields = ["k", "x"].map(|name| Field::new(name, Type::Int));
    let stream = Declaration::new("s", Shape::Stream, Schema::new(fields.to_vec()));
    let catalog = Catalog {
        declarations: vec![stream],
        ..Catalog::default()
    };
    let options = CheckOptions {
        second: 1,
        dialect: Dialect::Cql,
        live: false,
    };
    let text = format!("select * from s match_recognize ({clause})");
    let checked = compile(&text, &catalog, &options).expect("a sound query");
    fn found(plan: &Arc<Plan>) -> Option<Match> {
        match &plan.node {
            Node::Match { input, by } => Some(Match::new(by, &input.schema)),
            _ => plan.inputs().into_iter().find_map(found),
        }
    }
    found(&checked.plan).expect("the query has a pattern")
}

/// Rows of these keys and one value at one instant, up to which time passes; the pattern reads both
/// columns.
fn step(operator: &mut Match, ts: i64, keys: &[i64], x: i64) -> Result<usize, EvalError> {
    let columns = vec![
        Column::ints(keys.to_vec()),
        Column::ints(vec![x; keys.len()]),
    ];
    let batch = Batch::stream(vec![ts; keys.len()], columns);
    let span = Span {
        after: ts - 1,
        upto: ts,
        begin: None,
        bytes_max: usize::MAX,
        is_past_input: false,
    };
    let out = operator.step(&[&[batch]], span)?;
    Ok(out.iter().map(Batch::len).sum())
}

#[test]
fn rows_that_cannot_begin_a_match_are_not_stored() {
    let pattern = "partition by k measures a.x as x pattern (a b) within 5 s define a as x = 1";
    let mut operator = operator(pattern);
    let keys: Vec<i64> = (0..100).collect();
    for ts in 1..200 {
        assert_eq!(step(&mut operator, ts, &keys, 0).unwrap(), 0);
    }
    assert!(
        operator.rows.len() <= 100,
        "slots of one instant are reused"
    );
    assert!(operator.numbers.len() == 0, "all partitions are forgotten");
}

#[test]
fn a_partition_is_forgotten_at_the_end_of_within() {
    let pattern = "partition by k measures a.x as x pattern (a b) within 5 s define b as x = 1";
    let mut operator = operator(pattern);
    for ts in 1..200 {
        assert_eq!(step(&mut operator, ts, &[ts], 0).unwrap(), 0);
        assert!(operator.numbers.len() <= 5, "those of the last 5 s");
    }
    assert_eq!(operator.ends.len(), operator.numbers.len());
    let bytes = operator.bytes;
    step(&mut operator, 1_000, &[0], 0).unwrap();
    assert!(operator.bytes < bytes, "{} of {bytes}", operator.bytes);
}

#[test]
fn too_many_ways_to_continue_are_an_error_with_a_remedy() {
    // What the condition reads depends on which of the rows are which variable.
    let pattern = "partition by k measures count(*) as n pattern ((a | b)+ c) within 1 hour \
                   define c as x > first(b.x) + last(a.x)";
    let mut operator = operator(pattern);
    let error = (1..300).find_map(|ts| step(&mut operator, ts, &[1], 1).err());
    let error = error.expect("no row completes the match");
    let text = format!("{error:?}");
    assert!(
        text.contains("16384 ways") && text.contains("WITHIN"),
        "{text}"
    );
}

#[test]
fn ways_that_continue_alike_are_one() {
    // Each of the 40 rows is in one of the two groups: 2^40 ways to read them.
    let pattern = "partition by k measures count(*) as n pattern ((a | b)+ (a | b)+ c) within 1 hour \
                   define c as x > 5";
    let mut operator = operator(pattern);
    for ts in 1..40 {
        assert_eq!(step(&mut operator, ts, &[1], 0).unwrap(), 0);
        assert!(operator.partitions[0].ways() <= 9, "one a position");
    }
    assert_eq!(step(&mut operator, 50, &[1], 6).unwrap(), 0, "it may go on");
    assert_eq!(step(&mut operator, 3_601, &[1], 0).unwrap(), 1);
}
