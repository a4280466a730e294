//! `mode(x)`: the most frequent value.

use weir_model::Type;

use super::per_group::per_group;
use super::top::Ranking;
use super::{Aggregate, AggregateCall, AggregateState};
use crate::function::arguments::value_kept;
use crate::function::element::{Element, Real, Text};
use crate::function::{Argument, ArgumentError, Example, FunctionDoc, Returns};

/// `mode(x)`
pub struct Mode;

static DOC: FunctionDoc = FunctionDoc {
    name: "mode",
    aliases: &[],
    signature: "mode(x)",
    summary: "the most frequent value; of equally frequent ones the least",
    details: "Also `mode() WITHIN GROUP (ORDER BY x)`. Keeps the type and the unit of `x`. Exact: it stores every distinct value, as `top(x, k)` does, which has the counts as well.",
    examples: &[
        Example::over("mode(x)", "8\n4\n8\n16\n4\nNULL\nNULL\nNULL", "4"),
        Example::over("mode(x)", "r\nw\nw", "w"),
        Example::over("mode(x)", "", "NULL"),
    ],
};

impl Aggregate for Mode {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        value_kept(DOC.name, args, "a single value")
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[0].ty() {
            Type::Bool => most_frequent::<bool>(),
            Type::Float => most_frequent::<Real>(),
            Type::Text => most_frequent::<Text>(),
            _ => most_frequent::<i64>(),
        }
    }
}

fn most_frequent<K: Element>() -> Box<dyn AggregateState> {
    per_group(|x: K| x, |ranking: &Ranking<K>| Ok(ranking.first()))
}
