//! Encoding of a tally (a list of values with counts): the number of entries, then each value and
//! its count.
//!
//! Numbers are protocol buffers' variable-length integers, signed ones zigzag. A value starts with
//! a type byte: 0 NULL, 1 false, 2 true, 3 integer, 4 float (8 bytes, little-endian), 5 number of a
//! text, 6 tally, 7 bytes (length, then the bytes).

use std::sync::Arc;

use prost::bytes::Buf;
use prost::encoding::{decode_varint, encode_varint};
use weir_model::{Symbol, Tally, Value};

use super::FrameError;
use super::texts::{ReceivedTexts, TextTable};
use crate::error::Malformed;

/// The largest nesting depth of tallies.
const DEPTH_MAX: usize = 4;
const TOO_DEEP: &str = "has more entries than bytes, or is nested too deeply";
/// The smallest entry: a type byte and a count.
const ENTRY_BYTES_MIN: usize = 2;

/// Encodes a tally.
///
/// # Errors
/// If the table has no room for one of its texts, or it is nested too deeply.
pub fn write(tally: &Tally, texts: &mut TextTable) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::with_capacity(1 + tally.0.len() * 4);
    put(tally, texts, &mut out, DEPTH_MAX)?;
    Ok(out)
}

fn put(
    tally: &Tally,
    texts: &mut TextTable,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), FrameError> {
    if depth == 0 {
        return Err(FrameError::Malformed(off(TOO_DEEP)));
    }
    encode_varint(tally.0.len() as u64, out);
    for (value, count) in &tally.0 {
        match value {
            Value::Null => out.push(0),
            Value::Bool(value) => out.push(1 + u8::from(*value)),
            Value::Int(value) => {
                out.push(3);
                encode_varint(zigzag(*value), out);
            }
            Value::Float(value) => {
                out.push(4);
                out.extend_from_slice(&value.to_bits().to_le_bytes());
            }
            Value::Text(symbol) => {
                let number = texts.number(*symbol).ok_or(FrameError::TextBudget)?;
                out.push(5);
                encode_varint(u64::from(number), out);
            }
            Value::Tally(inner) => {
                out.push(6);
                put(inner, texts, out, depth - 1)?;
            }
            Value::Bytes(bytes) => {
                out.push(7);
                encode_varint(bytes.len() as u64, out);
                out.extend_from_slice(bytes);
            }
        }
        encode_varint(zigzag(*count), out);
    }
    Ok(())
}

/// Decodes a tally; `None` if it refers to a text beyond the budget.
pub fn read(mut bytes: &[u8], texts: &ReceivedTexts) -> Result<Option<Tally>, Malformed> {
    let tally = take(&mut bytes, texts, DEPTH_MAX)?;
    match bytes.is_empty() {
        true => Ok(tally),
        false => Err(off("has trailing bytes")),
    }
}

fn take(
    bytes: &mut &[u8],
    texts: &ReceivedTexts,
    depth: usize,
) -> Result<Option<Tally>, Malformed> {
    let entries = varint(bytes)? as usize;
    if depth == 0 || entries > bytes.len() / ENTRY_BYTES_MIN {
        return Err(off(TOO_DEEP));
    }
    let mut tally = Some(Vec::with_capacity(entries));
    for _ in 0..entries {
        let kind = *bytes.split_off_first().ok_or_else(|| off("ends early"))?;
        let value = match kind {
            0 => Some(Value::Null),
            1 | 2 => Some(Value::Bool(kind == 2)),
            3 => Some(Value::Int(unzigzag(varint(bytes)?))),
            4 if bytes.len() >= 8 => Some(Value::Float(bytes.get_f64_le())),
            5 => {
                let number = varint(bytes)?;
                let number = u32::try_from(number).map_err(|_| off("has an unknown text"))?;
                texts.id(number)?.map(|id| Value::Text(Symbol::from_id(id)))
            }
            6 => take(bytes, texts, depth - 1)?.map(|inner| Value::Tally(Arc::new(inner))),
            7 => {
                let length = varint(bytes)?;
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let value = bytes.split_off(..length).ok_or_else(|| off("ends early"))?;
                Some(Value::Bytes(value.into()))
            }
            _ => return Err(off("has an unknown kind of value")),
        };
        let count = unzigzag(varint(bytes)?);
        tally = tally.zip(value).map(|(mut entries, value)| {
            entries.push((value, count));
            entries
        });
    }
    Ok(tally.map(Tally))
}

fn off(what: &str) -> Malformed {
    Malformed(format!("rows: a tally {what}"))
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    decode_varint(bytes).map_err(|_| off("ends early"))
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(written: u64) -> i64 {
    (written >> 1) as i64 ^ -((written & 1) as i64)
}
