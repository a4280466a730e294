//! Joins of two relations, kept up to date as rows come and go on either side.
//!
//! 1. Rows are taken in order of time, from whichever side. A row that comes or goes meets the rows that the other side has at
//!    that moment with the same key: candidate pairs. One hash table holds the keys of both sides.
//! 2. The residual condition is evaluated for all candidate pairs of a step at once.
//! 3. For an inner join these are the result. For the others [`settle`] goes through them in order and sees to rows without partner.

mod settle;
mod side;
#[cfg(test)]
mod tests;

use arrow_buffer::{BooleanBuffer, ScalarBuffer};
use weir_model::{Batch, Column, Type, Value};

use self::settle::{Event, settle};
use self::side::{Chain, NONE, Side};
use super::by_time;
use super::describe::result_too_big;
use super::eval::{self, eval, true_rows};
use super::gather::{concat_batches, take_batch, take_columns, weights};
use super::keys::{KeyPacker, Keys};
use super::operator::{Operator, Span};
use super::table::KeyTable;
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::EvalError;
use crate::plan::{JoinKind, Plan};

/// A join with the rows of both sides.
pub(super) struct Join {
    kind: JoinKind,
    /// The keys' expressions, of the left and of the right.
    on: [Vec<Expr>; 2],
    /// What a candidate pair must fulfil; over the left columns followed by the right ones.
    residual: Option<Expr>,
    packer: KeyPacker,
    table: KeyTable,
    /// The rows of each key on both sides, by the number that the table gives.
    chains: Vec<[Chain; 2]>,
    /// For `NOT IN`: the rows with a NULL in their key.
    unknown: [Chain; 2],
    sides: [Side; 2],
}

/// Rows of one side that take part in a step.
struct Arrivals {
    keys: Keys,
    /// Which have a NULL in their key.
    is_null: Option<Vec<bool>>,
    weights: ScalarBuffer<i64>,
    /// Where those that come are stored; [`NONE`] for those that go.
    slots: Vec<u32>,
    /// The rows' keys in the side's index, if it has one.
    row_keys: Option<Keys>,
}

/// Candidate pairs, in order.
#[derive(Default)]
pub(super) struct Pairs {
    ts: Vec<i64>,
    weights: Vec<i64>,
    /// The slots on the left and on the right.
    slots: [Vec<u32>; 2],
}

impl Join {
    /// `left` joined with `right`.
    pub(super) fn new(
        [left, right]: [&Plan; 2],
        kind: JoinKind,
        on: &[(Expr, Expr)],
        residual: Option<&Expr>,
    ) -> Join {
        let residual = match kind {
            JoinKind::NotIn => Some(not_unequal(on, left.schema.len(), residual)),
            _ => residual.cloned(),
        };
        let types: Vec<Type> = on.iter().map(|(l, _)| l.ty()).collect();
        let packer = KeyPacker::new(&types);
        let (left_on, right_on) = on.iter().cloned().unzip();
        Join {
            kind,
            on: [left_on, right_on],
            residual,
            table: KeyTable::new(packer.width()),
            packer,
            chains: Vec::new(),
            unknown: Default::default(),
            sides: [Side::new(&left.schema), Side::new(&right.schema)],
        }
    }

    /// Takes both sides' rows in and finds the candidate pairs.
    fn meet(&mut self, inputs: [&Batch; 2], span: Span) -> Result<(Pairs, Vec<Event>), EvalError> {
        let rows = [self.arrive(0, inputs[0])?, self.arrive(1, inputs[1])?];
        let pairs_max = span.bytes_max / 64;
        let mut pairs = Pairs::default();
        let mut events = Vec::new();
        let split = inputs[0].len();
        for at in by_time::merge(&inputs[0].ts, &inputs[1].ts) {
            let side = usize::from(at as usize >= split);
            let row = at as usize - side * split;
            let ts = inputs[side].ts[row];
            if rows[side].is_null.as_ref().is_some_and(|n| n[row]) && self.kind != JoinKind::NotIn {
                // It meets nobody and is not kept, but it may be shown.
                let (slot, weight) = (rows[side].slots[row], rows[side].weights[row]);
                self.sides[side].slots.retire(slot);
                events.push(Event {
                    ts,
                    side,
                    slot,
                    weight,
                    is_new: true,
                    pairs_end: pairs.ts.len(),
                });
            } else if rows[side].weights[row] > 0 {
                self.come(side, &rows[side], row, ts, &mut pairs, &mut events);
            } else {
                self.go(
                    side,
                    &rows[side],
                    row,
                    inputs[side],
                    &mut pairs,
                    &mut events,
                );
            }
            if pairs.ts.len() > pairs_max {
                return Err(result_too_big("the join", span.bytes_max));
            }
        }
        Ok((pairs, events))
    }

    /// Packs the keys of a side's rows, and stores the rows that come.
    fn arrive(&mut self, side: usize, batch: &Batch) -> Result<Arrivals, EvalError> {
        let len = batch.len();
        let view = eval::Rows {
            columns: &batch.columns,
            len,
        };
        let keys = self.on[side]
            .iter()
            .map(|k| eval(k, view))
            .collect::<Result<Vec<Column>, _>>()?;
        let is_null = any_null(&keys, len);
        let weights = weights(batch);
        let fleeting = self.kind != JoinKind::NotIn;
        let is_stored = |&row: &u32| {
            let row = row as usize;
            weights[row] > 0 || fleeting && is_null.as_ref().is_some_and(|n| n[row])
        };
        let stored: Vec<u32> = (0..len as u32).filter(is_stored).collect();
        let slots = match stored.len() == len {
            true => self.sides[side].store(&batch.columns, len),
            false => {
                let columns = take_columns(&batch.columns, &stored);
                let mut slots = vec![NONE; len];
                for (&row, slot) in stored
                    .iter()
                    .zip(self.sides[side].store(&columns, stored.len()))
                {
                    slots[row as usize] = slot;
                }
                slots
            }
        };
        let row_keys = self.sides[side].row_keys(batch);
        Ok(Arrivals {
            keys: self.packer.pack(&keys, len),
            is_null,
            weights,
            slots,
            row_keys,
        })
    }

    /// Where the rows with a row's key are, as a number of the table; `None` for a NULL in the key.
    fn number(&mut self, rows: &Arrivals, row: usize) -> Option<u32> {
        if rows.is_null.as_ref().is_some_and(|n| n[row]) {
            return None;
        }
        let (number, added) = self.table.find_or_add(&rows.keys, row);
        if added {
            if self.chains.len() < self.table.numbers() {
                self.chains.resize(self.table.numbers(), Default::default());
            }
            self.chains[number as usize] = Default::default();
        }
        Some(number)
    }

    fn come(
        &mut self,
        side: usize,
        rows: &Arrivals,
        row: usize,
        ts: i64,
        pairs: &mut Pairs,
        events: &mut Vec<Event>,
    ) {
        let number = self.number(rows, row);
        let chains = match number {
            Some(number) => &mut self.chains[number as usize],
            None => &mut self.unknown,
        };
        let (slot, weight) = (rows.slots[row], rows.weights[row]);
        self.sides[side].append(&mut chains[side], slot, weight);
        self.sides[side].note(rows.row_keys.as_ref(), row, slot);
        self.pair(side, number, ts, slot, weight, pairs);
        if self.kind != JoinKind::Inner {
            events.push(Event {
                ts,
                side,
                slot,
                weight,
                is_new: true,
                pairs_end: pairs.ts.len(),
            });
        }
    }

    fn go(
        &mut self,
        side: usize,
        rows: &Arrivals,
        row: usize,
        batch: &Batch,
        pairs: &mut Pairs,
        events: &mut Vec<Event>,
    ) {
        let ts = batch.ts[row];
        let number = self.number(rows, row);
        let mut left = -rows.weights[row];
        while left > 0 {
            let chains = match number {
                Some(number) => &mut self.chains[number as usize],
                None => &mut self.unknown,
            };
            let own = &mut self.sides[side];
            let slot = own.find(chains[side], rows.row_keys.as_ref(), &batch.columns, row);
            let gone = own.take_away(&mut chains[side], slot, left);
            own.unnote(rows.row_keys.as_ref(), row, slot);
            left -= gone;
            self.pair(side, number, ts, slot, -gone, pairs);
            if self.kind != JoinKind::Inner {
                events.push(Event {
                    ts,
                    side,
                    slot,
                    weight: -gone,
                    is_new: false,
                    pairs_end: pairs.ts.len(),
                });
            }
        }
        if let Some(number) = number
            && self.chains[number as usize].iter().all(|c| c.is_empty())
        {
            self.table.remove(number);
        }
    }

    /// The pairs that a row makes with those that the other side has now.
    fn pair(
        &self,
        side: usize,
        number: Option<u32>,
        ts: i64,
        slot: u32,
        weight: i64,
        pairs: &mut Pairs,
    ) {
        let other = &self.sides[1 - side];
        let mut add = |(partner, times): (u32, i64)| {
            pairs.ts.push(ts);
            pairs.weights.push(weight * times);
            pairs.slots[side].push(slot);
            pairs.slots[1 - side].push(partner);
        };
        match number {
            Some(number) => {
                other
                    .chain(self.chains[number as usize][1 - side])
                    .for_each(&mut add);
                other.chain(self.unknown[1 - side]).for_each(&mut add);
            }
            // Only NOT IN asks: an unknown key may equal any.
            None => other
                .live()
                .map(|slot| (slot, other.weight(slot)))
                .for_each(&mut add),
        }
    }

    /// Which candidate pairs fulfil the residual condition; `None` when all do.
    fn holds(&self, pairs: &Pairs) -> Result<Option<BooleanBuffer>, EvalError> {
        let Some(residual) = &self.residual else {
            return Ok(None);
        };
        let columns = self.columns(&pairs.slots);
        true_rows(
            residual,
            eval::Rows {
                columns: &columns,
                len: pairs.ts.len(),
            },
        )
    }

    /// The columns of pairs of slots.
    fn columns(&self, slots: &[Vec<u32>; 2]) -> Vec<Column> {
        let mut columns = self.sides[0].slots.gather(&slots[0]);
        columns.extend(self.sides[1].slots.gather(&slots[1]));
        columns
    }

    fn join(&mut self, inputs: [&Batch; 2], span: Span) -> Result<Batch, EvalError> {
        let (pairs, events) = self.meet(inputs, span)?;
        if self.kind != JoinKind::Inner {
            let holds = self.holds(&pairs)?;
            let shown = settle(self.kind, &mut self.sides, &pairs, &events, holds.as_ref());
            return Ok(shown.into_batch(self.kind, &self.sides));
        }
        let columns = self.columns(&pairs.slots);
        let len = pairs.ts.len();
        let holds = match &self.residual {
            Some(residual) => true_rows(
                residual,
                eval::Rows {
                    columns: &columns,
                    len,
                },
            )?,
            None => None,
        };
        let batch = Batch {
            ts: pairs.ts.into(),
            weights: Some(pairs.weights.into()),
            columns,
        };
        Ok(match holds {
            None => batch,
            Some(holds) => take_batch(&batch, &holds.set_indices_u32().collect::<Vec<_>>()),
        })
    }
}

/// Which of `len` rows have a NULL among these columns; `None` when none has.
fn any_null(columns: &[Column], len: usize) -> Option<Vec<bool>> {
    let may = |c: &&Column| {
        matches!(c, Column::Nulls(_) | Column::Tally(_))
            || c.nulls().is_some_and(|n| n.null_count() > 0)
    };
    let columns: Vec<&Column> = columns.iter().filter(may).collect();
    let is_null = |row| columns.iter().any(|c| c.is_null(row));
    (!columns.is_empty()).then(|| (0..len).map(is_null).collect())
}

/// For `NOT IN`: that the keys of a pair are not known to differ, and `residual`.
fn not_unequal(on: &[(Expr, Expr)], left_columns: usize, residual: Option<&Expr>) -> Expr {
    let truth = |value| Expr::Literal {
        value: Value::Bool(value),
        ty: Type::Bool,
        unit: Default::default(),
    };
    let binary = |op, left, right| Expr::Binary {
        op,
        left: Box::new(left),
        right: Box::new(right),
        unit: Default::default(),
    };
    let pairs = on.iter().map(|(l, r)| {
        binary(
            BinaryOp::Equal,
            l.clone(),
            r.map_columns(&|index| index + left_columns),
        )
    });
    let equal = pairs
        .reduce(|a, b| binary(BinaryOp::And, a, b))
        .unwrap_or(truth(true));
    let unequal = Expr::Unary {
        op: UnaryOp::Not,
        expr: Box::new(equal),
    };
    let possible = Expr::Case {
        branches: vec![(unequal, truth(false))],
        otherwise: Some(Box::new(truth(true))),
        ty: Type::Bool,
        unit: Default::default(),
    };
    match residual {
        None => possible,
        Some(residual) => binary(BinaryOp::And, possible, residual.clone()),
    }
}

impl Operator for Join {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        if inputs.iter().all(|i| i.is_empty()) {
            return Ok(Vec::new());
        }
        let left = self.whole(0, inputs[0]);
        let right = self.whole(1, inputs[1]);
        let out = self.join([&left, &right], span)?;
        for side in &mut self.sides {
            side.slots.recycle();
        }
        self.table.recycle();
        Ok(if out.is_empty() {
            Vec::new()
        } else {
            vec![out]
        })
    }

    fn bytes(&self) -> usize {
        self.packer.bytes()
            + self.table.bytes()
            + self.chains.capacity() * size_of::<[Chain; 2]>()
            + self.sides.iter().map(Side::bytes).sum::<usize>()
    }
}

impl Join {
    fn whole(&self, side: usize, batches: &[Batch]) -> Batch {
        match batches {
            [] => Batch::empty(self.sides[side].slots.width()),
            batches => concat_batches(batches),
        }
    }
}
