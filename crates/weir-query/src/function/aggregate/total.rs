//! The number of values and their exact sum: the state of `sum` and `avg`, which `count(x)` of the
//! same values can read too.

use weir_model::{PartialKind, PartialState, Type, Value};
use weir_sketch::{Bytes, ExactSum, codec};

use super::avg::{self, AVG};
use super::count::{self, Count};
use super::per_group::{Summary, partial_of};
use super::sum::{self, SUM};
use super::{Aggregate, AggregateCall, AggregateState, of_integers};
use crate::function::element::Output;
use crate::function::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};

/// `sum` or `avg`.
pub struct TotalFunction {
    pub doc: &'static FunctionDoc,
    /// As [`Aggregate::check`], of the function's name and its arguments.
    pub check: fn(&str, &[Argument]) -> Result<Returns, ArgumentError>,
    /// The state over arguments of this type.
    pub state: fn(Type) -> Box<dyn AggregateState>,
}

impl Aggregate for TotalFunction {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        (self.check)(self.doc.name, args)
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        (self.state)(call.args[0].ty())
    }

    fn shares(&self, call: &AggregateCall, other: &AggregateCall) -> bool {
        shares(call, other)
    }

    fn keep(&self, call: &AggregateCall) -> Option<PartialKind> {
        of_integers(call, || PartialKind::Moments)
    }

    /// The partial for integers that a source aggregated.
    fn partial_of(&self, _: &AggregateCall, kept: &PartialState) -> Option<Vec<u8>> {
        let PartialState::Moments { count, sum, .. } = *kept else {
            return None;
        };
        let count = i64::try_from(count).ok()?;
        Some(partial_of(&IntTotal { sum, count }))
    }
}

/// Whether the state of `other` is a total from which `call`, of the same values, can read its
/// result.
pub fn shares(call: &AggregateCall, other: &AggregateCall) -> bool {
    call.args == other.args && (other.is_of(&SUM) || other.is_of(&AVG))
}

/// Of integers. 128 bits hold the sum of 2^63 of them; intermediate overflow is undone by later
/// retractions.
#[derive(Default)]
pub struct IntTotal {
    pub sum: i128,
    pub count: i64,
}

impl IntTotal {
    /// The result of a call for which [`shares`] is true.
    pub fn result_of(&self, call: &AggregateCall) -> Result<Value, EvalError> {
        Ok(match call.ty {
            _ if call.is_of(&Count) => Value::Int(count::counted(self.count)?),
            _ if call.is_of(&SUM) => or_null(sum::of_ints(self)?),
            Type::Time => or_null(avg::of_times(self)?),
            _ => or_null(avg::of_ints(self)?),
        })
    }
}

impl Summary for IntTotal {
    type Value = i64;

    fn add(&mut self, value: i64, weight: i64) {
        self.sum = self
            .sum
            .wrapping_add(i128::from(value) * i128::from(weight));
        self.count = self.count.wrapping_add(weight);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        codec::put_i64(out, self.count);
        out.extend(self.sum.to_le_bytes());
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<IntTotal, EvalError> {
        let count = bytes.i64()?;
        let sum = i128::from_le_bytes(bytes.array()?);
        Ok(IntTotal { sum, count })
    }

    fn merge(&mut self, other: IntTotal) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.count = self.count.wrapping_add(other.count);
    }
}

/// Of floats.
#[derive(Default)]
pub struct FloatTotal {
    pub sum: ExactSum,
    pub count: i64,
}

impl FloatTotal {
    /// As [`IntTotal::result_of`].
    pub fn result_of(&self, call: &AggregateCall) -> Result<Value, EvalError> {
        Ok(if call.is_of(&Count) {
            Value::Int(count::counted(self.count)?)
        } else if call.is_of(&SUM) {
            or_null(sum::of_floats(self)?)
        } else {
            or_null(avg::of_floats(self)?)
        })
    }
}

fn or_null(result: Option<impl Output>) -> Value {
    result.map_or(Value::Null, Output::value)
}

impl Summary for FloatTotal {
    type Value = f64;

    fn add(&mut self, value: f64, weight: i64) {
        self.sum.add(value, weight);
        self.count = self.count.wrapping_add(weight);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        codec::put_i64(out, self.count);
        self.sum.encode(out);
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<FloatTotal, EvalError> {
        let count = bytes.i64()?;
        let sum = ExactSum::decode(bytes)?;
        Ok(FloatTotal { sum, count })
    }

    fn merge(&mut self, other: FloatTotal) {
        self.sum.merge(&other.sum);
        self.count = self.count.wrapping_add(other.count);
    }

    fn heap_bytes(&self) -> usize {
        self.sum.bytes()
    }
}
