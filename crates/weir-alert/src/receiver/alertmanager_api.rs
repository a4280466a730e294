//! [`AlertmanagerClient`]: posts the alerts that fire to Alertmanager's API
//! (`POST /api/v2/alerts`, `OpenAPI` description in its repository, api/v2/openapi.yaml).
//!
//! Alertmanager forgets an alert at its `endsAt`, so those that fire are posted again before it:
//! every [`POST_EVERY`], with an end [`LASTS`] ahead. One that cleared is posted with its end until
//! that was accepted. An alert whose data are missing continues to fire.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Map, Value as Json, json};
use weir_runtime::run_loop::wall_clock;
use weir_sink::time;

use super::delivery::{Delivery, DeliveryThread};
use super::{HttpClient, Receiver};
use crate::event::AlertEvent;
use crate::machine::{AlertState, INSTANCES_MAX};
use crate::notifier::GroupKey;

/// The path of the API below the URL of Alertmanager.
pub const PATH: &str = "/api/v2/alerts";

/// The interval between two posts of an alert that fires.
pub const POST_EVERY: Duration = Duration::from_secs(60);

/// How long Alertmanager keeps an alert that is not posted again.
pub const LASTS: Duration = Duration::from_secs(240);

/// See the module's documentation.
pub struct AlertmanagerClient {
    delivery: Arc<Delivery<Posted>>,
    thread: DeliveryThread,
}

/// The alerts that are posted, by instance.
#[derive(Default)]
struct Posted {
    alerts: BTreeMap<String, PostedAlert>,
    /// Increases with each change.
    version: u64,
}

#[derive(Clone)]
struct PostedAlert {
    labels: Map<String, Json>,
    annotations: Map<String, Json>,
    starts_at: i64,
    /// It cleared then.
    ended_at: Option<i64>,
    version: u64,
}

impl AlertmanagerClient {
    /// Posts with this client, whose URL ends with [`PATH`].
    pub fn new(client: HttpClient) -> AlertmanagerClient {
        AlertmanagerClient {
            delivery: Arc::new(Delivery::new(client, Posted::default())),
            thread: DeliveryThread::default(),
        }
    }
}

impl Receiver for AlertmanagerClient {
    fn start(&mut self) {
        let delivery = self.delivery.clone();
        self.thread.start(move || deliver(&delivery));
    }

    /// Groups are those of Alertmanager.
    fn notify(&mut self, event: &AlertEvent, _: &GroupKey) {
        if !event.is_reported() {
            return;
        }
        if !self.delivery.queue().apply(event) {
            let counts = &self.delivery.counts;
            counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.delivery.wake();
    }

    fn close(&mut self) -> Option<String> {
        self.delivery.close(&self.thread, |posted| {
            let alerts = posted.alerts.values();
            alerts.filter(|alert| alert.ended_at.is_some()).count()
        })
    }
}

impl Posted {
    /// Applies an event; false if there are too many alerts.
    fn apply(&mut self, event: &AlertEvent) -> bool {
        self.version += 1;
        let (key, version) = (event.instance(), self.version);
        match event.to {
            AlertState::Clear => {
                if let Some(alert) = self.alerts.get_mut(&key) {
                    (alert.ended_at, alert.version) = (Some(event.at), version);
                }
            }
            AlertState::Unknown => {}
            AlertState::Pending | AlertState::Firing => {
                if self.alerts.len() >= INSTANCES_MAX && !self.alerts.contains_key(&key) {
                    return false;
                }
                let alert = PostedAlert {
                    labels: labels(event),
                    annotations: annotations(event),
                    starts_at: event.fired_at.unwrap_or(event.at),
                    ended_at: None,
                    version,
                };
                self.alerts.insert(key, alert);
            }
        }
        true
    }

    /// The body of a post, and the version that it has.
    fn body(&self, now: i64) -> (u64, String) {
        let lasts = i64::try_from(LASTS.as_nanos()).expect("minutes");
        let alert = |alert: &PostedAlert| {
            json!({
                "labels": alert.labels,
                "annotations": alert.annotations,
                "startsAt": time::timestamp(alert.starts_at),
                "endsAt": time::timestamp(alert.ended_at.unwrap_or(now + lasts)),
            })
        };
        let alerts: Vec<Json> = self.alerts.values().map(alert).collect();
        (self.version, json!(alerts).to_string())
    }

    /// The alerts up to a version were accepted: those that ended are complete.
    fn accepted(&mut self, version: u64) {
        let is_kept = |alert: &PostedAlert| alert.ended_at.is_none() || alert.version > version;
        self.alerts.retain(|_, alert| is_kept(alert));
    }
}

/// Posts the alerts at each change, and again before they end, until the run ends.
fn deliver(delivery: &Delivery<Posted>) {
    let mut failures = 0;
    loop {
        let (version, body) = delivery.queue().body(wall_clock());
        let is_closing = delivery.is_closing();
        let posted = match body.as_str() {
            "[]" => Ok(()),
            body => delivery.client.post(&[], body.as_bytes()),
        };
        let refused = |status| format!("refused with status {status}");
        let pause = delivery.settle(posted, &mut failures, refused);
        if pause.is_none() {
            delivery.queue().accepted(version);
        }
        if is_closing {
            return;
        }
        // While requests fail, a change does not shorten the interval.
        let is_settled = pause.is_none();
        let is_ready = |posted: &Posted| is_settled && posted.version != version;
        drop(delivery.wait(Some(pause.unwrap_or(POST_EVERY)), is_ready));
    }
}

/// The labels, with the name of the alert as `alertname`. A label that is NULL is left out.
fn labels(event: &AlertEvent) -> Map<String, Json> {
    let present = event.labels.iter();
    let present =
        present.filter_map(|(name, value)| Some((label_name(name), json!(value.as_ref()?))));
    let name = ("alertname".to_owned(), json!(event.alert));
    present.chain([name]).collect()
}

fn annotations(event: &AlertEvent) -> Map<String, Json> {
    let texts = event.annotations.iter();
    texts
        .map(|(name, text)| (label_name(name), json!(text)))
        .collect()
}

/// A name as Prometheus allows it: letters, digits and underscores, not a digit first.
fn label_name(name: &str) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = name.chars().map(valid).collect();
    match name.starts_with(|c: char| c.is_ascii_digit()) || name.is_empty() {
        true => format!("_{name}"),
        false => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(to: AlertState, at: i64) -> AlertEvent {
        AlertEvent {
            at,
            alert: "slow".into(),
            labels: vec![
                ("vdisk".into(), Some("vda".into())),
                ("host name".into(), None),
            ],
            from: AlertState::Pending,
            to,
            fired_at: Some(5),
            flaps: 0,
            values: Vec::new(),
            annotations: vec![("summary".into(), "slow".into())],
            action: None,
        }
    }

    fn alerts(posted: &Posted) -> Vec<Json> {
        serde_json::from_str(&posted.body(1_000_000_000).1).unwrap()
    }

    #[test]
    fn an_alert_that_cleared_is_posted_until_that_was_accepted() {
        let mut posted = Posted::default();
        assert!(posted.apply(&event(AlertState::Firing, 5)));
        let (version, _) = posted.body(0);
        let first = &alerts(&posted)[0];
        assert_eq!(
            first["labels"],
            json!({"alertname": "slow", "vdisk": "vda"})
        );
        assert_eq!(first["endsAt"], "1970-01-01T00:04:01.000000000Z");
        assert!(posted.apply(&event(AlertState::Clear, 9)));
        // A post of the time before does not state that it cleared.
        posted.accepted(version);
        assert_eq!(
            alerts(&posted)[0]["endsAt"],
            "1970-01-01T00:00:00.000000009Z"
        );
        let (version, _) = posted.body(0);
        posted.accepted(version);
        assert!(alerts(&posted).is_empty());
    }

    #[test]
    fn missing_data_leave_an_alert_firing() {
        let mut posted = Posted::default();
        posted.apply(&event(AlertState::Firing, 5));
        posted.apply(&event(AlertState::Unknown, 7));
        let (version, _) = posted.body(0);
        posted.accepted(version);
        assert_eq!(alerts(&posted).len(), 1);
    }

    #[test]
    fn names_are_those_of_prometheus() {
        assert_eq!(label_name("p99 (ms)"), "p99__ms_");
        assert_eq!(label_name("9x"), "_9x");
    }
}
