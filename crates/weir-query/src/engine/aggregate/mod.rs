//! `GROUP BY` and `DISTINCT`: one row for each group, its aggregates updated as rows are inserted
//! and retracted.
//!
//! A batch is added column by column: each row is assigned to its group, then each aggregate adds
//! all rows at once and returns the result of each group at the end of each instant that touched
//! it. Where the result of a group changes, its old row is retracted and the new one inserted.

mod call;
mod combine;
mod distinct_call;
mod groups;
mod interval;
mod last;
#[cfg(test)]
mod tests;
mod tumbling;
mod unbounded;

use weir_model::{Batch, Column, Schema, Type};

use self::call::Call;
pub use self::combine::PartialCombiner;
use self::interval::empty_results;
pub(super) use self::last::FinalGroups;
pub(super) use self::tumbling::Tumbling;
pub(super) use self::unbounded::UnboundedMerge;
use crate::eval::{Rows, eval_all};
use crate::expr::Expr;
use crate::function::{AggregateCall, EvalError};
use crate::operator::{Operator, QueryStart, Span};
use crate::plan::GlobalGroup;
use crate::synopsis::gather::{
    interleave, interleave_slices, minus_plus, pick, take, take_batch, take_columns, weights,
    whole_instants,
};
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::slots::Slots;
use crate::synopsis::table::KeyTable;

/// The groups of a relation.
pub(super) struct Aggregate {
    keys: Vec<Expr>,
    calls: Vec<Call>,
    packer: KeyPacker,
    table: KeyTable,
    groups: Vec<Group>,
    /// The keys' values, by group.
    values: Slots,
    /// Number of rows so far; distinguishes the rows of the current instant from earlier ones.
    rows_ever: u64,
    /// Without keys: the results over no rows, if they are emitted at the start of the query.
    empty_row_at_start: Option<(QueryStart, Vec<Column>)>,
}

#[derive(Clone, Copy, Default)]
struct Group {
    /// How many rows it has.
    count: i64,
    /// Its latest row, as counted by `rows_ever`.
    latest: u64,
    /// Whether its row is in the result.
    shown: bool,
}

/// The rows of a batch and their groups.
struct Membership {
    /// Each row's group.
    groups: Vec<u32>,
    /// Which rows are the last of their group in their instant.
    last: Vec<bool>,
    /// Of those, which leave their group empty.
    empty: Vec<bool>,
}

/// The rows that are the last of their group in their instant, in order.
struct Touched {
    rows: Vec<u32>,
    groups: Vec<u32>,
}

impl Aggregate {
    /// Groups by `keys` and computes `calls`. `append_only`: no row of the input is ever retracted.
    pub(super) fn new(keys: &[Expr], calls: &[AggregateCall], append_only: bool) -> Aggregate {
        let types: Vec<Type> = keys.iter().map(Expr::ty).collect();
        let packer = KeyPacker::new(&types);
        Aggregate {
            keys: keys.to_vec(),
            calls: calls.iter().map(|c| Call::new(c, append_only)).collect(),
            table: KeyTable::new(packer.width()),
            packer,
            groups: Vec::new(),
            values: Slots::of_types(types.into_iter()),
            // Groups start with 0 as their latest row, which is before all.
            rows_ever: 1,
            empty_row_at_start: None,
        }
    }

    /// Sets from when on the one row of an aggregation without keys exists.
    pub(super) fn with_global_group(
        self,
        global: GlobalGroup,
        calls: &[AggregateCall],
    ) -> Aggregate {
        let from_start = self.keys.is_empty() && global == GlobalGroup::FromStart;
        Aggregate {
            empty_row_at_start: from_start.then(|| (QueryStart::default(), empty_results(calls))),
            ..self
        }
    }

    /// At the start of the query, emits the row over no rows, unless the first of `batches` arrive
    /// by then and emit it themselves.
    fn begin(&mut self, batches: &[Batch], span: Span) -> Option<Batch> {
        let (beginning, results) = self.empty_row_at_start.as_mut()?;
        let at = beginning.within(span)?;
        let first = batches.iter().find_map(|b| b.ts.first().copied());
        if first.is_some_and(|first| first <= at) || self.groups.first().is_some_and(|g| g.shown) {
            return None;
        }
        self.groups.resize(1, Group::default());
        self.groups[0].shown = true;
        for (call, result) in self.calls.iter_mut().zip(&*results) {
            call.show(result);
        }
        Some(Batch::deltas(vec![at], vec![1], results.clone()))
    }

    /// Each distinct row once.
    pub(super) fn distinct(schema: &Schema) -> Aggregate {
        let column = |(i, f): (usize, &weir_model::Field)| Expr::column(i, f.ty, f.unit);
        let keys: Vec<Expr> = schema.fields.iter().enumerate().map(column).collect();
        Aggregate::new(&keys, &[], true)
    }

    fn fold(&mut self, batch: &Batch) -> Result<Batch, EvalError> {
        let len = batch.len();
        let rows = Rows {
            columns: &batch.columns,
            len,
        };
        let keys = eval_all(&self.keys, rows)?;
        let weights = weights(batch);
        let members = self.assign(&batch.ts, &keys, &weights);
        let touched = members.touched();
        let mut same = vec![true; touched.rows.len()];
        let mut results = Vec::with_capacity(self.calls.len());
        for call in &mut self.calls {
            let groups_max = self.groups.len();
            results.push(call.update(
                groups_max,
                rows,
                &weights,
                &members,
                &touched.groups,
                &mut same,
            )?);
        }
        let emptied = self.emptied(&members, &touched);
        let out = self.changes(&batch.ts, &members, touched, &same, results);
        self.free(&emptied);
        Ok(out)
    }

    /// Finds each row's group, and which rows are the last to touch it in their instant.
    fn assign(&mut self, ts: &[i64], keys: &[Column], weights: &[i64]) -> Membership {
        if self.keys.is_empty() {
            return self.assign_to_the_whole(ts, weights);
        }
        let len = ts.len();
        let (numbers, added) = self.table.find_or_add_all(&self.packer.pack(keys, len));
        let groups = self.table.numbers();
        self.groups.resize(groups, Group::default());
        self.values.grow_to(groups);
        self.values
            .write(&pick(&numbers, &added), &take_columns(keys, &added));
        let mut last = vec![true; len];
        let mut empty = vec![false; len];
        let first = self.rows_ever;
        let mut instant = first;
        let mut before = None;
        let rows = numbers.iter().zip(weights).zip(ts).zip(&mut empty);
        for (at, (((&number, &weight), &ts), empty)) in (first..).zip(rows) {
            if before.replace(ts) != Some(ts) {
                instant = at;
            }
            let group = &mut self.groups[number as usize];
            if group.latest >= instant {
                last[(group.latest - first) as usize] = false;
            }
            group.latest = at;
            group.count += weight;
            *empty = group.count == 0;
        }
        self.rows_ever += len as u64;
        Membership {
            groups: numbers,
            last,
            empty,
        }
    }

    /// [`Aggregate::assign`] without keys: all rows are of group 0.
    fn assign_to_the_whole(&mut self, ts: &[i64], weights: &[i64]) -> Membership {
        self.groups.resize(1, Group::default());
        let group = &mut self.groups[0];
        let count = |weight: &i64| {
            group.count += weight;
            group.count == 0
        };
        let empty = weights.iter().map(count).collect();
        let mut last: Vec<bool> = ts.windows(2).map(|pair| pair[0] != pair[1]).collect();
        last.resize(ts.len(), true);
        self.rows_ever += ts.len() as u64;
        group.latest = self.rows_ever - 1;
        Membership {
            groups: vec![0; ts.len()],
            last,
            empty,
        }
    }

    /// Retracts the old rows and inserts the new ones. `same` marks groups whose results are
    /// unchanged.
    fn changes(
        &mut self,
        ts: &[i64],
        members: &Membership,
        touched: Touched,
        same: &[bool],
        results: Vec<(Column, Column)>,
    ) -> Batch {
        if !members.empty.contains(&true) && self.are_shown(&touched) {
            let (touched, results) = match same.contains(&true) {
                true => picked(touched, results, &changed_positions(same)),
                false => (touched, results),
            };
            return self.replacements(ts, &touched, &results);
        }
        let count = touched.rows.len();
        let mut was = Vec::with_capacity(count);
        let mut is = Vec::with_capacity(count);
        let mut changed = Vec::with_capacity(count);
        let always = self
            .empty_row_at_start
            .as_ref()
            .is_some_and(|(b, _)| b.is_passed());
        for (i, (&row, &group)) in touched.rows.iter().zip(&touched.groups).enumerate() {
            let group = &mut self.groups[group as usize];
            // The one row of an aggregation without keys is never retracted for good.
            let stays = self.keys.is_empty() && (group.shown || always);
            let shown = !members.empty[row as usize] || stays;
            if !(group.shown == shown && (same[i] || !shown)) {
                was.push(group.shown);
                is.push(shown);
                changed.push(i as u32);
            }
            group.shown = shown;
        }
        let (touched, results) = picked(touched, results, &changed);
        self.replacements_and_others(ts, &touched, &results, &was, &is)
    }

    /// Whether all these groups have a row in the result.
    fn are_shown(&self, touched: &Touched) -> bool {
        let is_shown = |&group: &u32| self.groups[group as usize].shown;
        match self.keys.is_empty() {
            true => self.groups[0].shown,
            false => touched.groups.iter().all(is_shown),
        }
    }

    /// Retracts every old row and inserts a new one.
    fn replacements(&self, ts: &[i64], touched: &Touched, results: &[(Column, Column)]) -> Batch {
        let ts = pick(ts, &touched.rows);
        let keys = self.values.gather(&touched.groups);
        let keys = keys.iter().map(|key| interleave(key, key));
        let results = results.iter().map(|(old, new)| interleave(old, new));
        Batch {
            ts: interleave_slices(&ts, &ts).into(),
            weights: Some(minus_plus(ts.len())),
            columns: keys.chain(results).collect(),
        }
    }

    /// Retracts the old row where there `was` one and inserts the new one where there `is` one.
    fn replacements_and_others(
        &self,
        ts: &[i64],
        touched: &Touched,
        results: &[(Column, Column)],
        was: &[bool],
        is: &[bool],
    ) -> Batch {
        // Every row twice, the old and the new; then those that exist are selected.
        let all = self.replacements(ts, touched, results);
        let there = was.iter().zip(is).flat_map(|(&was, &is)| [was, is]);
        let picks: Vec<u32> = (0..)
            .zip(there)
            .filter_map(|(row, there)| there.then_some(row))
            .collect();
        take_batch(&all, &picks)
    }

    /// The groups that are empty at the end of the batch.
    fn emptied(&self, members: &Membership, touched: &Touched) -> Vec<u32> {
        if !members.empty.contains(&true) {
            return Vec::new();
        }
        let first = self.rows_ever - members.groups.len() as u64;
        let is_emptied = |&(&row, &number): &(&u32, &u32)| {
            let group = &self.groups[number as usize];
            group.count == 0 && group.latest == first + u64::from(row)
        };
        let last = touched.rows.iter().zip(&touched.groups);
        last.filter(is_emptied).map(|(_, &number)| number).collect()
    }

    /// Clears groups and frees their numbers.
    fn free(&mut self, groups: &[u32]) {
        for &number in groups {
            self.calls.iter_mut().for_each(|c| c.clear(number));
            if !self.keys.is_empty() {
                self.groups[number as usize] = Group::default();
                self.table.remove(number);
            }
        }
        self.table.recycle();
    }
}

/// The positions of the groups whose results are not the same.
fn changed_positions(same: &[bool]) -> Vec<u32> {
    (0..)
        .zip(same)
        .filter_map(|(at, &same)| (!same).then_some(at))
        .collect()
}

/// The groups at these positions, with the results before and after.
fn picked(
    touched: Touched,
    results: Vec<(Column, Column)>,
    positions: &[u32],
) -> (Touched, Vec<(Column, Column)>) {
    if positions.len() == touched.rows.len() {
        return (touched, results);
    }
    let pick = |(old, new): &(Column, Column)| (take(old, positions), take(new, positions));
    (touched.pick(positions), results.iter().map(pick).collect())
}

impl Touched {
    /// The rows at these positions.
    fn pick(&self, positions: &[u32]) -> Touched {
        Touched {
            rows: pick(&self.rows, positions),
            groups: pick(&self.groups, positions),
        }
    }
}

impl Membership {
    fn touched(&self) -> Touched {
        let len = self.groups.len();
        if !self.last.contains(&false) {
            return Touched {
                rows: (0..len as u32).collect(),
                groups: self.groups.clone(),
            };
        }
        let rows: Vec<u32> = (0..len as u32)
            .filter(|&row| self.last[row as usize])
            .collect();
        Touched {
            groups: pick(&self.groups, &rows),
            rows,
        }
    }
}

impl Operator for Aggregate {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let batches = whole_instants(inputs[0]);
        let mut out = Vec::from_iter(self.begin(&batches, span));
        for batch in &batches {
            out.push(self.fold(batch)?);
        }
        Ok(out)
    }

    fn bytes(&self) -> usize {
        self.packer.bytes()
            + self.table.bytes()
            + self.groups.capacity() * size_of::<Group>()
            + self.values.bytes()
            + self.calls.iter().map(Call::bytes).sum::<usize>()
    }
}
