//! [`Stop`]: says to every thread of a server that it is over, also to one that waits in poll(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Raised once, for good. Clones are the same.
///
/// ```
/// let stop = weir_tapdisk::Stop::new()?;
/// let seen_by_a_thread = stop.clone();
/// assert!(!seen_by_a_thread.is_raised());
/// stop.raise();
/// assert!(seen_by_a_thread.is_raised());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stop {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    raised: AtomicBool,
    /// Readable from when it is raised on; nobody reads it, so it stays so.
    event: OwnedFd,
}

impl Stop {
    /// One that is not raised.
    ///
    /// # Errors
    /// The process has no room for another file descriptor.
    pub fn new() -> std::io::Result<Stop> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let raised = AtomicBool::new(false);
        Ok(Stop {
            shared: Arc::new(Shared { raised, event }),
        })
    }

    /// Raises it. To raise it again changes nothing.
    pub fn raise(&self) {
        self.shared.raised.store(true, Ordering::Release);
        let one = 1_u64.to_ne_bytes();
        // It fails only when the counter is full, and then it is readable too.
        let _full = rustix::io::write(&self.shared.event, &one);
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.shared.raised.load(Ordering::Acquire)
    }

    /// A file descriptor that is readable from when it is raised on. It is for poll(2): whoever
    /// reads it takes the sign from the others.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}
