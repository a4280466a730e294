//! The tap in the disk path: a back end that serves virtual disks, sees every request as the guest
//! issued it, and records it. The thesis's Blocktap (Benke 2009, section 3.1) in user space.
//!
//! A request arrives through a front end (vhost-user-blk, NBD) in an I/O queue, which timestamps
//! it, executes it on the image and reports its outcome. An I/O queue belongs to one thread and
//! never waits for a consumer.

pub mod control;
pub mod direct_io;
pub mod disk;
pub mod engine;
pub mod histograms;
pub mod hub;
pub mod inject;
pub mod insertion;
pub mod io_queue;
mod lock;
pub mod nbd;
mod polling;
pub mod recorder;
pub mod request;
pub mod selection;
pub mod service;
pub mod socket;
pub mod stop;
pub mod throttle;
pub mod vhost;

pub use control::ControlServer;
pub use disk::{DiskError, DiskOptions, DiskStatistics, ServedDisk};
pub use hub::{Hub, HubError};
pub use io_queue::{Completion, IoQueue, IoQueueOptions};
pub use recorder::{EndedRequest, ReceivedRequest, Recorder};
pub use request::{Outcome, Request};
pub use socket::{ServerSocket, SocketAccess, SocketError};
pub use stop::StopEvent;
pub use throttle::Throttle;
