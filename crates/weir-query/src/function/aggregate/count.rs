//! `count(*)`, `count(x)`: the number of rows, or of rows whose `x` is not NULL.

use weir_model::{PartialKind, PartialState, Type};
use weir_sketch::{Bytes, codec};

use super::per_group::{Summary, partial_of, per_group};
use super::total;
use super::{Aggregate, AggregateCall, AggregateState};
use crate::function::arguments::arity;
use crate::function::element::Present;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `count(*)`, `count(x)`
pub struct Count;

static DOC: FunctionDoc = FunctionDoc {
    name: "count",
    aliases: &[],
    signature: "count(*), count(x), count(distinct x)",
    summary: "the number of rows; with an argument, of rows where it is not NULL",
    details: "0 over no rows. `count(distinct x)` counts each distinct value once.",
    examples: &[
        Example::over("count(*)", "1\nNULL\n3", "3"),
        Example::over("count(x)", "1\nNULL\n3", "2"),
        Example::over("count(x)", "", "0"),
    ],
};

impl Aggregate for Count {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 0, 1)?;
        Ok(Returns::plain(Type::Int))
    }

    fn state(&self, _: &AggregateCall) -> Box<dyn AggregateState> {
        per_group(
            |present: Present| present,
            |rows: &Rows| counted(rows.0).map(Some),
        )
    }

    fn shares(&self, call: &AggregateCall, other: &AggregateCall) -> bool {
        !call.args.is_empty() && total::shares(call, other)
    }

    fn keep(&self, _: &AggregateCall) -> Option<PartialKind> {
        Some(PartialKind::Moments)
    }

    fn partial_of(&self, _: &AggregateCall, kept: &PartialState) -> Option<Vec<u8>> {
        let PartialState::Moments { count, .. } = *kept else {
            return None;
        };
        Some(partial_of(&Rows(i64::try_from(count).ok()?)))
    }
}

/// The result of a count, or its overflow.
pub fn counted(rows: i64) -> Result<i64, EvalError> {
    // A multiset has no negative count, so this one exceeded 2^63.
    let overflow = || EvalError::new("integer overflow in count: more than 2^63 rows");
    (rows >= 0).then_some(rows).ok_or_else(overflow)
}

/// The number of rows.
#[derive(Default)]
struct Rows(i64);

impl Summary for Rows {
    type Value = Present;

    fn add(&mut self, _: Present, weight: i64) {
        self.0 = self.0.wrapping_add(weight);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        codec::put_i64(out, self.0);
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<Rows, EvalError> {
        Ok(Rows(bytes.i64()?))
    }

    fn merge(&mut self, other: Rows) {
        self.0 = self.0.wrapping_add(other.0);
    }
}
