//! One aggregate call of an aggregation: its state, and the results last emitted.

use weir_model::{Column, ColumnBuilder, Type};

use super::Membership;
use super::distinct_call::{DistinctValues, Transitions};
use crate::eval::{Rows, eval};
use crate::expr::Expr;
use crate::function::{AggregateCall, AggregateState, EvalError};
use crate::synopsis::gather::{concat, take};
use crate::synopsis::slots::MutableColumn;

/// A call with its state.
pub(super) struct Call {
    args: Vec<Expr>,
    ty: Type,
    state: Box<dyn AggregateState>,
    /// For `agg(DISTINCT x)`.
    distinct: Option<DistinctValues>,
    /// The emitted result of each group, by slot.
    shown: MutableColumn,
    groups: usize,
}

impl Call {
    /// `append_only`: no row of the input is ever retracted.
    pub(super) fn new(call: &AggregateCall, append_only: bool) -> Call {
        let state = match append_only {
            true => call.function.append_only_state(call),
            false => call.function.state(call),
        };
        Call {
            args: call.args.clone(),
            ty: call.ty,
            state,
            distinct: call.distinct.then(|| DistinctValues::new(&call.args)),
            shown: MutableColumn::new(call.ty),
            groups: 0,
        }
    }

    /// Adds all rows, for groups up to `groups_max`. For each row that is the last of its group in
    /// its instant, returns the result emitted before and the new one, and clears `same` where they
    /// differ. `slots` is where each of those rows' results is stored.
    pub(super) fn update(
        &mut self,
        groups_max: usize,
        rows: Rows<'_>,
        weights: &[i64],
        members: &Membership,
        places: &[u32],
        same: &mut [bool],
    ) -> Result<(Column, Column), EvalError> {
        if groups_max > self.groups {
            self.groups = groups_max;
            self.state.resize(groups_max);
            self.shown.resize(groups_max);
        }
        let args = self
            .args
            .iter()
            .map(|a| eval(a, rows))
            .collect::<Result<Vec<_>, _>>()?;
        let new = match &mut self.distinct {
            None => {
                let mut out = ColumnBuilder::new(self.ty, places.len());
                self.state
                    .update(&members.groups, weights, &args, &members.last, &mut out)?;
                out.finish()
            }
            Some(values) => {
                let transitions =
                    values.transitions(&members.groups, weights, &args, &members.last);
                self.update_distinct(transitions, &args, places)?
            }
        };
        let old = self.shown.exchange(places, &new, same);
        Ok((old, new))
    }

    fn update_distinct(
        &mut self,
        transitions: Transitions,
        args: &[Column],
        places: &[u32],
    ) -> Result<Column, EvalError> {
        let args: Vec<Column> = args.iter().map(|a| take(a, &transitions.rows)).collect();
        let mut out = ColumnBuilder::new(self.ty, places.len());
        self.state.update(
            &transitions.groups,
            &transitions.weights,
            &args,
            &transitions.selected,
            &mut out,
        )?;
        // Where no value of the group was inserted or retracted, its result is unchanged.
        let before = self.shown.gather(places);
        let updated = out.finish();
        let start = places.len() as u32;
        let at = |(i, result): (usize, &Option<u32>)| result.map_or(i as u32, |r| start + r);
        let picks: Vec<u32> = transitions.results.iter().enumerate().map(at).collect();
        Ok(take(&concat(&[&before, &updated]), &picks))
    }

    /// Sets `result` as that of group 0, which has no rows.
    pub(super) fn show(&mut self, result: &Column) {
        self.groups = self.groups.max(1);
        self.state.resize(self.groups);
        self.shown.resize(self.groups);
        self.shown.write(&[0], result);
    }

    /// Clears a group.
    pub(super) fn clear(&mut self, group: u32) {
        self.state.clear(group);
    }

    /// Approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.state.bytes()
            + self.shown.bytes()
            + self.distinct.as_ref().map_or(0, DistinctValues::bytes)
    }
}
