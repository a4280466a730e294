//! [`RecordingTap`]: a recording as a tap. Only the columns that the demands name are read.

use std::collections::VecDeque;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::{DataType, FieldRef, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};
use weir_model::event::{io_schema, iostream_schema};
use weir_model::{Batch, Column, Demand, EventKind, Nanos, Schema};

use super::super::Source;
use super::super::fault::{Faults, LATE, MALFORMED};
use super::super::replay::before;
use super::column::from_arrow;
use super::recover::{Found, read_footer, value};
use super::{COUNT_PREFIX, PAIRED_KEY, RESPONSES_KEY, VERSION, VERSION_KEY};
use crate::{Count, RECORDING, Said, Tap, TapError};

/// The counter of what a source lost.
const EVENTS_LOST: &str = "events_lost";

/// Rows read at a time.
const BATCH_ROWS: usize = 4096;

/// A recording as a tap.
pub struct RecordingTap {
    input: Chunks,
    metadata: ArrowReaderMetadata,
    schema: Schema,
    /// For each column of the schema, where it is in the batches that are read.
    columns: Vec<Option<usize>>,
    mask: ProjectionMask,
    demands: Vec<Demand>,
    responses_assumed: bool,
    faults: Faults,
    group: usize,
    reader: Option<ParquetRecordBatchReader>,
    rows_in_group: i64,
    said: VecDeque<Said>,
    ended: bool,
    last_ts: Nanos,
    rows_read: i64,
    bytes_lost: u64,
}

/// A file, or bytes in memory.
enum Chunks {
    File(File),
    Bytes(Bytes),
}

/// Opens a recording.
///
/// # Errors
/// When the file cannot be read, is no recording, or has no footer anywhere.
pub fn open(source: &Source, demands: &[Demand], strict: bool) -> Result<Box<dyn Tap>, TapError> {
    let malformed = |reason: String| TapError::Malformed {
        path: source.path().into(),
        offset: 0,
        reason,
    };
    let input = Chunks::open(source)?;
    let (metadata, bytes_lost) = metadata_of(&input).map_err(malformed)?;
    let schema = io_schema();
    let (columns, mask) = columns_to_read(&metadata, &schema, demands).map_err(malformed)?;
    Ok(Box::new(RecordingTap {
        columns,
        mask,
        responses_assumed: value(metadata.metadata(), RESPONSES_KEY) == Some("assumed"),
        input,
        metadata,
        schema,
        demands: demands.to_vec(),
        faults: Faults::new(source.path(), strict),
        group: 0,
        reader: None,
        rows_in_group: 0,
        said: VecDeque::new(),
        ended: false,
        last_ts: Nanos::MIN,
        rows_read: 0,
        bytes_lost,
    }))
}

/// The metadata of a recording, and how many bytes behind it a crash has left.
fn metadata_of(input: &Chunks) -> Result<(ArrowReaderMetadata, u64), String> {
    let (metadata, bytes_lost) = guarded(|| {
        let found = input.read_footer()?;
        let metadata = Arc::new(found.metadata);
        let stored = ArrowReaderMetadata::try_new(metadata.clone(), ArrowReaderOptions::new())?;
        let options = ArrowReaderOptions::new().with_schema(with_texts_as_views(stored.schema()));
        Ok((
            ArrowReaderMetadata::try_new(metadata, options)?,
            found.bytes_lost,
        ))
    })?;
    match value(metadata.metadata(), VERSION_KEY) {
        Some(version) if version != VERSION => Err(format!(
            "a recording of version {version}; this weir reads {VERSION}"
        )),
        _ => Ok((metadata, bytes_lost)),
    }
}

/// For each column of the schema, where it will be in what is read; and what is to be read: what
/// the demands name, time and type. Columns of NULLs only, as pandas writes them, are left out: the
/// Parquet library panics at some.
fn columns_to_read(
    metadata: &ArrowReaderMetadata,
    schema: &Schema,
    demands: &[Demand],
) -> Result<(Vec<Option<usize>>, ProjectionMask), String> {
    let fields = metadata.schema().fields();
    let needed = |name: &str| name == "ts" || name == "type";
    let wanted = |name: &str| {
        let at = schema.fields.iter().position(|f| f.name == name);
        at.is_some_and(|at| needed(name) || demands.iter().any(|d| d.columns.contains(&at)))
    };
    let all_null = |ty: &DataType| match ty {
        DataType::Dictionary(_, values) => **values == DataType::Null,
        ty => *ty == DataType::Null,
    };
    let read: Vec<usize> = (0..fields.len())
        .filter(|&i| wanted(fields[i].name()) && !all_null(fields[i].data_type()))
        .collect();
    let place = |name: &str| read.iter().position(|&i| fields[i].name() == name);
    if let Some(missing) = ["ts", "type"]
        .into_iter()
        .find(|name| place(name).is_none())
    {
        return Err(format!(
            "a Parquet file without a column `{missing}`: no recording"
        ));
    }
    let columns = schema
        .fields
        .iter()
        .map(|field| place(&field.name))
        .collect();
    let mask = ProjectionMask::roots(metadata.parquet_schema(), read.iter().copied());
    Ok((columns, mask))
}

impl Chunks {
    fn open(source: &Source) -> Result<Chunks, TapError> {
        match source {
            Source::Bytes(_, bytes) => Ok(Chunks::Bytes(bytes.clone().into())),
            Source::File(path) => {
                let file = File::open(path).map_err(|error| TapError::File {
                    path: path.clone(),
                    error,
                })?;
                Ok(Chunks::File(file))
            }
        }
    }

    fn read_footer(&self) -> Result<Found, ParquetError> {
        match self {
            Chunks::File(file) => read_footer(file),
            Chunks::Bytes(bytes) => read_footer(bytes),
        }
    }

    fn len(&self) -> u64 {
        match self {
            Chunks::File(file) => Length::len(file),
            Chunks::Bytes(bytes) => Length::len(bytes),
        }
    }

    fn reader(
        &self,
        metadata: &ArrowReaderMetadata,
        mask: &ProjectionMask,
        group: usize,
    ) -> Result<ParquetRecordBatchReader, ParquetError> {
        fn build<T: ChunkReader + 'static>(
            input: T,
            metadata: &ArrowReaderMetadata,
            mask: &ProjectionMask,
            group: usize,
        ) -> Result<ParquetRecordBatchReader, ParquetError> {
            ParquetRecordBatchReaderBuilder::new_with_metadata(input, metadata.clone())
                .with_projection(mask.clone())
                .with_row_groups(vec![group])
                .with_batch_size(BATCH_ROWS)
                .build()
        }
        match self {
            Chunks::File(file) => build(file.try_clone()?, metadata, mask, group),
            Chunks::Bytes(bytes) => build(bytes.clone(), metadata, mask, group),
        }
    }
}

/// The same columns, with texts as views. As dictionaries, which they are written from, columns
/// without any text would be read 30 times slower (parquet 60: it sorts their NULLs into a
/// dictionary).
fn with_texts_as_views(schema: &SchemaRef) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| {
        let is_text = |ty: &DataType| matches!(ty, DataType::Utf8 | DataType::LargeUtf8);
        match field.data_type() {
            DataType::Dictionary(_, values) if is_text(values) => {
                Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8View))
            }
            ty if is_text(ty) => {
                Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8View))
            }
            _ => field.clone(),
        }
    });
    let fields: Vec<FieldRef> = fields.collect();
    SchemaRef::new(arrow_schema::Schema::new_with_metadata(
        fields,
        schema.metadata().clone(),
    ))
}

/// Runs the Parquet library on bytes that may be anything. It reports most of what is wrong with
/// them as an error and panics at some; neither may end more than this file.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the Parquet library gave up on it".into()),
    }
}

impl RecordingTap {
    /// The next batch of the file, or `None` at its end. A row group that cannot be read is
    /// reported and left.
    fn read(&mut self) -> Result<Option<RecordBatch>, TapError> {
        loop {
            if self.group >= self.metadata.metadata().num_row_groups() {
                return Ok(None);
            }
            let (reader, input) = (&mut self.reader, &self.input);
            let (metadata, mask, group) = (&self.metadata, &self.mask, self.group);
            let next = guarded(|| {
                let reader = match reader {
                    Some(reader) => reader,
                    None => reader.insert(input.reader(metadata, mask, group)?),
                };
                Ok(reader.next().transpose()?)
            });
            match next {
                Ok(Some(batch)) => {
                    self.rows_in_group += batch.num_rows() as i64;
                    return Ok(Some(batch));
                }
                Ok(None) => self.next_group(),
                Err(reason) => {
                    let group = self.metadata.metadata().row_group(self.group);
                    let offset = group.columns().first().map_or(0, |c| c.data_page_offset());
                    let lost = group.num_rows().saturating_sub(self.rows_in_group).max(0);
                    let reason = format!("row group {}: {reason}", self.group);
                    self.faults
                        .bad(u64::try_from(offset).unwrap_or(0), reason)?;
                    self.faults.count("events_lost", MALFORMED, lost);
                    self.next_group();
                }
            }
        }
    }

    fn next_group(&mut self) {
        self.group += 1;
        self.reader = None;
        self.rows_in_group = 0;
    }

    /// Says the rows of a batch to each demand.
    fn say(&mut self, batch: &RecordBatch) -> Result<(), TapError> {
        let first_row = self.rows_read;
        self.rows_read += batch.num_rows() as i64;
        let mut columns = Vec::with_capacity(self.columns.len());
        for (place, field) in self.columns.iter().zip(&self.schema.fields) {
            let column = match place {
                Some(place) => from_arrow(batch.column(*place), field.ty),
                None => Ok(Column::Nulls(batch.num_rows())),
            };
            match column {
                Ok(column) => columns.push(column),
                Err(reason) => {
                    let reason =
                        format!("rows from {first_row} on: column {}: {reason}", field.name);
                    self.faults
                        .count("events_lost", MALFORMED, batch.num_rows() as i64);
                    return self.faults.bad(0, reason);
                }
            }
        }
        let (ts, kinds) = (self.schema.index("ts"), self.schema.index("type"));
        let rows = self.usable(&columns[ts], &columns[kinds], first_row)?;
        let Some(&(last, _, _)) = rows.last() else {
            return Ok(());
        };
        for demand in 0..self.demands.len() {
            if let Some(batch) = self.rows_of(demand, &rows, &columns) {
                self.said.push_back(Said::Rows { demand, batch });
            }
        }
        self.last_ts = last;
        self.said.push_back(Said::Heartbeat(before(last)));
        Ok(())
    }

    /// The rows that have a time, not before the last one, and a type: time, type and position, in
    /// time order.
    fn usable(
        &mut self,
        ts: &Column,
        kinds: &Column,
        first_row: i64,
    ) -> Result<Vec<(Nanos, EventKind, u32)>, TapError> {
        let mut rows = Vec::with_capacity(ts.len());
        let (mut bad, mut late) = (None, 0);
        for row in 0..ts.len() {
            let kind = match kinds {
                Column::Text(ids) if !kinds.is_null(row) => EventKind::ALL
                    .into_iter()
                    .find(|k| k.symbol().id() == ids.value(row)),
                _ => None,
            };
            match (ts, kind) {
                (Column::Int(times), Some(kind)) if !ts.is_null(row) => {
                    let time = times.value(row);
                    match time < self.last_ts {
                        true => late += 1,
                        false => rows.push((time, kind, row as u32)),
                    }
                }
                _ => {
                    bad.get_or_insert(row);
                    self.faults.count("events_lost", MALFORMED, 1);
                }
            }
        }
        if let Some(row) = bad {
            let row = first_row + row as i64;
            self.faults.bad(
                0,
                format!("row {row}: no time, or a type that is none of Q, R, E, N"),
            )?;
        }
        self.faults.count("events_lost", LATE, late);
        if !rows.is_sorted_by_key(|r| r.0) {
            rows.sort_by_key(|r| r.0);
        }
        Ok(rows)
    }

    fn rows_of(
        &self,
        demand: usize,
        rows: &[(Nanos, EventKind, u32)],
        columns: &[Column],
    ) -> Option<Batch> {
        let demand = &self.demands[demand];
        let is = |name: &str| demand.stream.eq_ignore_ascii_case(name);
        let (io, iostream) = (is("IO"), is("IOstream"));
        let wanted = |kind: EventKind| match kind {
            EventKind::Request => !io,
            _ => !(iostream && self.responses_assumed),
        };
        if !io && !iostream && !is(RECORDING) {
            return None;
        }
        let picked: Vec<_> = rows.iter().filter(|(_, kind, _)| wanted(*kind)).collect();
        if picked.is_empty() {
            return None;
        }
        let in_place = picked.len() == columns[0].len()
            && picked
                .iter()
                .enumerate()
                .all(|(i, (_, _, row))| i == *row as usize);
        let indices: UInt32Array = picked.iter().map(|(_, _, row)| *row).collect();
        let width = match iostream {
            true => iostream_schema().len(),
            false => self.schema.len(),
        };
        let columns = columns[..width].iter().enumerate().map(|(i, column)| {
            match (demand.columns.contains(&i), in_place) {
                (false, _) => Column::Nulls(picked.len()),
                (true, true) => column.clone(),
                (true, false) => taken(column, &indices),
            }
        });
        let ts: Vec<Nanos> = picked.iter().map(|(ts, _, _)| *ts).collect();
        Some(Batch::stream(ts, columns.collect()))
    }
}

/// The rows of a column at `indices`.
fn taken(column: &Column, indices: &UInt32Array) -> Column {
    use arrow_array::cast::AsArray;
    use arrow_select::take::take;
    let within = "indices are those of the column's rows";
    match column {
        Column::Int(a) => Column::Int(take(a, indices, None).expect(within).as_primitive().clone()),
        Column::Text(a) => {
            Column::Text(take(a, indices, None).expect(within).as_primitive().clone())
        }
        Column::Float(a) => {
            Column::Float(take(a, indices, None).expect(within).as_primitive().clone())
        }
        Column::Bool(a) => Column::Bool(take(a, indices, None).expect(within).as_boolean().clone()),
        Column::Nulls(_) | Column::Tally(_) | Column::Bytes(_) => {
            Column::Nulls(indices.values().len())
        }
    }
}

impl Tap for RecordingTap {
    fn next(&mut self, _patience: Duration) -> Result<Said, TapError> {
        while self.said.is_empty() && !self.ended {
            match self.read()? {
                Some(batch) => self.say(&batch)?,
                None => self.ended = true,
            }
        }
        Ok(self.said.pop_front().unwrap_or(Said::End))
    }

    fn counts(&mut self) -> Vec<Count> {
        let count = |counter, cause, total| Count {
            counter,
            cause,
            device: None,
            total,
        };
        let mut counts = vec![count("events_in", None, self.rows_read)];
        if self.bytes_lost > 0 {
            counts.push(count("bytes_lost", Some("cut_off"), self.bytes_lost as i64));
        }
        [counts, self.faults.counts()].concat()
    }

    fn progress(&self) -> Option<f64> {
        let rows = self.metadata.metadata().file_metadata().num_rows();
        Some((self.rows_read as f64 / rows.max(1) as f64).clamp(0.0, 1.0))
    }

    fn describe(&self) -> Vec<String> {
        let read = self.columns.iter().flatten().count();
        let mut lines = vec![format!("reads {read} of {} columns", self.columns.len())];
        if self.bytes_lost > 0 {
            lines.push(format!(
                "the recording was cut off: {} of its {} bytes belong to no complete row group",
                self.bytes_lost,
                self.input.len()
            ));
        }
        lines
    }

    fn messages(&self) -> Vec<String> {
        self.faults.messages().to_vec()
    }

    fn responses_assumed(&self) -> bool {
        self.responses_assumed
    }

    fn pairs(&self) -> Result<(), String> {
        let footer = self.metadata.metadata();
        if value(footer, PAIRED_KEY) != Some("true") {
            return Err("the recording does not promise that all its requests are in it".into());
        }
        match events_lost(footer) {
            0 => Ok(()),
            lost => Err(format!("the recording has lost {lost} events")),
        }
    }
}

/// How many events a recording says that its source lost.
fn events_lost(footer: &ParquetMetaData) -> i64 {
    let prefix = format!("{COUNT_PREFIX}{EVENTS_LOST}");
    let keys = footer.file_metadata().key_value_metadata();
    let losses = keys.into_iter().flatten().filter(|kv| {
        let cause = kv.key.strip_prefix(&prefix);
        cause.is_some_and(|cause| cause.is_empty() || cause.starts_with('.'))
    });
    let counts = losses.filter_map(|kv| kv.value.as_ref()?.parse::<i64>().ok());
    counts.fold(0, i64::saturating_add)
}
