//! `first` and `last`: the ends of a group's values in order of arrival.

use std::collections::VecDeque;

use weir_model::Type;
use weir_sketch::{Bytes, OrderedCounts, codec};

use super::per_group::{Summary, per_group};
use super::single::{KeepEarliest, KeepLatest, single_state};
use super::{Aggregate, AggregateCall, AggregateState};
use crate::function::arguments::value_kept;
use crate::function::element::{Element, Real, Text};
use crate::function::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};

/// `first` or `last`.
pub struct ArrivalEnd {
    pub doc: &'static FunctionDoc,
    pub is_first: bool,
}

impl Aggregate for ArrivalEnd {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        value_kept(self.doc.name, args, "a single value")
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[0].ty() {
            Type::Bool => of_all::<bool>(self.is_first),
            Type::Float => of_all::<Real>(self.is_first),
            Type::Text => of_all::<Text>(self.is_first),
            _ => of_all::<i64>(self.is_first),
        }
    }

    fn append_only_state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match self.is_first {
            true => single_state::<KeepEarliest>(call),
            false => single_state::<KeepLatest>(call),
        }
    }

    fn splits(&self) -> bool {
        false
    }
}

/// The state where rows may be retracted: all arrivals.
fn of_all<K: Element>(is_first: bool) -> Box<dyn AggregateState> {
    let end = move |all: &Arrivals<K>| Ok(if is_first { all.first() } else { all.last() });
    per_group(|x: K| x, end)
}

/// How many of the oldest rows are searched for a retracted value before an index is made. Windows
/// retract their oldest rows first.
const NEAR: usize = 64;

/// Values in order of arrival. A retraction removes the oldest of equal values.
struct Arrivals<K> {
    /// Values with their remaining counts; the first and the last have one.
    rows: VecDeque<(K, i64)>,
    /// The number of the first of `rows`; they are numbered as they arrive.
    number: u64,
    /// How many of `rows` have a count.
    present: usize,
    /// Value and number of the present rows; kept from the first retraction out of order on.
    index: Option<OrderedCounts<(K, u64)>>,
    /// Values that were retracted before they were inserted, with counts below 0.
    pending_retractions: OrderedCounts<K>,
}

impl<K> Default for Arrivals<K> {
    fn default() -> Arrivals<K> {
        Arrivals {
            rows: VecDeque::new(),
            number: 0,
            present: 0,
            index: None,
            pending_retractions: OrderedCounts::default(),
        }
    }
}

impl<K: Element> Arrivals<K> {
    fn first(&self) -> Option<K> {
        self.rows.front().map(|row| row.0)
    }

    fn last(&self) -> Option<K> {
        self.rows.back().map(|row| row.0)
    }

    fn arrive(&mut self, value: K, count: i64) {
        let paid = self
            .pending_retractions
            .count(value)
            .saturating_neg()
            .min(count);
        self.pending_retractions.add(value, paid);
        if count > paid {
            let number = self.number + self.rows.len() as u64;
            self.rows.push_back((value, count - paid));
            self.present += 1;
            if let Some(index) = &mut self.index {
                index.add((value, number), 1);
            }
        }
    }

    fn leave(&mut self, value: K, mut count: i64) {
        while count > 0 {
            let Some(i) = self.oldest(value) else {
                self.pending_retractions.add(value, -count);
                return;
            };
            let removed = self.rows[i].1.min(count);
            self.rows[i].1 -= removed;
            count -= removed;
            if self.rows[i].1 == 0 {
                self.present -= 1;
                if let Some(index) = &mut self.index {
                    index.add((value, self.number + i as u64), -1);
                }
                self.trim();
            }
        }
    }

    /// The position of the oldest row with a retracted value.
    fn oldest(&mut self, value: K) -> Option<usize> {
        if self.index.is_none() {
            let is_it = |row: &(K, i64)| row.1 > 0 && row.0 == value;
            let near = self.rows.iter().take(NEAR).position(is_it);
            if near.is_some() || self.rows.len() <= NEAR {
                return near;
            }
            let mut index = OrderedCounts::default();
            for (&(value, count), number) in self.rows.iter().zip(self.number..) {
                index.add((value, number), i64::from(count > 0));
            }
            self.index = Some(index);
        }
        let found = self.index.as_ref()?.first_from((value, 0))?;
        (found.0 == value).then(|| (found.1 - self.number) as usize)
    }

    /// Removes rows without a count: at the ends at once, between them when they are the majority.
    fn trim(&mut self) {
        while self.rows.front().is_some_and(|row| row.1 == 0) {
            self.rows.pop_front();
            self.number += 1;
        }
        while self.rows.back().is_some_and(|row| row.1 == 0) {
            self.rows.pop_back();
        }
        if self.rows.is_empty() {
            (self.rows, self.number, self.index) = (VecDeque::new(), 0, None);
        } else if self.rows.len() > 2 * self.present + NEAR {
            self.rows.retain(|row| row.1 > 0);
            // The numbers no longer match those of the index.
            self.index = None;
        }
    }
}

impl<K: Element> Summary for Arrivals<K> {
    type Value = K;

    fn add(&mut self, value: K, weight: i64) {
        if weight > 0 {
            self.arrive(value, weight);
        } else {
            self.leave(value, weight.saturating_neg());
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        codec::put_u64(
            out,
            (self.pending_retractions.distinct() + self.present) as u64,
        );
        let present = self.rows.iter().copied().filter(|row| row.1 > 0);
        for (value, count) in self.pending_retractions.iter().chain(present) {
            value.encode(out);
            codec::put_i64(out, count);
        }
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<Arrivals<K>, EvalError> {
        let mut arrivals = Arrivals::default();
        for _ in 0..bytes.length(2)? {
            let value = K::decode(bytes)?;
            arrivals.add(value, bytes.i64()?);
        }
        Ok(arrivals)
    }

    fn merge(&mut self, other: Arrivals<K>) {
        for (value, count) in other.pending_retractions.iter().chain(other.rows) {
            self.add(value, count);
        }
    }

    fn heap_bytes(&self) -> usize {
        let index = self.index.as_ref().map_or(0, OrderedCounts::bytes);
        self.rows.capacity() * size_of::<(K, i64)>() + index + self.pending_retractions.bytes()
    }
}
