//! Grids: pairs count in the cell of both values and growing axes lose nothing.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_sketch::{Axis, Grid};

fn of(axes: &Grid, pairs: &[(i64, i64)]) -> Grid {
    let mut grid = axes.clone();
    pairs.iter().for_each(|&(x, y)| grid.add(x, y, 1));
    grid
}

fn empty() -> Grid {
    Grid::new(Axis::growing(16, 4), Axis::Limits(vec![-100, 0, 7, 1_000]))
}

fn both_growing() -> Grid {
    Grid::new(Axis::growing(16, 1), Axis::growing(8, 8))
}

/// Whether the bounds of a cell include the value.
fn holds(axis: &Axis, cell: usize, value: i64) -> bool {
    let (least, greatest) = axis.span(cell);
    least.is_none_or(|least| least <= value) && greatest.is_none_or(|greatest| value <= greatest)
}

#[test]
fn a_pair_counts_in_the_cell_of_both_values() {
    let grid = of(&empty(), &[(0, 0), (63, 7), (5, 8), (5, 1_001)]);
    assert_eq!(
        grid.cells().collect::<Vec<_>>(),
        [(0, 1, 1), (1, 3, 1), (1, 4, 1), (15, 2, 1)]
    );
    assert_eq!(grid.y().span(0), (None, Some(-100)));
    assert_eq!(grid.y().span(4), (Some(1_001), None));
    assert_eq!(
        (grid.total(), grid.count(15, 2), grid.count(99, 2)),
        (4, 1, 0)
    );
}

#[test]
fn a_value_out_of_range_doubles_the_cell_width() {
    let mut grid = of(&empty(), &[(0, 0), (7, 0), (63, 0)]);
    assert_eq!(grid.x().span(1), (Some(4), Some(7)));
    grid.add(64, 0, 1);
    assert_eq!(grid.x().span(1), (Some(8), Some(15)));
    assert_eq!(
        grid.cells().collect::<Vec<_>>(),
        [(0, 1, 2), (7, 1, 1), (8, 1, 1)]
    );
    grid.add(-1, 0, 1);
    assert_eq!(grid.x().span(0), (Some(-8), Some(-1)));
}

#[test]
fn every_integer_has_a_cell() {
    let grid = of(
        &both_growing(),
        &[(i64::MIN, 3), (i64::MAX, i64::MIN), (0, i64::MAX)],
    );
    assert_eq!((grid.total(), grid.cells().count()), (3, 3));
}

#[test]
fn log_linear_limits_are_at_equal_relative_distances() {
    let Axis::Limits(limits) = Axis::log_linear(2, 10, 12) else {
        panic!("limits");
    };
    assert_eq!(
        limits,
        [1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096]
    );
}

fn any_value() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -50i64..500, 2 => 0i64..1_000_000_000, 1 => any::<i64>()]
}

fn any_pairs() -> impl Strategy<Value = Vec<(i64, i64)>> {
    prop::collection::vec((any_value(), any_value()), 0..60)
}

type Counts = BTreeMap<(usize, usize), u64>;

fn counts(grid: &Grid) -> Counts {
    let cells = grid.cells();
    cells
        .map(|(column, row, count)| ((column, row), count))
        .collect()
}

/// The expected counts of the cells of `grid` for `pairs`.
fn by_cell(grid: &Grid, pairs: &[(i64, i64)]) -> Counts {
    let mut counts = Counts::new();
    for (x, y) in pairs {
        let cell = (grid.x().cell(*x).unwrap(), grid.y().cell(*y).unwrap());
        *counts.entry(cell).or_insert(0) += 1;
    }
    counts
}

proptest! {
    #[test]
    fn every_pair_is_in_a_cell_that_holds_it(pairs in any_pairs()) {
        let grid = of(&both_growing(), &pairs);
        for (x, y) in &pairs {
            let cell = (grid.x().cell(*x).unwrap(), grid.y().cell(*y).unwrap());
            prop_assert!(holds(grid.x(), cell.0, *x) && holds(grid.y(), cell.1, *y));
        }
        prop_assert_eq!(counts(&grid), by_cell(&grid, &pairs));
    }
}
