//! Tests of the oracle itself, on plans that are small enough to check by hand.

use std::sync::Arc;

use weir_model::{Declaration, Field, Schema, Shape, Type, Unit, Value};
use weir_query::Expr;
use weir_query::plan::{JoinKind, JoinNode, Node, Plan, ToStream, Window};

use crate::support::changes::Changes;
use crate::support::history::{Element, History};
use crate::support::oracle;
use weir_query::window::Now;

fn numbers() -> Arc<Plan> {
    let schema = Schema::new(vec![Field::new("x", Type::Int)]);
    Plan::source(Declaration::new("S", Shape::Stream, schema))
}

fn window(window: Window) -> Arc<Plan> {
    let input = numbers();
    Arc::new(Plan {
        schema: input.schema.clone(),
        node: Node::Window { input, window },
        shape: Shape::Relation,
    })
}

fn history(rows: &[(i64, i64)], end: i64) -> History {
    let rows = rows.iter().map(|&(ts, x)| Element {
        ts,
        weight: 1,
        row: vec![Value::Int(x)],
    });
    let mut history = History::new([("s".to_string(), rows.collect())]);
    history.end = end;
    history
}

fn changes(plan: &Plan, rows: &[(i64, i64)], end: i64) -> Vec<String> {
    let outcome = oracle::evaluate(plan, &history(rows, end));
    assert_eq!(outcome.failure, None);
    let lines = outcome.changes.lines(plan.shape).into_iter();
    lines.map(|(ts, row)| format!("> {ts} {row}")).collect()
}

#[test]
fn a_range_holds_what_came_after_its_old_end() {
    let plan = window(Window::range(3, None));
    let rows = [(1, 7), (2, 8)];
    assert_eq!(
        changes(&plan, &rows, 9),
        ["> 1 + 7", "> 2 + 8", "> 4 - 7", "> 5 - 8"]
    );
    assert_eq!(changes(&plan, &rows, 4), ["> 1 + 7", "> 2 + 8", "> 4 - 7"]);
}

#[test]
fn a_slide_looks_at_its_multiples_only() {
    let plan = window(Window::range(3, Some(5)));
    let rows = [(1, 1), (3, 3), (5, 5), (6, 6)];
    assert_eq!(
        changes(&plan, &rows, 20),
        ["> 5 + 3", "> 5 + 5", "> 10 - 3", "> 10 - 5"]
    );
}

#[test]
fn now_is_gone_at_the_next_instant() {
    let plan = window(Window::from(Now));
    assert_eq!(
        changes(&plan, &[(1, 1), (2, 1), (4, 1)], 9),
        ["> 1 + 1", "> 3 - 1", "> 4 + 1", "> 5 - 1"]
    );
}

#[test]
fn istream_and_dstream_are_what_came_and_what_went() {
    let rows = [(1, 1), (2, 2)];
    let over = |kind| {
        let input = window(Window::rows(1));
        let plan = Plan {
            schema: input.schema.clone(),
            node: Node::ToStream { input, kind },
            shape: Shape::Stream,
        };
        changes(&plan, &rows, 9)
    };
    assert_eq!(over(ToStream::Istream), ["> 1 1", "> 2 2"]);
    assert_eq!(over(ToStream::Dstream), ["> 2 1"]);
    assert_eq!(
        over(ToStream::Rstream { every: Some(4) }),
        ["> 4 2", "> 8 2"]
    );
}

#[test]
fn an_outer_join_pads_what_has_no_partner() {
    let x = Expr::column(0, Type::Int, Unit::None);
    let (left, right) = (window(Window::rows(1)), window(Window::range(2, Some(2))));
    let fields = [left.schema.fields.clone(), right.schema.fields.clone()].concat();
    let plan = Plan {
        node: Node::Join(JoinNode {
            left,
            right,
            kind: JoinKind::Left,
            on: vec![(x.clone(), x)],
            residual: None,
        }),
        schema: Arc::new(Schema::new(fields)),
        shape: Shape::Relation,
    };
    assert_eq!(
        changes(&plan, &[(1, 7)], 9),
        [
            "> 1 + 7 NULL",
            "> 2 - 7 NULL",
            "> 2 + 7 7",
            "> 4 - 7 7",
            "> 4 + 7 NULL"
        ]
    );
}

#[test]
fn equal_changes_agree_and_differences_are_reported() {
    let mut a = Changes::default();
    a.add(1, vec![Value::Float(0.1 + 0.2)], 1);
    let mut b = Changes::default();
    b.add(1, vec![Value::Float(0.3)], 1);
    assert_eq!(a.agree(&b, ["a", "b"]), Ok(()));
    b.add(2, vec![Value::Int(4)], -1);
    let difference = a.agree(&b, ["a", "b"]).unwrap_err();
    assert!(difference.contains("at 2") && difference.contains('4'));
}
