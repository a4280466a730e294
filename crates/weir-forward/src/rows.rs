//! [`TopicRows`]: what is published of a query as messages.
//!
//! The value of a message has `host`, `epoch` (the random number of the agent's process),
//! `sequence` (the number of its message) and `position` (of the row in it), `ts` (nanoseconds
//! since 1970; for partial aggregates the end of their interval), `requests` (that the row stands
//! for), `lost`, and the columns of [`PublishedRows`], as Avro or as JSON ([`MessageForm`]). A
//! watermark has only `ts` and `lost`, the requests that were lost so far on the way to Kafka.
//!
//! Of a relation, a message has all rows of a host at an instant. It has the key `host/ts`, without
//! `sequence` and `position`: a later one replaces it, also if the rows are others, as they can be
//! after a restart of the monitor.

use serde_json::{Value, json};
use weir_model::{Batch, Column, Nanos};
use weir_query::place::fleet::Cut;
use weir_query::place::fleet::published::PublishedRows;

use crate::form::{MessageColumns, MessageForm, RowColumns};
use crate::message::{TargetPartition, TopicMessage};

/// The key of watermarks.
const WATERMARK: &str = "watermark";

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

/// What is published of a query as messages of a topic.
#[derive(Debug)]
pub struct TopicRows {
    topic: String,
    rows: PublishedRows,
    form: MessageForm,
    /// What keys begin with: messages of different rows have different keys.
    key: String,
}

impl TopicRows {
    /// The rows with this number as messages of `topic`, which has no others.
    ///
    /// # Errors
    /// Why its rows are not published: a clause without full stop.
    pub fn new(topic: &str, cut: &Cut, number: usize) -> Result<TopicRows, String> {
        let rows = PublishedRows::of(cut, number)?;
        Ok(TopicRows {
            topic: topic.to_owned(),
            form: MessageForm::avro(&rows)?,
            rows,
            key: String::new(),
        })
    }

    /// The rows with this number as messages of `topic`, which has those of other queries, too;
    /// `name` is that of these rows.
    ///
    /// # Errors
    /// As [`TopicRows::new`].
    pub fn shared(topic: &str, name: &str, cut: &Cut, number: usize) -> Result<TopicRows, String> {
        Ok(TopicRows {
            topic: topic.to_owned(),
            rows: PublishedRows::of(cut, number)?,
            form: MessageForm::Json(name.to_owned()),
            key: format!("{name}/"),
        })
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// For a relation, the interval at whose multiples its content is sent.
    pub fn content_every(&self) -> Option<Nanos> {
        Some(self.rows.content_at?.slide)
    }

    /// The content of a relation at an instant, as far as it is that of a host: these rows, each
    /// once. `epoch` is the random number of the agent's process.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn content(
        &mut self,
        host: &str,
        epoch: u64,
        at: Nanos,
        rows: &Batch,
    ) -> Result<TopicMessage, String> {
        let count = rows.len();
        let columns = self.rows.columns_of(rows).map_err(|e| e.to_string())?;
        let one = |value: i64| Column::ints(vec![value]);
        let values = MessageColumns {
            of_message: [
                Column::texts([host]),
                one(epoch.cast_signed()),
                Column::Nulls(1),
                Column::Nulls(1),
                one(at),
                one(signed(count as u64)),
                Column::Nulls(1),
            ],
            of_rows: RowColumns::All(&self.rows.columns, columns, count),
        };
        Ok(TopicMessage {
            topic: self.topic.clone(),
            partition: partition_of(host),
            key: format!("{}{host}/{at}", self.key).into_bytes(),
            value: self.form.values(&values, 1)?.swap_remove(0),
            requests: requests_of(count),
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
        let RowOrigin {
            host,
            epoch,
            sequence,
            first,
            counts,
        } = *origin;
        let count = batch.len();
        let columns = self.rows.columns_of(batch).map_err(|e| e.to_string())?;
        let requests: Vec<u64> = (0..count)
            .map(|row| batch.slice(row, 1).requests(counts))
            .collect();
        let positions = (first..).take(count).map(|at| at as u64);
        let values = MessageColumns {
            of_message: [
                Column::texts(std::iter::repeat_n(host, count)),
                Column::ints(vec![epoch.cast_signed(); count]),
                Column::ints(vec![signed(sequence); count]),
                Column::ints(positions.map(signed).collect()),
                Column::ints(batch.ts.to_vec()),
                Column::ints(requests.iter().map(|&n| signed(n)).collect()),
                Column::Nulls(count),
            ],
            of_rows: RowColumns::Each(&self.rows.columns, columns),
        };
        let values = self.form.values(&values, count)?;
        let partition = partition_of(host);
        let messages = (first..).zip(values.into_iter().zip(requests));
        Ok(messages
            .map(|(at, (value, requests))| TopicMessage {
                topic: self.topic.clone(),
                partition,
                key: format!("{}{host}/{epoch:016x}/{sequence}/{at}", self.key).into_bytes(),
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
        let none = || Column::Nulls(1);
        let [at, lost] = [at, signed(lost)].map(|value| Column::ints(vec![value]));
        let values = MessageColumns {
            of_message: [none(), none(), none(), none(), at, none(), lost],
            of_rows: RowColumns::None,
        };
        Ok(TopicMessage {
            topic: self.topic.clone(),
            partition: TargetPartition::All,
            key: WATERMARK.into(),
            value: self.form.values(&values, 1)?.swap_remove(0),
            requests: 0,
        })
    }

    /// What the messages contain, as JSON: the query, the agents' part of it, the columns, the
    /// format.
    pub fn description(&self, query: &str, cut: &Cut, number: usize) -> Value {
        let fragment = cut.published(number);
        let columns = self.rows.columns.iter().map(|column| {
            let field = &column.field;
            json!({
                "name": field.name,
                "type": field.ty.to_string(),
                "unit": field.unit.symbol(),
                "doc": field.doc,
            })
        });
        let mut described = json!({
            "query": query,
            "fragment": number,
            "plan": fragment.to_string(),
            "columns": columns.collect::<Vec<_>>(),
        });
        if let Some(every) = self.content_every() {
            described["content_every_ns"] = every.into();
        }
        self.form.describe(&mut described);
        described
    }
}

/// What a content of so many rows counts as, if it is lost. It counts also if it is empty: it may
/// replace another one.
pub fn requests_of(rows: usize) -> u64 {
    rows.max(1) as u64
}

/// All messages of a host are in one partition, in order.
fn partition_of(host: &str) -> TargetPartition {
    TargetPartition::Of(crc32fast::hash(host.as_bytes()))
}

/// A number, of which greater ones are the greatest that messages have.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
