//! [`BackTest`]: what actions would have been carried out over a recording, and on which VMs.
//!
//! A recording has no effect of an action: an instance ends when it cleared without one, and a
//! witness is not judged.

use std::collections::BTreeMap;

use serde::Serialize;
use weir_model::Nanos;

use crate::lease::LEASES_MAX;
use crate::policy::{ActDecision, ActPolicy, ActRequest};

/// Maximum number of steps that are kept; later ones are counted.
const STEPS_MAX: usize = 100_000;

/// See the module's documentation.
pub struct BackTest {
    policy: ActPolicy,
    active: BTreeMap<String, ActiveTest>,
    cooling: BTreeMap<String, Nanos>,
    steps: Vec<TestStep>,
    omitted: usize,
}

struct ActiveTest {
    request: ActRequest,
    ends: Nanos,
}

/// A step of a back-test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestStep {
    /// When, in nanoseconds since the Unix epoch.
    pub at: Nanos,
    /// `act`, `propose`, `refuse` or `end`.
    pub step: &'static str,
    /// The instance.
    pub instance: String,
    /// The VM.
    pub vm: String,
    /// The disk; without one, the only disk of the VM.
    pub disk: Option<String>,
    /// What would be set, or why not, or why it ends.
    pub detail: String,
}

impl BackTest {
    /// A test of this policy.
    pub fn new(policy: ActPolicy) -> BackTest {
        BackTest {
            policy,
            active: BTreeMap::new(),
            cooling: BTreeMap::new(),
            steps: Vec::new(),
            omitted: 0,
        }
    }

    /// An instance fires. Instants never decrease.
    pub fn request(&mut self, request: &ActRequest, at: Nanos) {
        self.advance(at);
        let cools_until = self.cooling.get(&request.instance).copied();
        let active = self.active.len();
        let mut policy = self.policy.clone();
        policy.targets_max = policy.targets_max.min(LEASES_MAX);
        let limit = policy.raised(request.limit);
        let same = |other: &ActiveTest| {
            (&other.request.vm, &other.request.disk) == (&request.vm, &request.disk)
        };
        let decision = match limit.check(0) {
            Err(error) => ActDecision::Refuse(error.to_string()),
            Ok(()) if self.active.values().any(same) => {
                ActDecision::Refuse("its disk is limited already".to_owned())
            }
            Ok(()) => policy.decide(request, active, cools_until, at),
        };
        let (step, detail) = match decision {
            ActDecision::Refuse(why) => ("refuse", why),
            ActDecision::Propose(why) => ("propose", format!("{limit}: {why}")),
            ActDecision::Apply => {
                let active = ActiveTest {
                    request: request.clone(),
                    ends: at.saturating_add(request.hold_ns),
                };
                self.active.insert(request.instance.clone(), active);
                ("act", limit.to_string())
            }
        };
        self.push(at, step, request, detail);
    }

    /// An instance has cleared.
    pub fn clear(&mut self, instance: &str, at: Nanos) {
        self.advance(at);
        self.end(instance, at, "the alert has cleared");
    }

    /// Ends what has lasted long enough at `at`.
    pub fn advance(&mut self, at: Nanos) {
        loop {
            let due = self.active.iter().filter(|(_, active)| active.ends <= at);
            let due = due.min_by_key(|(_, active)| active.ends);
            let Some((instance, ends)) = due.map(|(i, active)| (i.clone(), active.ends)) else {
                return;
            };
            self.end(&instance, ends, "its time has passed");
        }
    }

    /// The steps, and how many more there were.
    pub fn steps(&self) -> (&[TestStep], usize) {
        (&self.steps, self.omitted)
    }

    fn end(&mut self, instance: &str, at: Nanos, why: &str) {
        let Some(ended) = self.active.remove(instance) else {
            return;
        };
        let until = at.saturating_add(ended.request.cooldown_ns);
        self.cooling.insert(instance.to_owned(), until);
        self.push(at, "end", &ended.request, why.to_owned());
    }

    fn push(&mut self, at: Nanos, step: &'static str, request: &ActRequest, detail: String) {
        if self.steps.len() >= STEPS_MAX {
            self.omitted += 1;
            return;
        }
        self.steps.push(TestStep {
            at,
            step,
            instance: request.instance.clone(),
            vm: request.vm.clone(),
            disk: request.disk.clone(),
            detail,
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::limit::Limit;
    use crate::policy::ActMode;

    use super::*;

    fn request(vm: &str) -> ActRequest {
        ActRequest {
            instance: format!("noisy{{vm={vm:?}}}"),
            vm: vm.to_owned(),
            disk: None,
            limit: Limit {
                iops: Some(500),
                ..Limit::default()
            },
            hold_ns: 10,
            cooldown_ns: 5,
        }
    }

    #[test]
    fn an_action_ends_with_its_alert_or_its_time_and_then_cools() {
        let mut test = BackTest::new(ActPolicy {
            mode: ActMode::Apply,
            allow: vec!["*".to_owned()],
            targets_max: 1,
            ..ActPolicy::default()
        });
        test.request(&request("a"), 0);
        test.request(&request("b"), 1);
        test.clear("noisy{vm=\"a\"}", 4);
        test.request(&request("a"), 8);
        test.request(&request("a"), 9);
        test.advance(100);
        let (steps, 0) = test.steps() else {
            panic!("all are kept");
        };
        let steps: Vec<(Nanos, &str)> = steps.iter().map(|step| (step.at, step.step)).collect();
        let expected = [
            (0, "act"),
            (1, "refuse"),
            (4, "end"),
            (8, "refuse"),
            (9, "act"),
            (19, "end"),
        ];
        assert_eq!(steps, expected);
    }
}
