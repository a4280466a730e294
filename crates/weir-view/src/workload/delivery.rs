//! [`Delivery`]: passes the rows of a feed to its consumer as events, in the thread that reads them
//! or in one of its own.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use weir_model::Batch;
use weir_runtime::failure::Failure;

use super::feed::{EventConsumer, Events};

/// The number of batches that wait for the thread.
const BATCHES_MAX: usize = 4;

/// The way to a consumer.
pub(super) enum Delivery<R> {
    /// In the calling thread.
    Here(Events<R>),
    /// In a thread of its own.
    Beside {
        batches: SyncSender<Batch>,
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
    pub(super) fn beside(mut events: Events<R>) -> Result<(Delivery<R>, Worker), Failure> {
        let (batches, received) = sync_channel::<Batch>(BATCHES_MAX);
        let has_ended = Arc::new(AtomicBool::new(false));
        let ends = has_ended.clone();
        let run = move || {
            for batch in received {
                if !ends.load(Ordering::Relaxed) && !events.pass(&batch) {
                    ends.store(true, Ordering::Relaxed);
                }
            }
        };
        let thread = thread::Builder::new().name("analysis".to_owned());
        let delivery = Delivery::Beside { batches, has_ended };
        Ok((delivery, Worker(thread.spawn(run)?)))
    }

    /// Delivers the events of these rows; false if the consumer ends, of which a thread informs some
    /// batches later.
    pub(super) fn deliver(&mut self, batch: &Batch) -> bool {
        match self {
            Delivery::Here(events) => events.pass(batch),
            Delivery::Beside { batches, has_ended } => {
                let is_sent = batches.send(batch.clone()).is_ok();
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
