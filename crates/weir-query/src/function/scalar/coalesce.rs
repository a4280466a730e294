//! `coalesce(x, y, ..)`: the first value that is not NULL.

use weir_model::{Column, ColumnBuilder, Value};

use super::rows::in_result_terms;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, common_type};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `coalesce(x, y, ..)`
pub struct Coalesce;

static DOC: FunctionDoc = FunctionDoc {
    name: "coalesce",
    aliases: &["ifnull", "nvl"],
    signature: "coalesce(x, y, ..)",
    summary: "the first of its arguments that is not NULL",
    details: "The arguments have one type; integers are converted to float beside floats. The result has the finest of their units.",
    examples: &[
        Example::of("coalesce(NULL, 2, 3)", "2"),
        Example::of("coalesce(NULL, 'none')", "none"),
        Example::of("coalesce(NULL, NULL)", "NULL"),
    ],
};

impl Scalar for Coalesce {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, usize::MAX)?;
        common_type(DOC.name, args)
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        let mut columns = Vec::with_capacity(args.len());
        for (i, arg) in args.iter().enumerate() {
            let column = in_result_terms(call, i, arg)?;
            let complete = (0..len).all(|row| !column.is_null(row));
            columns.push(column);
            if complete {
                break;
            }
        }
        if let [only] = &columns[..] {
            return Ok(only.clone());
        }
        let mut builder = ColumnBuilder::new(call.ty, len);
        for row in 0..len {
            let first = columns.iter().find(|c| !c.is_null(row));
            builder.push(first.map_or(Value::Null, |c| c.value(row)));
        }
        Ok(builder.finish())
    }
}
