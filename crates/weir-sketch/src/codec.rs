//! Compact bytes for a summary: integers as LEB128 (signed ones zigzag first), floats as 8 bytes,
//! little endian.
//!
//! LEB128 is the variable-length form of DWARF (version 5, section 7.6) and protocol buffers: seven
//! bits a byte, least significant first, the high bit set on all but the last.

use std::fmt;

/// Appends an unsigned integer: 1 to 10 bytes, small ones short.
pub fn put_u64(out: &mut Vec<u8>, mut x: u64) {
    while x >= 0x80 {
        out.push(x as u8 | 0x80);
        x >>= 7;
    }
    out.push(x as u8);
}

/// Appends a signed integer: 1 to 10 bytes, those near zero short.
pub fn put_i64(out: &mut Vec<u8>, x: i64) {
    put_u64(out, ((x << 1) ^ (x >> 63)) as u64);
}

/// Appends a float.
pub fn put_f64(out: &mut Vec<u8>, x: f64) {
    out.extend(x.to_le_bytes());
}

/// Appends a length and as many bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend(bytes);
}

/// Invalid bytes: truncated, out of range, or of another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SketchDecodeError(pub &'static str);

impl fmt::Display for SketchDecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed summary: {}", self.0)
    }
}

impl std::error::Error for SketchDecodeError {}

/// A reader of the remaining bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Bytes<'a> {
        Bytes(bytes)
    }

    /// The next byte.
    ///
    /// # Errors
    /// If no byte is left, as for all methods of this reader.
    pub fn byte(&mut self) -> Result<u8, SketchDecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads an integer written by [`put_u64`].
    ///
    /// # Errors
    /// Also if the value has more than 64 bits.
    pub fn u64(&mut self) -> Result<u64, SketchDecodeError> {
        let mut x = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            x |= bits << shift;
            if byte < 0x80 {
                return Ok(x);
            }
        }
        Err(SketchDecodeError("an integer has more than 64 bits"))
    }

    /// Reads an integer written by [`put_i64`].
    ///
    /// # Errors
    /// As [`Bytes::u64`].
    pub fn i64(&mut self) -> Result<i64, SketchDecodeError> {
        let x = self.u64()?;
        Ok((x >> 1) as i64 ^ -((x & 1) as i64))
    }

    /// Reads a float written by [`put_f64`].
    ///
    /// # Errors
    /// If fewer than 8 bytes are left.
    pub fn f64(&mut self) -> Result<f64, SketchDecodeError> {
        Ok(f64::from_le_bytes(self.array()?))
    }

    /// Reads bytes written by [`put_bytes`].
    ///
    /// # Errors
    /// If fewer bytes are left than the length.
    pub fn bytes(&mut self) -> Result<&'a [u8], SketchDecodeError> {
        let len = self.length(1)?;
        let (head, tail) = self.0.split_at(len);
        self.0 = tail;
        Ok(head)
    }

    /// The number of items that follow, each at least `item_bytes` long. It never exceeds what the
    /// remaining bytes can hold, so it is safe to allocate for.
    ///
    /// # Errors
    /// If the length is larger than that.
    pub fn length(&mut self, item_bytes: usize) -> Result<usize, SketchDecodeError> {
        let len = self.u64()?;
        let most = (self.0.len() / item_bytes) as u64;
        if len > most {
            return Err(SketchDecodeError("a length exceeds the remaining bytes"));
        }
        Ok(len as usize)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], SketchDecodeError> {
        let (head, tail) = self
            .0
            .split_first_chunk()
            .ok_or(SketchDecodeError("truncated"))?;
        self.0 = tail;
        Ok(*head)
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// If bytes are left.
    pub fn end(self) -> Result<(), SketchDecodeError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(SketchDecodeError("trailing bytes"))
        }
    }
}
