//! Inventories: which VMs the host has, which disks they have, and where those lie.

pub mod snapshot;

pub use snapshot::{LaidDisk, Layout, Piece, Snapshot};
