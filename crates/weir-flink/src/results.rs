//! [`JobResults`]: the rows that a job has written to Kafka, each once.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use weir_forward::{BrokerError, BrokerReader, BrokerRecord, ReadRecord};
use weir_model::{Batch, Column, Field, Nanos, Schema, Shape, Symbol, Type, Value};
use weir_sink::{InstantUnit, ResultSchema};

/// The field with the end of a window.
const WINDOW_END: &str = "window_end";

/// The records at the end of each partition in which the last end of a window is looked for.
const LAST_RECORDS: i64 = 1_000;

/// The rows that are remembered, to recognize one that is written again.
const ROWS_REMEMBERED: usize = 100_000;

/// How long a request for records waits that do not exist yet.
const READ_WAIT: Duration = Duration::from_millis(200);

/// What the rows of a topic of results are: a message of topic `PREFIX.queries`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobDescription {
    /// The topic of the rows.
    pub topic: String,
    /// The name of the query.
    pub query: String,
    /// Its text.
    pub text: String,
    /// The columns of the rows, after the end of the window.
    pub columns: Vec<ResultColumn>,
}

/// A column of the rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultColumn {
    /// The name in the messages.
    pub field: String,
    /// The column of the query.
    pub column: Field,
}

impl JobDescription {
    /// The topic of the descriptions.
    pub fn topic(prefix: &str) -> String {
        format!("{prefix}.queries")
    }

    /// The message.
    pub fn record(&self) -> BrokerRecord {
        BrokerRecord {
            key: self.topic.clone().into_bytes(),
            value: serde_json::to_vec(self).expect("a description is JSON"),
        }
    }

    /// The last description of a topic of results, if there is one.
    ///
    /// # Errors
    /// If the brokers cannot be reached.
    pub fn find(
        reader: &mut dyn BrokerReader,
        prefix: &str,
        results: &str,
    ) -> Result<Option<JobDescription>, BrokerError> {
        let topic = JobDescription::topic(prefix);
        if reader.existing(&topic)?.is_none() {
            return Ok(None);
        }
        let mut last = None;
        let (mut at, end) = reader.offsets(&topic, 0)?;
        while at < end {
            let records = reader.read(&topic, 0, at, READ_WAIT)?;
            for ReadRecord { offset, record } in records {
                at = at.max(offset + 1);
                if record.key == results.as_bytes()
                    && let Ok(description) = serde_json::from_slice(&record.value)
                {
                    last = Some(description);
                }
            }
        }
        Ok(last)
    }

    /// The description of the rows as output: rows of a stream at the end of their window.
    pub fn schema(&self, raw: bool) -> ResultSchema {
        let fields = self.columns.iter().map(|c| c.column.clone());
        ResultSchema {
            schema: Arc::new(Schema {
                fields: fields.collect(),
            }),
            shape: Shape::Stream,
            clock: InstantUnit::Nanoseconds,
            order: Vec::new(),
            raw,
        }
    }
}

/// The last end of a window in the last records of a topic.
///
/// # Errors
/// If the brokers cannot be reached.
pub fn last_window_end(
    reader: &mut dyn BrokerReader,
    topic: &str,
    partitions: u32,
) -> Result<Option<Nanos>, BrokerError> {
    let mut last = None;
    for partition in 0..partitions {
        let (first, end) = reader.offsets(topic, partition)?;
        let mut at = first.max(end - LAST_RECORDS);
        while at < end {
            for found in reader.read(topic, partition, at, READ_WAIT)? {
                at = at.max(found.offset + 1);
                let value: Option<Json> = serde_json::from_slice(&found.record.value).ok();
                last = last.max(value.and_then(|value| window_end(&value)));
            }
        }
    }
    Ok(last)
}

/// The end of a row's window.
fn window_end(row: &Json) -> Option<Nanos> {
    let text = row[WINDOW_END].as_str()?;
    let instant = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    i64::try_from(instant.unix_timestamp_nanos()).ok()
}

/// The rows of a topic of results, from some place on.
pub struct JobResults {
    description: JobDescription,
    /// The next record of each partition.
    next: Vec<i64>,
    /// The values of the last rows by their keys, and these in the order of their rows.
    rows: HashMap<Vec<u8>, Vec<u8>>,
    keys: VecDeque<Vec<u8>>,
    /// Rows that were written again.
    repeated: u64,
    /// Records that are no rows of this query.
    unreadable: u64,
}

impl JobResults {
    /// Reads from the first record that is kept, or from the next one that is written.
    ///
    /// # Errors
    /// If the brokers cannot be reached.
    pub fn open(
        reader: &mut dyn BrokerReader,
        description: JobDescription,
        from_start: bool,
    ) -> Result<JobResults, BrokerError> {
        let partitions = reader.existing(&description.topic)?.unwrap_or(0);
        let mut next = Vec::new();
        for partition in 0..partitions {
            let (first, end) = reader.offsets(&description.topic, partition)?;
            next.push(if from_start { first } else { end });
        }
        Ok(JobResults {
            description,
            next,
            rows: HashMap::new(),
            keys: VecDeque::new(),
            repeated: 0,
            unreadable: 0,
        })
    }

    /// The rows that were written since the last call, in the order of each partition; waits for
    /// some at most a fraction of a second for each partition.
    ///
    /// # Errors
    /// If the brokers cannot be reached; what follows is read by the next call.
    pub fn next(&mut self, reader: &mut dyn BrokerReader) -> Result<Batch, BrokerError> {
        let mut found = Vec::new();
        for partition in 0..self.next.len() {
            let at = self.next[partition];
            let records = reader.read(&self.description.topic, partition as u32, at, READ_WAIT)?;
            for ReadRecord { offset, record } in records {
                self.next[partition] = self.next[partition].max(offset + 1);
                found.extend(self.row(record));
            }
        }
        // Of one instant, in the order in which they were written.
        found.sort_by_key(|(ts, _)| *ts);
        let (ts, rows): (Vec<Nanos>, Vec<Vec<Value>>) = found.into_iter().unzip();
        let columns = self.description.columns.iter().enumerate();
        let columns = columns.map(|(at, column)| {
            let values = rows.iter().map(|row| row[at].clone());
            Column::from_values(column.column.ty, values)
        });
        Ok(Batch::stream(ts, columns.collect()))
    }

    /// Rows that Flink has written more than once, and records that are no rows of this query.
    pub fn skipped(&self) -> (u64, u64) {
        (self.repeated, self.unreadable)
    }

    /// The row of a record, unless it was there before with the same values.
    fn row(&mut self, record: BrokerRecord) -> Option<(Nanos, Vec<Value>)> {
        if self.rows.get(&record.key) == Some(&record.value) {
            self.repeated += 1;
            return None;
        }
        let parsed: Option<Json> = serde_json::from_slice(&record.value).ok();
        let found = parsed.and_then(|row| {
            let columns = self.description.columns.iter();
            let values = columns.map(|column| value(column.column.ty, &row[column.field.as_str()]));
            Some((window_end(&row)?, values.collect::<Option<Vec<Value>>>()?))
        });
        if found.is_none() {
            self.unreadable += 1;
            return None;
        }
        if self.rows.insert(record.key.clone(), record.value).is_none() {
            self.keys.push_back(record.key);
        }
        while self.keys.len() > ROWS_REMEMBERED {
            let oldest = self.keys.pop_front().expect("there are some");
            self.rows.remove(&oldest);
        }
        found
    }
}

/// A value in JSON as one of CQL, if it has this type.
fn value(ty: Type, json: &Json) -> Option<Value> {
    if json.is_null() {
        return Some(Value::Null);
    }
    Some(match ty {
        Type::Bool => Value::Bool(json.as_bool()?),
        Type::Int | Type::Time => Value::Int(json.as_i64()?),
        Type::Float => Value::Float(json.as_f64()?),
        _ => Value::Text(Symbol::new(json.as_str()?)),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use weir_forward::{Broker, PartitionBatch};

    use super::*;

    /// Topics in memory, of one partition; a request returns at most two records.
    #[derive(Default)]
    struct Topics(BTreeMap<String, Vec<BrokerRecord>>);

    impl Topics {
        fn add(&mut self, topic: &str, key: &str, value: &str) {
            let record = BrokerRecord {
                key: key.into(),
                value: value.into(),
            };
            self.0.entry(topic.into()).or_default().push(record);
        }
    }

    impl Broker for Topics {
        fn partitions(&mut self, _: &str) -> Result<u32, BrokerError> {
            Ok(1)
        }

        fn append(&mut self, batches: Vec<PartitionBatch>) -> Vec<Result<(), BrokerError>> {
            let append = |batch: PartitionBatch| {
                self.0.entry(batch.topic).or_default().extend(batch.records);
                Ok(())
            };
            batches.into_iter().map(append).collect()
        }
    }

    impl BrokerReader for Topics {
        fn existing(&mut self, topic: &str) -> Result<Option<u32>, BrokerError> {
            Ok(self.0.contains_key(topic).then_some(1))
        }

        fn offsets(&mut self, topic: &str, _: u32) -> Result<(i64, i64), BrokerError> {
            Ok((0, self.0[topic].len() as i64))
        }

        fn read(
            &mut self,
            topic: &str,
            _: u32,
            offset: i64,
            _: Duration,
        ) -> Result<Vec<ReadRecord>, BrokerError> {
            let records = self.0[topic].iter().zip(0..).skip(offset as usize).take(2);
            let record = |(record, offset): (&BrokerRecord, i64)| ReadRecord {
                offset,
                record: record.clone(),
            };
            Ok(records.map(record).collect())
        }
    }

    fn description() -> JobDescription {
        let column = |name: &str, ty| ResultColumn {
            field: name.into(),
            column: Field::new(name, ty),
        };
        JobDescription {
            topic: "t".into(),
            query: "load".into(),
            text: "select ..".into(),
            columns: vec![column("vm", Type::Text), column("n", Type::Int)],
        }
    }

    fn rows(batch: &Batch) -> Vec<String> {
        let row = |at: usize| format!("{} {:?}", batch.ts[at], batch.row(at));
        (0..batch.len()).map(row).collect()
    }

    #[test]
    fn a_row_that_is_written_again_is_there_once_and_a_changed_one_again() {
        let mut topics = Topics::default();
        let first = r#"{"window_end":"1970-01-01T00:00:01Z","vm":"a","n":1}"#;
        let second = r#"{"window_end":"1970-01-01T00:00:01.5Z","vm":null,"n":2}"#;
        let changed = r#"{"window_end":"1970-01-01T00:00:01Z","vm":"a","n":3}"#;
        for (key, value) in [
            ("1a", first),
            ("2", second),
            ("1a", first),
            ("x", "no JSON"),
            (
                "y",
                r#"{"window_end":"1970-01-01T00:00:02Z","vm":"a","n":"many"}"#,
            ),
            ("1a", changed),
        ] {
            topics.add("t", key, value);
        }
        let mut results = JobResults::open(&mut topics, description(), true).unwrap();
        let mut found = Vec::new();
        for _ in 0..4 {
            found.extend(rows(&results.next(&mut topics).unwrap()));
        }
        let row = |ts: i64, vm: Value, n: i64| format!("{ts} {:?}", vec![vm, Value::Int(n)]);
        let a = || Value::Text(Symbol::new("a"));
        let expected = [
            row(1_000_000_000, a(), 1),
            row(1_500_000_000, Value::Null, 2),
            row(1_000_000_000, a(), 3),
        ];
        assert_eq!(found, expected);
        assert_eq!(results.skipped(), (1, 2));
        assert_eq!(
            last_window_end(&mut topics, "t", 1),
            Ok(Some(2_000_000_000))
        );
        let mut results = JobResults::open(&mut topics, description(), false).unwrap();
        assert!(results.next(&mut topics).unwrap().is_empty());
    }

    #[test]
    fn the_last_description_of_a_topic_counts() {
        let mut topics = Topics::default();
        let found = JobDescription::find(&mut topics, "p", "t").unwrap();
        assert_eq!(found, None);
        let other = JobDescription {
            topic: "u".into(),
            ..description()
        };
        let last = JobDescription {
            text: "changed".into(),
            ..description()
        };
        let records = [description(), other, last.clone()].map(|d| d.record());
        topics.0.insert("p.queries".into(), records.to_vec());
        topics.add("p.queries", "t", "no JSON");
        let found = JobDescription::find(&mut topics, "p", "t").unwrap();
        assert_eq!(found, Some(last));
    }
}
