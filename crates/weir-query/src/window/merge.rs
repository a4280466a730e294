//! Merges the rows that enter a window and those that leave it, by timestamp.

use weir_model::Batch;

use crate::synopsis::by_time;
use crate::synopsis::gather::{concat_batches, minus, take_of_two};

/// The rows that enter and the rows that leave, each in timestamp order, as deltas in timestamp
/// order. Within an instant, insertions are first.
pub(super) fn merge(entering: Vec<Batch>, leaving: Vec<Batch>) -> Vec<Batch> {
    let (come, go) = (rows(&entering), rows(&leaving));
    if go == 0 {
        return entering;
    }
    if come == 0 {
        let leave = |b: Batch| Batch {
            weights: Some(minus(b.len())),
            ..b
        };
        return leaving.into_iter().map(leave).collect();
    }
    let (entering, leaving) = (concat_batches(&entering), concat_batches(&leaving));
    let picks = by_time::merge(&entering.ts, &leaving.ts);
    let weight = |&pick: &u32| if (pick as usize) < come { 1 } else { -1 };
    let ts = |&pick: &u32| match (pick as usize).checked_sub(come) {
        None => entering.ts[pick as usize],
        Some(pick) => leaving.ts[pick],
    };
    let columns = entering.columns.iter().zip(&leaving.columns);
    vec![Batch {
        ts: picks.iter().map(ts).collect::<Vec<i64>>().into(),
        weights: Some(picks.iter().map(weight).collect::<Vec<i64>>().into()),
        columns: columns.map(|(c, g)| take_of_two(c, g, &picks)).collect(),
    }]
}

fn rows(batches: &[Batch]) -> usize {
    batches.iter().map(Batch::len).sum()
}
