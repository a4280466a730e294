//! `min` and `max`: the ends of the order.

use weir_model::{PartialState, Type};
use weir_sketch::OrderedCounts;

use super::per_group::per_group;
use super::single::{KeepGreatest, KeepLeast, single_partial, single_state};
use super::{AggregateCall, AggregateState};
use crate::function::arguments::{arity, typed};
use crate::function::element::{Element, Real, Text};
use crate::function::{Argument, ArgumentError, Returns};

/// The return type of `min` and `max`.
pub fn check(name: &str, args: &[Argument]) -> Result<Returns, ArgumentError> {
    arity(name, args, 1, 1)?;
    let allowed = [Type::Bool, Type::Int, Type::Float, Type::Text, Type::Time];
    typed(name, args, 0, &allowed, "a value with an order")?;
    Ok(Returns {
        ty: args[0].ty,
        unit: args[0].unit,
    })
}

/// The state of `min` (`first`) or `max` where rows may be retracted: all values.
pub fn state(call: &AggregateCall, first: bool) -> Box<dyn AggregateState> {
    match call.args[0].ty() {
        Type::Bool => of_all::<bool>(first),
        Type::Float => of_all::<Real>(first),
        Type::Text => of_all::<Text>(first),
        _ => of_all::<i64>(first),
    }
}

/// The state of `min` or `max` over append-only input: the value so far.
pub fn append_only_state(call: &AggregateCall, first: bool) -> Box<dyn AggregateState> {
    if first {
        single_state::<KeepLeast>(call)
    } else {
        single_state::<KeepGreatest>(call)
    }
}

/// The partial for integers that a source aggregated, over append-only input.
pub fn partial_of(kept: &PartialState, first: bool) -> Option<Vec<u8>> {
    let PartialState::Moments {
        count, min, max, ..
    } = *kept
    else {
        return None;
    };
    let there = |value: i64| (count > 0).then_some(value);
    Some(match first {
        true => single_partial::<KeepLeast>(there(min)),
        false => single_partial::<KeepGreatest>(there(max)),
    })
}

fn of_all<K: Element>(first: bool) -> Box<dyn AggregateState> {
    let end = move |all: &OrderedCounts<K>| Ok(if first { all.first() } else { all.last() });
    per_group(|x: K| x, end)
}
