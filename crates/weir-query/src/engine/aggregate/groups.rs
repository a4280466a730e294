//! Groups as a source folded them, as an aggregation takes them; and [`Pane`], what an interval had,
//! where a window spans several.

use std::borrow::Cow;

use weir_model::{Column, Folded, Kept, Value};

use crate::engine::eval::{Rows, eval};
use crate::engine::gather::{column_bytes, take};
use crate::function::EvalError;
use crate::physical::{Of, Reading};

/// Those of a source's groups that an aggregation takes.
pub(super) struct Wanted<'a> {
    reading: &'a Reading,
    /// Their numbers.
    pub picked: Vec<u32>,
    /// The aggregation's keys of each.
    pub keys: Vec<Column>,
    /// Of each call that chooses, what it chooses for each.
    choices: Vec<Option<Column>>,
}

impl<'a> Wanted<'a> {
    /// The groups that have rows and pass the selections.
    ///
    /// # Errors
    /// When a selection or a key cannot be computed.
    pub(super) fn of(reading: &'a Reading, folded: &Folded) -> Result<Wanted<'a>, EvalError> {
        let counts = folded.kept.first().map_or(&[][..], Vec::as_slice);
        let has_rows = |kept: &Kept| !matches!(kept, Kept::Moments { count: 0, .. });
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
            let choice = call.choice.as_ref();
            choice.map(|choice| eval(choice, rows)).transpose()
        });
        Ok(Wanted {
            reading,
            keys: keys.collect::<Result<_, _>>()?,
            choices: choices.collect::<Result<_, _>>()?,
            picked,
        })
    }

    /// How many requests each of them stands for.
    pub(super) fn requests<'f>(&'f self, folded: &'f Folded) -> impl Iterator<Item = u64> + 'f {
        let counts = folded.kept.first().map_or(&[][..], Vec::as_slice);
        self.picked
            .iter()
            .map(|&group| match &counts[group as usize] {
                Kept::Moments { count, .. } => *count,
                _ => 0,
            })
    }

    /// What the group in `row` has for call number `call`.
    pub(super) fn kept<'f>(&self, folded: &'f Folded, call: usize, row: usize) -> Cow<'f, Kept> {
        let chosen = match self.choices[call].as_ref().map(|choice| choice.value(row)) {
            Some(Value::Int(number)) => number as usize,
            _ => 0,
        };
        let group = self.picked[row] as usize;
        match &self.reading.calls[call].of[chosen] {
            Of::Kept(at) => Cow::Borrowed(&folded.kept[*at][group]),
            Of::Constant(value) => Cow::Owned(repeated(*value, &folded.kept[0][group])),
        }
    }
}

/// What is kept of a constant for each of the rows that were counted.
fn repeated(constant: Option<i64>, rows: &Kept) -> Kept {
    let count = match (constant, rows) {
        (Some(_), Kept::Moments { count, .. }) => *count,
        _ => 0,
    };
    let value = constant.unwrap_or(0);
    Kept::Moments {
        count,
        sum: i128::from(value) * i128::from(count),
        min: value,
        max: value,
    }
}

/// The source's columns of some groups: what tells them apart, and NULL.
fn columns(reading: &Reading, folded: &Folded, picked: &[u32]) -> Vec<Column> {
    let mut columns = vec![Column::Nulls(picked.len()); reading.width];
    for (&at, key) in reading.columns.iter().zip(&folded.keys) {
        columns[at] = take(key, picked);
    }
    columns
}

fn rows(columns: &[Column], len: usize) -> Rows<'_> {
    Rows { columns, len }
}

/// What an interval had, where a window spans several or another engine merges it.
pub(super) struct Pane {
    /// Its end.
    pub end: i64,
    /// How many groups there were.
    pub len: usize,
    /// The groups' keys.
    pub keys: Vec<Column>,
    /// By state, the groups' partials.
    pub partials: Vec<Column>,
    /// How many requests each is made of, where that was counted.
    pub requests: Option<Column>,
}

impl Pane {
    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        self.keys
            .iter()
            .chain(&self.partials)
            .map(column_bytes)
            .sum()
    }
}
