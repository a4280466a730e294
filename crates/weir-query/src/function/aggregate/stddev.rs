//! `stddev(x)`: the standard deviation of a sample.

use weir_model::Unit;
use weir_sketch::Moments;

use super::{Aggregate, AggregateCall, AggregateState, spread};
use crate::function::{Argument, Example, FunctionDoc, Refusal, Returns};

/// `stddev(x)`
pub struct Stddev;

static DOC: FunctionDoc = FunctionDoc {
    name: "stddev",
    aliases: &["stddev_samp"],
    signature: "stddev(x)",
    summary: "the sample's standard deviation: the square root of `var`",
    details: "In the unit of `x`. Of fewer than two values it is NULL. Computed from exact sums and rounded at the end: neither large values close together nor rows that come and \
              go cost precision. With an infinity or NaN among the values it is NaN.",
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

    fn check(&self, args: &[Argument]) -> Result<Returns, Refusal> {
        spread::check(DOC.name, args, args.first().map_or(Unit::None, |x| x.unit))
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        spread::state(call, |moments: &Moments| moments.deviation(1))
    }
}
