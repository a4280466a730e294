//! The net delta of each instant: a row that is inserted and retracted at one instant is dropped.

use weir_model::{Batch, Schema, Type};

use crate::synopsis::gather::{take_batch, take_columns, weights, whole_instants};
use crate::synopsis::keys::{KeyPacker, Keys};

/// Cancels rows within each instant.
pub(super) struct Consolidate {
    packer: KeyPacker,
}

/// Up to this many rows of one instant are compared pair by pair; more are sorted.
const PAIRWISE_MAX: usize = 16;

impl Consolidate {
    /// For rows of this schema.
    pub(super) fn new(schema: &Schema) -> Consolidate {
        let types: Vec<Type> = schema.fields.iter().map(|f| f.ty).collect();
        Consolidate {
            packer: KeyPacker::new(&types),
        }
    }

    /// The deltas without those that cancel in an instant; no instant is in two batches.
    pub(super) fn net(&mut self, batches: &[Batch]) -> Vec<Batch> {
        if batches.iter().all(|b| b.weights.is_none()) {
            return whole_instants(batches);
        }
        let net = whole_instants(batches)
            .into_iter()
            .map(|batch| self.net_batch(batch));
        net.filter(|b| !b.is_empty()).collect()
    }

    fn net_batch(&mut self, batch: Batch) -> Batch {
        let Some(signs) = &batch.weights else {
            return batch;
        };
        let mut instants = mixed_instants(&batch.ts, signs);
        if instants.is_empty() {
            return batch;
        }
        let rows: Vec<u32> = instants
            .iter()
            .flat_map(|&(start, end)| start..end)
            .collect();
        let keys = self
            .packer
            .pack(&take_columns(&batch.columns, &rows), rows.len());
        let mut left = weights(&batch).to_vec();
        let mut packed = 0;
        let mut cancelled = false;
        for (start, end) in instants.drain(..) {
            let rows = (end - start) as usize;
            let here = &mut left[start as usize..end as usize];
            cancelled |= match rows {
                ..=PAIRWISE_MAX => cancel_pairs(&keys, packed, here),
                _ => cancel_sorted(&keys, packed, here),
            };
            packed += rows;
        }
        if !cancelled {
            return batch;
        }
        let kept: Vec<u32> = (0..batch.len() as u32)
            .filter(|&row| left[row as usize] != 0)
            .collect();
        let weights: Vec<i64> = left.into_iter().filter(|&w| w != 0).collect();
        Batch {
            weights: Some(weights.into()),
            ..take_batch(
                &Batch {
                    weights: None,
                    ..batch
                },
                &kept,
            )
        }
    }

    /// Approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.packer.bytes()
    }
}

/// The row ranges of the instants with both insertions and retractions.
fn mixed_instants(ts: &[i64], weights: &[i64]) -> Vec<(u32, u32)> {
    let mut instants = Vec::new();
    let mut start = 0;
    while start < ts.len() {
        let mut end = start + 1;
        let mut mixed = false;
        while end < ts.len() && ts[end] == ts[start] {
            mixed |= (weights[end] > 0) != (weights[start] > 0);
            end += 1;
        }
        if mixed {
            instants.push((start as u32, end as u32));
        }
        start = end;
    }
    instants
}

/// Cancels equal rows of one instant, whose keys start at `first`; true when any did.
fn cancel_pairs(keys: &Keys, first: usize, weights: &mut [i64]) -> bool {
    let mut cancelled = false;
    for b in 1..weights.len() {
        for a in 0..b {
            let opposite =
                (weights[a] > 0) != (weights[b] > 0) && weights[a] != 0 && weights[b] != 0;
            if opposite && keys.same(first + a, first + b) {
                let both = weights[a].abs().min(weights[b].abs());
                weights[a] -= both * weights[a].signum();
                weights[b] -= both * weights[b].signum();
                cancelled = true;
            }
        }
    }
    cancelled
}

/// As [`cancel_pairs`], for many rows.
fn cancel_sorted(keys: &Keys, first: usize, weights: &mut [i64]) -> bool {
    let mut rows: Vec<usize> = (0..weights.len()).collect();
    rows.sort_by(|&a, &b| keys.row(first + a).cmp(keys.row(first + b)));
    let mut cancelled = false;
    for equal in rows.chunk_by(|&a, &b| keys.row(first + a) == keys.row(first + b)) {
        let plus: i64 = equal.iter().map(|&row| weights[row].max(0)).sum();
        let minus: i64 = equal.iter().map(|&row| weights[row].min(0)).sum();
        if plus == 0 || minus == 0 {
            continue;
        }
        for &row in equal {
            weights[row] = 0;
        }
        weights[equal[0]] = plus + minus;
        cancelled = true;
    }
    cancelled
}
