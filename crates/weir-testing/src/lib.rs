//! What the tests of all crates share: a temporary folder ([`Scratch`]), reports of skipped tests
//! ([`skip()`]), waiting ([`wait_until`]), random numbers (of `fastrand`), and disks, VMs and hosts
//! for one test. A loop device that is removed with the test and workloads for it, a small Linux
//! guest in QEMU with a load whose requests are known, so that weir's results can be compared with
//! them, and hosts of a fleet as network namespaces of this machine, whose cables can be
//! disconnected. A disk behind a vhost-user socket can be used without any guest ([`vhost`]).
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use weir_testing::{GuestDisk, Guest, Kit, DiskLoad};
//!
//! let kit = Kit::find()?;                                    // built by `cargo xtask guest`
//! let disk = GuestDisk::new("d0", "/tmp/d0.raw").aio("native");
//! let mut guest = Guest::start(&kit, "web", &disk.args())?;  // QEMU boots
//! guest.ready()?;                                            // it has booted
//! let load = DiskLoad { read: 70, write: 30, count: 1000, ..DiskLoad::on("/dev/vda") };
//! let before = guest.disk_stats()?;
//! let done = guest.load(&[load])?;
//! println!("{:?} {:?}", done, guest.disk_stats()?["vda"].since(&before["vda"]));
//! # Ok(())
//! # }
//! ```
//!
//! A guest runs in emulation (TCG): it needs no /dev/kvm, boots in about three seconds and needs
//! 250 MB. It has no network unless its options add one; it is controlled through its second serial
//! port.

mod archive;
mod build;
mod counts;
mod cpu_time;
mod cross;
mod demonstration;
mod disk;
mod extent;
mod fleet;
pub mod flink;
mod flink_cluster;
mod guest;
mod host;
pub mod java;
mod kafka;
pub mod kernel;
mod kit;
pub mod libvirt;
mod loop_disk;
mod memory;
mod paced_load;
pub mod plan;
mod port;
mod python;
mod qmp;
mod relay;
pub mod repository;
mod run;
mod scratch;
mod skip;
mod slow_disk;
mod throttled_disk;
mod tools;
pub mod trace;
mod unseen;
pub mod vhost;
mod wait;
pub mod workload;
mod write_limit;

pub use counts::{Counts, disk_stats};
pub use cpu_time::cpu_time;
pub use cross::{CrossRoot, cargo_home, static_program};
pub use demonstration::DemoGuests;
pub use disk::{GuestDisk, VhostDisk};
pub use extent::{VARIABLE as EXTENT_VARIABLE, is_full};
pub use fleet::{Fleet, FleetProcess, MonitorProcess};
pub use flink::Flink;
pub use flink_cluster::{FlinkCluster, FlinkProcess};
pub use guest::Guest;
pub use host::{Cable, TestHost, Traffic};
pub use kafka::{Kafka, KafkaUser};
pub use kit::Kit;
pub use loop_disk::LoopDisk;
pub use memory::MemoryFolder;
pub use paced_load::PacedLoad;
pub use plan::DiskLoad;
pub use port::{Done, Port, Socket};
pub use python::python_with;
pub use qmp::Qmp;
pub use relay::Relay;
pub use run::{output, run};
pub use scratch::Scratch;
pub use skip::{is_root, skip, skipped, tried_again};
pub use slow_disk::SlowDisk;
pub use throttled_disk::ThrottledDisk;
pub use tools::Tools;
pub use unseen::unseen_max;
pub use wait::{TIMEOUT, wait_until};
pub use write_limit::WriteLimit;
