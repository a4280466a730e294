//! Arrow columns of a recording as weir's columns, whichever of the equivalent types a rewriting tool has left them in.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Int32Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow_array::{Array, ArrayRef, Int64Array, UInt32Array};
use arrow_schema::{DataType, TimeUnit};
use weir_model::{Column, Symbol, Type};

/// The values of `array` as a column of type `ty`.
///
/// # Errors
/// When they cannot be, in words.
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
        (Type::Text, _) => texts(array),
        (ty, other) => Err(format!("it holds {other}, where {ty} is expected")),
    }
}

fn texts(array: &ArrayRef) -> Result<Column, String> {
    if let Some(dictionary) = array.as_any_dictionary_opt() {
        let symbols = symbols(dictionary.values())?;
        if symbols.is_empty() {
            return Ok(Column::Nulls(array.len()));
        }
        let keys = dictionary.normalized_keys();
        let ids: Vec<u32> = keys
            .iter()
            .map(|&key| symbols.get(key).map_or(0, |s| s.id()))
            .collect();
        return Ok(Column::Text(UInt32Array::new(
            ids.into(),
            array.nulls().cloned(),
        )));
    }
    let ids: Vec<u32> = symbols(array)?.iter().map(|s| s.id()).collect();
    Ok(Column::Text(UInt32Array::new(
        ids.into(),
        array.nulls().cloned(),
    )))
}

/// The symbol of each text; the empty one for NULL.
fn symbols(array: &Arc<dyn Array>) -> Result<Vec<Symbol>, String> {
    let intern = |text: Option<&str>| {
        Symbol::try_new(text.unwrap_or_default()).map_err(|full| full.to_string())
    };
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().map(intern).collect(),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().map(intern).collect(),
        DataType::Utf8View => array.as_string_view().iter().map(intern).collect(),
        other => Err(format!("it holds {other}, where text is expected")),
    }
}
