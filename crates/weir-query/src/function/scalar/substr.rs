//! `substr(t, from [, n])`: a substring.

use weir_model::{Column, ColumnBuilder, Type, Value};

use super::row_function::byte_at;
use super::rows::intern;
use super::{Scalar, ScalarCall};
use crate::function::arguments::{arity, text, typed};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `substr(t, from [, n])`
pub struct Substr;

static DOC: FunctionDoc = FunctionDoc {
    name: "substr",
    aliases: &["substring"],
    signature: "substr(t, from [, n])",
    summary: "the `n` characters of the text from position `from`, or all to its end without `n`",
    details: "The first character has position 1. Positions before it are counted but are empty, as in SQL: `substr('abc', 0, 2)` is `a`.",
    examples: &[
        Example::of("substr('/dev/sda', 6)", "sda"),
        Example::of("substr('nvme0n1', 1, 4)", "nvme"),
        Example::of("substr('abc', 0, 2)", "a"),
        Example::of("substr('abc', 2, -1)", ""),
        Example::of("substr('abc', 9)", ""),
    ],
};

impl Scalar for Substr {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 2, 3)?;
        text(DOC.name, args, 0)?;
        for i in 1..args.len() {
            typed(DOC.name, args, i, &[Type::Int], "an integer")?;
        }
        Ok(Returns::plain(Type::Text))
    }

    fn eval(&self, _: &ScalarCall, args: &[Column], len: usize) -> Result<Column, EvalError> {
        let mut builder = ColumnBuilder::new(Type::Text, len);
        for row in 0..len {
            let places = args[1..].iter().map(|column| match column.value(row) {
                Value::Int(place) => Some(place),
                _ => None,
            });
            let places: Option<Vec<i64>> = places.collect();
            builder.push(match (args[0].value(row), places) {
                (Value::Text(text), Some(places)) => Value::Text(intern(part(
                    text.as_str(),
                    places[0],
                    places.get(1).copied(),
                ))?),
                _ => Value::Null,
            });
        }
        Ok(builder.finish())
    }
}

fn part(text: &str, from: i64, count: Option<i64>) -> &str {
    let end = count
        .map_or(i64::MAX, |count| from.saturating_add(count))
        .max(1);
    let byte = |place: i64| {
        let skipped = usize::try_from(place.max(1) - 1).unwrap_or(usize::MAX);
        byte_at(text, skipped)
    };
    let (start, end) = (byte(from), byte(end));
    &text[start..end.max(start)]
}
