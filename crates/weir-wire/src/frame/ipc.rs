//! Arrays as one Arrow IPC record batch message, and decoding of untrusted bytes.
//!
//! Arrow's own reader slices buffers and allocates memory as the message states, and panics if that
//! is invalid. So the message is checked against the expected columns first. Format: Arrow's
//! columnar format, "Encapsulated message format", `Message.fbs`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_ipc::{CompressionType, MetadataVersion};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use prost::bytes::Bytes;

use super::Compression;
use crate::error::Malformed;

/// The largest total size of the buffers of one message after decompression.
const DECODED_BYTES_MAX: usize = 16 << 20;
/// The alignment of buffers, the minimum that Arrow allows.
const ALIGNMENT: usize = 8;

/// The type of an array on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// `Bool`.
    Bool,
    /// `UInt8`.
    UInt8,
    /// `UInt16`.
    UInt16,
    /// `UInt32`.
    UInt32,
    /// `Int64`.
    Int64,
    /// `Float64`.
    Float,
    /// `Binary`.
    Binary,
}

impl Stored {
    fn data_type(self) -> DataType {
        match self {
            Stored::Bool => DataType::Boolean,
            Stored::UInt8 => DataType::UInt8,
            Stored::UInt16 => DataType::UInt16,
            Stored::UInt32 => DataType::UInt32,
            Stored::Int64 => DataType::Int64,
            Stored::Float => DataType::Float64,
            Stored::Binary => DataType::Binary,
        }
    }

    /// The number of buffers: validity and values, and offsets if values differ in length.
    fn buffers(self) -> usize {
        if self == Stored::Binary { 3 } else { 2 }
    }
}

/// Encodes arrays: the header and the body of a message; both empty without arrays.
pub fn write(
    arrays: &[ArrayRef],
    rows: usize,
    compression: Compression,
) -> Result<(Vec<u8>, Vec<u8>), Malformed> {
    if arrays.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let written = || -> Result<_, ArrowError> {
        let types = arrays.iter().map(|a| a.data_type().clone());
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(schema(types), arrays.to_vec(), &options)?;
        let compression = match compression {
            Compression::None => None,
            Compression::Zstd => Some(CompressionType::ZSTD),
        };
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?
            .try_with_compression(compression)?;
        let (mut tracker, mut context) =
            (DictionaryTracker::new(false), IpcWriteContext::default());
        IpcDataGenerator::default().encode(&batch, &mut tracker, &options, &mut context)
    };
    let (_, message) = written().map_err(|e| Malformed(format!("rows: {e}")))?;
    Ok((message.ipc_message, message.arrow_data))
}

/// Decodes the arrays of a message, one of each type, each of `rows` values.
pub fn read(
    header: &Bytes,
    body: &Bytes,
    types: &[Stored],
    rows: usize,
) -> Result<Vec<ArrayRef>, Malformed> {
    if types.is_empty() {
        return Ok(Vec::new());
    }
    let message = arrow_ipc::root_as_message(header)
        .map_err(|e| Malformed(format!("rows: the header of the columns: {e}")))?;
    let batch = match message.header_as_record_batch() {
        Some(batch) if message.version() == MetadataVersion::V5 => batch,
        _ => return Err(Malformed("rows: the columns are not a record batch".into())),
    };
    check(&batch, body, types, rows)?;
    let schema = schema(types.iter().map(|t| t.data_type()));
    let body = Buffer::from(body.clone());
    let version = message.version();
    arrow_ipc::reader::read_record_batch(&body, batch, schema, &HashMap::new(), None, &version)
        .map(|batch| batch.columns().to_vec())
        .map_err(|e| Malformed(format!("rows: the columns: {e}")))
}

fn schema(types: impl Iterator<Item = DataType>) -> Arc<Schema> {
    let fields = types.map(|ty| Field::new("", ty, true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Checks everything that Arrow's reader assumes.
fn check(
    batch: &arrow_ipc::RecordBatch<'_>,
    body: &[u8],
    types: &[Stored],
    rows: usize,
) -> Result<(), Malformed> {
    let off = |what: &str| Err(Malformed(format!("rows: the columns have {what}")));
    let (Some(nodes), Some(buffers)) = (batch.nodes(), batch.buffers()) else {
        return off("no list of buffers");
    };
    if batch.length() != rows as i64 || nodes.len() != types.len() {
        return off("another number of rows or columns than announced");
    }
    if nodes
        .iter()
        .any(|n| n.length() != rows as i64 || !(0..=rows as i64).contains(&n.null_count()))
    {
        return off("another number of rows than announced");
    }
    if buffers.len() != types.iter().map(|t| t.buffers()).sum::<usize>() {
        return off("another number of buffers than their types need");
    }
    if batch
        .variadicBufferCounts()
        .is_some_and(|counts| !counts.is_empty())
    {
        return off("buffers of views");
    }
    let compressed = match batch.compression() {
        None => false,
        Some(how) if how.codec() == CompressionType::ZSTD => true,
        Some(_) => return off("an unknown compression"),
    };
    let mut decoded_bytes = 0usize;
    for buffer in buffers {
        let end = buffer.offset().checked_add(buffer.length());
        if buffer.offset() < 0 || buffer.length() < 0 || end.is_none_or(|e| e > body.len() as i64) {
            return off("a buffer outside of their body");
        }
        let bytes = &body[buffer.offset() as usize..][..buffer.length() as usize];
        let length = match compressed && !bytes.is_empty() {
            false => Some(bytes.len()),
            true => decoded_length(bytes),
        };
        decoded_bytes = match length {
            Some(length) => decoded_bytes.saturating_add(length),
            None => return off("a compressed buffer without its length"),
        };
    }
    match decoded_bytes > DECODED_BYTES_MAX {
        true => off("more bytes than one message may have"),
        false => Ok(()),
    }
}

/// The decompressed length of a compressed buffer: 8 bytes, little-endian; -1 if it is not
/// compressed.
fn decoded_length(bytes: &[u8]) -> Option<usize> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    match i64::from_le_bytes(*length) {
        -1 => Some(rest.len()),
        length => usize::try_from(length).ok(),
    }
}
