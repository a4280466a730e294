//! Groups that a source has pre-aggregated, as an aggregation reads them; and [`Pane`], the
//! partials of one interval, where a window spans several.

use std::borrow::Cow;

use weir_model::{Column, Folded, PartialState, Value};

use crate::eval::{Rows, eval};
use crate::function::EvalError;
use crate::physical::{FoldArgument, FoldedInput, ValueLocation};
use crate::synopsis::gather::{column_bytes, take};

/// The groups of a source that an aggregation reads.
pub(super) struct SelectedGroups<'a> {
    reading: &'a FoldedInput,
    /// Their indexes among the source's groups.
    pub picked: Vec<u32>,
    /// The aggregation's keys of each group.
    pub keys: Vec<Column>,
    /// For each call with alternatives, the index of the one that applies to each group.
    choices: Vec<Option<Column>>,
}

impl<'a> SelectedGroups<'a> {
    /// The groups that have rows and pass the selections.
    ///
    /// # Errors
    /// When a selection or a key cannot be computed.
    pub(super) fn of(
        reading: &'a FoldedInput,
        folded: &Folded,
    ) -> Result<SelectedGroups<'a>, EvalError> {
        let counts = folded.kept.first().map_or(&[][..], Vec::as_slice);
        let has_rows =
            |kept: &PartialState| !matches!(kept, PartialState::Moments { count: 0, .. });
        let mut picked: Vec<u32> = (0..)
            .zip(counts)
            .filter_map(|(group, kept)| has_rows(kept).then_some(group))
            .collect();
        for filter in &reading.filters {
            let columns = columns(reading, folded, &picked);
            let passes = eval(filter, rows(&columns, picked.len()))?;
            let passing = (0..picked.len()).filter(|&row| passes.value(row) == Value::Bool(true));
            picked = passing.map(|row| picked[row]).collect();
        }
        let columns = columns(reading, folded, &picked);
        let rows = rows(&columns, picked.len());
        let keys = reading.keys.iter().map(|key| eval(key, rows));
        let choices = reading.calls.iter().map(|call| {
            let choice = match call {
                ValueLocation::Chosen { choice, .. } => choice.as_ref(),
                ValueLocation::Ranges { .. } => None,
            };
            choice.map(|choice| eval(choice, rows)).transpose()
        });
        Ok(SelectedGroups {
            reading,
            keys: keys.collect::<Result<_, _>>()?,
            choices: choices.collect::<Result<_, _>>()?,
            picked,
        })
    }

    /// How many requests each group stands for.
    pub(super) fn requests<'f>(&'f self, folded: &'f Folded) -> impl Iterator<Item = u64> + 'f {
        let counts = folded.kept.first().map_or(&[][..], Vec::as_slice);
        self.picked
            .iter()
            .map(|&group| match &counts[group as usize] {
                PartialState::Moments { count, .. } => *count,
                _ => 0,
            })
    }

    /// The partial of call number `call` for the group in `row`.
    pub(super) fn kept<'f>(
        &self,
        folded: &'f Folded,
        call: usize,
        row: usize,
    ) -> Cow<'f, PartialState> {
        let group = self.picked[row] as usize;
        let rows = &folded.kept[0][group];
        let of = match &self.reading.calls[call] {
            ValueLocation::Chosen { of, .. } => of,
            ValueLocation::Ranges { counts, constants } => {
                return Cow::Owned(by_range(constants, &folded.kept[*counts][group], rows));
            }
        };
        let chosen = match self.choices[call].as_ref().map(|choice| choice.value(row)) {
            Some(Value::Int(number)) => number as usize,
            _ => 0,
        };
        match &of[chosen] {
            FoldArgument::Values(at) => Cow::Borrowed(&folded.kept[*at][group]),
            FoldArgument::Constant(value) => Cow::Owned(repeated(*value, rows)),
        }
    }
}

/// The partial of a constant for each range of values, and the last one for the rows without a
/// value.
fn by_range(constants: &[Option<i64>], counts: &PartialState, rows: &PartialState) -> PartialState {
    let (PartialState::Limits(counts), PartialState::Moments { count: all, .. }) = (counts, rows)
    else {
        return repeated(None, rows);
    };
    let without = all.saturating_sub(counts.iter().sum());
    let mut of_all = (0u64, 0i128, i64::MAX, i64::MIN);
    for (constant, more) in constants.iter().zip(counts.iter().chain([&without])) {
        if let (Some(value), 1..) = (constant, more) {
            let (count, sum, min, max) = of_all;
            let added = i128::from(*value) * i128::from(*more);
            of_all = (count + more, sum + added, min.min(*value), max.max(*value));
        }
    }
    let (count, sum, min, max) = of_all;
    PartialState::Moments {
        count,
        sum,
        min,
        max,
    }
}

/// The partial of a constant over the counted rows.
fn repeated(constant: Option<i64>, rows: &PartialState) -> PartialState {
    let count = match (constant, rows) {
        (Some(_), PartialState::Moments { count, .. }) => *count,
        _ => 0,
    };
    let value = constant.unwrap_or(0);
    PartialState::Moments {
        count,
        sum: i128::from(value) * i128::from(count),
        min: value,
        max: value,
    }
}

/// The source's columns of some groups: the grouping columns have values, the others are NULL.
fn columns(reading: &FoldedInput, folded: &Folded, picked: &[u32]) -> Vec<Column> {
    let mut columns = vec![Column::Nulls(picked.len()); reading.width];
    for (&at, key) in reading.columns.iter().zip(&folded.keys) {
        columns[at] = take(key, picked);
    }
    columns
}

fn rows(columns: &[Column], len: usize) -> Rows<'_> {
    Rows { columns, len }
}

/// The partials of one interval, where a window spans several or another engine merges them.
pub(super) struct Pane {
    /// The end of the interval.
    pub end: i64,
    /// The number of groups.
    pub len: usize,
    /// The groups' keys.
    pub keys: Vec<Column>,
    /// The groups' partials, by state.
    pub partials: Vec<Column>,
    /// How many requests each group is made of, where that was counted.
    pub requests: Option<Column>,
}

impl Pane {
    /// Approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.keys
            .iter()
            .chain(&self.partials)
            .map(column_bytes)
            .sum()
    }
}
