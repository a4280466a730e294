//! The front end vhost-user-blk: a VM's virtio disk, whose queues this process serves in the VM's
//! own memory.
//!
//! The life of a request: the guest's driver writes descriptors and kicks. The queue's thread
//! ([`worker`]) wakes, takes the head of a chain from the [`ring`], follows the [`chain`], reads the
//! [`command`] in it, and hands the request to its lane with the guest's own memory as buffers
//! ([`queue`]). When the lane says that it is done, the status byte and the used ring are written,
//! and the driver is called. Who is connected, and where its memory and its rings are, is told over a
//! unix socket ([`serve()`], [`session`], [`memory`]). What is on its way is noted in memory that outlives
//! us ([`inflight`]): after a kill the next process does what was not done.
//!
//! Nothing that a guest or a front end sends is trusted. Descriptors, rings and what is in them are read
//! once and then checked, in copies that nobody else can change.

use std::path::PathBuf;
use std::time::Duration;

mod chain;
mod channel;
mod command;
mod config;
mod guard;
mod inflight;
mod memory;
mod poll;
mod queue;
mod remarks;
mod ring;
mod serve;
mod session;
mod trial;
mod worker;

pub use chain::ChainError;
pub use command::NoStatus;
pub use queue::Broken;
pub use remarks::Tell;
pub use ring::RingError;
pub use serve::serve;
pub use trial::{TrialEnd, TrialQueue, carry_out};

use crate::disk::DiskError;

/// Queues of a disk, at most.
pub const QUEUES_MAX: u16 = 256;

/// Mappings of guests' memory in a process, at most: half of what Linux allows it unless it is set
/// otherwise (`vm.max_map_count`, 65,530).
const MAPPINGS_MAX: usize = 1 << 15;

const _: () = assert!(MAPPINGS_MAX < guard::GUARDS_MAX, "each mapping has a guard");

/// Regions of memory that the front end of each disk may share where a process serves `disks`
/// disks, so that no front end uses up what others need: 509, as KVM gives a VM, up to 32 disks,
/// and at least 64 up to 256.
pub fn memory_slots(disks: usize) -> u16 {
    // Twice: when regions are replaced, old and new ones are mapped at the same time.
    let share = MAPPINGS_MAX / (2 * disks.max(1));
    u16::try_from(share).map_or(memory::REGIONS_MAX, |share| {
        share.clamp(1, memory::REGIONS_MAX)
    })
}

/// How a disk is served. [`Options::new`] fills in what most want.
#[derive(Clone)]
pub struct Options {
    /// Queues that a guest may use: 1 to [`QUEUES_MAX`]. One that it does not use costs nothing; QEMU
    /// wants as many as the VM has processors.
    pub queues: u16,
    /// How long a queue looks for more before it sleeps, at most; zero: it sleeps at once. It goes on
    /// only where looking finds work.
    pub poll: Duration,
    /// Regions of memory that a front end may share; [`memory_slots`] divides what a process has.
    pub memory_slots: u16,
    /// How long the end is put off for requests on their way.
    pub patience: Duration,
    /// Who hears of front ends that come and go, and of what they do wrong: a line at a time.
    pub tell: Tell,
}

impl Options {
    /// 64 queues, 50 µs, a patience of 20 s, and remarks for `tell`.
    pub fn new(tell: Tell) -> Options {
        Options {
            queues: 64,
            poll: Duration::from_micros(50),
            memory_slots: memory_slots(1),
            patience: Duration::from_secs(20),
            tell,
        }
    }
}

/// Why a socket, a connection or a queue cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum VhostError {
    /// The socket.
    #[error("{}: cannot {what}: {error}", path.display())]
    Socket {
        /// Where it is.
        path: PathBuf,
        /// What was tried: `listen`.
        what: &'static str,
        /// What the system says.
        error: std::io::Error,
    },
    /// An option that cannot be.
    #[error("{queues} queues; a disk has 1 to {QUEUES_MAX}")]
    Queues {
        /// What was asked for.
        queues: u16,
    },
    /// The image, or the engine.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The system has no room for a queue's thread or file descriptors.
    #[error("queue {index}: {error}")]
    Queue {
        /// The queue.
        index: u16,
        /// What the system says.
        error: std::io::Error,
    },
    /// A ring that cannot be.
    #[error("queue {index}: {error}")]
    Ring {
        /// The queue.
        index: u16,
        /// What is wrong.
        error: RingError,
    },
    /// The front end speaks of a queue that there is not.
    #[error("queue {index} of {known}")]
    NoQueue {
        /// What it says.
        index: u32,
        /// How many there are.
        known: usize,
    },
    /// A number of descriptors that cannot be.
    #[error(
        "a queue of {size} descriptors; at most {} are known, and powers of two",
        ring::QUEUE_SIZE_MAX
    )]
    QueueSize {
        /// What it says.
        size: u32,
    },
    /// A ring is where the front end has shared nothing.
    #[error("a ring at {address:#x}, where the front end shares no memory")]
    Address {
        /// In its address space.
        address: u64,
    },
    /// A region of memory that cannot be used.
    #[error("memory of {bytes} bytes at {guest:#x}: {reason}")]
    Memory {
        /// The guest's address.
        guest: u64,
        /// Its length in bytes.
        bytes: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// Regions that do not go together.
    #[error("the table of memory: {reason}")]
    Table {
        /// What is wrong with it.
        reason: String,
    },
    /// More regions than anyone needs.
    #[error("more than {max} regions of memory")]
    Regions {
        /// How many there may be.
        max: usize,
    },
    /// Memory for what is in flight that cannot be used.
    #[error("the memory that tracks requests in flight: {reason}")]
    Inflight {
        /// What is wrong with it.
        reason: String,
    },
    /// The front end acknowledges what was not offered.
    #[error("features {unknown:#x} were not offered")]
    Features {
        /// Their bits.
        unknown: u64,
    },
    /// A kick or a call that is something else.
    #[error("a file descriptor that is no eventfd, where one is due")]
    NotAnEvent,
    /// A queue does not end though all is to end.
    #[error(
        "requests of a queue are still on their way; the guest makes them again when it is served again"
    )]
    Stuck,
    /// We are wrong.
    #[error("the thread of a queue died")]
    Died,
}
