//! `first` and `last`: the ends of a group's values in order of arrival.

use weir_model::Type;
use weir_sketch::{Bytes, OrderedCounts, codec};

use super::end::{Earliest, Latest, end_of};
use super::per_group::{Summary, per_group};
use super::{AggregateCall, AggregateState};
use crate::function::arguments::{arity, typed};
use crate::function::element::{Element, Real, Text};
use crate::function::{Argument, EvalError, Refusal, Returns};

/// What `first` and `last` return.
pub fn check(name: &str, args: &[Argument]) -> Result<Returns, Refusal> {
    arity(name, args, 1, 1)?;
    let allowed = [Type::Bool, Type::Int, Type::Float, Type::Text, Type::Time];
    typed(name, args, 0, &allowed, "a single value")?;
    Ok(Returns {
        ty: args[0].ty,
        unit: args[0].unit,
    })
}

/// The state of `first` or `last` where rows may go: all arrivals.
pub fn state(call: &AggregateCall, first: bool) -> Box<dyn AggregateState> {
    match call.args[0].ty() {
        Type::Bool => of_all::<bool>(first),
        Type::Float => of_all::<Real>(first),
        Type::Text => of_all::<Text>(first),
        _ => of_all::<i64>(first),
    }
}

/// The state of `first` or `last` where rows only come: the one value.
pub fn state_of_growing(call: &AggregateCall, first: bool) -> Box<dyn AggregateState> {
    if first {
        end_of::<Earliest>(call)
    } else {
        end_of::<Latest>(call)
    }
}

fn of_all<K: Element>(first: bool) -> Box<dyn AggregateState> {
    let end = move |all: &Arrivals<K>| {
        let found = if first {
            all.by_arrival.first()
        } else {
            all.by_arrival.last()
        };
        Ok(found.map(|(_, value)| value))
    };
    per_group(|x: K| x, end)
}

/// Values in order of arrival. A value that goes is taken where it has been longest.
struct Arrivals<K> {
    by_arrival: OrderedCounts<(u64, K)>,
    /// The same by value; under arrival 0, negative, what went before it came.
    by_value: OrderedCounts<(K, u64)>,
    arrivals: u64,
}

impl<K> Default for Arrivals<K> {
    fn default() -> Arrivals<K> {
        Arrivals {
            by_arrival: OrderedCounts::default(),
            by_value: OrderedCounts::default(),
            arrivals: 0,
        }
    }
}

impl<K: Element> Arrivals<K> {
    fn arrive(&mut self, value: K, count: i64) {
        let owed = self.by_value.count((value, 0)).saturating_neg().min(count);
        self.by_value.add((value, 0), owed);
        if count > owed {
            self.arrivals += 1;
            self.by_arrival.add((self.arrivals, value), count - owed);
            self.by_value.add((value, self.arrivals), count - owed);
        }
    }

    fn leave(&mut self, value: K, mut count: i64) {
        while count > 0 {
            let oldest = self
                .by_value
                .first_from((value, 1))
                .filter(|found| found.0 == value);
            let Some((_, arrival)) = oldest else {
                self.by_value.add((value, 0), -count);
                return;
            };
            let gone = self.by_value.count((value, arrival)).min(count);
            self.by_value.add((value, arrival), -gone);
            self.by_arrival.add((arrival, value), -gone);
            count -= gone;
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
        if self.by_value.is_empty() {
            self.arrivals = 0;
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let owed = || {
            self.by_value
                .iter()
                .filter(|((_, arrival), _)| *arrival == 0)
        };
        let arrived = || {
            self.by_arrival
                .iter()
                .map(|((_, value), count)| (value, count))
        };
        codec::put_u64(out, (owed().count() + self.by_arrival.distinct()) as u64);
        for (value, count) in owed()
            .map(|((value, _), count)| (value, count))
            .chain(arrived())
        {
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
        let owed = other
            .by_value
            .iter()
            .filter(|((_, arrival), _)| *arrival == 0);
        for ((value, _), count) in owed {
            self.add(value, count);
        }
        for ((_, value), count) in other.by_arrival.iter() {
            self.add(value, count);
        }
    }

    fn heap_bytes(&self) -> usize {
        self.by_arrival.bytes() + self.by_value.bytes()
    }
}
