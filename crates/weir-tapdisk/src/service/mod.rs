//! The service of `weir tapdisk`: its configuration, and the process that serves disks.
//!
//! 1. [`entry`] parses the options of a disk, [`rights`] those of sockets; [`config`] is the file.
//! 2. [`setup`] combines them and reports what is inconsistent.
//! 3. [`serve()`] opens images and sockets, serves until a signal arrives, and removes the sockets.

mod companion;
mod config;
mod entry;
mod rights;
mod serve;
mod setup;

pub use companion::Companion;
pub use config::TapdiskConfig;
pub use entry::{
    DiskEntry, block_size, burst_ms, bytes_per_second, cache, engine, format, iops, name,
    nbd_clients, nbd_idle, poll, queues, serial,
};
pub use rights::{group, mode};
pub use serve::{Owner, serve};
pub use setup::{NbdEntry, Setup};
