//! [`Chain`]: the buffers of one request, followed descriptor by descriptor through a guest's memory
//! (virtio 1.2, section 2.7).
//!
//! The guest may change a descriptor at any time, so each is read once, and only the copy is looked
//! at. A chain has an end that cannot be argued about: it never has more descriptors than its table.

use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, ByteValued, GuestAddress};

use super::memory::{GuestMemory, copy_from};

/// Descriptors of a chain, indirect ones included, at most. QEMU's bound is the same.
pub const DESCRIPTORS_MAX: usize = 1024;

const DESCRIPTOR_BYTES: u64 = 16;

/// A piece of the guest's memory; nobody has looked yet whether there is any there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub address: GuestAddress,
    /// How long it is; not 0.
    pub bytes: u32,
}

/// What a chain consists of. One is used again and again, for the sake of its room.
#[derive(Debug, Default)]
pub struct Chain {
    /// What the device may read, in order.
    pub readable: Vec<Span>,
    /// What the device may write, in order.
    pub writable: Vec<Span>,
    /// The chain has an end, but no driver should make such a one: a buffer without bytes, or one to
    /// read behind one to write.
    pub odd: bool,
}

/// Why a chain cannot be followed to its end. The request's status byte would be there, so nobody
/// can be told, and the queue is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// A descriptor that the table does not have.
    #[error("descriptor {index} of a table of {size}")]
    Index {
        /// What was asked for.
        index: u16,
        /// What there is.
        size: u16,
    },
    /// A loop, or more than a driver may use.
    #[error("a chain that is longer than its table")]
    Endless,
    /// A table that is not in the guest's memory.
    #[error("a table of descriptors at {0:#x}, where the guest has no memory")]
    Table(u64),
    /// An indirect table that the driver may not use so.
    #[error("an indirect table {0}")]
    Indirect(&'static str),
}

/// The table that a chain is in.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Where it begins.
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
    /// It has no end that could be found.
    pub fn follow(
        &mut self,
        memory: &GuestMemory,
        table: Table,
        head: u16,
    ) -> Result<(), ChainError> {
        self.readable.clear();
        self.writable.clear();
        self.odd = false;
        let mut place = Place {
            table,
            nested: false,
            left: table.size,
        };
        let mut index = head;
        loop {
            let descriptor = place.read(memory, index)?;
            if descriptor.refers_to_indirect_table() {
                place = place.enter(&descriptor)?;
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
        let span = Span {
            address: descriptor.addr(),
            bytes: descriptor.len(),
        };
        if span.bytes == 0 {
            self.odd = true;
        } else if descriptor.is_write_only() {
            self.writable.push(span);
        } else {
            self.odd |= !self.writable.is_empty();
            self.readable.push(span);
        }
        Ok(())
    }
}

/// Where in which table we are.
struct Place {
    table: Table,
    nested: bool,
    /// Descriptors that may still be read from this table: each once.
    left: u16,
}

impl Place {
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

    /// Goes on in the indirect table that `descriptor` refers to.
    fn enter(&self, descriptor: &Descriptor) -> Result<Place, ChainError> {
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
            return Err(ChainError::Indirect("of a length that cannot be"));
        }
        let table = Table {
            address: descriptor.addr(),
            size: size as u16,
            indirect: true,
        };
        Ok(Place {
            left: table.size,
            table,
            nested: true,
        })
    }
}
