//! `min` and `max`: the end of the order.

use weir_model::{Kept, Type};
use weir_sketch::OrderedCounts;

use super::end::{Greatest, Least, end_of, end_partial};
use super::per_group::per_group;
use super::{AggregateCall, AggregateState};
use crate::function::arguments::{arity, typed};
use crate::function::element::{Element, Real, Text};
use crate::function::{Argument, Refusal, Returns};

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
pub fn append_only_state(call: &AggregateCall, first: bool) -> Box<dyn AggregateState> {
    if first {
        end_of::<Least>(call)
    } else {
        end_of::<Greatest>(call)
    }
}

/// The partial of what a source kept of integers, where rows only come.
pub fn partial_of(kept: &Kept, first: bool) -> Option<Vec<u8>> {
    let Kept::Moments {
        count, min, max, ..
    } = *kept
    else {
        return None;
    };
    let there = |value: i64| (count > 0).then_some(value);
    Some(match first {
        true => end_partial::<Least>(there(min)),
        false => end_partial::<Greatest>(there(max)),
    })
}

fn of_all<K: Element>(first: bool) -> Box<dyn AggregateState> {
    let end = move |all: &OrderedCounts<K>| Ok(if first { all.first() } else { all.last() });
    per_group(|x: K| x, end)
}
