//! `var`, `stddev` and their population forms: the dispersion of values around their mean.

use weir_model::Type;
use weir_sketch::{Bytes, Moments};

use super::per_group::{Summary, per_group};
use super::{Aggregate, AggregateCall, AggregateState};
use crate::function::arguments::number_to_float;
use crate::function::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};

/// `var`, `stddev` or a population form.
pub struct Dispersion {
    pub doc: &'static FunctionDoc,
    /// Whether the result has the unit of the values.
    pub has_unit: bool,
    /// The result.
    pub read: fn(&Moments) -> Option<f64>,
}

impl Aggregate for Dispersion {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        let returns = number_to_float(self.doc.name, args)?;
        Ok(match self.has_unit {
            true => Returns::new(returns.ty, args[0].unit),
            false => returns,
        })
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        let read = self.read;
        let result = move |moments: &Moments| Ok(read(moments));
        match call.args[0].ty() {
            Type::Float => per_group(Number::Float, result),
            _ => per_group(Number::Int, result),
        }
    }
}

/// A value of either type.
pub enum Number {
    Int(i64),
    Float(f64),
}

impl Summary for Moments {
    type Value = Number;

    fn add(&mut self, value: Number, weight: i64) {
        match value {
            Number::Int(x) => self.add_int(x, weight),
            Number::Float(x) => Moments::add(self, x, weight),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        Moments::encode(self, out);
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<Moments, EvalError> {
        Ok(Moments::decode(bytes)?)
    }

    fn merge(&mut self, other: Moments) {
        Moments::merge(self, &other);
    }

    fn heap_bytes(&self) -> usize {
        self.bytes()
    }
}
