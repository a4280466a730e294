//! [`Held`]: the current rows of a watched relation, from snapshots and changes.
//!
//! A monitor first sends a snapshot, and sends another one when the client was too slow for the
//! changes, or has reconnected. Sinks accept only changes, so a later snapshot is converted to its
//! difference from the rows that were emitted.

use std::collections::HashMap;

use weir_model::{Batch, Nanos, Type, Value};
use weir_sink::{Answer, relation};

/// The multiplicity of each row in a relation.
type Content = HashMap<Box<[Value]>, i64>;

/// The emitted rows of a relation, and a snapshot that is being received.
pub struct Held {
    types: Vec<Type>,
    rows: Content,
    /// The snapshot that is being received: the number of missing rows, and the relation.
    coming: Option<(u64, Content)>,
    /// The last instant that was emitted.
    shown: Nanos,
}

impl Held {
    /// An empty state of the relation that `answer` describes.
    pub fn new(answer: &Answer) -> Held {
        Held {
            types: answer.schema.fields.iter().map(|f| f.ty).collect(),
            rows: HashMap::new(),
            coming: None,
            shown: Nanos::MIN,
        }
    }

    /// Starts a snapshot of this number of rows.
    pub fn reset(&mut self, rows: u64) {
        self.coming = Some((rows, HashMap::new()));
    }

    /// Accepts rows received at or before `at`; returns the changes to emit, if any.
    pub fn take(&mut self, batch: Batch, at: Nanos) -> Option<Batch> {
        if let Some((left, rows)) = &mut self.coming {
            *left = left.saturating_sub(batch.len() as u64);
            add(rows, &batch);
            if *left > 0 {
                return None;
            }
            let (_, rows) = self.coming.take().expect("it was there");
            let before = std::mem::replace(&mut self.rows, rows);
            return self.difference(&before, at);
        }
        add(&mut self.rows, &batch);
        self.shown = batch
            .ts
            .last()
            .copied()
            .unwrap_or(self.shown)
            .max(self.shown);
        (!batch.is_empty()).then_some(batch)
    }

    /// The changes from `before` to the current content.
    fn difference(&mut self, before: &Content, at: Nanos) -> Option<Batch> {
        let went = before.iter().map(|(row, times)| {
            let now = self.rows.get(row).copied().unwrap_or(0);
            (row, now - times)
        });
        let came = self
            .rows
            .iter()
            .filter(|(row, _)| !before.contains_key(*row));
        let came = came.map(|(row, times)| (row, *times));
        let changes = went.chain(came).filter(|(_, weight)| *weight != 0);
        let shown = self.shown.max(at);
        let changes = changes.map(|(row, weight)| (&**row, weight));
        let batch = relation::deltas(&self.types, shown, changes);
        if batch.is_empty() {
            return None;
        }
        self.shown = shown;
        Some(batch)
    }
}

fn add(rows: &mut Content, batch: &Batch) {
    for i in 0..batch.len() {
        let row: Box<[Value]> = batch.row(i).into();
        let times = rows.entry(row).or_insert(0);
        *times += batch.weight(i);
        if *times == 0 {
            rows.remove(&*batch.row(i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use weir_model::{Column, Field, Schema, Shape};
    use weir_sink::Clock;

    fn held() -> Held {
        Held::new(&Answer {
            schema: Arc::new(Schema::new(vec![Field::new("n", Type::Int)])),
            shape: Shape::Relation,
            clock: Clock::Nanoseconds,
            order: vec![],
            raw: false,
        })
    }

    fn deltas(ts: i64, changes: &[(i64, i64)]) -> Batch {
        let values = changes.iter().map(|c| c.0).collect();
        let weights: Vec<i64> = changes.iter().map(|c| c.1).collect();
        Batch::deltas(vec![ts; changes.len()], weights, vec![Column::ints(values)])
    }

    fn told(batch: Option<Batch>) -> Vec<(i64, i64, i64)> {
        let batch = batch.unwrap_or(deltas(0, &[]));
        let row = |i: usize| match batch.row(i)[0] {
            Value::Int(n) => (batch.ts[i], n, batch.weight(i)),
            _ => panic!("a number"),
        };
        let mut rows: Vec<_> = (0..batch.len()).map(row).collect();
        rows.sort();
        rows
    }

    #[test]
    fn a_later_snapshot_is_shown_as_what_differs() {
        let mut held = held();
        held.reset(2);
        assert!(held.take(deltas(1, &[(1, 1)]), 5).is_none(), "half of it");
        assert_eq!(
            told(held.take(deltas(1, &[(2, 1)]), 5)),
            [(5, 1, 1), (5, 2, 1)]
        );
        assert_eq!(
            told(held.take(deltas(6, &[(2, -1), (3, 1)]), 6)),
            [(6, 2, -1), (6, 3, 1)]
        );
        held.reset(2);
        assert_eq!(
            told(held.take(deltas(7, &[(3, 2), (4, 1)]), 9)),
            [(9, 1, -1), (9, 3, 1), (9, 4, 1)]
        );
    }

    #[test]
    fn an_empty_snapshot_takes_everything_away() {
        let mut held = held();
        held.take(deltas(1, &[(1, 1)]), 1);
        held.reset(0);
        assert_eq!(told(held.take(deltas(2, &[]), 2)), [(2, 1, -1)]);
    }
}
