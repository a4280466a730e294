//! [`Delivery`]: what a receiver's thread shares with the run that feeds it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weir_runtime::output;

use super::{CLOSE_WITHIN, HttpClient, HttpError, ReceiverCounts, retry_after};

/// What waits for delivery (`Q`), and the state of the deliveries.
pub(super) struct Delivery<Q> {
    pub client: HttpClient,
    pub counts: ReceiverCounts,
    queue: Mutex<Q>,
    changed: Condvar,
    closing: AtomicBool,
}

/// The thread of a receiver.
#[derive(Default)]
pub(super) struct DeliveryThread(Option<JoinHandle<()>>);

impl<Q> Delivery<Q> {
    pub fn new(client: HttpClient, queue: Q) -> Delivery<Q> {
        Delivery {
            client,
            counts: ReceiverCounts::default(),
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            closing: AtomicBool::new(false),
        }
    }

    pub fn queue(&self) -> MutexGuard<'_, Q> {
        self.queue.lock().expect("no panic while held")
    }

    /// The queue has changed.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Waits for a queue that is ready, for the end of the run, or for `span`.
    pub fn wait(&self, span: Option<Duration>, is_ready: impl Fn(&Q) -> bool) -> MutexGuard<'_, Q> {
        let end = span.map(|span| Instant::now() + span);
        let mut queue = self.queue();
        while !is_ready(&queue) && !self.is_closing() {
            queue = match end.map(|end| end.checked_duration_since(Instant::now())) {
                None => self.changed.wait(queue).expect("no panic while held"),
                Some(None) => break,
                Some(Some(left)) => {
                    let waited = self.changed.wait_timeout(queue, left);
                    waited.expect("no panic while held").0
                }
            };
        }
        queue
    }

    /// Counts and reports the outcome of a request after `failures` that failed. Returns the time
    /// until it is tried again; `None` if it was accepted, or refused for good: `refused` states
    /// that with the status.
    pub fn settle(
        &self,
        outcome: Result<(), HttpError>,
        failures: &mut u32,
        refused: impl Fn(u16) -> String,
    ) -> Option<Duration> {
        let url = self.client.url();
        let error = match outcome {
            Ok(()) => {
                self.counts.accepted.fetch_add(1, Ordering::Relaxed);
                *failures = 0;
                return None;
            }
            Err(HttpError::Refused(status)) => {
                self.counts.refused.fetch_add(1, Ordering::Relaxed);
                output::notice(format_args!("weir: {url}: {}", refused(status)));
                *failures = 0;
                return None;
            }
            Err(HttpError::Failed(error)) => error,
        };
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        *failures += 1;
        if *failures == 1 {
            output::notice(format_args!("weir: {url}: {error}; trying again"));
        }
        Some(retry_after(*failures, fastrand::f64()))
    }

    /// Ends the thread, for which it waits at most [`CLOSE_WITHIN`]; `waiting` counts what was not
    /// delivered, which is returned as a remark.
    pub fn close(
        &self,
        thread: &DeliveryThread,
        waiting: impl FnOnce(&Q) -> usize,
    ) -> Option<String> {
        {
            // The thread checks the flag and begins to wait while it holds this lock.
            let _waits = self.queue();
            self.closing.store(true, Ordering::Relaxed);
        }
        self.wake();
        thread.wait_for_end();
        self.counts
            .remark(self.client.url(), waiting(&self.queue()))
    }
}

impl DeliveryThread {
    /// Starts the thread, unless it runs.
    pub fn start(&mut self, deliver: impl FnOnce() + Send + 'static) {
        self.0.get_or_insert_with(|| thread::spawn(deliver));
    }

    fn wait_for_end(&self) {
        let end = Instant::now() + CLOSE_WITHIN;
        while self.0.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
        }
    }
}
