//! The uplink's thread: one connection after the other until the end, and the disk beside them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{DISK_FAREWELL, Order, Shared, Told, UplinkOptions, connection};
use crate::outbox::spool::Spool;

/// A connection that held so long makes the next attempt a first one.
const STEADY: Duration = Duration::from_secs(10);
/// How often it is seen whether the end may come.
const FAREWELL_TICK: Duration = Duration::from_millis(5);

/// Keeps the link until the end.
pub(super) async fn keep(
    options: &UplinkOptions,
    shared: &Shared,
    spool: Option<Spool>,
    orders: &SyncSender<Told>,
) {
    let spool = spool.map(Arc::new);
    tokio::select! {
        () = dial(options, shared, orders) => {}
        () = write(shared, spool.as_ref()) => {}
        () = farewell(options, shared) => {}
    }
    if let Some(spool) = spool {
        // What stays is removed at the next start.
        let clean = tokio::task::spawn_blocking(move || spool.clean());
        let _ = timeout(DISK_FAREWELL, clean).await;
    }
}

/// Makes one connection after the other.
async fn dial(options: &UplinkOptions, shared: &Shared, orders: &SyncSender<Told>) {
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
        let order = Order::Gone(why);
        // A channel that is full says nothing new, and one without a reader has no use for it.
        let _ = orders.try_send(Told { order, monitors });
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
async fn write(shared: &Shared, spool: Option<&Arc<Spool>>) {
    let Some(spool) = spool else {
        return std::future::pending().await;
    };
    loop {
        let errand = shared.lock().outbox.errand();
        let Some(errand) = errand else {
            shared.disk_stirred.notified().await;
            continue;
        };
        let spool = spool.clone();
        let run = tokio::task::spawn_blocking(move || spool.run(errand));
        let outcome = run.await.expect("an errand does not panic");
        shared.lock().outbox.done(outcome);
        shared.stirred.notify_one();
    }
}

/// Comes back when the end has come, and everything was taken or its time is over.
async fn farewell(options: &UplinkOptions, shared: &Shared) {
    shared.ending.notified().await;
    let until = Instant::now() + options.farewell;
    while Instant::now() < until && shared.lock().outbox.waiting().words > 0 {
        sleep(FAREWELL_TICK).await;
    }
}
