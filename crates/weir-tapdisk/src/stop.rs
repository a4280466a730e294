//! [`StopEvent`]: signals the end to every thread of a server, also to those that wait in poll(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Raised once; it cannot be reset. Clones are the same.
///
/// ```
/// let stop = weir_tapdisk::StopEvent::new()?;
/// let seen_by_a_thread = stop.clone();
/// assert!(!seen_by_a_thread.is_raised());
/// stop.raise();
/// assert!(seen_by_a_thread.is_raised());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StopEvent {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    raised: AtomicBool,
    /// Readable once it is raised; it is never read, so it stays readable.
    event: OwnedFd,
}

impl StopEvent {
    /// One that is not raised.
    ///
    /// # Errors
    /// The process has no room for another file descriptor.
    pub fn new() -> std::io::Result<StopEvent> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let raised = AtomicBool::new(false);
        Ok(StopEvent {
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

    /// A file descriptor that is readable once it is raised. It is for poll(2) only: reading it
    /// would clear the signal for others.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}
