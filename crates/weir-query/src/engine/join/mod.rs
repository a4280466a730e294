//! Joins of two relations, kept up to date as rows come and go on either side.
//!
//! 1. Rows are taken in order of time, from whichever side. A row that comes or goes meets the rows
//!    that the other side has at that moment with the same key: candidate pairs. One hash table
//!    holds the keys of both sides.
//! 2. The residual condition is evaluated for all candidate pairs of a step at once.
//! 3. For an inner join these are the result. For the others [`settle`] goes through them in order
//!    and sees to rows without partner.

mod arrivals;
mod settle;
mod side;
#[cfg(test)]
mod tests;

use arrow_buffer::BooleanBuffer;
use weir_model::{Batch, Column, Type, Value};

use self::arrivals::Arrivals;
use self::settle::{Event, is_left_only, settle};
use self::side::{Chain, NONE, Side};
use super::by_time;
use super::describe::result_too_big;
use super::eval::{self, true_rows};
use super::gather::{concat_batches, take_batch};
use super::keys::KeyPacker;
use super::operator::{Operator, Span};
use super::table::KeyTable;
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::EvalError;
use crate::plan::{JoinKind, Node, Plan, Window};

/// How many rows are looked ahead.
const BLOCK_ROWS: usize = 128;

/// A join with the rows of both sides.
pub(super) struct Join {
    kind: JoinKind,
    /// The keys' expressions, of the left and of the right.
    on: [Vec<Expr>; 2],
    /// What a candidate pair must fulfil; over the left columns followed by the right ones.
    residual: Option<Expr>,
    packer: KeyPacker,
    /// The keys of both sides, each with its chain of rows on either.
    table: KeyTable,
    /// For `NOT IN`: the rows with a NULL in their key.
    unknown: [Chain; 2],
    sides: [Side; 2],
}

/// Candidate pairs, in order.
#[derive(Default)]
pub(super) struct Pairs {
    ts: Vec<i64>,
    weights: Vec<i64>,
    /// The slots on the left and on the right.
    slots: [Vec<u32>; 2],
}

/// Candidate pairs, and what came and went.
type Found = (Pairs, Vec<Event>);

impl Join {
    /// `left` joined with `right`. `wanted` are the columns that anyone looks at, ascending;
    /// without, all are.
    pub(super) fn new(
        [left, right]: [&Plan; 2],
        kind: JoinKind,
        on: &[(Expr, Expr)],
        residual: Option<&Expr>,
        wanted: Option<&[usize]>,
    ) -> Join {
        let residual = match kind {
            JoinKind::NotIn => Some(not_unequal(on, left.schema.len(), residual)),
            _ => residual.cloned(),
        };
        let columns = left.schema.len() + right.schema.len();
        let given = if is_left_only(kind) {
            left.schema.len()
        } else {
            columns
        };
        let mut shown: Vec<bool> = (0..columns)
            .map(|i| wanted.is_none() && i < given)
            .collect();
        wanted.into_iter().flatten().for_each(|&i| shown[i] = true);
        if let Some(residual) = &residual {
            residual.visit_columns(&mut |i| shown[i] = true);
        }
        let (left_shown, right_shown) = shown.split_at(left.schema.len());
        let side =
            |plan: &Plan, shown: &[bool]| Side::new(&plan.schema, shown, goes_in_order(plan));
        let types: Vec<Type> = on.iter().map(|(l, _)| l.ty()).collect();
        let packer = KeyPacker::of_known(&types);
        let (left_on, right_on) = on.iter().cloned().unzip();
        Join {
            kind,
            on: [left_on, right_on],
            residual,
            table: KeyTable::with_payload(packer.width(), 2),
            packer,
            unknown: Default::default(),
            sides: [side(left, left_shown), side(right, right_shown)],
        }
    }

    /// Takes both sides' rows in and finds the candidate pairs.
    fn meet(&mut self, inputs: [&Batch; 2], span: Span) -> Result<Found, EvalError> {
        let rows = [self.arrive(0, inputs[0])?, self.arrive(1, inputs[1])?];
        let pairs_max = span.bytes_max / 64;
        let mut found = (Pairs::default(), Vec::new());
        let split = inputs[0].len();
        for block in by_time::merge(&inputs[0].ts, &inputs[1].ts).chunks(BLOCK_ROWS) {
            let place = |&at: &u32| match (at as usize).checked_sub(split) {
                None => (0, at as usize),
                Some(row) => (1, row),
            };
            for side in [0, 1] {
                let own = block.iter().map(place).filter(|(s, _)| *s == side);
                self.foresee(side, &rows[side], own.map(|(_, row)| row));
            }
            for (side, row) in block.iter().map(place) {
                let ts = inputs[side].ts[row];
                let weight = rows[side].weights[row];
                match rows[side].at(row) {
                    None => self.leave(side, ts, -weight, &mut found),
                    Some(at) if weight > 0 => {
                        self.come(side, &rows[side], at, ts, weight, &mut found)
                    }
                    Some(at) => self.go(side, &rows[side], at, ts, -weight, &mut found),
                }
                if found.0.ts.len() > pairs_max {
                    return Err(result_too_big("the join", span.bytes_max));
                }
            }
        }
        Ok(found)
    }

    /// Reads what the next rows of a side will need, which may long have left the processor's
    /// caches. Row by row, each would wait for memory several times; so the processor fetches for
    /// all of them at once.
    fn foresee(&self, side: usize, rows: &Arrivals, block: impl Iterator<Item = usize> + Clone) {
        self.table
            .foresee(&rows.keys, block.clone().filter_map(|row| rows.at(row)));
        let leaving = block.filter(|&row| rows.at(row).is_none()).count();
        let numbers = self.sides[side].foresee_oldest(leaving);
        let chains = numbers
            .iter()
            .map(|&n| Chain::from_word(self.table.payload(n)[1 - side]));
        self.sides[1 - side].foresee_chains(chains);
        self.table.foresee_removal(numbers.iter().copied());
    }

    /// Where the rows with a row's key are, as a number of the table; [`NONE`] for a NULL in the
    /// key.
    fn number(&mut self, rows: &Arrivals, at: usize) -> u32 {
        if rows.is_null(at) {
            return NONE;
        }
        let (number, added) = self.table.find_or_add(&rows.keys, at);
        if added {
            self.table.payload_mut(number).fill(Chain::default().word());
        }
        number
    }

    /// Whether rows with a NULL in their key are in a chain: only NOT IN looks at them beside
    /// others.
    fn chains_unknown(&self) -> bool {
        self.kind == JoinKind::NotIn
    }

    fn chain(&self, number: u32, side: usize) -> Chain {
        match number {
            NONE => self.unknown[side],
            number => Chain::from_word(self.table.payload(number)[side]),
        }
    }

    fn set_chain(&mut self, number: u32, side: usize, chain: Chain) {
        match number {
            NONE => self.unknown[side] = chain,
            number => self.table.payload_mut(number)[side] = chain.word(),
        }
    }

    /// A row comes.
    fn come(
        &mut self,
        side: usize,
        rows: &Arrivals,
        at: usize,
        ts: i64,
        weight: i64,
        found: &mut Found,
    ) {
        let number = self.number(rows, at);
        let slot = rows.slots[at];
        if number != NONE || self.chains_unknown() {
            self.sides[side].remember(slot, number, weight);
            let mut chain = self.chain(number, side);
            self.sides[side].append(&mut chain, slot);
            self.set_chain(number, side, chain);
            self.sides[side].note(rows.row_keys.as_ref(), at, slot);
            self.pair(side, number, ts, slot, weight, found);
        } else if self.sides[side].goes_in_order {
            self.sides[side].remember(slot, number, weight);
        } else {
            // It meets nobody, so it is kept only for as long as it takes to show it.
            self.sides[side].slots.retire(slot);
        }
        self.event(side, ts, slot, weight, true, found);
    }

    /// The oldest row of a side goes.
    fn leave(&mut self, side: usize, ts: i64, weight: i64, found: &mut Found) {
        for _ in 0..weight {
            let (slot, number) = self.sides[side].oldest();
            self.take_away(side, number, slot, 1, ts, found);
        }
    }

    /// A row goes that is found by its values.
    fn go(
        &mut self,
        side: usize,
        rows: &Arrivals,
        at: usize,
        ts: i64,
        weight: i64,
        found: &mut Found,
    ) {
        let number = self.number(rows, at);
        if number == NONE && !self.chains_unknown() {
            // It was not kept; it has a slot again for as long as it takes to show that it goes.
            let slot = rows.slots[at];
            self.sides[side].slots.retire(slot);
            self.event(side, ts, slot, -weight, true, found);
            return;
        }
        let mut left = weight;
        while left > 0 {
            let chain = self.chain(number, side);
            let slot = self.sides[side].find(chain, rows.row_keys.as_ref(), &rows.columns, at);
            let gone = left.min(self.sides[side].weight(slot));
            left -= gone;
            if gone == self.sides[side].weight(slot) {
                self.sides[side].unnote(rows.row_keys.as_ref(), at, slot);
            }
            self.take_away(side, number, slot, gone, ts, found);
        }
    }

    /// A row goes `times` times.
    fn take_away(
        &mut self,
        side: usize,
        number: u32,
        slot: u32,
        times: i64,
        ts: i64,
        found: &mut Found,
    ) {
        if self.sides[side].lessen(slot, times) && (number != NONE || self.chains_unknown()) {
            let mut chain = self.chain(number, side);
            self.sides[side].unlink(&mut chain, slot);
            self.set_chain(number, side, chain);
            if number != NONE && chain.is_empty() && self.chain(number, 1 - side).is_empty() {
                self.table.remove(number);
            }
        }
        if number != NONE || self.chains_unknown() {
            self.pair(side, number, ts, slot, -times, found);
        }
        self.event(side, ts, slot, -times, false, found);
    }

    /// Notes that a row came or went, where that alone may matter.
    fn event(&self, side: usize, ts: i64, slot: u32, weight: i64, is_new: bool, found: &mut Found) {
        if self.kind != JoinKind::Inner {
            let pairs_end = found.0.ts.len();
            found.1.push(Event {
                ts,
                side,
                slot,
                weight,
                is_new,
                pairs_end,
            });
        }
    }

    /// The pairs that a row makes with those that the other side has now.
    fn pair(&self, side: usize, number: u32, ts: i64, slot: u32, weight: i64, found: &mut Found) {
        let other = &self.sides[1 - side];
        let pairs = &mut found.0;
        let mut add = |(partner, times): (u32, i64)| {
            pairs.ts.push(ts);
            pairs.weights.push(weight * times);
            pairs.slots[side].push(slot);
            pairs.slots[1 - side].push(partner);
        };
        // An unknown key may equal any.
        if number == NONE {
            return other
                .live()
                .map(|slot| (slot, other.weight(slot)))
                .for_each(&mut add);
        }
        other.chain(self.chain(number, 1 - side)).for_each(&mut add);
        other.chain(self.unknown[1 - side]).for_each(&mut add);
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
        let mut columns = self.sides[0].gather(&slots[0]);
        columns.extend(self.sides[1].gather(&slots[1]));
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

/// Whether a relation's rows go in the order in which they came: those of most windows do.
fn goes_in_order(plan: &Plan) -> bool {
    match &plan.node {
        Node::Window { window, .. } => {
            matches!(
                window,
                Window::Now | Window::Range { .. } | Window::Rows { .. }
            )
        }
        Node::Select { input, .. } | Node::Project { input, .. } => goes_in_order(input),
        _ => false,
    }
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
        self.packer.bytes() + self.table.bytes() + self.sides.iter().map(Side::bytes).sum::<usize>()
    }
}

impl Join {
    fn whole(&self, side: usize, batches: &[Batch]) -> Batch {
        match batches {
            [] => Batch::empty(self.sides[side].width()),
            batches => concat_batches(batches),
        }
    }
}
