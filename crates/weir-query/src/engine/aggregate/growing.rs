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
use crate::engine::operator::{Beginning, Operator, Span};
use crate::engine::window::round_up;
use crate::function::{AggregateCall, EvalError};
use crate::plan::Whole;

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
    /// Where the row over no rows is to be shown from the beginning on.
    beginning: Option<Beginning>,
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
            beginning: None,
        }
    }

    /// The same, where the one row of an aggregation without keys exists since `whole`.
    pub(in crate::engine) fn whole(self, whole: Whole) -> Growing {
        let from_start = self.groups.is_whole() && whole == Whole::FromStart;
        Growing {
            beginning: from_start.then(Beginning::default),
            ..self
        }
    }

    /// At the beginning of the query: the row over no rows, unless something is shown by then. An
    /// interval that ends before brings its row earlier.
    fn show_nothing(&mut self, rows: &[Batch], span: Span) -> Option<Batch> {
        let at = self.beginning.as_mut()?.within(span)?;
        if self.shown_groups > 0 {
            return None;
        }
        let first = rows.iter().find_map(|batch| batch.ts.first().copied());
        let ends = [self.end, first.map(|ts| round_up(ts, Some(self.slide)))];
        let at = ends.into_iter().flatten().fold(at, i64::min);
        let row = self.groups.of_nothing();
        self.groups.make_whole();
        self.shown_groups = 1;
        self.shown.grow_to(1);
        self.shown.write(&[0], &row);
        Some(Batch::deltas(vec![at], vec![1], row))
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
        let rows = whole_instants(inputs[0]);
        let mut out = Vec::from_iter(self.show_nothing(&rows, span));
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
                    self.failed = self.take_in(&batch.slice(from, to - from)).err();
                }
                from = to;
            }
        }
        if self.end.is_some_and(|end| end <= span.upto) {
            out.extend(self.close()?);
        }
        // The first interval may end as the query begins.
        Ok(match begins {
            true => self.net.net(&out),
            false => out,
        })
    }

    fn bytes(&self) -> usize {
        self.groups.bytes() + self.shown.bytes() + self.net.bytes() + self.touched.capacity() * 4
    }
}
