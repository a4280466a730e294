//! The uplink's thread: connects again and again until shutdown, and runs disk tasks in parallel.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{DISK_SHUTDOWN_TIMEOUT, QueuedEvent, Shared, UplinkEvent, UplinkOptions, connection};
use crate::dial::Dial;
use crate::outbox::spool::Spool;

/// After a connection of this length, the retry pause starts at its minimum again.
const STEADY: Duration = Duration::from_secs(10);
/// How long a monitor may take to answer at first where there are several; it doubles after each
/// round of all addresses.
const TIMEOUT_OPEN_MIN: Duration = Duration::from_secs(1);
/// The longest pause while a standby answers.
const STANDBY_PAUSE_MAX: Duration = Duration::from_millis(800);
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
    let mut attempts = Attempts::new(options);
    loop {
        let started = Instant::now();
        let timeout_open = attempts.timeout_open;
        let dial = &attempts.dial;
        let lost = connection::run(options, dial, timeout_open, shared, orders).await;
        let why = lost.why;
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
        shared.listener.unpark();
        if started.elapsed() > STEADY {
            attempts = Attempts {
                dial: attempts.dial,
                ..Attempts::new(options)
            };
        }
        let pause = attempts.failed(options, lost.is_standby);
        sleep(jittered(pause)).await;
    }
}

/// The next attempt to connect: where, how long it may take, and the pause after it.
struct Attempts {
    dial: Dial,
    timeout_open: Duration,
    pause: Duration,
    /// The addresses that were tried since the last long pause.
    tried: usize,
    /// One of them is a standby.
    has_standby: bool,
}

impl Attempts {
    fn new(options: &UplinkOptions) -> Attempts {
        Attempts {
            dial: options.dial.clone(),
            timeout_open: match options.dial.others.is_empty() {
                true => options.silence_max,
                false => TIMEOUT_OPEN_MIN.min(options.silence_max),
            },
            pause: options.retry_min,
            tried: 0,
            has_standby: false,
        }
    }

    /// Selects the next address; returns the pause before it, which grows after each round of all
    /// addresses.
    fn failed(&mut self, options: &UplinkOptions, is_standby: bool) -> Duration {
        self.dial = self.dial.next();
        self.tried += 1;
        self.has_standby |= is_standby;
        if self.tried <= self.dial.others.len() {
            return options.retry_min;
        }
        let pause = match self.has_standby {
            // It will lead soon.
            true => self.pause.min(STANDBY_PAUSE_MAX),
            false => self.pause,
        };
        self.pause = (self.pause * 2).min(options.retry_max);
        self.timeout_open = (self.timeout_open * 2).min(options.silence_max);
        (self.tried, self.has_standby) = (0, false);
        pause
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
