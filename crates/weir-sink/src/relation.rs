//! [`Relation`]: what a relation holds now, kept up to date from its deltas.

use std::cmp::Ordering;
use std::collections::HashMap;

use weir_model::{Batch, Column, Type, Value};

/// Most bytes that one relation's rows may take.
pub const RELATION_BYTES_MAX: usize = 512 << 20;

/// What the table itself takes for each row, roughly.
const ROW_BYTES: usize = 64;

/// A bag of rows: how often each one is there.
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

    /// Takes deltas.
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
                // More went than is held: the surplus had been left out.
                self.left_out += rest;
            }
        } else if weight < 0 || self.bytes + bytes > self.bytes_max {
            self.left_out += weight;
        } else {
            self.bytes += bytes;
            self.rows.insert(row, weight);
        }
    }

    /// How many rows there were no room for.
    pub fn left_out(&self) -> i64 {
        self.left_out
    }

    /// What a reader of it should know.
    pub fn remarks(&self) -> Vec<String> {
        match self.left_out {
            0 => vec![],
            rows => vec![format!(
                "the answer has {rows} rows more than fit into {} MiB; group or limit it",
                self.bytes_max >> 20
            )],
        }
    }

    /// When it last changed.
    pub fn instant(&self) -> i64 {
        self.instant
    }

    /// How many rows it holds, each as often as it is there.
    pub fn len(&self) -> i64 {
        self.rows.values().sum()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The different rows, with how often each is there, in no order.
    pub fn rows(&self) -> impl Iterator<Item = (&[Value], i64)> {
        self.rows.iter().map(|(row, times)| (&**row, *times))
    }

    /// The first `count` different rows by `order`, with how often each is there.
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

/// How often rows came or went at `instant`, as deltas of columns of those types.
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
    fn rows_that_went_are_gone() {
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
    fn what_does_not_fit_is_counted_until_it_goes() {
        let one = bytes(&[Value::Int(0)]);
        let mut relation = Relation::new(one);
        relation.apply(&deltas(&[1, 2], &[1, 2]));
        assert_eq!((relation.len(), relation.left_out()), (1, 2));
        relation.apply(&deltas(&[-1, -2, 1], &[1, 2, 3]));
        assert_eq!((relation.len(), relation.left_out()), (1, 0));
    }
}
