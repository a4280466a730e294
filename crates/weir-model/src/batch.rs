//! [`Batch`]: rows of a stream or deltas of a relation, column by column, in timestamp order.
//!
//! The columns are Arrow arrays, so that a batch turns into an Arrow `RecordBatch` without copying
//! numbers. Text columns hold [`Symbol`] ids; they become dictionaries only when a batch is
//! exported.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, BooleanBufferBuilder, NullBufferBuilder};
use arrow_array::{Array, BinaryArray, BooleanArray, Float64Array, Int64Array, UInt32Array};
use arrow_buffer::{NullBuffer, ScalarBuffer};

use crate::{Symbol, Tally, Type, Value};

/// Rows in timestamp order. Row `i` happened at `ts[i]`; in a relation it was inserted
/// (`weights[i]` > 0) or retracted (< 0) then.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The instant of each row, never decreasing.
    pub ts: ScalarBuffer<i64>,
    /// How often each row was inserted or retracted, never 0; `None` means inserted once each, as
    /// in a stream.
    pub weights: Option<ScalarBuffer<i64>>,
    /// The columns, each as long as `ts`.
    pub columns: Vec<Column>,
}

impl Batch {
    /// A batch of stream rows.
    ///
    /// # Panics
    /// When a column's length differs from `ts`'s, or `ts` decreases (checked in debug builds).
    pub fn stream(ts: impl Into<ScalarBuffer<i64>>, columns: Vec<Column>) -> Batch {
        Batch::checked(Batch {
            ts: ts.into(),
            weights: None,
            columns,
        })
    }

    /// A batch of deltas.
    ///
    /// # Panics
    /// As [`Batch::stream`].
    pub fn deltas(
        ts: impl Into<ScalarBuffer<i64>>,
        weights: impl Into<ScalarBuffer<i64>>,
        columns: Vec<Column>,
    ) -> Batch {
        Batch::checked(Batch {
            ts: ts.into(),
            weights: Some(weights.into()),
            columns,
        })
    }

    /// No rows of `columns` columns.
    pub fn empty(columns: usize) -> Batch {
        Batch {
            ts: ScalarBuffer::from(Vec::new()),
            weights: None,
            columns: vec![Column::Nulls(0); columns],
        }
    }

    fn checked(batch: Batch) -> Batch {
        assert!(
            batch.columns.iter().all(|c| c.len() == batch.len()),
            "columns are as long as the batch"
        );
        assert!(
            batch
                .weights
                .as_ref()
                .is_none_or(|w| w.len() == batch.len()),
            "one weight a row"
        );
        debug_assert!(batch.ts.is_sorted(), "rows are in time order");
        batch
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.ts.len()
    }

    /// The number of requests that the rows represent: each one, or the value of the column at that
    /// position.
    pub fn requests(&self, counts: Option<usize>) -> u64 {
        match counts.and_then(|at| self.columns.get(at)) {
            Some(Column::Int(counts)) => {
                let counts = counts.iter().flatten();
                let counts = counts.map(|n| u64::try_from(n).unwrap_or(0));
                counts.fold(0, u64::saturating_add)
            }
            _ => self.len() as u64,
        }
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.ts.is_empty()
    }

    /// Row `row`'s weight.
    pub fn weight(&self, row: usize) -> i64 {
        self.weights.as_ref().map_or(1, |w| w[row])
    }

    /// The values of row `row`. `types` are the schema's, needed to distinguish texts from numbers.
    pub fn row(&self, row: usize) -> Vec<Value> {
        self.columns.iter().map(|c| c.value(row)).collect()
    }

    /// Rows `offset..offset + len`, sharing memory.
    pub fn slice(&self, offset: usize, len: usize) -> Batch {
        Batch {
            ts: self.ts.slice(offset, len),
            weights: self.weights.as_ref().map(|w| w.slice(offset, len)),
            columns: self.columns.iter().map(|c| c.slice(offset, len)).collect(),
        }
    }
}

/// The values of one column.
#[derive(Clone, Debug)]
pub enum Column {
    /// A number of NULLs; also a column that was not requested.
    Nulls(usize),
    /// Booleans.
    Bool(BooleanArray),
    /// Integers and points in time.
    Int(Int64Array),
    /// Floats.
    Float(Float64Array),
    /// Texts, as [`Symbol`] ids.
    Text(UInt32Array),
    /// Tallies.
    Tally(TallyArray),
    /// Partial aggregates.
    Bytes(BinaryArray),
}

/// The values of a column of tallies; cheap to clone and slice.
#[derive(Clone, Debug)]
pub struct TallyArray {
    values: Arc<[Option<Arc<Tally>>]>,
    offset: usize,
    len: usize,
}

impl TallyArray {
    /// An array of these values.
    pub fn new(values: Vec<Option<Arc<Tally>>>) -> TallyArray {
        TallyArray {
            len: values.len(),
            offset: 0,
            values: values.into(),
        }
    }

    /// The values.
    pub fn values(&self) -> &[Option<Arc<Tally>>] {
        &self.values[self.offset..self.offset + self.len]
    }
}

impl Column {
    /// Integers, none NULL.
    pub fn ints(values: Vec<i64>) -> Column {
        Column::Int(Int64Array::new(values.into(), None))
    }

    /// Floats, none NULL.
    pub fn floats(values: Vec<f64>) -> Column {
        Column::Float(Float64Array::new(values.into(), None))
    }

    /// Texts, none NULL.
    pub fn texts<'a>(values: impl IntoIterator<Item = &'a str>) -> Column {
        let ids: Vec<u32> = values.into_iter().map(|v| Symbol::new(v).id()).collect();
        Column::Text(UInt32Array::new(ids.into(), None))
    }

    /// A column of `values`, all NULL or of type `ty`.
    ///
    /// # Panics
    /// When a value has another type.
    pub fn from_values(ty: Type, values: impl IntoIterator<Item = Value>) -> Column {
        let mut builder = ColumnBuilder::new(ty, 0);
        for value in values {
            builder.push(value);
        }
        builder.finish()
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        match self {
            Column::Nulls(len) => *len,
            Column::Bool(a) => a.len(),
            Column::Int(a) => a.len(),
            Column::Float(a) => a.len(),
            Column::Text(a) => a.len(),
            Column::Tally(a) => a.len,
            Column::Bytes(a) => a.len(),
        }
    }

    /// True without values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True where value `row` is NULL.
    #[inline]
    pub fn is_null(&self, row: usize) -> bool {
        match self {
            Column::Nulls(_) => true,
            Column::Tally(a) => a.values()[row].is_none(),
            _ => self.nulls().is_some_and(|n| n.is_null(row)),
        }
    }

    /// The NULL values, if there may be any; `None` for [`Column::Nulls`] and [`Column::Tally`] as
    /// well, which have no bitmap.
    pub fn nulls(&self) -> Option<&NullBuffer> {
        match self {
            Column::Bool(a) => a.nulls(),
            Column::Int(a) => a.nulls(),
            Column::Float(a) => a.nulls(),
            Column::Text(a) => a.nulls(),
            Column::Bytes(a) => a.nulls(),
            Column::Nulls(_) | Column::Tally(_) => None,
        }
    }

    /// Value `row`.
    #[inline]
    pub fn value(&self, row: usize) -> Value {
        if self.is_null(row) {
            return Value::Null;
        }
        match self {
            Column::Nulls(_) => Value::Null,
            Column::Bool(a) => Value::Bool(a.value(row)),
            Column::Int(a) => Value::Int(a.value(row)),
            Column::Float(a) => Value::Float(a.value(row)),
            Column::Text(a) => Value::Text(Symbol::from_id(a.value(row))),
            Column::Tally(a) => a.values()[row].clone().map_or(Value::Null, Value::Tally),
            Column::Bytes(a) => Value::Bytes(a.value(row).into()),
        }
    }

    /// Values `offset..offset + len`, sharing memory.
    pub fn slice(&self, offset: usize, len: usize) -> Column {
        match self {
            Column::Nulls(all) => {
                assert!(offset + len <= *all, "a slice lies inside its column");
                Column::Nulls(len)
            }
            Column::Bool(a) => Column::Bool(a.slice(offset, len)),
            Column::Int(a) => Column::Int(a.slice(offset, len)),
            Column::Float(a) => Column::Float(a.slice(offset, len)),
            Column::Text(a) => Column::Text(a.slice(offset, len)),
            Column::Bytes(a) => Column::Bytes(a.slice(offset, len)),
            Column::Tally(a) => {
                assert!(offset + len <= a.len, "a slice lies inside its column");
                Column::Tally(TallyArray {
                    values: a.values.clone(),
                    offset: a.offset + offset,
                    len,
                })
            }
        }
    }
}

/// Builds a column value by value, for tests, readers and other code that is not hot.
#[derive(Debug)]
pub enum ColumnBuilder {
    /// Booleans.
    Bool(BooleanBufferBuilder, NullBufferBuilder),
    /// Integers and points in time.
    Int(Vec<i64>, NullBufferBuilder),
    /// Floats.
    Float(Vec<f64>, NullBufferBuilder),
    /// Texts.
    Text(Vec<u32>, NullBufferBuilder),
    /// Tallies.
    Tally(Vec<Option<Arc<Tally>>>),
    /// Partial aggregates.
    Bytes(BinaryBuilder),
}

impl ColumnBuilder {
    /// A builder for a column of type `ty` with room for `capacity` values.
    pub fn new(ty: Type, capacity: usize) -> ColumnBuilder {
        let nulls = NullBufferBuilder::new(capacity);
        match ty {
            Type::Bool => ColumnBuilder::Bool(BooleanBufferBuilder::new(capacity), nulls),
            Type::Int | Type::Time => ColumnBuilder::Int(Vec::with_capacity(capacity), nulls),
            Type::Float => ColumnBuilder::Float(Vec::with_capacity(capacity), nulls),
            Type::Text => ColumnBuilder::Text(Vec::with_capacity(capacity), nulls),
            Type::Tally => ColumnBuilder::Tally(Vec::with_capacity(capacity)),
            Type::Partial => ColumnBuilder::Bytes(BinaryBuilder::with_capacity(capacity, 0)),
        }
    }

    /// Appends `value`.
    ///
    /// # Panics
    /// When it is neither NULL nor of the builder's type.
    pub fn push(&mut self, value: Value) {
        let null = value.is_null();
        match (self, value) {
            (ColumnBuilder::Tally(values), Value::Tally(x)) => values.push(Some(x)),
            (ColumnBuilder::Tally(values), Value::Null) => values.push(None),
            (ColumnBuilder::Bytes(values), Value::Bytes(x)) => values.append_value(x),
            (ColumnBuilder::Bytes(values), Value::Null) => values.append_null(),
            (ColumnBuilder::Bool(values, nulls), Value::Bool(_) | Value::Null) if null => {
                values.append(false);
                nulls.append_null();
            }
            (ColumnBuilder::Bool(values, nulls), Value::Bool(x)) => {
                values.append(x);
                nulls.append_non_null();
            }
            (ColumnBuilder::Int(values, nulls), Value::Int(x)) => {
                values.push(x);
                nulls.append_non_null();
            }
            (ColumnBuilder::Int(values, nulls), Value::Null) => {
                values.push(0);
                nulls.append_null();
            }
            (ColumnBuilder::Float(values, nulls), Value::Float(x)) => {
                values.push(x);
                nulls.append_non_null();
            }
            (ColumnBuilder::Float(values, nulls), Value::Null) => {
                values.push(0.0);
                nulls.append_null();
            }
            (ColumnBuilder::Text(values, nulls), Value::Text(x)) => {
                values.push(x.id());
                nulls.append_non_null();
            }
            (ColumnBuilder::Text(values, nulls), Value::Null) => {
                values.push(0);
                nulls.append_null();
            }
            (_, value) => panic!("the value {value} has the column's type"),
        }
    }

    /// The column built so far; the builder is then empty.
    pub fn finish(&mut self) -> Column {
        use std::mem::take;
        match self {
            ColumnBuilder::Bool(values, nulls) => {
                Column::Bool(BooleanArray::new(values.finish(), nulls.finish()))
            }
            ColumnBuilder::Int(values, nulls) => {
                Column::Int(Int64Array::new(take(values).into(), nulls.finish()))
            }
            ColumnBuilder::Float(values, nulls) => {
                Column::Float(Float64Array::new(take(values).into(), nulls.finish()))
            }
            ColumnBuilder::Text(values, nulls) => {
                Column::Text(UInt32Array::new(take(values).into(), nulls.finish()))
            }
            ColumnBuilder::Tally(values) => Column::Tally(TallyArray::new(take(values))),
            ColumnBuilder::Bytes(values) => Column::Bytes(values.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_column_gives_its_values_back() {
        let values = [Value::Int(1), Value::Null, Value::Int(3)];
        let column = Column::from_values(Type::Int, values.clone());
        assert_eq!((0..3).map(|i| column.value(i)).collect::<Vec<_>>(), values);
        assert_eq!(column.slice(1, 2).value(1), Value::Int(3));
    }

    #[test]
    fn a_slice_of_a_batch_keeps_time_and_weight() {
        let batch = Batch::deltas(vec![1, 2], vec![1, -1], vec![Column::texts(["a", "b"])]);
        let tail = batch.slice(1, 1);
        assert_eq!(
            (tail.ts[0], tail.weight(0), tail.row(0)),
            (2, -1, vec![Value::text("b")])
        );
    }
}
