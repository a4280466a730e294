//! `min(x)`: the least value.

use weir_model::{PartialKind, PartialState};

use super::{Aggregate, AggregateCall, AggregateState, extreme, of_integers};
use crate::function::{Argument, ArgumentError, Example, FunctionDoc, Returns};

/// `min(x)`
pub struct Min;

static DOC: FunctionDoc = FunctionDoc {
    name: "min",
    aliases: &[],
    signature: "min(x)",
    summary: "the smallest value, in the order of ORDER BY",
    details: "Keeps the type and the unit of `x`. NaN is greater than every number. Texts are ordered by their bytes. \
              Over a window it stores every distinct value in it, 16 bytes each; without a window one value.",
    examples: &[
        Example {
            call: "min(x)",
            rows: "NaN\n2\n1",
            result: "1",
        },
        Example {
            call: "min(x)",
            rows: "b\na\nc",
            result: "a",
        },
        Example {
            call: "min(x)",
            rows: "NULL",
            result: "NULL",
        },
    ],
};

impl Aggregate for Min {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        extreme::check(DOC.name, args)
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        extreme::state(call, true)
    }

    fn append_only_state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        extreme::append_only_state(call, true)
    }

    fn keep(&self, call: &AggregateCall) -> Option<PartialKind> {
        of_integers(call, || PartialKind::Moments)
    }

    fn partial_of(&self, _: &AggregateCall, kept: &PartialState) -> Option<Vec<u8>> {
        extreme::partial_of(kept, true)
    }
}
