//! `median(x)`: the middle value.

use weir_model::Type;
use weir_sketch::OrderedCounts;

use super::per_group::per_group;
use super::{Aggregate, AggregateCall, AggregateState};
use crate::function::arguments::mean_of;
use crate::function::element::Real;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `median(x)`
pub struct Median;

static DOC: FunctionDoc = FunctionDoc {
    name: "median",
    aliases: &[],
    signature: "median(x)",
    summary: "the middle value, or the mean of the two middle values; exact",
    details: "A float in the unit of `x`; of timestamps a timestamp, rounded down. It stores every distinct value, 16 bytes each: where that is \
              too much, `quantile(x, 0.5)` needs a fixed amount of memory.",
    examples: &[
        Example::over("median(x)", "30\n10\n20", "20"),
        Example::over("median(x)", "1\n2\nNULL\n10\n3", "2.5"),
        Example::over("median(x)", "", "NULL"),
    ],
};

impl Aggregate for Median {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        mean_of(DOC.name, args)
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[0].ty() {
            Type::Float => per_group(|x: Real| x, of_floats),
            Type::Time => per_group(|x: i64| x, of_times),
            _ => per_group(|x: i64| x, of_ints),
        }
    }
}

fn of_ints(all: &OrderedCounts<i64>) -> Result<Option<f64>, EvalError> {
    Ok(all
        .middle()
        .map(|(low, high)| (i128::from(low) + i128::from(high)) as f64 / 2.0))
}

fn of_times(all: &OrderedCounts<i64>) -> Result<Option<i64>, EvalError> {
    let sum = all
        .middle()
        .map(|(low, high)| i128::from(low) + i128::from(high));
    Ok(sum.map(|sum| sum.div_euclid(2) as i64))
}

fn of_floats(all: &OrderedCounts<Real>) -> Result<Option<f64>, EvalError> {
    Ok(all
        .middle()
        .map(|(Real(low), Real(high))| match (low + high) / 2.0 {
            // The sum exceeded the range of floats, or two infinities were added.
            mean if mean.is_infinite() => low / 2.0 + high / 2.0,
            mean => mean,
        }))
}
