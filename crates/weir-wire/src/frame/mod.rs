//! Encoding of rows: a batch becomes an Arrow IPC record batch whose columns are as narrow as their
//! values.
//!
//! An integer column is written as differences from its smallest value, without common trailing
//! zero bits, in 1, 2, 4 or 8 bytes; a constant column takes no space. Timestamps are such a
//! column; a column that repeats the timestamps of its rows is not written. A text is written as
//! the number under which the agent has sent it before ([`texts`]). The encoding of each column is
//! in [`RowsHeader`], so decoding needs no schema; [`check`] compares the rows with the expected
//! columns.

mod integers;
mod ipc;
mod tally;
pub mod texts;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, BinaryArray, UInt32Array};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use prost::Message;
use prost::bytes::Bytes;
use std::sync::Arc;
use weir_model::{Batch, Column, Schema, TallyArray, Type};

use crate::error::Malformed;
use crate::message::{ChannelId, ColumnEncoding, ColumnKind, FRAME_BYTES_MAX, RowsHeader, instant};
use texts::{ReceivedTexts, TextTable};

/// The largest number of rows of one message.
pub const ROWS_MAX: usize = 1 << 16;
/// The largest number of columns of a channel.
pub const COLUMNS_MAX: usize = 1024;
/// The largest number of values of one message: rows times columns. A constant column takes no
/// space on the wire, but memory when decoded.
pub const VALUES_MAX: usize = 1 << 22;
/// The largest absolute weight of a row.
pub const WEIGHT_MAX: i64 = 1 << 40;

/// The compression of the buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// zstd, each buffer separately.
    Zstd,
}

/// Encoded rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The protocol buffer.
    pub head: RowsHeader,
    /// The header of Arrow's IPC message; empty if no column takes space.
    pub header: Bytes,
    /// Its body.
    pub body: Bytes,
}

impl Frame {
    /// Its size in bytes, without the overhead of Flight and gRPC.
    pub fn bytes(&self) -> usize {
        self.head.encoded_len() + self.header.len() + self.body.len()
    }
}

/// Why rows cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// They need more texts than an agent may use.
    TextBudget,
    /// There are more than [`ROWS_MAX`] rows or [`VALUES_MAX`] values, or their columns take more
    /// than half of [`FRAME_BYTES_MAX`] before compression.
    TooLong,
    /// They are invalid: a column or a weight is out of range.
    Malformed(Malformed),
}

/// Rows were dropped because they need more texts than an agent may use.
pub const CAUSE_TEXTS: &str = "text_budget";

impl FrameError {
    /// The cause in [`crate::AgentMessage::Lost`] of rows that are dropped for this error.
    pub fn cause(&self) -> &'static str {
        match self {
            FrameError::TextBudget => CAUSE_TEXTS,
            FrameError::TooLong => "row_too_long",
            FrameError::Malformed(_) => "malformed",
        }
    }
}

/// The result of decoding a frame.
#[derive(Debug)]
pub enum Decoded {
    /// The rows.
    Rows(Batch),
    /// A row refers to a text beyond the budget; the number of requests that the rows represent.
    TextBudget(u64),
}

/// Encodes rows of `channel`. New texts are added to the table.
///
/// # Errors
/// See [`FrameError`]; the table may have grown nevertheless.
pub fn encode(
    channel: ChannelId,
    batch: &Batch,
    texts: &mut TextTable,
    compression: Compression,
) -> Result<Frame, FrameError> {
    if batch.len() > ROWS_MAX || batch.len() * batch.columns.len() > VALUES_MAX {
        return Err(FrameError::TooLong);
    }
    if batch.columns.len() > COLUMNS_MAX {
        let most = Malformed::too_many("rows: columns", batch.columns.len(), COLUMNS_MAX);
        return Err(FrameError::Malformed(most));
    }
    // Rows that the monitor would reject are not sent: they would be sent again forever.
    check_times(&batch.ts).map_err(FrameError::Malformed)?;
    check_weights(batch.weights.as_deref().unwrap_or(&[])).map_err(FrameError::Malformed)?;
    let mut arrays = Vec::with_capacity(batch.columns.len() + 2);
    let mut put = |(form, array): (ColumnEncoding, Option<ArrayRef>)| {
        arrays.extend(array);
        form
    };
    let head = RowsHeader {
        channel: channel.0,
        rows: batch.len() as u32,
        ts: Some(put(integers::narrow(ColumnKind::Int, &batch.ts, None))),
        weights: batch
            .weights
            .as_ref()
            .map(|w| put(integers::narrow(ColumnKind::Int, w, None))),
        columns: batch
            .columns
            .iter()
            .map(|column| write_column(column, &batch.ts, texts).map(&mut put))
            .collect::<Result<_, _>>()?,
        requests: 0,
    };
    let bytes = arrays
        .iter()
        .map(|array| array.to_data().get_slice_memory_size())
        .sum::<Result<usize, _>>();
    if bytes.is_ok_and(|bytes| bytes > FRAME_BYTES_MAX / 2) {
        return Err(FrameError::TooLong);
    }
    let (header, body) =
        ipc::write(&arrays, batch.len(), compression).map_err(FrameError::Malformed)?;
    Ok(Frame {
        head,
        header: header.into(),
        body: body.into(),
    })
}

/// Encodes a column.
fn write_column(
    column: &Column,
    ts: &[i64],
    texts: &mut TextTable,
) -> Result<(ColumnEncoding, Option<ArrayRef>), FrameError> {
    let form = |kind: ColumnKind| ColumnEncoding {
        kind: kind.into(),
        ..ColumnEncoding::default()
    };
    if (0..column.len()).all(|row| column.is_null(row)) {
        return Ok((form(ColumnKind::Nulls), None));
    }
    Ok(match column {
        Column::Nulls(_) => (form(ColumnKind::Nulls), None),
        Column::Bool(a) => (form(ColumnKind::Bool), Some(Arc::new(a.clone()))),
        Column::Int(a) if a.null_count() == 0 && a.values()[..] == *ts => {
            (form(ColumnKind::Times), None)
        }
        Column::Int(a) => integers::narrow(ColumnKind::Int, a.values(), a.nulls()),
        Column::Float(a) => (form(ColumnKind::Float), Some(Arc::new(a.clone()))),
        Column::Text(a) => {
            let numbers = texts.numbers(a).ok_or(FrameError::TextBudget)?;
            integers::narrow(ColumnKind::Text, &numbers, a.nulls())
        }
        Column::Bytes(a) => (form(ColumnKind::Bytes), Some(Arc::new(a.clone()))),
        Column::Tally(a) => (
            form(ColumnKind::Tally),
            Some(Arc::new(write_tallies(a, texts)?)),
        ),
    })
}

fn write_tallies(column: &TallyArray, texts: &mut TextTable) -> Result<BinaryArray, FrameError> {
    let written = column
        .values()
        .iter()
        .map(|tally| tally.as_ref().map(|t| tally::write(t, texts)).transpose());
    Ok(BinaryArray::from_iter(
        written.collect::<Result<Vec<_>, _>>()?,
    ))
}

/// Decodes rows from untrusted bytes: memory is allocated in proportion to the input, and the
/// result satisfies the rules of [`Batch`] and the bounds of the protocol.
///
/// # Errors
/// If the bytes are no valid frame; the text names the part.
pub fn decode(
    head: &RowsHeader,
    header: &Bytes,
    body: &Bytes,
    texts: &ReceivedTexts,
) -> Result<Decoded, Malformed> {
    let rows = head.rows as usize;
    let bounds = [
        ("rows: rows", rows, ROWS_MAX),
        ("rows: columns", head.columns.len(), COLUMNS_MAX),
        (
            "rows: values",
            rows.saturating_mul(head.columns.len()),
            VALUES_MAX,
        ),
        ("rows: bytes", header.len() + body.len(), FRAME_BYTES_MAX),
    ];
    for (what, count, most) in bounds {
        if count > most {
            return Err(Malformed::too_many(what, count, most));
        }
    }
    let Some(ts) = head.ts else {
        return Err(Malformed("rows: no times".into()));
    };
    let forms = [Some(&ts), head.weights.as_ref()].into_iter().flatten();
    let types = forms
        .chain(&head.columns)
        .filter_map(|form| stored_as(form).transpose());
    let types = types.collect::<Result<Vec<_>, _>>()?;
    let mut arrays = ipc::read(header, body, &types, rows)?.into_iter();

    let ts = plain_integers("times", &ts, &mut arrays, rows)?;
    check_times(&ts)?;
    let weights = head.weights.as_ref().map(|form| {
        let weights = plain_integers("weights", form, &mut arrays, rows)?;
        check_weights(&weights).map(|()| weights)
    });
    let weights = weights.transpose()?;
    let mut columns = Vec::with_capacity(head.columns.len());
    for form in &head.columns {
        match read_column(form, &mut arrays, &ts, texts)? {
            Some(column) => columns.push(column),
            None => return Ok(Decoded::TextBudget(head.represented())),
        }
    }
    Ok(Decoded::Rows(Batch {
        ts,
        weights,
        columns,
    }))
}

/// Checks that rows have the columns of `schema`. A column of NULLs matches any type.
///
/// # Errors
/// Names the first column that differs.
pub fn check(batch: &Batch, schema: &Schema) -> Result<(), Malformed> {
    if batch.columns.len() != schema.len() {
        return Err(Malformed(format!(
            "rows: {} columns, but the channel has {}",
            batch.columns.len(),
            schema.len()
        )));
    }
    for (column, field) in batch.columns.iter().zip(&schema.fields) {
        let fits = match column {
            Column::Nulls(_) => true,
            Column::Bool(_) => field.ty == Type::Bool,
            Column::Int(_) => matches!(field.ty, Type::Int | Type::Time),
            Column::Float(_) => field.ty == Type::Float,
            Column::Text(_) => field.ty == Type::Text,
            Column::Tally(_) => field.ty == Type::Tally,
            Column::Bytes(_) => field.ty == Type::Partial,
        };
        if !fits {
            return Err(Malformed(format!(
                "rows: column {} is not of type {}",
                field.name, field.ty
            )));
        }
    }
    Ok(())
}

/// The Arrow type of the written column, if any.
fn stored_as(form: &ColumnEncoding) -> Result<Option<ipc::Stored>, Malformed> {
    use ipc::Stored;
    Ok(match kind_of(form)? {
        ColumnKind::Nulls | ColumnKind::Times => None,
        ColumnKind::Bool => Some(Stored::Bool),
        ColumnKind::Float => Some(Stored::Float),
        ColumnKind::Int | ColumnKind::Text => integers::stored_as(form)?,
        ColumnKind::Tally | ColumnKind::Bytes => Some(Stored::Binary),
    })
}

fn kind_of(form: &ColumnEncoding) -> Result<ColumnKind, Malformed> {
    let kind = ColumnKind::try_from(form.kind);
    kind.map_err(|_| Malformed(format!("rows: {} is not a kind of column", form.kind)))
}

fn plain_integers(
    what: &str,
    form: &ColumnEncoding,
    arrays: &mut impl Iterator<Item = ArrayRef>,
    rows: usize,
) -> Result<ScalarBuffer<i64>, Malformed> {
    if kind_of(form)? != ColumnKind::Int {
        return Err(Malformed(format!("rows: {what} are not integers")));
    }
    let (values, nulls) = integers::widen(form, arrays, rows);
    match nulls {
        Some(_) => Err(Malformed(format!("rows: NULL among the {what}"))),
        None => Ok(values),
    }
}

fn check_times(ts: &[i64]) -> Result<(), Malformed> {
    if !ts.is_sorted() {
        return Err(Malformed("rows: not in time order".into()));
    }
    for end in [ts.first(), ts.last()].into_iter().flatten() {
        instant("rows: a time", *end)?;
    }
    Ok(())
}

fn check_weights(weights: &[i64]) -> Result<(), Malformed> {
    let allowed = |w: &i64| *w != 0 && (-WEIGHT_MAX..=WEIGHT_MAX).contains(w);
    match weights.iter().find(|w| !allowed(w)) {
        Some(w) => Err(Malformed(format!("rows: {w} is not a valid weight"))),
        None => Ok(()),
    }
}

/// Decodes a column; `None` if it refers to a text beyond the budget.
fn read_column(
    form: &ColumnEncoding,
    arrays: &mut impl Iterator<Item = ArrayRef>,
    ts: &ScalarBuffer<i64>,
    texts: &ReceivedTexts,
) -> Result<Option<Column>, Malformed> {
    let rows = ts.len();
    let mut next = || {
        arrays
            .next()
            .expect("ipc::read gives an array of each type")
    };
    Ok(Some(match kind_of(form)? {
        ColumnKind::Nulls => Column::Nulls(rows),
        ColumnKind::Times => Column::Int(arrow_array::Int64Array::new(ts.clone(), None)),
        ColumnKind::Bool => Column::Bool(next().as_boolean().clone()),
        ColumnKind::Float => Column::Float(next().as_primitive::<Float64Type>().clone()),
        ColumnKind::Int => {
            let (values, nulls) = integers::widen(form, arrays, rows);
            Column::Int(arrow_array::Int64Array::new(values, nulls))
        }
        ColumnKind::Text => {
            let (numbers, nulls) = integers::widen(form, arrays, rows);
            return read_texts(&numbers, nulls, texts);
        }
        ColumnKind::Tally => {
            let bytes = next();
            return read_tallies(bytes.as_binary::<i32>(), texts);
        }
        ColumnKind::Bytes => Column::Bytes(next().as_binary::<i32>().clone()),
    }))
}

fn read_texts(
    numbers: &[i64],
    nulls: Option<NullBuffer>,
    texts: &ReceivedTexts,
) -> Result<Option<Column>, Malformed> {
    let ids = texts.ids(numbers, nulls.as_ref())?;
    Ok(ids.map(|ids| Column::Text(UInt32Array::new(ids.into(), nulls))))
}

fn read_tallies(bytes: &BinaryArray, texts: &ReceivedTexts) -> Result<Option<Column>, Malformed> {
    let mut tallies = Vec::with_capacity(bytes.len());
    for bytes in bytes.iter() {
        let Some(bytes) = bytes else {
            tallies.push(None);
            continue;
        };
        match tally::read(bytes, texts)? {
            Some(tally) => tallies.push(Some(Arc::new(tally))),
            None => return Ok(None),
        }
    }
    Ok(Some(Column::Tally(TallyArray::new(tallies))))
}
