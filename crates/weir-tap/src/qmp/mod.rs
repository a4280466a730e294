//! QMP, QEMU's machine protocol: what a running QEMU says about its disks, and the few things it is
//! told.
//!
//! [`Address::visit`] connects, lets the caller execute commands, and disconnects. A QMP socket
//! serves one client at a time, so no connection lasts longer than its commands take, visits from
//! one process wait for each other, and a socket that another client holds is not tried again for a
//! while. A socket that was found in a process's command line is used only if that very process
//! listens at it. Behind libvirt, which keeps the socket to itself, `virsh` carries the same
//! commands.
//!
//! Nothing here waits without a bound or keeps more than [`LINE_BYTES_MAX`] of an answer. Answers are
//! read tolerantly: QEMU adds fields with every version, and a field that is absent is `None`.
//!
//! Protocol: docs/interop/qmp-spec.rst of QEMU.

mod address;
mod error;
mod listener;
pub mod poll;
mod queries;
mod socket;
mod subject;
pub mod tap;
#[cfg(test)]
mod tests;
mod virsh;

use serde_json::Value;

pub use address::Address;
pub use error::{Cause, QmpError};
pub use queries::{
    BlockStats, Cpu, Drive, Histogram, Image, IoThread, Latencies, Node, OpStats, Status,
    block_stats, cpus, drives, human, iothreads, name, nodes, set_latency_histogram, status, uuid,
};
pub use socket::Client;
pub use subject::{Subject, device_id};
pub use tap::QmpTap;
pub use virsh::Virsh;

/// The longest line that is taken: `query-blockstats` of a thousand disks stays below.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// A QEMU that can be asked.
pub trait Monitor {
    /// Executes `command` and gives what it returns. `arguments` is an object, or null for none.
    ///
    /// # Errors
    /// [`QmpError::Refused`] when QEMU says no; otherwise the connection is of no further use.
    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError>;
}
