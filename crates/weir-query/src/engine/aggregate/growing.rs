//! Partials merged over `[Range Unbounded Slide S]`: groups only grow.
//!
//! At each multiple of S the groups of which partials came change their rows; the others stay as
//! they are and cost nothing.

use weir_model::{Batch, Column, Schema};

use super::interval::Interval;
use super::tumbling::first_columns;
use crate::engine::consolidate::Consolidate;
use crate::engine::gather::{concat_batches, whole_instants};
use crate::engine::lane::Slots;
use crate::engine::operator::{Operator, Span};
use crate::engine::window::round_up;
use crate::function::{AggregateCall, EvalError};

/// All groups so far.
pub(in crate::engine) struct Growing {
    slide: i64,
    keys: usize,
    groups: Interval,
    /// The rows in the result, by group.
    shown: Slots,
    /// How many groups are in the result: the first so many.
    shown_groups: usize,
    /// Groups of which partials came in the interval under way.
    touched: Vec<u32>,
    /// When that interval ends.
    end: Option<i64>,
    /// Why its result cannot be computed.
    failed: Option<EvalError>,
    net: Consolidate,
}

impl Growing {
    /// Merges partials, whose first `keys` columns are keys, and shows the result at each multiple
    /// of `slide`; `schema` is the result's.
    pub(in crate::engine) fn new(
        input: &Schema,
        keys: usize,
        calls: &[AggregateCall],
        slide: i64,
        schema: &Schema,
    ) -> Growing {
        Growing {
            slide,
            keys,
            groups: Interval::new(&first_columns(input, keys), calls),
            shown: Slots::new(schema),
            shown_groups: 0,
            touched: Vec::new(),
            end: None,
            failed: None,
            net: Consolidate::new(schema),
        }
    }

    /// Takes in partials of the interval under way.
    fn take_in(&mut self, batch: &Batch) -> Result<(), EvalError> {
        let (keys, partials) = batch.columns.split_at(self.keys);
        let groups = self.groups.merge(keys, partials, batch.len())?;
        self.touched.extend(groups);
        Ok(())
    }

    /// The interval under way is over: its groups have other rows now.
    fn close(&mut self) -> Result<Vec<Batch>, EvalError> {
        let Some(end) = self.end.take() else {
            return Ok(Vec::new());
        };
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        // Groups are numbered in order of first sight, so the new ones are the last.
        let known = touched.partition_point(|&group| (group as usize) < self.shown_groups);
        let old = self.shown.gather(&touched[..known]);
        let new = self.groups.rows(&touched)?;
        self.shown_groups = self.groups.len();
        self.shown.grow_to(self.shown_groups);
        self.shown.write(&touched, &new);
        let change = |columns: Vec<Column>, len: usize, weight: i64| {
            Batch::deltas(vec![end; len], vec![weight; len], columns)
        };
        let changes = [change(old, known, -1), change(new, touched.len(), 1)];
        Ok(self.net.net(&[concat_batches(&changes)]))
    }
}

impl Operator for Growing {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let mut out = Vec::new();
        for batch in whole_instants(inputs[0]) {
            let mut from = 0;
            while from < batch.len() {
                let end = round_up(batch.ts[from], Some(self.slide));
                if self.end.is_some_and(|open| open < end) {
                    out.extend(self.close()?);
                }
                self.end = Some(end);
                let to = batch.ts.partition_point(|&ts| ts <= end);
                if self.failed.is_none() {
                    self.failed = self.take_in(&batch.slice(from, to - from)).err();
                }
                from = to;
            }
        }
        if self.end.is_some_and(|end| end <= span.upto) {
            out.extend(self.close()?);
        }
        Ok(out)
    }

    fn bytes(&self) -> usize {
        self.groups.bytes() + self.shown.bytes() + self.net.bytes() + self.touched.capacity() * 4
    }
}
