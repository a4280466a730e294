//! `string_agg` and `array_agg`: the values of a group as one text.

use std::fmt::Write;

use weir_model::{Type, Value};
use weir_sketch::OrderedCounts;

use super::per_group::per_group;
use super::{Aggregate, AggregateCall, AggregateState};
use crate::function::arguments::{argument_error, arity, constant, literal, typed};
use crate::function::element::{Element, Real, Text};
use crate::function::scalar::rows::intern;
use crate::function::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};

/// Maximum length of a list in bytes, apart from the `..` at the end of one that is cut off.
pub const LIST_BYTES_MAX: usize = 1_000;

/// `string_agg` or `array_agg`.
pub struct List {
    pub doc: &'static FunctionDoc,
    /// Whether it is of any values, in brackets, or of texts.
    pub is_array: bool,
}

impl Aggregate for List {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        let name = self.doc.name;
        let allowed = [Type::Bool, Type::Int, Type::Float, Type::Text];
        match self.is_array {
            true => {
                arity(name, args, 1, 1)?;
                typed(name, args, 0, &allowed, "a text, a number or a boolean")?;
            }
            false => {
                arity(name, args, 1, 2)?;
                typed(name, args, 0, &[Type::Text], "a text")?;
                let separator = match args.len() {
                    1 => None,
                    _ => Some(constant(name, args, 1, "a separator")?),
                };
                if separator.is_some_and(|s| !matches!(s, Value::Text(_))) {
                    return Err(argument_error(1, "a separator is a text"));
                }
            }
        }
        Ok(Returns::plain(Type::Text))
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[0].ty() {
            Type::Bool => self.values::<bool>(call),
            Type::Float => self.values::<Real>(call),
            Type::Text => self.values::<Text>(call),
            _ => self.values::<i64>(call),
        }
    }
}

impl List {
    fn values<K: Element>(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        let is_array = self.is_array;
        let separator = match call.args.get(1).and_then(literal) {
            Some(Value::Text(separator)) => separator.as_str(),
            _ if is_array => ", ",
            _ => ",",
        };
        per_group(
            |x: K| x,
            move |values: &OrderedCounts<K>| {
                let listed = listed(values, separator)?;
                let listed = listed.map(|list| match is_array {
                    true => format!("[{list}]"),
                    false => list,
                });
                let symbol = listed.map(|list| intern(&list)).transpose()?;
                Ok(symbol.map(Text::new))
            },
        )
    }
}

/// The values in order, separated; `None` of no values.
fn listed<K: Element>(
    values: &OrderedCounts<K>,
    separator: &str,
) -> Result<Option<String>, EvalError> {
    let copies = |(value, count): (K, i64)| {
        let copies = usize::try_from(count).unwrap_or(0);
        std::iter::repeat_n(value.value(), copies)
    };
    let mut list: Option<String> = None;
    for value in values.iter().flat_map(copies) {
        let separator = if list.is_some() { separator } else { "" };
        let text = list.get_or_insert_default();
        let before = text.len();
        write!(text, "{separator}{value}").expect("a string takes what is written");
        if text.len() > LIST_BYTES_MAX {
            text.truncate(before);
            text.push_str(separator);
            text.push_str("..");
            break;
        }
    }
    Ok(list)
}
