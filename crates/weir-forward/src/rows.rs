//! [`TopicRows`]: the rows of a fragment as messages.
//!
//! The value is an Avro record (Avro 1.12, "Binary encoding") without header: `host`, `epoch` (the
//! random number of the agent's process), `sequence` (the number of its message) and `position` (of
//! the row in it), `ts` (nanoseconds since 1970; for partial aggregates the end of their interval),
//! `requests` (that the row stands for), `lost`, and the columns of [`PublishedRows`]. Every field
//! is a union with null. A watermark has only `ts` and `lost`, the requests that were lost so far
//! on the way to Kafka.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_avro::schema::AvroSchema;
use arrow_avro::writer::format::AvroBinaryFormat;
use arrow_avro::writer::{Encoder, WriterBuilder};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use serde_json::{Value, json};
use weir_model::{Batch, Column, Nanos, Symbol, Type};
use weir_query::place::fleet::published::{PublishedRows, RESERVED};
use weir_query::plan::Plan;

use crate::message::{TargetPartition, TopicMessage};

/// The longest name of a topic in Kafka.
const NAME_MAX: usize = 249;

/// The part of it that is left for the name of a host.
const HOST_MAX: usize = 64;

/// The key of watermarks.
const WATERMARK: &[u8] = b"watermark";

/// Where rows are from.
#[derive(Clone, Copy, Debug)]
pub struct RowOrigin<'a> {
    /// The agent's host.
    pub host: &'a str,
    /// The random number of the agent's process.
    pub epoch: u64,
    /// The number of its message.
    pub sequence: u64,
    /// The position of the first row in the message.
    pub first: usize,
    /// The column with the requests of each row, if it is not one.
    pub counts: Option<usize>,
}

/// The rows of a fragment as messages of a topic.
#[derive(Debug)]
pub struct TopicRows {
    topic: String,
    rows: PublishedRows,
    schema: SchemaRef,
    avro: String,
    encoder: Encoder,
}

impl TopicRows {
    /// The rows of `fragment` as messages of `topic`.
    ///
    /// # Errors
    /// Why its rows are not published: a clause without full stop.
    pub fn new(topic: &str, fragment: &Plan) -> Result<TopicRows, String> {
        let rows = PublishedRows::of(fragment)?;
        let mut fields: Vec<Field> = RESERVED
            .iter()
            .map(|name| Field::new(*name, data_type(Type::Int), true))
            .collect();
        fields[0] = Field::new(RESERVED[0], data_type(Type::Text), true);
        let own = rows.columns.iter().map(|column| &column.field);
        fields.extend(own.map(|field| Field::new(&field.name, data_type(field.ty), true)));
        let schema = Schema::new(fields);
        let avro = AvroSchema::try_from(&schema).map_err(|e| e.to_string())?;
        let encoder = WriterBuilder::new(schema).build_encoder::<AvroBinaryFormat>();
        let encoder = encoder.map_err(|e| e.to_string())?;
        Ok(TopicRows {
            topic: topic.to_owned(),
            rows,
            schema: encoder.schema(),
            avro: avro.json_string,
            encoder,
        })
    }

    /// The messages of rows, in order.
    ///
    /// # Errors
    /// When a state is not valid, or a sum does not fit in 64 bits.
    pub fn messages(
        &mut self,
        origin: &RowOrigin<'_>,
        batch: &Batch,
    ) -> Result<Vec<TopicMessage>, String> {
        let count = batch.len();
        let columns = self.rows.columns_of(batch).map_err(|e| e.to_string())?;
        let same = |x: i64| -> ArrayRef { Arc::new(Int64Array::from_value(x, count)) };
        let positions = (origin.first..).take(count).map(|at| at as i64);
        let requests: Vec<u64> = (0..count)
            .map(|row| batch.slice(row, 1).requests(origin.counts))
            .collect();
        let counts = requests
            .iter()
            .map(|&n| i64::try_from(n).unwrap_or(i64::MAX));
        let mut arrays: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(
                (0..count).map(|_| origin.host),
            )),
            same(origin.epoch.cast_signed()),
            same(i64::try_from(origin.sequence).unwrap_or(i64::MAX)),
            Arc::new(Int64Array::from_iter_values(positions)),
            Arc::new(Int64Array::new(batch.ts.clone(), None)),
            Arc::new(Int64Array::from_iter_values(counts)),
            Arc::new(Int64Array::new_null(count)),
        ];
        let own = columns.iter().zip(&self.rows.columns);
        arrays.extend(own.map(|(column, published)| array(column, published.field.ty)));
        let partition = TargetPartition::Of(crc32fast::hash(origin.host.as_bytes()));
        let values = self.encoded(arrays)?;
        let messages = values.into_iter().zip(requests).enumerate();
        let key = |row: usize| {
            let RowOrigin {
                host,
                epoch,
                sequence,
                first,
                ..
            } = origin;
            format!("{host}/{epoch:016x}/{sequence}/{}", first + row).into_bytes()
        };
        Ok(messages
            .map(|(row, (value, requests))| TopicMessage {
                topic: self.topic.clone(),
                partition,
                key: key(row),
                value,
                requests,
            })
            .collect())
    }

    /// A watermark: no rows at or before `at` follow. `lost` requests were lost so far.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn watermark(&mut self, at: Nanos, lost: u64) -> Result<TopicMessage, String> {
        let own = self
            .schema
            .fields()
            .iter()
            .map(|field| match field.name().as_str() {
                "ts" => Arc::new(Int64Array::from_value(at, 1)) as ArrayRef,
                "lost" => {
                    let lost = i64::try_from(lost).unwrap_or(i64::MAX);
                    Arc::new(Int64Array::from_value(lost, 1))
                }
                _ => arrow_array::new_null_array(field.data_type(), 1),
            });
        let arrays = own.collect();
        let value = self.encoded(arrays)?.swap_remove(0);
        Ok(TopicMessage {
            topic: self.topic.clone(),
            partition: TargetPartition::All,
            key: WATERMARK.to_vec(),
            value,
            requests: 0,
        })
    }

    fn encoded(&mut self, arrays: Vec<ArrayRef>) -> Result<Vec<Vec<u8>>, String> {
        let batch = RecordBatch::try_new(self.schema.clone(), arrays);
        let batch = batch.map_err(|e| e.to_string())?;
        self.encoder.encode(&batch).map_err(|e| e.to_string())?;
        let rows = self.encoder.flush();
        Ok(rows.iter().map(|row| row.to_vec()).collect())
    }

    /// What the topic contains, as JSON: the query, the agents' part of it, the columns, the schema
    /// of the messages.
    pub fn description(&self, query: &str, number: usize, fragment: &Plan) -> Value {
        let columns = self.rows.columns.iter().map(|column| {
            let field = &column.field;
            json!({
                "name": field.name,
                "type": field.ty.to_string(),
                "unit": field.unit.symbol(),
                "doc": field.doc,
            })
        });
        let schema: Value = serde_json::from_str(&self.avro).expect("it is written as JSON");
        json!({
            "query": query,
            "fragment": number,
            "plan": fragment.to_string(),
            "columns": columns.collect::<Vec<_>>(),
            "avro": schema,
        })
    }
}

/// The name of the topic for the rows of fragment `number` of `query`. It depends on the fragment
/// and on its columns: a changed query has another topic, because its rows are others.
pub fn topic_name(prefix: &str, query: &str, number: usize, fragment: &Plan) -> String {
    let mut identity = format!("{query}\n{number}\n{fragment}");
    for field in &fragment.schema.fields {
        identity += &format!("\n{} {}", field.name, field.ty);
    }
    let end = format!(".{:08x}", crc32fast::hash(identity.as_bytes()));
    topic_of(prefix, query, &end)
}

/// The name of the topic for the rows of one host, where hosts have topics of their own; `topic` is
/// that of all hosts.
pub fn host_topic(topic: &str, host: &str) -> String {
    // Kafka takes two topics for the same if they differ in dots and underscores only.
    let is_valid = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
    let mut name: String = host
        .chars()
        .map(|c| if is_valid(c) { c } else { '-' })
        .collect();
    let room = NAME_MAX - topic.len() - 1;
    if name != host || name.len() > room {
        // Hosts that differ in other characters have other topics.
        let sum = format!(".{:08x}", crc32fast::hash(host.as_bytes()));
        name.truncate(room - sum.len());
        name += &sum;
    }
    format!("{topic}.{name}")
}

/// A pattern of the names of the topics of all hosts, as `java.util.regex` reads it; `topic` is that
/// of all hosts.
pub fn host_topics(topic: &str) -> String {
    format!(r"\Q{topic}.\E.+")
}

/// The instant of a message: its fifth field, after one text and three integers, each a union with
/// null (Avro 1.12, "Binary Encoding").
pub fn instant_of(value: &[u8]) -> Option<Nanos> {
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

/// The name of the topic with what the other topics contain.
pub fn descriptions_topic(prefix: &str) -> String {
    format!("{prefix}.queries")
}

/// The name of the topic for the result of `query`, where another engine computes it.
pub fn results_topic(prefix: &str, query: &str) -> String {
    const END: &str = ".results";
    let topic = topic_of(prefix, query, END);
    // Names that differ in other characters have other topics.
    match topic == format!("{prefix}.{query}{END}") {
        true => topic,
        false => {
            let sum = crc32fast::hash(query.as_bytes());
            topic_of(prefix, query, &format!(".{sum:08x}{END}"))
        }
    }
}

fn topic_of(prefix: &str, query: &str, end: &str) -> String {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let plain = |c: char| if is_valid(c) { c } else { '_' };
    let mut name: String = query.chars().map(plain).collect();
    name.truncate(NAME_MAX - HOST_MAX - prefix.len() - 1 - end.len());
    format!("{prefix}.{name}{end}")
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
