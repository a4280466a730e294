//! [`Relation`]: the current content of a relation, maintained from its deltas.

use std::cmp::Ordering;
use std::collections::HashMap;

use weir_model::{Batch, Column, Type, Value};

/// The largest memory of one relation's rows, in bytes.
pub const RELATION_BYTES_MAX: usize = 512 << 20;

/// The approximate overhead of the table per row.
const ROW_BYTES: usize = 64;

/// A multiset of rows.
#[derive(Debug)]
pub struct Relation {
    rows: HashMap<Box<[Value]>, i64>,
    bytes: usize,
    bytes_max: usize,
    left_out: i64,
    instant: i64,
}

impl Relation {
    /// An empty relation whose rows take at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Relation {
        Relation {
            rows: HashMap::new(),
            bytes: 0,
            bytes_max,
            left_out: 0,
            instant: 0,
        }
    }

    /// Applies deltas.
    pub fn apply(&mut self, batch: &Batch) {
        for i in 0..batch.len() {
            self.change(batch.row(i).into(), batch.weight(i));
            self.instant = batch.ts[i];
        }
    }

    fn change(&mut self, row: Box<[Value]>, weight: i64) {
        let bytes = bytes(&row);
        if let Some(times) = self.rows.get_mut(&row) {
            *times += weight;
            let rest = *times;
            if rest <= 0 {
                self.rows.remove(&row);
                self.bytes -= bytes;
                // More copies are retracted than are stored: the others had been omitted.
                self.left_out += rest;
            }
        } else if weight < 0 || self.bytes + bytes > self.bytes_max {
            self.left_out += weight;
        } else {
            self.bytes += bytes;
            self.rows.insert(row, weight);
        }
    }

    /// The number of rows omitted for lack of memory.
    pub fn left_out(&self) -> i64 {
        self.left_out
    }

    /// A remark for the reader.
    pub fn remarks(&self) -> Vec<String> {
        match self.left_out {
            0 => vec![],
            rows => vec![format!(
                "the answer has {rows} rows more than fit into {} MiB; group or limit it",
                self.bytes_max >> 20
            )],
        }
    }

    /// The instant of the last change.
    pub fn instant(&self) -> i64 {
        self.instant
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
        self.rows.iter().map(|(row, times)| (&**row, *times))
    }

    /// The first `count` distinct rows by `order`, with their counts.
    pub fn first(
        &self,
        count: usize,
        order: impl Fn(&[Value], &[Value]) -> Ordering,
    ) -> Vec<(&[Value], i64)> {
        let mut rows: Vec<(&[Value], i64)> = self.rows.iter().map(|(r, n)| (&**r, *n)).collect();
        if count < rows.len() {
            rows.select_nth_unstable_by(count, |a, b| order(a.0, b.0));
            rows.truncate(count);
        }
        rows.sort_unstable_by(|a, b| order(a.0, b.0));
        rows
    }
}

/// Insertions and retractions at `instant`, as deltas with columns of those types.
pub fn deltas<'r>(
    types: &[Type],
    instant: i64,
    changes: impl IntoIterator<Item = (&'r [Value], i64)>,
) -> Batch {
    let (rows, weights): (Vec<&[Value]>, Vec<i64>) = changes.into_iter().unzip();
    let column =
        |(i, ty): (usize, &Type)| Column::from_values(*ty, rows.iter().map(|row| row[i].clone()));
    let columns = types.iter().enumerate().map(column).collect();
    Batch::deltas(vec![instant; weights.len()], weights, columns)
}

fn bytes(row: &[Value]) -> usize {
    let heap = |value: &Value| match value {
        Value::Tally(tally) => size_of_val(&tally.0[..]),
        Value::Bytes(bytes) => bytes.len(),
        _ => 0,
    };
    ROW_BYTES + size_of_val(row) + row.iter().map(heap).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deltas(weights: &[i64], values: &[i64]) -> Batch {
        let ts: Vec<i64> = (1..=weights.len() as i64).collect();
        Batch::deltas(ts, weights.to_vec(), vec![Column::ints(values.to_vec())])
    }

    #[test]
    fn retracted_rows_are_removed() {
        let mut relation = Relation::new(1 << 20);
        relation.apply(&deltas(&[1, 2, 1, -1, -1], &[3, 1, 2, 3, 1]));
        let rows: Vec<(i64, String)> = relation
            .first(9, |a, b| a.cmp(b))
            .iter()
            .map(|(row, n)| (*n, row[0].to_string()))
            .collect();
        assert_eq!(rows, [(1, "1".into()), (1, "2".into())]);
        assert_eq!((relation.len(), relation.instant()), (2, 5));
        assert_eq!(relation.first(1, |a, b| b.cmp(a))[0].0[0], Value::Int(2));
    }

    #[test]
    fn omitted_rows_are_counted_until_retracted() {
        let one = bytes(&[Value::Int(0)]);
        let mut relation = Relation::new(one);
        relation.apply(&deltas(&[1, 2], &[1, 2]));
        assert_eq!((relation.len(), relation.left_out()), (1, 2));
        relation.apply(&deltas(&[-1, -2, 1], &[1, 2, 3]));
        assert_eq!((relation.len(), relation.left_out()), (1, 0));
    }
}
