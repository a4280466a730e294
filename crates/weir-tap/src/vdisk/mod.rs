//! The diagnostic tap of one VM: each request of the guest, by QEMU's own trace events, switched on
//! while QEMU runs.
//!
//! 1. [`created`] creates a file that QEMU may write, and the human monitor's `logfile` sends QEMU's
//!    log there: a pipe that is full would stop the VM, a file never does.
//! 2. [`guard`] starts a small process, passes it the file's descriptor, and has it wait for the end
//!    of ours, for whatever reason. Then it switches the events off, restores QEMU's log and removes
//!    the file.
//! 3. The events are switched on. [`mod@line`] reads QEMU's lines, [`pairing`] makes requests and
//!    responses of them, [`drives`] knows which disk each belongs to.
//! 4. [`tap::VdiskTap`] says them, as rows of `IO` and `IOstream` at level `vdisk`. What has been read
//!    is punched out of the file, so that it takes next to no space.

pub mod created;
pub(crate) mod drives;
pub mod guard;
mod line;
mod log;
mod pairing;
mod tap;

use weir_model::Capabilities;

pub use tap::{VdiskTap, open};

/// What the tap can do with `IO` and `IOstream`.
pub fn capabilities() -> Capabilities {
    crate::format::capabilities("a VM's own requests are delivered one by one", Ok(()))
}
