//! `stddev_pop(x)`: the standard deviation of a whole population.

use weir_model::Unit;
use weir_sketch::Moments;

use super::{Aggregate, AggregateCall, AggregateState, dispersion};
use crate::function::{Argument, ArgumentError, Example, FunctionDoc, Returns};

/// `stddev_pop(x)`
pub struct StddevPop;

static DOC: FunctionDoc = FunctionDoc {
    name: "stddev_pop",
    aliases: &[],
    signature: "stddev_pop(x)",
    summary: "the population standard deviation: the square root of `var_pop`",
    details: "In the unit of `x`. Computed from exact sums and rounded once at the end, so neither close large values nor inserted and \
              retracted rows reduce the precision. NaN if a value is infinite or NaN.",
    examples: &[
        Example {
            call: "stddev_pop(x)",
            rows: "1\n5",
            result: "2",
        },
        Example {
            call: "stddev_pop(x)",
            rows: "5",
            result: "0",
        },
        Example {
            call: "stddev_pop(x)",
            rows: "NULL",
            result: "NULL",
        },
    ],
};

impl Aggregate for StddevPop {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        dispersion::check(DOC.name, args, args.first().map_or(Unit::None, |x| x.unit))
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        dispersion::state(call, |moments: &Moments| moments.deviation(0))
    }
}
