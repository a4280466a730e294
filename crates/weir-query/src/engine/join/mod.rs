//! Joins of two relations, updated as rows are inserted and retracted on either side.
//!
//! 1. Rows are processed in timestamp order, from either side. An inserted or retracted row is
//!    matched with the rows that the other side has at that moment with the same key: candidate
//!    pairs. One hash table holds the keys of both sides.
//! 2. The residual condition is evaluated for all candidate pairs of a step at once.
//! 3. For an inner join these are the result. For the others [`mod@outer`] goes through them in
//!    order and emits the rows without partner.

mod input;
mod outer;
mod side;
#[cfg(test)]
mod tests;

use arrow_buffer::BooleanBuffer;
use weir_model::{Batch, Column, Schema, Type, Value};

use self::input::InputRows;
use self::outer::{Change, emit_unpaired, is_left_only};
use self::side::{Chain, NONE, Side};
use super::describe::result_too_big;
use crate::eval::{self, true_rows};
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::plan::JoinKind;
use crate::synopsis::gather::{concat_batches, take_batch};
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::table::KeyTable;

/// How many rows are prefetched at once.
const BLOCK_ROWS: usize = 128;

/// A join with the rows of both sides.
pub(super) struct Join {
    kind: JoinKind,
    /// The keys' expressions, of the left and of the right.
    on: [Vec<Expr>; 2],
    /// What a candidate pair must satisfy; over the left columns followed by the right ones.
    residual: Option<Expr>,
    packer: KeyPacker,
    /// The keys of both sides, each with its chain of rows on either side.
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

impl Pairs {
    fn with_capacity(capacity: usize) -> Pairs {
        let slots = || Vec::with_capacity(capacity);
        Pairs {
            ts: Vec::with_capacity(capacity),
            weights: Vec::with_capacity(capacity),
            slots: [slots(), slots()],
        }
    }
}

/// Candidate pairs, and the inserted and retracted rows.
type Candidates = (Pairs, Vec<Change>);

impl Join {
    /// Joins relations of the schemas `left` and `right`. Where `windows` has a size, that input is
    /// a stream whose rows expire after that time. `needed` are the columns of the result that are
    /// read, ascending; without it all are.
    pub(super) fn new(
        [left, right]: [&Schema; 2],
        windows: [Option<i64>; 2],
        kind: JoinKind,
        on: &[(Expr, Expr)],
        residual: Option<&Expr>,
        needed: Option<&[usize]>,
    ) -> Join {
        let residual = match kind {
            JoinKind::NotIn => Some(not_unequal(on, left.len(), residual)),
            _ => residual.cloned(),
        };
        let columns = left.len() + right.len();
        let given = if is_left_only(kind) {
            left.len()
        } else {
            columns
        };
        let mut shown: Vec<bool> = (0..columns)
            .map(|i| needed.is_none() && i < given)
            .collect();
        needed.into_iter().flatten().for_each(|&i| shown[i] = true);
        if let Some(residual) = &residual {
            residual.visit_columns(&mut |i| shown[i] = true);
        }
        let (left_shown, right_shown) = shown.split_at(left.len());
        let sides = [
            Side::new(left, left_shown, windows[0]),
            Side::new(right, right_shown, windows[1]),
        ];
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
            sides,
        }
    }

    /// Adds both sides' rows and finds the candidate pairs.
    fn match_rows(&mut self, inputs: [Batch; 2], span: Span) -> Result<Candidates, EvalError> {
        let pairs_max = span.bytes_max / 64;
        let mut candidates = (
            Pairs::with_capacity(inputs[0].len() + inputs[1].len()),
            Vec::new(),
        );
        let [left, right] = inputs;
        let rows = [self.store_input(0, left)?, self.store_input(1, right)?];
        let mut done = [0, 0];
        for block in 0.. {
            if block % BLOCK_ROWS == 0 {
                self.prefetch(&rows, done, span.upto);
            }
            let Some((ts, side, is_input)) = self.next(&rows, done, span.upto) else {
                break;
            };
            if !is_input {
                self.expire(side, ts, &mut candidates);
                continue;
            }
            let row = done[side];
            done[side] += 1;
            match rows[side].weights[row] {
                weight @ 1.. => self.insert(side, &rows[side], row, ts, weight, &mut candidates),
                weight => self.retract(side, &rows[side], row, ts, -weight, &mut candidates),
            }
            if candidates.0.ts.len() > pairs_max {
                return Err(result_too_big("the join", span.bytes_max));
            }
        }
        Ok(candidates)
    }

    /// The next change: when, on which side, and whether it is the next input row or an expiry.
    /// `done` rows of each side are processed.
    fn next(
        &self,
        rows: &[InputRows; 2],
        done: [usize; 2],
        upto: i64,
    ) -> Option<(i64, usize, bool)> {
        let is_input = |side: usize| rows[side].ts.get(done[side]).copied();
        let leaves = |side: usize| self.sides[side].next_expiry().filter(|&ts| ts <= upto);
        // Within an instant, input rows are processed before expiries.
        let all = [
            (is_input(0), 0, true),
            (is_input(1), 1, true),
            (leaves(0), 0, false),
            (leaves(1), 1, false),
        ];
        let at = |ts: Option<i64>| ts.map_or(i128::MAX, i128::from);
        let mut first = all[0];
        for other in &all[1..] {
            if at(other.0) < at(first.0) {
                first = *other;
            }
        }
        first.0.map(|ts| (ts, first.1, first.2))
    }

    /// Prefetches what the next rows will read, which may not be in the processor's caches. Row by
    /// row, each would wait for memory several times.
    fn prefetch(&self, rows: &[InputRows; 2], done: [usize; 2], upto: i64) {
        for side in [0, 1] {
            let next = done[side]..rows[side].ts.len().min(done[side] + BLOCK_ROWS);
            self.table.prefetch(&rows[side].keys, next);
            let numbers = self.sides[side].prefetch_expiring(BLOCK_ROWS, upto);
            let chains = numbers.iter().map(|&n| self.chain(n, 1 - side));
            self.sides[1 - side].prefetch_chains(chains);
            self.table.prefetch_removal(numbers.iter().copied());
        }
    }

    /// The number of a row's key in the table; [`NONE`] for a NULL in the key.
    fn number(&mut self, rows: &InputRows, at: usize) -> u32 {
        if rows.is_null(at) {
            return NONE;
        }
        let (number, added) = self.table.find_or_add(&rows.keys, at);
        if added {
            self.table.payload_mut(number).fill(Chain::default().word());
        }
        number
    }

    /// Whether rows with a NULL in their key are in a chain: only NOT IN needs them.
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

    /// Inserts a row.
    fn insert(
        &mut self,
        side: usize,
        rows: &InputRows,
        at: usize,
        ts: i64,
        weight: i64,
        candidates: &mut Candidates,
    ) {
        let number = self.number(rows, at);
        let slot = rows.slots[at];
        let expires = self.sides[side].schedule_expiry(slot, ts);
        if number != NONE || self.chains_unknown() {
            self.sides[side].occupy(slot, number, weight);
            let mut chain = self.chain(number, side);
            self.sides[side].append(&mut chain, slot);
            self.set_chain(number, side, chain);
            self.sides[side].index_row(rows.row_keys.as_ref(), at, slot);
            self.pair(side, number, ts, slot, weight, candidates);
        } else if expires {
            self.sides[side].occupy(slot, number, weight);
        } else {
            // No later row can match it, so its slot is kept only until it is emitted.
            self.sides[side].slots.retire(slot);
        }
        self.record_change(side, ts, slot, weight, true, candidates);
    }

    /// Removes the row of a side that expires next.
    fn expire(&mut self, side: usize, ts: i64, candidates: &mut Candidates) {
        let (slot, number) = self.sides[side].dequeue_oldest();
        self.retract_slot(side, number, slot, 1, ts, candidates);
    }

    /// Retracts a row, found by its values.
    fn retract(
        &mut self,
        side: usize,
        rows: &InputRows,
        at: usize,
        ts: i64,
        weight: i64,
        candidates: &mut Candidates,
    ) {
        let number = self.number(rows, at);
        if number == NONE && !self.chains_unknown() {
            // It was not stored; it gets a slot until its retraction is emitted.
            let slot = rows.slots[at];
            self.sides[side].slots.retire(slot);
            self.record_change(side, ts, slot, -weight, true, candidates);
            return;
        }
        let mut left = weight;
        while left > 0 {
            let chain = self.chain(number, side);
            let slot = self.sides[side].find(chain, rows.row_keys.as_ref(), &rows.columns, at);
            let removed = left.min(self.sides[side].weight(slot));
            left -= removed;
            if removed == self.sides[side].weight(slot) {
                self.sides[side].unindex_row(rows.row_keys.as_ref(), at, slot);
            }
            self.retract_slot(side, number, slot, removed, ts, candidates);
        }
    }

    /// Retracts a row `times` times.
    fn retract_slot(
        &mut self,
        side: usize,
        number: u32,
        slot: u32,
        times: i64,
        ts: i64,
        candidates: &mut Candidates,
    ) {
        if self.sides[side].decrement(slot, times) && (number != NONE || self.chains_unknown()) {
            let mut chain = self.chain(number, side);
            self.sides[side].unlink(&mut chain, slot);
            self.set_chain(number, side, chain);
            if number != NONE && chain.is_empty() && self.chain(number, 1 - side).is_empty() {
                self.table.remove(number);
            }
        }
        if number != NONE || self.chains_unknown() {
            self.pair(side, number, ts, slot, -times, candidates);
        }
        self.record_change(side, ts, slot, -times, false, candidates);
    }

    /// Records an inserted or retracted row, where the kind of join needs it.
    fn record_change(
        &self,
        side: usize,
        ts: i64,
        slot: u32,
        weight: i64,
        is_new: bool,
        candidates: &mut Candidates,
    ) {
        if self.kind != JoinKind::Inner {
            let pairs_end = candidates.0.ts.len();
            candidates.1.push(Change {
                ts,
                side,
                slot,
                weight,
                is_new,
                pairs_end,
            });
        }
    }

    /// Records the pairs of a row with those that the other side has now.
    fn pair(
        &self,
        side: usize,
        number: u32,
        ts: i64,
        slot: u32,
        weight: i64,
        candidates: &mut Candidates,
    ) {
        let other = &self.sides[1 - side];
        let pairs = &mut candidates.0;
        let mut add = |(partner, times): (u32, i64)| {
            pairs.ts.push(ts);
            pairs.weights.push(weight * times);
            pairs.slots[side].push(slot);
            pairs.slots[1 - side].push(partner);
        };
        // A NULL key may equal any.
        if number == NONE {
            return other
                .occupied()
                .map(|slot| (slot, other.weight(slot)))
                .for_each(&mut add);
        }
        other.chain(self.chain(number, 1 - side)).for_each(&mut add);
        other.chain(self.unknown[1 - side]).for_each(&mut add);
    }

    /// Which candidate pairs satisfy the residual condition; `None` when all do.
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

    fn join(&mut self, inputs: [Batch; 2], span: Span) -> Result<Batch, EvalError> {
        let (pairs, events) = self.match_rows(inputs, span)?;
        if self.kind != JoinKind::Inner {
            let holds = self.holds(&pairs)?;
            let shown = emit_unpaired(self.kind, &mut self.sides, &pairs, &events, holds.as_ref());
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

/// For `NOT IN`: that the keys of a pair are equal or unknown, and `residual`.
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
        let left = self.whole(0, inputs[0]);
        let right = self.whole(1, inputs[1]);
        let out = self.join([left, right], span)?;
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

    fn bound_span(&self, span: Span, rows_max: usize) -> i64 {
        let bound = |side: &Side| match (side.leaves(rows_max), side.leaves(0)) {
            // The instant of row `rows_max` may be that of rows before it; then that instant is
            // processed whole.
            (Some(at), Some(first)) => (at - 1).max(first),
            _ => i64::MAX,
        };
        self.sides.iter().map(bound).fold(span.upto, i64::min)
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
