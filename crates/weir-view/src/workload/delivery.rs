//! [`Delivery`]: passes the events of a feed to its consumer, in the thread that reads them or in
//! one of its own.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use weir_model::Symbol;
use weir_runtime::failure::Failure;
use weir_workload::{RequestEvent, Subject};

use super::feed::EventConsumer;

/// The number of batches that wait for the thread.
const BATCHES_MAX: usize = 4;

/// What happened to a request of a subject, and the command name of the process if it is read.
pub(super) type Event = (Subject, Option<Symbol>, RequestEvent);

/// The way to a consumer.
pub(super) enum Delivery<R> {
    /// In the calling thread.
    Here(Arc<Mutex<R>>),
    /// In a thread of its own.
    Beside {
        batches: SyncSender<Vec<Event>>,
        /// Batches that were delivered, whose memory is used again.
        empty: Receiver<Vec<Event>>,
        has_ended: Arc<AtomicBool>,
    },
}

/// The thread of a consumer.
pub(super) struct Worker(JoinHandle<()>);

impl<R: EventConsumer + 'static> Delivery<R> {
    /// Starts a thread for a consumer.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn beside(consumer: Arc<Mutex<R>>) -> Result<(Delivery<R>, Worker), Failure> {
        let (batches, received) = sync_channel::<Vec<Event>>(BATCHES_MAX);
        let (delivered, empty) = sync_channel(BATCHES_MAX);
        let has_ended = Arc::new(AtomicBool::new(false));
        let ends = has_ended.clone();
        let run = move || {
            for mut events in received {
                if !ends.load(Ordering::Relaxed) && !pass(&consumer, &mut events) {
                    ends.store(true, Ordering::Relaxed);
                }
                events.clear();
                // Where there are enough, it is freed.
                let _ = delivered.try_send(events);
            }
        };
        let thread = thread::Builder::new().name("analysis".to_owned());
        let delivery = Delivery::Beside {
            batches,
            empty,
            has_ended,
        };
        Ok((delivery, Worker(thread.spawn(run)?)))
    }

    /// Delivers these events, of which none remain; false if the consumer ends, of which a thread
    /// informs some batches later.
    pub(super) fn deliver(&self, events: &mut Vec<Event>) -> bool {
        match self {
            Delivery::Here(consumer) => pass(consumer, events),
            Delivery::Beside {
                batches,
                empty,
                has_ended,
            } => {
                let next = empty.try_recv().unwrap_or_default();
                let is_sent = batches.send(std::mem::replace(events, next)).is_ok();
                is_sent && !has_ended.load(Ordering::Relaxed)
            }
        }
    }
}

impl Worker {
    /// Waits until everything is delivered. The delivery to it is dropped before.
    pub(super) fn finish(self) {
        if let Err(panic) = self.0.join() {
            resume_unwind(panic);
        }
    }
}

/// Passes these events to a consumer; false if it ends.
fn pass<R: EventConsumer>(consumer: &Mutex<R>, events: &mut Vec<Event>) -> bool {
    let mut consumer = consumer.lock().expect("no panic while held");
    events
        .drain(..)
        .all(|(subject, process, event)| consumer.take_of(subject, process, event))
}
