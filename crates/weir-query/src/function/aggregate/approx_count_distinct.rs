//! `approx_count_distinct(x)`: about how many distinct values there are.

use weir_model::Type;
use weir_sketch::{Distinct, OrderedCounts};

use super::per_group::per_group;
use super::{Aggregate, AggregateCall, AggregateState};
use crate::function::arguments::value_kept;
use crate::function::element::{Input, Real, Text};
use crate::function::scalar::sample::number_of;
use crate::function::{Argument, ArgumentError, Example, FunctionDoc, Returns};

/// `approx_count_distinct(x)`
pub struct ApproxCountDistinct;

static DOC: FunctionDoc = FunctionDoc {
    name: "approx_count_distinct",
    aliases: &["approx_distinct"],
    signature: "approx_count_distinct(x)",
    summary: "the number of distinct values, with a standard deviation of 2.3 %",
    details: "A HyperLogLog of 2048 registers. Each rank of a register has a count, so that rows can be retracted: a group needs 20 bytes per value at first and some 400 kB at most, where `count(distinct x)` stores every value. Hosts send their counts, where `count(distinct x)` sends rows. 0 over no values.",
    examples: &[
        Example::over("approx_count_distinct(x)", "8\n4\n8\n16\nNULL", "3"),
        Example::over("approx_count_distinct(x)", "a\nb\na", "2"),
    ],
};

impl Aggregate for ApproxCountDistinct {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        value_kept(DOC.name, args, "a single value")?;
        Ok(Returns::plain(Type::Int))
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[0].ty() {
            Type::Bool => ranks(|x: bool| u64::from(x)),
            Type::Float => ranks(|x: Real| x.0.to_bits()),
            Type::Text => ranks(|x: Text| number_of(x) as u64),
            _ => ranks(|x: i64| x as u64),
        }
    }
}

/// The number of values of each rank in each register.
fn ranks<I: Input + 'static>(key: impl Fn(I) -> u64 + Send + 'static) -> Box<dyn AggregateState> {
    let place = move |x: I| {
        let (register, rank) = Distinct::place(key(x));
        register as i64 * RANKS + i64::from(rank)
    };
    per_group(place, |counts: &OrderedCounts<i64>| {
        Ok(Some(estimate(counts)))
    })
}

/// More than the ranks of a register.
const RANKS: i64 = 64;

fn estimate(counts: &OrderedCounts<i64>) -> i64 {
    let present = counts.iter().filter(|(_, count)| *count > 0);
    let places = present.map(|(at, _)| ((at / RANKS) as usize, (at % RANKS) as u8));
    // A partial that another host wrote may contain any numbers.
    Distinct::of_places(places).count().round() as i64
}

#[cfg(test)]
mod tests {
    use super::estimate;
    use weir_sketch::{Distinct, OrderedCounts};

    #[test]
    fn retracted_values_no_longer_count() {
        let mut counts = OrderedCounts::default();
        let place = |x: u64| {
            let (register, rank) = Distinct::place(x);
            register as i64 * super::RANKS + i64::from(rank)
        };
        for x in 0..100_000 {
            counts.add(place(x), 2);
        }
        let all = estimate(&counts);
        assert!((all - 100_000).abs() < 7_000, "{all}");
        for x in 500..100_000 {
            counts.add(place(x), -2);
        }
        let rest = estimate(&counts);
        assert!((rest - 500).abs() < 35, "{rest}");
    }
}
