//! [`Systemd`]: notifications to the service manager (sd_notify(3)), where there is one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::debug;

/// The state of the notifications of this process.
pub struct Systemd {
    /// The interval of watchdog messages, in ms; none without a watchdog.
    watchdog_ms: Option<u64>,
    /// The time of the last one, in ms since the start of the service.
    sent_ms: AtomicU64,
}

impl Systemd {
    /// Reads `NOTIFY_SOCKET` and `WATCHDOG_USEC`.
    pub fn from_environment() -> Systemd {
        // Twice within the limit, as sd_watchdog_enabled(3) recommends.
        let interval = |limit: Duration| (limit.as_millis() / 2) as u64;
        Systemd {
            watchdog_ms: sd_notify::watchdog_enabled().map(interval),
            sent_ms: AtomicU64::new(0),
        }
    }

    /// The service has started, or its reload has ended.
    pub fn ready(&self, text: &str) {
        send(&[NotifyState::Ready, NotifyState::Status(text)]);
    }

    /// A reload begins; [`Systemd::ready`] ends it.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => send(&[NotifyState::Reloading, now]),
            Err(_) => send(&[NotifyState::Reloading]),
        }
    }

    /// The service is ending.
    pub fn stopping(&self) {
        send(&[NotifyState::Stopping]);
    }

    /// What `systemctl status` shows.
    pub fn status(&self, text: &str) {
        send(&[NotifyState::Status(text)]);
    }

    /// The main loop works at `now_ms` after the start: a watchdog message, if one is due.
    pub fn turned(&self, now_ms: u64) {
        let Some(interval_ms) = self.watchdog_ms else {
            return;
        };
        if now_ms.saturating_sub(self.sent_ms.load(Ordering::Relaxed)) >= interval_ms {
            self.sent_ms.store(now_ms, Ordering::Relaxed);
            send(&[NotifyState::Watchdog]);
        }
    }
}

/// Sends a notification. Without a service manager it does nothing; a failure changes nothing about
/// the service itself.
fn send(state: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!(%error, "the service manager was not notified");
    }
}
