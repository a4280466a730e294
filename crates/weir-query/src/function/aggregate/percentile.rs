//! `percentile_cont` and `percentile_disc`: exact percentiles, from all values in order.

use weir_model::Type;
use weir_sketch::OrderedCounts;

use super::per_group::per_group;
use super::{Aggregate, AggregateCall, AggregateState};
use crate::function::arguments::{argument_error, arity, as_f64, constant, literal, typed};
use crate::function::element::{Element, Output, Real, Text};
use crate::function::{Argument, ArgumentError, FunctionDoc, Returns};

/// `percentile_cont` or `percentile_disc`.
pub struct Percentile {
    pub doc: &'static FunctionDoc,
    /// Whether it interpolates between two values.
    pub is_continuous: bool,
}

impl Aggregate for Percentile {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        let name = self.doc.name;
        arity(name, args, 2, 2)?;
        match self.is_continuous {
            true => typed(name, args, 0, &[Type::Int, Type::Float], "a number")?,
            false => {
                let all = [Type::Bool, Type::Int, Type::Float, Type::Text, Type::Time];
                typed(name, args, 0, &all, "a value with an order")?;
            }
        }
        let q = as_f64(constant(name, args, 1, "a fraction from 0 to 1")?);
        if !q.is_some_and(|q| (0.0..=1.0).contains(&q)) {
            let message =
                format!("`{name}` takes a fraction from 0 to 1: 0.99 is the 99th percentile");
            return Err(argument_error(1, message));
        }
        Ok(match self.is_continuous {
            true => Returns::new(Type::Float, args[0].unit),
            false => args[0].returned(),
        })
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match (call.args[0].ty(), self.is_continuous) {
            (Type::Float, true) => of_values(call, between_floats),
            (_, true) => of_values(call, between_integers),
            (Type::Bool, _) => of_values(call, at_rank::<bool>),
            (Type::Float, _) => of_values(call, at_rank::<Real>),
            (Type::Text, _) => of_values(call, at_rank::<Text>),
            _ => of_values(call, at_rank::<i64>),
        }
    }
}

/// The state whose result is `result` of all values and of q.
fn of_values<K: Element, O: Output + 'static>(
    call: &AggregateCall,
    result: fn(&OrderedCounts<K>, f64) -> Option<O>,
) -> Box<dyn AggregateState> {
    let q = literal(&call.args[1]).as_ref().and_then(as_f64);
    let q = q.expect("`check` saw a constant number");
    per_group(|x: K| x, move |all: &OrderedCounts<K>| Ok(result(all, q)))
}

/// The number of values, if there are any.
fn count<K: Element>(all: &OrderedCounts<K>) -> Option<u64> {
    u64::try_from(all.total()).ok().filter(|n| *n > 0)
}

/// The least value that a fraction q of all does not exceed.
fn at_rank<K: Element>(all: &OrderedCounts<K>, q: f64) -> Option<K> {
    let rank = (q * count(all)? as f64).ceil() as u64;
    all.nth(rank.max(1) - 1)
}

/// The two values around the position q of the way from the first to the last, and how far it is
/// from the lower to the upper one.
fn around<K: Element>(all: &OrderedCounts<K>, q: f64) -> Option<(K, K, f64)> {
    let position = q * (count(all)? - 1) as f64;
    let low = all.nth(position.floor() as u64)?;
    let high = all.nth(position.ceil() as u64)?;
    Some((low, high, position.fract()))
}

fn between_integers(all: &OrderedCounts<i64>, q: f64) -> Option<f64> {
    let (low, high, part) = around(all, q)?;
    let distance = (i128::from(high) - i128::from(low)) as f64;
    Some(low as f64 + distance * part)
}

fn between_floats(all: &OrderedCounts<Real>, q: f64) -> Option<f64> {
    let (low, high, part) = around(all, q)?;
    Some(match part {
        0.0 => low.0,
        part => low.0 * (1.0 - part) + high.0 * part,
    })
}
