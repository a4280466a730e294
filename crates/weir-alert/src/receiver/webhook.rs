//! [`Webhook`]: posts events as JSON, signed with a shared secret.
//!
//! ```text
//! POST /hook
//! Content-Type: application/json
//! X-Weir-Timestamp: 1700000000
//! X-Weir-Signature: v1=<hexadecimal>
//!
//! {"version":1,"events":[{"version":1,"id":"..","alert":"..","state":"firing",..}]}
//! ```
//!
//! The signature is HMAC-SHA256 (RFC 2104) with the secret over `timestamp:body`. A receiver
//! compares it, rejects old timestamps, and ignores an event whose `id` it has seen: an event is
//! delivered at least once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::hmac;
use serde_json::json;
use weir_runtime::output;

use super::{
    EventSpool, HttpClient, HttpError, Receiver, ReceiverCounts, retry_after, wait_for_end,
};
use crate::event::{AlertEvent, VERSION};

/// Maximum number of events in one request.
const BATCH_MAX: usize = 100;

/// See the module's documentation.
pub struct Webhook {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    client: HttpClient,
    secret: Option<hmac::Key>,
    spool: Mutex<EventSpool>,
    changed: Condvar,
    closing: AtomicBool,
    counts: ReceiverCounts,
}

impl Webhook {
    /// A webhook that signs with `secret`, if there is one, and has its events in `spool`.
    pub fn new(client: HttpClient, secret: Option<&[u8]>, spool: EventSpool) -> Webhook {
        Webhook {
            shared: Arc::new(Shared {
                client,
                secret: secret.map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret)),
                spool: Mutex::new(spool),
                changed: Condvar::new(),
                closing: AtomicBool::new(false),
                counts: ReceiverCounts::default(),
            }),
            thread: None,
        }
    }
}

impl Receiver for Webhook {
    fn start(&mut self) {
        let shared = self.shared.clone();
        self.thread
            .get_or_insert_with(|| std::thread::spawn(move || shared.deliver()));
    }

    fn notify(&mut self, event: &AlertEvent) {
        if !event.is_reported() {
            return;
        }
        let pushed = self.shared.lock().push(event.json());
        match pushed {
            Ok(false) => {}
            Ok(true) => {
                self.shared.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => output::notice(format_args!(
                "weir: {}: the spool cannot be written: {error}",
                self.shared.client.url()
            )),
        }
        self.shared.changed.notify_all();
    }

    fn close(&mut self) -> Option<String> {
        {
            // The thread checks the flag and begins to wait while it holds this lock.
            let _waits = self.shared.lock();
            self.shared.closing.store(true, Ordering::Relaxed);
        }
        self.shared.changed.notify_all();
        wait_for_end(self.thread.as_ref());
        let waiting = self.shared.lock().len();
        self.shared.counts.remark(self.shared.client.url(), waiting)
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, EventSpool> {
        self.spool.lock().expect("no panic while held")
    }

    /// Delivers events until the run ends.
    fn deliver(&self) {
        let mut failures = 0;
        loop {
            let events = {
                let mut spool = self.lock();
                while spool.is_empty() && !self.closing.load(Ordering::Relaxed) {
                    let waited = self.changed.wait(spool);
                    spool = waited.expect("no panic while held");
                }
                spool.first(BATCH_MAX)
            };
            if events.is_empty() {
                return;
            }
            let body = json!({"version": VERSION, "events": events}).to_string();
            match self.post(&body) {
                Ok(()) => {
                    failures = 0;
                    self.counts.accepted.fetch_add(1, Ordering::Relaxed);
                    self.delivered(events.len());
                }
                Err(HttpError::Refused(status)) => {
                    failures = 0;
                    self.counts.refused.fetch_add(1, Ordering::Relaxed);
                    output::notice(format_args!(
                        "weir: {}: refused {} events with status {status}; they are dropped",
                        self.client.url(),
                        events.len()
                    ));
                    self.delivered(events.len());
                }
                Err(HttpError::Failed(error)) => {
                    failures += 1;
                    self.counts.failed.fetch_add(1, Ordering::Relaxed);
                    if failures == 1 {
                        output::notice(format_args!(
                            "weir: {}: {error}; trying again",
                            self.client.url()
                        ));
                    }
                    // At the end of a run there is one attempt.
                    if self.closing.load(Ordering::Relaxed) {
                        return;
                    }
                    self.wait(retry_after(failures, fastrand::f64()));
                }
            }
        }
    }

    fn post(&self, body: &str) -> Result<(), HttpError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let timestamp = now.map_or(0, |now| now.as_secs()).to_string();
        let mut headers = vec![("X-Weir-Timestamp", timestamp.as_str())];
        let signature;
        if let Some(key) = &self.secret {
            signature = signed(key, &timestamp, body);
            headers.push(("X-Weir-Signature", &signature));
        }
        self.client.post(&headers, body.as_bytes())
    }

    fn delivered(&self, count: usize) {
        if let Err(error) = self.lock().remove(count) {
            let url = self.client.url();
            output::notice(format_args!(
                "weir: {url}: the spool cannot be written: {error}"
            ));
        }
    }

    /// Waits for the next attempt, or for the end of the run.
    fn wait(&self, span: Duration) {
        let end = Instant::now() + span;
        let mut spool = self.lock();
        while let Some(left) = end.checked_duration_since(Instant::now())
            && !self.closing.load(Ordering::Relaxed)
        {
            let waited = self.changed.wait_timeout(spool, left);
            spool = waited.expect("no panic while held").0;
        }
    }
}

/// `v1=` and the signature in hexadecimal.
fn signed(key: &hmac::Key, timestamp: &str, body: &str) -> String {
    let tag = hmac::sign(key, format!("{timestamp}:{body}").as_bytes());
    let digits: String = tag.as_ref().iter().map(|b| format!("{b:02x}")).collect();
    format!("v1={digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_openssl() {
        // printf '1700000000:{}' | openssl dgst -sha256 -hmac secret
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"secret");
        let expected = "v1=90d1dfc305363e56438c2a03dac8b91f27a9842b7e361afe3743831bca23c856";
        assert_eq!(signed(&key, "1700000000", "{}"), expected);
    }
}
