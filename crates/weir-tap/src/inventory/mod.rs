//! Inventories: which VMs the host has, which disks they have, and where those lie.
//!
//! 1. [`Watch`] is a thread that looks at the host once a second, and sooner when asked.
//! 2. A look reads the processes and the block devices, and lets each of [`INVENTORIES`] say which
//!    VMs it finds there.
//! 3. [`tapdisk`] says which image is behind a disk that a running `weir tapdisk` serves; [`roll`] makes
//!    the findings one list: who is found twice is one VM, and names are unique; [`names`] decides
//!    which of several VMs has a name.
//! 4. [`place`] finds the file or device of each disk, and [`layout`] where that lies.
//! 5. What has changed becomes a new [`Snapshot`], which taps take whenever they like.
//!
//! Steps 2 to 4 need rights. They take place in the inspection process ([`crate::inspection`]) where
//! [`WatchOptions::inspector`] names the program that is it.

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
mod lookout;
mod loop_status;
mod monitors;
mod names;
mod place;
mod process;
mod qcow;
mod qemu;
mod roll;
pub mod snapshot;
mod stack;
pub mod tap;
mod tapdisk;
mod watch;
mod workers;

pub use declared::Declared;
pub use doctor::doctor;
pub use layout::{Image, Layouts, Located, PIECES_MAX};
pub use names::{Claim, NameConflict, Standing};
pub use qemu::options::words as option_words;
pub use qemu::told::NodeOptions;
pub use snapshot::{LaidDisk, Layout, Piece, Snapshot};
pub(crate) use watch::Looker;
pub use watch::{Look, Watch, WatchOptions};

use std::cell::RefCell;

use declared::Pinned;
use found::FoundVm;
use host::Host;
use libvirt::StatusFiles;
use monitors::Monitors;
use process::{Process, Processes};

/// Who knows of VMs.
#[derive(Debug)]
pub struct Inventory {
    /// Its name, as column `origin` has it.
    pub name: &'static str,
    /// Whether it wants to see the arguments of processes that run this program.
    programs: fn(&str) -> bool,
    /// Whether a process may be one of its VMs'.
    concerns: fn(&Process, &[Pinned]) -> bool,
    /// The VMs that it finds.
    look: fn(&Scene) -> Vec<FoundVm>,
}

/// Every inventory; where several know the same VM, the first one has the word.
pub static INVENTORIES: &[&Inventory] = &[
    &declared::INVENTORY,
    &libvirt::INVENTORY,
    &qemu::INVENTORY,
    &cloud_hypervisor::INVENTORY,
    &firecracker::INVENTORY,
    &containers::INVENTORY,
    &tapdisk::INVENTORY,
];

/// What an inventory looks at.
struct Scene<'a> {
    host: &'a Host,
    processes: &'a Processes,
    declared: &'a [Pinned],
    /// What libvirt's files said when they were read last.
    status_files: &'a RefCell<StatusFiles>,
    /// What QEMUs say of themselves.
    monitors: &'a Monitors,
}

/// True if an inventory wants to see the arguments of this program.
fn is_wanted(program: &str) -> bool {
    INVENTORIES.iter().any(|i| (i.programs)(program))
}

/// True if the cgroup `path` is `root` or below it.
fn is_within(path: &str, root: &str) -> bool {
    path.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
