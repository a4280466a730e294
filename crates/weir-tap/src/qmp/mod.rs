//! QMP, QEMU's machine protocol: what a running QEMU reports about its disks, and the few commands
//! that change its state.
//!
//! [`QmpAddress::visit`] connects, lets the caller execute commands, and disconnects. A QMP socket
//! serves one client at a time. Therefore a connection lasts only as long as its commands, visits
//! from one process wait for each other, and a socket that another client uses is not tried again
//! for some time. A socket from a process's command line is used only if that process listens on
//! it. libvirt uses the socket exclusively; there `virsh` forwards the same commands.
//!
//! All waits have a timeout, and at most [`LINE_BYTES_MAX`] of a response are stored. The parser is
//! tolerant: QEMU adds fields with every version, and a missing field is `None`.
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

pub use address::QmpAddress;
pub use error::{Cause, QmpError};
pub use queries::{
    BlockStats, Drive, Latencies, LatencyHistogram, OpStats, QmpImage, QmpNode, RunState,
    block_stats, drives, human, name, set_latency_histogram, status, uuid,
};
pub use socket::QmpClient;
pub use subject::{QmpSubject, device_id};
pub use tap::QmpTap;
pub use virsh::Virsh;

/// Maximum length of a received line: `query-blockstats` of a thousand disks is shorter.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// A QEMU that can be queried.
pub trait QemuMonitor {
    /// Executes `command` and returns its result. `arguments` is an object, or null for none.
    ///
    /// # Errors
    /// [`QmpError::Refused`] if QEMU returns an error; after other errors the connection is
    /// unusable.
    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError>;
}
