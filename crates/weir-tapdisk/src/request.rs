//! [`Request`]: what a guest wants of its disk, as the front end understood it.

use weir_model::Op;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub op: Op,
    /// First sector of 512 bytes; 0 for a flush.
    pub sector: u64,
    /// Length in bytes; 0 for a flush. Any length: whether it fits the disk's blocks and its end is the
    /// lane's to check.
    pub bytes: u64,
    /// A write is to be on stable storage when it is done.
    pub fua: bool,
    /// What is overwritten with zeroes may be given back to the file system.
    pub unmap: bool,
}

impl Request {
    /// A flush.
    pub const FLUSH: Request = Request::new(Op::Flush, 0, 0);

    /// A request that asks for nothing special.
    pub const fn new(op: Op, sector: u64, bytes: u64) -> Request {
        Request {
            op,
            sector,
            bytes,
            fua: false,
            unmap: false,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, whole.
    Done,
    /// Failed with this errno.
    Failed(i32),
    /// The disk does not do such a thing.
    Unsupported,
}
