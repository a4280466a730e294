//! What outer, semi and anti joins emit for candidate pairs: rows without a partner, or rows with
//! one.

use arrow_array::{BooleanArray, Float64Array, Int64Array, UInt32Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use weir_model::{Batch, Column, TallyArray};

use super::Pairs;
use super::side::{NONE, Side};
use crate::plan::JoinKind;

/// An inserted or retracted row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// The instant.
    pub ts: i64,
    /// 0 for the left side, 1 for the right.
    pub side: usize,
    /// Its slot.
    pub slot: u32,
    /// Its weight: positive when inserted, negative when retracted.
    pub weight: i64,
    /// Whether its slot was filled for this change.
    pub is_new: bool,
    /// One past the last of its candidate pairs.
    pub pairs_end: usize,
}

/// What a join emits of a side's rows beside pairs.
#[derive(Clone, Copy, PartialEq)]
enum Alone {
    /// Nothing.
    Dropped,
    /// Emits rows without partner, with NULLs on the other side.
    WithoutPartner,
    /// Emits rows with a partner, once.
    WithPartner,
}

fn alone(kind: JoinKind) -> [Alone; 2] {
    use Alone::{Dropped, WithPartner, WithoutPartner};
    match kind {
        JoinKind::Inner => [Dropped, Dropped],
        JoinKind::Left | JoinKind::Anti | JoinKind::NotIn => [WithoutPartner, Dropped],
        JoinKind::Right => [Dropped, WithoutPartner],
        JoinKind::Full => [WithoutPartner, WithoutPartner],
        JoinKind::Semi => [WithPartner, Dropped],
    }
}

/// Whether the result has the left columns only.
pub(super) fn is_left_only(kind: JoinKind) -> bool {
    matches!(kind, JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn)
}

/// The result's deltas, as pairs of slots of which one may be [`NONE`].
#[derive(Default)]
pub(super) struct Shown(Pairs);

impl Shown {
    fn push(&mut self, ts: i64, weight: i64, slots: [u32; 2]) {
        if weight != 0 {
            self.0.ts.push(ts);
            self.0.weights.push(weight);
            self.0.slots[0].push(slots[0]);
            self.0.slots[1].push(slots[1]);
        }
    }

    fn push_alone(&mut self, ts: i64, weight: i64, side: usize, slot: u32) {
        self.push(
            ts,
            weight,
            if side == 0 {
                [slot, NONE]
            } else {
                [NONE, slot]
            },
        );
    }

    /// As a batch with the values of the rows.
    pub(super) fn into_batch(self, kind: JoinKind, sides: &[Side; 2]) -> Batch {
        let mut columns = padded(&sides[0], &self.0.slots[0]);
        if !is_left_only(kind) {
            columns.extend(padded(&sides[1], &self.0.slots[1]));
        }
        Batch {
            ts: self.0.ts.into(),
            weights: Some(self.0.weights.into()),
            columns,
        }
    }
}

/// Goes through the events in order. `holds` marks the candidate pairs that are pairs; without it
/// all are.
pub(super) fn emit_unpaired(
    kind: JoinKind,
    sides: &mut [Side; 2],
    pairs: &Pairs,
    events: &[Change],
    holds: Option<&BooleanBuffer>,
) -> Shown {
    let alone = alone(kind);
    let mut shown = Shown::default();
    let mut at = 0;
    for record_change in events {
        let (own, other) = (record_change.side, 1 - record_change.side);
        let mut partners = 0;
        for pair in std::mem::replace(&mut at, record_change.pairs_end)..record_change.pairs_end {
            if holds.is_some_and(|h| !h.value(pair)) {
                continue;
            }
            let slots = [pairs.slots[0][pair], pairs.slots[1][pair]];
            let times = pairs.weights[pair] / record_change.weight;
            partners += times;
            if !is_left_only(kind) {
                shown.push(record_change.ts, pairs.weights[pair], slots);
            }
            if alone[other] != Alone::Dropped {
                let count = sides[other].partners(slots[other]);
                let before = *count;
                *count += record_change.weight;
                let gains = i64::from(*count > 0) - i64::from(before > 0);
                let weight = if alone[other] == Alone::WithPartner {
                    gains
                } else {
                    -gains
                };
                shown.push_alone(record_change.ts, weight * times, other, slots[other]);
            }
        }
        if alone[own] != Alone::Dropped {
            let count = sides[own].partners(record_change.slot);
            if record_change.is_new {
                *count = partners;
            }
            if (*count > 0) == (alone[own] == Alone::WithPartner) {
                shown.push_alone(
                    record_change.ts,
                    record_change.weight,
                    own,
                    record_change.slot,
                );
            }
        }
    }
    shown
}

/// The rows in these slots, NULL throughout for [`NONE`].
fn padded(rows: &Side, slots: &[u32]) -> Vec<Column> {
    if !slots.contains(&NONE) {
        return rows.gather(slots);
    }
    if slots.iter().all(|&s| s == NONE) {
        return vec![Column::Nulls(slots.len()); rows.width()];
    }
    let there = NullBuffer::new(BooleanBuffer::collect_bool(slots.len(), |i| {
        slots[i] != NONE
    }));
    let any = slots
        .iter()
        .copied()
        .find(|&s| s != NONE)
        .expect("one is not NONE");
    let filled: Vec<u32> = slots
        .iter()
        .map(|&s| if s == NONE { any } else { s })
        .collect();
    rows.gather(&filled)
        .into_iter()
        .map(|column| masked(column, &there))
        .collect()
}

/// The column with NULL where `there` is false.
fn masked(column: Column, there: &NullBuffer) -> Column {
    let nulls = NullBuffer::union(column.nulls(), Some(there));
    match column {
        Column::Nulls(len) => Column::Nulls(len),
        Column::Bool(a) => Column::Bool(BooleanArray::new(a.values().clone(), nulls)),
        Column::Int(a) => Column::Int(Int64Array::new(a.values().clone(), nulls)),
        Column::Float(a) => Column::Float(Float64Array::new(a.values().clone(), nulls)),
        Column::Text(a) => Column::Text(UInt32Array::new(a.values().clone(), nulls)),
        Column::Tally(a) => {
            let value = |(i, t): (usize, &Option<_>)| t.clone().filter(|_| there.is_valid(i));
            Column::Tally(TallyArray::new(
                a.values().iter().enumerate().map(value).collect(),
            ))
        }
        Column::Bytes(a) => {
            let value =
                |(i, x): (usize, Option<&_>)| x.filter(|_| there.is_valid(i)).map(<[u8]>::to_vec);
            Column::Bytes(a.iter().enumerate().map(value).collect())
        }
    }
}
