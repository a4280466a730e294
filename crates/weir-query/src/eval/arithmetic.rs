//! `+ - * / %` and negation: checked on 64-bit integers, IEEE 754 on floats; division by zero is
//! NULL.

use arrow_buffer::{BooleanBuffer, NullBuffer};
use weir_model::Value;

use super::divisor::Divisor;
use super::{Datum, Pair, Values, float_column, int_column, pair, value};
use crate::expr::BinaryOp;
use crate::function::EvalError;

/// `left op right`, both of one kind.
pub(super) fn apply(
    op: BinaryOp,
    left: &Datum,
    right: &Datum,
    len: usize,
) -> Result<Datum, EvalError> {
    if left.is_null() || right.is_null() {
        return Ok(Datum::Constant(Value::Null));
    }
    let len = match (left, right) {
        (Datum::Constant(_), Datum::Constant(_)) => 1,
        _ => len,
    };
    let nulls = NullBuffer::union(left.nulls(), right.nulls());
    let result = match pair(left, right) {
        Pair::Ints(l, r) => int(op, l, r, len, nulls)?,
        Pair::Floats(l, r) => float(op, l, r, len, nulls),
        _ => unreachable!("the checker lets only numbers meet in arithmetic"),
    };
    Ok(match (left, right) {
        (Datum::Constant(_), Datum::Constant(_)) if len == 1 => Datum::Constant(value(&result, 0)),
        _ => result,
    })
}

fn int(
    op: BinaryOp,
    left: Values<'_, i64>,
    right: Values<'_, i64>,
    len: usize,
    nulls: Option<NullBuffer>,
) -> Result<Datum, EvalError> {
    let checked =
        |values: (Vec<i64>, bool), test: fn(i64, i64) -> bool, nulls: Option<NullBuffer>| {
            let (values, overflow) = values;
            if overflow {
                check_overflow(op, left, right, len, nulls.as_ref(), test)?;
            }
            Ok(int_column(values, nulls))
        };
    match op {
        BinaryOp::Add => checked(
            overflowing(left, right, len, i64::overflowing_add),
            |a, b| a.checked_add(b).is_none(),
            nulls,
        ),
        BinaryOp::Subtract => checked(
            overflowing(left, right, len, i64::overflowing_sub),
            |a, b| a.checked_sub(b).is_none(),
            nulls,
        ),
        BinaryOp::Multiply => checked(
            overflowing(left, right, len, i64::overflowing_mul),
            |a, b| a.checked_mul(b).is_none(),
            nulls,
        ),
        BinaryOp::Divide => {
            if let (Values::Each(a), Values::Constant(b)) = (left, right)
                && b != 0
                && b != -1
            {
                let divisor = Divisor::new(b);
                let quotients = a.iter().map(|&a| divisor.divide(a)).collect();
                return Ok(int_column(quotients, nulls));
            }
            let nulls = not_by_zero(right, len, |b| b == 0, nulls);
            let divide = |a: i64, b: i64| {
                if b == 0 {
                    (0, false)
                } else {
                    a.overflowing_div(b)
                }
            };
            checked(
                overflowing(left, right, len, divide),
                |a, b| b == -1 && a == i64::MIN,
                nulls,
            )
        }
        BinaryOp::Modulo => {
            let nulls = not_by_zero(right, len, |b| b == 0, nulls);
            let modulo = |a: i64, b: i64| (if b == 0 { 0 } else { a.wrapping_rem(b) }, false);
            checked(overflowing(left, right, len, modulo), |_, _| false, nulls)
        }
        _ => unreachable!("{op:?} is no arithmetic"),
    }
}

fn float(
    op: BinaryOp,
    left: Values<'_, f64>,
    right: Values<'_, f64>,
    len: usize,
    nulls: Option<NullBuffer>,
) -> Datum {
    let (values, nulls) = match op {
        BinaryOp::Add => (
            overflowing(left, right, len, |a, b| (a + b, false)).0,
            nulls,
        ),
        BinaryOp::Subtract => (
            overflowing(left, right, len, |a, b| (a - b, false)).0,
            nulls,
        ),
        BinaryOp::Multiply => (
            overflowing(left, right, len, |a, b| (a * b, false)).0,
            nulls,
        ),
        BinaryOp::Divide => {
            let nulls = not_by_zero(right, len, |b| b == 0.0, nulls);
            (
                overflowing(left, right, len, |a, b| (a / b, false)).0,
                nulls,
            )
        }
        BinaryOp::Modulo => {
            let nulls = not_by_zero(right, len, |b| b == 0.0, nulls);
            (
                overflowing(left, right, len, |a, b| (a % b, false)).0,
                nulls,
            )
        }
        _ => unreachable!("{op:?} is no arithmetic"),
    };
    float_column(values, nulls)
}

/// `f` of each pair, and a mask of the pairs that overflowed (NULL rows included, whose values are
/// undefined).
fn overflowing<T: Copy>(
    left: Values<'_, T>,
    right: Values<'_, T>,
    len: usize,
    f: impl Fn(T, T) -> (T, bool),
) -> (Vec<T>, bool) {
    let mut any = false;
    let mut one = |a: T, b: T| {
        let (x, overflow) = f(a, b);
        any |= overflow;
        x
    };
    let values = match (left, right) {
        (Values::Each(a), Values::Each(b)) => a.iter().zip(b).map(|(&a, &b)| one(a, b)).collect(),
        (Values::Each(a), Values::Constant(b)) => a.iter().map(|&a| one(a, b)).collect(),
        (Values::Constant(a), Values::Each(b)) => b.iter().map(|&b| one(a, b)).collect(),
        (Values::Constant(a), Values::Constant(b)) => vec![one(a, b); len],
    };
    (values, any)
}

/// `nulls`, and NULL where the divisor is zero.
fn not_by_zero<T: Copy>(
    divisor: Values<'_, T>,
    len: usize,
    is_zero: impl Fn(T) -> bool,
    nulls: Option<NullBuffer>,
) -> Option<NullBuffer> {
    let zero = match divisor {
        Values::Constant(b) => is_zero(b),
        Values::Each(b) => b.iter().any(|&b| is_zero(b)),
    };
    if !zero {
        return nulls;
    }
    let valid = BooleanBuffer::collect_bool(len, |i| !is_zero(divisor.get(i)));
    NullBuffer::union(nulls.as_ref(), Some(&NullBuffer::new(valid)))
}

/// The error of the first row that is not NULL and overflows, if there is one.
fn check_overflow(
    op: BinaryOp,
    left: Values<'_, i64>,
    right: Values<'_, i64>,
    len: usize,
    nulls: Option<&NullBuffer>,
    overflows: fn(i64, i64) -> bool,
) -> Result<(), EvalError> {
    for row in (0..len).filter(|&row| nulls.is_none_or(|n| n.is_valid(row))) {
        let (a, b) = (left.get(row), right.get(row));
        if overflows(a, b) {
            let message = format!(
                "integer overflow: {a} {} {b} needs more than 64 bits",
                op.symbol()
            );
            return Err(EvalError::new(message).help("cast an operand to float"));
        }
    }
    Ok(())
}

/// `-x`.
pub(super) fn negate(x: Datum) -> Result<Datum, EvalError> {
    let (zero, len) = match &x {
        Datum::Constant(Value::Float(f)) => return Ok(Datum::Constant(Value::Float(-f))),
        Datum::Column(weir_model::Column::Float(a)) => {
            let values = a.values().iter().map(|f| -f).collect();
            return Ok(float_column(values, x.nulls().cloned()));
        }
        Datum::Constant(_) => (Value::Int(0), 1),
        Datum::Column(column) => (Value::Int(0), column.len()),
    };
    apply(BinaryOp::Subtract, &Datum::Constant(zero), &x, len)
}
