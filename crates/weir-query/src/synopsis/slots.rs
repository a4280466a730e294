//! [`MutableColumn`]: a column with random writes, and [`Slots`]: rows stored in such columns,
//! addressed by slot number.

use std::sync::Arc;

use arrow_array::{BinaryArray, BooleanArray, Float64Array, Int64Array, UInt32Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use weir_model::types::float_key;
use weir_model::{Column, Schema, Tally, TallyArray, Type};

use super::gather::pick;

/// The values of a column, addressed by slot.
#[derive(Debug)]
pub(crate) struct MutableColumn {
    values: Values,
    /// Where NULL is; empty until one is written.
    nulls: Vec<bool>,
}

#[derive(Debug)]
enum Values {
    Bool(Vec<bool>),
    Int(Vec<i64>),
    Float(Vec<f64>),
    Text(Vec<u32>),
    Tally(Vec<Option<Arc<Tally>>>),
    Bytes(Vec<Option<Arc<[u8]>>>),
}

impl MutableColumn {
    /// No slots yet, for values of type `ty`.
    pub(crate) fn new(ty: Type) -> MutableColumn {
        let values = match ty {
            Type::Bool => Values::Bool(Vec::new()),
            Type::Int | Type::Time => Values::Int(Vec::new()),
            Type::Float => Values::Float(Vec::new()),
            Type::Text => Values::Text(Vec::new()),
            Type::Tally => Values::Tally(Vec::new()),
            Type::Partial => Values::Bytes(Vec::new()),
        };
        MutableColumn {
            values,
            nulls: Vec::new(),
        }
    }

    /// Resizes to `len` slots; the value of a new slot is undefined until it is written.
    pub(crate) fn resize(&mut self, len: usize) {
        match &mut self.values {
            Values::Bool(v) => v.resize(len, false),
            Values::Int(v) => v.resize(len, 0),
            Values::Float(v) => v.resize(len, 0.0),
            Values::Text(v) => v.resize(len, 0),
            Values::Tally(v) => v.resize(len, None),
            Values::Bytes(v) => v.resize(len, None),
        }
        if !self.nulls.is_empty() {
            self.nulls.resize(len, false);
        }
    }

    fn len(&self) -> usize {
        match &self.values {
            Values::Bool(v) => v.len(),
            Values::Int(v) => v.len(),
            Values::Float(v) => v.len(),
            Values::Text(v) => v.len(),
            Values::Tally(v) => v.len(),
            Values::Bytes(v) => v.len(),
        }
    }

    /// Writes value `i` of the column to slot `slots[i]`.
    pub(crate) fn write(&mut self, places: &[u32], column: &Column) {
        debug_assert_eq!(places.len(), column.len(), "a place for each value");
        let has_nulls = matches!(column, Column::Nulls(_))
            || column.nulls().is_some_and(|n| n.null_count() > 0);
        if has_nulls && self.nulls.is_empty() {
            self.nulls = vec![false; self.len()];
        }
        match (&mut self.values, column) {
            (Values::Bool(v), Column::Bool(a)) => {
                for (&place, x) in places.iter().zip(a.values()) {
                    v[place as usize] = x;
                }
            }
            (Values::Int(v), Column::Int(a)) => scatter(v, places, a.values()),
            (Values::Float(v), Column::Float(a)) => scatter(v, places, a.values()),
            (Values::Text(v), Column::Text(a)) => scatter(v, places, a.values()),
            (Values::Tally(v), Column::Tally(a)) => {
                for (&place, x) in places.iter().zip(a.values()) {
                    v[place as usize].clone_from(x);
                }
            }
            (Values::Bytes(v), Column::Bytes(a)) => {
                for (&place, x) in places.iter().zip(a) {
                    v[place as usize] = x.map(Arc::from);
                }
            }
            (Values::Bytes(v), Column::Nulls(_)) => {
                for &place in places {
                    v[place as usize] = None;
                }
            }
            (Values::Tally(v), Column::Nulls(_)) => {
                for &place in places {
                    v[place as usize] = None;
                }
            }
            (_, Column::Nulls(_)) => {}
            (values, column) => {
                panic!("a column of type {values:?} cannot hold {column:?}")
            }
        }
        if !self.nulls.is_empty() {
            for (i, &place) in places.iter().enumerate() {
                self.nulls[place as usize] = has_nulls && column.is_null(i);
            }
        }
    }

    /// The values at `slots`, in that order.
    pub(crate) fn gather(&self, places: &[u32]) -> Column {
        let nulls = || {
            if self.nulls.is_empty() {
                return None;
            }
            let valid =
                BooleanBuffer::collect_bool(places.len(), |i| !self.nulls[places[i] as usize]);
            Some(NullBuffer::new(valid)).filter(|n| n.null_count() > 0)
        };
        match &self.values {
            Values::Bool(v) => {
                let picked = BooleanBuffer::collect_bool(places.len(), |i| v[places[i] as usize]);
                Column::Bool(BooleanArray::new(picked, nulls()))
            }
            Values::Int(v) => Column::Int(Int64Array::new(pick(v, places).into(), nulls())),
            Values::Float(v) => Column::Float(Float64Array::new(pick(v, places).into(), nulls())),
            Values::Text(v) => Column::Text(UInt32Array::new(pick(v, places).into(), nulls())),
            Values::Tally(v) => Column::Tally(TallyArray::new(
                places.iter().map(|&p| v[p as usize].clone()).collect(),
            )),
            Values::Bytes(v) => Column::Bytes(BinaryArray::from_iter(
                places.iter().map(|&p| v[p as usize].as_deref()),
            )),
        }
    }

    /// All values in order.
    pub(crate) fn into_column(self) -> Column {
        let nulls = Some(self.nulls)
            .filter(|n| n.contains(&true))
            .map(|n| NullBuffer::new(BooleanBuffer::collect_bool(n.len(), |i| !n[i])));
        match self.values {
            Values::Bool(v) => Column::Bool(BooleanArray::new(v.into(), nulls)),
            Values::Int(v) => Column::Int(Int64Array::new(v.into(), nulls)),
            Values::Float(v) => Column::Float(Float64Array::new(v.into(), nulls)),
            Values::Text(v) => Column::Text(UInt32Array::new(v.into(), nulls)),
            Values::Tally(v) => Column::Tally(TallyArray::new(v)),
            Values::Bytes(v) => Column::Bytes(BinaryArray::from_iter(v)),
        }
    }

    /// Writes value `i` of the column to slot `slots[i]`, one after the other, and returns the
    /// previous value of each; clears `same[i]` where the two differ.
    pub(crate) fn exchange(
        &mut self,
        places: &[u32],
        column: &Column,
        same: &mut [bool],
    ) -> Column {
        let has_nulls = matches!(column, Column::Nulls(_))
            || column.nulls().is_some_and(|n| n.null_count() > 0);
        if !has_nulls && self.nulls.is_empty() {
            match (&mut self.values, column) {
                (Values::Int(v), Column::Int(a)) => {
                    let old = swap(v, places, a.values(), same, |a, b| a == b);
                    return Column::ints(old);
                }
                (Values::Float(v), Column::Float(a)) => {
                    let equal = |a: f64, b: f64| a == b || float_key(a) == float_key(b);
                    return Column::floats(swap(v, places, a.values(), same, equal));
                }
                (Values::Text(v), Column::Text(a)) => {
                    let old = swap(v, places, a.values(), same, |a, b| a == b);
                    return Column::Text(UInt32Array::new(old.into(), None));
                }
                _ => {}
            }
        }
        self.exchange_each(places, column, same)
    }

    /// [`MutableColumn::exchange`] for columns with NULLs or of rarer types.
    fn exchange_each(&mut self, places: &[u32], column: &Column, same: &mut [bool]) -> Column {
        let mut old = MutableColumn {
            values: self.values.empty(),
            nulls: Vec::new(),
        };
        old.resize(places.len());
        for (i, &place) in places.iter().enumerate() {
            let before = self.gather(&[place]);
            let now = column.slice(i, 1);
            same[i] &= before.value(0) == now.value(0);
            old.write(&[i as u32], &before);
            self.write(&[place], &now);
        }
        old.into_column()
    }

    /// Whether the value at `slot` is value `row` of the column; NULL equals NULL.
    pub(crate) fn equals(&self, place: u32, column: &Column, row: usize) -> bool {
        let place = place as usize;
        let null = self.nulls.get(place).copied().unwrap_or(false);
        if null || column.is_null(row) {
            let absent = match &self.values {
                Values::Tally(v) => v[place].is_none(),
                Values::Bytes(v) => v[place].is_none(),
                _ => false,
            };
            let null = null || absent;
            return null && column.is_null(row);
        }
        match (&self.values, column) {
            (Values::Bool(v), Column::Bool(a)) => v[place] == a.value(row),
            (Values::Int(v), Column::Int(a)) => v[place] == a.value(row),
            (Values::Float(v), Column::Float(a)) => float_key(v[place]) == float_key(a.value(row)),
            (Values::Text(v), Column::Text(a)) => v[place] == a.value(row),
            (Values::Tally(v), Column::Tally(a)) => v[place] == a.values()[row],
            (Values::Bytes(v), Column::Bytes(a)) => v[place].as_deref() == Some(a.value(row)),
            _ => false,
        }
    }

    /// Clears the value at `slot`, where that frees memory.
    pub(crate) fn clear(&mut self, place: u32) {
        match &mut self.values {
            Values::Tally(v) => v[place as usize] = None,
            Values::Bytes(v) => v[place as usize] = None,
            _ => {}
        }
    }

    /// Approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.nulls.capacity()
            + match &self.values {
                Values::Bool(v) => v.capacity(),
                Values::Int(v) => v.capacity() * 8,
                Values::Float(v) => v.capacity() * 8,
                Values::Text(v) => v.capacity() * 4,
                // A tally has a few dozen entries; counting them all would cost more than the
                // precision is worth.
                Values::Tally(v) => v.capacity() * 1024,
                Values::Bytes(v) => {
                    let held: usize = v.iter().flatten().map(|bytes| bytes.len()).sum();
                    held + v.capacity() * 16
                }
            }
    }
}

impl Values {
    fn empty(&self) -> Values {
        match self {
            Values::Bool(_) => Values::Bool(Vec::new()),
            Values::Int(_) => Values::Int(Vec::new()),
            Values::Float(_) => Values::Float(Vec::new()),
            Values::Text(_) => Values::Text(Vec::new()),
            Values::Tally(_) => Values::Tally(Vec::new()),
            Values::Bytes(_) => Values::Bytes(Vec::new()),
        }
    }
}

fn scatter<T: Copy>(values: &mut [T], places: &[u32], from: &[T]) {
    for (&place, &x) in places.iter().zip(from) {
        values[place as usize] = x;
    }
}

fn swap<T: Copy>(
    values: &mut [T],
    places: &[u32],
    new: &[T],
    same: &mut [bool],
    equal: impl Fn(T, T) -> bool,
) -> Vec<T> {
    if let ([value], [rest @ .., last]) = (&mut *values, new) {
        // Each value is the old one of the next row.
        let first = std::mem::replace(value, *last);
        let old = [&[first], rest].concat();
        for ((same, &old), &new) in same.iter_mut().zip(&old).zip(new) {
            *same &= equal(old, new);
        }
        return old;
    }
    let each = places.iter().zip(new).zip(same);
    each.map(|((&place, &x), same)| {
        let old = std::mem::replace(&mut values[place as usize], x);
        *same &= equal(old, x);
        old
    })
    .collect()
}

/// Rows stored in one [`MutableColumn`] per column of a schema. Slots are allocated and freed; a
/// freed slot is not reused before [`Slots::recycle`], so that what a batch reads of it stays valid
/// until the batch is processed.
#[derive(Debug)]
pub(crate) struct Slots {
    columns: Vec<MutableColumn>,
    len: usize,
    free: Vec<u32>,
    retired: Vec<u32>,
}

impl Slots {
    /// No rows, of this schema.
    pub(crate) fn new(schema: &Schema) -> Slots {
        Slots::of_types(schema.fields.iter().map(|f| f.ty))
    }

    /// No rows, of these types.
    pub(crate) fn of_types(types: impl Iterator<Item = Type>) -> Slots {
        Slots {
            columns: types.map(MutableColumn::new).collect(),
            len: 0,
            free: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// A slot for each of `count` rows, yet to be written.
    pub(crate) fn reserve(&mut self, count: usize) -> Vec<u32> {
        let reused = self.free.len().min(count);
        let mut slots = self.free.split_off(self.free.len() - reused);
        let new = count - reused;
        slots.extend((self.len..self.len + new).map(|s| s as u32));
        if new > 0 {
            self.len += new;
            for column in &mut self.columns {
                column.resize(self.len);
            }
        }
        slots
    }

    /// Resizes to at least `len` slots, for an owner that allocates their numbers itself.
    pub(crate) fn grow_to(&mut self, len: usize) {
        if len > self.len {
            self.len = len;
            for column in &mut self.columns {
                column.resize(len);
            }
        }
    }

    /// How many slots there are, free ones included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes row `i` of the columns to slot `slots[i]`.
    pub(crate) fn write<'a>(
        &mut self,
        slots: &[u32],
        columns: impl IntoIterator<Item = &'a Column>,
    ) {
        for (stored, column) in self.columns.iter_mut().zip(columns) {
            stored.write(slots, column);
        }
    }

    /// The rows in these slots.
    pub(crate) fn gather(&self, slots: &[u32]) -> Vec<Column> {
        self.columns.iter().map(|l| l.gather(slots)).collect()
    }

    /// Column `index` of the rows in these slots.
    pub(crate) fn gather_column(&self, index: usize, slots: &[u32]) -> Column {
        self.columns[index].gather(slots)
    }

    /// Whether the row in `slot` is row `row` of the columns, NULLs being equal.
    pub(crate) fn equals(&self, slot: u32, columns: &[Column], row: usize) -> bool {
        self.columns
            .iter()
            .zip(columns)
            .all(|(l, c)| l.equals(slot, c, row))
    }

    /// Frees a slot.
    pub(crate) fn retire(&mut self, slot: u32) {
        self.retired.push(slot);
    }

    /// Makes freed slots available again.
    pub(crate) fn recycle(&mut self) {
        for &slot in &self.retired {
            for column in &mut self.columns {
                column.clear(slot);
            }
        }
        self.free.append(&mut self.retired);
    }

    /// Approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.columns.iter().map(MutableColumn::bytes).sum::<usize>()
            + (self.free.capacity() + self.retired.capacity()) * 4
    }
}
