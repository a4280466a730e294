//! `sample(x, share)`: true for a fraction of all values, always for the same ones.

use weir_model::spread::{spread, spreads_of};
use weir_model::{Column, Type};

use super::rows::map;
use super::{Scalar, ScalarCall};
use crate::expr::Expr;
use crate::function::arguments::{argument_error, arity, as_f64, constant, literal, typed};
use crate::function::element::Text;
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `sample(x, share)`
pub struct Sample;

static DOC: FunctionDoc = FunctionDoc {
    name: "sample",
    aliases: &[],
    signature: "sample(x, share)",
    summary: "true for a fraction `share` of all values, always for the same ones",
    details: "`share` is a constant from 0 to 1. A value that passes for a fraction passes for every larger one. \
              `sample(req_id, 0.01)` passes 1 % of the requests, each with all its rows; \
              `sample(sector, 0.01)` passes all requests for 1 % of the sectors, and is evaluated in the kernel.",
    examples: &[
        Example::of("sample(7, 1)", "true"),
        Example::of("sample(7, 0)", "false"),
        Example::of("sample('/dev/sda', 0.5) = sample('/dev/sda', 0.5)", "true"),
    ],
};

/// The upper bound of the numbers that pass, from 0 on.
fn passing(share: &Expr) -> i64 {
    literal(share)
        .as_ref()
        .and_then(as_f64)
        .map_or(0, spreads_of)
}

/// FNV-1a (Fowler, Noll and Vo; RFC 9923) of a text.
pub fn number_of(text: Text) -> i64 {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, fnv) as i64
}

/// What a call samples, and the fraction, if it is a call of this function.
pub fn of(call: &ScalarCall) -> Option<(&Expr, f64)> {
    let [x, share] = &call.args[..] else {
        return None;
    };
    let share = literal(share).as_ref().and_then(as_f64)?;
    (call.function.doc().name == DOC.name).then_some((x, share))
}

impl Scalar for Sample {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 2, 2)?;
        let types = [Type::Int, Type::Time, Type::Text];
        typed(
            DOC.name,
            args,
            0,
            &types,
            "an integer, a timestamp or a text",
        )?;
        let share = as_f64(constant(DOC.name, args, 1, "a fraction from 0 to 1")?);
        if !share.is_some_and(|share| (0.0..=1.0).contains(&share)) {
            let message = "`sample` takes a fraction from 0 to 1: 0.01 is 1 %";
            return Err(argument_error(1, message));
        }
        Ok(Returns::plain(Type::Bool))
    }

    fn eval(&self, call: &ScalarCall, args: &[Column], _: usize) -> Result<Column, EvalError> {
        let below = passing(&call.args[1]);
        match call.args[0].ty() {
            Type::Text => map(Type::Bool, &args[0], |text: Text| {
                Ok(Some(spread(number_of(text)) < below))
            }),
            _ => map(Type::Bool, &args[0], |x: i64| Ok(Some(spread(x) < below))),
        }
    }
}
