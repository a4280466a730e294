//! `CAST(x AS type)`: a value that cannot be cast is NULL.

use std::collections::HashMap;

use weir_model::{Column, Symbol, Type, Value};

use super::text::symbol;
use super::{Datum, float_column};
use crate::expr::timestamp;
use crate::function::EvalError;

/// `x`, of type `from`, as a `to`.
pub(super) fn cast(x: Datum, from: Type, to: Type, len: usize) -> Result<Datum, EvalError> {
    let same = from == to
        || matches!(
            (from, to),
            (Type::Int, Type::Time) | (Type::Time, Type::Int)
        );
    if same || x.is_null() {
        return Ok(x);
    }
    let column = match x {
        Datum::Constant(value) => return Ok(Datum::Constant(cast_value(value, to)?)),
        Datum::Column(column) => column,
    };
    match (&column, to) {
        (Column::Int(a), Type::Float) => {
            let values = a.values().iter().map(|&x| x as f64).collect();
            Ok(float_column(values, column.nulls().cloned()))
        }
        (Column::Text(a), _) => {
            let mut known: HashMap<u32, Value> = HashMap::new();
            let mut values = Vec::with_capacity(len);
            for row in 0..len {
                let id = a.value(row);
                values.push(match known.get(&id) {
                    _ if column.is_null(row) => Value::Null,
                    Some(value) => value.clone(),
                    None => {
                        let value = cast_value(Value::Text(Symbol::from_id(id)), to)?;
                        known.insert(id, value.clone());
                        value
                    }
                });
            }
            Ok(Datum::Column(Column::from_values(to, values)))
        }
        _ => {
            let values = (0..len)
                .map(|row| cast_value(column.value(row), to))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(Datum::Column(Column::from_values(to, values)))
        }
    }
}

fn cast_value(value: Value, to: Type) -> Result<Value, EvalError> {
    Ok(match (value, to) {
        (Value::Null, _) => Value::Null,
        (value, Type::Text) => match value {
            Value::Text(_) => value,
            other => Value::Text(symbol(&other.to_string())?),
        },
        (Value::Bool(x), Type::Int | Type::Time) => Value::Int(i64::from(x)),
        (Value::Bool(x), Type::Float) => Value::Float(f64::from(u8::from(x))),
        (Value::Int(x), Type::Bool) => Value::Bool(x != 0),
        (Value::Int(x), Type::Float) => Value::Float(x as f64),
        (Value::Float(x), Type::Bool) => Value::Bool(x != 0.0),
        (Value::Float(x), Type::Int | Type::Time) => truncated(x).map_or(Value::Null, Value::Int),
        (Value::Text(x), to) => parse(x.as_str().trim(), to),
        (value, _) => value,
    })
}

/// The float truncated towards zero, where 64 bits can hold it.
fn truncated(x: f64) -> Option<i64> {
    // 2^63 is a float, the greatest i64 is not.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    (-LIMIT..LIMIT).contains(&x).then_some(x as i64)
}

fn parse(text: &str, to: Type) -> Value {
    match to {
        Type::Int => text.parse().map_or(Value::Null, Value::Int),
        // Recordings may hold times as numbers, users write them as dates.
        Type::Time => {
            let time = text.parse().ok().or_else(|| timestamp::nanos(text));
            time.map_or(Value::Null, Value::Int)
        }
        Type::Float => text.parse().map_or(Value::Null, Value::Float),
        Type::Bool if text.eq_ignore_ascii_case("true") => Value::Bool(true),
        Type::Bool if text.eq_ignore_ascii_case("false") => Value::Bool(false),
        _ => Value::Null,
    }
}
