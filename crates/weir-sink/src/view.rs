//! [`RelationView`]: the current rows of a relation, maintained from its changes in bounded memory.
//!
//! A publisher applies the changes of each instant to a view and publishes them to
//! [`Subscribers`](crate::Subscribers): a new reader receives a snapshot, then changes; a slow one
//! skips to the current snapshot.
//! `Publisher` in `weir-monitor` is a publisher with all of it.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::RandomState;
use weir_model::{Batch, Column, Nanos, Schema, Value};

/// The default of the largest memory of one view's rows, in bytes.
pub const VIEW_BYTES_MAX: usize = 512 << 20;

/// The approximate overhead of the table per row.
const ROW_BYTES: usize = 64;

/// A multiset of rows. Rows that exceed its memory are omitted and counted.
#[derive(Clone, Debug)]
pub struct RelationView {
    rows: HashMap<Box<[Value]>, i64, RandomState>,
    bytes: usize,
    bytes_max: usize,
    omitted: i64,
    instant: Nanos,
}

impl Default for RelationView {
    fn default() -> RelationView {
        RelationView::new(VIEW_BYTES_MAX)
    }
}

impl FromIterator<(Vec<Value>, i64)> for RelationView {
    fn from_iter<I: IntoIterator<Item = (Vec<Value>, i64)>>(rows: I) -> RelationView {
        let mut view = RelationView::default();
        for (row, weight) in rows {
            view.change(row.into(), weight, view.bytes_max);
        }
        view
    }
}

impl RelationView {
    /// An empty relation whose rows take at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> RelationView {
        RelationView {
            rows: HashMap::default(),
            bytes: 0,
            bytes_max,
            omitted: 0,
            instant: Nanos::MIN,
        }
    }

    /// Applies changes in timestamp order. Retractions of absent rows are dropped.
    pub fn apply(&mut self, batch: &Batch) {
        for row in 0..batch.len() {
            self.change(batch.row(row).into(), batch.weight(row), self.bytes_max);
        }
        self.advance(batch);
    }

    /// Applies the opposite of changes, the last one first: the content before them. Retractions
    /// that were dropped must not be among them.
    pub fn undo(&mut self, batch: &Batch) {
        for row in (0..batch.len()).rev() {
            self.change(batch.row(row).into(), -batch.weight(row), usize::MAX);
        }
    }

    /// Applies changes if there are then at most `rows_max` distinct rows, which fit in memory;
    /// otherwise returns false and changes nothing.
    pub fn try_apply(&mut self, batch: &Batch, rows_max: usize) -> bool {
        let omitted = self.omitted;
        let applied: Vec<i64> = (0..batch.len())
            .map(|row| self.change(batch.row(row).into(), batch.weight(row), usize::MAX))
            .collect();
        let fits = self.rows.len() <= rows_max && self.bytes <= self.bytes_max;
        if fits {
            self.advance(batch);
        } else {
            for row in (0..batch.len()).rev() {
                self.change(batch.row(row).into(), -applied[row], usize::MAX);
            }
            self.omitted = omitted;
        }
        fits
    }

    /// Adds copies of a row; returns how many were added, or removed if negative.
    fn change(&mut self, row: Box<[Value]>, weight: i64, bytes_max: usize) -> i64 {
        let bytes = bytes(&row);
        match self.rows.entry(row) {
            Entry::Occupied(mut stored) => {
                let before = *stored.get();
                let after = before.saturating_add(weight);
                if after > 0 {
                    *stored.get_mut() = after;
                    return after - before;
                }
                stored.remove();
                self.bytes -= bytes;
                // More copies are retracted than are stored: the others had been omitted.
                self.omitted = self.omitted.saturating_add(after);
                -before
            }
            Entry::Vacant(place) if weight > 0 && self.bytes.saturating_add(bytes) <= bytes_max => {
                place.insert(weight);
                self.bytes += bytes;
                weight
            }
            Entry::Vacant(_) => {
                self.omitted = self.omitted.saturating_add(weight);
                0
            }
        }
    }

    fn advance(&mut self, batch: &Batch) {
        if let Some(last) = batch.ts.last() {
            self.instant = self.instant.max(*last);
        }
    }

    /// Replaces all rows by those of `next`; returns the difference at `at`, or at the last change
    /// if that is later. `None` if the rows are equal.
    pub fn replace(&mut self, next: RelationView, schema: &Schema, at: Nanos) -> Option<Batch> {
        let before = std::mem::replace(&mut self.rows, next.rows);
        (self.bytes, self.omitted) = (next.bytes, next.omitted);
        let at = at.max(self.instant);
        let removed_or_changed = before.iter().map(|(row, count)| {
            let now = self.rows.get(row).copied().unwrap_or(0);
            (&**row, now - count)
        });
        let added = self.rows().filter(|(row, _)| !before.contains_key(*row));
        let changes = removed_or_changed.chain(added);
        let difference = deltas(schema, at, changes.filter(|(_, weight)| *weight != 0));
        if difference.is_empty() {
            return None;
        }
        self.instant = at;
        Some(difference)
    }

    /// Removes all rows; returns their retractions as [`RelationView::replace`].
    pub fn clear(&mut self, schema: &Schema, at: Nanos) -> Option<Batch> {
        self.replace(RelationView::default(), schema, at)
    }

    /// All rows as insertions at `at`, with the columns of `schema`, in no order.
    pub fn snapshot(&self, schema: &Schema, at: Nanos) -> Batch {
        deltas(schema, at, self.rows())
    }

    /// All rows at `at` as those of a stream, copies one by one, in no order.
    pub fn stream_rows(&self, schema: &Schema, at: Nanos) -> Batch {
        let copies = |(row, count): (_, i64)| std::iter::repeat_n((row, 1), count as usize);
        let rows = deltas(schema, at, self.rows().flat_map(copies));
        Batch {
            weights: None,
            ..rows
        }
    }

    /// The number of rows omitted for lack of memory.
    pub fn omitted(&self) -> i64 {
        self.omitted
    }

    /// A diagnostic for the user if rows were omitted.
    pub fn remarks(&self) -> Vec<String> {
        match self.omitted {
            0 => vec![],
            rows => vec![format!(
                "{rows} rows of the result exceed the limit of {} MiB; group or limit it",
                self.bytes_max >> 20
            )],
        }
    }

    /// The instant of the last change.
    pub fn instant(&self) -> Nanos {
        self.instant
    }

    /// The approximate memory of the rows, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of rows, counting copies.
    pub fn len(&self) -> i64 {
        self.rows.values().sum()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The distinct rows with their counts, in no order.
    pub fn rows(&self) -> impl Iterator<Item = (&[Value], i64)> {
        self.rows.iter().map(|(row, count)| (&**row, *count))
    }

    /// The first `count` distinct rows by `order`, with their counts.
    pub fn first(
        &self,
        count: usize,
        order: impl Fn(&[Value], &[Value]) -> Ordering,
    ) -> Vec<(&[Value], i64)> {
        let mut rows: Vec<(&[Value], i64)> = self.rows().collect();
        if count < rows.len() {
            rows.select_nth_unstable_by(count, |a, b| order(a.0, b.0));
            rows.truncate(count);
        }
        rows.sort_unstable_by(|a, b| order(a.0, b.0));
        rows
    }
}

/// Rows and their weights as deltas at `instant` with the columns of `schema`.
pub fn deltas<'r>(
    schema: &Schema,
    instant: Nanos,
    changes: impl IntoIterator<Item = (&'r [Value], i64)>,
) -> Batch {
    let (rows, weights): (Vec<&[Value]>, Vec<i64>) = changes.into_iter().unzip();
    let fields = schema.fields.iter().enumerate();
    let columns = fields
        .map(|(i, field)| Column::from_values(field.ty, rows.iter().map(|row| row[i].clone())));
    Batch::deltas(vec![instant; weights.len()], weights, columns.collect())
}

/// Deltas with the columns of `schema` as one batch.
pub fn joined(schema: &Schema, batches: &[Batch]) -> Batch {
    let values = |column: usize| {
        let columns = batches.iter().map(move |batch| &batch.columns[column]);
        columns.flat_map(|column| (0..column.len()).map(|row| column.value(row)))
    };
    let fields = schema.fields.iter().enumerate();
    let columns = fields.map(|(i, field)| Column::from_values(field.ty, values(i)));
    let ts: Vec<Nanos> = batches.iter().flat_map(|b| b.ts.iter().copied()).collect();
    let weights = batches.iter();
    let weights = weights.flat_map(|b| (0..b.len()).map(|row| b.weight(row)));
    Batch::deltas(ts, weights.collect::<Vec<i64>>(), columns.collect())
}

fn bytes(row: &[Value]) -> usize {
    let heap = |value: &Value| match value {
        Value::Tally(tally) => size_of_val(&tally.0[..]),
        Value::Bytes(bytes) => bytes.len(),
        _ => 0,
    };
    ROW_BYTES + size_of_val(row) + row.iter().map(heap).sum::<usize>()
}
