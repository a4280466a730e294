//! The tap in the disk path: a back end that serves virtual disks, sees every request as the guest
//! issued it, and records it. The thesis's Blocktap (Benke 2009, section 3.1) in user space.
//!
//! A request arrives through a front end (vhost-user-blk, NBD) in a lane, which timestamps it,
//! executes it on the image and reports its outcome. A lane belongs to one thread and never waits
//! for a consumer.

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
