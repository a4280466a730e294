//! One value of a group: the least, greatest, first or last so far. Sufficient for append-only
//! input.

use std::marker::PhantomData;

use weir_model::Type;
use weir_sketch::{Bytes, SketchDecodeError};

use super::per_group::{Summary, partial_of, per_group};
use super::{AggregateCall, AggregateState};
use crate::function::EvalError;
use crate::function::element::{Element, Real, Text};

/// Which value is kept.
pub trait Preference: Send + 'static {
    /// Whether `new` replaces `old`.
    fn replaces<K: Ord>(new: &K, old: &K) -> bool;
}

/// For `min`.
pub struct KeepLeast;

impl Preference for KeepLeast {
    fn replaces<K: Ord>(new: &K, old: &K) -> bool {
        new < old
    }
}

/// For `max`.
pub struct KeepGreatest;

impl Preference for KeepGreatest {
    fn replaces<K: Ord>(new: &K, old: &K) -> bool {
        new > old
    }
}

/// For `first`.
pub struct KeepEarliest;

impl Preference for KeepEarliest {
    fn replaces<K: Ord>(_: &K, _: &K) -> bool {
        false
    }
}

/// For `last`.
pub struct KeepLatest;

impl Preference for KeepLatest {
    fn replaces<K: Ord>(_: &K, _: &K) -> bool {
        true
    }
}

/// The state of a call that keeps that value.
pub fn single_state<W: Preference>(call: &AggregateCall) -> Box<dyn AggregateState> {
    match call.args[0].ty() {
        Type::Bool => of_type::<bool, W>(),
        Type::Float => of_type::<Real, W>(),
        Type::Text => of_type::<Text, W>(),
        _ => of_type::<i64, W>(),
    }
}

/// The partial of a group of integers whose kept value is `value`.
pub fn single_partial<W: Preference>(value: Option<i64>) -> Vec<u8> {
    partial_of(&Single {
        value,
        which: PhantomData::<W>,
    })
}

fn of_type<K: Element, W: Preference>() -> Box<dyn AggregateState> {
    per_group(|x: K| x, |end: &Single<K, W>| Ok(end.value))
}

/// The value kept so far.
struct Single<K, W> {
    value: Option<K>,
    which: PhantomData<W>,
}

impl<K, W> Default for Single<K, W> {
    fn default() -> Single<K, W> {
        Single {
            value: None,
            which: PhantomData,
        }
    }
}

impl<K: Element, W: Preference> Summary for Single<K, W> {
    type Value = K;

    fn add(&mut self, value: K, _: i64) {
        if self.value.is_none_or(|old| W::replaces(&value, &old)) {
            self.value = Some(value);
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.value.is_some().into());
        if let Some(value) = self.value {
            value.encode(out);
        }
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<Self, EvalError> {
        let value = match bytes.byte()? {
            0 => None,
            1 => Some(K::decode(bytes)?),
            _ => return Err(SketchDecodeError("neither a value nor none").into()),
        };
        Ok(Single {
            value,
            which: PhantomData,
        })
    }

    fn merge(&mut self, other: Self) {
        if let Some(value) = other.value {
            self.add(value, 1);
        }
    }
}
