//! An answer as Arrow record batches, for Parquet files and for clients that watch a query of a
//! monitor.
//!
//! Columns: `instant` (timestamp in UTC; in a script the tick, an integer), `weight` (copies of a
//! relation's row inserted or retracted; not for a stream), then the columns of the answer, texts
//! as dictionaries. Units and descriptions are in the metadata of each column; the metadata of the
//! schema describe the answer (`weir.shape`, `weir.order`), so that a reader can display it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Schema as ArrowSchema, SchemaRef};
use weir_model::arrow::{arrow_array, arrow_field};
use weir_model::{Batch, Column, Field, Schema, Shape, Symbol, Tally, Type, Unit, Value};

use crate::{InstantUnit, ResultSchema, SortKey};

/// The metadata key for the shape: rows or deltas.
const SHAPE: &str = "weir.shape";

/// The metadata key for the display order of a relation.
const ORDER: &str = "weir.order";

/// The columns of an answer.
pub fn schema(answer: &ResultSchema) -> ArrowSchema {
    let mut fields = vec![arrow_field("instant", &instant(answer))];
    if answer.shape == Shape::Relation {
        let weight = Field::new("weight", Type::Int);
        let weight = weight.doc("how often the row was inserted (> 0) or retracted (< 0)");
        fields.push(arrow_field("weight", &weight));
    }
    let names = answer.unique_names(&["instant", "weight"]);
    let columns = names.iter().zip(&answer.schema.fields);
    fields.extend(columns.map(|(name, field)| arrow_field(name, field)));
    let shape = answer.shape.name().to_owned();
    let mut metadata = HashMap::from([(SHAPE.to_owned(), shape)]);
    if !answer.order.is_empty() {
        let keys: Vec<String> = answer.order.iter().map(written).collect();
        metadata.insert(ORDER.to_owned(), keys.join(", "));
    }
    ArrowSchema::new(fields).with_metadata(metadata)
}

/// Rows or deltas of an answer as one record batch with the columns of [`schema`]. A stream's rows
/// must be unique per line; see [`each_once`].
pub fn record_batch(answer: &ResultSchema, schema: &SchemaRef, batch: &Batch) -> RecordBatch {
    let instants = Column::Int(Int64Array::new(batch.ts.clone(), None));
    let mut arrays: Vec<ArrayRef> = vec![arrow_array(&instants, instant(answer).ty)];
    if answer.shape == Shape::Relation {
        let weights = (0..batch.len()).map(|i| batch.weight(i));
        arrays.push(Arc::new(Int64Array::from_iter_values(weights)));
    }
    let columns = batch.columns.iter().zip(&answer.schema.fields);
    arrays.extend(columns.map(|(column, field)| arrow_array(column, field.ty)));
    RecordBatch::try_new(schema.clone(), arrays).expect("the arrays are those of the schema")
}

/// Splits the batch so that each row stands for the number of lines in the answer: a stream's row
/// of weight 2 is repeated, a relation's delta is not.
pub fn each_once(answer: &ResultSchema, batch: &Batch) -> Vec<Batch> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for row in 0..batch.len() {
        let lines = answer.lines(batch.weight(row));
        if lines == 1 {
            continue;
        }
        if start < row {
            pieces.push(batch.slice(start, row - start));
        }
        pieces.extend((0..lines).map(|_| batch.slice(row, 1)));
        start = row + 1;
    }
    if start < batch.len() {
        pieces.push(batch.slice(start, batch.len() - start));
    }
    pieces
}

/// Decodes the answer that columns and metadata of [`schema`] describe.
///
/// # Errors
/// If they describe something else: what is missing or unknown.
pub fn answer_of(schema: &ArrowSchema) -> Result<ResultSchema, String> {
    let metadata = |key: &str| schema.metadata().get(key).map(String::as_str);
    let shape = match metadata(SHAPE) {
        Some("stream") => Shape::Stream,
        Some("relation") => Shape::Relation,
        other => return Err(format!("the metadata {SHAPE} are {other:?}")),
    };
    let clock = match schema.fields().first().map(|f| f.data_type()) {
        Some(DataType::Timestamp(..)) => InstantUnit::Nanoseconds,
        Some(DataType::Int64) => InstantUnit::Ticks,
        _ => return Err("the first column is not the instant".to_owned()),
    };
    let columns = schema.fields().iter().skip(before(shape));
    let fields: Result<Vec<Field>, String> = columns.map(|field| field_of(field)).collect();
    let fields = fields?;
    let order = metadata(ORDER).map_or(Ok(Vec::new()), |text| {
        text.split(", ")
            .map(|key| key_of(key, fields.len()))
            .collect::<Result<Vec<_>, _>>()
    })?;
    Ok(ResultSchema {
        schema: Arc::new(Schema::new(fields)),
        shape,
        clock,
        order,
        raw: false,
    })
}

/// The rows or deltas of a record batch that has the columns of [`schema`].
///
/// # Errors
/// If it has other columns.
pub fn batch_of(answer: &ResultSchema, rows: &RecordBatch) -> Result<Batch, String> {
    let before = before(answer.shape);
    if rows.num_columns() != before + answer.schema.len() {
        return Err(format!("{} columns received", rows.num_columns()));
    }
    let number = |at: usize| {
        let column = column_of(rows.column(at), Type::Int)?;
        match column {
            Column::Int(array) if array.null_count() == 0 => Ok(array.values().clone()),
            _ => Err(format!("column {at} does not contain integers")),
        }
    };
    let columns = rows.columns()[before..].iter().zip(&answer.schema.fields);
    let columns: Result<Vec<Column>, String> = columns
        .map(|(array, field)| column_of(array, field.ty))
        .collect();
    let (ts, columns) = (number(0)?, columns?);
    if !ts.is_sorted() {
        return Err("the rows are not in time order".to_owned());
    }
    Ok(match answer.shape {
        Shape::Stream => Batch::stream(ts, columns),
        Shape::Relation => Batch::deltas(ts, number(1)?, columns),
    })
}

/// The number of columns before the answer's own.
fn before(shape: Shape) -> usize {
    match shape {
        Shape::Stream => 1,
        Shape::Relation => 2,
    }
}

fn instant(answer: &ResultSchema) -> Field {
    let ty = match answer.clock {
        InstantUnit::Nanoseconds => Type::Time,
        InstantUnit::Ticks => Type::Int,
    };
    Field::new("instant", ty).doc("the time of the insertion or retraction of the row")
}

/// `2 desc`, `0 asc nulls first`.
fn written(key: &SortKey) -> String {
    let direction = if key.descending { "desc" } else { "asc" };
    let nulls = if key.nulls_first { " nulls first" } else { "" };
    format!("{} {direction}{nulls}", key.column)
}

fn key_of(text: &str, columns: usize) -> Result<SortKey, String> {
    let wrong = || format!("the metadata {ORDER} are `{text}`");
    let (column, rest) = text.split_once(' ').ok_or_else(wrong)?;
    let column: usize = column.parse().map_err(|_| wrong())?;
    let (descending, nulls_first) = match rest {
        "asc" => (false, false),
        "desc" => (true, false),
        "asc nulls first" => (false, true),
        "desc nulls first" => (true, true),
        _ => return Err(wrong()),
    };
    match column < columns {
        true => Ok(SortKey {
            column,
            descending,
            nulls_first,
        }),
        false => Err(wrong()),
    }
}

fn field_of(field: &arrow_schema::Field) -> Result<Field, String> {
    let ty = match field.data_type() {
        DataType::Boolean => Type::Bool,
        DataType::Int64 => Type::Int,
        DataType::Float64 => Type::Float,
        DataType::Utf8 | DataType::Dictionary(..) => Type::Text,
        DataType::Timestamp(..) => Type::Time,
        DataType::List(_) => Type::Tally,
        other => return Err(format!("column `{}` is of type {other}", field.name())),
    };
    let symbol = field.metadata().get("unit").map_or("", String::as_str);
    let units = [
        Unit::None,
        Unit::Nanoseconds,
        Unit::Microseconds,
        Unit::Sectors,
        Unit::Bytes,
    ];
    let unit = units.into_iter().find(|u| u.symbol() == symbol);
    Ok(Field::new(field.name(), ty)
        .unit(unit.unwrap_or_default())
        .nullable())
}

fn column_of(array: &ArrayRef, ty: Type) -> Result<Column, String> {
    let wrong = || format!("received {}, expected {ty}", array.data_type());
    Ok(match ty {
        Type::Bool => Column::Bool(array.as_boolean_opt().ok_or_else(wrong)?.clone()),
        Type::Float => {
            let floats = array.as_primitive_opt::<Float64Type>();
            Column::Float(floats.ok_or_else(wrong)?.clone())
        }
        Type::Int | Type::Time => match array.as_primitive_opt::<TimestampNanosecondType>() {
            Some(times) => Column::Int(times.reinterpret_cast::<Int64Type>()),
            None => Column::Int(array.as_primitive_opt().ok_or_else(wrong)?.clone()),
        },
        Type::Text => {
            let texts = texts(array).ok_or_else(wrong)?;
            Column::from_values(ty, texts)
        }
        Type::Tally => Column::from_values(ty, tallies(array).ok_or_else(wrong)?),
        Type::Partial => return Err(wrong()),
    })
}

/// Texts, plain or as a dictionary. A text that does not fit the symbol table is NULL.
fn texts(array: &ArrayRef) -> Option<Vec<Value>> {
    let value = |text: &str| Symbol::try_new(text).map_or(Value::Null, Value::Text);
    if let Some(plain) = array.as_string_opt::<i32>() {
        return Some(plain.iter().map(|t| t.map_or(Value::Null, value)).collect());
    }
    let dictionary = array.as_dictionary_opt::<Int32Type>()?;
    let known: Vec<Value> = (dictionary.values().as_string_opt::<i32>()?.iter())
        .map(|text| text.map_or(Value::Null, value))
        .collect();
    let at = |key: Option<i32>| key.and_then(|k| known.get(k as usize)).cloned();
    let keys = dictionary.keys().iter();
    Some(keys.map(|key| at(key).unwrap_or_default()).collect())
}

fn tallies(array: &ArrayRef) -> Option<Vec<Value>> {
    let lists = array.as_list_opt::<i32>()?;
    let mut values = Vec::with_capacity(lists.len());
    for list in lists.iter() {
        let Some(list) = list else {
            values.push(Value::Null);
            continue;
        };
        let entries = list.as_struct_opt()?;
        let names = texts(entries.columns().first()?)?;
        let counts = entries.columns().get(1)?.as_primitive_opt::<Int64Type>()?;
        let counts = counts.iter().map(Option::unwrap_or_default);
        let tally = Tally(names.into_iter().zip(counts).collect());
        values.push(Value::Tally(Arc::new(tally)));
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(shape: Shape) -> ResultSchema {
        let key = |column, descending, nulls_first| SortKey {
            column,
            descending,
            nulls_first,
        };
        ResultSchema {
            schema: Arc::new(Schema::new(vec![
                Field::new("vm", Type::Text).nullable(),
                Field::new("latency", Type::Int)
                    .unit(Unit::Nanoseconds)
                    .nullable(),
                Field::new("at", Type::Time).nullable(),
                Field::new("sizes", Type::Tally).nullable(),
                Field::new("share", Type::Float).nullable(),
                Field::new("busy", Type::Bool).nullable(),
            ])),
            shape,
            clock: InstantUnit::Nanoseconds,
            order: vec![key(1, true, false), key(0, false, true)],
            raw: false,
        }
    }

    fn columns() -> Vec<Column> {
        let tally = Tally(vec![(Value::text("4096"), 10)]);
        [
            (Type::Text, Value::text("web")),
            (Type::Int, Value::Int(7)),
            (Type::Time, Value::Int(8)),
            (Type::Tally, Value::Tally(Arc::new(tally))),
            (Type::Float, Value::Float(0.5)),
            (Type::Bool, Value::Bool(true)),
        ]
        .map(|(ty, value)| Column::from_values(ty, [value, Value::Null]))
        .to_vec()
    }

    #[test]
    fn an_answer_round_trips_through_a_batch() {
        for shape in [Shape::Stream, Shape::Relation] {
            let answer = answer(shape);
            let arrow: SchemaRef = Arc::new(schema(&answer));
            let batch = match shape {
                Shape::Stream => Batch::stream(vec![1, 2], columns()),
                Shape::Relation => Batch::deltas(vec![1, 2], vec![2, -1], columns()),
            };
            let rows = record_batch(&answer, &arrow, &batch);
            let read = answer_of(&arrow).unwrap();
            assert_eq!((read.shape, &read.order), (shape, &answer.order));
            assert_eq!(read.schema, answer.schema);
            let back = batch_of(&read, &rows).unwrap();
            assert_eq!(back.ts, batch.ts);
            for row in 0..2 {
                assert_eq!(back.row(row), batch.row(row));
                assert_eq!(back.weight(row), batch.weight(row));
            }
        }
    }

    #[test]
    fn other_columns_are_rejected() {
        let error = answer_of(&ArrowSchema::empty()).unwrap_err();
        assert!(error.contains("weir.shape"), "{error}");
        let stream = answer(Shape::Stream);
        let arrow: SchemaRef = Arc::new(schema(&stream));
        let rows = record_batch(&stream, &arrow, &Batch::stream(vec![1, 2], columns()));
        assert!(batch_of(&answer(Shape::Relation), &rows).is_err());
    }

    #[test]
    fn a_stream_row_of_weight_two_appears_twice() {
        let batch = Batch::deltas(
            vec![0, 1, 2],
            vec![1, 2, 1],
            vec![Column::ints(vec![1, 2, 3])],
        );
        let lengths = |shape| {
            let pieces = each_once(&answer(shape), &batch);
            pieces.iter().map(Batch::len).collect::<Vec<_>>()
        };
        assert_eq!(lengths(Shape::Stream), [1, 1, 1, 1]);
        assert_eq!(lengths(Shape::Relation), [3]);
    }
}
