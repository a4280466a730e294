//! NBD's transmission phase: commands, their checks, and replies.
//!
//! Source: the NBD protocol, doc/proto.md of the NBD project. All numbers are big-endian.

use weir_model::Op;

use crate::{Outcome, Request};

/// Size of a guest's sector in bytes, independent of the disk's blocks.
const SECTOR_BYTES: u64 = 512;

/// The longest read or write: the minimum that every server should support (proto.md, "Block size
/// constraints").
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Commands.
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

/// Flags of commands.
const FUA: u16 = 1 << 0;
const NO_HOLE: u16 = 1 << 1;
const DF: u16 = 1 << 2;

/// Chunks of structured replies.
const REPLY_FLAG_DONE: u16 = 1 << 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_ERROR: u16 = (1 << 15) | 1;

/// Errors, as numbers that are the same on every system.
const EPERM: u32 = 1;
const EIO: u32 = 5;
const ENOMEM: u32 = 12;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ENOTSUP: u32 = 95;
const ESHUTDOWN: u32 = 108;

/// The properties of an export in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The alignment of offsets and lengths: a power of two.
    pub block_bytes: u32,
    /// Writes are forbidden.
    pub read_only: bool,
}

/// A client's command: the fixed part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    flags: u16,
    kind: u16,
    /// The client's identifier, which is copied to the reply. proto.md calls it handle, or cookie.
    pub cookie: u64,
    offset: u64,
    length: u32,
}

/// How a command is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// As a request to the disk.
    Execute(Request),
    /// It is rejected by this protocol or this export, and recorded as a request with this outcome.
    Reject(Request, Outcome),
    /// It is rejected, and is not a request to a disk.
    Invalid,
    /// The client disconnects.
    Disconnect,
}

impl Command {
    /// Its length on the wire.
    pub const BYTES: usize = 28;

    /// Decodes a command; `None` if the bytes are not one.
    pub fn read(bytes: &[u8; Command::BYTES]) -> Option<Command> {
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        (u32_at(0) == REQUEST_MAGIC).then(|| Command {
            flags: u16_at(4),
            kind: u16_at(6),
            cookie: u64_at(8),
            offset: u64_at(16),
            length: u32_at(24),
        })
    }

    /// The number of bytes that follow it.
    pub fn payload_bytes(&self) -> u32 {
        match self.kind {
            WRITE => self.length,
            _ => 0,
        }
    }

    /// Whether it is a read, whose reply has data.
    pub fn is_read(&self) -> bool {
        self.kind == READ
    }

    /// The number of bytes of the disk's data, for which it needs a buffer.
    pub fn data_bytes(&self) -> u32 {
        match self.kind {
            READ | WRITE => self.length,
            _ => 0,
        }
    }

    /// Checks the command. `structured`: replies are structured.
    pub fn check(&self, export: &Geometry, structured: bool) -> Disposition {
        let (op, flags) = match self.kind {
            READ if structured => (Op::Read, FUA | DF),
            READ => (Op::Read, FUA),
            WRITE => (Op::Write, FUA),
            FLUSH => (Op::Flush, FUA),
            TRIM => (Op::Discard, FUA),
            WRITE_ZEROES => (Op::WriteZeroes, FUA | NO_HOLE),
            DISCONNECT => return Disposition::Disconnect,
            _ => return Disposition::Invalid,
        };
        let writes = !matches!(op, Op::Read | Op::Flush);
        let request = match op {
            // Offset and length are reserved.
            Op::Flush => Request::FLUSH,
            _ => Request {
                op,
                sector: self.offset / SECTOR_BYTES,
                skip_bytes: (self.offset % SECTOR_BYTES) as u16,
                bytes: u64::from(self.length),
                fua: writes && self.flags & FUA != 0,
                unmap: op == Op::WriteZeroes && self.flags & NO_HOLE == 0,
            },
        };
        let reject = |errno: u32| Disposition::Reject(request, Outcome::Failed(errno as i32));
        if self.flags & !flags != 0 {
            return reject(EINVAL);
        }
        if op == Op::Flush {
            return Disposition::Execute(request);
        }
        let end = self.offset.checked_add(u64::from(self.length));
        let block = u64::from(export.block_bytes);
        if writes && export.read_only {
            reject(EPERM)
        } else if end.is_none_or(|end| end > export.size_bytes) {
            reject(if writes && op != Op::Discard {
                ENOSPC
            } else {
                EINVAL
            })
        } else if self.length == 0
            || !self.offset.is_multiple_of(block)
            || !u64::from(self.length).is_multiple_of(block)
        {
            reject(EINVAL)
        } else if self.data_bytes() > PAYLOAD_BYTES_MAX {
            reject(EOVERFLOW)
        } else {
            Disposition::Execute(request)
        }
    }
}

/// The error in a client's reply; 0 for none.
pub fn error_of(outcome: Outcome) -> u32 {
    match outcome {
        Outcome::Done => 0,
        Outcome::Unsupported => ENOTSUP,
        Outcome::Failed(errno) => match errno {
            libc::EPERM | libc::EACCES | libc::EROFS => EPERM,
            libc::ENOMEM => ENOMEM,
            libc::EINVAL => EINVAL,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ENOSPC,
            libc::EOVERFLOW => EOVERFLOW,
            libc::ENOTSUP => ENOTSUP,
            libc::ESHUTDOWN => ESHUTDOWN,
            _ => EIO,
        },
    }
}

/// The outcome of a command that is not a request to a disk.
pub const INVALID: Outcome = Outcome::Failed(EINVAL as i32);

/// The head before the data of a read, or the whole reply.
///
/// A read's data are one chunk, the last one: they are complete before the first byte is sent, so
/// no error can follow.
pub fn reply(command: &Command, outcome: Outcome, structured: bool) -> Vec<u8> {
    let error = error_of(outcome);
    let mut out = Vec::with_capacity(64);
    if !structured || (error == 0 && !command.is_read()) {
        out.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
        out.extend(error.to_be_bytes());
        out.extend(command.cookie.to_be_bytes());
        return out;
    }
    let mut chunk = |kind: u16, payload: u32| {
        out.extend(STRUCTURED_REPLY_MAGIC.to_be_bytes());
        out.extend(REPLY_FLAG_DONE.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend(command.cookie.to_be_bytes());
        out.extend(payload.to_be_bytes());
    };
    if error == 0 {
        chunk(CHUNK_OFFSET_DATA, 8 + command.length);
        out.extend(command.offset.to_be_bytes());
    } else {
        let error_message = error_message(error);
        chunk(CHUNK_ERROR, 6 + error_message.len() as u32);
        out.extend(error.to_be_bytes());
        out.extend((error_message.len() as u16).to_be_bytes());
        out.extend(error_message.as_bytes());
    }
    out
}

/// An error message for the client's log.
fn error_message(error: u32) -> &'static str {
    match error {
        EPERM => "the export is read-only",
        ENOMEM => "not enough memory",
        EINVAL => "invalid request: its flags, address or length",
        ENOSPC => "no space left, or beyond the end",
        EOVERFLOW => "longer than the maximum of 32 MiB",
        ENOTSUP => "the image does not support it",
        ESHUTDOWN => "the server is shutting down",
        _ => "the image cannot be read or written",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPORT: Geometry = Geometry {
        size_bytes: 1 << 30,
        block_bytes: 512,
        read_only: false,
    };

    fn command(kind: u16, flags: u16, offset: u64, length: u32) -> Command {
        Command {
            flags,
            kind,
            cookie: 7,
            offset,
            length,
        }
    }

    #[test]
    fn requests_are_decoded_and_executed() {
        let checked = |kind, flags| command(kind, flags, 4096, 8192).check(&EXPORT, true);
        let expected = |op, fua, unmap| {
            Disposition::Execute(Request {
                op,
                sector: 8,
                skip_bytes: 0,
                bytes: 8192,
                fua,
                unmap,
            })
        };
        assert_eq!(checked(READ, DF), expected(Op::Read, false, false));
        // Clients are known to set it on any command.
        assert_eq!(checked(READ, FUA), expected(Op::Read, false, false));
        assert_eq!(checked(WRITE, 0), expected(Op::Write, false, false));
        assert_eq!(checked(WRITE, FUA), expected(Op::Write, true, false));
        assert_eq!(checked(TRIM, FUA), expected(Op::Discard, true, false));
        assert_eq!(
            checked(WRITE_ZEROES, 0),
            expected(Op::WriteZeroes, false, true)
        );
        assert_eq!(
            checked(WRITE_ZEROES, NO_HOLE | FUA),
            expected(Op::WriteZeroes, true, false)
        );
        assert_eq!(checked(DISCONNECT, 0), Disposition::Disconnect);
        assert_eq!(
            checked(5, 0),
            Disposition::Invalid,
            "NBD_CMD_CACHE is not offered"
        );
        let flush = command(FLUSH, FUA, 99, 1).check(&EXPORT, true);
        assert_eq!(flush, Disposition::Execute(Request::FLUSH));
    }

    #[test]
    fn forbidden_requests_end_with_the_error_of_the_protocol() {
        let refused = |command: Command, export: &Geometry, structured| match command
            .check(export, structured)
        {
            Disposition::Reject(_, outcome) => error_of(outcome),
            other => panic!("{other:?}"),
        };
        let here = |kind, flags, offset, length| {
            refused(command(kind, flags, offset, length), &EXPORT, true)
        };
        assert_eq!(here(READ, NO_HOLE, 0, 512), EINVAL);
        assert_eq!(here(WRITE, DF, 0, 512), EINVAL);
        assert_eq!(refused(command(READ, DF, 0, 512), &EXPORT, false), EINVAL);
        assert_eq!(here(READ, 0, 100, 512), EINVAL);
        assert_eq!(here(READ, 0, 0, 100), EINVAL);
        assert_eq!(here(READ, 0, 0, 0), EINVAL);
        assert_eq!(here(READ, 0, EXPORT.size_bytes, 512), EINVAL);
        assert_eq!(here(WRITE, 0, EXPORT.size_bytes - 512, 1024), ENOSPC);
        assert_eq!(here(WRITE_ZEROES, 0, u64::MAX - 511, 1024), ENOSPC);
        assert_eq!(here(TRIM, 0, u64::MAX - 511, 1024), EINVAL);
        assert_eq!(here(READ, 0, 0, PAYLOAD_BYTES_MAX + 512), EOVERFLOW);
        let read_only = Geometry {
            read_only: true,
            ..EXPORT
        };
        for kind in [WRITE, TRIM, WRITE_ZEROES] {
            assert_eq!(refused(command(kind, 0, 0, 512), &read_only, true), EPERM);
        }
        let coarse = Geometry {
            block_bytes: 4096,
            ..EXPORT
        };
        assert_eq!(refused(command(READ, 0, 512, 4096), &coarse, true), EINVAL);
    }

    #[test]
    fn replies_have_the_negotiated_form() {
        let read = command(READ, 0, 4096, 512);
        let write = command(WRITE, 0, 4096, 512);
        let cookie = 7u64.to_be_bytes();
        let simple = |error: u32| {
            let magic = SIMPLE_REPLY_MAGIC.to_be_bytes();
            [&magic[..], &error.to_be_bytes(), &cookie].concat()
        };
        assert_eq!(reply(&read, Outcome::Done, false), simple(0));
        assert_eq!(reply(&write, Outcome::Done, true), simple(0));
        let failed = Outcome::Failed(libc::EDQUOT);
        assert_eq!(reply(&write, failed, false), simple(28));
        assert_eq!(reply(&read, Outcome::Unsupported, false), simple(95));
        let chunk = reply(&read, Outcome::Done, true);
        assert_eq!(chunk[..4], STRUCTURED_REPLY_MAGIC.to_be_bytes());
        assert_eq!(chunk[4..8], [0, 1, 0, 1], "done, data");
        assert_eq!(chunk[8..16], cookie);
        assert_eq!(chunk[16..20], 520u32.to_be_bytes());
        assert_eq!(chunk[20..], 4096u64.to_be_bytes());
        let error = reply(&write, Outcome::Failed(libc::EBADF), true);
        assert_eq!(error[4..8], [0, 1, 0x80, 1], "done, an error");
        assert_eq!(
            error[20..24],
            EIO.to_be_bytes(),
            "what is not listed is EIO"
        );
        let error_message = u16::from_be_bytes([error[24], error[25]]);
        assert_eq!(error.len(), 26 + usize::from(error_message));
        assert_eq!(error[16..20], (6 + u32::from(error_message)).to_be_bytes());
    }
}
