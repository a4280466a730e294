//! [`Witnesses`]: whether the actions that last have helped, by the witness conditions of their
//! alerts.

use std::collections::BTreeMap;

use weir_model::Nanos;

use crate::event::AlertKey;
use crate::instances::RuleRun;
use crate::machine::AlertState;

/// The actions whose witness is not judged yet: when they were requested, by alert and instance.
#[derive(Debug, Default)]
pub struct Witnesses {
    judging: BTreeMap<(String, AlertKey), Nanos>,
}

/// What a witness showed of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WitnessResult {
    /// The instance of the alert.
    pub instance: String,
    /// Whether the condition held in time.
    pub has_helped: bool,
    /// For users.
    pub effect: String,
}

impl Witnesses {
    /// An action was requested at `at`.
    pub fn add(&mut self, alert: &str, key: AlertKey, at: Nanos) {
        self.judging.insert((alert.to_owned(), key), at);
    }

    /// The instance has cleared.
    pub fn remove(&mut self, alert: &str, key: AlertKey) {
        self.judging.remove(&(alert.to_owned(), key));
    }

    /// What is known at a watermark and was not before.
    pub fn judge(&mut self, at: Nanos, rules: &[RuleRun]) -> Vec<WitnessResult> {
        let mut verdicts = Vec::new();
        self.judging.retain(|(alert, key), since| {
            let run = rules.iter().find(|run| run.rule().name == *alert);
            let Some((run, (_, within))) =
                run.and_then(|run| Some((run, run.rule().act.as_ref()?.witness?)))
            else {
                return false;
            };
            if run.state(key) == AlertState::Unknown {
                // Time without data shows nothing.
                *since = at;
                return true;
            }
            let instance = run.instance(key);
            let after = at.saturating_sub(*since);
            let (has_helped, effect) = match run.witness(key) {
                Some(true) => (true, format!("the witness held after {}", seconds(after))),
                _ if after >= within => {
                    let effect = format!("the witness did not hold within {}", seconds(within));
                    (false, effect)
                }
                _ => return true,
            };
            verdicts.push(WitnessResult {
                instance,
                has_helped,
                effect,
            });
            false
        });
        verdicts
    }
}

fn seconds(ns: Nanos) -> String {
    format!("{:.1} s", ns as f64 / 1e9)
}
