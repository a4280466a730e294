//! `min` and `max`: the end of the order.

use std::cmp::Ordering;

use weir_model::Type;
use weir_sketch::{Bytes, Malformed, OrderedCounts};

use super::per_group::{Summary, per_group};
use super::{AggregateCall, AggregateState};
use crate::function::arguments::{arity, typed};
use crate::function::element::{Element, Real, Text};
use crate::function::{Argument, EvalError, Refusal, Returns};

/// What `min` and `max` return.
pub fn check(name: &str, args: &[Argument]) -> Result<Returns, Refusal> {
    arity(name, args, 1, 1)?;
    let allowed = [Type::Bool, Type::Int, Type::Float, Type::Text, Type::Time];
    typed(name, args, 0, &allowed, "a value with an order")?;
    Ok(Returns {
        ty: args[0].ty,
        unit: args[0].unit,
    })
}

/// The state of `min` (`first`) or `max` where rows may go: all values.
pub fn state(call: &AggregateCall, first: bool) -> Box<dyn AggregateState> {
    match call.args[0].ty() {
        Type::Bool => of_all::<bool>(first),
        Type::Float => of_all::<Real>(first),
        Type::Text => of_all::<Text>(first),
        _ => of_all::<i64>(first),
    }
}

/// The state of `min` or `max` where rows only come: the value so far.
pub fn state_of_growing(call: &AggregateCall, first: bool) -> Box<dyn AggregateState> {
    match call.args[0].ty() {
        Type::Bool => of_growing::<bool>(first),
        Type::Float => of_growing::<Real>(first),
        Type::Text => of_growing::<Text>(first),
        _ => of_growing::<i64>(first),
    }
}

fn of_all<K: Element>(first: bool) -> Box<dyn AggregateState> {
    if first {
        per_group(|x: K| x, |all: &OrderedCounts<K>| Ok(all.first()))
    } else {
        per_group(|x: K| x, |all: &OrderedCounts<K>| Ok(all.last()))
    }
}

fn of_growing<K: Element>(first: bool) -> Box<dyn AggregateState> {
    if first {
        per_group(|x: K| x, |end: &End<K, true>| Ok(end.0))
    } else {
        per_group(|x: K| x, |end: &End<K, false>| Ok(end.0))
    }
}

/// The least value so far, or the greatest.
struct End<K, const FIRST: bool>(Option<K>);

impl<K, const FIRST: bool> Default for End<K, FIRST> {
    fn default() -> End<K, FIRST> {
        End(None)
    }
}

impl<K: Element, const FIRST: bool> Summary for End<K, FIRST> {
    type Value = K;

    fn add(&mut self, value: K, _: i64) {
        let further = if FIRST {
            Ordering::Less
        } else {
            Ordering::Greater
        };
        if self.0.is_none_or(|end| value.cmp(&end) == further) {
            self.0 = Some(value);
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.0.is_some().into());
        if let Some(end) = self.0 {
            end.encode(out);
        }
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<Self, EvalError> {
        match bytes.byte()? {
            0 => Ok(End(None)),
            1 => Ok(End(Some(K::decode(bytes)?))),
            _ => Err(Malformed("neither a value nor none").into()),
        }
    }

    fn merge(&mut self, other: Self) {
        if let Some(value) = other.0 {
            self.add(value, 1);
        }
    }
}
