//! `min` and `max`: the ends of the order.

use weir_model::{PartialKind, PartialState, Type};
use weir_sketch::OrderedCounts;

use super::per_group::per_group;
use super::single::{KeepGreatest, KeepLeast, single_partial, single_state};
use super::{Aggregate, AggregateCall, AggregateState, of_integers};
use crate::function::arguments::value_kept;
use crate::function::element::{Element, Real, Text};
use crate::function::{Argument, ArgumentError, FunctionDoc, Returns};

/// `min` or `max`.
pub struct Extreme {
    pub doc: &'static FunctionDoc,
    pub is_least: bool,
}

impl Aggregate for Extreme {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        value_kept(self.doc.name, args, "a value with an order")
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[0].ty() {
            Type::Bool => of_all::<bool>(self.is_least),
            Type::Float => of_all::<Real>(self.is_least),
            Type::Text => of_all::<Text>(self.is_least),
            _ => of_all::<i64>(self.is_least),
        }
    }

    fn append_only_state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match self.is_least {
            true => single_state::<KeepLeast>(call),
            false => single_state::<KeepGreatest>(call),
        }
    }

    fn keep(&self, call: &AggregateCall) -> Option<PartialKind> {
        of_integers(call, || PartialKind::Moments)
    }

    fn partial_of(&self, _: &AggregateCall, kept: &PartialState) -> Option<Vec<u8>> {
        let PartialState::Moments {
            count, min, max, ..
        } = *kept
        else {
            return None;
        };
        let there = |value: i64| (count > 0).then_some(value);
        Some(match self.is_least {
            true => single_partial::<KeepLeast>(there(min)),
            false => single_partial::<KeepGreatest>(there(max)),
        })
    }
}

/// The state where rows may be retracted: all values.
fn of_all<K: Element>(is_least: bool) -> Box<dyn AggregateState> {
    let end = move |all: &OrderedCounts<K>| Ok(if is_least { all.first() } else { all.last() });
    per_group(|x: K| x, end)
}
