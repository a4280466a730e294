//! `var(x)`: the variance of a sample.

use weir_model::Unit;
use weir_sketch::Moments;

use super::{Aggregate, AggregateCall, AggregateState, dispersion};
use crate::function::{Argument, ArgumentError, Example, FunctionDoc, Returns};

/// `var(x)`
pub struct Var;

static DOC: FunctionDoc = FunctionDoc {
    name: "var",
    aliases: &["variance", "var_samp"],
    signature: "var(x)",
    summary: "the sample variance: the sum of squared differences from the mean, divided by the number of values minus one",
    details: "Without unit, since the unit would be squared. NULL over fewer than two values. Computed from exact sums and rounded once at the end, so neither close large values nor inserted and \
              retracted rows reduce the precision. NaN if a value is infinite or NaN.",
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

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        dispersion::check(DOC.name, args, Unit::None)
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        dispersion::state(call, |moments: &Moments| moments.variance(1))
    }
}
