//! The interface of a tapdisk: the data that it shares with its consumers, and the consumer.
//!
//! `weir tapdisk` serves virtual disks (crate `weir-tapdisk`) and listens on a unix socket. A
//! consumer requests the records that its queries need with the messages in [`words`], and receives
//! shared memory with a [`ring`] for each queue or connection, and with the [`groups`] of its
//! requests where a query needs no more than these. [`layout`] defines its layout.
//! The kernel programs read a [`mark`] of each request in io_uring.
//! [`TapdiskTap`] is the consumer.

mod client;
mod folds;
pub mod groups;
pub mod layout;
pub mod mark;
pub mod ring;
mod rows;
mod tap;
mod wanted;
pub mod words;

pub use crate::io_columns::tapdisk_capabilities as capabilities;
pub(crate) use client::SUFFIX;
pub use client::{ClientError, TapdiskClient, socket_of};
pub use rows::Names;
pub use tap::{TapdiskOptions, TapdiskTap, open};
pub use wanted::everything;
