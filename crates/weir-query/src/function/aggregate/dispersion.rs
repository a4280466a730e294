//! `var`, `stddev` and their population forms: the dispersion of values around their mean.

use weir_model::{Type, Unit};
use weir_sketch::{Bytes, Moments};

use super::per_group::{Summary, per_group};
use super::{AggregateCall, AggregateState};
use crate::function::arguments::{arity, number};
use crate::function::{Argument, ArgumentError, EvalError, Returns};

/// Accepts exactly one number.
pub fn check(name: &str, args: &[Argument], unit: Unit) -> Result<Returns, ArgumentError> {
    arity(name, args, 1, 1)?;
    number(name, args, 0)?;
    Ok(Returns {
        ty: Type::Float,
        unit,
    })
}

/// The state of a call whose result `read` computes from the moments.
pub fn state(
    call: &AggregateCall,
    read: impl Fn(&Moments) -> Option<f64> + Send + 'static,
) -> Box<dyn AggregateState> {
    let result = move |moments: &Moments| Ok(read(moments));
    match call.args[0].ty() {
        Type::Float => per_group(Number::Float, result),
        _ => per_group(Number::Int, result),
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
