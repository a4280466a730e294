//! `pow2_bucket(x)`: the least power of two that x does not exceed.

use weir_model::{Column, Type};
use weir_sketch::PowerOfTwo;

use super::rows::map;
use super::{Scalar, ScalarCall};
use crate::function::arguments::number_kept;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `pow2_bucket(x)`
pub struct Pow2Bucket;

static DOC: FunctionDoc = FunctionDoc {
    name: "pow2_bucket",
    aliases: &["log2_bucket"],
    signature: "pow2_bucket(x)",
    summary: "the smallest power of two that is not less than `x`",
    details: "Keeps the type and the unit of `x`. For 0 it is 0, for a negative number the negative power of two at or below it. It is the limit under which `histogram` counts `x`; grouping by it makes one row per bucket.",
    examples: &[
        Example::of("pow2_bucket(5000)", "8192"),
        Example::of("pow2_bucket(4096)", "4096"),
        Example::of("pow2_bucket(0)", "0"),
        Example::of("pow2_bucket(-5)", "-4"),
        Example::of("pow2_bucket(0.3)", "0.5"),
    ],
};

impl Scalar for Pow2Bucket {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        number_kept(DOC.name, args)
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        match &args[0] {
            Column::Float(_) => map(Type::Float, &args[0], |x: f64| {
                Ok(f64::power(x.power_bucket()))
            }),
            _ => map(Type::Int, &args[0], |x: i64| {
                Ok(i64::power(x.power_bucket()))
            }),
        }
    }
}
