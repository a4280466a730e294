//! [`SortKey`]: a row's place in an order, as bytes that compare in this order.

use weir_model::types::float_key;
use weir_model::{Column, Value};

use crate::plan::OrderBy;

/// The values of ORDER BY, then all columns of the row, by which rows with equal keys are ordered.
pub(super) struct SortKey {
    pub bytes: Vec<u8>,
    /// How many of the bytes are values of ORDER BY.
    pub order_len: usize,
}

/// The sort key of a row; `keys` are the values of `by` for all rows.
pub(super) fn sort_key(by: &[OrderBy], keys: &[Column], columns: &[Column], row: usize) -> SortKey {
    let mut bytes = Vec::with_capacity(9 * (keys.len() + columns.len()));
    append_order(by, keys, row, &mut bytes);
    let order_len = bytes.len();
    for column in columns {
        let value = column.value(row);
        bytes.push(u8::from(!value.is_null()));
        append(&value, &mut bytes);
    }
    SortKey { bytes, order_len }
}

/// Appends the first part of a row's sort key, the values of ORDER BY. No such part is a prefix of
/// another.
pub(super) fn append_order(by: &[OrderBy], keys: &[Column], row: usize, out: &mut Vec<u8>) {
    for (key, by) in keys.iter().zip(by) {
        let value = key.value(row);
        if value.is_null() {
            out.push(if by.nulls_first { 0 } else { 2 });
            continue;
        }
        out.push(1);
        let start = out.len();
        append(&value, out);
        if by.descending {
            out[start..].iter_mut().for_each(|b| *b = !*b);
        }
    }
}

/// Appends bytes that compare as the values of one type do, and of which none is a prefix of
/// another.
fn append(value: &Value, out: &mut Vec<u8>) {
    const SIGN: u64 = 1 << 63;
    match value {
        Value::Null => {}
        Value::Bool(x) => out.push(u8::from(*x)),
        Value::Int(x) => out.extend((*x as u64 ^ SIGN).to_be_bytes()),
        Value::Float(x) => {
            let bits = float_key(*x);
            let ordered = if bits & SIGN != 0 { !bits } else { bits ^ SIGN };
            out.extend(ordered.to_be_bytes());
        }
        Value::Text(x) => append_bytes(x.as_str().as_bytes(), out),
        Value::Tally(tally) => {
            for (value, count) in &tally.0 {
                out.push(1);
                append(value, out);
                append(&Value::Int(*count), out);
            }
            out.push(0);
        }
        Value::Bytes(bytes) => append_bytes(bytes, out),
    }
}

/// Appends the bytes, a zero as 0 255, and a terminator of 0 0.
fn append_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        out.push(byte);
        if byte == 0 {
            out.push(0xFF);
        }
    }
    out.extend([0, 0]);
}
