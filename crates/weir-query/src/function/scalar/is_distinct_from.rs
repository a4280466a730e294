//! `is_distinct_from(x, y)`: whether two values differ, with NULL as a value.

use weir_model::{Column, ColumnBuilder, Type, Value};

use super::rows::in_result_terms;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, common_type};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `is_distinct_from(x, y)`
pub struct IsDistinctFrom;

static DOC: FunctionDoc = FunctionDoc {
    name: "is_distinct_from",
    aliases: &[],
    signature: "is_distinct_from(x, y)",
    summary: "whether `x` and `y` differ, where NULL is a value of its own",
    details: "Usually written `x IS DISTINCT FROM y` or `x IS NOT DISTINCT FROM y`. Never NULL.",
    examples: &[
        Example::of("1 is distinct from 2", "true"),
        Example::of("NULL is distinct from 2", "true"),
        Example::of("NULL is not distinct from NULL", "true"),
        Example::of("1 ms is distinct from 1000 us", "false"),
    ],
};

impl Scalar for IsDistinctFrom {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 2, 2)?;
        common_type(DOC.name, args)?;
        Ok(Returns::plain(Type::Bool))
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        let of_args: Vec<Argument> = call.args.iter().map(Argument::of).collect();
        let common = common_type(DOC.name, &of_args).map_err(|e| EvalError::new(e.message))?;
        let as_common = ScalarCall {
            ty: common.ty,
            unit: common.unit,
            ..call.clone()
        };
        let x = in_result_terms(&as_common, 0, &args[0])?;
        let y = in_result_terms(&as_common, 1, &args[1])?;
        let mut builder = ColumnBuilder::new(Type::Bool, len);
        for row in 0..len {
            builder.push(Value::Bool(x.value(row) != y.value(row)));
        }
        Ok(builder.finish())
    }
}
