//! `GROUP BY` over `[Range S Slide S]`: the groups of one interval after the other.
//!
//! At a multiple of S all rows leave the window and others enter it, so nothing is retracted
//! singly: rows are added to groups that are empty at the start of each interval, and no row is
//! kept. The result is that of a window and an [`Aggregate`](super::Aggregate), at a fraction of
//! the work and the memory.
//!
//! A source may deliver groups in place of some rows, or of all; they are merged by key with the
//! groups of the rows. Over such a source a window may span several intervals: the partials of each
//! are kept as a pane, and merged at every multiple of S.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_model::{Batch, Column, Folded, Schema};

use super::groups::{self, Pane};
use super::interval::Interval;
use crate::engine::consolidate::Consolidate;
use crate::expr::Expr;
use crate::function::{AggregateCall, EvalError};
use crate::operator::{Operator, QueryStart, Span};
use crate::physical::FoldedInput;
use crate::plan::GlobalGroup;
use crate::synopsis::gather::{batch_bytes, concat_batches, whole_instants};

/// The groups of the current interval.
pub(in crate::engine) struct Tumbling {
    slide: i64,
    gives: Gives,
    groups: Interval,
    /// The end of the current interval; `None` while no row has arrived in it.
    end: Option<i64>,
    /// The error of the current interval's result.
    failed: Option<EvalError>,
    /// The rows in the result.
    shown: Option<Shown>,
    net: Consolidate,
    /// How to read groups, where the source delivers them.
    reading: Option<Arc<FoldedInput>>,
    /// Groups of intervals that end in the next step, the earliest first.
    folded: Vec<Folded>,
    /// The ended intervals that are still in the window, if it spans several.
    panes: VecDeque<Pane>,
    /// How many intervals the window spans.
    panes_max: i64,
    /// Set when the row over no rows is emitted at the start of the query.
    beginning: Option<QueryStart>,
}

/// What the operator reads and emits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gives {
    /// Reads rows, emits the changes of the result.
    Result,
    /// Reads rows, emits a partial of each group at the end of the interval.
    Partials,
    /// Reads partials, emits the changes of the result; the number of key columns.
    Merged(usize),
}

/// The rows in the result.
struct Shown {
    rows: Vec<Column>,
    len: usize,
    /// When they are retracted; `None` where they are only replaced.
    until: Option<i64>,
}

impl Tumbling {
    /// Groups the rows of each interval of `slide` by `keys` and computes `calls`; `schema` is that
    /// of the result.
    pub(in crate::engine) fn new(
        keys: &[Expr],
        calls: &[AggregateCall],
        slide: i64,
        schema: &Schema,
    ) -> Tumbling {
        Tumbling {
            slide,
            gives: Gives::Result,
            groups: Interval::new(keys, calls),
            end: None,
            failed: None,
            shown: None,
            net: Consolidate::new(schema),
            reading: None,
            folded: Vec::new(),
            panes: VecDeque::new(),
            panes_max: 1,
            beginning: None,
        }
    }

    /// Sets from when on the one row of an aggregation without keys exists.
    pub(in crate::engine) fn with_global_group(self, global: GlobalGroup) -> Tumbling {
        let from_start = self.groups.is_whole() && global == GlobalGroup::FromStart;
        Tumbling {
            beginning: from_start.then(QueryStart::default),
            ..self
        }
    }

    /// The same operator over a source that delivers groups.
    pub(in crate::engine) fn of_groups(
        keys: &[Expr],
        calls: &[AggregateCall],
        reading: FoldedInput,
        schema: &Schema,
    ) -> Tumbling {
        let by_rows = Tumbling::new(keys, calls, reading.slide, schema);
        Tumbling {
            panes_max: reading.panes as i64,
            reading: Some(Arc::new(reading)),
            ..by_rows
        }
    }

    /// Emits partials of each interval for another engine to merge.
    pub(in crate::engine) fn partials(self) -> Tumbling {
        Tumbling {
            gives: Gives::Partials,
            panes_max: 1,
            groups: self.groups.counting_requests(),
            ..self
        }
    }

    /// Reads partials, whose first `keys` columns are keys, and merges them into windows of
    /// `panes_max` intervals.
    pub(in crate::engine) fn merged(
        input: &Schema,
        keys: usize,
        calls: &[AggregateCall],
        (slide, panes_max): (i64, i64),
        schema: &Schema,
    ) -> Tumbling {
        Tumbling {
            gives: Gives::Merged(keys),
            panes_max,
            ..Tumbling::new(&first_columns(input, keys), calls, slide, schema)
        }
    }

    /// The end of the interval of an instant; `None` after the last multiple that an `i64` can
    /// hold.
    fn single_state(&self, ts: i64) -> Option<i64> {
        match ts.rem_euclid(self.slide) {
            0 => Some(ts),
            rest => ts.checked_add(self.slide - rest),
        }
    }

    /// Adds rows of the current interval.
    fn fold(&mut self, batch: &Batch) -> Result<(), EvalError> {
        match self.gives {
            Gives::Merged(keys) => {
                let (keys, partials) = batch.columns.split_at(keys);
                self.groups.merge(keys, partials, batch.len()).map(drop)
            }
            Gives::Result | Gives::Partials => self.groups.fold(batch),
        }
    }

    /// Adds all panes that are in the window at `at`.
    fn merge_panes(&mut self, at: i64) -> Result<(), EvalError> {
        let size = self.slide.saturating_mul(self.panes_max);
        self.panes.retain(|pane| pane.end > at.saturating_sub(size));
        for pane in &self.panes {
            self.groups.merge(&pane.keys, &pane.partials, pane.len)?;
        }
        Ok(())
    }

    /// The groups' rows at `at`; clears the groups.
    fn finish(&mut self, at: i64) -> Result<Shown, EvalError> {
        let (rows, len) = self.groups.finish()?;
        let until = at.checked_add(self.slide);
        Ok(Shown {
            rows,
            len,
            until: until.filter(|&until| until < i64::MAX),
        })
    }

    /// At the start of the query, emits the row over no rows, unless a row is in the result by
    /// then. An interval that ends before emits its row earlier, if it has any of the query's rows.
    /// Returns whether the row was added to `out`.
    fn emit_empty_row(&mut self, rows: &[Batch], span: Span, out: &mut Vec<Batch>) -> bool {
        let beginning = self.beginning.as_mut();
        let Some(at) = beginning.and_then(|beginning| beginning.within(span)) else {
            return false;
        };
        if self.shown.is_some() {
            return false;
        }
        let first_row = rows.iter().find_map(|batch| batch.ts.first().copied());
        let ends = [
            self.end,
            first_row.and_then(|ts| self.single_state(ts)),
            self.first_selected().map(|folded| folded.end),
        ];
        let at = ends.into_iter().flatten().fold(at, i64::min);
        let empty_row_at_start = Shown {
            rows: self.groups.empty_row(),
            len: 1,
            until: None,
        };
        self.exchange(at, None, Some(&empty_row_at_start), out);
        self.shown = Some(empty_row_at_start);
        true
    }

    /// The earliest waiting groups with input for this query. A source also delivers intervals
    /// without groups, or without groups that pass the query's filters.
    fn first_selected(&self) -> Option<&Folded> {
        let reading = self.reading.as_ref()?;
        let empty_row_at_start = |folded: &Folded| {
            let selected = groups::SelectedGroups::of(reading, folded);
            selected.is_ok_and(|selected| selected.picked.is_empty())
        };
        self.folded
            .iter()
            .find(|folded| !empty_row_at_start(folded))
    }

    /// Starts the interval that ends at `end` and closes any other.
    fn begin(&mut self, end: i64, out: &mut Vec<Batch>) -> Result<(), EvalError> {
        if self.end.is_some_and(|open| open < end) {
            self.close(out)?;
        }
        self.expire(end - 1, out)?;
        self.end = Some(end);
        Ok(())
    }

    /// Ends the current interval: its rows replace those in the result.
    fn close(&mut self, out: &mut Vec<Batch>) -> Result<(), EvalError> {
        let Some(end) = self.end else { return Ok(()) };
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.gives == Gives::Partials {
            self.end = None;
            let pane = self.groups.pane(end);
            let mut columns = [pane.keys, pane.partials].concat();
            columns.extend(pane.requests);
            out.push(Batch::stream(vec![end; pane.len], columns));
            return Ok(());
        }
        if self.panes_max > 1 {
            let pane = self.groups.pane(end);
            self.panes.push_back(pane);
            self.merge_panes(end)?;
        }
        let new = self.finish(end)?;
        self.end = None;
        let old = self.shown.take();
        self.exchange(end, old, Some(&new), out);
        self.shown = Some(new);
        Ok(())
    }

    /// Retracts the result if it expires by `upto`; where the window spans several intervals, the
    /// result of the later ones replaces it. The one row of an aggregation without keys becomes
    /// that of no rows.
    fn expire(&mut self, upto: i64, out: &mut Vec<Batch>) -> Result<(), EvalError> {
        let due = |shown: &Shown| shown.until.filter(|&until| until <= upto);
        while let Some(at) = self.shown.as_ref().and_then(due) {
            let old = self.shown.take();
            self.merge_panes(at)?;
            if self.groups.is_whole() || self.groups.len() > 0 {
                let left = !self.panes.is_empty();
                let new = self.finish(at)?;
                self.exchange(at, old, Some(&new), out);
                self.shown = Some(Shown {
                    until: new.until.filter(|_| left),
                    ..new
                });
            } else {
                self.exchange(at, old, None, out);
            }
        }
        Ok(())
    }

    /// Adds the groups of intervals that end by `end`.
    fn take_folded_by(&mut self, end: i64, out: &mut Vec<Batch>) -> Result<(), EvalError> {
        let due = self.folded.partition_point(|folded| folded.end <= end);
        for folded in self.folded.drain(..due).collect::<Vec<_>>() {
            let reading = self.reading.clone().expect("its source delivers groups");
            match groups::SelectedGroups::of(&reading, &folded) {
                Ok(selected) if selected.picked.is_empty() => {}
                Ok(selected) => {
                    self.begin(folded.end, out)?;
                    if self.failed.is_none() {
                        self.failed = self.groups.add(&folded, &selected).err();
                    }
                }
                Err(error) => {
                    self.begin(folded.end, out)?;
                    self.failed.get_or_insert(error);
                }
            }
        }
        Ok(())
    }

    /// Emits the net change from the `old` rows to the `new` ones.
    fn exchange(&mut self, at: i64, old: Option<Shown>, new: Option<&Shown>, out: &mut Vec<Batch>) {
        let change = |shown: &Shown, weight: i64| {
            let columns = shown.rows.clone();
            Batch::deltas(vec![at; shown.len], vec![weight; shown.len], columns)
        };
        let retracted = old.as_ref().map(|old| change(old, -1));
        let inserted = new.map(|new| change(new, 1));
        let changes: Vec<Batch> = retracted.into_iter().chain(inserted).collect();
        out.extend(self.net.net(&[concat_batches(&changes)]));
    }
}

/// The first columns of a schema, each as an expression.
pub(super) fn first_columns(schema: &Schema, columns: usize) -> Vec<Expr> {
    let fields = schema.fields[..columns].iter().enumerate();
    fields.map(|(i, f)| Expr::column(i, f.ty, f.unit)).collect()
}

impl Operator for Tumbling {
    fn take_folded(&mut self, _: usize, folded: &[Folded]) {
        self.folded.extend(folded.iter().cloned());
        self.folded.sort_by_key(|f| f.end);
    }

    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let mut out = Vec::new();
        let rows = whole_instants(inputs[0]);
        let begins = self.emit_empty_row(&rows, span, &mut out);
        for batch in rows {
            let mut from = 0;
            while from < batch.len() {
                let Some(end) = self.single_state(batch.ts[from]) else {
                    break;
                };
                self.take_folded_by(end, &mut out)?;
                self.begin(end, &mut out)?;
                let to = batch.ts.partition_point(|&ts| ts <= end);
                if self.failed.is_none() {
                    self.failed = self.fold(&batch.slice(from, to - from)).err();
                }
                from = to;
            }
        }
        self.take_folded_by(span.upto, &mut out)?;
        if self.end.is_some_and(|end| end <= span.upto) {
            self.close(&mut out)?;
        }
        // What expires at the end of the current interval is replaced when that interval closes.
        let before_end = self.end.map_or(span.upto, |end| span.upto.min(end - 1));
        self.expire(before_end, &mut out)?;
        // The first interval may end at the start of the query.
        Ok(match begins {
            true => self.net.net(&out),
            false => out,
        })
    }

    fn bound_span(&self, span: Span, rows_max: usize) -> i64 {
        let (Some(shown), false) = (&self.shown, self.panes.is_empty()) else {
            return span.upto;
        };
        let count = i64::try_from((rows_max / shown.len.max(1)).max(1)).unwrap_or(i64::MAX);
        let far = self.slide.saturating_mul(count);
        span.upto.min(span.after.saturating_add(far))
    }

    fn open_requests(&self) -> u64 {
        self.groups.requests()
    }

    fn bytes(&self) -> usize {
        let panes = self.panes.iter().map(Pane::bytes).sum::<usize>();
        let shown = self.shown.iter().map(|shown| {
            let rows = Batch::stream(vec![0; shown.len], shown.rows.clone());
            batch_bytes(&rows)
        });
        self.groups.bytes() + self.net.bytes() + shown.sum::<usize>() + panes
    }
}
