//! Windows through the engine: each row enters and leaves at its exact instant.

use super::testing::{check, column, project, range, stream, window};
use crate::plan::Window;
use crate::window::{Now, Partition, Since, Unbounded};

#[test]
fn a_row_leaves_a_range_exactly_its_size_later() {
    let plan = range(&stream("a int"), 10);
    check(
        &plan,
        "< 1 S 5
         < 4 S 6
         < 30 S 7
         > 1 + 5
         > 4 + 6
         > 11 - 5
         > 14 - 6
         > 30 + 7",
    );
}

#[test]
fn a_row_that_expires_as_an_equal_one_enters_is_not_emitted() {
    let plan = range(&stream("a int"), 2);
    check(
        &plan,
        "< 1 S 5
         < 3 S 5
         < 6 S 6
         > 1 + 5
         > 5 - 5
         > 6 + 6",
    );
}

#[test]
fn a_heartbeat_expires_rows() {
    let plan = range(&stream("a int"), 10);
    check(
        &plan,
        "< 1 S 5
         < 11 S
         > 1 + 5
         > 11 - 5",
    );
}

#[test]
fn now_holds_the_rows_of_one_instant() {
    let plan = window(&stream("a int"), Window::from(Now));
    check(
        &plan,
        "< 1 S 5
         < 2 S 5
         < 2 S 6
         < 4 S 7
         > 1 + 5
         > 2 + 6
         > 3 - 5
         > 3 - 6
         > 4 + 7",
    );
}

#[test]
fn a_slide_moves_at_its_multiples_only() {
    let plan = window(&stream("a int"), Window::range(20, Some(10)));
    check(
        &plan,
        "< -3 S 1
         < 1 S 2
         < 10 S 3
         < 50 S 4
         > 0 + 1
         > 10 + 2
         > 10 + 3
         > 20 - 1
         > 30 - 2
         > 30 - 3
         > 50 + 4",
    );
}

#[test]
fn a_slide_longer_than_the_window_skips_rows() {
    let plan = window(&stream("a int"), Window::range(2, Some(10)));
    check(
        &plan,
        "< 1 S 1
         < 8 S 2
         < 9 S 3
         < 10 S 4
         < 25 S 5
         > 10 + 3
         > 10 + 4
         > 20 - 3
         > 20 - 4",
    );
}

#[test]
fn an_unbounded_window_with_a_slide_changes_at_its_multiples() {
    let plan = window(
        &stream("a int"),
        Window::Unbounded(Unbounded { slide: Some(10) }),
    );
    check(
        &plan,
        "< 1 S 1
         < 9 S 2
         < 31 S 3
         > 10 + 1
         > 10 + 2",
    );
}

#[test]
fn rows_evicts_the_oldest_and_ties_go_by_arrival() {
    let plan = window(&stream("a int"), Window::rows(2));
    check(
        &plan,
        "< 1 S 1
         < 2 S 2
         < 2 S 3
         < 2 S 4
         < 3 S 5
         > 1 + 1
         > 2 + 3
         > 2 + 4
         > 2 - 1
         > 3 + 5
         > 3 - 3",
    );
}

#[test]
fn a_partition_keeps_the_last_rows_of_each_key_and_null_is_one() {
    let plan = stream("k text, a int");
    let keys = vec![column(&plan, 0)];
    let plan = window(&plan, Window::Partition(Partition { keys, rows: 1 }));
    check(
        &plan,
        "< 1 S x, 1
         < 2 S NULL, 2
         < 3 S x, 3
         < 4 S NULL, 4
         < 4 S NULL, 5
         > 1 + x, 1
         > 2 + NULL, 2
         > 3 + x, 3
         > 3 - x, 1
         > 4 + NULL, 5
         > 4 - NULL, 2",
    );
}

#[test]
fn rows_that_differ_in_dropped_columns_only_cancel() {
    let source = stream("a int, b int");
    let plan = window(&source, Window::rows(1));
    let plan = project(&plan, vec![column(&source, 0)]);
    check(
        &plan,
        "< 1 S 1, 1
         < 2 S 1, 2
         < 3 S 2, 3
         > 1 + 1
         > 3 + 2
         > 3 - 1",
    );
}

/// Stream `S (a int, origin int)` since its `origin`.
fn since(size: Option<i64>, slide: Option<i64>) -> std::sync::Arc<crate::plan::Plan> {
    let input = stream("a int, origin int");
    let origin = column(&input, 1);
    window(
        &input,
        Window::Since(Since {
            origin,
            size,
            slide,
        }),
    )
}

#[test]
fn a_since_window_inserts_at_completion_and_retracts_by_origin() {
    check(
        &since(Some(10), None),
        "< 5 S 1, 4
         < 6 S 2, 1
         < 6 S 3, -3
         < 8 S 4, 1
         < 14 S 5, 4
         < 15 S
         > 5 + 1, 4
         > 6 + 2, 1
         > 6 + 3, -3
         > 7 - 3, -3
         > 8 + 4, 1
         > 11 - 2, 1
         > 11 - 4, 1
         > 14 - 1, 4",
    );
}

#[test]
fn a_row_without_origin_or_before_it_is_never_inserted() {
    check(
        &since(None, None),
        "< 5 S 1, NULL
         < 6 S 2, 7
         < 8 S 3, 8
         < 900 S 4, 1
         > 8 + 3, 8
         > 900 + 4, 1",
    );
}

#[test]
fn origins_slide_with_the_window() {
    check(
        &since(Some(20), Some(10)),
        "< 1 S 1, -1
         < 3 S 2, -12
         < 12 S 3, 11
         < 50 S 4, 41
         > 10 + 1, -1
         > 20 - 1, -1
         > 20 + 3, 11
         > 40 - 3, 11
         > 50 + 4, 41",
    );
}
