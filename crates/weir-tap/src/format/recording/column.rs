//! Converts Arrow columns of a recording to weir's columns, from any of the equivalent types that
//! tools write.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float64Type, Int32Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{Array, ArrayRef, Int64Array, UInt32Array};
use arrow_schema::{DataType, TimeUnit};
use foldhash::fast::RandomState;
use weir_model::{Column, Symbol, Type};

/// Floats represent integers exactly up to this value.
const FLOAT_EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// The values of `array` as a column of type `ty`.
///
/// # Errors
/// If they cannot be converted, a message.
pub fn from_arrow(array: &ArrayRef, ty: Type) -> Result<Column, String> {
    let nulls = array.nulls().cloned();
    let ints = |values: Vec<i64>| Column::Int(Int64Array::new(values.into(), nulls.clone()));
    match (ty, array.data_type()) {
        (_, DataType::Null) => Ok(Column::Nulls(array.len())),
        (Type::Int | Type::Time, DataType::Int64) => Ok(Column::Int(
            array
                .as_primitive::<arrow_array::types::Int64Type>()
                .clone(),
        )),
        (Type::Int, DataType::Int32) => {
            let values = array.as_primitive::<Int32Type>().values();
            Ok(ints(values.iter().map(|&x| i64::from(x)).collect()))
        }
        (Type::Int, DataType::Float64) => {
            // pandas writes integers with NULLs as floats.
            let floats = array.as_primitive::<Float64Type>().iter();
            let whole = floats.map(|x| match x.filter(|x| !x.is_nan()) {
                Some(x) if x.fract() != 0.0 || x.abs() > FLOAT_EXACT_MAX => {
                    Err(format!("{x} is not an integer"))
                }
                x => Ok(x.map(|x| x as i64)),
            });
            Ok(Column::Int(whole.collect::<Result<_, _>>()?))
        }
        (Type::Time, DataType::Timestamp(unit, _)) => {
            let scaled = |values: &[i64], ns: i64| -> Result<Column, String> {
                let values = values
                    .iter()
                    .enumerate()
                    .map(|(row, &x)| match array.is_null(row) {
                        true => Ok(0),
                        false => x
                            .checked_mul(ns)
                            .ok_or_else(|| format!("the time {x} is out of range")),
                    });
                Ok(ints(values.collect::<Result<_, _>>()?))
            };
            match unit {
                TimeUnit::Second => scaled(
                    array.as_primitive::<TimestampSecondType>().values(),
                    1_000_000_000,
                ),
                TimeUnit::Millisecond => scaled(
                    array.as_primitive::<TimestampMillisecondType>().values(),
                    1_000_000,
                ),
                TimeUnit::Microsecond => scaled(
                    array.as_primitive::<TimestampMicrosecondType>().values(),
                    1_000,
                ),
                TimeUnit::Nanosecond => {
                    let values = array.as_primitive::<TimestampNanosecondType>().values();
                    Ok(Column::Int(Int64Array::new(values.clone(), nulls)))
                }
            }
        }
        (Type::Float, DataType::Float64) => {
            Ok(Column::Float(array.as_primitive::<Float64Type>().clone()))
        }
        (Type::Bool, DataType::Boolean) => Ok(Column::Bool(array.as_boolean().clone())),
        (Type::Text, _) => texts(array),
        (ty, other) => Err(format!("it contains {other}, expected {ty}")),
    }
}

/// The symbol of each text. Repeated texts share their view, so that each is looked up once per
/// batch.
fn texts(array: &ArrayRef) -> Result<Column, String> {
    let Some(texts) = array.as_string_view_opt() else {
        return Err(format!("it contains {}, expected text", array.data_type()));
    };
    let mut known: HashMap<u128, u32, RandomState> = HashMap::default();
    let mut last = None;
    let mut ids = Vec::with_capacity(texts.len());
    for (row, &view) in texts.views().iter().enumerate() {
        let id = match last {
            _ if texts.is_null(row) => 0,
            Some((last_view, id)) if last_view == view => id,
            _ => match known.entry(view) {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(entry) => {
                    let symbol =
                        Symbol::try_new(texts.value(row)).map_err(|full| full.to_string())?;
                    *entry.insert(symbol.id())
                }
            },
        };
        last = Some((view, id)).filter(|_| !texts.is_null(row));
        ids.push(id);
    }
    Ok(Column::Text(UInt32Array::new(
        ids.into(),
        texts.nulls().cloned(),
    )))
}
