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
        Example {
            call: "greatest(3, 1, 2)",
            rows: "",
            result: "3",
        },
        Example {
            call: "greatest(1.5, 2)",
            rows: "",
            result: "2",
        },
        Example {
            call: "greatest(NULL, 7)",
            rows: "",
            result: "7",
        },
        Example {
            call: "greatest(NULL)",
            rows: "",
            result: "NULL",
        },
        Example {
            call: "greatest(8 sectors, 1 KiB)",
            rows: "",
            result: "4096",
        },
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
