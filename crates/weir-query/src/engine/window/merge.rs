//! What comes into a window and what leaves it, merged on time.

use weir_model::Batch;

use crate::engine::gather::{concat_batches, minus, plus, take_columns};

/// Rows that come and rows that go, each in time order, as deltas in time order. In one instant, what comes is first.
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
    let all = concat_batches(&[coming, going].concat());
    if all.ts[come - 1] <= all.ts[come] {
        let weights = [&plus(come)[..], &minus(go)[..]].concat();
        return vec![Batch {
            weights: Some(weights.into()),
            ..all
        }];
    }
    let (plus_ts, minus_ts) = all.ts.split_at(come);
    let mut ts = Vec::with_capacity(come + go);
    let mut weights = Vec::with_capacity(come + go);
    let mut picks: Vec<u32> = Vec::with_capacity(come + go);
    let (mut p, mut m) = (0, 0);
    while p < come || m < go {
        let first = m == go || (p < come && plus_ts[p] <= minus_ts[m]);
        if first {
            ts.push(plus_ts[p]);
            weights.push(1);
            picks.push(p as u32);
            p += 1;
        } else {
            ts.push(minus_ts[m]);
            weights.push(-1);
            picks.push((come + m) as u32);
            m += 1;
        }
    }
    let columns = take_columns(&all.columns, &picks);
    vec![Batch {
        ts: ts.into(),
        weights: Some(weights.into()),
        columns,
    }]
}

fn rows(batches: &[Batch]) -> usize {
    batches.iter().map(Batch::len).sum()
}
