//! `least(x, y, ..)`: the smallest of its arguments.

use weir_model::Column;

use super::pick;
use super::{Scalar, ScalarCall};
use crate::function::arguments::arity;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `least(x, y, ..)`
pub struct Least;

static DOC: FunctionDoc = FunctionDoc {
    name: "least",
    aliases: &[],
    signature: "least(x, y, ..)",
    summary: "the smallest of its arguments",
    details: "NULLs are ignored; the result is NULL if all arguments are. The arguments have one type; integers are converted to float beside floats, and NaN is greater than every number. The result has the finest of their units.",
    examples: &[
        Example::of("least(3, 1, 2)", "1"),
        Example::of("least(1.5, 2)", "1.5"),
        Example::of("least(NULL, 7)", "7"),
        Example::of("least('b', 'a')", "a"),
        Example::of("least(1 ms, 20 us)", "20000"),
    ],
};

impl Scalar for Least {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, usize::MAX)?;
        pick::check(DOC.name, args)
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        pick::pick(call, args, len, true)
    }
}
