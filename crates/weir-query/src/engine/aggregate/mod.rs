//! `GROUP BY` and `DISTINCT`: one row for each group, its aggregates kept up to date as rows come and go.
//!
//! A batch is folded in column by column: first every row finds its group, then every aggregate takes all rows at once and gives the
//! result of each group at the end of each instant that touched it. Of a group whose result changes, the old row goes and the new one comes.

mod call;
mod distinct_call;
#[cfg(test)]
mod tests;

use weir_model::{Batch, Column, Schema, Type};

use self::call::Call;
use super::eval::{Rows, eval};
use super::gather::{concat, interleave, pick, take, take_columns, weights, whole_instants};
use super::keys::{KeyPacker, Keys};
use super::lane::Slots;
use super::operator::{Operator, Span};
use super::table::KeyTable;
use crate::expr::Expr;
use crate::function::{AggregateCall, EvalError};

/// The groups of a relation.
pub(super) struct Aggregate {
    keys: Vec<Expr>,
    calls: Vec<Call>,
    packer: KeyPacker,
    table: KeyTable,
    groups: Vec<Group>,
    /// The keys' values, by group.
    values: Slots,
    /// Rows seen so far; tells the rows of one instant from those before.
    rows_ever: u64,
    /// Without keys: whether its one row is there.
    begun: bool,
}

#[derive(Clone, Copy, Default)]
struct Group {
    /// How many rows it has.
    count: i64,
    /// Its latest row, as `rows_ever` counts.
    latest: u64,
    /// Whether its row is in the result.
    shown: bool,
    /// Whether it has become empty, so that its number is to be given back.
    dead: bool,
}

/// The rows of a batch among the groups.
struct Membership {
    /// Each row's group.
    groups: Vec<u32>,
    /// Which rows are the last of their group in their instant.
    last: Vec<bool>,
    /// Of those, which leave the group empty.
    empties: Vec<bool>,
    /// Groups that became empty.
    dead: Vec<u32>,
}

impl Aggregate {
    /// Groups by `keys` and computes `calls`. `growing` says that no row of the input ever goes.
    pub(super) fn new(keys: &[Expr], calls: &[AggregateCall], growing: bool) -> Aggregate {
        let types: Vec<Type> = keys.iter().map(Expr::ty).collect();
        let packer = KeyPacker::new(&types);
        Aggregate {
            keys: keys.to_vec(),
            calls: calls.iter().map(|c| Call::new(c, growing)).collect(),
            table: KeyTable::new(packer.width()),
            packer,
            groups: Vec::new(),
            values: Slots::of_types(types.into_iter()),
            // Groups start with their latest row at 0, which is before all.
            rows_ever: 1,
            begun: false,
        }
    }

    /// Each different row once.
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
        let keys = self
            .keys
            .iter()
            .map(|k| eval(k, rows))
            .collect::<Result<Vec<Column>, _>>()?;
        let packed = self.packer.pack(&keys, len);
        let weights = weights(batch);
        let members = self.assign(batch, &packed, &weights, &keys);

        let last: Vec<u32> = (0..len as u32)
            .filter(|&row| members.last[row as usize])
            .collect();
        let groups = pick(&members.groups, &last);
        // The one row of an aggregation without keys stays the same row when its group is made anew.
        let places = if self.keys.is_empty() {
            vec![0; groups.len()]
        } else {
            groups.clone()
        };
        let mut same = vec![true; last.len()];
        let mut results = Vec::with_capacity(self.calls.len());
        for call in &mut self.calls {
            results.push(call.update(
                self.groups.len(),
                rows,
                &weights,
                &members,
                &places,
                &mut same,
            )?);
        }
        let out = self.changes(batch, &members, &last, &groups, &same, &results);
        for &group in &members.dead {
            self.calls.iter_mut().for_each(|c| c.clear(group));
        }
        self.table.recycle();
        Ok(out)
    }

    /// Finds each row's group, and what becomes of the groups.
    fn assign(
        &mut self,
        batch: &Batch,
        packed: &Keys,
        weights: &[i64],
        keys: &[Column],
    ) -> Membership {
        let len = batch.len();
        let mut members = Membership {
            groups: Vec::with_capacity(len),
            last: vec![false; len],
            empties: vec![false; len],
            dead: Vec::new(),
        };
        let (mut new_rows, mut new_groups) = (Vec::new(), Vec::new());
        let first = self.rows_ever;
        let mut instant = first;
        let mut empty: Vec<u32> = Vec::new();
        for (row, &weight) in weights.iter().enumerate() {
            if row > 0 && batch.ts[row] != batch.ts[row - 1] {
                self.bury(&mut empty, first, &mut members);
                instant = first + row as u64;
            }
            let (number, added) = self.table.find_or_add(packed, row);
            if added {
                if self.groups.len() < self.table.numbers() {
                    self.groups.resize(self.table.numbers(), Group::default());
                }
                self.groups[number as usize] = Group::default();
                new_rows.push(row as u32);
                new_groups.push(number);
            }
            let group = &mut self.groups[number as usize];
            if group.latest >= instant {
                members.last[(group.latest - first) as usize] = false;
            }
            members.last[row] = true;
            group.latest = first + row as u64;
            group.count += weight;
            if group.count == 0 {
                empty.push(number);
            }
            members.groups.push(number);
        }
        self.bury(&mut empty, first, &mut members);
        self.rows_ever += len as u64;
        self.values.grow_to(self.groups.len());
        self.values
            .write(&new_groups, &take_columns(keys, &new_rows));
        members
    }

    /// Takes out the groups among `empty` that are so at the end of their instant. Rows that come later make a new group.
    fn bury(&mut self, empty: &mut Vec<u32>, first: u64, members: &mut Membership) {
        for number in empty.drain(..) {
            let group = &mut self.groups[number as usize];
            if group.count == 0 && !group.dead {
                group.dead = true;
                members.empties[(group.latest - first) as usize] = true;
                members.dead.push(number);
                self.table.remove(number);
            }
        }
    }

    /// The old rows that go and the new ones that come. `same` says where all results are as before.
    fn changes(
        &mut self,
        batch: &Batch,
        members: &Membership,
        last: &[u32],
        groups: &[u32],
        same: &[bool],
        results: &[(Column, Column)],
    ) -> Batch {
        let count = last.len() as u32;
        // Rows 0..count of the picks are old results, the others new ones.
        let mut picks: Vec<u32> = Vec::with_capacity(last.len() * 2);
        let mut weights = Vec::with_capacity(last.len() * 2);
        for (i, (&row, &group)) in last.iter().zip(groups).enumerate() {
            let (was, is) = self.shown(group, members.empties[row as usize]);
            if was && !(is && same[i]) {
                picks.push(i as u32);
                weights.push(-1);
            }
            if is && !(was && same[i]) {
                picks.push(i as u32 + count);
                weights.push(1);
            }
        }
        let from = |pick: u32| if pick >= count { pick - count } else { pick };
        let rows: Vec<u32> = picks.iter().map(|&p| last[from(p) as usize]).collect();
        let mut columns = self.values.gather(&pick(&members.groups, &rows));
        // In the usual case every old row goes and every new one comes, by turns.
        let by_turns = picks.len() == last.len() * 2;
        columns.extend(results.iter().map(|(old, new)| match by_turns {
            true => interleave(old, new),
            false => take(&concat(&[old, new]), &picks),
        }));
        Batch {
            ts: pick(&batch.ts, &rows).into(),
            weights: Some(weights.into()),
            columns,
        }
    }

    /// Whether a group's row was in the result before, and whether it is from now on.
    fn shown(&mut self, group: u32, empty: bool) -> (bool, bool) {
        if self.keys.is_empty() {
            // The one row of an aggregation without keys stays once it is there.
            let was = self.begun;
            self.begun |= !empty;
            return (was, self.begun);
        }
        let group = &mut self.groups[group as usize];
        (std::mem::replace(&mut group.shown, !empty), !empty)
    }
}

impl Operator for Aggregate {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        whole_instants(inputs[0])
            .iter()
            .map(|batch| self.fold(batch))
            .collect()
    }

    fn bytes(&self) -> usize {
        self.packer.bytes()
            + self.table.bytes()
            + self.groups.capacity() * size_of::<Group>()
            + self.values.bytes()
            + self.calls.iter().map(Call::bytes).sum::<usize>()
    }
}
