//! `weir tapdisk`: what is to be served, and the process that serves it.
//!
//! 1. [`entry`] reads the options of a disk from the command line or a file ([`config`]); [`rights`] who may reach it.
//! 2. [`setup`] combines and checks them.
//! 3. [`serve()`] opens images and sockets, serves until a signal comes, and takes everything away again.

mod companion;
mod config;
mod entry;
mod rights;
mod serve;
mod setup;
pub mod status;

pub use companion::Companion;
pub use config::TapdiskConfig;
pub use entry::{
    DiskEntry, block_size, cache, engine, format, name, nbd_clients, nbd_idle, poll, queues, serial,
};
pub use rights::{group, mode};
pub use serve::{Owner, serve};
pub use setup::{NbdEntry, Setup};
