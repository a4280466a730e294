//! `sum(x)`: the sum of the values.

use weir_model::{PartialKind, PartialState, Type};

use super::per_group::shared_per_group;
use super::total::{self, FloatTotal, IntTotal};
use super::{Aggregate, AggregateCall, AggregateState, of_integers};
use crate::function::arguments::{arity, number};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `sum(x)`
pub struct Sum;

static DOC: FunctionDoc = FunctionDoc {
    name: "sum",
    aliases: &[],
    signature: "sum(x)",
    summary: "the sum of the values",
    details: "Keeps the type and the unit of `x`. A sum of integers that does not fit in 64 bits is an error that ends the query; intermediate sums can exceed 64 bits. \
              A sum of floats is exact and rounded once at the end, so rows that leave a window leave no rounding error.",
    examples: &[
        Example {
            call: "sum(x)",
            rows: "1\nNULL\n3",
            result: "4",
        },
        Example {
            call: "sum(x)",
            rows: "1e300\n0.5\n-1e300",
            result: "0.5",
        },
        Example {
            call: "sum(x)",
            rows: "NULL",
            result: "NULL",
        },
    ],
};

impl Aggregate for Sum {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, 1)?;
        number(DOC.name, args, 0)?;
        let ty = match args[0].ty {
            Type::Float => Type::Float,
            _ => Type::Int,
        };
        Ok(Returns {
            ty,
            unit: args[0].unit,
        })
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[0].ty() {
            Type::Float => shared_per_group(|x: f64| x, of_floats, Some(FloatTotal::result_of)),
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

/// The sum of floats.
pub fn of_floats(total: &FloatTotal) -> Result<Option<f64>, EvalError> {
    Ok((total.count != 0).then(|| total.sum.to_f64()))
}

/// The sum of integers.
pub fn of_ints(total: &IntTotal) -> Result<Option<i64>, EvalError> {
    if total.count == 0 {
        return Ok(None);
    }
    let overflow = |_| {
        EvalError::new("integer overflow in sum").help("sum floats instead: sum(cast(x as float))")
    };
    i64::try_from(total.sum).map(Some).map_err(overflow)
}
