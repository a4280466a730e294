//! [`ActService`]: carries out what alerts request, and undoes it at every end.
//!
//! The process that evaluates alerts drops its privileges before it reads data of other processes.
//! Another process has the service, and keeps the rights to write limits. It receives an
//! [`ActMessage`] as JSON in each line of its standard input, and prints an object for each step.
//! It applies its policy itself. When its input ends, for whatever reason, it undoes what lasts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_model::Nanos;
use weir_runtime::run_loop::wall_clock;

use crate::ActError;
use crate::lease::{EndCause, EndOutcome, Lease, LeaseStage, recover};
use crate::limit::Limit;
use crate::policy::{ActDecision, ActPolicy, ActRequest};
use crate::store::LeaseStore;
use crate::target::{KnobKind, LimitTarget};

/// The interval at which the knobs of leases are compared.
pub const POLL_EVERY: Duration = Duration::from_millis(500);

/// Maximum number of instances whose cooldown is kept.
const COOLING_MAX: usize = 10_000;

/// What an alert requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum ActMessage {
    /// An instance fires.
    Act(ActRequest),
    /// It has cleared.
    Clear {
        /// The instance.
        instance: String,
    },
    /// The monitor that runs the alert was not reachable for some time.
    MonitorLost {
        /// The instance.
        instance: String,
    },
    /// Its witness showed an improvement.
    Improved {
        /// The instance.
        instance: String,
        /// What the witness showed.
        effect: String,
    },
    /// Its witness did not show one in time.
    DidNotHelp {
        /// The instance.
        instance: String,
        /// What the witness showed.
        effect: String,
    },
}

/// Finds the knob of a disk of a VM.
pub type FindTarget = Box<dyn FnMut(&str, Option<&str>, KnobKind) -> Result<LimitTarget, ActError>>;

/// See the module's documentation.
pub struct ActService {
    store: LeaseStore,
    policy: ActPolicy,
    find: FindTarget,
    held: Vec<HeldLease>,
    /// The ends of cooldowns by instance.
    cooling: BTreeMap<String, Nanos>,
    started: u64,
}

struct HeldLease {
    lease: Lease,
    instance: String,
    /// When it ends, by a clock that is never set.
    deadline: Instant,
    /// Its end failed, and is tried again.
    is_failed: bool,
}

impl ActService {
    /// The service, and the steps of what ended processes have left.
    ///
    /// # Errors
    /// When the journal cannot be used.
    pub fn open(
        store: LeaseStore,
        policy: ActPolicy,
        find: FindTarget,
    ) -> Result<(ActService, Vec<Value>), ActError> {
        let recovered = {
            let _lock = store.lock()?;
            recover(&store, &mut |_| {})?
        };
        let step = |(lease, outcome): (Lease, Result<EndOutcome, ActError>)| match outcome {
            Ok(outcome) => ended(&lease, EndCause::Recovered, &outcome),
            Err(error) => failed(&lease.event(), &error),
        };
        let steps = recovered.into_iter().map(step).collect();
        let cooling = cooling(&store.log()?, wall_clock());
        let service = ActService {
            store,
            policy,
            find,
            held: Vec::new(),
            cooling,
            started: 0,
        };
        Ok((service, steps))
    }

    /// Carries out a message at `now`; returns the steps.
    pub fn receive(&mut self, message: &ActMessage, now: Nanos) -> Vec<Value> {
        match message {
            ActMessage::Act(request) => vec![self.act(request, now)],
            ActMessage::Improved { instance, effect } => self.improved(instance, effect),
            ActMessage::Clear { instance } => self.end(instance, EndCause::Cleared, now),
            ActMessage::MonitorLost { instance } => self.end(instance, EndCause::MonitorLost, now),
            ActMessage::DidNotHelp { instance, effect } => {
                self.set_effect(instance, effect);
                self.end(instance, EndCause::DidNotHelp, now)
            }
        }
    }

    /// Ends leases whose time has passed, whose knob another program has changed, and whose target
    /// is gone; returns the steps.
    pub fn poll(&mut self, now: Nanos) -> Vec<Value> {
        let mut steps = Vec::new();
        let instances: Vec<String> = self.held.iter().map(|h| h.instance.clone()).collect();
        for instance in instances {
            let Some(held) = self.held.iter().find(|held| held.instance == instance) else {
                continue;
            };
            let is_undone = self
                .store
                .get(&held.lease.id)
                .is_ok_and(|lease| lease.is_none());
            if is_undone {
                let mut step = held.lease.event();
                step["event"] = json!("ended");
                step["text"] = json!("undone by another command");
                steps.push(step);
                self.forget(&instance, now);
                continue;
            }
            let cause = match held.lease.knob.read() {
                _ if Instant::now() >= held.deadline => EndCause::Expired,
                Ok(found) if !found.is(&held.lease.ours) => EndCause::Overwritten,
                Err(error) if held.lease.knob.is_gone(&error) => EndCause::Overwritten,
                _ if held.is_failed => EndCause::Cleared,
                _ => continue,
            };
            steps.extend(self.end(&instance, cause, now));
        }
        steps
    }

    /// Ends everything that lasts; returns the steps.
    pub fn close(&mut self, now: Nanos) -> Vec<Value> {
        let instances: Vec<String> = self.held.iter().map(|h| h.instance.clone()).collect();
        let steps = instances.iter();
        let steps: Vec<Value> = steps
            .flat_map(|instance| self.end(instance, EndCause::Stopped, now))
            .collect();
        steps
    }

    /// The leases that last.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.held.iter().map(|held| &held.lease)
    }

    fn act(&mut self, request: &ActRequest, now: Nanos) -> Value {
        let cools_until = self.cooling.get(&request.instance).copied();
        if self
            .held
            .iter()
            .any(|held| held.instance == request.instance)
        {
            return self.refused(request, "it lasts already", now);
        }
        let active = self.held.len();
        let decision = self.policy.decide(request, active, cools_until, now);
        if let ActDecision::Refuse(why) = &decision {
            return self.refused(request, why, now);
        }
        let mut lease = match self.planned(request, now) {
            Ok(lease) => lease,
            Err(error) => return self.refused(request, &error.to_string(), now),
        };
        if let ActDecision::Propose(why) = decision {
            let mut step = lease.event();
            step["stage"] = json!("proposed");
            step["cause"] = json!(why);
            step["command"] = json!(lease.knob.command(&lease.ours));
            return self.recorded(step, format!("would be set to {}: {why}", lease.ours));
        }
        let applied = self.store.lock().and_then(|_lock| {
            lease.refuse_another(&self.store)?;
            lease.apply(&self.store, &mut |_| {})
        });
        if let Err(error) = applied {
            // A knob that was written and could not be restored: that is tried again.
            if self.store.get(&lease.id).is_ok_and(|lease| lease.is_some()) {
                self.held.push(HeldLease {
                    lease,
                    instance: request.instance.clone(),
                    deadline: Instant::now(),
                    is_failed: true,
                });
            }
            return self.refused(request, &error.to_string(), now);
        }
        let mut step = lease.event();
        step["event"] = json!("applied");
        step["text"] = json!(format!("set to {}, was {}", lease.ours, lease.before));
        let hold = Duration::from_nanos(request.hold_ns.max(0).unsigned_abs());
        self.held.push(HeldLease {
            lease,
            instance: request.instance.clone(),
            deadline: Instant::now() + hold,
            is_failed: false,
        });
        step
    }

    fn planned(&mut self, request: &ActRequest, now: Nanos) -> Result<Lease, ActError> {
        let limit: Limit = self.policy.raised(request.limit);
        limit.check(0)?;
        let kind = match limit.weight {
            Some(_) => KnobKind::Weight,
            None => KnobKind::Limit,
        };
        let target = (self.find)(&request.vm, request.disk.as_deref(), kind)?;
        self.started += 1;
        let mut lease = Lease::planned(target, &limit, now, request.hold_ns)?;
        lease.id = format!("{}-{}", lease.id, self.started);
        lease.alert = Some(request.instance.clone());
        lease.cooldown_ns = request.cooldown_ns;
        Ok(lease)
    }

    fn improved(&mut self, instance: &str, effect: &str) -> Vec<Value> {
        self.set_effect(instance, effect);
        let held = self.held.iter().find(|held| held.instance == instance);
        let Some(held) = held else {
            return Vec::new();
        };
        let mut step = held.lease.event();
        step["stage"] = json!("improved");
        vec![self.recorded(step, effect.to_owned())]
    }

    fn set_effect(&mut self, instance: &str, effect: &str) {
        let mut held = self.held.iter_mut();
        if let Some(held) = held.find(|held| held.instance == instance) {
            held.lease.effect = Some(effect.to_owned());
        }
    }

    fn end(&mut self, instance: &str, cause: EndCause, now: Nanos) -> Vec<Value> {
        let mut held = self.held.iter_mut();
        let Some(held) = held.find(|held| held.instance == instance) else {
            return Vec::new();
        };
        if cause == EndCause::MonitorLost {
            // The action is to be repeated if the alert still fires when the monitor is back.
            held.lease.cooldown_ns = 0;
        }
        let store = &self.store;
        let outcome = store.lock().and_then(|_lock| {
            // Another process may have undone it meanwhile.
            match store.get(&held.lease.id)? {
                Some(_) => held.lease.end(store, cause, &mut |_| {}),
                None => Ok(EndOutcome::Restored),
            }
        });
        match outcome {
            Ok(outcome) => {
                let step = ended(&held.lease, cause, &outcome);
                self.forget(instance, now);
                vec![step]
            }
            // It is reported once, and tried again.
            Err(error) => match std::mem::replace(&mut held.is_failed, true) {
                false => vec![failed(&held.lease.event(), &error)],
                true => Vec::new(),
            },
        }
    }

    fn forget(&mut self, instance: &str, now: Nanos) {
        let Some(at) = self.held.iter().position(|held| held.instance == instance) else {
            return;
        };
        let held = self.held.remove(at);
        self.cooling.retain(|_, until| *until > now);
        let cooldown_ns = held.lease.cooldown_ns;
        if cooldown_ns > 0 && self.cooling.len() < COOLING_MAX {
            let until = now.saturating_add(cooldown_ns);
            self.cooling.insert(held.instance, until);
        }
    }

    fn refused(&mut self, request: &ActRequest, why: &str, now: Nanos) -> Value {
        let step = json!({
            "at": now, "vm": request.vm, "disk": request.disk, "alert": request.instance,
            "stage": "refused", "cause": why,
        });
        self.recorded(step, why.to_owned())
    }

    /// A step that is no lease's, stored in the log.
    fn recorded(&mut self, mut step: Value, text: String) -> Value {
        let stored = self.store.lock().and_then(|_lock| self.store.record(&step));
        step["event"] = step["stage"].clone();
        step["text"] = match stored {
            Ok(()) => json!(text),
            Err(error) => json!(format!("{text}; not stored: {error}")),
        };
        step
    }
}

/// The cooldowns that last at `now`, from the ends of leases in the log.
fn cooling(log: &[Value], now: Nanos) -> BTreeMap<String, Nanos> {
    let end = |step: &Value| {
        let is_end = step["stage"] == "ended";
        let instance = step["alert"].as_str().filter(|_| is_end)?;
        let until = step["at"].as_i64()?;
        let until = until.saturating_add(step["cooldown_ns"].as_i64()?);
        (until > now).then(|| (instance.to_owned(), until))
    };
    // Of one instance, the last.
    log.iter().filter_map(end).take(COOLING_MAX).collect()
}

fn ended(lease: &Lease, cause: EndCause, outcome: &EndOutcome) -> Value {
    let mut lease = lease.clone();
    lease.stage = LeaseStage::Ended {
        cause,
        outcome: outcome.clone(),
    };
    let mut step = lease.event();
    let effect = lease.effect.iter().map(|effect| format!(" ({effect})"));
    let effect: String = effect.collect();
    let text = format!("{}{effect}: {}", cause.text(), outcome.text(&lease.before));
    step["event"] = json!("ended");
    step["text"] = json!(text);
    step
}

fn failed(event: &Value, error: &ActError) -> Value {
    let mut step = event.clone();
    step["event"] = json!("failed");
    step["text"] = json!(format!("not undone: {error}; trying again"));
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cooldowns_that_last_follow_from_the_log() {
        let step = |stage: &str, alert: Option<&str>, at: Nanos, cooldown_ns: Option<Nanos>| json!({"stage": stage, "alert": alert, "at": at, "cooldown_ns": cooldown_ns});
        let log = [
            step("ended", Some("a"), 100, Some(50)),
            step("applied", Some("a"), 130, Some(50)),
            step("ended", Some("a"), 140, Some(50)),
            step("ended", Some("b"), 100, Some(50)),
            step("applied", Some("c"), 140, Some(50)),
            step("ended", Some("d"), 140, None),
            step("ended", None, 140, Some(50)),
        ];
        let found = cooling(&log, 150);
        assert_eq!(found, BTreeMap::from([("a".to_owned(), 190)]));
    }
}
