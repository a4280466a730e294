//! `var_pop(x)`: the variance of a whole population.

use weir_model::Unit;
use weir_sketch::Moments;

use super::{Aggregate, AggregateCall, AggregateState, dispersion};
use crate::function::{Argument, ArgumentError, Example, FunctionDoc, Returns};

/// `var_pop(x)`
pub struct VarPop;

static DOC: FunctionDoc = FunctionDoc {
    name: "var_pop",
    aliases: &[],
    signature: "var_pop(x)",
    summary: "the population variance: the sum of squared differences from the mean, divided by the number of values",
    details: "Without unit, since the unit would be squared. Computed from exact sums and rounded once at the end, so neither close large values nor inserted and \
              retracted rows reduce the precision. NaN if a value is infinite or NaN.",
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

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        dispersion::check(DOC.name, args, Unit::None)
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        dispersion::state(call, |moments: &Moments| moments.variance(0))
    }
}
