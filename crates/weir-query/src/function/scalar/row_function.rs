//! [`RowFunction`]: a scalar function that is computed row by row, NULL where an argument is.

use weir_model::{Column, ColumnBuilder, Type, Unit, Value};

use super::rows::{TEXT_BYTES_MAX, too_long};
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

/// The characters of the optional argument `i`, by default a blank.
pub fn characters_at(args: &[Value], i: usize) -> &'static str {
    args.get(i).map_or(" ", |_| text_at(args, i))
}

/// Where character `n` of a text begins, or the end of a shorter text.
pub fn byte_at(text: &str, n: usize) -> usize {
    text.char_indices().nth(n).map_or(text.len(), |c| c.0)
}

/// The arguments `t, n [, fill]` as the first n characters of the text and what fills it up to n.
///
/// # Errors
/// When n is longer than a text can be.
pub fn padding(args: &[Value]) -> Result<(&'static str, String), EvalError> {
    let text = text_at(args, 0);
    let length = usize::try_from(int_at(args, 1)).unwrap_or(0);
    if length > TEXT_BYTES_MAX {
        return Err(too_long());
    }
    let missing = length.saturating_sub(text.chars().count());
    let fill = characters_at(args, 2).chars().cycle().take(missing);
    Ok((&text[..byte_at(text, length)], fill.collect()))
}
