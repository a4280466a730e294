//! [`Axis`]: how the values of one dimension of a [`Grid`](crate::Grid) map to cells.

/// The largest number of cells of an axis.
pub const AXIS_CELLS_MAX: usize = 4096;

/// The smallest number of cells of a growing axis: enough for the whole range of integers.
const GROWING_CELLS_MIN: usize = 8;

/// The largest cell width: four such cells cover all integers.
const WIDTH_MAX: i64 = 1 << 62;

/// Cells of one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Ascending upper limits. A cell holds the values above the previous limit up to its own; the
    /// last cell holds everything above the last limit.
    Limits(Vec<i64>),
    /// A fixed number of cells of equal width that cover the range of values seen.
    Growing(Growing),
}

/// Cells of equal width, a power of two. When a value does not fit, the width is doubled and
/// neighbouring cells are merged in pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growing {
    cells: usize,
    width: i64,
    /// The first and last cell in use, counted from the cell that starts at 0. The first is cell 0
    /// of the axis.
    used: Option<(i64, i64)>,
}

impl Axis {
    /// Limits at equal relative distances, 2^`bits` to a power of two, from 2^`from` to 2^`to`.
    pub fn log_linear(bits: u32, from: u32, to: u32) -> Axis {
        let powers = from..to.min(62);
        let steps = powers.flat_map(|power| (0..1i64 << bits).map(move |step| (power, step)));
        let limits = steps.map(|(power, step)| (1i64 << power) + ((step << power) >> bits));
        let mut limits: Vec<i64> = limits.chain([1 << to.min(62)]).collect();
        limits.dedup();
        limits.truncate(AXIS_CELLS_MAX - 1);
        Axis::Limits(limits)
    }

    /// A growing axis with `cells` cells (at least 8) of `width`, rounded up to a power of two.
    pub fn growing(cells: usize, width: i64) -> Axis {
        Axis::Growing(Growing {
            cells: cells.clamp(GROWING_CELLS_MIN, AXIS_CELLS_MAX),
            width: (width.clamp(1, WIDTH_MAX) as u64).next_power_of_two() as i64,
            used: None,
        })
    }

    /// The number of cells.
    pub fn cells(&self) -> usize {
        match self {
            Axis::Limits(limits) => limits.len() + 1,
            Axis::Growing(growing) => growing.cells,
        }
    }

    /// The cell of a value; `None` if the axis does not cover it yet.
    pub fn cell(&self, value: i64) -> Option<usize> {
        match self {
            Axis::Limits(limits) => Some(limits.partition_point(|&limit| limit < value)),
            Axis::Growing(growing) => growing.cell(value),
        }
    }

    /// The least and the greatest value of a cell; `None` where the cell is unbounded.
    pub fn span(&self, cell: usize) -> (Option<i64>, Option<i64>) {
        match self {
            Axis::Limits(limits) => {
                let before = cell.checked_sub(1).and_then(|before| limits.get(before));
                (
                    before.map(|limit| limit.saturating_add(1)),
                    limits.get(cell).copied(),
                )
            }
            Axis::Growing(growing) => {
                let (first, _) = growing.used.unwrap_or_default();
                let least = first
                    .saturating_add(cell as i64)
                    .saturating_mul(growing.width);
                (Some(least), Some(least.saturating_add(growing.width - 1)))
            }
        }
    }

    /// This axis grown to cover `value`; `None` if it already does.
    pub(crate) fn grown_to(&self, value: i64) -> Option<Axis> {
        match self {
            Axis::Growing(growing) if growing.cell(value).is_none() => {
                Some(Axis::Growing(growing.covering(value)))
            }
            _ => None,
        }
    }

    /// Marks a cell as used.
    pub(crate) fn mark_used(&mut self, cell: usize) {
        if let Axis::Growing(Growing {
            used: Some((first, last)),
            ..
        }) = self
        {
            *last = (*last).max(*first + cell as i64);
        }
    }

    /// The index in `grown` of each cell of `self`.
    pub(crate) fn cells_in(&self, grown: &Axis) -> Vec<Option<usize>> {
        let place = |cell| match self.span(cell) {
            (Some(least), _) if matches!(self, Axis::Growing(_)) => grown.cell(least),
            _ => Some(cell),
        };
        (0..self.cells()).map(place).collect()
    }
}

impl Growing {
    /// The width of a cell.
    pub fn width(&self) -> i64 {
        self.width
    }

    /// The least and the greatest value of the used cells.
    fn values(&self) -> Option<(i64, i64)> {
        let (first, last) = self.used?;
        let greatest = last
            .saturating_mul(self.width)
            .saturating_add(self.width - 1);
        Some((first.saturating_mul(self.width), greatest))
    }

    /// The cell of a value, counted from the cell that starts at 0.
    fn cell_from_0(&self, value: i64) -> i64 {
        // The width is a power of two: a shift rounds down, and is faster than a division.
        value >> self.width.trailing_zeros()
    }

    fn cell(&self, value: i64) -> Option<usize> {
        let (first, _) = self.used?;
        let cell = self.cell_from_0(value).checked_sub(first)?;
        usize::try_from(cell).ok().filter(|&cell| cell < self.cells)
    }

    /// Covers the current values and the given one.
    fn covering(&self, value: i64) -> Growing {
        let (low, high) = self.values().unwrap_or((value, value));
        let (low, high) = (low.min(value), high.max(value));
        let mut grown = self.clone();
        loop {
            let (first, last) = (grown.cell_from_0(low), grown.cell_from_0(high));
            if grown.holds(first, last) {
                grown.used = Some((first, last));
                return grown;
            }
            grown.width *= 2;
        }
    }

    /// Whether the cells from `first` to `last` fit, within the range of integers.
    fn holds(&self, first: i64, last: i64) -> bool {
        let within = |cell: i64| cell.checked_mul(self.width).is_some();
        let cells = last.checked_sub(first);
        within(first) && within(last) && cells.is_some_and(|n| (0..self.cells as i64).contains(&n))
    }
}
