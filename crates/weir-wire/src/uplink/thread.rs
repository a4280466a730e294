//! The uplink's thread: connects again and again until shutdown, and runs disk tasks in parallel.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{DISK_SHUTDOWN_TIMEOUT, QueuedEvent, Shared, UplinkEvent, UplinkOptions, connection};
use crate::outbox::spool::Spool;

/// After a connection of this length, the retry pause starts at its minimum again.
const STEADY: Duration = Duration::from_secs(10);
/// How often shutdown checks whether everything is acknowledged.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Runs the link until shutdown.
pub(super) async fn run(
    options: &UplinkOptions,
    shared: &Shared,
    spool: Option<Spool>,
    orders: &SyncSender<QueuedEvent>,
) {
    let spool = spool.map(Arc::new);
    tokio::select! {
        () = reconnect(options, shared, orders) => {}
        () = run_disk_tasks(shared, spool.as_ref()) => {}
        () = drain(options, shared) => {}
    }
    if let Some(spool) = spool {
        // Remaining files are removed at the next start.
        let clean = tokio::task::spawn_blocking(move || spool.clean());
        let _ = timeout(DISK_SHUTDOWN_TIMEOUT, clean).await;
    }
}

/// Connects again after each disconnection.
async fn reconnect(options: &UplinkOptions, shared: &Shared, orders: &SyncSender<QueuedEvent>) {
    let mut pause = options.retry_min;
    loop {
        let started = Instant::now();
        let why = connection::run(options, shared, orders).await;
        let monitors = {
            let mut state = shared.lock();
            state.shown.connected = false;
            state.shown.failures += 1;
            state.shown.last_failure = Some(why.clone());
            state.monitors
        };
        let order = UplinkEvent::Disconnected(why);
        // A full channel holds the same news already, and one without a reader needs none.
        let _ = orders.try_send(QueuedEvent { order, monitors });
        if started.elapsed() > STEADY {
            pause = options.retry_min;
        }
        sleep(jittered(pause)).await;
        pause = (pause * 2).min(options.retry_max);
    }
}

/// A random duration between half and all of `pause`, so that a fleet does not reconnect at once.
fn jittered(pause: Duration) -> Duration {
    // Hash maps of the standard library are seeded randomly, which suffices here.
    let random = RandomState::new().build_hasher().finish();
    pause.mul_f64(0.5 + (random % 1024) as f64 / 2048.0)
}

/// Runs the outbox's disk tasks one at a time on a thread that may block.
async fn run_disk_tasks(shared: &Shared, spool: Option<&Arc<Spool>>) {
    let Some(spool) = spool else {
        return std::future::pending().await;
    };
    loop {
        let disk_task = shared.lock().outbox.next_disk_task();
        let Some(disk_task) = disk_task else {
            shared.disk_ready.notified().await;
            continue;
        };
        let spool = spool.clone();
        let run = tokio::task::spawn_blocking(move || spool.run(disk_task));
        let result = run.await.expect("an disk_task does not panic");
        shared.lock().outbox.finish_disk_task(result);
        shared.send_ready.notify_one();
    }
}

/// Waits for shutdown, then until everything is acknowledged or the timeout has passed.
async fn drain(options: &UplinkOptions, shared: &Shared) {
    shared.ending.notified().await;
    let until = Instant::now() + options.shutdown_timeout;
    while Instant::now() < until && shared.lock().outbox.waiting().messages > 0 {
        sleep(DRAIN_POLL_INTERVAL).await;
    }
}
