//! Integers in as few bytes as their range needs: frame of reference, without common trailing zero
//! bits.
//!
//! `value = base + (written << shift)`, in wrapping 64-bit arithmetic. See "frame of reference" in
//! Goldstein, Ramakrishnan and Shaft, Compressing Relations and Indexes, ICDE 1998.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt8Type, UInt16Type, UInt32Type};
use arrow_array::{Array, ArrayRef, Int64Array, UInt8Array, UInt16Array, UInt32Array};
use arrow_buffer::{NullBuffer, ScalarBuffer};

use super::ipc::Stored;
use crate::error::Malformed;
use crate::message::{ColumnEncoding, ColumnKind};

/// The narrow encoding of `values`, and the array to write, if any.
pub fn narrow(kind: ColumnKind, values: &ScalarBuffer<i64>, nulls: Option<&NullBuffer>) -> Written {
    let kind = i32::from(kind);
    // Values under a NULL take part in the range: that may cost bytes, never correctness.
    let nulls = nulls.filter(|n| n.null_count() > 0).cloned();
    let base = values.iter().copied().min().unwrap_or(0);
    let bits = values
        .iter()
        .fold(0, |bits, value| bits | value.wrapping_sub(base) as u64);
    let shift = if bits == 0 { 0 } else { bits.trailing_zeros() };
    let form = |width| ColumnEncoding {
        kind,
        width_bytes: width,
        shift,
        base,
    };
    let differences = values
        .iter()
        .map(|v| (v.wrapping_sub(base) as u64) >> shift);
    let (width, array): (u32, ArrayRef) = match bits >> shift {
        0 if nulls.is_none() => return (form(0), None),
        0..=0xff => {
            let written: Vec<u8> = differences.map(|d| d as u8).collect();
            (1, Arc::new(UInt8Array::new(written.into(), nulls)))
        }
        0x100..=0xffff => {
            let written: Vec<u16> = differences.map(|d| d as u16).collect();
            (2, Arc::new(UInt16Array::new(written.into(), nulls)))
        }
        0x1_0000..=0xffff_ffff => {
            let written: Vec<u32> = differences.map(|d| d as u32).collect();
            (4, Arc::new(UInt32Array::new(written.into(), nulls)))
        }
        _ => {
            let whole = ColumnEncoding {
                kind,
                width_bytes: 8,
                shift: 0,
                base: 0,
            };
            let array = Int64Array::new(values.clone(), nulls);
            return (whole, Some(Arc::new(array)));
        }
    };
    (form(width), Some(array))
}

/// An encoding and its array.
pub type Written = (ColumnEncoding, Option<ArrayRef>);

/// The Arrow type of the written array, if there is one.
pub fn stored_as(form: &ColumnEncoding) -> Result<Option<Stored>, Malformed> {
    if form.shift > 63 {
        return Err(Malformed(format!("rows: a shift by {} bits", form.shift)));
    }
    Ok(match form.width_bytes {
        0 => None,
        1 => Some(Stored::UInt8),
        2 => Some(Stored::UInt16),
        4 => Some(Stored::UInt32),
        8 => Some(Stored::Int64),
        width => return Err(Malformed(format!("rows: integers of {width} bytes"))),
    })
}

/// Decodes the values of an encoding accepted by [`stored_as`], whose array comes next.
pub fn widen(
    form: &ColumnEncoding,
    arrays: &mut impl Iterator<Item = ArrayRef>,
    rows: usize,
) -> (ScalarBuffer<i64>, Option<NullBuffer>) {
    if form.width_bytes == 0 {
        return (vec![form.base; rows].into(), None);
    }
    let array = arrays
        .next()
        .expect("ipc::read gives an array of each type");
    let value = |written: u64| form.base.wrapping_add((written << form.shift) as i64);
    let values: ScalarBuffer<i64> = match form.width_bytes {
        1 => widened(array.as_primitive::<UInt8Type>().values(), value),
        2 => widened(array.as_primitive::<UInt16Type>().values(), value),
        4 => widened(array.as_primitive::<UInt32Type>().values(), value),
        _ if form.base == 0 && form.shift == 0 => {
            array.as_primitive::<Int64Type>().values().clone()
        }
        _ => {
            let written = array.as_primitive::<Int64Type>().values();
            written.iter().map(|w| value(*w as u64)).collect()
        }
    };
    (values, array.nulls().cloned())
}

fn widened<W: Copy + Into<u64>>(written: &[W], value: impl Fn(u64) -> i64) -> ScalarBuffer<i64> {
    written.iter().map(|w| value((*w).into())).collect()
}
