//! [`Owner`]: the VM of a request, its disk, and the sector there.

use weir_model::Symbol;

use super::spans::NO_SECTOR;

/// The owner of a request. The empty symbol, and [`NO_SECTOR`], stand for unknown values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub(super) vm: Symbol,
    pub(super) vdisk: Symbol,
    pub(super) vsector: u64,
}

impl Default for Owner {
    fn default() -> Owner {
        Owner::of(Symbol::default())
    }
}

impl Owner {
    /// A VM whose disks are unknown.
    pub(super) fn of(vm: Symbol) -> Owner {
        Owner {
            vm,
            vdisk: Symbol::default(),
            vsector: NO_SECTOR,
        }
    }

    /// The VM's name.
    pub fn vm(&self) -> Option<Symbol> {
        Some(self.vm).filter(|name| *name != Symbol::default())
    }

    /// The disk as the VM sees it.
    pub fn vdisk(&self) -> Option<Symbol> {
        Some(self.vdisk).filter(|name| *name != Symbol::default())
    }

    /// The first sector on that disk.
    pub fn vsector(&self) -> Option<i64> {
        (self.vsector != NO_SECTOR).then_some(self.vsector as i64)
    }
}
