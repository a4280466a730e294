//! Aggregation through the engine: groups are inserted, updated and retracted as rows are inserted
//! and retracted.

use crate::engine::testing::{aggregate, call, check, column, distinct, range, stream, unbounded};

#[test]
fn a_group_is_inserted_changed_and_retracted() {
    let source = stream("k text, a int");
    let calls = vec![
        call("count", vec![], false),
        call("sum", vec![column(&source, 1)], false),
    ];
    check(
        &aggregate(&range(&source, 10), &[0], calls),
        "< 1 S x, 5
         < 2 S y, 7
         < 3 S x, 6
         < 30 S x, 1
         > 1 + x, 1, 5
         > 2 + y, 1, 7
         > 3 - x, 1, 5
         > 3 + x, 2, 11
         > 11 - x, 2, 11
         > 11 + x, 1, 6
         > 12 - y, 1, 7
         > 13 - x, 1, 6
         > 30 + x, 1, 1",
    );
}

#[test]
fn a_group_is_emitted_once_per_instant_for_any_number_of_rows() {
    let source = stream("k text, a int");
    let calls = vec![call("sum", vec![column(&source, 1)], false)];
    check(
        &aggregate(&unbounded(&source), &[0], calls),
        "< 1 S x, 1
         < 1 S NULL, 2
         < 1 S x, 3
         < 2 S x, 4
         < 2 S NULL, 0
         < 2 S x, 5
         > 1 + NULL, 2
         > 1 + x, 4
         > 2 - x, 4
         > 2 + x, 13",
    );
}

#[test]
fn without_keys_there_is_one_row_from_the_first_input_on() {
    let source = stream("a int");
    let calls = vec![
        call("count", vec![], false),
        call("sum", vec![column(&source, 0)], false),
    ];
    check(
        &aggregate(&range(&source, 2), &[], calls),
        "< 0 S
         < 1 S 5
         < 9 S 6
         < 20 S
         > 1 + 1, 5
         > 3 - 1, 5
         > 3 + 0, NULL
         > 9 - 0, NULL
         > 9 + 1, 6
         > 11 - 1, 6
         > 11 + 0, NULL",
    );
}

#[test]
fn a_group_that_empties_and_fills_at_one_instant_changes_once() {
    let source = stream("k text, a int");
    let calls = vec![call("sum", vec![column(&source, 1)], false)];
    check(
        &aggregate(&range(&source, 2), &[0], calls),
        "< 1 S x, 5
         < 3 S x, 6
         < 5 S x, 6
         > 1 + x, 5
         > 3 - x, 5
         > 3 + x, 6",
    );
}

#[test]
fn distinct_calls_count_each_value_once() {
    let source = stream("k text, a int");
    let calls = vec![
        call("count", vec![column(&source, 1)], true),
        call("sum", vec![column(&source, 1)], true),
        call("count", vec![column(&source, 1)], false),
    ];
    check(
        &aggregate(&range(&source, 10), &[0], calls),
        "< 1 S x, 5
         < 2 S x, 5
         < 3 S x, 6
         < 3 S y, 6
         < 3 S x, NULL
         < 12 S x, 7
         > 1 + x, 1, 5, 1
         > 2 - x, 1, 5, 1
         > 2 + x, 1, 5, 2
         > 3 - x, 1, 5, 2
         > 3 + x, 2, 11, 3
         > 3 + y, 1, 6, 1
         > 11 - x, 2, 11, 3
         > 11 + x, 2, 11, 2
         > 12 - x, 2, 11, 2
         > 12 + x, 2, 13, 2",
    );
}

#[test]
fn min_and_max_are_updated_when_rows_expire() {
    let source = stream("a int");
    let calls = vec![
        call("min", vec![column(&source, 0)], false),
        call("max", vec![column(&source, 0)], false),
    ];
    check(
        &aggregate(&range(&source, 3), &[], calls),
        "< 1 S 9
         < 2 S 1
         < 3 S 5
         < 5 S 4
         > 1 + 9, 9
         > 2 - 9, 9
         > 2 + 1, 9
         > 4 - 1, 9
         > 4 + 1, 5
         > 5 - 1, 5
         > 5 + 4, 5",
    );
}

#[test]
fn distinct_emits_each_row_once() {
    let plan = distinct(&range(&stream("a int, b text"), 3));
    check(
        &plan,
        "< 1 S 1, x
         < 2 S 1, x
         < 2 S 1, y
         < 8 S 2, NULL
         < 9 S 2, NULL
         > 1 + 1, x
         > 2 + 1, y
         > 5 - 1, x
         > 5 - 1, y
         > 8 + 2, NULL",
    );
}

#[test]
fn an_overflow_ends_the_query() {
    let source = stream("a int");
    let plan = aggregate(
        &unbounded(&source),
        &[],
        vec![call("sum", vec![column(&source, 0)], false)],
    );
    let case = "< 1 S 9223372036854775807
                < 2 S 1
                < 3 S 1";
    let given = crate::engine::testing::run(&plan, case, crate::engine::testing::Feed::RowByRow);
    assert_eq!(given.len(), 2, "{given:?}");
    assert!(
        given[1].starts_with("failed: ") && given[1].contains("sum"),
        "{given:?}"
    );
}
