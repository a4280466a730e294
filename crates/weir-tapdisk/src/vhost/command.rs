//! [`Command`]: what a chain of buffers asks of a virtio block device (virtio 1.2, section 5.2.6).
//!
//! The driver's header comes first, data follow, the last byte that we may write is the status. How
//! the buffers are cut is the driver's choice: legacy ones and odd ones are read alike.

use libc::iovec;
use virtio_bindings::bindings::virtio_blk as abi;
use vm_memory::{GuestAddress, GuestMemoryBackend, VolatileSlice};
use weir_model::Op;

use super::chain::{Chain, Span};
use super::memory::{GuestMemory, copy_from, in_one_region};
use crate::{Outcome, Request};

/// Ranges in one discard or one write of zeroes, at most.
pub const RANGES_MAX: usize = 32;
/// Sectors of 512 bytes in one such range, at most: 2 GiB.
pub const RANGE_SECTORS_MAX: u32 = 1 << 22;
/// Bytes of one read or write, at most: what Linux carries out in one call (`MAX_RW_COUNT`).
pub const DATA_BYTES_MAX: u64 = (i32::MAX as u64) & !4095;
/// Pieces of memory in one read or write, at most: what Linux takes (`UIO_MAXIOV`).
pub const PIECES_MAX: usize = 1024;
/// Bytes of a disk's serial number, as a guest asks for it.
pub const SERIAL_BYTES: usize = abi::VIRTIO_BLK_ID_BYTES as usize;

const HEADER_BYTES: u64 = 16;
const RANGE_BYTES: usize = 16;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// This request. Data are in `buffers`.
    Carry(Request),
    /// The requests in `ranges`, one after the other.
    CarryRanges,
    /// The serial number goes to `buffers`.
    Identify,
    /// Nothing: it ends like this. There is a request if it is one of those that taps know.
    Refuse(Option<Request>, Outcome),
}

impl Action {
    /// It is refused because something of it is where the guest has no memory.
    pub fn lacks_memory(&self) -> bool {
        matches!(self, Action::Refuse(_, Outcome::Failed(libc::EFAULT)))
    }
}

/// A command, and where its answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What is to be done.
    pub action: Action,
    /// Where the status byte goes. The guest has memory there.
    pub status: GuestAddress,
    /// Bytes that are written before the status, if all goes well.
    pub answer_bytes: u32,
}

/// The chain has no byte for a status, so nobody can be told of anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request without a status byte in the guest's memory")]
pub struct NoStatus;

/// What a command carries, beside itself. One is used again and again, for the sake of its room.
#[derive(Debug, Default)]
pub struct Cargo {
    /// The guest's memory that data come from or go to, mapped.
    pub buffers: Vec<iovec>,
    /// What is to be discarded or overwritten, in order.
    pub ranges: Vec<Request>,
}

/// Reads the command that `chain` is. `write_through` says that the driver cannot flush, so that
/// every write must be durable when it is done.
///
/// # Errors
/// There is no place for a status.
pub fn read(
    memory: &GuestMemory,
    chain: &Chain,
    write_through: bool,
    cargo: &mut Cargo,
) -> Result<Command, NoStatus> {
    cargo.buffers.clear();
    cargo.ranges.clear();
    let status = status_address(memory, chain)?;
    let mut command = Command {
        action: Action::Identify,
        status,
        answer_bytes: 0,
    };
    let mut header = [0; HEADER_BYTES as usize];
    if let Err(errno) = gather(memory, &chain.readable, 0, &mut header) {
        command.action = Action::Refuse(None, Outcome::Failed(errno));
        return Ok(command);
    }
    let kind = u32::from_le_bytes(header[..4].try_into().expect("4 bytes"));
    let sector = u64::from_le_bytes(header[8..].try_into().expect("8 bytes"));
    let parts = Parts {
        memory,
        chain,
        out_bytes: total(&chain.readable) - HEADER_BYTES,
        in_bytes: total(&chain.writable) - 1,
    };
    command.action = match kind {
        abi::VIRTIO_BLK_T_IN => {
            command.answer_bytes = u32::try_from(parts.in_bytes).unwrap_or(u32::MAX - 1);
            parts.data(Op::Read, sector, false, cargo)
        }
        abi::VIRTIO_BLK_T_OUT => parts.data(Op::Write, sector, write_through, cargo),
        abi::VIRTIO_BLK_T_FLUSH => parts.flush(),
        abi::VIRTIO_BLK_T_DISCARD => parts.ranges(Op::Discard, false, cargo),
        abi::VIRTIO_BLK_T_WRITE_ZEROES => parts.ranges(Op::WriteZeroes, write_through, cargo),
        abi::VIRTIO_BLK_T_GET_ID => {
            command.answer_bytes = parts.in_bytes.min(SERIAL_BYTES as u64) as u32;
            parts.identify(cargo)
        }
        abi::VIRTIO_BLK_T_SECURE_ERASE => {
            let request = Request::new(Op::Discard, 0, 0);
            Action::Refuse(Some(request), Outcome::Unsupported)
        }
        // What is left asks nothing of the medium, or is for zoned disks.
        _ => Action::Refuse(None, Outcome::Unsupported),
    };
    Ok(command)
}

const INVALID: Outcome = Outcome::Failed(libc::EINVAL);

/// What is left of a chain without its header and its status.
struct Parts<'a> {
    memory: &'a GuestMemory,
    chain: &'a Chain,
    out_bytes: u64,
    in_bytes: u64,
}

impl Parts<'_> {
    fn data(&self, op: Op, sector: u64, fua: bool, cargo: &mut Cargo) -> Action {
        let (spans, skip, bytes, other) = match op {
            Op::Read => (&self.chain.writable, 0, self.in_bytes, self.out_bytes),
            _ => (
                &self.chain.readable,
                HEADER_BYTES,
                self.out_bytes,
                self.in_bytes,
            ),
        };
        let request = Request {
            fua,
            ..Request::new(op, sector, bytes)
        };
        if bytes == 0 || bytes > DATA_BYTES_MAX || other != 0 || self.chain.odd {
            return Action::Refuse(Some(request), INVALID);
        }
        match map(self.memory, spans, skip, bytes, &mut cargo.buffers) {
            Ok(()) => Action::Carry(request),
            Err(errno) => Action::Refuse(Some(request), Outcome::Failed(errno)),
        }
    }

    fn flush(&self) -> Action {
        let request = Request::FLUSH;
        if self.chain.odd {
            return Action::Refuse(Some(request), INVALID);
        }
        Action::Carry(request)
    }

    /// A command on ranges is checked as a whole before any of it is done.
    fn ranges(&self, op: Op, fua: bool, cargo: &mut Cargo) -> Action {
        let mut bytes = [0; RANGES_MAX * RANGE_BYTES];
        let count = (self.out_bytes / RANGE_BYTES as u64) as usize;
        let fits = self.out_bytes.is_multiple_of(RANGE_BYTES as u64)
            && (1..=RANGES_MAX).contains(&count)
            && !self.chain.odd;
        let bytes = &mut bytes[..if fits { count * RANGE_BYTES } else { 0 }];
        let readable = &self.chain.readable;
        let gathered = match fits {
            true => gather(self.memory, readable, HEADER_BYTES, bytes),
            false => Err(libc::EINVAL),
        };
        if let Err(errno) = gathered {
            return Action::Refuse(Some(Request::new(op, 0, 0)), Outcome::Failed(errno));
        }
        for range in bytes.chunks_exact(RANGE_BYTES) {
            let number = |at: usize| u32::from_le_bytes(range[at..at + 4].try_into().expect("4"));
            let sector = u64::from_le_bytes(range[..8].try_into().expect("8 bytes"));
            let (sectors, flags) = (number(8), number(12));
            let unmap = flags & abi::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
            let request = Request {
                fua,
                unmap,
                ..Request::new(op, sector, u64::from(sectors) * 512)
            };
            let known = flags & !abi::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP == 0;
            if !known || (unmap && op == Op::Discard) {
                cargo.ranges.clear();
                return Action::Refuse(Some(request), Outcome::Unsupported);
            }
            if sectors == 0 || sectors > RANGE_SECTORS_MAX {
                cargo.ranges.clear();
                return Action::Refuse(Some(request), INVALID);
            }
            cargo.ranges.push(request);
        }
        Action::CarryRanges
    }

    fn identify(&self, cargo: &mut Cargo) -> Action {
        let bytes = self.in_bytes.min(SERIAL_BYTES as u64);
        let writable = &self.chain.writable;
        if bytes == 0 {
            return Action::Refuse(None, INVALID);
        }
        match map(self.memory, writable, 0, bytes, &mut cargo.buffers) {
            Ok(()) => Action::Identify,
            Err(errno) => Action::Refuse(None, Outcome::Failed(errno)),
        }
    }
}

fn total(spans: &[Span]) -> u64 {
    spans.iter().map(|s| u64::from(s.bytes)).sum()
}

fn status_address(memory: &GuestMemory, chain: &Chain) -> Result<GuestAddress, NoStatus> {
    let last = chain.writable.last().ok_or(NoStatus)?;
    let address = last.address.0.checked_add(u64::from(last.bytes) - 1);
    let address = GuestAddress(address.ok_or(NoStatus)?);
    memory.check_address(address).ok_or(NoStatus)
}

/// Copies `into.len()` bytes out of `spans`, from byte `skip` on. Fails with an errno: there are
/// fewer, or the guest has no memory there.
fn gather(memory: &GuestMemory, spans: &[Span], mut skip: u64, into: &mut [u8]) -> Result<(), i32> {
    let mut filled = 0;
    for span in spans {
        let bytes = u64::from(span.bytes);
        if filled == into.len() {
            break;
        }
        if skip >= bytes {
            skip -= bytes;
            continue;
        }
        let length = ((bytes - skip) as usize).min(into.len() - filled);
        let address = span.address.0.checked_add(skip).ok_or(libc::EFAULT)?;
        let target = &mut into[filled..filled + length];
        copy_from(memory, GuestAddress(address), target).map_err(|_| libc::EFAULT)?;
        (filled, skip) = (filled + length, 0);
    }
    match filled == into.len() {
        true => Ok(()),
        false => Err(libc::EINVAL),
    }
}

/// Says where in this process `bytes` bytes of `spans` are, from byte `skip` on. There are so many.
/// Fails with an errno: the guest has no memory there, or it is in too many pieces.
fn map(
    memory: &GuestMemory,
    spans: &[Span],
    mut skip: u64,
    bytes: u64,
    into: &mut Vec<iovec>,
) -> Result<(), i32> {
    let mut left = bytes;
    for span in spans {
        let length = u64::from(span.bytes);
        if skip >= length {
            skip -= length;
            continue;
        }
        let length = (length - skip).min(left);
        if length == 0 {
            break;
        }
        let address = span.address.0.checked_add(skip).ok_or(libc::EFAULT)?;
        let address = GuestAddress(address);
        let mut push = |slice: &VolatileSlice<'_>| {
            if into.len() == PIECES_MAX {
                return Err(libc::EINVAL);
            }
            into.push(iovec {
                iov_base: slice.ptr_guard_mut().as_ptr().cast(),
                iov_len: slice.len(),
            });
            Ok(())
        };
        match in_one_region(memory, address, length as usize) {
            Some(slice) => push(&slice)?,
            None => {
                for slice in GuestMemoryBackend::get_slices(memory, address, length as usize) {
                    push(&slice.map_err(|_| libc::EFAULT)?)?;
                }
            }
        }
        (left, skip) = (left - length, 0);
    }
    Ok(())
}
