//! The rows of one side that take part in a step of a join: their keys packed, and stored where
//! they come.

use arrow_buffer::ScalarBuffer;
use weir_model::{Batch, Column};

use super::side::NONE;
use super::{Join, JoinKind};
use crate::engine::eval::{Rows, eval};
use crate::engine::gather::{take_batch, weights};
use crate::engine::keys::Keys;
use crate::function::EvalError;

/// Rows of one side. Where they go in the order in which they came, those that go are not among
/// them: the side knows which they are.
pub(super) struct Arrivals {
    /// The position here of each row of the batch, [`NONE`] for those that are not; without, all
    /// are.
    positions: Option<Vec<u32>>,
    /// The weights of all rows of the batch.
    pub weights: ScalarBuffer<i64>,
    /// The rows' values.
    pub columns: Vec<Column>,
    /// Their keys.
    pub keys: Keys,
    /// Which have a NULL in their key.
    is_null: Option<Vec<bool>>,
    /// Where those that come are stored.
    pub slots: Vec<u32>,
    /// The rows' keys in the side's index, if it has one.
    pub row_keys: Option<Keys>,
}

impl Arrivals {
    /// The position here of row `row` of the batch.
    pub(super) fn at(&self, row: usize) -> Option<usize> {
        match &self.positions {
            None => Some(row),
            Some(positions) => Some(positions[row] as usize).filter(|_| positions[row] != NONE),
        }
    }

    /// Whether the row at a position has a NULL in its key.
    pub(super) fn is_null(&self, at: usize) -> bool {
        self.is_null.as_ref().is_some_and(|n| n[at])
    }
}

impl Join {
    /// Packs the keys of a side's rows, and stores the rows that come.
    pub(super) fn arrive(&mut self, side: usize, batch: &Batch) -> Result<Arrivals, EvalError> {
        let all_weights = weights(batch);
        let leave = self.sides[side].goes_in_order && all_weights.iter().any(|&w| w < 0);
        let mut positions = None;
        let mut rows = batch.clone();
        if leave {
            let coming = (0..batch.len() as u32).filter(|&row| all_weights[row as usize] > 0);
            let coming: Vec<u32> = coming.collect();
            let mut at = vec![NONE; batch.len()];
            (0..)
                .zip(&coming)
                .for_each(|(position, &row)| at[row as usize] = position);
            positions = Some(at);
            rows = take_batch(batch, &coming);
        }
        let view = Rows {
            columns: &rows.columns,
            len: rows.len(),
        };
        let keys = self.on[side]
            .iter()
            .map(|k| eval(k, view))
            .collect::<Result<Vec<_>, _>>()?;
        let is_null = any_null(&keys, rows.len());
        let slots = self.store(side, &rows, is_null.as_deref());
        Ok(Arrivals {
            positions,
            weights: all_weights,
            keys: self.packer.pack(&keys, rows.len()),
            is_null,
            slots,
            row_keys: self.sides[side].row_keys(&rows),
            columns: rows.columns,
        })
    }

    /// Stores the rows that come. Of those that go, the ones with a NULL in their key get a slot
    /// too: they are in no chain to be found there, and yet may have to be shown.
    fn store(&mut self, side: usize, rows: &Batch, is_null: Option<&[bool]>) -> Vec<u32> {
        let fleeting = self.kind != JoinKind::NotIn;
        let is_stored = |&row: &u32| {
            rows.weight(row as usize) > 0 || fleeting && is_null.is_some_and(|n| n[row as usize])
        };
        let stored: Vec<u32> = (0..rows.len() as u32).filter(is_stored).collect();
        if stored.len() == rows.len() {
            return self.sides[side].store(&rows.columns, rows.len());
        }
        let mut slots = vec![NONE; rows.len()];
        let columns = take_batch(rows, &stored).columns;
        let places = self.sides[side].store(&columns, stored.len());
        stored
            .iter()
            .zip(places)
            .for_each(|(&row, slot)| slots[row as usize] = slot);
        slots
    }
}

/// Which of `len` rows have a NULL among these columns; `None` when none has.
fn any_null(columns: &[Column], len: usize) -> Option<Vec<bool>> {
    let may = |c: &&Column| {
        matches!(c, Column::Nulls(_) | Column::Tally(_))
            || c.nulls().is_some_and(|n| n.null_count() > 0)
    };
    let columns: Vec<&Column> = columns.iter().filter(may).collect();
    let is_null = |row| columns.iter().any(|c| c.is_null(row));
    (!columns.is_empty()).then(|| (0..len).map(is_null).collect())
}
