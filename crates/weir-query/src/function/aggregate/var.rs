//! `var(x)`: the variance of a sample.

use weir_model::Unit;
use weir_sketch::Moments;

use super::{Aggregate, AggregateCall, AggregateState, spread};
use crate::function::{Argument, Example, FunctionDoc, Refusal, Returns};

/// `var(x)`
pub struct Var;

static DOC: FunctionDoc = FunctionDoc {
    name: "var",
    aliases: &["variance", "var_samp"],
    signature: "var(x)",
    summary: "the sample's variance: squared distances from the mean, summed, over one less than their number",
    details: "Its unit would be squared, so it has none. Of fewer than two values it is NULL. Computed from exact sums and rounded at the end: neither large values close together nor rows that come and \
              go cost precision. With an infinity or NaN among the values it is NaN.",
    examples: &[
        Example {
            call: "var(x)",
            rows: "2\n4\n9",
            result: "13",
        },
        Example {
            call: "var(x)",
            rows: "5",
            result: "NULL",
        },
        Example {
            call: "var(x)",
            rows: "1700000000000000001\n1700000000000000003",
            result: "2",
        },
    ],
};

impl Aggregate for Var {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, Refusal> {
        spread::check(DOC.name, args, Unit::None)
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        spread::state(call, |moments: &Moments| moments.variance(1))
    }
}
