//! `nullif(x, y)`: x, or NULL where it equals y.

use weir_model::{Column, ColumnBuilder, Value};

use super::rows::in_result_terms;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, common_type};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `nullif(x, y)`
pub struct Nullif;

static DOC: FunctionDoc = FunctionDoc {
    name: "nullif",
    aliases: &[],
    signature: "nullif(x, y)",
    summary: "`x`, or NULL where it equals `y`",
    details: "The arguments have one type; integers are converted to float beside floats. `count(nullif(error, 0))` counts the rows with an error.",
    examples: &[
        Example::of("nullif(3, 0)", "3"),
        Example::of("nullif(0, 0)", "NULL"),
        Example::of("nullif('-', '-')", "NULL"),
        Example::of("nullif(5, NULL)", "5"),
    ],
};

impl Scalar for Nullif {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 2, 2)?;
        common_type(DOC.name, args)
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        let x = in_result_terms(call, 0, &args[0])?;
        let y = in_result_terms(call, 1, &args[1])?;
        let mut builder = ColumnBuilder::new(call.ty, len);
        for row in 0..len {
            let value = x.value(row);
            builder.push(if value == y.value(row) {
                Value::Null
            } else {
                value
            });
        }
        Ok(builder.finish())
    }
}
