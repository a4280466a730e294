//! The rows of one side in a step of a join: their keys packed, the inserted rows stored.

use arrow_buffer::ScalarBuffer;
use weir_model::{Batch, Column};

use super::side::NONE;
use super::{Join, JoinKind};
use crate::eval::{Rows, eval};
use crate::function::EvalError;
use crate::synopsis::gather::{take_batch, weights};
use crate::synopsis::keys::Keys;

/// Rows of one side.
pub(super) struct InputRows {
    /// When they are inserted or retracted.
    pub ts: ScalarBuffer<i64>,
    /// Their weights: positive when inserted, negative when retracted.
    pub weights: ScalarBuffer<i64>,
    /// Their values.
    pub columns: Vec<Column>,
    /// Their keys.
    pub keys: Keys,
    /// Which rows have a NULL in their key.
    is_null: Option<Vec<bool>>,
    /// Where the inserted rows are stored.
    pub slots: Vec<u32>,
    /// The rows' keys in the side's index, if it has one.
    pub row_keys: Option<Keys>,
}

impl InputRows {
    /// Whether row `row` has a NULL in its key.
    pub(super) fn is_null(&self, row: usize) -> bool {
        self.is_null.as_ref().is_some_and(|n| n[row])
    }
}

impl Join {
    /// Packs the keys of a side's rows, and stores the inserted rows.
    pub(super) fn store_input(&mut self, side: usize, rows: Batch) -> Result<InputRows, EvalError> {
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
        Ok(InputRows {
            weights: weights(&rows),
            keys: self.packer.pack(&keys, rows.len()),
            is_null,
            slots,
            row_keys: self.sides[side].row_keys(&rows),
            ts: rows.ts,
            columns: rows.columns,
        })
    }

    /// Stores the inserted rows. Retracted rows with a NULL in their key get a slot too: they are
    /// in no chain, but may have to be emitted.
    fn store(&mut self, side: usize, rows: &Batch, is_null: Option<&[bool]>) -> Vec<u32> {
        let fleeting = self.kind != JoinKind::NotIn;
        let is_stored = |&row: &u32| {
            rows.weight(row as usize) > 0 || fleeting && is_null.is_some_and(|n| n[row as usize])
        };
        if rows.weights.is_none() {
            return self.sides[side].store(&rows.columns, rows.len());
        }
        let stored: Vec<u32> = (0..rows.len() as u32).filter(is_stored).collect();
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
