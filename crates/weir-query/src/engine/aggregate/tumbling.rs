//! `GROUP BY` over `[Range S Slide S]`: the groups of one interval after the other.
//!
//! At a multiple of S all rows of the window go and others come. So there is nothing to take back:
//! rows are folded in as they come, into groups that are empty at the beginning of each interval,
//! and no row is kept. What a window and an [`Aggregate`](super::Aggregate) would give at each
//! multiple of S is given here, at a fraction of the work and the memory.
//!
//! A source may deliver groups in place of some rows, or of all. They are put together with the
//! rows' own by key. Over such a source a window may span several intervals: what each had is kept
//! as partials then, and put together anew at every multiple of S.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_model::{Batch, Column, ColumnBuilder, Folded, Schema, Type};

use super::distinct_call::DistinctValues;
use super::groups::{self, Pane};
use crate::engine::consolidate::Consolidate;
use crate::engine::eval::{Rows, eval};
use crate::engine::gather::{
    batch_bytes, concat_batches, pick, take, take_columns, weights, whole_instants,
};
use crate::engine::keys::KeyPacker;
use crate::engine::lane::Slots;
use crate::engine::operator::{Operator, Span};
use crate::engine::table::KeyTable;
use crate::expr::Expr;
use crate::function::{AggregateCall, AggregateState, EvalError};
use crate::place::fold::Reading;
use crate::plan::{Node, Plan, Window};

/// The stream and the interval of a window that an aggregation keeps itself.
pub(in crate::engine) fn own_interval(input: &Plan) -> Option<(&Arc<Plan>, i64)> {
    match &input.node {
        Node::Window {
            input,
            window:
                Window::Range {
                    size,
                    slide: Some(slide),
                },
        } if size == slide => Some((input, *size)),
        _ => None,
    }
}

/// The groups of the interval that is under way.
pub(in crate::engine) struct Tumbling {
    interval: i64,
    keys: Vec<Expr>,
    calls: Vec<Call>,
    /// The aggregates of the result, each with the position of the state that it is read off.
    columns: Vec<(usize, AggregateCall)>,
    packer: KeyPacker,
    table: KeyTable,
    /// The keys' values, by group.
    values: Slots,
    /// How many groups there are.
    groups: usize,
    /// The end of the interval that is under way; without, no row has come in it.
    end: Option<i64>,
    /// Why its result cannot be computed.
    failed: Option<EvalError>,
    /// The rows in the result.
    shown: Option<Shown>,
    net: Consolidate,
    /// How to read groups, where the source delivers such.
    reading: Option<Arc<Reading>>,
    /// Groups of intervals that end in the next step, the earliest first.
    folded: Vec<Folded>,
    /// The intervals that are over and still in the window, if it spans several.
    panes: VecDeque<Pane>,
    /// How many intervals the window spans.
    panes_max: usize,
}

/// The rows in the result.
struct Shown {
    rows: Vec<Column>,
    len: usize,
    /// When they go; without, only others take their place.
    until: Option<i64>,
}

/// An aggregate call with its state.
struct Call {
    args: Vec<Expr>,
    ty: Type,
    state: Box<dyn AggregateState>,
    /// For `agg(DISTINCT x)`.
    distinct: Option<DistinctValues>,
}

impl Tumbling {
    /// Groups the rows of each `interval` by `keys` and computes `calls`; `schema` is that of the
    /// result.
    pub(in crate::engine) fn new(
        keys: &[Expr],
        calls: &[AggregateCall],
        interval: i64,
        schema: &Schema,
    ) -> Tumbling {
        let types: Vec<Type> = keys.iter().map(Expr::ty).collect();
        let packer = KeyPacker::new(&types);
        let mut states: Vec<&AggregateCall> = Vec::new();
        let mut columns = Vec::with_capacity(calls.len());
        for call in calls {
            let known = states.iter().position(|state| shares(call, state));
            columns.push((known.unwrap_or(states.len()), call.clone()));
            if known.is_none() {
                states.push(call);
            }
        }
        Tumbling {
            interval,
            keys: keys.to_vec(),
            calls: states.into_iter().map(Call::new).collect(),
            columns,
            table: KeyTable::new(packer.width()),
            packer,
            values: Slots::of_types(types.into_iter()),
            groups: 0,
            end: None,
            failed: None,
            shown: None,
            net: Consolidate::new(schema),
            reading: None,
            folded: Vec::new(),
            panes: VecDeque::new(),
            panes_max: 1,
        }
    }

    /// The same over a source that delivers groups.
    pub(in crate::engine) fn of_groups(
        keys: &[Expr],
        calls: &[AggregateCall],
        reading: Reading,
        schema: &Schema,
    ) -> Tumbling {
        let by_rows = Tumbling::new(keys, calls, reading.slide, schema);
        Tumbling {
            panes_max: reading.panes,
            reading: Some(Arc::new(reading)),
            ..by_rows
        }
    }

    /// The end of the interval of an instant; `None` after the last multiple there is.
    fn end_of(&self, ts: i64) -> Option<i64> {
        match ts.rem_euclid(self.interval) {
            0 => Some(ts),
            rest => ts.checked_add(self.interval - rest),
        }
    }

    /// Folds in rows of the interval that is under way.
    fn fold(&mut self, batch: &Batch) -> Result<(), EvalError> {
        let len = batch.len();
        let rows = Rows {
            columns: &batch.columns,
            len,
        };
        let keys = self.keys.iter().map(|k| eval(k, rows));
        let groups = self.groups_of(&keys.collect::<Result<Vec<_>, _>>()?, len);
        let weights = weights(batch);
        let unwanted = vec![false; len];
        for call in &mut self.calls {
            call.fold(self.groups, rows, &groups, &weights, &unwanted)?;
        }
        Ok(())
    }

    /// The groups of so many rows with these keys.
    fn groups_of(&mut self, keys: &[Column], len: usize) -> Vec<u32> {
        let (groups, added) = match self.keys.is_empty() {
            true => (vec![0; len], Vec::new()),
            false => self.table.find_or_add_all(&self.packer.pack(keys, len)),
        };
        self.groups = match self.keys.is_empty() {
            true => 1,
            false => self.table.numbers(),
        };
        self.values.grow_to(self.groups);
        self.values
            .write(&pick(&groups, &added), &take_columns(keys, &added));
        groups
    }

    /// Takes groups of the interval that is under way in.
    fn take_in(&mut self, folded: &Folded, wanted: &groups::Wanted) -> Result<(), EvalError> {
        let groups = self.groups_of(&wanted.keys, wanted.picked.len());
        for (number, state) in self.calls.iter_mut().enumerate() {
            state.state.resize(self.groups);
            let at = self.columns.iter().position(|(state, _)| *state == number);
            let at = at.expect("a state is there for a column");
            let call = &self.columns[at].1;
            for (row, &group) in groups.iter().enumerate() {
                let kept = wanted.kept(folded, at, row);
                let partial = call.function.partial_of(call, &kept);
                let partial = partial.expect("the source kept what it was asked for");
                state.state.merge(group, &partial)?;
            }
        }
        Ok(())
    }

    /// What the interval that is over had. It is forgotten otherwise.
    fn pane(&mut self, end: i64) -> Pane {
        let groups: Vec<u32> = (0..self.groups as u32).collect();
        let keys = self.values.gather(&groups);
        let partial = |call: &Call, group: u32| {
            let mut out = Vec::new();
            call.state.partial(group, &mut out);
            out
        };
        for call in &mut self.calls {
            call.state.resize(self.groups);
        }
        let partials = groups.iter().map(|&group| {
            let calls = self.calls.iter();
            calls.map(|call| partial(call, group)).collect()
        });
        let partials = partials.collect();
        self.forget(&groups);
        Pane {
            end,
            keys,
            partials,
        }
    }

    /// Takes in all that the window holds at `at`.
    fn regroup(&mut self, at: i64) -> Result<(), EvalError> {
        let size = self.interval.saturating_mul(self.panes_max as i64);
        self.panes.retain(|pane| pane.end > at.saturating_sub(size));
        let panes = std::mem::take(&mut self.panes);
        for pane in &panes {
            let groups = self.groups_of(&pane.keys, pane.partials.len());
            for call in &mut self.calls {
                call.state.resize(self.groups);
            }
            for (&group, partials) in groups.iter().zip(&pane.partials) {
                for (call, partial) in self.calls.iter_mut().zip(partials) {
                    call.state.merge(group, partial)?;
                }
            }
        }
        self.panes = panes;
        Ok(())
    }

    /// Forgets what is known of these groups, which are all there are.
    fn forget(&mut self, groups: &[u32]) {
        for call in &mut self.calls {
            groups.iter().for_each(|&group| call.state.clear(group));
            if let Some(distinct) = &mut call.distinct {
                *distinct = DistinctValues::new(&call.args);
            }
        }
        if !self.keys.is_empty() {
            self.table = KeyTable::new(self.packer.width());
        }
        self.groups = 0;
    }

    /// The groups' rows at `at`. They are forgotten then.
    fn finish(&mut self, at: i64) -> Result<Shown, EvalError> {
        if self.keys.is_empty() {
            self.groups = 1;
        }
        let groups: Vec<u32> = (0..self.groups as u32).collect();
        let mut rows = self.values.gather(&groups);
        for call in &mut self.calls {
            call.state.resize(self.groups);
        }
        for (state, column) in &self.columns {
            rows.push(self.calls[*state].results(column, &groups)?);
        }
        self.forget(&groups);
        let until = at.checked_add(self.interval);
        Ok(Shown {
            rows,
            len: groups.len(),
            until: until.filter(|&until| until < i64::MAX),
        })
    }

    /// The interval that ends at `end` is under way. Others are over.
    fn begin(&mut self, end: i64, out: &mut Vec<Batch>) -> Result<(), EvalError> {
        if self.end.is_some_and(|open| open < end) {
            self.close(out)?;
        }
        self.expire(end - 1, out)?;
        self.end = Some(end);
        Ok(())
    }

    /// The interval under way is over: its rows take the place of those shown.
    fn close(&mut self, out: &mut Vec<Batch>) -> Result<(), EvalError> {
        let Some(end) = self.end else { return Ok(()) };
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.panes_max > 1 {
            let pane = self.pane(end);
            self.panes.push_back(pane);
            self.regroup(end)?;
        }
        let new = self.finish(end)?;
        self.end = None;
        let old = self.shown.take();
        self.exchange(end, old, Some(&new), out);
        self.shown = Some(new);
        Ok(())
    }

    /// What is shown goes, if its time has come by `upto`; where the window spans several
    /// intervals, what the later ones had takes its place. The one row of an aggregation without
    /// keys becomes that of no rows.
    fn expire(&mut self, upto: i64, out: &mut Vec<Batch>) -> Result<(), EvalError> {
        let due = |shown: &Shown| shown.until.filter(|&until| until <= upto);
        while let Some(at) = self.shown.as_ref().and_then(due) {
            let old = self.shown.take();
            self.regroup(at)?;
            if self.keys.is_empty() || self.groups > 0 {
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

    /// Takes in the groups of intervals that end by `end`.
    fn take_folded_by(&mut self, end: i64, out: &mut Vec<Batch>) -> Result<(), EvalError> {
        let due = self.folded.partition_point(|folded| folded.end <= end);
        for folded in self.folded.drain(..due).collect::<Vec<_>>() {
            let reading = self.reading.clone().expect("its source delivers groups");
            match groups::Wanted::of(&reading, &folded) {
                Ok(wanted) if wanted.picked.is_empty() => {}
                Ok(wanted) => {
                    self.begin(folded.end, out)?;
                    if self.failed.is_none() {
                        self.failed = self.take_in(&folded, &wanted).err();
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

    /// The net change from the `old` rows to the `new` ones.
    fn exchange(&mut self, at: i64, old: Option<Shown>, new: Option<&Shown>, out: &mut Vec<Batch>) {
        let change = |shown: &Shown, weight: i64| {
            let columns = shown.rows.clone();
            Batch::deltas(vec![at; shown.len], vec![weight; shown.len], columns)
        };
        let going = old.as_ref().map(|old| change(old, -1));
        let coming = new.map(|new| change(new, 1));
        let changes: Vec<Batch> = going.into_iter().chain(coming).collect();
        out.extend(self.net.net(&[concat_batches(&changes)]));
    }
}

/// Whether the result of `call` can be read off the state of `other`.
fn shares(call: &AggregateCall, other: &AggregateCall) -> bool {
    let same = call.function.doc().name == other.function.doc().name;
    same && !call.distinct && !other.distinct && call.function.shares(call, other)
}

impl Call {
    fn new(call: &AggregateCall) -> Call {
        Call {
            args: call.args.clone(),
            ty: call.ty,
            state: call.function.state_of_growing(call),
            distinct: call.distinct.then(|| DistinctValues::new(&call.args)),
        }
    }

    fn fold(
        &mut self,
        groups_max: usize,
        rows: Rows<'_>,
        groups: &[u32],
        weights: &[i64],
        unwanted: &[bool],
    ) -> Result<(), EvalError> {
        self.state.resize(groups_max);
        let args = self.args.iter().map(|a| eval(a, rows));
        let args = args.collect::<Result<Vec<_>, _>>()?;
        let mut none = ColumnBuilder::new(self.ty, 0);
        let Some(distinct) = &mut self.distinct else {
            return self
                .state
                .update(groups, weights, &args, unwanted, &mut none);
        };
        let first = distinct.transitions(groups, weights, &args, unwanted);
        let args: Vec<Column> = args.iter().map(|a| take(a, &first.rows)).collect();
        self.state.update(
            &first.groups,
            &first.weights,
            &args,
            &vec![false; first.groups.len()],
            &mut none,
        )
    }

    /// The results of `call`, which is this one or shares its state.
    fn results(&self, call: &AggregateCall, groups: &[u32]) -> Result<Column, EvalError> {
        let mut out = ColumnBuilder::new(call.ty, groups.len());
        for &group in groups {
            out.push(self.state.result_of(call, group)?);
        }
        Ok(out.finish())
    }

    fn bytes(&self) -> usize {
        self.state.bytes() + self.distinct.as_ref().map_or(0, DistinctValues::bytes)
    }
}

impl Operator for Tumbling {
    fn take_folded(&mut self, _: usize, folded: &[Folded]) {
        self.folded.extend(folded.iter().cloned());
        self.folded.sort_by_key(|f| f.end);
    }

    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let mut out = Vec::new();
        for batch in whole_instants(inputs[0]) {
            let mut from = 0;
            while from < batch.len() {
                let Some(end) = self.end_of(batch.ts[from]) else {
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
        // What expires with the end of the interval under way is exchanged when that is over.
        let before_end = self.end.map_or(span.upto, |end| span.upto.min(end - 1));
        self.expire(before_end, &mut out)?;
        Ok(out)
    }

    fn reach(&self, span: Span, rows_max: usize) -> i64 {
        let (Some(shown), false) = (&self.shown, self.panes.is_empty()) else {
            return span.upto;
        };
        let count = i64::try_from((rows_max / shown.len.max(1)).max(1)).unwrap_or(i64::MAX);
        let far = self.interval.saturating_mul(count);
        span.upto.min(span.after.saturating_add(far))
    }

    fn bytes(&self) -> usize {
        let panes = self.panes.iter().map(Pane::bytes).sum::<usize>();
        let shown = self.shown.iter().map(|shown| {
            let rows = Batch::stream(vec![0; shown.len], shown.rows.clone());
            batch_bytes(&rows)
        });
        self.packer.bytes()
            + self.table.bytes()
            + self.values.bytes()
            + self.net.bytes()
            + shown.sum::<usize>()
            + panes
            + self.calls.iter().map(Call::bytes).sum::<usize>()
    }
}
