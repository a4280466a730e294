//! `concat(x, ..)`: the concatenation of its arguments.

use std::fmt::Write;

use weir_model::{Column, ColumnBuilder, Type, Value};

use super::rows::{TEXT_BYTES_MAX, intern, too_long};
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, typed};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `concat(x, ..)`
pub struct Concat;

static DOC: FunctionDoc = FunctionDoc {
    name: "concat",
    aliases: &[],
    signature: "concat(x, ..)",
    summary: "the concatenation of its arguments",
    details: "NULLs are ignored, unlike by `||`, which is NULL with a NULL. Numbers and booleans are converted to text, without units.",
    examples: &[
        Example::of("concat('vm', 7, '/', 'vda')", "vm7/vda"),
        Example::of("concat('a', NULL, 'b')", "ab"),
        Example::of("concat(NULL)", ""),
    ],
};

impl Scalar for Concat {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, usize::MAX)?;
        for i in 0..args.len() {
            let allowed = [Type::Text, Type::Int, Type::Float, Type::Bool];
            typed(DOC.name, args, i, &allowed, "a text, a number or a boolean")?;
        }
        Ok(Returns::plain(Type::Text))
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        let mut builder = ColumnBuilder::new(Type::Text, len);
        let mut joined = String::new();
        for row in 0..len {
            joined.clear();
            for value in args
                .iter()
                .map(|column| column.value(row))
                .filter(|v| !v.is_null())
            {
                write!(joined, "{value}").expect("a string takes what is written");
                if joined.len() > TEXT_BYTES_MAX {
                    return Err(too_long());
                }
            }
            builder.push(Value::Text(intern(&joined)?));
        }
        Ok(builder.finish())
    }
}
