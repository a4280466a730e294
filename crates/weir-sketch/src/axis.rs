//! [`Axis`]: how the values of one dimension of a [`Grid`](crate::Grid) map to cells.

use crate::codec::{self, Bytes, SketchDecodeError};

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

    /// Whether both axes have the same cells once both have grown to the same range.
    pub(crate) fn is_compatible(&self, other: &Axis) -> bool {
        match (self, other) {
            (Axis::Growing(mine), Axis::Growing(others)) => mine.cells == others.cells,
            _ => self == other,
        }
    }

    /// This axis grown to cover `value`; `None` if it already does.
    pub(crate) fn grown_to(&self, value: i64) -> Option<Axis> {
        match self {
            Axis::Growing(growing) if growing.cell(value).is_none() => Some(Axis::Growing(
                growing.covering((value, value), growing.width),
            )),
            _ => None,
        }
    }

    /// This axis grown until each used cell of the compatible axis `other` lies within one cell of
    /// the result; `None` if that is already so.
    pub(crate) fn grown_over(&self, other: &Axis) -> Option<Axis> {
        let (Axis::Growing(mine), Axis::Growing(others)) = (self, other) else {
            return None;
        };
        let values = others.values()?;
        let grown = mine.covering(values, mine.width.max(others.width));
        (grown != *mine).then_some(Axis::Growing(grown))
    }

    /// Whether a cell may have a count.
    pub(crate) fn is_used(&self, cell: usize) -> bool {
        match self {
            Axis::Limits(_) => true,
            Axis::Growing(Growing {
                used: Some((first, last)),
                ..
            }) => cell as i64 <= last.saturating_sub(*first),
            Axis::Growing(_) => false,
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

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Axis::Limits(limits) => {
                out.push(0);
                codec::put_u64(out, limits.len() as u64);
                limits.iter().for_each(|&limit| codec::put_i64(out, limit));
            }
            Axis::Growing(growing) => {
                out.push(if growing.used.is_some() { 2 } else { 1 });
                codec::put_u64(out, growing.cells as u64);
                codec::put_i64(out, growing.width);
                if let Some((first, last)) = growing.used {
                    codec::put_i64(out, first);
                    codec::put_i64(out, last);
                }
            }
        }
    }

    pub(crate) fn decode(bytes: &mut Bytes<'_>) -> Result<Axis, SketchDecodeError> {
        let kind = bytes.byte()?;
        if kind == 0 {
            let count = bytes.length(1)?;
            let limits = (0..count)
                .map(|_| bytes.i64())
                .collect::<Result<Vec<i64>, _>>()?;
            let ascend = limits.windows(2).all(|pair| pair[0] < pair[1]);
            return match ascend && limits.len() < AXIS_CELLS_MAX {
                true => Ok(Axis::Limits(limits)),
                false => Err(SketchDecodeError("limits are not ascending or too many")),
            };
        }
        let (cells, width) = (bytes.u64()?, bytes.i64()?);
        let used = match kind {
            1 => None,
            2 => Some((bytes.i64()?, bytes.i64()?)),
            _ => return Err(SketchDecodeError("unknown kind of axis")),
        };
        let sound = (GROWING_CELLS_MIN as u64..=AXIS_CELLS_MAX as u64).contains(&cells)
            && (1..=WIDTH_MAX).contains(&width)
            && width.count_ones() == 1;
        if !sound {
            return Err(SketchDecodeError("invalid cells of an axis"));
        }
        let growing = Growing {
            cells: cells as usize,
            width,
            used,
        };
        match used {
            Some((first, last)) if !growing.holds(first, last) => {
                Err(SketchDecodeError("an axis does not cover its values"))
            }
            _ => Ok(Axis::Growing(growing)),
        }
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

    fn cell(&self, value: i64) -> Option<usize> {
        let (first, _) = self.used?;
        let cell = value.div_euclid(self.width).checked_sub(first)?;
        usize::try_from(cell).ok().filter(|&cell| cell < self.cells)
    }

    /// Covers the current values and the given range, with cells of at least `width`.
    fn covering(&self, (least, greatest): (i64, i64), width: i64) -> Growing {
        let (low, high) = self.values().unwrap_or((least, greatest));
        let (low, high) = (low.min(least), high.max(greatest));
        let mut grown = Growing {
            width,
            ..self.clone()
        };
        loop {
            let (first, last) = (low.div_euclid(grown.width), high.div_euclid(grown.width));
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
