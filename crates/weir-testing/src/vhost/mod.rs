//! A virtio-blk disk behind a vhost-user socket, used without a guest: a client for single
//! requests, and for loads whose requests are known.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use weir_testing::vhost::{VhostClient, ClientShape, Contents, VhostLoad};
//!
//! let mut client = VhostClient::connect("/tmp/disk.sock".as_ref(), ClientShape::default())?;
//! client.write(0, &[7; 4096])?;
//! assert_eq!(client.read(0, 4096)?, [7; 4096]);
//!
//! let mut contents = Contents::unknown(client.disk().sectors, 512);
//! let load = VhostLoad { read: 70, write: 30, requests: 1000, ..VhostLoad::default() };
//! let report = client.run(&load, Some(&mut contents))?;       // an error if a block reads wrong
//! println!("{:.0} IOPS, p99 {:?} ns", report.iops(), report.latency_ns(0.99));
//! for asked in report.log.iter().flatten() {
//!     println!("{asked:?}");
//! }
//! # Ok(())
//! # }
//! ```

mod ask;
mod client;
mod contents;
mod link;
mod load;
mod memory;
mod queue;
mod report;
mod worker;

pub use ask::{BlockRequest, RequestKind, RequestStatus};
pub use client::VhostClient;
pub use contents::{Contents, Mismatch};
pub use link::{ClientShape, DiskFacts};
pub use load::VhostLoad;
pub use report::{LoadReport, LoggedRequest};
