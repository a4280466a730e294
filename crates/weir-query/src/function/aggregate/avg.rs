//! `avg(x)`: the arithmetic mean of the values.

use weir_model::{PartialKind, PartialState, Type};

use super::per_group::shared_per_group;
use super::total::{self, FloatTotal, IntTotal};
use super::{Aggregate, AggregateCall, AggregateState, of_integers};
use crate::function::arguments::{arity, typed};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `avg(x)`
pub struct Avg;

static DOC: FunctionDoc = FunctionDoc {
    name: "avg",
    aliases: &["mean"],
    signature: "avg(x)",
    summary: "the arithmetic mean of the values",
    details: "A float in the unit of `x`; of timestamps a timestamp, rounded down. It is computed from an exact sum that never overflows.",
    examples: &[
        Example {
            call: "avg(x)",
            rows: "1\nNULL\n2",
            result: "1.5",
        },
        Example {
            call: "avg(x)",
            rows: "9223372036854775807\n9223372036854775807",
            result: "9223372036854776000",
        },
        Example {
            call: "avg(x)",
            rows: "",
            result: "NULL",
        },
    ],
};

impl Aggregate for Avg {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, 1)?;
        let allowed = [Type::Int, Type::Float, Type::Time];
        typed(DOC.name, args, 0, &allowed, "a number or a timestamp")?;
        let ty = if args[0].ty == Type::Time {
            Type::Time
        } else {
            Type::Float
        };
        Ok(Returns {
            ty,
            unit: args[0].unit,
        })
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[0].ty() {
            Type::Float => shared_per_group(|x: f64| x, of_floats, Some(FloatTotal::result_of)),
            Type::Time => shared_per_group(|x: i64| x, of_times, Some(IntTotal::result_of)),
            _ => shared_per_group(|x: i64| x, of_ints, Some(IntTotal::result_of)),
        }
    }

    fn shares(&self, call: &AggregateCall, other: &AggregateCall) -> bool {
        total::shares(call, other)
    }

    fn keep(&self, call: &AggregateCall) -> Option<PartialKind> {
        of_integers(call, || PartialKind::Moments)
    }

    fn partial_of(&self, _: &AggregateCall, kept: &PartialState) -> Option<Vec<u8>> {
        IntTotal::partial_of(kept)
    }
}

/// The mean of integers.
pub fn of_ints(total: &IntTotal) -> Result<Option<f64>, EvalError> {
    // A 64-bit integer is converted by one instruction, a 128-bit one by a routine, which is kept
    // out of the usual case.
    let sum = match i64::try_from(total.sum) {
        Ok(sum) => sum as f64,
        Err(_) => wide(total.sum),
    };
    Ok((total.count != 0).then(|| sum / total.count as f64))
}

#[cold]
#[inline(never)]
fn wide(sum: i128) -> f64 {
    sum as f64
}

/// The mean of floats.
pub fn of_floats(total: &FloatTotal) -> Result<Option<f64>, EvalError> {
    Ok((total.count != 0).then(|| total.sum.over(total.count)))
}

/// The mean of timestamps.
pub fn of_times(total: &IntTotal) -> Result<Option<i64>, EvalError> {
    if total.count == 0 {
        return Ok(None);
    }
    let mean = total.sum.div_euclid(i128::from(total.count));
    let outside = |_| EvalError::new("integer overflow in avg: more than 2^63 rows");
    i64::try_from(mean).map(Some).map_err(outside)
}
