//! The tap in the disk path, as others see it: what it shares with its consumers, and the consumer.
//!
//! `weir tapdisk` serves virtual disks (crate `weir-tapdisk`) and listens at a unix socket. A consumer
//! asks there in [`words`] for the records that its queries need, and gets a piece of memory with a
//! [`ring`] for each lane of the tap. [`layout`] says what lies where. [`TapdiskTap`] is the consumer.

mod client;
mod columns;
pub mod layout;
pub mod ring;
mod rows;
mod tap;
pub mod words;

pub use client::{Client, ClientError, socket_of};
pub use columns::capabilities;
pub use rows::Names;
pub use tap::{TapdiskOptions, TapdiskTap, open};
