//! [`MessageForm`]: rows as the values of messages.
//!
//! In a topic of one query it is Avro (1.12, "Binary encoding") without header, in which every
//! field is a union with null: one schema describes all messages. A topic of several queries has no
//! such schema. Its messages are JSON: the fields of every message, `query`, the name of the rows,
//! and one member with this name, whose members are the columns. So a reader that declares
//! the member of one query ignores the columns of others, whatever their types are. A state is text
//! in base64 (RFC 4648, section 4); a number that JSON does not have is the text `NaN`, `Infinity`
//! or `-Infinity`; what is NULL is absent.
//!
//! The content of a relation is an array of rows: in the field `content` of Avro, in the member of
//! JSON.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
    StructArray,
};
use arrow_avro::schema::AvroSchema;
use arrow_avro::writer::format::AvroBinaryFormat;
use arrow_avro::writer::{Encoder, WriterBuilder};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use weir_model::{Column, Nanos, Symbol, Type, Value};
use weir_query::place::fleet::published::{
    CONTENT, PublishedColumn, PublishedRows, RESERVED, SHARED_QUERY,
};

/// How rows become values of messages.
#[derive(Debug)]
pub enum MessageForm {
    /// Those of a topic of its own.
    Avro(Box<AvroForm>),
    /// Those of a topic that queries share; the name of the rows.
    Json(String),
}

/// A schema and its encoder.
#[derive(Debug)]
pub struct AvroForm {
    schema: SchemaRef,
    json: String,
    encoder: Encoder,
}

/// The fields that each message has, as columns; those of the rows follow.
pub struct MessageColumns<'a> {
    /// The values of [`RESERVED`].
    pub of_message: [Column; RESERVED.len()],
    /// The columns of the rows and their values.
    pub of_rows: RowColumns<'a>,
}

/// What messages have of the rows of a query.
pub enum RowColumns<'a> {
    /// Nothing: they are watermarks.
    None,
    /// Each has a row.
    Each(&'a [PublishedColumn], Vec<Column>),
    /// One has all rows, this number.
    All(&'a [PublishedColumn], Vec<Column>, usize),
}

impl MessageForm {
    /// The form of rows in a topic of their own.
    ///
    /// # Errors
    /// If the columns are none of Avro.
    pub fn avro(rows: &PublishedRows) -> Result<MessageForm, String> {
        let reserved = RESERVED.map(|(name, ty)| Field::new(name, data_type(ty), true));
        let own = fields(&rows.columns);
        let own = match rows.content_at {
            None => own,
            Some(_) => {
                let rows = DataType::List(row_of(own.into()));
                vec![Field::new(CONTENT, rows, true)]
            }
        };
        let schema = Schema::new([&reserved[..], &own].concat());
        let avro = AvroSchema::try_from(&schema).map_err(|e| e.to_string())?;
        let encoder = WriterBuilder::new(schema).build_encoder::<AvroBinaryFormat>();
        let encoder = encoder.map_err(|e| e.to_string())?;
        Ok(MessageForm::Avro(Box::new(AvroForm {
            schema: encoder.schema(),
            json: avro.json_string,
            encoder,
        })))
    }

    /// The values of `count` messages.
    ///
    /// # Errors
    /// When they cannot be encoded.
    pub fn values(
        &mut self,
        columns: &MessageColumns<'_>,
        count: usize,
    ) -> Result<Vec<Vec<u8>>, String> {
        match self {
            MessageForm::Avro(form) => form.values(columns, count),
            MessageForm::Json(rows) => {
                let value = |row| json_of(rows, columns, row).to_string().into_bytes();
                Ok((0..count).map(value).collect())
            }
        }
    }

    /// Adds the format of the values to a description of the rows.
    pub fn describe(&self, description: &mut Json) {
        match self {
            MessageForm::Avro(form) => {
                description["format"] = "avro".into();
                let schema = serde_json::from_str(&form.json);
                description["avro"] = schema.expect("it is written as JSON");
            }
            MessageForm::Json(name) => {
                description["format"] = "json".into();
                description["member"] = name.as_str().into();
            }
        }
    }
}

impl AvroForm {
    fn values(
        &mut self,
        columns: &MessageColumns<'_>,
        count: usize,
    ) -> Result<Vec<Vec<u8>>, String> {
        let reserved = columns.of_message.iter().zip(RESERVED);
        let mut arrays: Vec<ArrayRef> = reserved.map(|(c, (_, ty))| array(c, ty)).collect();
        match &columns.of_rows {
            RowColumns::Each(published, values) => arrays.extend(own_arrays(published, values)),
            RowColumns::All(published, values, rows) => {
                let fields = Fields::from(fields(published));
                let own = own_arrays(published, values).collect();
                let own = StructArray::try_new(fields.clone(), own, None);
                let own = Arc::new(own.map_err(|e| e.to_string())?);
                let one = OffsetBuffer::from_lengths([*rows]);
                let list = ListArray::try_new(row_of(fields), one, own, None);
                arrays.push(Arc::new(list.map_err(|e| e.to_string())?));
            }
            RowColumns::None => {
                let own = self.schema.fields().iter().skip(RESERVED.len());
                arrays.extend(own.map(|f| arrow_array::new_null_array(f.data_type(), count)));
            }
        }
        let batch = RecordBatch::try_new(self.schema.clone(), arrays);
        let batch = batch.map_err(|e| e.to_string())?;
        self.encoder.encode(&batch).map_err(|e| e.to_string())?;
        let rows = self.encoder.flush();
        Ok(rows.iter().map(|row| row.to_vec()).collect())
    }
}

/// Columns as fields of Avro.
fn fields(columns: &[PublishedColumn]) -> Vec<Field> {
    let own = columns.iter().map(|column| &column.field);
    own.map(|field| Field::new(&field.name, data_type(field.ty), true))
        .collect()
}

/// A row among those of a message.
fn row_of(fields: Fields) -> Arc<Field> {
    Arc::new(Field::new("row", DataType::Struct(fields), true))
}

/// The values of columns.
fn own_arrays(published: &[PublishedColumn], values: &[Column]) -> impl Iterator<Item = ArrayRef> {
    let own = values.iter().zip(published);
    own.map(|(column, published)| array(column, published.field.ty))
}

/// The message of a row or of a relation's content, or a watermark.
fn json_of(rows: &str, columns: &MessageColumns<'_>, row: usize) -> Json {
    let names = RESERVED.iter().map(|(name, _)| *name);
    let mut message = members(names.zip(&columns.of_message), row);
    let of_row = |published: &[PublishedColumn], values: &[Column], row| -> Json {
        let names = published.iter().map(|column| column.field.name.as_str());
        members(names.zip(values), row).into()
    };
    let own = match &columns.of_rows {
        RowColumns::None => return message.into(),
        RowColumns::Each(published, values) => of_row(published, values, row),
        RowColumns::All(published, values, count) => (0..*count)
            .map(|row| of_row(published, values, row))
            .collect(),
    };
    message.insert(SHARED_QUERY.to_owned(), rows.into());
    message.insert(rows.to_owned(), own);
    message.into()
}

/// The values of a row that are not NULL.
fn members<'a>(
    columns: impl Iterator<Item = (&'a str, &'a Column)>,
    row: usize,
) -> Map<String, Json> {
    let member =
        |(name, column): (&str, &Column)| Some((name.to_owned(), json_value(column.value(row))?));
    columns.filter_map(member).collect()
}

fn json_value(value: Value) -> Option<Json> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => value.into(),
        Value::Int(value) => value.into(),
        Value::Float(value) if value.is_finite() => value.into(),
        Value::Float(value) if value.is_nan() => "NaN".into(),
        Value::Float(value) if value > 0.0 => "Infinity".into(),
        Value::Float(_) => "-Infinity".into(),
        Value::Text(text) => text.as_str().into(),
        Value::Bytes(bytes) => BASE64_STANDARD.encode(bytes).into(),
        Value::Tally(_) => unreachable!("tallies are not published"),
    })
}

/// The instant of a message of either form. An Avro value begins with the branch of its first
/// union, 0 or 1, which is no beginning of JSON.
pub fn instant_of(value: &[u8]) -> Option<Nanos> {
    /// What is read of JSON.
    #[derive(Deserialize)]
    struct WithInstant {
        ts: Nanos,
    }

    match value.first()? {
        b'{' => {
            let message: WithInstant = serde_json::from_slice(value).ok()?;
            Some(message.ts)
        }
        _ => avro_instant(value),
    }
}

/// The fifth field, after one text and three integers, each a union with null.
fn avro_instant(value: &[u8]) -> Option<Nanos> {
    let mut rest = value;
    let mut instant = None;
    for field in 0..5 {
        instant = match avro_long(&mut rest)? {
            0 => None,
            _ => Some(avro_long(&mut rest)?),
        };
        if field == 0
            && let Some(length) = instant
        {
            rest = rest.get(usize::try_from(length).ok()?..)?;
        }
    }
    instant
}

/// An integer in variable length, zigzag.
fn avro_long(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    None
}

fn data_type(ty: Type) -> DataType {
    match ty {
        Type::Bool => DataType::Boolean,
        Type::Int | Type::Time => DataType::Int64,
        Type::Float => DataType::Float64,
        Type::Text => DataType::Utf8,
        Type::Partial => DataType::Binary,
        Type::Tally => unreachable!("tallies are not published"),
    }
}

/// A column as an array of [`data_type`].
fn array(column: &Column, ty: Type) -> ArrayRef {
    match column {
        Column::Nulls(count) => arrow_array::new_null_array(&data_type(ty), *count),
        Column::Bool(values) => Arc::new(values.clone()) as Arc<BooleanArray>,
        Column::Int(values) => Arc::new(values.clone()) as Arc<Int64Array>,
        Column::Float(values) => Arc::new(values.clone()) as Arc<Float64Array>,
        Column::Text(values) => {
            let text = |id: u32| Symbol::from_id(id).as_str();
            Arc::new(
                values
                    .iter()
                    .map(|id| id.map(text))
                    .collect::<StringArray>(),
            )
        }
        Column::Bytes(values) => Arc::new(values.clone()),
        Column::Tally(_) => unreachable!("tallies are not published"),
    }
}
