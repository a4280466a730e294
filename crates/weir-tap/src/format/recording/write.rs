//! [`RecordingWriter`]: writes batches as a recording that is readable up to the last row group at
//! any time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::SchemaRef;
use parquet::arrow::{ArrowWriter, encode_arrow_schema};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use weir_model::{Batch, Type};

use super::super::write::{Header, TraceWriter};
use super::folded::{ADDED, BLOCK, BLOCK_ROWS, REQUEST, REQUEST_AGENT_TS, REQUEST_MONITOR_TS};
use super::stored::Stored;
use super::unfold::joined_batches;
use super::{
    CLOSED_KEY, EVENTS_KEY, HOST_KEY, KERNEL_KEY, PAIRED_KEY, PART, PREVIOUS_KEY, RESPONSES_KEY,
    SOURCE_KEY, VERSION, VERSION_KEY, losses,
};
use crate::{EventCount, TapError};

/// Events, or rows of another stream, after which a row group is written.
pub const GROUP_ROWS: usize = 128 << 10;

/// Events of a block: a response contains its request if both are in one. More events take longer
/// to be written at once, in which time the buffers of a live tap have to hold what follows.
const BLOCK_EVENTS: usize = 16 << 10;

/// A row group is written at the latest after this time,
const GROUP_TIME_MIN: Duration = Duration::from_secs(5);
/// or, in a long recording, after this time, to avoid many small row groups.
const GROUP_TIME_MAX: Duration = Duration::from_secs(60);

/// Footers of the whole file may occupy this size,
const WHOLE_FOOTERS_BYTES: usize = 1 << 20;
/// and this part of the file.
const WHOLE_FOOTERS_SHARE: usize = 32;

/// Columns of numbers that seldom repeat: delta encoding is faster and smaller than a dictionary.
const DELTA_CODED: [&str; 20] = [
    "ts",
    "issue_ts",
    "seek",
    "interarrival",
    "agent_ts",
    "monitor_ts",
    REQUEST_AGENT_TS,
    REQUEST_MONITOR_TS,
    BLOCK,
    BLOCK_ROWS,
    REQUEST,
    "weir.vsector",
    "weir.service",
    "weir.seek",
    "weir.issue_ts",
    "weir.interarrival",
    "weir.req_id",
    "req_id",
    "sector",
    "service",
];

/// Columns of numbers whose neighbours are independent and whose high bytes repeat: zstd compresses
/// the bytes of one significance better than differences.
const SPLIT_CODED: [&str; 3] = ["wait", "latency", "in_flight"];

/// Key of the Arrow schema in a footer, as every Arrow library reads it.
const ARROW_SCHEMA_KEY: &str = "ARROW:schema";

/// Writes a recording.
pub struct RecordingWriter {
    path: PathBuf,
    stored: Stored,
    arrow_schema: SchemaRef,
    header: Header,
    writer: ArrowWriter<File>,
    counts: Vec<EventCount>,
    /// Rows of a block that is not yet complete.
    pending: Vec<Batch>,
    rows_pending: usize,
    /// Rows of the batches that were written.
    rows_written: i64,
    rows_in_group: usize,
    opened: Instant,
    group_opened: Instant,
    footers: Footers,
}

/// The size of the footers so far.
#[derive(Default)]
struct Footers {
    whole_bytes: usize,
    /// Bytes per row group in the last footer.
    bytes_per_group: usize,
    /// Row groups in the footers so far.
    groups: usize,
    /// End offset of the last footer.
    end: usize,
}

/// Creates or overwrites a recording at `path`.
///
/// # Errors
/// If the file cannot be written.
pub fn create(path: &Path, header: &Header) -> Result<Box<dyn TraceWriter>, TapError> {
    Ok(Box::new(RecordingWriter::create(path, header)?))
}

impl RecordingWriter {
    /// As [`create`].
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(path: &Path, header: &Header) -> Result<RecordingWriter, TapError> {
        let failed = |error| TapError::File {
            path: path.into(),
            error,
        };
        let stored = Stored::new(&header.stream);
        let stored = stored.map_err(|why| failed(std::io::Error::other(why)))?;
        let arrow_schema = stored.arrow_schema();
        let file = File::create(path).map_err(failed)?;
        let properties = properties(&stored);
        let writer = ArrowWriter::try_new(file, arrow_schema.clone(), Some(properties));
        let writer = writer.map_err(|e| failed(std::io::Error::other(e)))?;
        let mut recording = RecordingWriter {
            path: path.into(),
            stored,
            arrow_schema,
            header: header.clone(),
            writer,
            counts: Vec::new(),
            pending: Vec::new(),
            rows_pending: 0,
            rows_written: 0,
            rows_in_group: 0,
            opened: Instant::now(),
            group_opened: Instant::now(),
            footers: Footers::default(),
        };
        recording.write_footer()?;
        Ok(recording)
    }

    /// Writes the current row group and a footer, so that the rows so far survive a crash of this
    /// process. [`TraceWriter::write`] does so periodically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush_group(&mut self) -> Result<(), TapError> {
        self.write_block()?;
        if self.rows_in_group > 0 {
            let flushed = self.writer.flush();
            self.parquet(flushed)?;
            self.rows_in_group = 0;
            self.write_footer()?;
        }
        self.group_opened = Instant::now();
        Ok(())
    }

    /// Writes the rows of a block.
    fn write_block(&mut self) -> Result<(), TapError> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let block = joined_batches(&pending);
        let rows = self
            .stored
            .rows(&block, self.rows_written, &self.arrow_schema);
        let written = self.writer.write(&rows);
        self.parquet(written)?;
        self.rows_written += block.len() as i64;
        self.rows_in_group += block.len();
        self.rows_pending = 0;
        Ok(())
    }

    fn write_footer(&mut self) -> Result<(), TapError> {
        let groups = self.writer.flushed_row_groups();
        let whole_estimate = self.footers.bytes_per_group * groups.len();
        let allowed = WHOLE_FOOTERS_BYTES + self.writer.bytes_written() / WHOLE_FOOTERS_SHARE;
        let whole = self.footers.whole_bytes + whole_estimate <= allowed;
        let covered = match whole {
            true => groups,
            false => &groups[self.footers.groups..],
        };
        let mut keys = self.keys(false);
        if !whole {
            keys.push(KeyValue::new(
                PREVIOUS_KEY.into(),
                self.footers.end.to_string(),
            ));
        }
        keys.push(KeyValue::new(
            ARROW_SCHEMA_KEY.into(),
            encode_arrow_schema(&self.arrow_schema),
        ));
        let footer = self.footer(covered.to_vec(), keys);
        let mut footer = self.parquet(footer)?;
        if whole {
            self.footers.whole_bytes += footer.len();
        } else {
            let magic = footer.len() - PART.len();
            footer[magic..].copy_from_slice(&PART);
        }
        self.footers.bytes_per_group = footer.len() / covered.len().max(1);
        self.footers.groups = groups.len();
        let written = self
            .writer
            .write_all(&footer)
            .and_then(|()| self.writer.sync());
        written.map_err(|error| TapError::File {
            path: self.path.clone(),
            error,
        })?;
        self.footers.end = self.writer.bytes_written();
        Ok(())
    }

    /// The bytes of a footer of these row groups.
    fn footer(
        &self,
        groups: Vec<RowGroupMetaData>,
        keys: Vec<KeyValue>,
    ) -> Result<Vec<u8>, ParquetError> {
        let rows = groups.iter().map(RowGroupMetaData::num_rows).sum();
        let schema = parquet::arrow::ArrowSchemaConverter::new().convert(&self.arrow_schema)?;
        let created_by = format!("weir {}", env!("CARGO_PKG_VERSION"));
        let file = FileMetaData::new(
            1,
            rows,
            Some(created_by),
            Some(keys),
            Arc::new(schema),
            None,
        );
        let mut bytes = Vec::new();
        let metadata = ParquetMetaData::new(file, groups);
        ParquetMetaDataWriter::new(&mut bytes, &metadata).finish()?;
        Ok(bytes)
    }

    fn keys(&self, closed: bool) -> Vec<KeyValue> {
        let responses = match self.header.responses_assumed {
            true => "assumed",
            false => "known",
        };
        let mut keys = vec![
            KeyValue::new(VERSION_KEY.into(), VERSION.to_owned()),
            KeyValue::new(SOURCE_KEY.into(), self.header.source.clone()),
            KeyValue::new(RESPONSES_KEY.into(), responses.to_owned()),
            KeyValue::new(PAIRED_KEY.into(), self.header.paired.to_string()),
            KeyValue::new(CLOSED_KEY.into(), closed.to_string()),
            KeyValue::new(EVENTS_KEY.into(), self.rows_written.to_string()),
        ];
        for (key, text) in [
            (HOST_KEY, &self.header.host),
            (KERNEL_KEY, &self.header.kernel),
        ] {
            keys.extend(
                text.iter()
                    .map(|text| KeyValue::new(key.into(), text.clone())),
            );
        }
        let of_stream = self.stored.keys().into_iter();
        keys.extend(of_stream.map(|(key, text)| KeyValue::new(key.into(), text)));
        for count in &self.counts {
            keys.push(KeyValue::new(losses::key(count), count.total.to_string()));
        }
        keys
    }

    fn parquet<T>(&self, result: Result<T, ParquetError>) -> Result<T, TapError> {
        result.map_err(|error| TapError::File {
            path: self.path.clone(),
            error: std::io::Error::other(error),
        })
    }

    fn group_is_due(&self) -> bool {
        let timeout = (self.opened.elapsed() / 16).clamp(GROUP_TIME_MIN, GROUP_TIME_MAX);
        self.rows_in_group + self.rows_pending >= GROUP_ROWS
            || self.group_opened.elapsed() >= timeout
    }
}

fn properties(stored: &Stored) -> WriterProperties {
    let builder = WriterProperties::builder()
        .set_created_by(format!("weir {}", env!("CARGO_PKG_VERSION")))
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(Some(2 * GROUP_ROWS));
    let fields = stored.declaration.schema.fields.iter().chain(&*ADDED);
    let of_numbers = fields.filter(|f| matches!(f.ty, Type::Int | Type::Time));
    let encoding = |name: &str| match name {
        _ if DELTA_CODED.contains(&name) => Some(Encoding::DELTA_BINARY_PACKED),
        _ if SPLIT_CODED.contains(&name) => Some(Encoding::BYTE_STREAM_SPLIT),
        _ => None,
    };
    let names = of_numbers.map(|field| field.name.as_str());
    let encoded = names.filter_map(|name| Some((name, encoding(name)?)));
    let builder = encoded.fold(builder, |builder, (name, encoding)| {
        let column = ColumnPath::from(name);
        builder
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, encoding)
    });
    builder.build()
}

impl TraceWriter for RecordingWriter {
    fn write(&mut self, batch: &Batch) -> Result<(), TapError> {
        if !batch.is_empty() {
            for start in (0..batch.len()).step_by(BLOCK_EVENTS) {
                let part = batch.slice(start, BLOCK_EVENTS.min(batch.len() - start));
                self.rows_pending += part.len();
                self.pending.push(part);
                if self.rows_pending >= BLOCK_EVENTS {
                    self.write_block()?;
                }
            }
        }
        match self.group_is_due() {
            true => self.flush_group(),
            false => Ok(()),
        }
    }

    fn count(&mut self, counts: Vec<EventCount>) {
        self.counts = counts;
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, TapError> {
        self.write_block()?;
        for key in self.keys(true) {
            self.writer.append_key_value_metadata(key);
        }
        let finished = self.writer.finish();
        self.parquet(finished)?;
        Ok(Vec::new())
    }
}
