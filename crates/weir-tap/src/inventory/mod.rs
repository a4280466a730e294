//! Inventories: the VMs of the host, their disks, and the location of the disks.
//!
//! 1. [`InventoryWatch`] is a thread that scans the host once a second, and sooner on request.
//! 2. A scan reads the processes and the block devices, and runs each of [`INVENTORIES`], which
//!    returns the VMs that it finds.
//! 3. [`tapdisk`] replaces the socket of a running `weir tapdisk` by the image that it serves;
//!    [`merged`] merges the results: a VM found twice is listed once, and names are unique;
//!    [`names`] decides which of several VMs has a name.
//! 4. [`location`] finds the file or device of each disk, and [`layout`] its location.
//! 5. Changes produce a new [`Snapshot`], which taps read at any time.
//!
//! Steps 2 to 4 need privileges. They run in the inspection process ([`crate::inspection`]) if
//! [`WatchOptions::inspector`] names its program.

mod cloud_hypervisor;
mod containers;
pub mod declared;
mod devices;
mod dm_table;
mod doctor;
mod extents;
mod firecracker;
mod found;
mod host;
mod layout;
mod libvirt;
mod location;
mod loop_status;
mod merged;
mod monitors;
mod names;
mod net_taps;
mod process;
mod qcow;
mod qemu;
mod scanner;
pub mod snapshot;
mod stack;
pub mod tap;
mod tapdisk;
mod watch;
mod workers;

pub use declared::Declared;
pub use doctor::doctor;
pub use found::TapdiskKey;
pub use layout::{Image, Layouts, Located, PIECES_MAX};
pub use names::{Claim, NameConflict, NameRank};
pub use qemu::options::words as option_words;
pub use qemu::reported::NodeOptions;
pub use snapshot::{DiskLayout, LaidDisk, Piece, Snapshot};
pub(crate) use watch::Looker;
pub use watch::{InventoryWatch, ScanScope, WatchOptions};

use std::cell::RefCell;

use declared::Pinned;
use found::FoundVm;
use host::Host;
use libvirt::StatusFiles;
use monitors::Monitors;
use process::{Process, Processes};

/// A source of VMs.
#[derive(Debug)]
pub struct Inventory {
    /// Its name, the value of column `origin`.
    pub name: &'static str,
    /// Whether it needs the arguments of processes that run this program.
    programs: fn(&str) -> bool,
    /// Whether a process may belong to one of its VMs.
    concerns: fn(&Process, &[Pinned]) -> bool,
    /// The VMs that it finds.
    look: fn(&Scene) -> Vec<FoundVm>,
}

/// Every inventory, in order of precedence: if several find the same VM, the first one applies.
pub static INVENTORIES: &[&Inventory] = &[
    &declared::INVENTORY,
    &libvirt::INVENTORY,
    &qemu::INVENTORY,
    &cloud_hypervisor::INVENTORY,
    &firecracker::INVENTORY,
    &containers::INVENTORY,
    &tapdisk::INVENTORY,
];

/// The input of an inventory.
struct Scene<'a> {
    host: &'a Host,
    processes: &'a Processes,
    declared: &'a [Pinned],
    /// The contents of libvirt's files at the last read.
    status_files: &'a RefCell<StatusFiles>,
    /// The responses of QEMU processes.
    monitors: &'a Monitors,
}

/// True if an inventory needs the arguments of this program.
fn is_wanted(program: &str) -> bool {
    INVENTORIES.iter().any(|i| (i.programs)(program))
}

/// True if the cgroup `path` is `root` or below it.
fn is_within(path: &str, root: &str) -> bool {
    path.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
