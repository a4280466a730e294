//! [`Recording`]: an opened recording, before the demands are known.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{Int64Array, UInt32Array};
use arrow_schema::{DataType, FieldRef, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::statistics::Statistics;
use weir_model::{Capabilities, Column, Symbol, Type};

use super::super::source::Positioned;
use super::super::spool::spool;
use super::super::{FileEnd, Input, Provenance, TraceOptions};
use super::folded::BLOCK;
use super::losses;
use super::pages;
use super::recover::{Found, read_footer, value};
use super::stored::Stored;
use super::{
    CLOSED_KEY, EVENTS_KEY, HOST_KEY, KERNEL_KEY, PAIRED_KEY, RESPONSES_KEY, SOURCE_KEY, VERSION,
    VERSION_KEY, VERSIONS_READ,
};
use crate::{EventCount, TapError, UNFINISHED};

/// Rows per read.
const BATCH_ROWS: usize = 4096;

/// A recording whose footer was read.
pub struct Recording {
    pub(super) path: PathBuf,
    pub(super) strict: bool,
    pub(super) metadata: ArrowReaderMetadata,
    /// Its stream or relation.
    pub stored: Stored,
    file: Positioned,
    /// Bytes after the last footer: a row group whose writing was interrupted.
    bytes_lost: u64,
    /// Bytes that were copied from a pipe to a temporary file.
    bytes_spooled: Option<u64>,
    /// The counts of the recorder.
    recorded: Vec<EventCount>,
}

impl Recording {
    /// Reads the footer. The bytes of a pipe are first copied to a temporary file.
    ///
    /// # Errors
    /// If the input cannot be read, is not a recording, or contains no footer.
    pub fn open(input: Input, options: &TraceOptions) -> Result<Recording, TapError> {
        let path = input.path().to_path_buf();
        let (file, bytes_spooled) = match input.positioned() {
            Ok(file) => (file, None),
            Err(pipe) => {
                let (file, bytes) = spool(*pipe, options.spool_bytes_max)?;
                (Positioned::File(file), Some(bytes))
            }
        };
        let read = metadata_of(&file).and_then(|(metadata, bytes_lost)| {
            let stored = Stored::of(&metadata)?;
            Ok((metadata, bytes_lost, stored))
        });
        let (metadata, bytes_lost, stored) = read.map_err(|reason| TapError::Malformed {
            path: path.clone(),
            offset: 0,
            reason,
        })?;
        Ok(Recording {
            stored,
            path,
            strict: options.strict,
            recorded: losses::recorded(metadata.metadata()),
            metadata,
            file,
            bytes_lost,
            bytes_spooled,
        })
    }

    /// Its capabilities; `groups` is the reason why it makes no groups.
    pub fn capabilities(&self, groups: &str) -> Capabilities {
        self.stored
            .capabilities(groups, self.paired(), self.has_statistics())
    }

    /// Whether its requests are paired with their responses, or the reason why they are not.
    fn paired(&self) -> Result<(), String> {
        let lost = self.recorded.iter().filter(|c| c.counter == "events_lost");
        let lost: i64 = lost.map(|c| c.total).fold(0, i64::saturating_add);
        match value(self.metadata.metadata(), PAIRED_KEY) {
            Some("true") if lost == 0 => Ok(()),
            Some("true") => Err(format!("the recording has lost {lost} events")),
            _ => Err("the recording does not state that it contains all requests".into()),
        }
    }

    /// True if each request was assigned a response at its own time.
    pub fn responses_assumed(&self) -> bool {
        value(self.metadata.metadata(), RESPONSES_KEY) == Some("assumed")
    }

    /// The number of its events, or rows of another stream, by its footer.
    pub fn rows(&self) -> i64 {
        let metadata = self.metadata.metadata();
        let events = value(metadata, EVENTS_KEY).and_then(|events| events.parse().ok());
        events.unwrap_or_else(|| metadata.file_metadata().num_rows())
    }

    /// The number of its row groups.
    pub(super) fn groups(&self) -> usize {
        self.metadata.metadata().num_row_groups()
    }

    /// A row group.
    pub(super) fn group(&self, group: usize) -> &RowGroupMetaData {
        self.metadata.metadata().row_group(group)
    }

    /// Whether rows are selected by the statistics of row groups: weir has written them, and each
    /// column is a leaf.
    pub(super) fn has_statistics(&self) -> bool {
        let metadata = self.metadata.metadata();
        let schema = metadata.file_metadata().schema_descr();
        let is_flat = schema.num_columns() == schema.root_schema().get_fields().len();
        let writer = metadata.file_metadata().created_by();
        let is_ours = writer.is_some_and(|writer| writer.starts_with("weir "));
        is_flat && is_ours && value(metadata, VERSION_KEY).is_some()
    }

    /// The offset of a row group.
    pub(super) fn offset_of_group(&self, group: usize) -> u64 {
        let group = self.metadata.metadata().row_group(group);
        let first = group.columns().first();
        first.map_or(0, |column| {
            u64::try_from(column.data_page_offset()).unwrap_or(0)
        })
    }

    /// The lowest and the highest block of a row group, by its statistics.
    fn blocks_of_group(&self, group: usize) -> Option<(i64, i64)> {
        let group = self.metadata.metadata().row_group(group);
        let is_block = |chunk: &&ColumnChunkMetaData| chunk.column_path().string() == BLOCK;
        match group.columns().iter().find(is_block)?.statistics()? {
            Statistics::Int64(blocks) => Some((*blocks.min_opt()?, *blocks.max_opt()?)),
            _ => None,
        }
    }

    /// The number of events, or rows of another stream, of a row group.
    pub(super) fn events_of_group(&self, group: usize) -> i64 {
        let end = match group + 1 < self.groups() {
            true => self.blocks_of_group(group + 1).map(|(first, _)| first),
            false => Some(self.rows()),
        };
        match (self.blocks_of_group(group), end) {
            (Some((first, _)), Some(end)) => end.saturating_sub(first),
            _ => self.metadata.metadata().row_group(group).num_rows(),
        }
    }

    /// All row groups, those together that share a block: other programs write row groups of other
    /// sizes.
    pub(super) fn groups_with_whole_blocks(&self) -> VecDeque<Range<usize>> {
        let mut all: VecDeque<Range<usize>> = VecDeque::new();
        let mut last = None;
        for group in 0..self.groups() {
            let blocks = self.blocks_of_group(group);
            let are_apart = match (last, blocks) {
                (Some((_, last)), Some((first, _))) => last < first,
                _ => false,
            };
            match all.back_mut().filter(|_| !are_apart) {
                Some(groups) => groups.end = group + 1,
                None => all.push_back(group..group + 1),
            }
            last = blocks;
        }
        all
    }

    /// True if its writer did not close it, or part of it is missing.
    fn is_unfinished(&self) -> bool {
        self.bytes_lost > 0 || value(self.metadata.metadata(), CLOSED_KEY) == Some("false")
    }

    /// What its footer reports about its origin.
    pub fn provenance(&self) -> Provenance {
        let metadata = self.metadata.metadata();
        let of = |key| value(metadata, key).map(str::to_owned);
        Provenance {
            source: of(SOURCE_KEY).filter(|source| !source.is_empty()),
            host: of(HOST_KEY),
            kernel: of(KERNEL_KEY),
            writer: metadata.file_metadata().created_by().map(str::to_owned),
            end: match value(metadata, CLOSED_KEY) {
                _ if self.is_unfinished() => FileEnd::Interrupted {
                    bytes_lost: self.bytes_lost,
                },
                _ if self.is_converted_unfinished() => FileEnd::ConvertedInterrupted,
                Some(_) => FileEnd::Closed,
                None => FileEnd::Unmarked,
            },
        }
    }

    /// True if the file from which it was converted was unfinished.
    fn is_converted_unfinished(&self) -> bool {
        self.recorded.iter().any(|c| c.counter == UNFINISHED)
    }

    /// The counts of the recorder, and of what is missing since.
    pub fn counts(&self) -> Vec<EventCount> {
        let of = EventCount::of;
        let mut counts = self.recorded.clone();
        if self.bytes_lost > 0 {
            counts.push(of("bytes_lost", Some("cut_off"), self.bytes_lost as i64));
        }
        if self.is_unfinished() {
            counts.push(of(UNFINISHED, None, 1));
        }
        counts
    }

    /// Remarks for the user, one sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if let Some(bytes) = self.bytes_spooled {
            let folder = std::env::temp_dir();
            remarks.push(format!(
                "Parquet is read from its end: {bytes} bytes were copied to a temporary file in {}",
                folder.display()
            ));
        }
        let rows = self.rows();
        if self.is_unfinished() {
            let mut remark = format!(
                "the recording has no footer: its writer was killed or is still running, or the \
                 file was truncated; rows after the first {rows} are missing"
            );
            if self.bytes_lost > 0 {
                let bytes = self.bytes_lost;
                remark += &format!(", including {bytes} bytes of an incomplete row group");
            }
            remarks.push(remark);
        } else if self.is_converted_unfinished() {
            remarks.push(
                "it was converted from a recording without footer: its last rows are missing"
                    .into(),
            );
        }
        remarks
    }

    /// A reader of a row group's columns `read`, without those that have only NULLs in it.
    pub(super) fn reader(&self, read: &[usize], group: usize) -> Result<GroupReader, ParquetError> {
        fn build<T: ChunkReader + 'static>(
            file: T,
            metadata: ArrowReaderMetadata,
            mask: ProjectionMask,
            group: usize,
        ) -> Result<ParquetRecordBatchReader, ParquetError> {
            pages::check(&file, metadata.metadata().row_group(group), &mask)?;
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
                .with_projection(mask)
                .with_row_groups(vec![group])
                .with_batch_size(BATCH_ROWS)
                .build()
        }
        let metadata = self.metadata.metadata();
        let chunks = metadata.row_group(group);
        let mut constants = Vec::new();
        let mut columns: Vec<usize> = read
            .iter()
            .copied()
            .filter(|&column| !is_all_null(chunks, column))
            .collect();
        if self.has_statistics() {
            columns.retain(|&column| match constant(chunks, column) {
                Some(value) => {
                    constants.push((column, value));
                    false
                }
                None => true,
            });
        }
        let schema = with_dictionaries(self.metadata.schema(), chunks);
        let options = ArrowReaderOptions::new().with_schema(schema);
        let of_group = ArrowReaderMetadata::try_new(metadata.clone(), options)?;
        let mask = ProjectionMask::roots(of_group.parquet_schema(), columns.iter().copied());
        let batches = match &self.file {
            Positioned::File(file) => build(AtOffsets::of(file)?, of_group, mask, group),
            Positioned::Bytes(bytes) => build(bytes.clone(), of_group, mask, group),
        };
        Ok(GroupReader {
            batches: batches?,
            columns,
            constants,
        })
    }
}

/// Reads a row group.
pub(super) struct GroupReader {
    /// Its batches.
    pub batches: ParquetRecordBatchReader,
    /// Their columns, by their positions in the file.
    pub columns: Vec<usize>,
    /// Columns with one value, which are not read.
    pub constants: Vec<(usize, Constant)>,
}

/// The value of all rows of a column in a row group.
#[derive(Clone, Copy, Debug)]
pub(super) enum Constant {
    Number(i64),
    Text(Symbol),
}

impl Constant {
    /// The column of `len` rows, if it has values of this type.
    pub fn column(self, ty: Type, len: usize) -> Option<Column> {
        match (self, ty) {
            (Constant::Number(number), Type::Int | Type::Time) => {
                Some(Column::Int(Int64Array::from_value(number, len)))
            }
            (Constant::Text(text), Type::Text) => {
                Some(Column::Text(UInt32Array::from_value(text.id(), len)))
            }
            _ => None,
        }
    }
}

/// The value of all rows of a column, by its statistics.
fn constant(group: &RowGroupMetaData, column: usize) -> Option<Constant> {
    let (chunk, 0) = counted_nulls(group, column)? else {
        return None;
    };
    match chunk.statistics()? {
        Statistics::Int64(of_numbers) => {
            let (min, max) = (*of_numbers.min_opt()?, *of_numbers.max_opt()?);
            (min == max).then_some(Constant::Number(min))
        }
        Statistics::ByteArray(bounds) if bounds.min_is_exact() && bounds.max_is_exact() => {
            let (min, max) = (bounds.min_opt()?.data(), bounds.max_opt()?.data());
            let text = std::str::from_utf8(min).ok().filter(|_| min == max)?;
            Symbol::try_new(text).ok().map(Constant::Text)
        }
        _ => None,
    }
}

/// The chunk of a column in a row group, if its statistics have the number of NULLs: the chunk and
/// that number. A column of the file that is no leaf has none.
fn counted_nulls(group: &RowGroupMetaData, column: usize) -> Option<(&ColumnChunkMetaData, u64)> {
    let flat = group.num_columns() == group.schema_descr().root_schema().get_fields().len();
    let chunk = group.columns().get(column).filter(|_| flat)?;
    Some((chunk, chunk.statistics()?.null_count_opt()?))
}

fn is_all_null(group: &RowGroupMetaData, column: usize) -> bool {
    let counted = counted_nulls(group, column);
    counted.is_some_and(|(_, nulls)| i64::try_from(nulls) == Ok(group.num_rows()))
}

/// The same columns, with texts of which this row group has a dictionary as dictionaries: each is
/// then looked up once instead of once per row.
fn with_dictionaries(schema: &SchemaRef, group: &RowGroupMetaData) -> SchemaRef {
    let fields = schema.fields().iter().enumerate().map(|(column, field)| {
        let has_dictionary = |(chunk, _): (&ColumnChunkMetaData, u64)| {
            chunk.dictionary_page_offset().is_some() && !is_all_null(group, column)
        };
        let is_text = *field.data_type() == DataType::Utf8View;
        match is_text && counted_nulls(group, column).is_some_and(has_dictionary) {
            true => {
                let of_texts = DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into());
                Arc::new(field.as_ref().clone().with_data_type(of_texts))
            }
            false => field.clone(),
        }
    });
    let fields: Vec<FieldRef> = fields.collect();
    let metadata = schema.metadata().clone();
    SchemaRef::new(arrow_schema::Schema::new_with_metadata(fields, metadata))
}

/// A file that several threads read. The Parquet library's own reader of files moves the offset
/// that all duplicates of a descriptor share.
struct AtOffsets {
    file: Arc<File>,
    len: u64,
}

/// Reads a file from an offset on.
struct FromOffset {
    file: Arc<File>,
    offset: u64,
}

impl AtOffsets {
    fn of(file: &File) -> io::Result<AtOffsets> {
        Ok(AtOffsets {
            file: Arc::new(file.try_clone()?),
            len: file.metadata()?.len(),
        })
    }
}

impl Length for AtOffsets {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for AtOffsets {
    type T = BufReader<FromOffset>;

    fn get_read(&self, offset: u64) -> Result<Self::T, ParquetError> {
        let file = self.file.clone();
        Ok(BufReader::new(FromOffset { file, offset }))
    }

    fn get_bytes(&self, offset: u64, length: usize) -> Result<Bytes, ParquetError> {
        if offset.saturating_add(length as u64) > self.len {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at offset {offset} are beyond the end of the file"
            )));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes.into())
    }
}

impl Read for FromOffset {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(out, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// The metadata of a recording, and the number of bytes after it left by a crash.
fn metadata_of(file: &Positioned) -> Result<(ArrowReaderMetadata, u64), String> {
    let (metadata, bytes_lost) = guarded(|| {
        let found = footer(file)?;
        let metadata = Arc::new(found.metadata);
        let stored = ArrowReaderMetadata::try_new(metadata.clone(), ArrowReaderOptions::new())?;
        let options = ArrowReaderOptions::new().with_schema(with_texts_as_views(stored.schema()));
        Ok((
            ArrowReaderMetadata::try_new(metadata, options)?,
            found.bytes_lost,
        ))
    })?;
    match value(metadata.metadata(), VERSION_KEY) {
        Some(version) if !VERSIONS_READ.contains(&version) => Err(format!(
            "a recording of version {version}; this weir reads versions up to {VERSION}"
        )),
        _ => Ok((metadata, bytes_lost)),
    }
}

fn footer(file: &Positioned) -> Result<Found, ParquetError> {
    match file {
        Positioned::File(file) => read_footer(file),
        Positioned::Bytes(bytes) => read_footer(bytes),
    }
}

/// The same columns, with texts as views. As dictionaries, the type in which they are written,
/// columns without any text would be read 30 times slower (parquet 60: it sorts their NULLs into a
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

/// Runs the Parquet library on untrusted bytes. It reports most errors in them but panics at some;
/// neither may affect more than this file.
pub(super) fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the Parquet library cannot read it".into()),
    }
}
