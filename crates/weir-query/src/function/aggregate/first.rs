//! `first(x)`: the value that arrived first.

use super::{Aggregate, AggregateCall, AggregateState, arrivals};
use crate::function::{Argument, Example, FunctionDoc, Refusal, Returns};

/// `first(x)`
pub struct First;

static DOC: FunctionDoc = FunctionDoc {
    name: "first",
    aliases: &["first_value"],
    signature: "first(x)",
    summary: "the value that arrived first",
    details: "NULLs are passed over, as by every aggregate. Keeps the type and the unit of `x`. Of equal values the one that came first goes \
              first, as in a window. Over a window it keeps every row's value; without a window one value. Rows of one instant are in \
              no defined order, so where the instant does not settle it, the answer may differ from run to run.",
    examples: &[
        Example {
            call: "first(x)",
            rows: "30\n10\n20\nNULL",
            result: "30",
        },
        Example {
            call: "first(x)",
            rows: "NULL",
            result: "NULL",
        },
    ],
};

impl Aggregate for First {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, Refusal> {
        arrivals::check(DOC.name, args)
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        arrivals::state(call, true)
    }

    fn append_only_state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        arrivals::append_only_state(call, true)
    }

    fn splits(&self) -> bool {
        false
    }
}
