//! [`Notifier`]: delivers events to receivers by routes and in groups, unless a silence or another
//! alert withholds them.
//!
//! A firing that is withheld is delivered when that ends, if the instance still fires. The end of a
//! firing is delivered if the firing was. States, actions and their undoing do not depend on it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_model::Nanos;
use weir_runtime::output;

use crate::event::{AlertEvent, fingerprint};
use crate::machine::AlertState;
use crate::receiver::Receiver;
use crate::routes::{AlertRoute, Inhibition, RouteFile};
use crate::silence::SilenceFile;

/// The interval at which silences are read again.
const REFRESH_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of groups that wait; beyond, events are delivered at once.
const GROUPS_MAX: usize = 10_000;

/// The values by which events are grouped: names of labels with values.
pub type GroupKey = Vec<(String, Option<String>)>;

/// A receiver with its name in routes.
pub type NamedReceiver = (String, Box<dyn Receiver>);

/// See the module's documentation.
pub struct Notifier {
    receivers: Vec<NamedReceiver>,
    routes: Vec<AlertRoute>,
    inhibitions: Vec<Inhibition>,
    silences: Option<SilenceFile>,
    refreshed: Instant,
    /// The instances that fire, whose messages were delivered or are withheld.
    firing: BTreeMap<String, FiringInstance>,
    /// The groups that wait, by the number of the route.
    waiting: BTreeMap<(usize, GroupKey), WaitingGroup>,
    is_started: bool,
}

struct FiringInstance {
    event: AlertEvent,
    is_delivered: bool,
}

struct WaitingGroup {
    due: Instant,
    events: Vec<AlertEvent>,
}

impl Notifier {
    /// Delivers to `receivers` by the routes of a file. Without routes, all receivers get all
    /// events.
    pub fn new(receivers: Vec<NamedReceiver>, file: &RouteFile) -> Notifier {
        let mut routes = file.routes.clone();
        if routes.is_empty() {
            let names = receivers.iter().map(|(name, _)| name.clone());
            routes.push(AlertRoute::to(names.collect()));
        }
        Notifier {
            receivers,
            routes,
            inhibitions: file.inhibitions.clone(),
            silences: None,
            refreshed: Instant::now(),
            firing: BTreeMap::new(),
            waiting: BTreeMap::new(),
            is_started: false,
        }
    }

    /// With the silences of a directory of states.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn with_silences(mut self, states: &Path) -> io::Result<Notifier> {
        self.silences = Some(SilenceFile::open(states)?);
        Ok(self)
    }

    /// Starts the receivers, in a thread that has the privileges of the run.
    pub fn start(&mut self) {
        if !std::mem::replace(&mut self.is_started, true) {
            self.receivers
                .iter_mut()
                .for_each(|(_, receiver)| receiver.start());
        }
    }

    /// Delivers an event at `now`, or withholds it; returns whether it is withheld.
    pub fn event(&mut self, event: &AlertEvent, now: Nanos) -> bool {
        let is_hidden = self.is_hidden(event, now);
        if !event.is_reported() {
            return is_hidden;
        }
        let instance = event.instance();
        match event.to {
            AlertState::Firing => {
                let before = self.firing.get(&instance).is_some_and(|f| f.is_delivered);
                if !is_hidden {
                    self.route(event);
                }
                let firing = FiringInstance {
                    event: event.clone(),
                    is_delivered: before || !is_hidden,
                };
                self.firing.insert(instance, firing);
            }
            AlertState::Unknown => {
                if self.firing.get(&instance).is_none_or(|f| f.is_delivered) {
                    self.route(event);
                }
            }
            AlertState::Clear | AlertState::Pending => {
                // An instance that fired before a restart was delivered then.
                if self.firing.remove(&instance).is_none_or(|f| f.is_delivered) {
                    self.route(event);
                }
            }
        }
        is_hidden
    }

    /// Delivers groups that have waited long enough, and firings that are withheld no more.
    pub fn advance(&mut self, now: Nanos) {
        if self.refreshed.elapsed() >= REFRESH_EVERY {
            self.refreshed = Instant::now();
            if let Some(Err(error)) = self.silences.as_mut().map(SilenceFile::refresh) {
                output::notice(format_args!("weir: the silences cannot be read: {error}"));
            }
            self.deliver_withheld(now);
        }
        let at = Instant::now();
        let due = self.waiting.iter().filter(|(_, group)| group.due <= at);
        let due: Vec<(usize, GroupKey)> = due.map(|(key, _)| key.clone()).collect();
        for key in due {
            self.flush(&key);
        }
    }

    /// Delivers what waits, and ends; returns what was not delivered.
    pub fn close(&mut self) -> Vec<String> {
        let keys: Vec<(usize, GroupKey)> = self.waiting.keys().cloned().collect();
        keys.iter().for_each(|key| self.flush(key));
        let receivers = self.receivers.iter_mut();
        receivers
            .filter_map(|(_, receiver)| receiver.close())
            .collect()
    }

    fn deliver_withheld(&mut self, now: Nanos) {
        let withheld = self.firing.iter().filter(|(_, f)| !f.is_delivered);
        let withheld: Vec<String> = withheld.map(|(instance, _)| instance.clone()).collect();
        for instance in withheld {
            let event = self.firing[&instance].event.clone();
            if !self.is_hidden(&event, now) {
                self.route(&event);
                let firing = self.firing.get_mut(&instance);
                firing.expect("it is listed").is_delivered = true;
            }
        }
    }

    fn is_hidden(&self, event: &AlertEvent, now: Nanos) -> bool {
        let silences = self.silences.as_ref();
        let is_silenced = silences.is_some_and(|file| file.hiding(event, now).is_some());
        let is_inhibited = || {
            let by = |inhibition: &Inhibition| {
                let mut firing = self.firing.values();
                firing.any(|source| inhibition.applies(&source.event, event))
            };
            self.inhibitions.iter().any(by)
        };
        is_silenced || is_inhibited()
    }

    fn route(&mut self, event: &AlertEvent) {
        let Some(at) = self.routes.iter().position(|route| route.matches(event)) else {
            return;
        };
        let route = &self.routes[at];
        let key = (at, route.group(event));
        let wait = route.group_wait.map_or(Duration::ZERO, |wait| wait.0);
        let is_full = self.waiting.len() >= GROUPS_MAX && !self.waiting.contains_key(&key);
        let group = self.waiting.entry(key.clone()).or_insert(WaitingGroup {
            due: Instant::now() + wait,
            events: Vec::new(),
        });
        group.events.push(event.clone());
        if wait.is_zero() || is_full {
            self.flush(&key);
        }
    }

    fn flush(&mut self, key: &(usize, GroupKey)) {
        let Some(group) = self.waiting.remove(key) else {
            return;
        };
        let names = &self.routes[key.0].receivers;
        for (name, receiver) in &mut self.receivers {
            if names.contains(name) {
                for event in &group.events {
                    receiver.notify(event, &key.1);
                }
            }
        }
    }
}

/// The name of the file of the events that wait for a webhook, in the directory of states.
pub fn spool_name(url: &str) -> String {
    format!("webhook-{}.jsonl", fingerprint(url))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::silence::Silence;

    /// A receiver that keeps what it gets.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Receiver for Kept {
        fn start(&mut self) {}

        fn notify(&mut self, event: &AlertEvent, group: &GroupKey) {
            let group: Vec<String> = group
                .iter()
                .map(|(name, v)| format!("{name}={v:?}"))
                .collect();
            let line = format!(
                "{} {} {}",
                event.instance(),
                event.to.name(),
                group.join(",")
            );
            self.0.lock().unwrap().push(line.trim().to_owned());
        }

        fn close(&mut self) -> Option<String> {
            None
        }
    }

    fn event(alert: &str, host: &str, from: AlertState, to: AlertState) -> AlertEvent {
        AlertEvent {
            at: 5,
            alert: alert.to_owned(),
            labels: vec![("host".to_owned(), Some(host.to_owned()))],
            from,
            to,
            fired_at: Some(5),
            flaps: 0,
            values: Vec::new(),
            annotations: Vec::new(),
            action: None,
        }
    }

    fn fires(alert: &str, host: &str) -> AlertEvent {
        event(alert, host, AlertState::Pending, AlertState::Firing)
    }

    fn clears(alert: &str, host: &str) -> AlertEvent {
        event(alert, host, AlertState::Firing, AlertState::Clear)
    }

    fn notifier(file: &RouteFile) -> (Notifier, Kept) {
        let kept = Kept::default();
        let receivers: Vec<NamedReceiver> = vec![("a".to_owned(), Box::new(kept.clone()))];
        (Notifier::new(receivers, file), kept)
    }

    fn taken(kept: &Kept) -> Vec<String> {
        std::mem::take(&mut *kept.0.lock().unwrap())
    }

    fn soon(notifier: &mut Notifier) {
        notifier.refreshed = Instant::now() - REFRESH_EVERY;
    }

    #[test]
    fn a_firing_that_was_silenced_is_delivered_when_the_silence_ends() {
        let folder = tempfile::tempdir().unwrap();
        let silence = |ends| Silence {
            id: "s".to_owned(),
            alert: Some("slow".to_owned()),
            labels: vec![("host".to_owned(), "h1".to_owned())],
            begins: 0,
            ends,
            comment: "maintenance".to_owned(),
        };
        SilenceFile::open(folder.path())
            .unwrap()
            .add(silence(100), 0)
            .unwrap();
        let (notifier, kept) = notifier(&RouteFile::default());
        let mut notifier = notifier.with_silences(folder.path()).unwrap();
        assert!(notifier.event(&fires("slow", "h1"), 10));
        assert!(!notifier.event(&fires("slow", "h2"), 10));
        assert_eq!(taken(&kept), ["slow{host=\"h2\"} firing"]);
        soon(&mut notifier);
        notifier.advance(99);
        assert!(taken(&kept).is_empty());
        soon(&mut notifier);
        notifier.advance(100);
        assert_eq!(taken(&kept), ["slow{host=\"h1\"} firing"]);
        notifier.event(&clears("slow", "h1"), 101);
        assert_eq!(taken(&kept), ["slow{host=\"h1\"} clear"]);
    }

    #[test]
    fn a_firing_that_ends_during_its_silence_is_never_delivered() {
        let folder = tempfile::tempdir().unwrap();
        let silence = Silence {
            id: "s".to_owned(),
            alert: None,
            labels: Vec::new(),
            begins: 0,
            ends: 100,
            comment: "maintenance".to_owned(),
        };
        let (notifier, kept) = notifier(&RouteFile::default());
        let mut notifier = notifier.with_silences(folder.path()).unwrap();
        notifier.event(&fires("slow", "h1"), 10);
        SilenceFile::open(folder.path())
            .unwrap()
            .add(silence, 0)
            .unwrap();
        soon(&mut notifier);
        notifier.advance(20);
        assert!(notifier.event(&fires("late", "h1"), 30));
        assert!(notifier.event(&clears("late", "h1"), 40));
        // What was delivered before the silence is ended in it.
        assert!(notifier.event(&clears("slow", "h1"), 50));
        assert_eq!(
            taken(&kept),
            ["slow{host=\"h1\"} firing", "slow{host=\"h1\"} clear"]
        );
    }

    #[test]
    fn an_alert_withholds_another_one_of_the_same_host() {
        let file = RouteFile {
            inhibitions: vec![Inhibition {
                alert: "gone".to_owned(),
                withholds: Vec::new(),
                equal: vec!["host".to_owned()],
            }],
            ..RouteFile::default()
        };
        let (mut notifier, kept) = notifier(&file);
        notifier.event(&fires("gone", "h1"), 1);
        assert!(notifier.event(&fires("slow", "h1"), 2));
        assert!(!notifier.event(&fires("slow", "h2"), 2));
        let expected = ["gone{host=\"h1\"} firing", "slow{host=\"h2\"} firing"];
        assert_eq!(taken(&kept), expected);
        notifier.event(&clears("gone", "h1"), 3);
        soon(&mut notifier);
        notifier.advance(4);
        let expected = ["gone{host=\"h1\"} clear", "slow{host=\"h1\"} firing"];
        assert_eq!(taken(&kept), expected);
    }

    #[test]
    fn the_events_of_a_group_wait_for_each_other() {
        let mut route = AlertRoute::to(vec!["a".to_owned()]);
        route.alerts = vec!["slow".to_owned()];
        route.group_by = vec!["alert".to_owned()];
        route.group_wait = Some(weir_runtime::config::Time(Duration::from_secs(3_000)));
        let file = RouteFile {
            routes: vec![route],
            ..RouteFile::default()
        };
        let (mut notifier, kept) = notifier(&file);
        notifier.event(&fires("slow", "h1"), 1);
        notifier.event(&fires("slow", "h2"), 1);
        // An event without a route is not delivered.
        notifier.event(&fires("other", "h2"), 1);
        notifier.advance(1);
        assert!(taken(&kept).is_empty());
        notifier.close();
        let group = "alert=Some(\"slow\")";
        let line = |host: &str| format!("slow{{host={host:?}}} firing {group}");
        assert_eq!(taken(&kept), [line("h1"), line("h2")]);
    }
}
