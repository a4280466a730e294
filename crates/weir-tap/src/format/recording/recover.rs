//! [`read_footer`]: a Parquet file's footer, at its end, otherwise the last one before a crash.

use std::io::Read;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    FileMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};
use parquet::file::reader::ChunkReader;

use super::{PART, PREVIOUS_KEY, VERSION_KEY, WHOLE};

/// Bytes searched at a time, from the end of the file towards its start.
const BLOCK_BYTES: u64 = 1 << 20;

/// Maximum length of a footer. That of a recording of a year is shorter.
const FOOTER_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of false matches of a footer's end before the search is abandoned.
const FALSE_ENDS_MAX: usize = 1000;

/// Bytes after a footer: its length and four magic bytes.
const TAIL_BYTES: u64 = 8;

/// The result of the search.
pub struct Found {
    /// The metadata of all readable row groups.
    pub metadata: ParquetMetaData,
    /// Bytes after the last footer: a row group whose writing was interrupted.
    pub bytes_lost: u64,
}

/// One footer.
struct Footer {
    metadata: ParquetMetaData,
    start: u64,
    /// End of the previous footer, if this one has only the row groups since.
    previous: Option<u64>,
}

/// Finds the footer.
///
/// # Errors
/// If there is none.
pub fn read_footer(file: &impl ChunkReader) -> Result<Found> {
    let bytes = file.len();
    if let Ok(footer) = footer_ending_at(file, bytes) {
        return Ok(Found {
            metadata: whole(file, footer)?,
            bytes_lost: 0,
        });
    }
    let mut false_ends = 0;
    let mut end = bytes;
    while end > 0 {
        let start = end.saturating_sub(BLOCK_BYTES);
        // Blocks overlap, so that a footer's end across two of them is found.
        let length = (end - start + 3).min(bytes - start);
        let block = file.get_bytes(start, length as usize)?;
        for at in (0..block.len().saturating_sub(3)).rev() {
            if block[at..at + 4] != WHOLE && block[at..at + 4] != PART {
                continue;
            }
            let end = start + at as u64 + 4;
            if let Ok(metadata) = footer_ending_at(file, end).and_then(|f| whole(file, f)) {
                return Ok(Found {
                    metadata,
                    bytes_lost: bytes - end,
                });
            }
            false_ends += 1;
            if false_ends > FALSE_ENDS_MAX {
                return Err(ParquetError::General(
                    "no footer, neither at the end nor earlier".into(),
                ));
            }
        }
        end = start;
    }
    Err(ParquetError::General(
        "no footer, neither at the end nor earlier".into(),
    ))
}

fn footer_ending_at(file: &impl ChunkReader, end: u64) -> Result<Footer> {
    let none = |why: &str| ParquetError::General(format!("no footer: {why}"));
    let tail_start = end
        .checked_sub(TAIL_BYTES)
        .ok_or_else(|| none("too short"))?;
    let mut tail = [0; TAIL_BYTES as usize];
    file.get_read(tail_start)?.read_exact(&mut tail)?;
    let length = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    let is_part = tail[4..] == PART;
    if !is_part && tail[4..] != WHOLE {
        return Err(none("the end marker is missing"));
    }
    let start = tail_start
        .checked_sub(length)
        .filter(|_| length <= FOOTER_BYTES_MAX);
    let start = start.ok_or_else(|| none("it is longer than the file"))?;
    let encoded: Bytes = file.get_bytes(start, length as usize)?;
    let metadata = ParquetMetaDataReader::decode_metadata(&encoded)?;
    for column in metadata
        .row_groups()
        .iter()
        .flat_map(RowGroupMetaData::columns)
    {
        let inside = column_end(column).is_some_and(|column_end| column_end <= start);
        if !inside {
            return Err(none("it describes columns after itself"));
        }
    }
    let previous = value(&metadata, PREVIOUS_KEY).and_then(|v| v.parse().ok());
    if is_part && (previous.is_none() || value(&metadata, VERSION_KEY).is_none()) {
        return Err(none("it belongs to no other footer"));
    }
    Ok(Footer {
        metadata,
        start,
        previous: previous.filter(|_| is_part),
    })
}

/// One past the last byte of a column chunk; `None` if its metadata is invalid.
fn column_end(column: &parquet::file::metadata::ColumnChunkMetaData) -> Option<u64> {
    let start = column
        .dictionary_page_offset()
        .unwrap_or(column.data_page_offset());
    let start = u64::try_from(start.min(column.data_page_offset())).ok()?;
    start.checked_add(u64::try_from(column.compressed_size()).ok()?)
}

/// A footer of the whole file: `last`, with the row groups of the footers that it references.
fn whole(file: &impl ChunkReader, last: Footer) -> Result<ParquetMetaData> {
    if last.previous.is_none() {
        return Ok(last.metadata);
    }
    let mut parts = vec![last.metadata.row_groups().to_vec()];
    let (mut previous, mut start) = (last.previous, last.start);
    while let Some(end) = previous {
        if end > start {
            return Err(ParquetError::General(
                "a footer continues a later one".into(),
            ));
        }
        let footer = footer_ending_at(file, end)?;
        parts.push(footer.metadata.row_groups().to_vec());
        (previous, start) = (footer.previous, footer.start);
    }
    let groups: Vec<RowGroupMetaData> = parts.into_iter().rev().flatten().collect();
    let file = last.metadata.file_metadata();
    let rows = groups
        .iter()
        .map(RowGroupMetaData::num_rows)
        .fold(0, i64::saturating_add);
    let file = FileMetaData::new(
        file.version(),
        rows,
        file.created_by().map(str::to_owned),
        file.key_value_metadata().cloned(),
        file.schema_descr_ptr(),
        file.column_orders().cloned(),
    );
    Ok(ParquetMetaData::new(file, groups))
}

/// The value of a key in a footer.
pub fn value<'a>(metadata: &'a ParquetMetaData, key: &str) -> Option<&'a str> {
    let keys = metadata.file_metadata().key_value_metadata()?;
    keys.iter().find(|kv| kv.key == key)?.value.as_deref()
}
