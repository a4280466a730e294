//! The diagnostic tap of one VM: each request of the guest, by QEMU's own trace events, which are
//! enabled while QEMU runs.
//!
//! 1. [`created`] creates a file that QEMU may write, and the human monitor's `logfile` directs
//!    QEMU's log there: a full pipe would stop the VM, a file does not.
//! 2. [`guard`] starts a small process, passes it the file's descriptor, and makes it wait for the
//!    end of this process, for any reason. Then it disables the events, restores QEMU's log and
//!    removes the file.
//! 3. The events are enabled. [`mod@line`] parses QEMU's lines, [`pairing`] converts them to
//!    requests and responses, [`drives`] maps them to disks.
//! 4. [`tap::VdiskTap`] delivers them as rows of `IO` and `IOstream` at level `vdisk`. Regions of
//!    the file that were read are punched out, so that it uses almost no space.

pub mod created;
pub(crate) mod drives;
pub mod guard;
mod line;
mod log;
mod pairing;
mod tap;

use weir_model::Capabilities;

pub use tap::{VdiskTap, description, open};

/// The capabilities of the tap for `IO` and `IOstream`.
pub fn capabilities() -> Capabilities {
    crate::format::capabilities("the source transfers each request of the VM", Ok(()))
}
