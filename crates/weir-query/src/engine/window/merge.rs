//! What comes into a window and what leaves it, merged on time.

use weir_model::Batch;

use crate::engine::by_time;
use crate::engine::gather::{concat_batches, minus, take_of_two};

/// Rows that come and rows that go, each in time order, as deltas in time order. In one instant,
/// what comes is first.
pub(super) fn merge(coming: Vec<Batch>, going: Vec<Batch>) -> Vec<Batch> {
    let (come, go) = (rows(&coming), rows(&going));
    if go == 0 {
        return coming;
    }
    if come == 0 {
        let leave = |b: Batch| Batch {
            weights: Some(minus(b.len())),
            ..b
        };
        return going.into_iter().map(leave).collect();
    }
    let (coming, going) = (concat_batches(&coming), concat_batches(&going));
    let picks = by_time::merge(&coming.ts, &going.ts);
    let weight = |&pick: &u32| if (pick as usize) < come { 1 } else { -1 };
    let ts = |&pick: &u32| match (pick as usize).checked_sub(come) {
        None => coming.ts[pick as usize],
        Some(pick) => going.ts[pick],
    };
    let columns = coming.columns.iter().zip(&going.columns);
    vec![Batch {
        ts: picks.iter().map(ts).collect::<Vec<i64>>().into(),
        weights: Some(picks.iter().map(weight).collect::<Vec<i64>>().into()),
        columns: columns.map(|(c, g)| take_of_two(c, g, &picks)).collect(),
    }]
}

fn rows(batches: &[Batch]) -> usize {
    batches.iter().map(Batch::len).sum()
}
