//! `last(x)`: the value that arrived last.

use super::{Aggregate, AggregateCall, AggregateState, arrivals};
use crate::function::{Argument, ArgumentError, Example, FunctionDoc, Returns};

/// `last(x)`
pub struct Last;

static DOC: FunctionDoc = FunctionDoc {
    name: "last",
    aliases: &["last_value"],
    signature: "last(x)",
    summary: "the value that arrived last",
    details: "NULLs are ignored, as by every aggregate. Keeps the type and the unit of `x`. Of equal values the one that arrived first is retracted \
              first, as in a window. Over a window it stores every row's value; without a window one value. Rows of one instant have \
              no defined order, so between rows of one instant the result can differ from run to run.",
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

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
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
