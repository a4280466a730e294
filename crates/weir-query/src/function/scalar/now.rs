//! `now()`: the time at which the query starts.

use weir_model::{Column, Type, Unit};

use super::{Scalar, ScalarCall};
use crate::function::arguments::arity;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `now()`
pub struct QueryStartTime;

static DOC: FunctionDoc = FunctionDoc {
    name: "now",
    aliases: &["current_timestamp"],
    signature: "now()",
    summary: "the time at which the query starts, a timestamp",
    details: "A constant: it does not advance while the query runs, and is the same on every host of a fleet. For the rows of the last minute at every instant write a window, `[Range 1 minute]`.",
    examples: &[
        Example::of("now() > timestamp '2025-01-01'", "true"),
        Example::of("now() = now()", "true"),
    ],
};

impl Scalar for QueryStartTime {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 0, 0)?;
        Ok(Returns::new(Type::Time, Unit::Nanoseconds))
    }

    /// NULL: the checker replaces the call by the constant, so a plan does not contain it.
    fn eval(&self, _: &ScalarCall, _: &[Column], len: usize) -> Result<Column, EvalError> {
        Ok(Column::Nulls(len))
    }
}
