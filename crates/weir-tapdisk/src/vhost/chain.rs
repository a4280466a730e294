//! [`Chain`]: the buffers of one request, followed descriptor by descriptor through a guest's
//! memory (virtio 1.2, section 2.7).
//!
//! The guest may change a descriptor at any time, so each is read once, and only the copy is used.
//! The length of a chain is bounded: it never has more descriptors than its table.

use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, ByteValued, GuestAddress};

use super::memory::{GuestMemory, copy_from};

/// Maximum number of descriptors of a chain, indirect ones included. QEMU has the same limit.
pub const DESCRIPTORS_MAX: usize = 1024;

const DESCRIPTOR_BYTES: u64 = 16;

/// A range of the guest's addresses, not yet checked to be in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRange {
    /// Its start.
    pub address: GuestAddress,
    /// Its length; not 0.
    pub bytes: u32,
}

/// The buffers of a chain. A chain is reused for further requests, to keep its allocations.
#[derive(Debug, Default)]
pub struct Chain {
    /// The device-readable buffers, in order.
    pub readable: Vec<GuestRange>,
    /// The device-writable buffers, in order.
    pub writable: Vec<GuestRange>,
    /// The chain ends but is malformed: it has an empty buffer, or a readable buffer after a
    /// writable one.
    pub malformed: bool,
}

/// The reason why a chain cannot be followed to its end. The status byte of the request is at the
/// end: without it the request cannot be completed, and the queue is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A descriptor beyond the table.
    #[error("descriptor {index} is beyond its table of {size}")]
    Index {
        /// Its index.
        index: u16,
        /// The size of the table.
        size: u16,
    },
    /// A loop, or more descriptors than a driver may use.
    #[error("a chain is longer than its table")]
    Endless,
    /// A table outside the guest's memory.
    #[error("a descriptor table at {0:#x} is outside the guest's memory")]
    Table(u64),
    /// An invalid indirect table.
    #[error("an indirect table {0}")]
    Indirect(&'static str),
}

/// A descriptor table.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its start.
    pub address: GuestAddress,
    /// Its descriptors.
    pub size: u16,
    /// The driver may use indirect tables (`VIRTIO_F_INDIRECT_DESC`).
    pub indirect: bool,
}

impl Chain {
    /// Follows the chain that begins with descriptor `head`.
    ///
    /// # Errors
    /// The chain has no valid end.
    pub fn follow(
        &mut self,
        memory: &GuestMemory,
        table: Table,
        head: u16,
    ) -> Result<(), ChainError> {
        self.readable.clear();
        self.writable.clear();
        self.malformed = false;
        let mut cursor = Cursor {
            table,
            nested: false,
            left: table.size,
        };
        let mut index = head;
        loop {
            let descriptor = cursor.read(memory, index)?;
            if descriptor.refers_to_indirect_table() {
                cursor = cursor.enter(&descriptor)?;
                index = 0;
                continue;
            }
            self.push(&descriptor)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next();
        }
    }

    fn push(&mut self, descriptor: &Descriptor) -> Result<(), ChainError> {
        if self.readable.len() + self.writable.len() == DESCRIPTORS_MAX {
            return Err(ChainError::Endless);
        }
        let span = GuestRange {
            address: descriptor.addr(),
            bytes: descriptor.len(),
        };
        if span.bytes == 0 {
            self.malformed = true;
        } else if descriptor.is_write_only() {
            self.writable.push(span);
        } else {
            self.malformed |= !self.writable.is_empty();
            self.readable.push(span);
        }
        Ok(())
    }
}

/// The position in a table.
struct Cursor {
    table: Table,
    nested: bool,
    /// The number of descriptors that may still be read from this table; each is read at most once.
    left: u16,
}

impl Cursor {
    fn read(&mut self, memory: &GuestMemory, index: u16) -> Result<Descriptor, ChainError> {
        let size = self.table.size;
        if index >= size {
            return Err(ChainError::Index { index, size });
        }
        if self.left == 0 {
            return Err(ChainError::Endless);
        }
        self.left -= 1;
        let start = self.table.address;
        let read = start
            .checked_add(u64::from(index) * DESCRIPTOR_BYTES)
            .and_then(|address| {
                let mut descriptor = Descriptor::default();
                copy_from(memory, address, descriptor.as_mut_slice()).ok()?;
                Some(descriptor)
            });
        read.ok_or(ChainError::Table(start.0))
    }

    /// Continues in the indirect table of `descriptor`.
    fn enter(&self, descriptor: &Descriptor) -> Result<Cursor, ChainError> {
        if !self.table.indirect {
            return Err(ChainError::Indirect("that was not negotiated"));
        }
        if self.nested {
            return Err(ChainError::Indirect("within an indirect table"));
        }
        if descriptor.has_next() {
            return Err(ChainError::Indirect("with a successor"));
        }
        let bytes = u64::from(descriptor.len());
        let size = bytes / DESCRIPTOR_BYTES;
        if bytes % DESCRIPTOR_BYTES != 0 || size == 0 || size > DESCRIPTORS_MAX as u64 {
            return Err(ChainError::Indirect("of an invalid length"));
        }
        let table = Table {
            address: descriptor.addr(),
            size: size as u16,
            indirect: true,
        };
        Ok(Cursor {
            left: table.size,
            table,
            nested: true,
        })
    }
}
