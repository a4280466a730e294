//! [`Request`]: a guest's request, as decoded by the front end.

use weir_model::{Op, SECTOR_BYTES};

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// First sector of 512 bytes; 0 for a flush.
    pub sector: u64,
    /// Bytes at the start of that sector that it excludes: 0 unless the disk's
    /// [step](crate::ServedDisk::step_bytes) is less than a sector.
    pub skip_bytes: u16,
    /// Length in bytes; 0 for a flush. The I/O queue checks it against the disk's blocks and its
    /// end.
    pub bytes: u64,
    /// A write must be on stable storage when it ends.
    pub fua: bool,
    /// Space that is overwritten with zeroes may be deallocated.
    pub unmap: bool,
}

impl Request {
    /// A flush.
    pub const FLUSH: Request = Request::new(Op::Flush, 0, 0);

    /// A request without options.
    pub const fn new(op: Op, sector: u64, bytes: u64) -> Request {
        Request {
            op,
            sector,
            skip_bytes: 0,
            bytes,
            fua: false,
            unmap: false,
        }
    }
}

impl Request {
    /// Its start in bytes; `None` on overflow of 64 bits.
    pub fn offset_bytes(&self) -> Option<u64> {
        let sector = self.sector.checked_mul(SECTOR_BYTES as u64)?;
        sector.checked_add(u64::from(self.skip_bytes))
    }

    /// Bytes from the start of its first to the end of its last sector.
    pub fn whole_bytes(&self) -> u64 {
        let end = u64::from(self.skip_bytes).saturating_add(self.bytes);
        end.checked_next_multiple_of(SECTOR_BYTES as u64)
            .unwrap_or(end)
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Successful.
    Done,
    /// Failed with this errno.
    Failed(i32),
    /// The disk does not support it.
    Unsupported,
}
