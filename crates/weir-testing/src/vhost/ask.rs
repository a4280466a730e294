//! [`BlockRequest`]: a request of the client, and [`RequestStatus`]: its outcome as reported by the
//! back end.

use anyhow::{Result, bail};

/// The type of a request (virtio 1.2, section 5.2.6, `type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestKind {
    /// 0, `VIRTIO_BLK_T_IN`
    Read,
    /// 1, `VIRTIO_BLK_T_OUT`
    Write,
    /// 4, `VIRTIO_BLK_T_FLUSH`
    Flush,
    /// 8, `VIRTIO_BLK_T_GET_ID`: the disk's serial, 20 bytes.
    Id,
    /// 11, `VIRTIO_BLK_T_DISCARD`
    Discard,
    /// 13, `VIRTIO_BLK_T_WRITE_ZEROES`
    WriteZeroes {
        /// The space may be deallocated.
        unmap: bool,
    },
    /// Any other number, which a disk may not support. Its data are written to the disk.
    Other(u32),
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockRequest {
    /// The type.
    pub kind: RequestKind,
    /// First sector of 512 bytes; 0 for a flush.
    pub sector: u64,
    /// Length in bytes; 0 for a flush.
    pub bytes: usize,
}

/// The outcome of a request (virtio 1.2, section 5.2.6, `status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum RequestStatus {
    /// 0, `VIRTIO_BLK_S_OK`
    Done,
    /// 1, `VIRTIO_BLK_S_IOERR`
    Failed,
    /// 2, `VIRTIO_BLK_S_UNSUPP`
    Unsupported,
}

impl RequestKind {
    /// weir's letter for it: `r`, `w`, `f`, `d`, `z`; `None` for requests that are not I/O.
    pub fn letter(self) -> Option<char> {
        match self {
            RequestKind::Read => Some('r'),
            RequestKind::Write => Some('w'),
            RequestKind::Flush => Some('f'),
            RequestKind::Discard => Some('d'),
            RequestKind::WriteZeroes { .. } => Some('z'),
            RequestKind::Id | RequestKind::Other(_) => None,
        }
    }

    pub(super) fn number(self) -> u32 {
        match self {
            RequestKind::Read => 0,
            RequestKind::Write => 1,
            RequestKind::Flush => 4,
            RequestKind::Id => 8,
            RequestKind::Discard => 11,
            RequestKind::WriteZeroes { .. } => 13,
            RequestKind::Other(number) => number,
        }
    }

    /// Whether the location is in a range of its own and not in the header.
    pub(super) fn has_range(self) -> bool {
        matches!(self, RequestKind::Discard | RequestKind::WriteZeroes { .. })
    }

    /// Whether it has data.
    pub(super) fn has_data(self) -> bool {
        !self.has_range() && self != RequestKind::Flush
    }
}

impl RequestStatus {
    pub(super) fn from_byte(byte: u8) -> Result<RequestStatus> {
        Ok(match byte {
            0 => RequestStatus::Done,
            1 => RequestStatus::Failed,
            2 => RequestStatus::Unsupported,
            _ => bail!(
                "the back end ended a request with status {byte:#x}, which virtio-blk does not have"
            ),
        })
    }

    /// An error unless it is [`RequestStatus::Done`].
    pub fn done(self) -> Result<()> {
        match self {
            RequestStatus::Done => Ok(()),
            RequestStatus::Failed => bail!("the disk with_timeout with an I/O error"),
            RequestStatus::Unsupported => bail!("the disk does not support this request"),
        }
    }
}
