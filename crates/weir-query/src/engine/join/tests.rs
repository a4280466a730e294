//! Joins through the engine: every kind, with rows inserted and retracted on both sides.

use std::sync::Arc;

use weir_model::Shape;

use crate::engine::testing::{binary, check, column, join, range, source, stream, unbounded};
use crate::expr::{BinaryOp, Expr};
use crate::plan::{JoinKind, Plan};

/// Streams `L (k, a)` and `R (k, b)`, 10 instants each, joined on `k`.
fn on_key(kind: JoinKind, residual: bool) -> Arc<Plan> {
    let left = range(&source("L", Shape::Stream, "k int, a int"), 10);
    let right = range(&source("R", Shape::Stream, "k int, b int"), 10);
    let on = vec![(column(&left, 0), column(&right, 0))];
    let b = Expr::column(3, weir_model::Type::Int, Default::default());
    let residual = residual.then(|| binary(BinaryOp::Less, column(&left, 1), b));
    join(&left, &right, kind, on, residual)
}

#[test]
fn an_inner_pair_lasts_from_its_later_row_to_its_first_expiry() {
    check(
        &on_key(JoinKind::Inner, false),
        "< 1 L 1, 10
         < 1 R 2, 20
         < 2 L 2, 11
         < 3 R 1, 21
         < 3 R 1, 22
         < 4 R NULL, 9
         < 5 L NULL, 9
         < 40 L 7, 7
         < 40 R 7, 7
         > 2 + 2, 11, 2, 20
         > 3 + 1, 10, 1, 21
         > 3 + 1, 10, 1, 22
         > 11 - 2, 11, 2, 20
         > 11 - 1, 10, 1, 21
         > 11 - 1, 10, 1, 22
         > 40 + 7, 7, 7, 7",
    );
}

#[test]
fn a_left_join_pads_rows_without_partner() {
    check(
        &on_key(JoinKind::Left, false),
        "< 1 L 1, 10
         < 2 L NULL, 11
         < 3 R 1, 21
         < 4 R 1, 22
         < 5 L 1, 12
         < 40 L 7, 7
         < 40 R 7, 7
         > 1 + 1, 10, NULL, NULL
         > 2 + NULL, 11, NULL, NULL
         > 3 - 1, 10, NULL, NULL
         > 3 + 1, 10, 1, 21
         > 4 + 1, 10, 1, 22
         > 5 + 1, 12, 1, 21
         > 5 + 1, 12, 1, 22
         > 11 - 1, 10, 1, 21
         > 11 - 1, 10, 1, 22
         > 12 - NULL, 11, NULL, NULL
         > 13 - 1, 12, 1, 21
         > 14 - 1, 12, 1, 22
         > 14 + 1, 12, NULL, NULL
         > 15 - 1, 12, NULL, NULL
         > 40 + 7, 7, 7, 7",
    );
}

#[test]
fn right_and_full_joins_pad_the_other_side_too() {
    check(
        &on_key(JoinKind::Right, false),
        "< 1 L 1, 10
         < 2 R 1, 21
         < 3 R 2, 22
         < 12 L
         < 12 R
         > 2 + 1, 10, 1, 21
         > 3 + NULL, NULL, 2, 22
         > 11 - 1, 10, 1, 21
         > 11 + NULL, NULL, 1, 21
         > 12 - NULL, NULL, 1, 21",
    );
    check(
        &on_key(JoinKind::Full, false),
        "< 1 L 1, 10
         < 2 R 2, 21
         < 3 L 2, 11
         < 12 L
         < 12 R
         > 1 + 1, 10, NULL, NULL
         > 2 + NULL, NULL, 2, 21
         > 3 - NULL, NULL, 2, 21
         > 3 + 2, 11, 2, 21
         > 11 - 1, 10, NULL, NULL
         > 12 - 2, 11, 2, 21
         > 12 + 2, 11, NULL, NULL",
    );
}

#[test]
fn a_residual_condition_decides_which_rows_have_a_partner() {
    check(
        &on_key(JoinKind::Left, true),
        "< 1 L 1, 10
         < 2 R 1, 5
         < 3 R 1, 15
         < 12 L
         < 12 R
         > 1 + 1, 10, NULL, NULL
         > 3 - 1, 10, NULL, NULL
         > 3 + 1, 10, 1, 15
         > 11 - 1, 10, 1, 15",
    );
}

#[test]
fn semi_and_anti_joins_emit_left_rows_once() {
    let case = "< 1 L 1, 10
                < 2 R 1, 20
                < 3 R 1, 21
                < 4 L 1, 11
                < 5 L NULL, 12
                < 14 L
                < 14 R";
    check(
        &on_key(JoinKind::Semi, false),
        &format!(
            "{case}
             > 2 + 1, 10
             > 4 + 1, 11
             > 11 - 1, 10
             > 13 - 1, 11"
        ),
    );
    check(
        &on_key(JoinKind::Anti, false),
        &format!(
            "{case}
             > 1 + 1, 10
             > 2 - 1, 10
             > 5 + NULL, 12
             > 13 + 1, 11
             > 14 - 1, 11"
        ),
    );
}

#[test]
fn not_in_is_never_true_beside_a_null() {
    check(
        &on_key(JoinKind::NotIn, false),
        "< 1 L 1, 10
         < 1 L NULL, 11
         < 2 R 2, 20
         < 3 R NULL, 21
         < 4 R 1, 22
         < 5 L 3, 12
         < 14 L
         < 14 R
         > 1 + 1, 10
         > 1 + NULL, 11
         > 2 - NULL, 11
         > 3 - 1, 10
         > 13 + 3, 12",
    );
}

#[test]
fn a_theta_join_needs_no_equality() {
    let left = range(&source("L", Shape::Stream, "a int"), 10);
    let right = unbounded(&source("R", Shape::Stream, "b int"));
    let b = Expr::column(1, weir_model::Type::Int, Default::default());
    let less = binary(BinaryOp::Less, column(&left, 0), b);
    check(
        &join(&left, &right, JoinKind::Inner, vec![], Some(less)),
        "< 1 L 5
         < 2 L 7
         < 3 R 6
         < 3 R 9
         < 11 L
         < 11 R
         > 3 + 5, 6
         > 3 + 5, 9
         > 3 + 7, 9
         > 11 - 5, 6
         > 11 - 5, 9",
    );
}

#[test]
fn a_stream_joined_with_itself_shares_its_window() {
    let window = range(&stream("k int, t text"), 10);
    let on = vec![(column(&window, 0), column(&window, 0))];
    check(
        &join(&window, &window, JoinKind::Inner, on, None),
        "< 1 S 1, x
         < 2 S 1, y
         < 11 S 2, z
         > 1 + 1, x, 1, x
         > 2 + 1, x, 1, y
         > 2 + 1, y, 1, x
         > 2 + 1, y, 1, y
         > 11 - 1, x, 1, x
         > 11 - 1, x, 1, y
         > 11 - 1, y, 1, x
         > 11 + 2, z, 2, z",
    );
}

/// Many equal and unequal rows of one key are retracted in another order than they were inserted.
#[test]
fn rows_of_a_long_chain_are_found_by_value() {
    let left = source("L", Shape::Relation, "k int, a int");
    let right = source("R", Shape::Relation, "k int, b int");
    let plan = join(
        &left,
        &right,
        JoinKind::Inner,
        vec![(column(&left, 0), column(&right, 0))],
        None,
    );
    let rows = 300i64;
    let mut case = String::from("< 1 R 1, 0\n");
    let values: Vec<i64> = (0..rows).map(|i| i * 7 % 100).collect();
    for (i, value) in values.iter().enumerate() {
        case += &format!("< {} L 1, {value}\n> {} + 1, {value}, 1, 0\n", i + 1, i + 1);
    }
    for (i, value) in values.iter().rev().enumerate() {
        let ts = rows as usize + 10 + i;
        case += &format!("< {ts} L - 1, {value}\n> {ts} - 1, {value}, 1, 0\n");
    }
    check(&plan, &case);
}
