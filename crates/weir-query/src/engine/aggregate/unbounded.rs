//! Partials merged over `[Range Unbounded Slide S]`: no row ever leaves the window.
//!
//! At each multiple of S the rows of the groups that received partials change; the other groups
//! cost nothing.

use weir_model::{Batch, Column, Schema};

use super::interval::Interval;
use super::tumbling::first_columns;
use crate::engine::consolidate::Consolidate;
use crate::function::{AggregateCall, EvalError};
use crate::operator::{Operator, QueryStart, Span};
use crate::plan::GlobalGroup;
use crate::synopsis::gather::{concat_batches, whole_instants};
use crate::synopsis::slots::Slots;
use crate::window::round_up;

/// All groups so far.
pub(in crate::engine) struct UnboundedMerge {
    slide: i64,
    keys: usize,
    groups: Interval,
    /// The rows in the result, by group.
    shown: Slots,
    /// How many groups are in the result; they are the first ones.
    shown_groups: usize,
    /// Groups that received partials in the current interval.
    touched: Vec<u32>,
    /// The end of the current interval.
    end: Option<i64>,
    /// The error of the current interval's result.
    failed: Option<EvalError>,
    net: Consolidate,
    /// Set when the row over no rows is emitted at the start of the query.
    beginning: Option<QueryStart>,
}

impl UnboundedMerge {
    /// Merges partials, whose first `keys` columns are keys, and emits the result at each multiple
    /// of `slide`; `schema` is the result's.
    pub(in crate::engine) fn new(
        input: &Schema,
        keys: usize,
        calls: &[AggregateCall],
        slide: i64,
        schema: &Schema,
    ) -> UnboundedMerge {
        UnboundedMerge {
            slide,
            keys,
            groups: Interval::new(&first_columns(input, keys), calls),
            shown: Slots::new(schema),
            shown_groups: 0,
            touched: Vec::new(),
            end: None,
            failed: None,
            net: Consolidate::new(schema),
            beginning: None,
        }
    }

    /// Sets from when on the one row of an aggregation without keys exists.
    pub(in crate::engine) fn with_global_group(self, global: GlobalGroup) -> UnboundedMerge {
        let from_start = self.groups.is_whole() && global == GlobalGroup::FromStart;
        UnboundedMerge {
            beginning: from_start.then(QueryStart::default),
            ..self
        }
    }

    /// At the start of the query, emits the row over no rows, unless a row is in the result by
    /// then. An interval that ends before emits its row earlier.
    fn emit_empty_row(&mut self, rows: &[Batch], span: Span) -> Option<Batch> {
        let at = self.beginning.as_mut()?.within(span)?;
        if self.shown_groups > 0 {
            return None;
        }
        let first = rows.iter().find_map(|batch| batch.ts.first().copied());
        let ends = [self.end, first.map(|ts| round_up(ts, Some(self.slide)))];
        let at = ends.into_iter().flatten().fold(at, i64::min);
        let row = self.groups.empty_row();
        self.groups.make_whole();
        self.shown_groups = 1;
        self.shown.grow_to(1);
        self.shown.write(&[0], &row);
        Some(Batch::deltas(vec![at], vec![1], row))
    }

    /// Adds partials of the current interval.
    fn add(&mut self, batch: &Batch) -> Result<(), EvalError> {
        let (keys, partials) = batch.columns.split_at(self.keys);
        let groups = self.groups.merge(keys, partials, batch.len())?;
        self.touched.extend(groups);
        Ok(())
    }

    /// Ends the current interval and emits the changes of its groups.
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
        // Groups are numbered in the order in which they appear, so the new ones are the last.
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

impl Operator for UnboundedMerge {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let rows = whole_instants(inputs[0]);
        let mut out = Vec::from_iter(self.emit_empty_row(&rows, span));
        let begins = !out.is_empty();
        for batch in rows {
            let mut from = 0;
            while from < batch.len() {
                let end = round_up(batch.ts[from], Some(self.slide));
                if self.end.is_some_and(|open| open < end) {
                    out.extend(self.close()?);
                }
                self.end = Some(end);
                let to = batch.ts.partition_point(|&ts| ts <= end);
                if self.failed.is_none() {
                    self.failed = self.add(&batch.slice(from, to - from)).err();
                }
                from = to;
            }
        }
        if self.end.is_some_and(|end| end <= span.upto) {
            out.extend(self.close()?);
        }
        // The first interval may end at the start of the query.
        Ok(match begins {
            true => self.net.net(&out),
            false => out,
        })
    }

    fn bytes(&self) -> usize {
        self.groups.bytes() + self.shown.bytes() + self.net.bytes() + self.touched.capacity() * 4
    }
}
