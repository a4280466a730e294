//! Settings of a guest's disk, changed by a process in the guest on behalf of a trial on the host.
//!
//! ```text
//! host:  trial ─ GuestSession ─ socket of QEMU
//! guest: virtio port ─ serve ─ QueueSession ─ sysfs
//! ```
//!
//! The guest's side permits the disks that its administrator names, and nothing but settings of
//! their queues. It keeps the journal, and restores the settings when the host requests it, when
//! the connection breaks, and when the host is silent for the time of a lease. [`messages`] are
//! lines of JSON, [`serve`] is the side in the guest, [`client`] that on the host.

pub mod client;
pub mod messages;
pub mod serve;
