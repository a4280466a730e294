//! `stddev(x)`: the standard deviation of a sample.

use weir_model::Unit;
use weir_sketch::Moments;

use super::{Aggregate, AggregateCall, AggregateState, dispersion};
use crate::function::{Argument, ArgumentError, Example, FunctionDoc, Returns};

/// `stddev(x)`
pub struct Stddev;

static DOC: FunctionDoc = FunctionDoc {
    name: "stddev",
    aliases: &["stddev_samp"],
    signature: "stddev(x)",
    summary: "the sample standard deviation: the square root of `var`",
    details: "In the unit of `x`. NULL over fewer than two values. Computed from exact sums and rounded once at the end, so neither close large values nor inserted and \
              retracted rows reduce the precision. NaN if a value is infinite or NaN.",
    examples: &[
        Example {
            call: "stddev(x)",
            rows: "2\n4\n6",
            result: "2",
        },
        Example {
            call: "stddev(x)",
            rows: "5",
            result: "NULL",
        },
    ],
};

impl Aggregate for Stddev {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        dispersion::check(DOC.name, args, args.first().map_or(Unit::None, |x| x.unit))
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        dispersion::state(call, |moments: &Moments| moments.deviation(1))
    }
}
