//! `quantile(x, q)`: the value that a fraction q of all values does not exceed.

use weir_model::{PartialKind, PartialState, Type, Value};
use weir_sketch::{Bucket, Bucketed, Bytes, LogLinear, SUB_BUCKET_BITS};

use super::per_group::{Summary, partial_of, shared_per_group};
use super::{Aggregate, AggregateCall, AggregateState, of_integers};
use crate::function::arguments::{argument_error, arity, as_f64, constant, literal, number};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `quantile(x, q)`
pub struct Quantile;

static DOC: FunctionDoc = FunctionDoc {
    name: "quantile",
    aliases: &["percentile", "approx_quantile", "approx_percentile"],
    signature: "quantile(x, q)",
    summary: "the smallest value that is not exceeded by a fraction `q` of all values, with a relative error below 1/128",
    details: "`q` is a constant from 0 to 1: 0.99 is the 99th percentile. Keeps the type and the unit of `x`. The values are counted in buckets, \
              128 per power of two, and the result is the mean of a bucket: its error is less than 0.8 %, \
              it lies between the least and the greatest value, and it is exact for integers up to 256 \
              and where a bucket holds only one value, as for sizes. \
              A group of latencies needs about 30 kB, independent of their number. \
              `p99(x)` is `quantile(x, 0.99)`, `p999(x)` is `quantile(x, 0.999)`, and so on. \
              `median`, `percentile_cont` and `percentile_disc` are exact.",
    examples: &[
        Example::over("quantile(x, 0.5)", "10\n20\n30\nNULL", "20"),
        Example::over("quantile(x, 0.99)", "1\n2\n1000000", "1000000"),
        Example::over("quantile(x, 1)", "0.5\n0.25", "0.5"),
        Example::over("quantile(x, 0.9)", "", "NULL"),
    ],
};

impl Aggregate for Quantile {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 2, 2)?;
        number(DOC.name, args, 0)?;
        let q = as_f64(constant(DOC.name, args, 1, "a fraction from 0 to 1")?);
        if !q.is_some_and(|q| (0.0..=1.0).contains(&q)) {
            return Err(argument_error(
                1,
                "`quantile` takes a fraction from 0 to 1: 0.99 is the 99th percentile",
            ));
        }
        let ty = if args[0].ty == Type::Float {
            Type::Float
        } else {
            Type::Int
        };
        Ok(Returns::new(ty, args[0].unit))
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        let q = share(call);
        match call.ty {
            Type::Float => shared_per_group(
                |x: f64| x,
                move |all: &LogLinear<f64>| Ok(all.quantile(q)),
                Some(|all: &LogLinear<f64>, call| {
                    Ok(all.quantile(share(call)).map_or(Value::Null, Value::Float))
                }),
            ),
            _ => shared_per_group(
                |x: i64| x,
                move |all: &LogLinear<i64>| Ok(all.quantile(q)),
                Some(|all: &LogLinear<i64>, call| {
                    Ok(all.quantile(share(call)).map_or(Value::Null, Value::Int))
                }),
            ),
        }
    }

    /// Quantiles of the same values differ only in q.
    fn shares(&self, call: &AggregateCall, other: &AggregateCall) -> bool {
        other.is_of(self) && call.args[0] == other.args[0] && call.ty == other.ty
    }

    fn keep(&self, call: &AggregateCall) -> Option<PartialKind> {
        let bits = SUB_BUCKET_BITS;
        of_integers(call, || PartialKind::LogLinear { bits })
    }

    fn partial_of(&self, _: &AggregateCall, kept: &PartialState) -> Option<Vec<u8>> {
        let PartialState::LogLinear(bins) = kept else {
            return None;
        };
        let mut all = LogLinear::<i64>::default();
        for &(number, count, offsets) in bins {
            let count = i64::try_from(count).ok()?;
            let offsets = i64::try_from(offsets).ok()?;
            all.add_to_bucket(number, Bucket { count, offsets });
        }
        Some(partial_of(&all))
    }
}

/// The q of a call.
fn share(call: &AggregateCall) -> f64 {
    let q = literal(&call.args[1]).as_ref().and_then(as_f64);
    q.expect("`check` saw a constant number")
}

impl<V: Bucketed + Send + 'static> Summary for LogLinear<V> {
    type Value = V;

    fn add(&mut self, value: V, weight: i64) {
        LogLinear::add(self, value, weight);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        LogLinear::encode(self, out);
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<LogLinear<V>, EvalError> {
        Ok(LogLinear::decode(bytes)?)
    }

    fn merge(&mut self, other: LogLinear<V>) {
        LogLinear::merge(self, &other);
    }

    fn heap_bytes(&self) -> usize {
        self.bytes()
    }
}
