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

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;
use serde_json::json;
use weir_runtime::output;

use super::delivery::{Delivery, DeliveryThread};
use super::{EventSpool, HttpClient, HttpError, Receiver};
use crate::event::{AlertEvent, VERSION};
use crate::notifier::GroupKey;

/// Maximum number of events in one request.
const BATCH_MAX: usize = 100;

/// See the module's documentation.
pub struct Webhook {
    sender: Arc<Sender>,
    thread: DeliveryThread,
}

struct Sender {
    delivery: Delivery<EventSpool>,
    secret: Option<hmac::Key>,
}

impl Webhook {
    /// A webhook that signs with `secret`, if there is one, and has its events in `spool`.
    pub fn new(client: HttpClient, secret: Option<&[u8]>, spool: EventSpool) -> Webhook {
        let secret = secret.map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret));
        Webhook {
            sender: Arc::new(Sender {
                delivery: Delivery::new(client, spool),
                secret,
            }),
            thread: DeliveryThread::default(),
        }
    }
}

impl Receiver for Webhook {
    fn start(&mut self) {
        let sender = self.sender.clone();
        self.thread.start(move || sender.deliver());
    }

    fn notify(&mut self, event: &AlertEvent, group: &GroupKey) {
        if !event.is_reported() {
            return;
        }
        let delivery = &self.sender.delivery;
        let mut json = event.json();
        if !group.is_empty() {
            let group: BTreeMap<&String, &Option<String>> =
                group.iter().map(|(name, value)| (name, value)).collect();
            json["group"] = json!(group);
        }
        let pushed = delivery.queue().push(json);
        match pushed {
            Ok(false) => {}
            Ok(true) => {
                delivery.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => self.sender.report(&error),
        }
        delivery.wake();
    }

    fn close(&mut self) -> Option<String> {
        self.sender.delivery.close(&self.thread, EventSpool::len)
    }
}

impl Sender {
    /// Delivers events until the run ends.
    fn deliver(&self) {
        let (delivery, mut failures) = (&self.delivery, 0);
        loop {
            let mut events = delivery
                .wait(None, |spool| !spool.is_empty())
                .first(BATCH_MAX);
            let Some(group) = events.first().map(|event| event["group"].clone()) else {
                return;
            };
            let others = events.iter().position(|event| event["group"] != group);
            events.truncate(others.unwrap_or(events.len()));
            let mut body = json!({"version": VERSION, "events": events});
            if !group.is_null() {
                body["group"] = group;
            }
            let body = body.to_string();
            let count = events.len();
            let refused =
                |status| format!("refused {count} events with status {status}; they are dropped");
            match delivery.settle(self.post(&body), &mut failures, refused) {
                None => self.delivered(count),
                // At the end of a run there is one attempt.
                Some(_) if delivery.is_closing() => return,
                Some(pause) => drop(delivery.wait(Some(pause), |_| false)),
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
        self.delivery.client.post(&headers, body.as_bytes())
    }

    fn delivered(&self, count: usize) {
        let removed = self.delivery.queue().remove(count);
        if let Err(error) = removed {
            self.report(&error);
        }
    }

    fn report(&self, error: &io::Error) {
        let url = self.delivery.client.url();
        output::notice(format_args!(
            "weir: {url}: the spool cannot be written: {error}"
        ));
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
