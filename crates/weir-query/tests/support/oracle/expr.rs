//! Expressions, one row at a time, on plain values.

use weir_model::{Type, Value};
use weir_query::Expr;
use weir_query::expr::{BinaryOp, UnaryOp};

use super::{calendar, scalar};

/// The values of `exprs` for a row.
pub fn all(exprs: &[Expr], row: &[Value]) -> Result<Vec<Value>, String> {
    exprs.iter().map(|e| value(e, row)).collect()
}

/// Whether `predicate` is true for a row, neither false nor NULL.
pub fn is_true(predicate: &Expr, row: &[Value]) -> Result<bool, String> {
    Ok(value(predicate, row)? == Value::Bool(true))
}

/// The value of `expr` for a row.
pub fn value(expr: &Expr, row: &[Value]) -> Result<Value, String> {
    Ok(match expr {
        Expr::Column { index, .. } => row[*index].clone(),
        Expr::Literal { value, .. } => value.clone(),
        Expr::Unary { op, expr } => match (op, value(expr, row)?) {
            (_, Value::Null) => Value::Null,
            (UnaryOp::Not, x) => Value::Bool(!truth(&x)),
            (UnaryOp::Negate, Value::Float(x)) => Value::Float(-x),
            (UnaryOp::Negate, x) => Value::Int(fit(-i128::from(int(&x)))?),
        },
        Expr::Binary {
            op: op @ (BinaryOp::And | BinaryOp::Or),
            left,
            right,
            ..
        } => {
            // AND is false as soon as one side is, OR true as soon as one side is; the other side
            // is not evaluated.
            let decisive = *op == BinaryOp::Or;
            let left = value(left, row)?;
            if left == Value::Bool(decisive) {
                return Ok(left);
            }
            let right = value(right, row)?;
            match (&left, &right) {
                (_, Value::Bool(x)) if *x == decisive => right,
                (Value::Null, _) | (_, Value::Null) => Value::Null,
                _ => Value::Bool(!decisive),
            }
        }
        Expr::Binary {
            op, left, right, ..
        } => match (value(left, row)?, value(right, row)?) {
            (Value::Null, _) | (_, Value::Null) => Value::Null,
            (left, right) => binary(*op, &left, &right)?,
        },
        Expr::IsNull { expr, negated } => Value::Bool(value(expr, row)?.is_null() != *negated),
        Expr::InList {
            expr,
            list,
            has_null,
            negated,
        } => match value(expr, row)? {
            Value::Null => Value::Null,
            x if list.contains(&x) => Value::Bool(!negated),
            _ if *has_null => Value::Null,
            _ => Value::Bool(*negated),
        },
        Expr::Like {
            expr,
            pattern,
            ignore_case,
            negated,
        } => match value(expr, row)? {
            Value::Null => Value::Null,
            x => {
                let (text, pattern) = if *ignore_case {
                    (text(&x).to_lowercase(), pattern.to_lowercase())
                } else {
                    (text(&x).to_string(), pattern.clone())
                };
                let text: Vec<char> = text.chars().collect();
                let pattern: Vec<char> = pattern.chars().collect();
                Value::Bool(like(&text, &pattern) != *negated)
            }
        },
        Expr::Case {
            branches,
            otherwise,
            ..
        } => {
            for (condition, result) in branches {
                if is_true(condition, row)? {
                    return value(result, row);
                }
            }
            match otherwise {
                Some(otherwise) => value(otherwise, row)?,
                None => Value::Null,
            }
        }
        Expr::Cast { expr, ty, .. } => cast(value(expr, row)?, *ty),
        Expr::Call(call) => scalar::call(call, &all(&call.args, row)?)?,
    })
}

fn binary(op: BinaryOp, left: &Value, right: &Value) -> Result<Value, String> {
    use BinaryOp::*;
    Ok(match op {
        Equal => Value::Bool(left == right),
        NotEqual => Value::Bool(left != right),
        Less => Value::Bool(left < right),
        LessEqual => Value::Bool(left <= right),
        Greater => Value::Bool(left > right),
        GreaterEqual => Value::Bool(left >= right),
        Concat => Value::text(&format!("{}{}", text(left), text(right))),
        And | Or => unreachable!("logic looks at its right side only when it must"),
        Add | Subtract | Multiply | Divide | Modulo => match (left, right) {
            (Value::Float(x), Value::Float(y)) => float_arithmetic(op, *x, *y),
            _ => int_arithmetic(op, int(left), int(right))?,
        },
    })
}

fn int_arithmetic(op: BinaryOp, x: i64, y: i64) -> Result<Value, String> {
    // 128 bits hold every result of 64-bit operands, so that an overflow is a result that does not
    // fit.
    let (x, y) = (i128::from(x), i128::from(y));
    let result = match op {
        BinaryOp::Add => x + y,
        BinaryOp::Subtract => x - y,
        BinaryOp::Multiply => x * y,
        BinaryOp::Divide if y != 0 => x / y,
        BinaryOp::Modulo if y != 0 => x % y,
        _ => return Ok(Value::Null),
    };
    Ok(Value::Int(fit(result)?))
}

fn float_arithmetic(op: BinaryOp, x: f64, y: f64) -> Value {
    match op {
        BinaryOp::Add => Value::Float(x + y),
        BinaryOp::Subtract => Value::Float(x - y),
        BinaryOp::Multiply => Value::Float(x * y),
        BinaryOp::Divide if y != 0.0 => Value::Float(x / y),
        BinaryOp::Modulo if y != 0.0 => Value::Float(x % y),
        _ => Value::Null,
    }
}

/// `%` matches any text, `_` any character, `\` escapes the next one.
fn like(text: &[char], pattern: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['%', rest @ ..] => (0..=text.len()).any(|skip| like(&text[skip..], rest)),
        ['_', rest @ ..] => !text.is_empty() && like(&text[1..], rest),
        ['\\', literal, rest @ ..] | [literal, rest @ ..] => {
            text.first() == Some(literal) && like(&text[1..], rest)
        }
    }
}

fn cast(value: Value, ty: Type) -> Value {
    match (ty, value) {
        (_, Value::Null) => Value::Null,
        (Type::Int | Type::Time, Value::Int(x)) => Value::Int(x),
        (Type::Int | Type::Time, Value::Bool(x)) => Value::Int(i64::from(x)),
        (Type::Int | Type::Time, Value::Float(x)) => {
            let whole = x.trunc();
            // 2^63 itself is the first float that is too large; -2^63 still fits.
            if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&whole) {
                Value::Int(whole as i64)
            } else {
                Value::Null
            }
        }
        (Type::Int, Value::Text(x)) => x.as_str().trim().parse().map_or(Value::Null, Value::Int),
        (Type::Time, Value::Text(x)) => {
            let text = x.as_str().trim();
            let number = text.parse().ok().or_else(|| calendar::read(text));
            number.map_or(Value::Null, Value::Int)
        }
        (Type::Float, Value::Int(x)) => Value::Float(x as f64),
        (Type::Float, Value::Float(x)) => Value::Float(x),
        (Type::Float, Value::Bool(x)) => Value::Float(f64::from(u8::from(x))),
        (Type::Float, Value::Text(x)) => {
            x.as_str().trim().parse().map_or(Value::Null, Value::Float)
        }
        (Type::Bool, Value::Bool(x)) => Value::Bool(x),
        (Type::Bool, Value::Int(x)) => Value::Bool(x != 0),
        (Type::Bool, Value::Text(x)) => match x.as_str().trim().to_lowercase().as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ => Value::Null,
        },
        (Type::Text, x) => Value::text(&x.to_string()),
        (ty, x) => panic!("the checker lets no {x:?} be cast to {ty}"),
    }
}

fn fit(x: i128) -> Result<i64, String> {
    i64::try_from(x).map_err(|_| "integer overflow".to_string())
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(x) => *x,
        other => panic!("{other:?} is an integer"),
    }
}

fn truth(value: &Value) -> bool {
    match value {
        Value::Bool(x) => *x,
        other => panic!("{other:?} is a boolean"),
    }
}

fn text(value: &Value) -> &'static str {
    match value {
        Value::Text(x) => x.as_str(),
        other => panic!("{other:?} is a text"),
    }
}
