//! [`Content`]: the rows of a relation that one agent has inserted, so that they can be retracted
//! when the agent restarts or is forgotten.

use std::collections::HashMap;

use weir_model::{Batch, Nanos, Schema, Type, Value};
use weir_sink::relation;

/// Maximum number of distinct rows of an agent in one relation.
pub const ROWS_MAX: usize = 1 << 18;

/// Rows and their multiplicity.
#[derive(Clone, Default)]
pub struct Content {
    rows: HashMap<Vec<Value>, i64>,
    /// The instant of the last change, which may be in the future.
    changed: Option<Nanos>,
}

impl Content {
    /// Applies changes; false, without a change, if they exceed the maximum number of rows.
    pub fn apply(&mut self, batch: &Batch) -> bool {
        self.add(batch, 1);
        let fits = self.rows.len() <= ROWS_MAX;
        match fits {
            true => self.changed = self.changed.max(batch.ts.last().copied()),
            false => self.add(batch, -1),
        }
        fits
    }

    fn add(&mut self, batch: &Batch, sign: i64) {
        for row in 0..batch.len() {
            let values = batch.row(row);
            let count = self.rows.entry(values).or_default();
            *count = count.saturating_add(batch.weight(row).saturating_mul(sign));
            if *count == 0 {
                self.rows.remove(&batch.row(row));
            }
        }
    }

    /// A content of these rows, each with its multiplicity.
    pub fn new(rows: impl IntoIterator<Item = (Vec<Value>, i64)>) -> Content {
        Content {
            rows: rows.into_iter().collect(),
            changed: None,
        }
    }

    /// The rows and their multiplicity.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (&Vec<Value>, i64)> {
        self.rows.iter().map(|(row, count)| (row, *count))
    }

    /// Removes everything; returns the retractions of rows of `schema` at `at`, or at the last
    /// change if that is later.
    pub fn retract(&mut self, at: Nanos, schema: &Schema) -> Option<Batch> {
        let at = self.changed.map_or(at, |changed| changed.max(at));
        std::mem::take(self).changes(-1, at, schema)
    }

    /// The insertions of all rows, of `schema`, at `at`.
    pub fn bring(&self, at: Nanos, schema: &Schema) -> Option<Batch> {
        self.changes(1, at, schema)
    }

    fn changes(&self, sign: i64, at: Nanos, schema: &Schema) -> Option<Batch> {
        let types: Vec<Type> = schema.fields.iter().map(|field| field.ty).collect();
        let rows = self.rows().filter(|(_, count)| *count > 0);
        let changes = rows.map(|(row, count)| (&row[..], sign * count));
        let batch = relation::deltas(&types, at, changes);
        (!batch.is_empty()).then_some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::{Column, Field};

    #[test]
    fn what_was_brought_can_be_taken_away() {
        let columns = vec![Column::texts(["a", "b", "a"]), Column::ints(vec![1, 2, 1])];
        let fields = [("k", Type::Text), ("a", Type::Int)].map(|(n, ty)| Field::new(n, ty));
        let schema = Schema::new(fields.to_vec());
        let mut content = Content::default();
        assert!(content.apply(&Batch::deltas(vec![1, 2, 3], vec![2, 1, -1], columns)));
        let gone = content.retract(9, &schema).unwrap();
        let mut rows: Vec<_> = (0..gone.len())
            .map(|r| (gone.row(r), gone.weight(r)))
            .collect();
        rows.sort();
        let row = |name: &str, number: i64| vec![Value::text(name), Value::Int(number)];
        assert_eq!(rows, [(row("a", 1), -1), (row("b", 2), -1)]);
        assert_eq!(gone.ts[..], [9, 9]);
        assert!(content.retract(10, &schema).is_none());

        // The last message of an agent may be of a future instant.
        let columns = vec![Column::texts(["a"]), Column::ints(vec![1])];
        content.apply(&Batch::deltas(vec![20], vec![1], columns));
        let gone = content.retract(10, &schema).unwrap();
        assert_eq!(gone.ts[..], [20]);
    }

    #[test]
    fn changes_that_do_not_fit_are_not_taken_in() {
        let rows = |from: usize, upto: usize| {
            let values: Vec<i64> = (from as i64..upto as i64).collect();
            let count = values.len();
            Batch::deltas(vec![1; count], vec![1; count], vec![Column::ints(values)])
        };
        let mut content = Content::default();
        assert!(content.apply(&rows(0, ROWS_MAX - 1)));
        assert!(!content.apply(&rows(ROWS_MAX - 2, ROWS_MAX + 1)));
        assert_eq!(content.rows().len(), ROWS_MAX - 1);
        assert!(content.rows().all(|(_, count)| count == 1));
        assert!(content.apply(&rows(ROWS_MAX, ROWS_MAX + 1)));
    }
}
