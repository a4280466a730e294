//! The vhost-user-blk front end: a VM's virtio disk, whose queues this process serves in the VM's
//! own memory.
//!
//! The stages of a request: the guest's driver writes descriptors and kicks. The queue's thread
//! ([`worker`]) wakes, takes the head of a chain from the [`ring`], follows the [`chain`], decodes
//! its [`command`], and passes the request to its I/O queue with the guest's own memory as buffers
//! ([`queue`]). When the I/O queue reports that it is done, the status byte and the used ring are
//! written, and the driver is notified. Connections, memory and rings are set up over a unix socket
//! ([`serve()`], [`session`], [`memory`]). Requests in flight are tracked in memory that outlives
//! the process ([`inflight`]): after a kill the next process executes what was not done.
//!
//! Nothing that a guest or a front end sends is trusted. Descriptors, rings and their contents are
//! read once and then checked, in copies that no other process can change.

use std::path::PathBuf;
use std::time::Duration;

mod chain;
mod channel;
mod command;
mod config;
mod guard;
mod inflight;
mod log;
mod memory;
mod offline;
mod queue;
mod ring;
mod serve;
mod session;
mod worker;

pub use chain::ChainError;
pub use command::NoStatus;
pub use log::LogLine;
pub use offline::{OfflineQueue, TrialEnd, run_queue};
pub use queue::Broken;
pub use ring::RingError;
pub use serve::serve;

use crate::disk::DiskError;
use crate::polling::POLL_DEFAULT;

/// Maximum number of queues of a disk.
pub const QUEUES_MAX: u16 = 256;

/// Maximum number of mappings of guests' memory in a process: half of the default limit of Linux
/// (`vm.max_map_count`, 65,530).
const MAPPINGS_MAX: usize = 1 << 15;

const _: () = assert!(MAPPINGS_MAX < guard::GUARDS_MAX, "each mapping has a guard");

/// The number of memory regions that the front end of each disk may share where a process serves
/// `disks` disks, so that no front end uses up the mappings of others: 509, the limit of KVM, up to
/// 32 disks, and at least 64 up to 256.
pub fn memory_slots(disks: usize) -> u16 {
    // Twice: when regions are replaced, old and new ones are mapped at the same time.
    let share = MAPPINGS_MAX / (2 * disks.max(1));
    u16::try_from(share).map_or(memory::REGIONS_MAX, |share| {
        share.clamp(1, memory::REGIONS_MAX)
    })
}

/// How a disk is served. [`VhostOptions::new`] sets the defaults.
#[derive(Clone)]
pub struct VhostOptions {
    /// The number of queues that a guest may use: 1 to [`QUEUES_MAX`]. An unused one costs nothing;
    /// QEMU requires as many as the VM has processors.
    pub queues: u16,
    /// How long a queue polls before it sleeps, at most; zero: it sleeps at once. It polls only
    /// where polling finds work.
    pub poll: Duration,
    /// The number of memory regions that a front end may share; [`memory_slots`] divides the limit
    /// of a process.
    pub memory_slots: u16,
    /// How long to wait for requests in flight at the end.
    pub drain_timeout: Duration,
    /// Receives messages about front ends and their errors, a line at a time.
    pub log_line: LogLine,
}

impl VhostOptions {
    /// 64 queues, polling for 50 µs, 20 s for requests in flight, and messages to `log`.
    pub fn new(log_line: LogLine) -> VhostOptions {
        VhostOptions {
            queues: 64,
            poll: POLL_DEFAULT,
            memory_slots: memory_slots(1),
            drain_timeout: Duration::from_secs(20),
            log_line,
        }
    }
}

/// Why a socket, a connection or a queue cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum VhostError {
    /// The socket.
    #[error("{}: cannot {what}: {error}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The operation: `listen`.
        what: &'static str,
        /// The error of the system.
        error: std::io::Error,
    },
    /// An invalid option.
    #[error("{queues} queues; a disk can have 1 to {QUEUES_MAX}")]
    Queues {
        /// The number of queues.
        queues: u16,
    },
    /// The image, or the engine.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The system has no memory for a queue's thread or file descriptors.
    #[error("queue {index}: {error}")]
    Queue {
        /// The queue.
        index: u16,
        /// The error of the system.
        error: std::io::Error,
    },
    /// An invalid ring.
    #[error("queue {index}: {error}")]
    Ring {
        /// The queue.
        index: u16,
        /// The error.
        error: RingError,
    },
    /// The front end refers to a queue that does not exist.
    #[error("unknown queue {index}; there are {known}")]
    NoQueue {
        /// Its index.
        index: u32,
        /// The number of queues.
        known: usize,
    },
    /// An invalid number of descriptors.
    #[error(
        "a queue of {size} descriptors; the size must be a power of two of at most {}",
        ring::QUEUE_SIZE_MAX
    )]
    QueueSize {
        /// The number.
        size: u32,
    },
    /// A ring outside the shared memory.
    #[error("a ring at {address:#x} is outside the shared memory")]
    Address {
        /// Its address in the front end's address space.
        address: u64,
    },
    /// An invalid region of memory.
    #[error("memory of {bytes} bytes at {guest:#x}: {reason}")]
    Memory {
        /// The guest's address.
        guest: u64,
        /// Its length in bytes.
        bytes: u64,
        /// The reason.
        reason: String,
    },
    /// Regions that conflict.
    #[error("the memory table: {reason}")]
    Table {
        /// The reason.
        reason: String,
    },
    /// Too many regions.
    #[error("more than {max} regions of memory")]
    Regions {
        /// The maximum.
        max: usize,
    },
    /// Invalid memory for requests in flight.
    #[error("the memory for requests in flight: {reason}")]
    Inflight {
        /// The reason.
        reason: String,
    },
    /// The front end acknowledges features that were not offered.
    #[error("features {unknown:#x} were not offered")]
    Features {
        /// Their bits.
        unknown: u64,
    },
    /// A kick or call descriptor that is not an eventfd.
    #[error("a file descriptor is not an eventfd")]
    NotAnEvent,
    /// A queue that does not end after the stop.
    #[error(
        "requests of a queue are still in flight; the guest repeats them when it is served again"
    )]
    Stuck,
    /// A bug: the thread panicked.
    #[error("the thread of a queue panicked")]
    Died,
}
