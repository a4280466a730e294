//! [`RowFunction`]: a scalar function that is computed row by row, NULL where an argument is.

use weir_model::{Column, ColumnBuilder, Type, Unit, Value};

use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, typed};
use crate::function::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};

/// A scalar function of arguments with fixed types.
pub struct RowFunction {
    pub doc: &'static FunctionDoc,
    /// The types of the arguments.
    pub takes: &'static [Type],
    /// How many of them are required.
    pub required: usize,
    /// The type of the result, which has no unit unless it is a timestamp.
    pub returns: Type,
    /// A further check of arguments that have these types.
    pub refuses: fn(&[Argument]) -> Result<(), ArgumentError>,
    /// The value of a row without NULLs.
    pub value: fn(&[Value]) -> Result<Value, EvalError>,
}

/// Accepts all arguments of the right types.
pub fn nothing(_: &[Argument]) -> Result<(), ArgumentError> {
    Ok(())
}

impl Scalar for RowFunction {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        let name = self.doc.name;
        arity(name, args, self.required, self.takes.len())?;
        for (i, ty) in self.takes[..args.len()].iter().enumerate() {
            let what = match ty {
                Type::Text => "a text",
                Type::Time => "a timestamp",
                Type::Float => "a number",
                _ => "an integer",
            };
            match ty {
                Type::Float => typed(name, args, i, &[Type::Int, Type::Float], what)?,
                ty => typed(name, args, i, &[*ty], what)?,
            }
        }
        (self.refuses)(args)?;
        Ok(match self.returns {
            Type::Time => Returns::new(Type::Time, Unit::Nanoseconds),
            ty => Returns::plain(ty),
        })
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        let mut builder = ColumnBuilder::new(self.returns, len);
        let mut values = Vec::with_capacity(args.len());
        for row in 0..len {
            values.clear();
            values.extend(args.iter().map(|arg| arg.value(row)));
            builder.push(match values.iter().any(Value::is_null) {
                true => Value::Null,
                false => (self.value)(&values)?,
            });
        }
        Ok(builder.finish())
    }
}

/// The text of argument `i`.
pub fn text_at(args: &[Value], i: usize) -> &'static str {
    match &args[i] {
        Value::Text(text) => text.as_str(),
        _ => "",
    }
}

/// The integer of argument `i`.
pub fn int_at(args: &[Value], i: usize) -> i64 {
    match args[i] {
        Value::Int(x) => x,
        _ => 0,
    }
}
