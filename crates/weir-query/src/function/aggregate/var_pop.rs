//! `var_pop(x)`: the variance of a whole population.

use weir_model::Unit;
use weir_sketch::Moments;

use super::{Aggregate, AggregateCall, AggregateState, spread};
use crate::function::{Argument, Example, FunctionDoc, Refusal, Returns};

/// `var_pop(x)`
pub struct VarPop;

static DOC: FunctionDoc = FunctionDoc {
    name: "var_pop",
    aliases: &[],
    signature: "var_pop(x)",
    summary: "the population's variance: squared distances from the mean, summed, over their number",
    details: "Its unit would be squared, so it has none. Computed from exact sums and rounded at the end: neither large values close together nor rows that come and \
              go cost precision. With an infinity or NaN among the values it is NaN.",
    examples: &[
        Example {
            call: "var_pop(x)",
            rows: "2\n4\n9",
            result: "8.666666666666666",
        },
        Example {
            call: "var_pop(x)",
            rows: "5",
            result: "0",
        },
        Example {
            call: "var_pop(x)",
            rows: "",
            result: "NULL",
        },
    ],
};

impl Aggregate for VarPop {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, Refusal> {
        spread::check(DOC.name, args, Unit::None)
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        spread::state(call, |moments: &Moments| moments.variance(0))
    }
}
