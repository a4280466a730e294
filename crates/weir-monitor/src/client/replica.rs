//! [`Replica`]: the current rows of a watched relation, from snapshots and changes.
//!
//! A monitor first sends a snapshot, and sends another one when the client was too slow for the
//! changes, or has reconnected. Sinks accept only changes, so a later snapshot is converted to its
//! difference from the rows that were emitted.

use std::sync::Arc;

use weir_model::{Batch, Nanos, Schema};
use weir_sink::{RelationView, ResultSchema};

/// The emitted rows of a relation, and a snapshot that is being received.
pub struct Replica {
    schema: Arc<Schema>,
    view: RelationView,
    /// The snapshot that is being received: the number of missing rows, and the relation.
    snapshot: Option<(u64, RelationView)>,
}

impl Replica {
    /// An empty replica of the relation that `answer` describes.
    pub fn new(answer: &ResultSchema) -> Replica {
        Replica {
            schema: answer.schema.clone(),
            view: RelationView::default(),
            snapshot: None,
        }
    }

    /// Starts a snapshot of this number of rows.
    pub fn begin_snapshot(&mut self, rows: u64) {
        self.snapshot = Some((rows, RelationView::default()));
    }

    /// A diagnostic for the user if rows were omitted for lack of memory.
    pub fn remarks(&self) -> Vec<String> {
        self.view.remarks()
    }

    /// Applies rows received at or before `at`; returns the changes to emit, if any.
    pub fn apply(&mut self, batch: Batch, at: Nanos) -> Option<Batch> {
        let Some((missing, next)) = &mut self.snapshot else {
            self.view.apply(&batch);
            return (!batch.is_empty()).then_some(batch);
        };
        *missing = missing.saturating_sub(batch.len() as u64);
        next.apply(&batch);
        if *missing > 0 {
            return None;
        }
        let (_, next) = self.snapshot.take()?;
        self.view.replace(next, &self.schema, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::{Column, Field, Shape, Type, Value};
    use weir_sink::InstantUnit;

    fn replica() -> Replica {
        Replica::new(&ResultSchema {
            schema: Arc::new(Schema::new(vec![Field::new("n", Type::Int)])),
            shape: Shape::Relation,
            clock: InstantUnit::Nanoseconds,
            order: vec![],
            raw: false,
        })
    }

    fn deltas(ts: i64, rows: &[(i64, i64)]) -> Batch {
        let values = rows.iter().map(|r| r.0).collect();
        let weights: Vec<i64> = rows.iter().map(|r| r.1).collect();
        Batch::deltas(vec![ts; rows.len()], weights, vec![Column::ints(values)])
    }

    fn changes(batch: Option<Batch>) -> Vec<(i64, i64, i64)> {
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
    fn a_later_snapshot_is_converted_to_its_difference() {
        let mut replica = replica();
        replica.begin_snapshot(2);
        assert!(
            replica.apply(deltas(1, &[(1, 1)]), 5).is_none(),
            "half of it"
        );
        assert_eq!(
            changes(replica.apply(deltas(1, &[(2, 1)]), 5)),
            [(5, 1, 1), (5, 2, 1)]
        );
        assert_eq!(
            changes(replica.apply(deltas(6, &[(2, -1), (3, 1)]), 6)),
            [(6, 2, -1), (6, 3, 1)]
        );
        replica.begin_snapshot(2);
        assert_eq!(
            changes(replica.apply(deltas(7, &[(3, 2), (4, 1)]), 9)),
            [(9, 1, -1), (9, 3, 1), (9, 4, 1)]
        );
    }

    #[test]
    fn an_empty_snapshot_retracts_all_rows() {
        let mut replica = replica();
        replica.apply(deltas(1, &[(1, 1)]), 1);
        replica.begin_snapshot(0);
        assert_eq!(changes(replica.apply(deltas(2, &[]), 2)), [(2, 1, -1)]);
    }
}
