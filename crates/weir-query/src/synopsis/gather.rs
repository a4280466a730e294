//! Selecting rows of batches, concatenating them and measuring their size: operators build their
//! results with these, a column at a time.

use std::sync::OnceLock;

use arrow_array::{Array, BooleanArray, Float64Array, Int64Array, UInt32Array};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, BooleanBufferBuilder, NullBuffer, NullBufferBuilder,
    ScalarBuffer,
};
use weir_model::{Batch, Column, TallyArray};

/// Longest run of equal weights that is kept for reuse.
const WEIGHTS_READY: usize = 1 << 16;

/// `len` weights of +1.
pub(crate) fn plus(len: usize) -> ScalarBuffer<i64> {
    static READY: OnceLock<ScalarBuffer<i64>> = OnceLock::new();
    repeated(&READY, 1, len)
}

/// `len` weights of -1.
pub(crate) fn minus(len: usize) -> ScalarBuffer<i64> {
    static READY: OnceLock<ScalarBuffer<i64>> = OnceLock::new();
    repeated(&READY, -1, len)
}

/// Alternating weights of -1 and +1, `pairs` of each.
pub(crate) fn minus_plus(pairs: usize) -> ScalarBuffer<i64> {
    static READY: OnceLock<ScalarBuffer<i64>> = OnceLock::new();
    let make = |pairs| interleave_slices(&vec![-1; pairs], &vec![1; pairs]).into();
    if pairs > WEIGHTS_READY {
        return make(pairs);
    }
    READY
        .get_or_init(|| make(WEIGHTS_READY))
        .slice(0, pairs * 2)
}

fn repeated(ready: &OnceLock<ScalarBuffer<i64>>, weight: i64, len: usize) -> ScalarBuffer<i64> {
    if len > WEIGHTS_READY {
        return vec![weight; len].into();
    }
    ready
        .get_or_init(|| vec![weight; WEIGHTS_READY].into())
        .slice(0, len)
}

/// The batch's weights; +1 each where it has none.
pub(crate) fn weights(batch: &Batch) -> ScalarBuffer<i64> {
    batch.weights.clone().unwrap_or_else(|| plus(batch.len()))
}

/// Values `rows` of `column`, in that order; a row may be repeated.
pub(crate) fn take(column: &Column, rows: &[u32]) -> Column {
    let nulls = || column.nulls().and_then(|n| take_nulls(n, rows));
    match column {
        Column::Nulls(_) => Column::Nulls(rows.len()),
        Column::Bool(a) => {
            let values = a.values();
            let picked =
                BooleanBuffer::collect_bool(rows.len(), |i| values.value(rows[i] as usize));
            Column::Bool(BooleanArray::new(picked, nulls()))
        }
        Column::Int(a) => Column::Int(Int64Array::new(pick(a.values(), rows).into(), nulls())),
        Column::Float(a) => {
            Column::Float(Float64Array::new(pick(a.values(), rows).into(), nulls()))
        }
        Column::Text(a) => Column::Text(UInt32Array::new(pick(a.values(), rows).into(), nulls())),
        Column::Tally(a) => {
            let values = a.values();
            let picked = rows.iter().map(|&r| values[r as usize].clone()).collect();
            Column::Tally(TallyArray::new(picked))
        }
        Column::Bytes(a) => {
            let value = |&row: &u32| a.is_valid(row as usize).then(|| a.value(row as usize));
            Column::Bytes(rows.iter().map(value).collect())
        }
    }
}

/// [`take`] of the rows of `a` and, numbered on from there, of `b`.
pub(crate) fn take_of_two(a: &Column, b: &Column, rows: &[u32]) -> Column {
    if a.nulls().is_none() && b.nulls().is_none() {
        match (a, b) {
            (Column::Int(a), Column::Int(b)) => {
                return Column::ints(pick_of_two(a.values(), b.values(), rows));
            }
            (Column::Float(a), Column::Float(b)) => {
                return Column::floats(pick_of_two(a.values(), b.values(), rows));
            }
            (Column::Text(a), Column::Text(b)) => {
                let ids = pick_of_two(a.values(), b.values(), rows);
                return Column::Text(UInt32Array::new(ids.into(), None));
            }
            _ => {}
        }
    }
    take(&concat(&[a, b]), rows)
}

fn pick_of_two<T: Copy>(a: &[T], b: &[T], rows: &[u32]) -> Vec<T> {
    let value = |&row: &u32| {
        let row = row as usize;
        let (values, row) = if row < a.len() {
            (a, row)
        } else {
            (b, row - a.len())
        };
        values[row]
    };
    rows.iter().map(value).collect()
}

/// `values` at `rows`.
pub(crate) fn pick<T: Copy>(values: &[T], rows: &[u32]) -> Vec<T> {
    rows.iter().map(|&r| values[r as usize]).collect()
}

fn take_nulls(nulls: &NullBuffer, rows: &[u32]) -> Option<NullBuffer> {
    if nulls.null_count() == 0 {
        return None;
    }
    let picked = BooleanBuffer::collect_bool(rows.len(), |i| nulls.is_valid(rows[i] as usize));
    Some(NullBuffer::new(picked)).filter(|n| n.null_count() > 0)
}

/// Rows `rows` of a batch, which must not go back in time.
pub fn take_batch(batch: &Batch, rows: &[u32]) -> Batch {
    Batch {
        ts: pick(&batch.ts, rows).into(),
        weights: batch.weights.as_ref().map(|w| pick(w, rows).into()),
        columns: take_columns(&batch.columns, rows),
    }
}

/// `take` of each column.
pub(crate) fn take_columns(columns: &[Column], rows: &[u32]) -> Vec<Column> {
    columns.iter().map(|c| take(c, rows)).collect()
}

/// Concatenates columns of one type, or [`Column::Nulls`].
pub(crate) fn concat(columns: &[&Column]) -> Column {
    if let [one] = columns {
        return (*one).clone();
    }
    let len = columns.iter().map(|c| c.len()).sum();
    match columns.iter().find(|c| !matches!(c, Column::Nulls(_))) {
        None => Column::Nulls(len),
        Some(Column::Bool(_)) => concat_bools(columns, len),
        Some(Column::Tally(_)) => {
            let mut values = Vec::with_capacity(len);
            for column in columns {
                match column {
                    Column::Tally(a) => values.extend_from_slice(a.values()),
                    other => values.resize(values.len() + other.len(), None),
                }
            }
            Column::Tally(TallyArray::new(values))
        }
        Some(Column::Bytes(_)) => {
            let values = columns.iter().flat_map(|column| {
                (0..column.len()).map(|row| match column {
                    Column::Bytes(a) => a.is_valid(row).then(|| a.value(row)),
                    _ => None,
                })
            });
            Column::Bytes(values.collect())
        }
        Some(Column::Int(_)) => {
            let values = joined(columns, len, |c| match c {
                Column::Int(a) => Some(a.values()),
                _ => None,
            });
            Column::Int(Int64Array::new(values.into(), concat_nulls(columns, len)))
        }
        Some(Column::Float(_)) => {
            let values = joined(columns, len, |c| match c {
                Column::Float(a) => Some(a.values()),
                _ => None,
            });
            Column::Float(Float64Array::new(values.into(), concat_nulls(columns, len)))
        }
        Some(_) => {
            let values = joined(columns, len, |c| match c {
                Column::Text(a) => Some(a.values()),
                _ => None,
            });
            Column::Text(UInt32Array::new(values.into(), concat_nulls(columns, len)))
        }
    }
}

/// Interleaves two columns of the same length: the first value of `a`, the first of `b`, the second
/// of `a`, ...
pub(crate) fn interleave(a: &Column, b: &Column) -> Column {
    if a.nulls().is_none() && b.nulls().is_none() {
        match (a, b) {
            (Column::Int(a), Column::Int(b)) => {
                return Column::ints(interleave_slices(a.values(), b.values()));
            }
            (Column::Float(a), Column::Float(b)) => {
                return Column::floats(interleave_slices(a.values(), b.values()));
            }
            (Column::Text(a), Column::Text(b)) => {
                let ids = interleave_slices(a.values(), b.values());
                return Column::Text(UInt32Array::new(ids.into(), None));
            }
            _ => {}
        }
    }
    let len = a.len() as u32;
    let picks: Vec<u32> = (0..len).flat_map(|i| [i, i + len]).collect();
    take(&concat(&[a, b]), &picks)
}

/// Interleaves two slices of the same length.
pub(crate) fn interleave_slices<T: Copy>(a: &[T], b: &[T]) -> Vec<T> {
    let pairs: Vec<[T; 2]> = a.iter().zip(b).map(|(&a, &b)| [a, b]).collect();
    pairs.into_flattened()
}

fn joined<T>(
    columns: &[&Column],
    len: usize,
    values: impl Fn(&Column) -> Option<&ScalarBuffer<T>>,
) -> Vec<T>
where
    T: ArrowNativeType,
{
    let mut all = Vec::with_capacity(len);
    for column in columns {
        match values(column) {
            Some(v) => all.extend_from_slice(v),
            None => all.resize(all.len() + column.len(), T::default()),
        }
    }
    all
}

fn concat_bools(columns: &[&Column], len: usize) -> Column {
    let mut values = BooleanBufferBuilder::new(len);
    for column in columns {
        match column {
            Column::Bool(a) => values.append_buffer(a.values()),
            other => values.append_n(other.len(), false),
        }
    }
    Column::Bool(BooleanArray::new(
        values.finish(),
        concat_nulls(columns, len),
    ))
}

fn concat_nulls(columns: &[&Column], len: usize) -> Option<NullBuffer> {
    let none = |c: &&Column| !matches!(c, Column::Nulls(_)) && c.nulls().is_none();
    if columns.iter().all(none) {
        return None;
    }
    let mut nulls = NullBufferBuilder::new(len);
    for column in columns {
        match (column, column.nulls()) {
            (Column::Nulls(len), _) => nulls.append_n_nulls(*len),
            (_, Some(n)) => nulls.append_buffer(n),
            (_, None) => nulls.append_n_non_nulls(column.len()),
        }
    }
    nulls.finish()
}

/// Concatenates batches, which must be in timestamp order.
pub(crate) fn concat_batches(batches: &[Batch]) -> Batch {
    if let [one] = batches {
        return one.clone();
    }
    let len = batches.iter().map(Batch::len).sum();
    let mut ts = Vec::with_capacity(len);
    for batch in batches {
        ts.extend_from_slice(&batch.ts);
    }
    let weights = batches.iter().any(|b| b.weights.is_some()).then(|| {
        let mut all = Vec::with_capacity(len);
        for batch in batches {
            all.extend_from_slice(&weights(batch));
        }
        all.into()
    });
    let width = batches.first().map_or(0, |b| b.columns.len());
    let column = |i: usize| concat(&batches.iter().map(|b| &b.columns[i]).collect::<Vec<_>>());
    Batch {
        ts: ts.into(),
        weights,
        columns: (0..width).map(column).collect(),
    }
}

/// The rows of batches of one source as one batch in timestamp order; those of one instant keep the
/// order of the batches.
pub fn in_time_order(batches: &[Batch]) -> Batch {
    let all = concat_batches(batches);
    if all.ts.is_sorted() {
        return all;
    }
    let mut rows: Vec<u32> = (0..all.len() as u32).collect();
    rows.sort_by_key(|&row| all.ts[row as usize]);
    take_batch(&all, &rows)
}

/// Smaller batches are merged, since an operator has a fixed cost per batch.
const ROWS_WORTHWHILE: usize = 256;

/// The same rows in batches that are not too small and of which no two share an instant, so that an
/// operator can process each separately.
pub(crate) fn whole_instants(batches: &[Batch]) -> Vec<Batch> {
    let mut out: Vec<Batch> = Vec::with_capacity(batches.len());
    let mut open: Vec<Batch> = Vec::new();
    let mut rows = 0;
    for batch in batches.iter().filter(|b| !b.is_empty()) {
        let straddles = open
            .last()
            .is_some_and(|last| last.ts[last.len() - 1] == batch.ts[0]);
        if !open.is_empty()
            && !straddles
            && rows >= ROWS_WORTHWHILE
            && batch.len() >= ROWS_WORTHWHILE
        {
            out.push(concat_batches(&open));
            open.clear();
            rows = 0;
        }
        rows += batch.len();
        open.push(batch.clone());
    }
    if !open.is_empty() {
        out.push(concat_batches(&open));
    }
    out
}

/// Approximate size of a column's values in bytes.
pub(crate) fn column_bytes(column: &Column) -> usize {
    let len = column.len();
    let nulls = column.nulls().map_or(0, |_| len.div_ceil(8));
    nulls
        + match column {
            Column::Nulls(_) => 0,
            Column::Bool(_) => len.div_ceil(8),
            Column::Int(_) | Column::Float(_) => len * 8,
            Column::Text(_) => len * 4,
            Column::Tally(a) => {
                a.values()
                    .iter()
                    .flatten()
                    .map(|t| 32 + t.0.len() * 40)
                    .sum::<usize>()
                    + len * 8
            }
            Column::Bytes(a) => {
                let offsets = a.value_offsets();
                (offsets[len] - offsets[0]) as usize + len * 4
            }
        }
}

/// Approximate size of a batch in bytes.
pub fn batch_bytes(batch: &Batch) -> usize {
    let weights = batch.weights.as_ref().map_or(0, |w| w.len() * 8);
    batch.ts.len() * 8 + weights + batch.columns.iter().map(column_bytes).sum::<usize>()
}
