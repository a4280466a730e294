//! Conversion of columns and fields to Arrow, for Parquet files and the wire protocol.
//!
//! Numbers are shared, not copied. Texts become dictionaries of the texts in the batch, points in
//! time become timestamps in UTC, tallies become lists of (value, count) with the value as text.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder, StringBuilder, StructBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, DictionaryArray, Float64Array, Int32Array,
    Int64Array, StringArray, TimestampNanosecondArray, UInt32Array,
};
use arrow_schema::{DataType, Fields, TimeUnit};

use crate::{Column, Field, Symbol, TallyArray, Type, Unit};

/// The time zone of every exported timestamp.
const ZONE: &str = "UTC";

/// The Arrow type of a type.
pub fn arrow_type(ty: Type) -> DataType {
    match ty {
        Type::Bool => DataType::Boolean,
        Type::Int => DataType::Int64,
        Type::Float => DataType::Float64,
        Type::Text => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        Type::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some(ZONE.into())),
        Type::Tally => DataType::List(Arc::new(arrow_schema::Field::new(
            "item",
            DataType::Struct(tally_fields()),
            true,
        ))),
        Type::Partial => DataType::Binary,
    }
}

fn tally_fields() -> Fields {
    Fields::from(vec![
        arrow_schema::Field::new("value", DataType::Utf8, true),
        arrow_schema::Field::new("count", DataType::Int64, false),
    ])
}

/// A column's description under the name `name`, with its unit and meaning as metadata `unit` and
/// `doc`. Every column is nullable, since columns that were not requested are NULL.
pub fn arrow_field(name: &str, field: &Field) -> arrow_schema::Field {
    let mut metadata = HashMap::new();
    if field.unit != Unit::None {
        metadata.insert("unit".to_owned(), field.unit.symbol().to_owned());
    }
    if !field.doc.is_empty() {
        metadata.insert("doc".to_owned(), field.doc.clone());
    }
    arrow_schema::Field::new(name, arrow_type(field.ty), true).with_metadata(metadata)
}

/// The values of a column of type `ty` as an Arrow array of [`arrow_type`]`(ty)`.
///
/// # Panics
/// When the column is of another type.
pub fn arrow_array(column: &Column, ty: Type) -> ArrayRef {
    match (column, ty) {
        (Column::Nulls(len), _) => arrow_array::new_null_array(&arrow_type(ty), *len),
        (Column::Bool(a), Type::Bool) => Arc::new(a.clone()) as Arc<BooleanArray>,
        (Column::Int(a), Type::Int) => Arc::new(a.clone()) as Arc<Int64Array>,
        (Column::Int(a), Type::Time) => Arc::new(timestamps(a)),
        (Column::Float(a), Type::Float) => Arc::new(a.clone()) as Arc<Float64Array>,
        (Column::Text(a), Type::Text) => Arc::new(dictionary(a)),
        (Column::Tally(a), Type::Tally) => tallies(a),
        (Column::Bytes(a), Type::Partial) => Arc::new(a.clone()) as Arc<BinaryArray>,
        (column, ty) => panic!("the column {column:?} is of type {ty}"),
    }
}

fn timestamps(nanos: &Int64Array) -> TimestampNanosecondArray {
    TimestampNanosecondArray::new(nanos.values().clone(), nanos.nulls().cloned())
        .with_timezone(ZONE)
}

fn dictionary(ids: &UInt32Array) -> DictionaryArray<Int32Type> {
    let mut texts = DictionaryTexts::default();
    let mut key = |row: usize, id: u32| match ids.is_null(row) {
        true => 0,
        false => texts.key(id),
    };
    let each = ids.values().iter().enumerate();
    let keys: Vec<i32> = each.map(|(row, &id)| key(row, id)).collect();
    let keys = Int32Array::new(keys.into(), ids.nulls().cloned());
    let texts = texts.ids.into_iter();
    let texts = texts.map(|id| Some(Symbol::from_id(id).as_str()));
    DictionaryArray::new(keys, Arc::new(texts.collect::<StringArray>()))
}

/// The texts of a dictionary, in the order in which they occur.
#[derive(Default)]
struct DictionaryTexts {
    ids: Vec<u32>,
    /// The keys of all of them, once they are many.
    keys: HashMap<u32, i32>,
    /// The previous key.
    last: usize,
}

impl DictionaryTexts {
    /// Texts that are compared one by one. A column of I/O events has few.
    const FEW: usize = 16;

    /// The key of a text, which is added if it is new.
    fn key(&mut self, id: u32) -> i32 {
        if self.ids.get(self.last) == Some(&id) {
            return self.last as i32;
        }
        let found = match self.ids.len() <= Self::FEW {
            true => self.ids.iter().position(|known| *known == id),
            false => self.keys.get(&id).map(|&key| key as usize),
        };
        self.last = found.unwrap_or_else(|| self.add(id));
        self.last as i32
    }

    fn add(&mut self, id: u32) -> usize {
        let key = self.ids.len();
        self.ids.push(id);
        self.keys.insert(id, key as i32);
        key
    }
}

fn tallies(column: &TallyArray) -> ArrayRef {
    let mut lists = ListBuilder::new(StructBuilder::from_fields(tally_fields(), 0));
    for tally in column.values() {
        for (value, count) in tally.iter().flat_map(|t| &t.0) {
            let entry = lists.values();
            let texts: &mut StringBuilder = entry.field_builder(0).expect("field 0 is a text");
            match value.is_null() {
                true => texts.append_null(),
                false => texts.append_value(value.to_string()),
            }
            let counts: &mut Int64Builder = entry.field_builder(1).expect("field 1 is a number");
            counts.append_value(*count);
            entry.append(true);
        }
        lists.append(tally.is_some());
    }
    Arc::new(lists.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tally, Value};
    use arrow_array::cast::AsArray;

    #[test]
    fn equal_texts_share_one_dictionary_entry() {
        let column = Column::from_values(
            Type::Text,
            ["sda", "sdb", "sda"]
                .map(Value::text)
                .into_iter()
                .chain([Value::Null]),
        );
        let array = arrow_array(&column, Type::Text);
        let dictionary = array.as_dictionary::<Int32Type>();
        assert_eq!(dictionary.values().len(), 2);
        assert_eq!(dictionary.keys().value(2), 0);
        assert!(array.is_null(3));
    }

    #[test]
    fn few_and_many_texts_have_the_keys_of_their_first_rows() {
        for texts in [1, 16, 17, 300] {
            let text = |row: usize| format!("text {}", row * row % texts);
            let rows: Vec<String> = (0..1000).map(text).collect();
            let column = Column::texts(rows.iter().map(String::as_str));
            let array = arrow_array(&column, Type::Text);
            let dictionary = array.as_dictionary::<Int32Type>();
            let values = dictionary.values().as_string::<i32>();
            let mut firsts: Vec<&str> = Vec::new();
            for (row, text) in rows.iter().enumerate() {
                if !firsts.contains(&text.as_str()) {
                    firsts.push(text);
                }
                let key = dictionary.keys().value(row) as usize;
                assert_eq!(
                    (values.value(key), firsts[key]),
                    (text.as_str(), values.value(key))
                );
            }
            assert_eq!(values.len(), firsts.len());
        }
    }

    #[test]
    fn every_type_gives_an_array_of_the_type_it_promises() {
        let tally = Tally(vec![(Value::Int(4096), 10)]);
        let columns = [
            (Type::Bool, Value::Bool(true)),
            (Type::Int, Value::Int(1)),
            (Type::Float, Value::Float(0.5)),
            (Type::Text, Value::text("x")),
            (Type::Time, Value::Int(1)),
            (Type::Tally, Value::Tally(Arc::new(tally))),
            (Type::Partial, Value::Bytes([1, 2].as_slice().into())),
        ];
        for (ty, value) in columns {
            let column = Column::from_values(ty, [value, Value::Null]);
            let array = arrow_array(&column, ty);
            assert_eq!(array.data_type(), &arrow_type(ty));
            assert_eq!((array.len(), array.null_count()), (2, 1));
            assert_eq!(
                arrow_array(&Column::Nulls(3), ty).data_type(),
                &arrow_type(ty)
            );
        }
    }
}
