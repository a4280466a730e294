//! [`JobResults`]: the rows that a job has written to Kafka, each once.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use weir_forward::{BrokerError, BrokerReader, BrokerRecord, ReadRecord, descriptions_topic};
use weir_model::{
    Batch, Column, Field, NANOS_PER_SECOND, Nanos, Schema, Shape, Symbol, Tally, Type, Value,
};
use weir_query::flink::ColumnType;
use weir_sink::{InstantUnit, ResultSchema};

use crate::placement::JobSpec;

/// The field with the end of a window.
const WINDOW_END: &str = "window_end";

/// The records at the end of each partition in which the last end of a window is looked for.
const LAST_RECORDS: i64 = 1_000;

/// The rows that are remembered, to recognize one that is written again: those of the last windows,
/// and how many at most.
const REMEMBERED: Nanos = 600 * NANOS_PER_SECOND;
const ROWS_REMEMBERED_MAX: usize = 1_000_000;

/// Requests without a record after which the rest of a partition has none that can be read.
const EMPTY_READS_MAX: usize = 5;

/// How often the number of partitions is read.
const PARTITIONS_EVERY: Duration = Duration::from_secs(60);

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
    /// What the job reads: topics, and the names of rows in topics of all queries.
    #[serde(default)]
    pub sources: BTreeSet<String>,
    /// The time since which jobs have read this, in nanoseconds since 1970; `None` if the first one
    /// did.
    #[serde(default)]
    pub since: Option<Nanos>,
}

/// A column of the rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultColumn {
    /// The name in the messages.
    pub field: String,
    /// The column of the query.
    pub column: Field,
    /// The type of the values of a tally.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<Type>,
}

impl ResultColumn {
    /// A column of the query, with its name and its type in Flink.
    pub fn new(field: &str, ty: ColumnType, column: Field) -> ResultColumn {
        ResultColumn {
            field: field.to_owned(),
            column,
            values: match ty {
                ColumnType::Single(_) => None,
                ColumnType::Tally(values) => Some(values),
            },
        }
    }

    /// Its value in a row.
    fn value(&self, json: &Json) -> Option<Value> {
        match (self.column.ty, self.values) {
            (Type::Tally, Some(ty)) => tally(ty, json),
            (ty, _) => value(ty, json),
        }
    }
}

impl JobDescription {
    /// Whether the job reads what another one reads.
    pub fn reads_as(&self, other: &JobSpec) -> bool {
        self.sources == other.description.sources
    }

    /// Whether the rows that another job reads were there since an instant.
    pub fn has_rows(&self, other: &JobSpec, since: Nanos) -> bool {
        self.reads_as(other) && self.since.is_none_or(|begin| begin <= since)
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
        let found = descriptions(reader, prefix, results)?;
        let mut valid = found.iter().rev();
        Ok(valid.find_map(|record| serde_json::from_slice(&record.value).ok()))
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

/// The descriptions with this key that Kafka has, in order.
///
/// # Errors
/// If the brokers cannot be reached.
pub fn descriptions(
    reader: &mut dyn BrokerReader,
    prefix: &str,
    key: &str,
) -> Result<Vec<BrokerRecord>, BrokerError> {
    let topic = descriptions_topic(prefix);
    let mut found = Vec::new();
    if reader.existing(&topic)?.is_none() {
        return Ok(found);
    }
    let (first, end) = reader.offsets(&topic, 0)?;
    scan(reader, (&topic, 0), first..end, |record| {
        if record.key == key.as_bytes() {
            found.push(record.clone());
        }
    })?;
    Ok(found)
}

/// Calls `found` with the records of a part of a partition.
fn scan(
    reader: &mut dyn BrokerReader,
    (topic, partition): (&str, u32),
    part: Range<i64>,
    mut found: impl FnMut(&BrokerRecord),
) -> Result<(), BrokerError> {
    let mut at = part.start;
    let mut empty = 0;
    // The last ones may be those of transactions, which are not returned.
    while at < part.end && empty < EMPTY_READS_MAX {
        let records = reader.read(topic, partition, at, READ_WAIT)?;
        empty = if records.is_empty() { empty + 1 } else { 0 };
        for ReadRecord { offset, record } in records {
            at = at.max(offset + 1);
            found(&record);
        }
    }
    Ok(())
}

/// The end of the window of the first record of a topic, and the last one in its last records.
///
/// # Errors
/// If the brokers cannot be reached.
pub fn window_ends(
    reader: &mut dyn BrokerReader,
    topic: &str,
    partitions: u32,
) -> Result<Option<(Nanos, Nanos)>, BrokerError> {
    let mut ends = Vec::new();
    for partition in 0..partitions {
        let (first, end) = reader.offsets(topic, partition)?;
        let mut add = |record: &BrokerRecord| {
            let value: Option<Json> = serde_json::from_slice(&record.value).ok();
            ends.extend(value.and_then(|value| window_end(&value)));
        };
        let part = first..end.min(first + 1);
        scan(reader, (topic, partition), part, &mut add)?;
        let part = first.max(end - LAST_RECORDS)..end;
        scan(reader, (topic, partition), part, &mut add)?;
    }
    let first = ends.iter().min().copied();
    Ok(first.zip(ends.iter().max().copied()))
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
    /// When the number of partitions was read.
    read_at: Instant,
    /// Rows that were read and not returned yet.
    pending: Vec<(Nanos, Vec<Value>)>,
    /// The values of the last rows by their keys, and these with the ends of their windows.
    rows: HashMap<Vec<u8>, Vec<u8>>,
    keys: VecDeque<(Nanos, Vec<u8>)>,
    newest: Nanos,
    skipped: SkippedRecords,
}

/// Records that are not printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkippedRecords {
    /// Rows that Flink has written more than once.
    pub repeated: u64,
    /// Records that are no rows of this query.
    pub unreadable: u64,
    /// Records that Kafka had deleted before they were read.
    pub deleted: u64,
}

impl JobResults {
    /// Reads from the first record that is kept, or from the next one that is written.
    ///
    /// # Errors
    /// If the brokers cannot be reached, or there is no such topic.
    pub fn open(
        reader: &mut dyn BrokerReader,
        description: JobDescription,
        from_start: bool,
    ) -> Result<JobResults, BrokerError> {
        let topic = &description.topic;
        let partitions = reader.existing(topic)?.ok_or_else(|| BrokerError {
            why: format!("there is no topic `{topic}`"),
            is_final: true,
        })?;
        let mut next = Vec::new();
        for partition in 0..partitions {
            let (first, end) = reader.offsets(topic, partition)?;
            next.push(if from_start { first } else { end });
        }
        Ok(JobResults {
            description,
            next,
            read_at: Instant::now(),
            pending: Vec::new(),
            rows: HashMap::new(),
            keys: VecDeque::new(),
            newest: Nanos::MIN,
            skipped: SkippedRecords::default(),
        })
    }

    /// The rows that were written since the last call, by the ends of their windows; waits for some
    /// for a fraction of a second.
    ///
    /// # Errors
    /// If the brokers cannot be reached; the next call returns what was read before.
    pub fn next(&mut self, reader: &mut dyn BrokerReader) -> Result<Batch, BrokerError> {
        if self.read_at.elapsed() > PARTITIONS_EVERY {
            let found = reader.existing(&self.description.topic)?.unwrap_or(0);
            // Of a partition that is new, all records are.
            self.next.resize(self.next.len().max(found as usize), 0);
            self.read_at = Instant::now();
        }
        let wait = READ_WAIT / self.next.len() as u32;
        for partition in 0..self.next.len() {
            self.read(reader, partition, wait)?;
        }
        let mut found = std::mem::take(&mut self.pending);
        // Of one window, in the order in which they were written.
        found.sort_by_key(|(ts, _)| *ts);
        let (ts, rows): (Vec<Nanos>, Vec<Vec<Value>>) = found.into_iter().unzip();
        let columns = self.description.columns.iter().enumerate();
        let columns = columns.map(|(at, column)| {
            let values = rows.iter().map(|row| row[at].clone());
            Column::from_values(column.column.ty, values)
        });
        Ok(Batch::stream(ts, columns.collect()))
    }

    /// The records that were not returned so far.
    pub fn skipped(&self) -> SkippedRecords {
        self.skipped
    }

    fn read(
        &mut self,
        reader: &mut dyn BrokerReader,
        partition: usize,
        wait: Duration,
    ) -> Result<(), BrokerError> {
        let (topic, number) = (self.description.topic.clone(), partition as u32);
        let at = self.next[partition];
        let records = match reader.read(&topic, number, at, wait) {
            Ok(records) => records,
            Err(error) => {
                // Records may have been deleted, or the topic was created anew.
                let (first, end) = reader.offsets(&topic, number)?;
                if (first..=end).contains(&at) {
                    return Err(error);
                }
                self.skipped.deleted += u64::try_from(first - at).unwrap_or(0);
                self.next[partition] = first;
                return Ok(());
            }
        };
        for ReadRecord { offset, record } in records {
            self.next[partition] = self.next[partition].max(offset + 1);
            let row = self.row(record);
            self.pending.extend(row);
        }
        Ok(())
    }

    /// The row of a record, unless it was there before with the same values.
    fn row(&mut self, record: BrokerRecord) -> Option<(Nanos, Vec<Value>)> {
        if self.rows.get(&record.key) == Some(&record.value) {
            self.skipped.repeated += 1;
            return None;
        }
        let parsed: Option<Json> = serde_json::from_slice(&record.value).ok();
        let found = parsed.and_then(|row| {
            let columns = self.description.columns.iter();
            // Flink writes NULLs: a row without a field is of another query.
            let values = columns.map(|c| c.value(row.get(&c.field)?));
            Some((window_end(&row)?, values.collect::<Option<Vec<Value>>>()?))
        });
        let Some((end, _)) = &found else {
            self.skipped.unreadable += 1;
            return None;
        };
        self.newest = self.newest.max(*end);
        if self.rows.insert(record.key.clone(), record.value).is_none() {
            self.keys.push_back((*end, record.key));
        }
        let is_old = |end: Nanos| end < self.newest.saturating_sub(REMEMBERED);
        while self.keys.front().is_some_and(|(end, _)| is_old(*end))
            || self.keys.len() > ROWS_REMEMBERED_MAX
        {
            let (_, oldest) = self.keys.pop_front().expect("there are some");
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
        Type::Float => Value::Float(match json.as_str() {
            Some("NaN") => f64::NAN,
            Some("Infinity") => f64::INFINITY,
            Some("-Infinity") => f64::NEG_INFINITY,
            _ => json.as_f64()?,
        }),
        _ => Value::Text(Symbol::new(json.as_str()?)),
    })
}

/// A tally: an array of objects with a value of this type and its count.
fn tally(ty: Type, json: &Json) -> Option<Value> {
    if json.is_null() {
        return Some(Value::Null);
    }
    let entries = json.as_array()?.iter().map(|entry| {
        let count = entry.get("count")?.as_i64()?;
        Some((value(ty, entry.get("value")?)?, count))
    });
    let entries = entries.collect::<Option<Vec<(Value, i64)>>>()?;
    Some(Value::Tally(Arc::new(Tally(entries))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use weir_forward::{Broker, PartitionBatch};

    use super::*;

    /// Topics in memory; a request returns at most two records. The first records of a partition
    /// may be deleted, and one of its requests may fail.
    #[derive(Default)]
    struct Topics {
        records: BTreeMap<(String, u32), Vec<BrokerRecord>>,
        deleted: i64,
        failing: Option<u32>,
    }

    impl Topics {
        fn add(&mut self, topic: &str, partition: u32, (key, value): (&str, &str)) {
            let record = BrokerRecord {
                key: key.into(),
                value: value.into(),
            };
            let records = self.records.entry((topic.into(), partition));
            records.or_default().push(record);
        }
    }

    impl Broker for Topics {
        fn partitions(&mut self, topic: &str) -> Result<u32, BrokerError> {
            Ok(self.existing(topic)?.unwrap_or(1))
        }

        fn append(&mut self, batches: Vec<PartitionBatch>) -> Vec<Result<(), BrokerError>> {
            let append = |batch: PartitionBatch| {
                let records = self.records.entry((batch.topic, batch.partition));
                records.or_default().extend(batch.records);
                Ok(())
            };
            batches.into_iter().map(append).collect()
        }
    }

    impl BrokerReader for Topics {
        fn existing(&mut self, topic: &str) -> Result<Option<u32>, BrokerError> {
            let count = self.records.keys().filter(|(of, _)| of == topic).count();
            Ok((count > 0).then_some(count as u32))
        }

        fn topics(&mut self, prefix: &str) -> Result<BTreeMap<String, u32>, BrokerError> {
            let mut topics = BTreeMap::new();
            for (topic, _) in self
                .records
                .keys()
                .filter(|(name, _)| name.starts_with(prefix))
            {
                *topics.entry(topic.clone()).or_default() += 1;
            }
            Ok(topics)
        }

        fn offsets(&mut self, topic: &str, partition: u32) -> Result<(i64, i64), BrokerError> {
            let records = &self.records[&(topic.to_owned(), partition)];
            Ok((self.deleted, records.len() as i64))
        }

        fn read(
            &mut self,
            topic: &str,
            partition: u32,
            offset: i64,
            _: Duration,
        ) -> Result<Vec<ReadRecord>, BrokerError> {
            if self.failing.take_if(|of| *of == partition).is_some() || offset < self.deleted {
                return Err(BrokerError {
                    why: "failed".into(),
                    is_final: false,
                });
            }
            let records = &self.records[&(topic.to_owned(), partition)];
            let records = records.iter().zip(0..).skip(offset as usize).take(2);
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
            values: None,
        };
        JobDescription {
            topic: "t".into(),
            query: "load".into(),
            text: "select ..".into(),
            columns: vec![column("vm", Type::Text), column("n", Type::Int)],
            sources: BTreeSet::new(),
            since: None,
        }
    }

    fn rows(batch: &Batch) -> Vec<String> {
        let row = |at: usize| format!("{} {:?}", batch.ts[at], batch.row(at));
        (0..batch.len()).map(row).collect()
    }

    fn row(ts: i64, vm: Option<&str>, n: i64) -> String {
        let vm = vm.map_or(Value::Null, |vm| Value::Text(Symbol::new(vm)));
        format!("{ts} {:?}", vec![vm, Value::Int(n)])
    }

    const FIRST: (&str, &str) = (
        "1a",
        r#"{"window_end":"1970-01-01T00:00:01Z","vm":"a","n":1}"#,
    );
    const SECOND: (&str, &str) = (
        "2",
        r#"{"window_end":"1970-01-01T00:00:01.5Z","vm":null,"n":2}"#,
    );

    #[test]
    fn a_row_that_is_written_again_is_there_once_and_a_changed_one_again() {
        let mut topics = Topics::default();
        let changed = r#"{"window_end":"1970-01-01T00:00:01Z","vm":"a","n":3}"#;
        let of_others = [
            r#"{"window_end":"1970-01-01T00:00:02Z","vm":"a","n":"many"}"#,
            r#"{"window_end":"1970-01-01T00:00:02Z","vm":"a"}"#,
            "no JSON",
        ];
        for record in [FIRST, SECOND, FIRST, ("1a", changed)] {
            topics.add("t", 0, record);
        }
        for value in of_others {
            topics.add("t", 0, ("x", value));
        }
        let mut results = JobResults::open(&mut topics, description(), true).unwrap();
        let mut found = Vec::new();
        for _ in 0..4 {
            found.extend(rows(&results.next(&mut topics).unwrap()));
        }
        let expected = [
            row(1_000_000_000, Some("a"), 1),
            row(1_500_000_000, None, 2),
            row(1_000_000_000, Some("a"), 3),
        ];
        assert_eq!(found, expected);
        let skipped = SkippedRecords {
            repeated: 1,
            unreadable: 3,
            deleted: 0,
        };
        assert_eq!(results.skipped(), skipped);
        let ends = window_ends(&mut topics, "t", 1);
        assert_eq!(ends, Ok(Some((1_000_000_000, 2_000_000_000))));
        let mut results = JobResults::open(&mut topics, description(), false).unwrap();
        assert!(results.next(&mut topics).unwrap().is_empty());
    }

    #[test]
    fn rows_are_kept_when_another_partition_fails_and_deleted_ones_are_counted() {
        let mut topics = Topics::default();
        topics.add("t", 0, FIRST);
        topics.add("t", 1, SECOND);
        let mut results = JobResults::open(&mut topics, description(), true).unwrap();
        topics.failing = Some(1);
        assert!(results.next(&mut topics).is_err());
        let found = rows(&results.next(&mut topics).unwrap());
        let both = [
            row(1_000_000_000, Some("a"), 1),
            row(1_500_000_000, None, 2),
        ];
        assert_eq!(found, both);

        let mut results = JobResults::open(&mut topics, description(), true).unwrap();
        topics.deleted = 1;
        topics.add("t", 0, SECOND);
        assert!(results.next(&mut topics).unwrap().is_empty());
        let found = rows(&results.next(&mut topics).unwrap());
        assert_eq!(found, [row(1_500_000_000, None, 2)]);
        assert_eq!(results.skipped().deleted, 2);
    }

    #[test]
    fn tallies_are_arrays_of_values_with_counts() {
        let tallies = [
            (
                Type::Int,
                r#"[{"value":4096,"count":2},{"value":null,"count":1}]"#,
            ),
            (
                Type::Float,
                r#"[{"value":0.5,"count":2},{"value":4,"count":1}]"#,
            ),
            (Type::Float, r#"[{"value":"NaN","count":2}]"#),
            (Type::Text, r#"[{"value":"NaN","count":2}]"#),
            (Type::Bool, r#"[{"value":false,"count":1}]"#),
            (Type::Text, "null"),
            (Type::Int, r#"[{"value":"a","count":1}]"#),
            (Type::Int, r#"[{"value":1}]"#),
        ];
        let found = tallies.map(|(ty, json)| {
            let column = Field::new("t", Type::Tally);
            let column = ResultColumn::new("t", ColumnType::Tally(ty), column);
            let stored = serde_json::to_string(&column).unwrap();
            assert_eq!(
                serde_json::from_str::<ResultColumn>(&stored).unwrap(),
                column
            );
            column.value(&serde_json::from_str(json).unwrap())
        });
        let tally = |entries: &[(Value, i64)]| Some(Value::Tally(Arc::new(Tally(entries.into()))));
        let expected = [
            tally(&[(Value::Int(4096), 2), (Value::Null, 1)]),
            tally(&[(Value::Float(0.5), 2), (Value::Float(4.0), 1)]),
            tally(&[(Value::Float(f64::NAN), 2)]),
            tally(&[(Value::text("NaN"), 2)]),
            tally(&[(Value::Bool(false), 1)]),
            Some(Value::Null),
            None,
            None,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn without_a_topic_there_are_no_results() {
        let why = JobResults::open(&mut Topics::default(), description(), true).err();
        assert!(why.is_some_and(|why| why.to_string().contains("no topic `t`")));
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
        let batch = PartitionBatch {
            topic: "p.queries".into(),
            partition: 0,
            records: [description(), other, last.clone()]
                .map(|d| d.record())
                .to_vec(),
        };
        topics.append(vec![batch]);
        topics.add("p.queries", 0, ("t", "no JSON"));
        let found = JobDescription::find(&mut topics, "p", "t").unwrap();
        assert_eq!(found, Some(last));
    }
}
