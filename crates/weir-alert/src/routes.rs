//! [`RouteFile`]: which receivers get which alerts, how they are grouped, and which alerts withhold
//! others.
//!
//! ```toml
//! [[receiver]]
//! name = "pager"
//! webhook = "https://example.org/hook"
//! secret = "/etc/weir/hook.key"
//!
//! [[receiver]]
//! name = "mail"
//! alertmanager = "http://localhost:9093"
//!
//! [[route]]
//! labels = { severity = "critical" }
//! receivers = ["pager"]
//! group_by = ["host"]
//! group_wait = "10 s"
//!
//! [[route]]
//! receivers = ["mail"]
//!
//! [[inhibit]]
//! alert = "agent_gone"
//! withholds = ["slow_disk"]
//! equal = ["host"]
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_runtime::config::{Configuration, Fault, Time};

use crate::event::AlertEvent;
use crate::silence::has_labels;

/// The longest wait for further events of a group.
const GROUP_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteFile {
    /// Where events can be delivered.
    #[serde(rename = "receiver")]
    pub receivers: Vec<ReceiverEntry>,
    /// Which receivers get an event: those of the first route that it matches.
    #[serde(rename = "route")]
    pub routes: Vec<AlertRoute>,
    /// Which alerts withhold others.
    #[serde(rename = "inhibit")]
    pub inhibitions: Vec<Inhibition>,
}

/// A receiver (`[[receiver]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiverEntry {
    /// Its name.
    pub name: String,
    /// The URL of a webhook.
    pub webhook: Option<String>,
    /// The URL of an Alertmanager.
    pub alertmanager: Option<String>,
    /// The file with the secret that signs what is posted to the webhook.
    pub secret: Option<PathBuf>,
    /// Certificates of authorities for HTTPS; without it, those of the system.
    pub ca: Option<PathBuf>,
}

/// A route (`[[route]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlertRoute {
    /// The alerts; none is all.
    #[serde(default)]
    pub alerts: Vec<String>,
    /// Values of labels that an instance must have.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The names of the receivers; none is none.
    pub receivers: Vec<String>,
    /// The labels whose values are equal in one message; `alert` is the name of the alert.
    #[serde(default)]
    pub group_by: Vec<String>,
    /// How long the first event of a group waits for others.
    pub group_wait: Option<Time>,
}

/// An alert that withholds others while it fires (`[[inhibit]]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inhibition {
    /// The alert that withholds.
    pub alert: String,
    /// The alerts whose messages are withheld; none is all others.
    #[serde(default)]
    pub withholds: Vec<String>,
    /// The labels that both instances must have with the same value.
    #[serde(default)]
    pub equal: Vec<String>,
}

impl Configuration for RouteFile {
    fn complete(&mut self, faults: &mut Vec<Fault>) {
        let mut fault = |key: String, why: String| faults.push(Fault { key, why });
        for (at, receiver) in self.receivers.iter().enumerate() {
            let same = |other: &ReceiverEntry| other.name == receiver.name;
            if self.receivers[..at].iter().any(same) {
                let why = format!("two receivers have the name `{}`", receiver.name);
                fault(format!("receiver.{at}.name"), why);
            }
            if receiver.webhook.is_some() == receiver.alertmanager.is_some() {
                let why = "a receiver has either webhook = \"URL\" or alertmanager = \"URL\"";
                fault(format!("receiver.{at}.name"), why.to_owned());
            }
            if receiver.secret.is_some() && receiver.webhook.is_none() {
                let why = "only what is posted to a webhook is signed";
                fault(format!("receiver.{at}.secret"), why.to_owned());
            }
        }
        for (at, route) in self.routes.iter().enumerate() {
            let known = |name: &&String| self.receivers.iter().any(|r| r.name == **name);
            if let Some(unknown) = route.receivers.iter().find(|name| !known(name)) {
                let why = format!("there is no [[receiver]] with the name `{unknown}`");
                fault(format!("route.{at}.receivers"), why);
            }
            if route.group_wait.is_some_and(|wait| wait.0 > GROUP_WAIT_MAX) {
                fault(
                    format!("route.{at}.group_wait"),
                    "is at most 1 h".to_owned(),
                );
            }
        }
        if self.routes.is_empty() && !self.receivers.is_empty() {
            let all = self.receivers.iter().map(|receiver| receiver.name.clone());
            self.routes.push(AlertRoute::to(all.collect()));
        }
    }
}

impl AlertRoute {
    /// The route of every event to these receivers, without groups.
    pub fn to(receivers: Vec<String>) -> AlertRoute {
        AlertRoute {
            alerts: Vec::new(),
            labels: BTreeMap::new(),
            receivers,
            group_by: Vec::new(),
            group_wait: None,
        }
    }

    /// Whether it is that of an event.
    pub fn matches(&self, event: &AlertEvent) -> bool {
        let mut alerts = self.alerts.iter();
        let is_alert =
            self.alerts.is_empty() || alerts.any(|alert| alert.eq_ignore_ascii_case(&event.alert));
        let mut labels = self.labels.iter();
        is_alert && labels.all(|(name, value)| event.label(name) == Some(value.as_str()))
    }

    /// The values by which an event is grouped.
    pub fn group(&self, event: &AlertEvent) -> Vec<(String, Option<String>)> {
        let value = |name: &String| match name.as_str() {
            "alert" => (name.clone(), Some(event.alert.clone())),
            label => (name.clone(), event.label(label).map(str::to_owned)),
        };
        self.group_by.iter().map(value).collect()
    }
}

impl Inhibition {
    /// Whether `source`, which fires, withholds the messages of `target`.
    pub fn applies(&self, source: &AlertEvent, target: &AlertEvent) -> bool {
        let is_source = source.alert.eq_ignore_ascii_case(&self.alert);
        let mut withholds = self.withholds.iter();
        let is_target = match self.withholds.is_empty() {
            true => !target.alert.eq_ignore_ascii_case(&self.alert),
            false => withholds.any(|alert| alert.eq_ignore_ascii_case(&target.alert)),
        };
        let values = self.equal.iter().filter_map(|name| {
            let value = source.label(name)?;
            Some((name.clone(), value.to_owned()))
        });
        let values: Vec<(String, String)> = values.collect();
        is_source
            && is_target
            && source.instance() != target.instance()
            && values.len() == self.equal.len()
            && has_labels(target, &values)
    }
}

#[cfg(test)]
mod tests {
    use weir_runtime::config::parse;

    use super::*;

    #[test]
    fn a_file_without_routes_sends_everything_to_all() {
        let text = "[[receiver]]\nname = \"a\"\nwebhook = \"http://h/\"\n";
        let file: RouteFile = parse("routes.toml", text).unwrap();
        assert_eq!(file.routes, [AlertRoute::to(vec!["a".to_owned()])]);
    }

    #[test]
    fn a_mistake_is_reported_with_its_line() {
        for (text, expected) in [
            (
                "[[receiver]]\nname = \"a\"\n",
                "2: `receiver.name`: a receiver has either",
            ),
            (
                "[[route]]\nreceivers = [\"b\"]\n",
                "2: `route.receivers`: there is no [[receiver]] with the name `b`",
            ),
            (
                "[[inhibit]]\nalert = \"a\"\nhides = 1\n",
                "3: unknown key `inhibit.hides`",
            ),
        ] {
            let faults = parse::<RouteFile>("r.toml", text).unwrap_err();
            let fault = faults[0].strip_prefix("weir: r.toml:").unwrap();
            assert!(fault.starts_with(expected), "{expected}\n{fault}");
        }
    }
}
