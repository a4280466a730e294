//! [`Interval`]: the groups of one interval, made of single rows, of groups that the source
//! pre-aggregated, or of partials of another engine.

use std::sync::Arc;

use arrow_array::Array;
use arrow_array::builder::BinaryBuilder;
use weir_model::{Batch, Column, ColumnBuilder, Folded, Type};

use super::distinct_call::DistinctValues;
use super::groups::{Pane, SelectedGroups};
use crate::eval::{Rows, eval};
use crate::expr::Expr;
use crate::function::{AggregateCall, AggregateState, EvalError, Shared};
use crate::synopsis::gather::{pick, take, take_columns, weights};
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::slots::Slots;
use crate::synopsis::table::KeyTable;

/// The groups of an interval, from the input received so far.
pub(super) struct Interval {
    keys: Vec<Expr>,
    /// The aggregates of the result.
    calls: Arc<[AggregateCall]>,
    /// Which of the aggregates share a state.
    shared: Shared,
    states: Vec<State>,
    packer: KeyPacker,
    table: KeyTable,
    /// The keys' values, by group.
    values: Slots,
    /// How many groups there are.
    groups: usize,
    /// How many requests each group was made of since the interval began, where that is counted.
    requests: Option<Vec<u64>>,
}

/// The state of an aggregate call, over all groups.
struct State {
    args: Vec<Expr>,
    ty: Type,
    state: Box<dyn AggregateState>,
    /// For `agg(DISTINCT x)`.
    distinct: Option<DistinctValues>,
}

/// The results of `calls` over no rows.
pub(super) fn empty_results(calls: &[AggregateCall]) -> Vec<Column> {
    let (row, _) = Interval::new(&[], calls)
        .finish()
        .expect("no value is too large where there is none");
    row
}

impl Interval {
    /// No groups yet, by `keys`, with the aggregates `calls`.
    pub(super) fn new(keys: &[Expr], calls: &[AggregateCall]) -> Interval {
        let types: Vec<Type> = keys.iter().map(Expr::ty).collect();
        let packer = KeyPacker::new(&types);
        let shared = Shared::of(calls);
        Interval {
            keys: keys.to_vec(),
            states: shared
                .owners
                .iter()
                .map(|&at| State::new(&calls[at]))
                .collect(),
            shared,
            calls: calls.into(),
            table: KeyTable::new(packer.width()),
            packer,
            values: Slots::of_types(types.into_iter()),
            groups: 0,
            requests: None,
        }
    }

    /// Also counts the requests that its groups are made of.
    pub(super) fn counting_requests(self) -> Interval {
        Interval {
            requests: Some(Vec::new()),
            ..self
        }
    }

    /// How many requests its groups are made of.
    pub(super) fn requests(&self) -> u64 {
        let counts = self.requests.as_deref().unwrap_or_default();
        counts.iter().sum()
    }

    /// Adds to the request counts of these groups.
    pub(super) fn count(&mut self, groups: impl Iterator<Item = (u32, u64)>) {
        if let Some(counts) = &mut self.requests {
            counts.resize(self.groups, 0);
            groups.for_each(|(group, requests)| counts[group as usize] += requests);
        }
    }

    /// How many groups there are.
    pub(super) fn len(&self) -> usize {
        self.groups
    }

    /// Whether all rows are one group, which exists without rows too.
    pub(super) fn is_whole(&self) -> bool {
        self.keys.is_empty()
    }

    /// The one row of an aggregation without keys over no rows.
    pub(super) fn empty_row(&self) -> Vec<Column> {
        empty_results(&self.calls)
    }

    /// Adds rows.
    ///
    /// # Errors
    /// When a key or an argument cannot be computed.
    pub(super) fn fold(&mut self, batch: &Batch) -> Result<(), EvalError> {
        let len = batch.len();
        let rows = Rows {
            columns: &batch.columns,
            len,
        };
        let keys = self.keys.iter().map(|k| eval(k, rows));
        let groups = self.groups_of(&keys.collect::<Result<Vec<_>, _>>()?, len);
        let weights = weights(batch);
        self.count(groups.iter().map(|group| (*group, 1)));
        let unwanted = vec![false; len];
        for state in &mut self.states {
            state.fold(self.groups, rows, &groups, &weights, &unwanted)?;
        }
        Ok(())
    }

    /// The groups of `len` rows with these keys.
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

    /// Adds groups that a source pre-aggregated.
    ///
    /// # Errors
    /// When two partials cannot be merged.
    pub(super) fn add(
        &mut self,
        folded: &Folded,
        selected: &SelectedGroups,
    ) -> Result<(), EvalError> {
        let groups = self.groups_of(&selected.keys, selected.picked.len());
        let counts = selected.requests(folded);
        self.count(groups.iter().copied().zip(counts));
        for (state, &owner) in self.states.iter_mut().zip(&self.shared.owners) {
            state.state.resize(self.groups);
            let call = &self.calls[owner];
            for (row, &group) in groups.iter().enumerate() {
                let kept = selected.kept(folded, owner, row);
                let partial = call.function.partial_of(call, &kept);
                let partial = partial.expect("the source kept what it was asked for");
                state.state.merge(group, &partial)?;
            }
        }
        Ok(())
    }

    /// Adds partials: each row holds the keys, then a partial for each state. Returns the group of
    /// each row.
    ///
    /// # Errors
    /// When a value is not a partial of that state, or two cannot be merged.
    pub(super) fn merge(
        &mut self,
        keys: &[Column],
        partials: &[Column],
        len: usize,
    ) -> Result<Vec<u32>, EvalError> {
        let groups = self.groups_of(keys, len);
        for (state, partials) in self.states.iter_mut().zip(partials) {
            state.state.resize(self.groups);
            let Column::Bytes(partials) = partials else {
                return Err(no_partial());
            };
            if partials.null_count() > 0 {
                return Err(no_partial());
            }
            for (row, &group) in groups.iter().enumerate() {
                state.state.merge(group, partials.value(row))?;
            }
        }
        Ok(groups)
    }

    /// Takes the partials of the interval, which ends at `end`, and clears it.
    pub(super) fn pane(&mut self, end: i64) -> Pane {
        let groups: Vec<u32> = (0..self.groups as u32).collect();
        let keys = self.values.gather(&groups);
        let mut bytes = Vec::new();
        let partials = self.states.iter_mut().map(|state| {
            state.state.resize(self.groups);
            let mut column = BinaryBuilder::with_capacity(groups.len(), 0);
            for &group in &groups {
                bytes.clear();
                state.state.partial(group, &mut bytes);
                column.append_value(&bytes);
            }
            Column::Bytes(column.finish())
        });
        let partials = partials.collect();
        let requests = self.requests.as_ref().map(|counts| {
            let counts = counts.iter();
            Column::ints(
                counts
                    .map(|n| i64::try_from(*n).unwrap_or(i64::MAX))
                    .collect(),
            )
        });
        self.clear();
        Pane {
            end,
            len: groups.len(),
            keys,
            partials,
            requests,
        }
    }

    /// Clears all groups.
    pub(super) fn clear(&mut self) {
        for state in &mut self.states {
            (0..self.groups as u32).for_each(|group| state.state.clear(group));
            if let Some(distinct) = &mut state.distinct {
                *distinct = DistinctValues::new(&state.args);
            }
        }
        if !self.keys.is_empty() {
            self.table = KeyTable::new(self.packer.width());
        }
        self.groups = 0;
        if let Some(counts) = &mut self.requests {
            counts.clear();
        }
    }

    /// The result's rows of these groups: the keys, then the calls.
    ///
    /// # Errors
    /// When a result does not fit its type.
    pub(super) fn rows(&mut self, groups: &[u32]) -> Result<Vec<Column>, EvalError> {
        let mut rows = self.values.gather(groups);
        for state in &mut self.states {
            state.state.resize(self.groups);
        }
        for (&state, call) in self.shared.state_of.iter().zip(&*self.calls) {
            rows.push(self.states[state].results(call, groups)?);
        }
        Ok(rows)
    }

    /// Adds the one group of an aggregation without keys, if it does not exist.
    pub(super) fn make_whole(&mut self) {
        self.groups = self.groups.max(1);
    }

    /// The rows of all groups, and their number, and clears the groups; the one group of an
    /// aggregation without keys always exists.
    ///
    /// # Errors
    /// As [`Interval::rows`].
    pub(super) fn finish(&mut self) -> Result<(Vec<Column>, usize), EvalError> {
        if self.is_whole() {
            self.make_whole();
        }
        let groups: Vec<u32> = (0..self.groups as u32).collect();
        let rows = self.rows(&groups)?;
        self.clear();
        Ok((rows, groups.len()))
    }

    /// Approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.packer.bytes()
            + self.table.bytes()
            + self.values.bytes()
            + self.states.iter().map(State::bytes).sum::<usize>()
    }
}

fn no_partial() -> EvalError {
    EvalError::new("a partial aggregate is missing")
        .help("run the same version of weir on every host")
}

impl State {
    fn new(call: &AggregateCall) -> State {
        State {
            args: call.args.clone(),
            ty: call.ty,
            state: call.function.append_only_state(call),
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

    /// The results of `call`, whose state this is.
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
