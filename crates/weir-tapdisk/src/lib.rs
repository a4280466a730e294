//! The tap in the disk path: a back end that serves virtual disks, sees every request as the guest
//! issued it, and tells it. The thesis's Blocktap (Benke 2009, section 3.1) in user space.
//!
//! A request comes through a front end (vhost-user-blk, NBD) into a lane, which times it, carries it
//! out on the image and says how it ended. A lane belongs to one thread; nothing in it waits for
//! whoever listens.

pub mod disk;
pub mod engine;
pub mod histograms;
pub mod hub;
pub mod inject;
pub mod insertion;
pub mod lane;
pub mod listen;
mod lock;
pub mod nbd;
pub mod recorder;
pub mod request;
pub mod selection;
pub mod socket;
pub mod stop;
pub mod vhost;

pub use disk::{Counters, Disk, DiskError, DiskOptions};
pub use hub::{Hub, HubError};
pub use lane::{Done, Lane, LaneOptions};
pub use listen::Listening;
pub use recorder::{Ended, Recorder, Taken};
pub use request::{Outcome, Request};
pub use socket::{Access, ServerSocket, SocketError};
pub use stop::Stop;
