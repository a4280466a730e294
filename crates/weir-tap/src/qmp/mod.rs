//! QMP, QEMU's machine protocol: what a running QEMU says about its disks, and the few things it is
//! told.
//!
//! [`Address::visit`] is the way in: it connects, lets the caller ask, and leaves again. A QMP socket
//! serves one client at a time, so nobody stays longer than its questions take, visits from one
//! process wait for each other, and a socket that somebody else holds is left alone for a while.
//! Behind libvirt, which keeps the socket to itself, `virsh` carries the same questions.
//!
//! Nothing here waits without a bound or keeps more than [`LINE_BYTES_MAX`] of an answer. Answers are
//! read tolerantly: QEMU adds fields with every version, and a field that is absent is `None`.
//!
//! Protocol: docs/interop/qmp-spec.rst of QEMU.

mod address;
mod error;
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
pub use error::QmpError;
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
