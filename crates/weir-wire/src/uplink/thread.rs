//! The uplink's thread: one connection after the other until the end, and the disk beside them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{DISK_SHUTDOWN_TIMEOUT, QueuedEvent, Shared, UplinkEvent, UplinkOptions, connection};
use crate::outbox::spool::Spool;

/// A connection that held so long makes the next attempt a first one.
const STEADY: Duration = Duration::from_secs(10);
/// How often it is seen whether the end may come.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Keeps the link until the end.
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
        // What stays is removed at the next start.
        let clean = tokio::task::spawn_blocking(move || spool.clean());
        let _ = timeout(DISK_SHUTDOWN_TIMEOUT, clean).await;
    }
}

/// Makes one connection after the other.
async fn reconnect(options: &UplinkOptions, shared: &Shared, orders: &SyncSender<QueuedEvent>) {
    let mut pause = options.retry_min;
    loop {
        let begun = Instant::now();
        let why = connection::run(options, shared, orders).await;
        let monitors = {
            let mut state = shared.lock();
            state.shown.connected = false;
            state.shown.failures += 1;
            state.shown.last_failure = Some(why.clone());
            state.monitors
        };
        let order = UplinkEvent::Disconnected(why);
        // A channel that is full says nothing new, and one without a reader has no use for it.
        let _ = orders.try_send(QueuedEvent { order, monitors });
        if begun.elapsed() > STEADY {
            pause = options.retry_min;
        }
        sleep(jittered(pause)).await;
        pause = (pause * 2).min(options.retry_max);
    }
}

/// Between half and all of `pause`, so that a fleet does not come back all at once.
fn jittered(pause: Duration) -> Duration {
    // The standard library's hash maps are seeded at random; that is random enough here.
    let random = RandomState::new().build_hasher().finish();
    pause.mul_f64(0.5 + (random % 1024) as f64 / 2048.0)
}

/// Does the outbox's errands, one after the other, on a thread that may wait for a disk.
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

/// Comes back when the end has come, and everything was taken or its time is over.
async fn drain(options: &UplinkOptions, shared: &Shared) {
    shared.ending.notified().await;
    let until = Instant::now() + options.shutdown_timeout;
    while Instant::now() < until && shared.lock().outbox.waiting().messages > 0 {
        sleep(DRAIN_POLL_INTERVAL).await;
    }
}
