//! `greatest(x, y, ..)`: the largest of its arguments.

use weir_model::Column;

use super::pick;
use super::{Scalar, ScalarCall};
use crate::function::arguments::arity;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `greatest(x, y, ..)`
pub struct Greatest;

static DOC: FunctionDoc = FunctionDoc {
    name: "greatest",
    aliases: &[],
    signature: "greatest(x, y, ..)",
    summary: "the largest of its arguments",
    details: "NULLs are ignored; the result is NULL if all arguments are. The arguments have one type; integers are converted to float beside floats, and NaN is greater than every number. The result has the finest of their units.",
    examples: &[
        Example::of("greatest(3, 1, 2)", "3"),
        Example::of("greatest(1.5, 2)", "2"),
        Example::of("greatest(NULL, 7)", "7"),
        Example::of("greatest(NULL)", "NULL"),
        Example::of("greatest(8 sectors, 1 KiB)", "4096"),
    ],
};

impl Scalar for Greatest {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, usize::MAX)?;
        pick::check(DOC.name, args)
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        pick::pick(call, args, len, false)
    }
}
