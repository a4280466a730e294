//! [`Work`]: the sequence of calls for a request, independent of the engine.
//!
//! A request usually is one call. It needs more when the kernel transfers only a part, when its
//! memory is not aligned for `O_DIRECT` and is copied through a [`Buffer`], when the image does not
//! support the operation (zeroes are written then), and when it must be on stable storage at the
//! end.
#![allow(unsafe_code)] // It copies between a guest's memory, which is raw pointers, and its own.

use libc::{EINTR, EIO, ENOSYS, EOPNOTSUPP, iovec};
use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};
use weir_model::Op;

use super::bounce::{BUFFER_BYTES, Buffer, Pool};
use crate::disk::{Alignment, ServedDisk};
use crate::{Outcome, Request};

/// A system call. Its pointers are valid until [`Work::ended`] receives its result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// preadv(2)
    Read(Transfer),
    /// pwritev2(2), with `RWF_DSYNC` when it is `durable`
    Write { span: Transfer, durable: bool },
    /// fdatasync(2)
    Sync,
    /// fallocate(2)
    Allocate { mode: i32, offset: u64, bytes: u64 },
    /// `BLKDISCARD`
    Discard { offset: u64, bytes: u64 },
}

/// Memory and its position in the image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) pieces: *const iovec,
    pub(crate) count: u32,
    pub(crate) offset: u64,
}

/// What follows a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another call.
    Continue,
    /// Nothing.
    End(Outcome),
}

/// Maximum number of memory pieces in a call: `UIO_MAXIOV` (linux/uio.h).
const PIECES_MAX: usize = 1024;

/// Pieces in a call that writes zeroes: 4 MiB at a time.
const ZERO_PIECES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Transfer,
    Discard,
    /// The range becomes a hole, which reads as zeroes.
    PunchZeroes,
    ZeroRange,
    WriteZeroes,
    Sync,
}

/// A request in progress. It is reused for the next one, with its allocations.
#[derive(Debug)]
pub(crate) struct Work {
    op: Op,
    fua: bool,
    stage: Stage,
    /// The start of the remaining part of the image, and its length, in bytes.
    offset: u64,
    remaining: u64,
    /// The request's memory; finished parts are removed from the front.
    pieces: Vec<iovec>,
    first: usize,
    /// The memory is not aligned for `O_DIRECT`.
    bounces: bool,
    buffer: Option<Buffer>,
    /// The piece that is `buffer`.
    bounced: iovec,
}

// SAFETY: its pointers are a guest's memory, valid for every thread as long as the caller has
// guaranteed, and its own buffer.
unsafe impl Send for Work {}

const NOTHING: iovec = iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
};

impl Work {
    pub(crate) fn new() -> Work {
        Work {
            op: Op::Flush,
            fua: false,
            stage: Stage::Sync,
            offset: 0,
            remaining: 0,
            pieces: Vec::new(),
            first: 0,
            bounces: false,
            buffer: None,
            bounced: NOTHING,
        }
    }

    /// Starts a request that is valid for the disk. `buffers` is the memory of reads and writes.
    pub(crate) fn begin(&mut self, request: &Request, buffers: &[iovec], disk: &ServedDisk) {
        self.op = request.op;
        self.fua = request.fua;
        self.offset = request
            .offset_bytes()
            .expect("the I/O queue has checked it");
        self.remaining = request.bytes;
        self.first = 0;
        self.pieces.clear();
        self.stage = match request.op {
            Op::Read | Op::Write => {
                self.pieces
                    .extend(buffers.iter().filter(|piece| piece.iov_len > 0));
                Stage::Transfer
            }
            Op::Flush => Stage::Sync,
            Op::Discard => Stage::Discard,
            Op::WriteZeroes if request.unmap => Stage::PunchZeroes,
            Op::WriteZeroes => Stage::ZeroRange,
        };
        let direct = disk.choice().direct;
        self.bounces = direct.is_some_and(|alignment| !is_aligned(&self.pieces, alignment));
    }

    /// The next call; `None` when it waits for a buffer of the pool.
    pub(crate) fn call(&mut self, disk: &ServedDisk, pool: &mut Pool) -> Option<Call> {
        let (offset, bytes) = (self.offset, self.remaining);
        let allocate = |mode| Call::Allocate {
            mode: mode | FALLOC_FL_KEEP_SIZE,
            offset,
            bytes,
        };
        Some(match self.stage {
            Stage::Sync => Call::Sync,
            Stage::Discard if disk.is_device() => Call::Discard { offset, bytes },
            Stage::Discard | Stage::PunchZeroes => allocate(FALLOC_FL_PUNCH_HOLE),
            Stage::ZeroRange => allocate(FALLOC_FL_ZERO_RANGE),
            Stage::WriteZeroes => {
                self.fill_with_zeroes(pool);
                self.write(self.span(), disk)
            }
            Stage::Transfer => {
                let span = match self.bounces {
                    true => self.bounced_span(pool)?,
                    false => self.span(),
                };
                match self.op {
                    Op::Read => Call::Read(span),
                    _ => self.write(span, disk),
                }
            }
        })
    }

    /// Through the page cache a durable write is a write and a sync: only an error of a sync means
    /// lost data.
    fn write(&self, span: Transfer, disk: &ServedDisk) -> Call {
        let durable = self.fua && disk.choice().direct.is_some();
        Call::Write { span, durable }
    }

    fn span(&self) -> Transfer {
        let pieces = &self.pieces[self.first..];
        Transfer {
            pieces: pieces.as_ptr(),
            count: pieces.len().min(PIECES_MAX) as u32,
            offset: self.offset,
        }
    }

    /// The next part of the request in a buffer: filled for a write, empty for a read.
    fn bounced_span(&mut self, pool: &mut Pool) -> Option<Transfer> {
        if self.buffer.is_none() {
            self.buffer = Some(pool.take()?);
        }
        let start = self
            .buffer
            .as_ref()
            .expect("a buffer was allocated before")
            .start();
        let bytes = self.remaining.min(BUFFER_BYTES as u64) as usize;
        if self.op == Op::Write {
            // SAFETY: the request's memory stays valid until it ends, and the buffer is ours and
            // has room for `bytes`.
            unsafe { gather(&self.pieces[self.first..], start, bytes) };
        }
        self.bounced = iovec {
            iov_base: start.cast(),
            iov_len: bytes,
        };
        Some(Transfer {
            pieces: &raw const self.bounced,
            count: 1,
            offset: self.offset,
        })
    }

    fn fill_with_zeroes(&mut self, pool: &mut Pool) {
        let zeroes = pool.zeroes().cast_mut().cast();
        let mut remaining = self.remaining;
        self.first = 0;
        self.pieces.clear();
        while remaining > 0 && self.pieces.len() < ZERO_PIECES {
            let bytes = remaining.min(BUFFER_BYTES as u64);
            self.pieces.push(iovec {
                iov_base: zeroes,
                iov_len: bytes as usize,
            });
            remaining -= bytes;
        }
    }

    /// Processes a call's result: bytes or 0, or a negative errno.
    pub(crate) fn ended(&mut self, result: i32, disk: &ServedDisk, pool: &mut Pool) -> Next {
        let next = match -result {
            EINTR => Next::Continue,
            errno if errno > 0 => self.failed(errno, disk),
            _ => self.continue_after(result as u64, disk),
        };
        if let Next::End(_) = next
            && let Some(buffer) = self.buffer.take()
        {
            pool.give(buffer);
        }
        next
    }

    fn failed(&mut self, errno: i32, disk: &ServedDisk) -> Next {
        let impossible = matches!(errno, EOPNOTSUPP | ENOSYS);
        let instead = match self.stage {
            Stage::Discard if impossible => return Next::End(Outcome::Unsupported),
            Stage::PunchZeroes if impossible => Stage::ZeroRange,
            Stage::ZeroRange if impossible => Stage::WriteZeroes,
            Stage::Sync => {
                if disk.choice().direct.is_none() {
                    disk.set_write_back_error(errno);
                }
                return Next::End(Outcome::Failed(errno));
            }
            _ => return Next::End(Outcome::Failed(errno)),
        };
        self.stage = instead;
        Next::Continue
    }

    /// Continues after a call that did its work, or a part of it.
    fn continue_after(&mut self, bytes: u64, disk: &ServedDisk) -> Next {
        match self.stage {
            Stage::Sync => match disk.write_back_error() {
                // Another queue's flush has received the error that written data are lost.
                Some(errno) => Next::End(Outcome::Failed(errno)),
                None => Next::End(Outcome::Done),
            },
            Stage::Discard | Stage::PunchZeroes | Stage::ZeroRange => self.then_sync(),
            Stage::Transfer | Stage::WriteZeroes => {
                // Beyond the end of a file there is nothing to read, and a call without progress
                // would repeat for ever.
                if bytes == 0 || bytes > self.remaining {
                    return Next::End(Outcome::Failed(EIO));
                }
                if let Some(buffer) = self.buffer.as_ref().filter(|_| self.op == Op::Read) {
                    // SAFETY: the request's memory stays valid until it ends, and the kernel has
                    // put `bytes` into the buffer, which is ours.
                    unsafe { scatter(buffer.start(), bytes as usize, &self.pieces[self.first..]) };
                }
                self.cut(bytes);
                let part_of_a_block = disk
                    .choice()
                    .direct
                    .is_some_and(|direct| !self.offset.is_multiple_of(u64::from(direct.offset)));
                match self.remaining {
                    0 => self.transferred(disk),
                    // The file ends inside a block; `O_DIRECT` cannot continue there.
                    _ if part_of_a_block => Next::End(Outcome::Failed(EIO)),
                    _ => Next::Continue,
                }
            }
        }
    }

    fn transferred(&mut self, disk: &ServedDisk) -> Next {
        match disk.choice().direct {
            // The calls were durable themselves.
            Some(_) => Next::End(Outcome::Done),
            None => self.then_sync(),
        }
    }

    /// Syncs at the end if that was requested.
    fn then_sync(&mut self) -> Next {
        if !self.fua {
            return Next::End(Outcome::Done);
        }
        self.stage = Stage::Sync;
        Next::Continue
    }

    fn cut(&mut self, bytes: u64) {
        self.offset += bytes;
        self.remaining -= bytes;
        let mut bytes = bytes as usize;
        while bytes > 0 {
            let piece = &mut self.pieces[self.first];
            let cut = bytes.min(piece.iov_len);
            piece.iov_base = piece.iov_base.wrapping_byte_add(cut);
            piece.iov_len -= cut;
            bytes -= cut;
            if piece.iov_len == 0 {
                self.first += 1;
            }
        }
    }
}

/// Whether memory can be passed to the kernel directly.
fn is_aligned(pieces: &[iovec], alignment: Alignment) -> bool {
    let Alignment { offset, memory } = alignment;
    pieces.iter().all(|piece| {
        piece.iov_base.addr() % memory as usize == 0 && piece.iov_len % offset as usize == 0
    })
}

/// Copies the first `bytes` of pieces into a buffer.
///
/// # Safety
/// The pieces can be read, and `bytes` at `to` can be written.
unsafe fn gather(pieces: &[iovec], to: *mut u8, bytes: usize) {
    let mut done = 0;
    for piece in pieces {
        let part = piece.iov_len.min(bytes - done);
        // SAFETY: `done + part <= bytes`; a guest's memory and ours do not overlap.
        unsafe {
            to.add(done)
                .copy_from_nonoverlapping(piece.iov_base.cast(), part)
        };
        done += part;
    }
}

/// Copies `bytes` of a buffer into pieces.
///
/// # Safety
/// `bytes` at `from` can be read, and the pieces can be written.
unsafe fn scatter(from: *const u8, bytes: usize, pieces: &[iovec]) {
    let mut done = 0;
    for piece in pieces {
        let part = piece.iov_len.min(bytes - done);
        // SAFETY: `done + part <= bytes`; a guest's memory and ours do not overlap.
        unsafe {
            from.add(done)
                .copy_to_nonoverlapping(piece.iov_base.cast(), part)
        };
        done += part;
    }
}
