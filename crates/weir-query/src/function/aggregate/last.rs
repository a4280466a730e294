//! `last(x)`: the value that arrived last.

use super::{Aggregate, AggregateCall, AggregateState, arrivals};
use crate::function::{Argument, Example, FunctionDoc, Refusal, Returns};

/// `last(x)`
pub struct Last;

static DOC: FunctionDoc = FunctionDoc {
    name: "last",
    aliases: &["last_value"],
    signature: "last(x)",
    summary: "the value that arrived last",
    details: "NULLs are passed over, as by every aggregate. Keeps the type and the unit of `x`. Of equal values the one that came first goes \
              first, as in a window. Over a window it keeps every row's value; without a window one value. Rows of one instant are in \
              no defined order, so where the instant does not settle it, the answer may differ from run to run.",
    examples: &[
        Example {
            call: "last(x)",
            rows: "30\n10\n20\nNULL",
            result: "20",
        },
        Example {
            call: "last(x)",
            rows: "NULL",
            result: "NULL",
        },
    ],
};

impl Aggregate for Last {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, Refusal> {
        arrivals::check(DOC.name, args)
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        arrivals::state(call, false)
    }

    fn append_only_state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        arrivals::append_only_state(call, false)
    }

    fn splits(&self) -> bool {
        false
    }
}
