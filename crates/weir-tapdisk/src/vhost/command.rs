//! [`Command`]: decodes a virtio block request from a chain of buffers (virtio 1.2, section 5.2.6).
//!
//! The driver's header comes first, data follow, the last device-writable byte is the status. The
//! driver may split the buffers in any way: legacy and unusual layouts are decoded alike.

use libc::iovec;
use virtio_bindings::bindings::virtio_blk as abi;
use vm_memory::{GuestAddress, GuestMemoryBackend, VolatileSlice};
use weir_model::Op;

use super::chain::{Chain, GuestRange};
use super::memory::{GuestMemory, copy_from, in_one_region};
use crate::{Outcome, Request};

/// Maximum number of ranges in a discard or a write of zeroes.
pub const RANGES_MAX: usize = 32;
/// Maximum length of such a range in sectors of 512 bytes: 2 GiB.
pub const RANGE_SECTORS_MAX: u32 = 1 << 22;
/// Maximum length of a read or write in bytes: what Linux transfers in one call (`MAX_RW_COUNT`).
pub const DATA_BYTES_MAX: u64 = (i32::MAX as u64) & !4095;
/// Maximum number of memory pieces of a read or write: the limit of Linux (`UIO_MAXIOV`).
pub const PIECES_MAX: usize = 1024;
/// Length of a disk's serial number in bytes.
pub const SERIAL_BYTES: usize = abi::VIRTIO_BLK_ID_BYTES as usize;

const HEADER_BYTES: u64 = 16;
const RANGE_BYTES: usize = 16;

/// The action for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Executes this request. Its data are in `buffers`.
    Execute(Request),
    /// Executes the requests in `ranges`, one after the other.
    ExecuteRanges,
    /// Copies the serial number to `buffers`.
    Identify,
    /// Ends it with this outcome. There is a request if its operation is recorded by taps.
    Reject(Option<Request>, Outcome),
}

impl Action {
    /// Whether it was rejected because a part of it is outside the guest's memory.
    pub fn lacks_memory(&self) -> bool {
        matches!(self, Action::Reject(_, Outcome::Failed(libc::EFAULT)))
    }
}

/// A command, and where its answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The action.
    pub action: Action,
    /// The address of the status byte, which is in the guest's memory.
    pub status: GuestAddress,
    /// Bytes that are written before the status on success.
    pub answer_bytes: u32,
}

/// The chain has no status byte, so the request cannot be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request has no status byte in the guest's memory")]
pub struct NoStatus;

/// The data of a command. One is reused, to keep its allocations.
#[derive(Debug, Default)]
pub struct CommandData {
    /// The guest's memory of the data, mapped.
    pub buffers: Vec<iovec>,
    /// The ranges to discard or overwrite, in order.
    pub ranges: Vec<Request>,
}

/// Decodes the command of `chain`. `write_through`: the driver cannot flush, so that every write
/// must be durable when it is done.
///
/// # Errors
/// There is no status byte.
pub fn read(
    memory: &GuestMemory,
    chain: &Chain,
    write_through: bool,
    data_memory: &mut CommandData,
) -> Result<Command, NoStatus> {
    data_memory.buffers.clear();
    data_memory.ranges.clear();
    let status = status_address(memory, chain)?;
    let mut command = Command {
        action: Action::Identify,
        status,
        answer_bytes: 0,
    };
    let mut header = [0; HEADER_BYTES as usize];
    if let Err(errno) = gather(memory, &chain.readable, 0, &mut header) {
        command.action = Action::Reject(None, Outcome::Failed(errno));
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
            parts.data(Op::Read, sector, false, data_memory)
        }
        abi::VIRTIO_BLK_T_OUT => parts.data(Op::Write, sector, write_through, data_memory),
        abi::VIRTIO_BLK_T_FLUSH => parts.flush(),
        abi::VIRTIO_BLK_T_DISCARD => parts.ranges(Op::Discard, false, data_memory),
        abi::VIRTIO_BLK_T_WRITE_ZEROES => parts.ranges(Op::WriteZeroes, write_through, data_memory),
        abi::VIRTIO_BLK_T_GET_ID => {
            command.answer_bytes = parts.in_bytes.min(SERIAL_BYTES as u64) as u32;
            parts.identify(data_memory)
        }
        abi::VIRTIO_BLK_T_SECURE_ERASE => {
            let request = Request::new(Op::Discard, 0, 0);
            Action::Reject(Some(request), Outcome::Unsupported)
        }
        // Other types do not access the medium, or are for zoned disks.
        _ => Action::Reject(None, Outcome::Unsupported),
    };
    Ok(command)
}

const INVALID: Outcome = Outcome::Failed(libc::EINVAL);

/// A chain without its header and its status.
struct Parts<'a> {
    memory: &'a GuestMemory,
    chain: &'a Chain,
    out_bytes: u64,
    in_bytes: u64,
}

impl Parts<'_> {
    fn data(&self, op: Op, sector: u64, fua: bool, data_memory: &mut CommandData) -> Action {
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
        if bytes == 0 || bytes > DATA_BYTES_MAX || other != 0 || self.chain.malformed {
            return Action::Reject(Some(request), INVALID);
        }
        match map(self.memory, spans, skip, bytes, &mut data_memory.buffers) {
            Ok(()) => Action::Execute(request),
            Err(errno) => Action::Reject(Some(request), Outcome::Failed(errno)),
        }
    }

    fn flush(&self) -> Action {
        let request = Request::FLUSH;
        if self.chain.malformed {
            return Action::Reject(Some(request), INVALID);
        }
        Action::Execute(request)
    }

    /// A command on ranges is checked as a whole before any of it is executed.
    fn ranges(&self, op: Op, fua: bool, data_memory: &mut CommandData) -> Action {
        let mut bytes = [0; RANGES_MAX * RANGE_BYTES];
        let count = (self.out_bytes / RANGE_BYTES as u64) as usize;
        let fits = self.out_bytes.is_multiple_of(RANGE_BYTES as u64)
            && (1..=RANGES_MAX).contains(&count)
            && !self.chain.malformed;
        let bytes = &mut bytes[..if fits { count * RANGE_BYTES } else { 0 }];
        let readable = &self.chain.readable;
        let gathered = match fits {
            true => gather(self.memory, readable, HEADER_BYTES, bytes),
            false => Err(libc::EINVAL),
        };
        if let Err(errno) = gathered {
            return Action::Reject(Some(Request::new(op, 0, 0)), Outcome::Failed(errno));
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
                data_memory.ranges.clear();
                return Action::Reject(Some(request), Outcome::Unsupported);
            }
            if sectors == 0 || sectors > RANGE_SECTORS_MAX {
                data_memory.ranges.clear();
                return Action::Reject(Some(request), INVALID);
            }
            data_memory.ranges.push(request);
        }
        Action::ExecuteRanges
    }

    fn identify(&self, data_memory: &mut CommandData) -> Action {
        let bytes = self.in_bytes.min(SERIAL_BYTES as u64);
        let writable = &self.chain.writable;
        if bytes == 0 {
            return Action::Reject(None, INVALID);
        }
        match map(self.memory, writable, 0, bytes, &mut data_memory.buffers) {
            Ok(()) => Action::Identify,
            Err(errno) => Action::Reject(None, Outcome::Failed(errno)),
        }
    }
}

fn total(spans: &[GuestRange]) -> u64 {
    spans.iter().map(|s| u64::from(s.bytes)).sum()
}

fn status_address(memory: &GuestMemory, chain: &Chain) -> Result<GuestAddress, NoStatus> {
    let last = chain.writable.last().ok_or(NoStatus)?;
    let address = last.address.0.checked_add(u64::from(last.bytes) - 1);
    let address = GuestAddress(address.ok_or(NoStatus)?);
    memory.check_address(address).ok_or(NoStatus)
}

/// Copies `into.len()` bytes out of `spans`, from byte `skip` on. Fails with an errno: there are
/// fewer, or they are outside the guest's memory.
fn gather(
    memory: &GuestMemory,
    spans: &[GuestRange],
    mut skip: u64,
    into: &mut [u8],
) -> Result<(), i32> {
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

/// Maps `bytes` bytes of `spans`, from byte `skip` on. There are that many. Fails with an errno:
/// they are outside the guest's memory, or in too many pieces.
fn map(
    memory: &GuestMemory,
    spans: &[GuestRange],
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
