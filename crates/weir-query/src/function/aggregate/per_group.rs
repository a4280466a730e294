//! [`PerGroup`]: an aggregate's state over all groups, from what it keeps of the values of one.
//!
//! The loop over rows, NULLs, the wanted results, the count of bytes and the frame around partials
//! are the same for every aggregate and stand here. They are compiled for each, so that nothing is
//! decided per row that can be decided per batch.

use std::marker::PhantomData;

use weir_model::{Column, ColumnBuilder, Value};
use weir_sketch::{Bytes, Malformed};

use super::{AggregateCall, AggregateState};
use crate::function::EvalError;
use crate::function::element::{Input, Output, nulls_of, only_nulls};

/// What begins a partial.
const VERSION: u8 = 1;

/// What is kept of the values of one group; the default is a group without values.
pub trait Summary: Default + Send + 'static {
    /// What it takes in.
    type Value;

    /// Takes `weight` copies of `value` in, or out when negative.
    fn add(&mut self, value: Self::Value, weight: i64);

    /// Appends its bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads what [`Summary::encode`] wrote.
    fn decode(bytes: &mut Bytes<'_>) -> Result<Self, EvalError>;

    /// Takes in what `other` holds.
    fn merge(&mut self, other: Self);

    /// Bytes on the heap, known at once.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// The partial of a group that holds `summary`.
pub fn partial_of(summary: &impl Summary) -> Vec<u8> {
    let mut out = vec![VERSION];
    summary.encode(&mut out);
    out
}

/// Reads the result of a call off a summary that it shares.
pub type ResultOf<S> = fn(&S, &AggregateCall) -> Result<Value, EvalError>;

/// The state of one call over all groups.
struct PerGroup<S, I, V, R> {
    groups: Vec<S>,
    heap_bytes: usize,
    /// What a value of the column is to the summary.
    value: V,
    /// What the summary gives; `None` is NULL.
    result: R,
    /// What it gives to another call that shares it.
    result_of: Option<ResultOf<S>>,
    input: PhantomData<fn() -> I>,
}

/// The state of a call that takes values in as `value` sees them, and gives what `result` reads off
/// the summary.
pub fn per_group<S, I, O>(
    value: impl Fn(I) -> S::Value + Send + 'static,
    result: impl Fn(&S) -> Result<Option<O>, EvalError> + Send + 'static,
) -> Box<dyn AggregateState>
where
    S: Summary,
    I: Input + 'static,
    O: Output + 'static,
{
    shared_per_group(value, result, None)
}

/// The same, where other calls may read their results off the summary by `result_of`.
pub fn shared_per_group<S, I, O>(
    value: impl Fn(I) -> S::Value + Send + 'static,
    result: impl Fn(&S) -> Result<Option<O>, EvalError> + Send + 'static,
    result_of: Option<ResultOf<S>>,
) -> Box<dyn AggregateState>
where
    S: Summary,
    I: Input + 'static,
    O: Output + 'static,
{
    Box::new(PerGroup {
        groups: Vec::new(),
        heap_bytes: 0,
        value,
        result,
        result_of,
        input: PhantomData,
    })
}

#[derive(Clone, Copy)]
struct Rows<'a> {
    groups: &'a [u32],
    weights: &'a [i64],
    wanted: &'a [bool],
}

impl<S, I, O, V, R> PerGroup<S, I, V, R>
where
    S: Summary,
    I: Input,
    O: Output,
    V: Fn(I) -> S::Value,
    R: Fn(&S) -> Result<Option<O>, EvalError>,
{
    fn fold(
        &mut self,
        rows: Rows<'_>,
        read: impl Fn(usize) -> Option<I>,
        out: &mut ColumnBuilder,
    ) -> Result<(), EvalError> {
        let mut sink = O::sink(out);
        let marks = rows.groups.iter().zip(rows.weights).zip(rows.wanted);
        for (row, ((&group, &weight), &wanted)) in marks.enumerate() {
            let group = &mut self.groups[group as usize];
            if let Some(value) = read(row) {
                let before = group.heap_bytes();
                group.add((self.value)(value), weight);
                self.heap_bytes = self.heap_bytes + group.heap_bytes() - before;
            }
            if wanted {
                O::write(&mut sink, (self.result)(group)?);
            }
        }
        Ok(())
    }
}

impl<S, I, O, V, R> AggregateState for PerGroup<S, I, V, R>
where
    S: Summary,
    I: Input,
    O: Output,
    V: Fn(I) -> S::Value + Send,
    R: Fn(&S) -> Result<Option<O>, EvalError> + Send,
{
    fn resize(&mut self, groups: usize) {
        if groups > self.groups.len() {
            self.groups.resize_with(groups, S::default);
        }
    }

    fn update(
        &mut self,
        groups: &[u32],
        weights: &[i64],
        args: &[Column],
        wanted: &[bool],
        out: &mut ColumnBuilder,
    ) -> Result<(), EvalError> {
        let len = groups.len();
        assert!(
            weights.len() == len && wanted.len() == len,
            "one weight and one mark a row"
        );
        assert!(args.iter().all(|a| a.len() == len), "one argument a row");
        let rows = Rows {
            groups,
            weights,
            wanted,
        };
        match args.first() {
            Some(column) if only_nulls(column) => self.fold(rows, |_| None, out),
            // count(*) reads no column: every row counts.
            None => {
                let values = I::values(&Column::Nulls(0));
                self.fold(rows, |row| Some(I::read(&values, row)), out)
            }
            Some(column) => {
                let values = I::values(column);
                match nulls_of(column).filter(|nulls| nulls.null_count() > 0) {
                    None => self.fold(rows, |row| Some(I::read(&values, row)), out),
                    Some(nulls) => {
                        let read = |row| nulls.is_valid(row).then(|| I::read(&values, row));
                        self.fold(rows, read, out)
                    }
                }
            }
        }
    }

    fn result(&self, group: u32) -> Result<Value, EvalError> {
        let result = (self.result)(&self.groups[group as usize])?;
        Ok(result.map_or(Value::Null, Output::value))
    }

    fn result_of(&self, call: &AggregateCall, group: u32) -> Result<Value, EvalError> {
        match self.result_of {
            Some(result_of) => result_of(&self.groups[group as usize], call),
            None => self.result(group),
        }
    }

    fn clear(&mut self, group: u32) {
        let group = &mut self.groups[group as usize];
        self.heap_bytes -= group.heap_bytes();
        *group = S::default();
    }

    fn partial(&self, group: u32, out: &mut Vec<u8>) {
        out.push(VERSION);
        self.groups[group as usize].encode(out);
    }

    fn merge(&mut self, group: u32, partial: &[u8]) -> Result<(), EvalError> {
        let mut bytes = Bytes::new(partial);
        if bytes.byte()? != VERSION {
            return Err(Malformed("another version wrote it").into());
        }
        let other = S::decode(&mut bytes)?;
        bytes.end()?;
        let group = &mut self.groups[group as usize];
        self.heap_bytes -= group.heap_bytes();
        group.merge(other);
        self.heap_bytes += group.heap_bytes();
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.groups.capacity() * size_of::<S>() + self.heap_bytes
    }
}
