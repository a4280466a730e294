//! `replace(t, from, to)`: a text with every `from` replaced.

use weir_model::{Column, ColumnBuilder, Symbol, Type, Value};

use super::rows::{TEXT_BYTES_MAX, intern, too_long};
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, text};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `replace(t, from, to)`
pub struct Replace;

static DOC: FunctionDoc = FunctionDoc {
    name: "replace",
    aliases: &[],
    signature: "replace(t, from, to)",
    summary: "the text with every `from` in it replaced by `to`",
    details: "Case-sensitive. An empty `from` changes nothing.",
    examples: &[
        Example::of("replace('/dev/sda', '/dev/', '')", "sda"),
        Example::of("replace('a-b-c', '-', '+')", "a+b+c"),
        Example::of("replace('abc', '', 'x')", "abc"),
    ],
};

impl Scalar for Replace {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 3, 3)?;
        (0..3).try_for_each(|i| text(DOC.name, args, i))?;
        Ok(Returns::plain(Type::Text))
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        let mut builder = ColumnBuilder::new(Type::Text, len);
        for row in 0..len {
            builder.push(match [0, 1, 2].map(|i| args[i].value(row)) {
                [Value::Text(text), Value::Text(from), Value::Text(to)] => {
                    Value::Text(replaced(text, from.as_str(), to.as_str())?)
                }
                _ => Value::Null,
            });
        }
        Ok(builder.finish())
    }
}

fn replaced(text: Symbol, from: &str, to: &str) -> Result<Symbol, EvalError> {
    if from.is_empty() {
        return Ok(text);
    }
    // The length is computed first: a short text in place of each character of a long one can be
    // large.
    let count = text.as_str().matches(from).count();
    match count * to.len() {
        _ if count == 0 => Ok(text),
        added if added > TEXT_BYTES_MAX => Err(too_long()),
        _ => intern(&text.as_str().replace(from, to)),
    }
}
