//! [`HostActions`]: the actions of alerts that the monitor requests for this host.
//!
//! The monitor sends all that should last at each change. This module compares them with those
//! that it has requested from `weir act serve`, which applies the policy of the host and undoes
//! everything when the agent ends. While the monitor is not reachable, they last for
//! [`MONITOR_LOST_AFTER`].

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_act::limit::Limit;
use weir_act::link::ActLink;
use weir_act::policy::ActRequest;
use weir_act::service::ActMessage;
use weir_model::Nanos;
use weir_wire::AlertAction;

/// How long actions last without the monitor that requested them.
pub const MONITOR_LOST_AFTER: Duration = Duration::from_secs(30);

/// The interval between two attempts to reach `weir act serve`.
const CONNECT_EVERY: Duration = Duration::from_secs(5);

/// How long after a refusal, such as one for a cooldown, an action is requested again.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// How long the end of the agent waits until everything is undone.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// See the module's documentation.
pub struct HostActions {
    /// Where `weir act serve` listens.
    socket: PathBuf,
    link: Option<ActLink>,
    /// The attempt to connect that runs, in a thread of its own: the process may not answer.
    connecting: Option<Receiver<io::Result<ActLink>>>,
    /// When the last attempt began.
    tried: Option<Instant>,
    /// What the monitor requested last.
    wanted: Vec<AlertAction>,
    requested: Requested,
    /// What was reported last as the reason that nothing can be requested.
    failure: Option<String>,
    /// Since when the monitor is not reachable.
    lost_since: Option<Instant>,
}

/// What was requested from `weir act serve`, by instance.
#[derive(Debug, Default)]
struct Requested(BTreeMap<String, RequestedAction>);

/// An action that was requested.
#[derive(Debug)]
struct RequestedAction {
    fired_at_ns: i64,
    has_helped: Option<bool>,
    refused_at: Option<Instant>,
}

/// What has happened, for the log of the agent.
#[derive(Debug, PartialEq)]
pub enum ActionReport {
    /// A step, as `weir act serve` prints it.
    Step(Value),
    /// Actions are wanted, and cannot be requested.
    Failed(String),
}

impl HostActions {
    /// None, with `weir act serve` at this socket.
    pub fn new(socket: PathBuf) -> HostActions {
        HostActions {
            socket,
            link: None,
            connecting: None,
            tried: None,
            wanted: Vec::new(),
            requested: Requested::default(),
            failure: None,
            lost_since: None,
        }
    }

    /// All actions that should last; `now` is in the monitor's time.
    pub fn set(&mut self, wanted: Vec<AlertAction>, now: Nanos) -> Vec<ActionReport> {
        self.wanted = wanted;
        self.poll(now)
    }

    /// The monitor has welcomed the agent; one whose version has no actions wants none.
    pub fn welcomed(&mut self, has_actions: bool) {
        self.lost_since = None;
        if !has_actions {
            self.wanted.clear();
        }
    }

    /// The connection to the monitor was lost or could not be established.
    pub fn disconnected(&mut self) {
        self.lost_since.get_or_insert_with(Instant::now);
    }

    /// Requests what has changed, and returns what has happened; to be called once a second, with
    /// the monitor's time.
    pub fn poll(&mut self, now: Nanos) -> Vec<ActionReport> {
        let is_lost = |since: Instant| since.elapsed() >= MONITOR_LOST_AFTER;
        let messages = match self.lost_since.is_some_and(is_lost) {
            true => {
                self.wanted.clear();
                self.requested.lost()
            }
            false => Vec::new(),
        };
        let mut reports = Vec::new();
        if self.link.is_none() && !self.wanted.is_empty() {
            reports.extend(self.connect());
        }
        let Some(link) = &mut self.link else {
            return reports;
        };
        let messages = messages.into_iter();
        let messages: Vec<ActMessage> = messages
            .chain(self.requested.changes(&self.wanted, now))
            .collect();
        let sent = messages.iter().try_for_each(|message| link.send(message));
        match sent.and_then(|()| link.steps()) {
            Ok(steps) => {
                steps.iter().for_each(|step| self.requested.note(step));
                reports.extend(steps.into_iter().map(ActionReport::Step));
            }
            Err(error) => {
                // It undoes what lasts; what is wanted then is requested again.
                self.link = None;
                self.requested = Requested::default();
                reports.extend(self.failed(&error));
            }
        }
        reports
    }

    /// Ends everything that lasts.
    pub fn close(&mut self) -> Vec<ActionReport> {
        let Some(mut link) = self.link.take() else {
            return Vec::new();
        };
        let (steps, has_ended) = link.close(CLOSE_WITHIN);
        let mut reports: Vec<ActionReport> = steps.into_iter().map(ActionReport::Step).collect();
        if !has_ended {
            let why = "not all actions were undone in time; `weir act status` lists them";
            reports.push(ActionReport::Failed(why.to_owned()));
        }
        reports
    }

    /// Begins an attempt to connect, or receives the outcome of the one that runs.
    fn connect(&mut self) -> Option<ActionReport> {
        let Some(connecting) = &self.connecting else {
            if self.tried.is_none_or(|at| at.elapsed() >= CONNECT_EVERY) {
                self.tried = Some(Instant::now());
                let (send, receive) = channel();
                let socket = self.socket.clone();
                thread::spawn(move || {
                    // The agent may have ended.
                    let _ = send.send(ActLink::connect(&socket));
                });
                self.connecting = Some(receive);
            }
            return None;
        };
        let outcome = match connecting.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(io::Error::other("it cannot be reached")),
        };
        self.connecting = None;
        match outcome {
            Ok(link) => {
                (self.link, self.failure) = (Some(link), None);
                None
            }
            Err(error) => self.failed(&error),
        }
    }

    /// The report of an error, unless it is that of the last attempt.
    fn failed(&mut self, error: &io::Error) -> Option<ActionReport> {
        let socket = self.socket.display();
        let why = format!("actions are not carried out: `weir act serve` at {socket}: {error}");
        let is_new = self.failure.as_ref() != Some(&why);
        self.failure = Some(why.clone());
        is_new.then_some(ActionReport::Failed(why))
    }
}

impl Requested {
    /// The messages that make the requested actions the wanted ones. An action that did not help,
    /// or whose time has passed, is not requested again from another process.
    fn changes(&mut self, wanted: &[AlertAction], now: Nanos) -> Vec<ActMessage> {
        let mut messages = Vec::new();
        self.0.retain(|instance, known| {
            let is_same = |action: &AlertAction| {
                action.instance == *instance && action.fired_at_ns == known.fired_at_ns
            };
            let is_wanted = wanted.iter().any(is_same);
            if !is_wanted {
                let instance = instance.clone();
                messages.push(ActMessage::Clear { instance });
            }
            is_wanted
        });
        for action in wanted {
            let instance = action.instance.clone();
            let left_ns = action.fired_at_ns.saturating_add(action.hold_ns) - now;
            let is_over = left_ns <= 0 || action.has_helped == Some(false);
            let known = self.0.entry(instance.clone()).or_insert_with(|| {
                if !is_over {
                    messages.push(ActMessage::Act(request(action, left_ns)));
                }
                RequestedAction {
                    fired_at_ns: action.fired_at_ns,
                    has_helped: action.has_helped.filter(|_| is_over),
                    refused_at: None,
                }
            });
            let is_due = known
                .refused_at
                .is_some_and(|at| at.elapsed() >= RETRY_AFTER);
            if is_due && !is_over {
                known.refused_at = None;
                messages.push(ActMessage::Act(request(action, left_ns)));
            }
            if known.has_helped == action.has_helped {
                continue;
            }
            known.has_helped = action.has_helped;
            let effect = action.effect.clone();
            messages.extend(action.has_helped.map(|has_helped| match has_helped {
                true => ActMessage::Improved { instance, effect },
                false => ActMessage::DidNotHelp { instance, effect },
            }));
        }
        messages
    }

    /// Notes that an action was refused.
    fn note(&mut self, step: &Value) {
        let instance = step["alert"]
            .as_str()
            .filter(|_| step["event"] == "refused");
        if let Some(known) = instance.and_then(|instance| self.0.get_mut(instance)) {
            known.refused_at = Some(Instant::now());
        }
    }

    /// The messages that end all of them for the loss of the monitor.
    fn lost(&mut self) -> Vec<ActMessage> {
        let instances = std::mem::take(&mut self.0).into_keys();
        instances
            .map(|instance| ActMessage::MonitorLost { instance })
            .collect()
    }
}

/// The request of an action, of whose time so much is left.
fn request(action: &AlertAction, left_ns: Nanos) -> ActRequest {
    ActRequest {
        instance: action.instance.clone(),
        vm: action.vm.clone(),
        disk: action.disk.clone(),
        limit: Limit {
            iops: action.iops,
            bytes: action.bytes_per_second,
            weight: action.weight,
        },
        hold_ns: action.hold_ns.min(left_ns),
        cooldown_ns: action.cooldown_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(instance: &str, fired_at_ns: i64) -> AlertAction {
        AlertAction {
            instance: instance.to_owned(),
            fired_at_ns,
            vm: "mail".to_owned(),
            iops: Some(100),
            hold_ns: 1_000,
            ..AlertAction::default()
        }
    }

    /// A message in a word and its instance.
    fn shown(message: &ActMessage) -> String {
        match message {
            ActMessage::Act(request) => format!("act {}", request.instance),
            ActMessage::Clear { instance } => format!("clear {instance}"),
            ActMessage::MonitorLost { instance } => format!("lost {instance}"),
            ActMessage::Improved { instance, .. } => format!("improved {instance}"),
            ActMessage::DidNotHelp { instance, .. } => format!("no help {instance}"),
        }
    }

    #[test]
    fn the_difference_to_what_is_wanted_is_requested_once() {
        let mut requested = Requested::default();
        let mut changes = |wanted: &[AlertAction]| -> Vec<String> {
            requested.changes(wanted, 10).iter().map(shown).collect()
        };
        let judged = |has_helped| AlertAction {
            has_helped: Some(has_helped),
            ..action("b", 1)
        };
        assert_eq!(changes(&[action("a", 1)]), ["act a"]);
        assert_eq!(changes(&[action("a", 1)]), [""; 0]);
        assert_eq!(changes(&[action("a", 1), action("b", 1)]), ["act b"]);
        assert_eq!(changes(&[action("a", 1), judged(true)]), ["improved b"]);
        assert_eq!(changes(&[judged(true)]), ["clear a"]);
        assert_eq!(changes(&[judged(false)]), ["no help b"]);
        // It fires again.
        assert_eq!(changes(&[action("b", 2)]), ["clear b", "act b"]);
        assert_eq!(changes(&[]), ["clear b"]);
        // A judged action of a monitor that was not reachable before.
        assert_eq!(changes(&[judged(true)]), ["act b", "improved b"]);
        // One that was refused is requested again, after some time.
        let refused = serde_json::json!({"event": "refused", "alert": "b"});
        requested.note(&refused);
        let mut changes = |wanted: &[AlertAction], earlier: Duration| -> Vec<String> {
            let known = requested.0.get_mut("b").expect("it is known");
            known.refused_at = known.refused_at.and_then(|at| at.checked_sub(earlier));
            requested.changes(wanted, 10).iter().map(shown).collect()
        };
        assert_eq!(changes(&[judged(true)], Duration::ZERO), [""; 0]);
        assert_eq!(changes(&[judged(true)], RETRY_AFTER), ["act b"]);
        assert_eq!(changes(&[judged(true)], RETRY_AFTER), [""; 0]);
        let mut changes = |wanted: &[AlertAction]| -> Vec<String> {
            requested.changes(wanted, 10).iter().map(shown).collect()
        };
        // One that did not help, and one whose time has passed.
        assert_eq!(changes(&[]), ["clear b"]);
        assert_eq!(changes(&[judged(false), action("c", -1_000)]), [""; 0]);
        assert_eq!(changes(&[]), ["clear b", "clear c"]);
        assert_eq!(changes(&[judged(true)]), ["act b", "improved b"]);
        let lost: Vec<String> = requested.lost().iter().map(shown).collect();
        assert_eq!(lost, ["lost b"]);
        assert!(requested.lost().is_empty());
    }

    #[test]
    fn the_actions_of_a_monitor_end_some_time_after_it_was_lost_and_not_before() {
        let mut actions = HostActions::new(PathBuf::from("/no/such/socket"));
        let mut reports = actions.set(vec![action("a", 1)], 10);
        while reports.is_empty() {
            thread::sleep(Duration::from_millis(1));
            reports = actions.poll(10);
        }
        assert!(
            matches!(&reports[..], [ActionReport::Failed(why)] if why.contains("/no/such/socket")),
            "{reports:?}"
        );
        actions.disconnected();
        actions.poll(10);
        assert_eq!(actions.wanted.len(), 1);
        actions.welcomed(true);
        assert_eq!(actions.lost_since, None);
        actions.lost_since = Instant::now().checked_sub(MONITOR_LOST_AFTER);
        actions.poll(10);
        assert_eq!(actions.wanted.len(), 0);
        // A monitor of an older version.
        actions.set(vec![action("a", 1)], 10);
        actions.welcomed(false);
        assert_eq!(actions.wanted.len(), 0);
    }
}
