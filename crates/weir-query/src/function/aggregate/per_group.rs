//! [`PerGroup`]: the state of an aggregate over all groups, built from a [`Summary`] of the values
//! of one.
//!
//! The loop over rows, NULLs, the requested results, the count of bytes and the framing of partials
//! are the same for every aggregate and are implemented here. They are compiled for each, so that
//! decisions are made per batch instead of per row.

use std::marker::PhantomData;

use weir_model::{Column, ColumnBuilder, Value};
use weir_sketch::{Bytes, SketchDecodeError};

use super::{AggregateCall, AggregateState};
use crate::function::EvalError;
use crate::function::element::{Input, Output, nulls_of, only_nulls};

/// The first byte of a partial.
const VERSION: u8 = 1;

/// The summary of the values of one group; the default is a group without values.
pub trait Summary: Default + Send + 'static {
    /// The type of an added value.
    type Value;

    /// Adds `weight` copies of `value`, or subtracts them when negative.
    fn add(&mut self, value: Self::Value, weight: i64);

    /// Appends its bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads what [`Summary::encode`] wrote.
    fn decode(bytes: &mut Bytes<'_>) -> Result<Self, EvalError>;

    /// Merges `other`.
    fn merge(&mut self, other: Self);

    /// Bytes on the heap, without a traversal.
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

/// Reads the result of a call from a summary that it shares.
pub type ResultOf<S> = fn(&S, &AggregateCall) -> Result<Value, EvalError>;

/// The state of one call over all groups.
struct PerGroup<S, I, V, R> {
    groups: Vec<S>,
    heap_bytes: usize,
    /// Maps a value of the column to one of the summary.
    value: V,
    /// The result of the summary; `None` is NULL.
    result: R,
    /// The result for another call that shares it.
    result_of: Option<ResultOf<S>>,
    input: PhantomData<fn() -> I>,
}

/// The state of a call that adds values mapped by `value`, and whose result is `result` of the
/// summary.
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

/// As [`per_group`], where other calls may read their results from the summary by `result_of`.
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
    requested: &'a [bool],
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
        let marks = rows.groups.iter().zip(rows.weights).zip(rows.requested);
        for (row, ((&group, &weight), &requested)) in marks.enumerate() {
            let group = &mut self.groups[group as usize];
            if let Some(value) = read(row) {
                let before = group.heap_bytes();
                group.add((self.value)(value), weight);
                self.heap_bytes = self.heap_bytes + group.heap_bytes() - before;
            }
            if requested {
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
        requested: &[bool],
        out: &mut ColumnBuilder,
    ) -> Result<(), EvalError> {
        let len = groups.len();
        assert!(
            weights.len() == len && requested.len() == len,
            "one weight and one mark a row"
        );
        assert!(args.iter().all(|a| a.len() == len), "one argument a row");
        let rows = Rows {
            groups,
            weights,
            requested,
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
            return Err(SketchDecodeError("it was written by another version of weir").into());
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
