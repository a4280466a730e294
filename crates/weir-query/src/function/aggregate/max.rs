//! `max(x)`: the greatest value.

use weir_model::{PartialKind, PartialState};

use super::{Aggregate, AggregateCall, AggregateState, extreme, of_integers};
use crate::function::{Argument, ArgumentError, Example, FunctionDoc, Returns};

/// `max(x)`
pub struct Max;

static DOC: FunctionDoc = FunctionDoc {
    name: "max",
    aliases: &[],
    signature: "max(x)",
    summary: "the largest value, in the order of ORDER BY",
    details: "Keeps the type and the unit of `x`. NaN is greater than every number. Texts are ordered by their bytes. \
              Over a window it stores every distinct value in it, 16 bytes each; without a window one value.",
    examples: &[
        Example {
            call: "max(x)",
            rows: "1\n3\n2",
            result: "3",
        },
        Example {
            call: "max(x)",
            rows: "b\na\nc",
            result: "c",
        },
        Example {
            call: "max(x)",
            rows: "NULL",
            result: "NULL",
        },
    ],
};

impl Aggregate for Max {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        extreme::check(DOC.name, args)
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        extreme::state(call, false)
    }

    fn append_only_state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        extreme::append_only_state(call, false)
    }

    fn keep(&self, call: &AggregateCall) -> Option<PartialKind> {
        of_integers(call, || PartialKind::Moments)
    }

    fn partial_of(&self, _: &AggregateCall, kept: &PartialState) -> Option<Vec<u8>> {
        extreme::partial_of(kept, false)
    }
}
