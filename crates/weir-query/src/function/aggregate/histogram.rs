//! `histogram(x [, limit, ..])`: the number of values up to each limit and above the previous one.

use std::sync::Arc;

use weir_model::{PartialKind, PartialState, Tally, Type, Unit, Value};
use weir_sketch::{BucketLimits, OrderedCounts, PowerOfTwo};

use super::per_group::{partial_of, per_group};
use super::{Aggregate, AggregateCall, AggregateState, of_integers};
use crate::function::arguments::{
    argument_error, arity, as_f64, as_i64, constant, convert, literal, number, same_dimension,
};
use crate::function::element::{Input, Output};
use crate::function::{Argument, ArgumentError, Example, FunctionDoc, Returns};

/// `histogram(x [, limit, ..])`
pub struct Histogram;

/// Maximum number of limits of a call.
const LIMITS_MAX: usize = 1000;

/// Limits that are 0 or a power of two and fit 64 bits.
const POWERS: usize = 64;

static DOC: FunctionDoc = FunctionDoc {
    name: "histogram",
    aliases: &[],
    signature: "histogram(x [, limit, ..])",
    summary: "the number of values in each bucket, by upper limit; empty buckets are omitted",
    details: "A bucket holds the values up to its limit and above the previous one, negative ones too. Without arguments the limits are 0 and the powers of two. \
              Limits are ascending constants; values above the last are counted at the end under NULL: \
              the rule of `vscsiStats` (Ahmad 2007), which prints the last limit twice. Limits can have units: `histogram(latency, 100 us, 1 ms, 10 ms)`. NULL over no values.",
    examples: &[
        Example::over(
            "histogram(x)",
            "0\n1\n3\n4\n5\n-5",
            "{-4: 1, 0: 1, 1: 1, 4: 2, 8: 1}",
        ),
        Example::over(
            "histogram(x, 4095, 4096)",
            "512\n4096\n4096\n8192",
            "{4095: 1, 4096: 2, NULL: 1}",
        ),
        Example::over("histogram(x)", "0.3\n1", "{0.5: 1, 1: 1}"),
        Example::over("histogram(x)", "NULL", "NULL"),
    ],
};

impl Aggregate for Histogram {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 1, 1 + LIMITS_MAX)?;
        number(DOC.name, args, 0)?;
        let limits = (1..args.len()).map(|i| {
            let limit = constant(DOC.name, args, i, "a limit")?;
            same_dimension(DOC.name, args, i, args[0].unit)?;
            limit_of(limit, args[i].unit, args[0].ty, args[0].unit).ok_or_else(|| {
                argument_error(
                    i,
                    "a limit is a number; for integers, an integer in their unit",
                )
            })
        });
        let limits = limits.collect::<Result<Vec<Value>, ArgumentError>>()?;
        if let Some(i) = limits.windows(2).position(|pair| pair[0] >= pair[1]) {
            return Err(argument_error(i + 2, "limits must ascend"));
        }
        Ok(Returns::plain(Type::Tally))
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[0].ty() {
            Type::Float => buckets(limits(call, as_f64)),
            _ => buckets(limits(call, as_i64)),
        }
    }

    fn keep(&self, call: &AggregateCall) -> Option<PartialKind> {
        of_integers(call, || {
            PartialKind::Limits(match limits(call, as_i64) {
                BucketLimits::Explicit(limits) => limits,
                // A source pre-aggregates no negative values.
                BucketLimits::PowersOfTwo => (0..).map_while(i64::power).take(POWERS).collect(),
            })
        })
    }

    fn partial_of(&self, call: &AggregateCall, kept: &PartialState) -> Option<Vec<u8>> {
        let (PartialState::Limits(bins), Some(PartialKind::Limits(kept_by))) =
            (kept, self.keep(call))
        else {
            return None;
        };
        if bins.len() != kept_by.len() + 1 {
            return None;
        }
        let limits = limits(call, as_i64);
        let mut counts = OrderedCounts::default();
        for (i, &count) in bins.iter().enumerate() {
            // Above the last limit there is one bucket.
            let bucket = limits.bucket(*kept_by.get(i).unwrap_or(&i64::MAX));
            counts.add(i64::from(bucket), i64::try_from(count).ok()?);
        }
        Some(partial_of(&counts))
    }
}

/// A constant in unit `from` as a limit for values of type `ty` in `unit`.
fn limit_of(value: &Value, from: Unit, ty: Type, unit: Unit) -> Option<Value> {
    let value = convert(value, from, unit);
    match ty {
        Type::Float => as_f64(&value).filter(|x| !x.is_nan()).map(Value::Float),
        _ => as_i64(&value).map(Value::Int),
    }
}

/// The stated limits of a call, in the type and unit of its values.
pub(crate) fn limits_of(call: &AggregateCall) -> impl Iterator<Item = Value> + '_ {
    let (ty, unit) = (call.args[0].ty(), call.args[0].unit());
    call.args[1..].iter().map(move |limit| {
        let value = literal(limit).and_then(|value| limit_of(&value, limit.unit(), ty, unit));
        value.expect("`check` saw a limit")
    })
}

/// The limits of a call, as numbers of the type of its values.
fn limits<V>(call: &AggregateCall, number: impl Fn(&Value) -> Option<V>) -> BucketLimits<V> {
    let limits = limits_of(call).map(|limit| number(&limit).expect("it has the type of values"));
    match call.args.len() {
        1 => BucketLimits::PowersOfTwo,
        _ => BucketLimits::Explicit(limits.collect()),
    }
}

fn buckets<V: PowerOfTwo + Input + Output + Send + Sync + 'static>(
    limits: BucketLimits<V>,
) -> Box<dyn AggregateState> {
    let limits = Arc::new(limits);
    let shared = limits.clone();
    per_group(
        move |x: V| i64::from(limits.bucket(x)),
        move |counts: &OrderedCounts<i64>| Ok(tally(&shared, counts)),
    )
}

fn tally<V: PowerOfTwo + Output>(
    limits: &BucketLimits<V>,
    counts: &OrderedCounts<i64>,
) -> Option<Arc<Tally>> {
    let limit = |bucket| {
        limits
            .limit(bucket as i32)
            .map_or(Value::Null, Output::value)
    };
    let buckets: Vec<(Value, i64)> = counts
        .iter()
        .map(|(bucket, count)| (limit(bucket), count))
        .collect();
    (!buckets.is_empty()).then(|| Arc::new(Tally(buckets)))
}
