//! Converts Arrow columns of a recording to weir's columns, from any of the equivalent types that
//! tools write.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float64Type, Int32Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{Array, ArrayRef, DictionaryArray, Int64Array, StringArray, UInt32Array};
use arrow_buffer::NullBufferBuilder;
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

/// The texts of a dictionary that were looked up.
enum KnownTexts {
    Each(Vec<Option<u32>>),
    /// Of a dictionary that is much larger than the batch.
    Some(HashMap<usize, Option<u32>, RandomState>),
}

impl KnownTexts {
    fn of(values: usize, rows: usize) -> KnownTexts {
        match values / 16 > rows {
            true => KnownTexts::Some(HashMap::default()),
            false => KnownTexts::Each(vec![None; values]),
        }
    }

    fn at(&mut self, value: usize) -> &mut Option<u32> {
        match self {
            KnownTexts::Each(known) => &mut known[value],
            KnownTexts::Some(known) => known.entry(value).or_default(),
        }
    }
}

/// The symbol of each text of a dictionary; texts that no row has are not looked up.
fn texts_of_dictionary(texts: &DictionaryArray<Int32Type>) -> Result<Column, String> {
    let Some(values) = texts.values().as_string_opt::<i32>() else {
        return Err(format!("it contains {}, expected text", texts.data_type()));
    };
    let has_nulls = texts.keys().null_count() + values.null_count() > 0;
    if !has_nulls && values.len() <= texts.len() {
        return texts_without_nulls(texts.keys().values(), values);
    }
    let mut known = KnownTexts::of(values.len(), texts.len());
    let mut ids = Vec::with_capacity(texts.len());
    let mut nulls = NullBufferBuilder::new(texts.len());
    for key in texts.keys() {
        let value = key.and_then(|key| usize::try_from(key).ok());
        let Some(value) = value.filter(|&value| !values.is_null(value)) else {
            ids.push(0);
            nulls.append_null();
            continue;
        };
        let known = known.at(value);
        let id = match *known {
            Some(id) => id,
            None => {
                let symbol = Symbol::try_new(values.value(value));
                *known.insert(symbol.map_err(|full| full.to_string())?.id())
            }
        };
        ids.push(id);
        nulls.append_non_null();
    }
    Ok(Column::Text(UInt32Array::new(ids.into(), nulls.finish())))
}

/// The symbols of the texts with these keys in a small dictionary.
fn texts_without_nulls(keys: &[i32], values: &StringArray) -> Result<Column, String> {
    // Those that no row has are not looked up, since symbols are never removed.
    let mut has_rows = vec![false; values.len()];
    keys.iter().for_each(|key| has_rows[*key as usize] = true);
    let id = |(value, has_rows): (usize, bool)| match has_rows {
        true => Symbol::try_new(values.value(value)).map(|symbol| symbol.id()),
        false => Ok(0),
    };
    let ids: Result<Vec<u32>, _> = has_rows.into_iter().enumerate().map(id).collect();
    let ids = ids.map_err(|full| full.to_string())?;
    let ids: Vec<u32> = keys.iter().map(|key| ids[*key as usize]).collect();
    Ok(Column::Text(UInt32Array::new(ids.into(), None)))
}

/// The symbol of each text. Repeated texts share their view, so that each is looked up once per
/// batch.
fn texts(array: &ArrayRef) -> Result<Column, String> {
    if let Some(texts) = array.as_dictionary_opt::<Int32Type>() {
        return texts_of_dictionary(texts);
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int32Array, StringArray};

    use super::*;

    /// The texts of a column, read from a dictionary of `values` texts, of which rows have these.
    fn read(values: usize, keys: Vec<Option<i32>>) -> Vec<Option<String>> {
        let texts = (0..values).map(|i| (i != 2).then(|| format!("text {i}")));
        let texts: StringArray = texts.collect();
        let array: ArrayRef = Arc::new(DictionaryArray::new(
            Int32Array::from(keys),
            Arc::new(texts),
        ));
        let column = from_arrow(&array, Type::Text).unwrap();
        let text = |row| match column.value(row) {
            weir_model::Value::Text(text) => Some(text.as_str().to_owned()),
            _ => None,
        };
        (0..column.len()).map(text).collect()
    }

    #[test]
    fn texts_of_small_and_large_dictionaries_are_found() {
        for values in [4, 16 * 5, 1000] {
            let last = values as i32 - 1;
            let keys = vec![Some(1), None, Some(last), Some(1), Some(2)];
            let text = |i: i32| Some(format!("text {i}"));
            let expected = vec![text(1), None, text(last), text(1), None];
            assert_eq!(read(values, keys), expected);
        }
    }
}
