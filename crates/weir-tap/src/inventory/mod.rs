//! Inventories: which VMs the host has, which disks they have, and where those lie.

mod dm_table;
mod extents;
mod layout;
mod loop_status;
pub mod snapshot;
mod stack;

pub use layout::{Image, Layouts, Located, PIECES_MAX};
pub use snapshot::{LaidDisk, Layout, Piece, Snapshot};
