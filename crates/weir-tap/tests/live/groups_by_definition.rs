//! Groups by their definition: computed from rows, one by one, and the comparison with those that a
//! source has computed. Tests of other sources use it as well.

use std::collections::BTreeMap;

use weir_model::event::io_schema;
use weir_model::{Column, Fold, Folded, PartialKind, PartialState, Value};
use weir_sketch::LogLinear;

/// The accumulator of a group, in a form that can be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sum {
    Moments(u64, i128, i64, i64),
    Limits(Vec<u64>),
    Bins(BTreeMap<i32, (u64, u64)>),
}

/// Groups by the interval's end and the key.
pub type Groups = BTreeMap<(i64, Vec<String>), Vec<Sum>>;

pub fn column(name: &str) -> usize {
    io_schema().index(name)
}

/// The empty accumulator of `keep`.
pub fn nothing(keep: &PartialKind) -> Sum {
    match keep {
        PartialKind::Moments => Sum::Moments(0, 0, i64::MAX, i64::MIN),
        PartialKind::Limits(limits) => Sum::Limits(vec![0; limits.len() + 1]),
        PartialKind::LogLinear { .. } => Sum::Bins(BTreeMap::new()),
    }
}

/// Adds one value.
pub fn take(sum: &mut Sum, keep: &PartialKind, value: i64) {
    match (sum, keep) {
        (Sum::Moments(count, total, min, max), _) => {
            *count += 1;
            *total += i128::from(value);
            *min = (*min).min(value);
            *max = (*max).max(value);
        }
        (Sum::Limits(counts), PartialKind::Limits(limits)) => {
            counts[limits.partition_point(|limit| *limit < value)] += 1;
        }
        (Sum::Bins(bins), _) => {
            let mut one = LogLinear::<i64, 7>::default();
            one.add(value, 1);
            for (number, bucket) in one.buckets() {
                let bin = bins.entry(number).or_default();
                bin.0 += bucket.count as u64;
                bin.1 += bucket.offsets as u64;
            }
        }
        (sum, keep) => panic!("{sum:?} is not of {keep:?}"),
    }
}

/// Adds two accumulators of the same call.
pub fn add(sum: &mut Sum, more: &Sum) {
    match (sum, more) {
        (Sum::Moments(count, total, min, max), Sum::Moments(more, added, least, greatest)) => {
            *count += more;
            *total += added;
            *min = (*min).min(*least);
            *max = (*max).max(*greatest);
        }
        (Sum::Limits(counts), Sum::Limits(more)) => {
            assert_eq!(counts.len(), more.len());
            counts.iter_mut().zip(more).for_each(|(a, b)| *a += b);
        }
        (Sum::Bins(bins), Sum::Bins(more)) => {
            for (number, (count, offsets)) in more {
                let bin = bins.entry(*number).or_default();
                *bin = (bin.0 + count, bin.1 + offsets);
            }
        }
        (sum, more) => panic!("{sum:?} and {more:?}"),
    }
}

/// The groups of rows, by the definition.
pub fn of_rows(
    rows: impl Iterator<Item = impl AsRef<[Value]>>,
    fold: &Fold,
    passes: &dyn Fn(&[Value]) -> bool,
) -> Groups {
    let mut groups = Groups::new();
    let ts = column("ts");
    for row in rows {
        let row = row.as_ref();
        if !passes(row) {
            continue;
        }
        let Value::Int(ts) = row[ts] else {
            panic!("a row has a time");
        };
        let end = (ts + fold.interval - 1).div_euclid(fold.interval) * fold.interval;
        let key = fold.keys.iter().map(|at| row[*at].to_string()).collect();
        let sums = groups.entry((end, key));
        let sums = sums.or_insert_with(|| fold.calls.iter().map(|c| nothing(&c.keep)).collect());
        for (sum, call) in sums.iter_mut().zip(&fold.calls) {
            match call.column.map(|at| &row[at]) {
                None => {
                    let Sum::Moments(count, ..) = sum else {
                        panic!("rows are counted");
                    };
                    *count += 1;
                }
                Some(Value::Int(value)) => take(sum, &call.keep, *value),
                Some(value) => assert_eq!(*value, Value::Null),
            }
        }
    }
    groups
}

/// The groups that a tap delivered.
pub fn of_folded<'a>(rows: impl Iterator<Item = &'a Folded>, fold: &Fold) -> Groups {
    let mut groups = Groups::new();
    for folded in rows {
        assert_eq!(
            folded.end % fold.interval,
            0,
            "an interval ends at a multiple"
        );
        assert_eq!(folded.kept.len(), fold.calls.len());
        for at in 0..folded.kept[0].len() {
            let key = folded.keys.iter().map(|column| text_of(column, at));
            let sums = groups.entry((folded.end, key.collect()));
            let sums =
                sums.or_insert_with(|| fold.calls.iter().map(|c| nothing(&c.keep)).collect());
            for (i, sum) in sums.iter_mut().enumerate() {
                add(
                    sum,
                    &sum_of(&folded.kept[i][at], fold.calls[i].column.is_none()),
                );
            }
        }
    }
    groups
}

pub fn text_of(column: &Column, at: usize) -> String {
    column.value(at).to_string()
}

pub fn sum_of(kept: &PartialState, of_rows: bool) -> Sum {
    match kept {
        PartialState::Moments { count, .. } if of_rows || *count == 0 => {
            Sum::Moments(*count, 0, i64::MAX, i64::MIN)
        }
        PartialState::Moments {
            count,
            sum,
            min,
            max,
        } => Sum::Moments(*count, *sum, *min, *max),
        PartialState::Limits(counts) => Sum::Limits(counts.clone()),
        PartialState::LogLinear(bins) => {
            let bins = bins
                .iter()
                .map(|(n, count, offsets)| (*n, (*count, *offsets)));
            Sum::Bins(bins.collect())
        }
    }
}

pub fn merge(mut groups: Groups, more: Groups) -> Groups {
    for (key, sums) in more {
        match groups.get_mut(&key) {
            None => {
                groups.insert(key, sums);
            }
            Some(known) => known.iter_mut().zip(&sums).for_each(|(a, b)| add(a, b)),
        }
    }
    groups
}

pub fn rows_in(groups: &Groups) -> u64 {
    let count = |sums: &Vec<Sum>| match sums[0] {
        Sum::Moments(count, ..) => count,
        _ => panic!("the first call counts rows"),
    };
    groups.values().map(count).sum()
}
