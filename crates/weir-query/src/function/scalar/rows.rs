//! The loops that scalar functions share: from the columns of arguments to the column of results.

use std::borrow::Cow;
use std::collections::HashMap;

use arrow_array::{Array, Float64Array, Int64Array, UInt32Array};
use arrow_buffer::NullBuffer;
use weir_model::{Column, ColumnBuilder, Symbol, Type};

use super::ScalarCall;
use crate::function::EvalError;
use crate::function::element::{Input, Output, nulls_of, only_nulls};

/// `f` of each value; NULL of NULL.
pub fn map<I: Input, O: Output>(
    ty: Type,
    column: &Column,
    f: impl Fn(I) -> Result<Option<O>, EvalError>,
) -> Result<Column, EvalError> {
    let len = column.len();
    if only_nulls(column) {
        return Ok(Column::Nulls(len));
    }
    let (values, nulls) = (I::values(column), nulls_of(column));
    collect(ty, len, nulls.as_ref(), |row| f(I::read(&values, row)))
}

/// `f` of each row; NULL where `nulls` has one.
fn collect<O: Output>(
    ty: Type,
    len: usize,
    nulls: Option<&NullBuffer>,
    f: impl Fn(usize) -> Result<Option<O>, EvalError>,
) -> Result<Column, EvalError> {
    let mut builder = ColumnBuilder::new(ty, len);
    let mut sink = O::sink(&mut builder);
    for row in 0..len {
        let is_valid = nulls.is_none_or(|n| n.is_valid(row));
        O::write(&mut sink, if is_valid { f(row)? } else { None });
    }
    drop(sink);
    Ok(builder.finish())
}

/// `f` of each pair of values; NULL where either is.
pub fn map_pairs<A: Input, B: Input, O: Output>(
    ty: Type,
    left: &Column,
    right: &Column,
    f: impl Fn(A, B) -> Result<Option<O>, EvalError>,
) -> Result<Column, EvalError> {
    let len = left.len();
    if only_nulls(left) || only_nulls(right) {
        return Ok(Column::Nulls(len));
    }
    let nulls = NullBuffer::union(nulls_of(left).as_ref(), nulls_of(right).as_ref());
    let (a, b) = (A::values(left), B::values(right));
    collect(ty, len, nulls.as_ref(), |row| {
        f(A::read(&a, row), B::read(&b, row))
    })
}

/// `f` of each float, or of each integer as a float; a NaN result is NULL.
pub fn map_floats(column: &Column, f: impl Fn(f64) -> f64) -> Result<Column, EvalError> {
    map(Type::Float, &as_floats(column), |x: f64| {
        let y = f(x);
        Ok((!y.is_nan() || x.is_nan()).then_some(y))
    })
}

/// `f` of each float; integers are their own results.
pub fn map_fractions(column: &Column, f: fn(f64) -> f64) -> Result<Column, EvalError> {
    match column {
        Column::Float(_) => map(Type::Float, column, |x: f64| Ok(Some(f(x)))),
        whole => Ok(whole.clone()),
    }
}

/// `f` of each text, computed once for each distinct text of the column.
pub fn map_texts(
    column: &Column,
    f: impl Fn(&str) -> Result<Cow<'_, str>, EvalError>,
) -> Result<Column, EvalError> {
    let Column::Text(ids) = column else {
        return Ok(Column::Nulls(column.len()));
    };
    let mut known: HashMap<u32, u32> = HashMap::new();
    let mut results = Vec::with_capacity(ids.len());
    for (row, &id) in ids.values().iter().enumerate() {
        if ids.is_null(row) {
            results.push(0);
            continue;
        }
        let result = match known.get(&id) {
            Some(&result) => result,
            None => {
                let result = intern(&f(Symbol::from_id(id).as_str())?)?.id();
                known.insert(id, result);
                result
            }
        };
        results.push(result);
    }
    Ok(Column::Text(UInt32Array::new(
        results.into(),
        ids.nulls().cloned(),
    )))
}

/// Maximum size of a text that a function computes, in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// The symbol of a text that a function computed.
pub fn intern(text: &str) -> Result<Symbol, EvalError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(too_long());
    }
    Symbol::try_computed(text)
        .map_err(|full| EvalError::new(full.to_string()).help("compute texts after grouping"))
}

/// The error of a text longer than [`TEXT_BYTES_MAX`].
pub fn too_long() -> EvalError {
    EvalError::new(format!(
        "a text would be longer than {TEXT_BYTES_MAX} bytes"
    ))
    .help("shorten it with substr first")
}

/// Integers as floats; other columns unchanged.
pub fn as_floats(column: &Column) -> Column {
    match column {
        Column::Int(ints) => {
            let floats: Vec<f64> = ints.values().iter().map(|&x| x as f64).collect();
            Column::Float(Float64Array::new(floats.into(), ints.nulls().cloned()))
        }
        other => other.clone(),
    }
}

/// Argument `i` in the type and unit of the call's result.
pub fn in_result_terms(call: &ScalarCall, i: usize, column: &Column) -> Result<Column, EvalError> {
    if only_nulls(column) {
        return Ok(Column::Nulls(column.len()));
    }
    let from = call.args[i].unit();
    let same = from == call.unit || from.dimension() != call.unit.dimension();
    let factor = if same {
        1
    } else {
        from.scale() / call.unit.scale()
    };
    Ok(match (column, call.ty) {
        (Column::Int(_), Type::Int) if factor == 1 => column.clone(),
        (Column::Int(ints), Type::Int) => {
            let scaled =
                ints.values()
                    .iter()
                    .enumerate()
                    .map(|(row, x)| match x.checked_mul(factor) {
                        Some(x) => Ok(x),
                        None if ints.is_null(row) => Ok(0),
                        None => Err(overflow(call)),
                    });
            let scaled = scaled.collect::<Result<Vec<i64>, EvalError>>()?;
            Column::Int(Int64Array::new(scaled.into(), ints.nulls().cloned()))
        }
        (Column::Int(_) | Column::Float(_), Type::Float) if factor == 1 => as_floats(column),
        (Column::Int(_) | Column::Float(_), Type::Float) => {
            map(Type::Float, &as_floats(column), |x: f64| {
                Ok(Some(x * factor as f64))
            })?
        }
        (other, _) => other.clone(),
    })
}

/// The error of a result of `call` that does not fit 64 bits.
pub fn overflow(call: &ScalarCall) -> EvalError {
    EvalError::new(format!("integer overflow in {}", call.function.doc().name))
        .help("use floats: cast(x as float)")
}
