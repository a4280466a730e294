//! [`HeatMap`]: counts by two measures, as shades: latency over time, seek distance against
//! latency.

use weir_sketch::{Axis, Grid};

use super::quantity::Quantity;

/// Counts by two measures.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatMap {
    /// Its title.
    pub title: String,
    /// The horizontal axis.
    pub x: Bands,
    /// The vertical axis.
    pub y: Bands,
    /// The unit of the counts: `requests`.
    pub counted: String,
    /// Column by column, as many as there are bands of `x` and `y`.
    pub counts: Vec<u64>,
}

/// The parts of an axis, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Bands {
    /// The measure.
    pub title: String,
    /// The upper limit or start of each part; not all are drawn if space is short.
    pub labels: Vec<String>,
}

impl HeatMap {
    /// The count of a cell.
    pub fn count(&self, column: usize, row: usize) -> u64 {
        self.counts[column * self.y.labels.len() + row]
    }

    /// The greatest.
    pub fn most(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or(0)
    }

    /// From a two-dimensional histogram; empty rows and columns at the edges are omitted.
    pub fn of_grid(title: &str, grid: &Grid, x: (&str, Quantity), y: (&str, Quantity)) -> HeatMap {
        let holds = |column: usize, row: usize| grid.count(column, row) > 0;
        let (wide, high) = (grid.x().cells(), grid.y().cells());
        let columns = range(wide, |c| (0..high).any(|r| holds(c, r)));
        let rows = range(high, |r| columns.clone().any(|c| holds(c, r)));
        let bands = |axis: &Axis, cells: std::ops::Range<usize>, (title, quantity): (&str, _)| {
            let labels = cells.map(|cell| label(axis.span(cell), quantity));
            Bands {
                title: title.to_owned(),
                labels: labels.collect(),
            }
        };
        let counts = columns.clone().flat_map(|c| {
            let column = grid.column(c);
            rows.clone().map(move |r| column[r])
        });
        HeatMap {
            title: title.to_owned(),
            counted: "requests".into(),
            counts: counts.collect(),
            x: bands(grid.x(), columns.clone(), x),
            y: bands(grid.y(), rows.clone(), y),
        }
    }
}

/// The range of nonempty entries.
fn range(cells: usize, holds: impl Fn(usize) -> bool) -> std::ops::Range<usize> {
    let first = (0..cells).find(|&i| holds(i)).unwrap_or(0);
    let end = (0..cells).rfind(|&i| holds(i)).map_or(first, |i| i + 1);
    first..end
}

fn label((least, greatest): (Option<i64>, Option<i64>), quantity: Quantity) -> String {
    let show = |x: i64| quantity.limit(x);
    match (least, greatest) {
        (_, Some(greatest)) => show(greatest),
        (Some(least), None) => format!("> {}", show(least.saturating_sub(1))),
        (None, None) => "all".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heat_map_keeps_the_counts_of_its_grid() {
        let x = Axis::Limits(vec![1, 2, 4, 8]);
        let mut grid = Grid::new(x.clone(), x);
        grid.add(2, 8, 3);
        grid.add(9, 4, 5);
        let time = Quantity::Nanoseconds;
        let map = HeatMap::of_grid("t", &grid, ("x", Quantity::Number), ("y", time));
        assert_eq!(map.x.labels, ["2", "4", "8", "> 8"]);
        assert_eq!(map.y.labels, ["4 ns", "8 ns"]);
        assert_eq!(map.count(0, 1), 3);
        assert_eq!(map.count(3, 0), 5);
        assert_eq!(map.counts.iter().sum::<u64>(), 8);
    }
}
