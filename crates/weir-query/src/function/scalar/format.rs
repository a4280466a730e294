//! `format(pattern, x, ..)`: a text with values in it.

use std::fmt::Write;

use weir_model::{Column, ColumnBuilder, Type, Value};

use super::rows::{TEXT_BYTES_MAX, intern, too_long};
use super::{Scalar, ScalarCall};
use crate::function::arguments::{argument_error, arity, constant, literal, typed};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `format(pattern, x, ..)`
pub struct TextFormat;

static DOC: FunctionDoc = FunctionDoc {
    name: "format",
    aliases: &["printf"],
    signature: "format(pattern, x, ..)",
    summary: "the pattern with the values in place of each `%s`",
    details: "The pattern is a constant; `%%` is a percent sign. Numbers and booleans are converted to text, without units; NULL is an empty text.",
    examples: &[
        Example::of("format('%s reads %s', 'vm7', 12)", "vm7 reads 12"),
        Example::of("format('%s%%', 99.5)", "99.5%"),
        Example::of("format('[%s]', NULL)", "[]"),
    ],
};

impl Scalar for TextFormat {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, usize::MAX)?;
        let Value::Text(pattern) = constant(DOC.name, args, 0, "a pattern")? else {
            return Err(argument_error(0, "a pattern is a text"));
        };
        for i in 1..args.len() {
            let allowed = [Type::Text, Type::Int, Type::Float, Type::Bool];
            typed(DOC.name, args, i, &allowed, "a text, a number or a boolean")?;
        }
        let parts = parts(pattern.as_str()).ok_or_else(|| {
            argument_error(0, "`%` is followed by `s`, or by `%` for a percent sign")
        })?;
        if parts.len() != args.len() {
            let places = parts.len() - 1;
            let message = format!(
                "the pattern has {places} of `%s` for {} values",
                args.len() - 1
            );
            return Err(argument_error(0, message));
        }
        Ok(Returns::plain(Type::Text))
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        let pattern = literal(&call.args[0]).map_or(String::new(), |pattern| pattern.to_string());
        let parts = parts(&pattern).expect("`check` saw the pattern");
        let mut builder = ColumnBuilder::new(Type::Text, len);
        for row in 0..len {
            let mut text = parts[0].clone();
            for (column, part) in args[1..].iter().zip(&parts[1..]) {
                let value = column.value(row);
                if !value.is_null() {
                    write!(text, "{value}").expect("a string takes what is written");
                }
                text.push_str(part);
                if text.len() > TEXT_BYTES_MAX {
                    return Err(too_long());
                }
            }
            builder.push(Value::Text(intern(&text)?));
        }
        Ok(builder.finish())
    }
}

/// The texts around the values.
fn parts(pattern: &str) -> Option<Vec<String>> {
    let mut parts = vec![String::new()];
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '%' => match chars.next()? {
                's' => parts.push(String::new()),
                '%' => parts.last_mut()?.push('%'),
                _ => return None,
            },
            c => parts.last_mut()?.push(c),
        }
    }
    Some(parts)
}
