//! [`ActPolicy`]: what alerts may do to the disks of VMs.

use serde::{Deserialize, Serialize};
use weir_model::Nanos;
use weir_model::text::matches_pattern;

use crate::limit::{BYTES_FLOOR, IOPS_FLOOR, Limit};

/// The greatest number of actions at a time, unless the user states another one.
pub const TARGETS_MAX: usize = 2;

/// Whether actions are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActMode {
    /// What would be written is reported, and nothing is changed.
    Propose,
    /// Actions on the VMs of the allow list are carried out, the others proposed.
    Apply,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActPolicy {
    /// Whether actions are carried out.
    pub mode: ActMode,
    /// The VMs that may be limited: names, in which `*` stands for any text.
    pub allow: Vec<String>,
    /// The lowest limit of requests per second; a lower one is raised to it.
    pub iops_floor: u64,
    /// The greatest number of actions at a time.
    pub targets_max: usize,
}

/// What an alert requests when it fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActRequest {
    /// The instance: `noisy{vm="mail"}`.
    pub instance: String,
    /// The VM.
    pub vm: String,
    /// The disk; without one, the only disk of the VM.
    pub disk: Option<String>,
    /// The limit or weight.
    pub limit: Limit,
    /// How long it lasts at most.
    pub hold_ns: Nanos,
    /// How long after its end it is not repeated for the instance.
    pub cooldown_ns: Nanos,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActDecision {
    /// It is carried out.
    Apply,
    /// It is reported only.
    Propose(String),
    /// It is refused, with the reason.
    Refuse(String),
}

impl Default for ActPolicy {
    fn default() -> ActPolicy {
        ActPolicy {
            mode: ActMode::Propose,
            allow: Vec::new(),
            iops_floor: IOPS_FLOOR,
            targets_max: TARGETS_MAX,
        }
    }
}

impl ActPolicy {
    /// Decides a request while so many actions last. `cools_until` is the end of the cooldown of
    /// the instance.
    pub fn decide(
        &self,
        request: &ActRequest,
        active: usize,
        cools_until: Option<Nanos>,
        now: Nanos,
    ) -> ActDecision {
        if let Some(until) = cools_until.filter(|until| now < *until) {
            let seconds = (until - now) as f64 / 1e9;
            return ActDecision::Refuse(format!("its cooldown lasts {seconds:.0} s more"));
        }
        if self.mode == ActMode::Propose {
            return ActDecision::Propose("the mode is propose".to_owned());
        }
        if !self
            .allow
            .iter()
            .any(|pattern| matches_pattern(pattern, &request.vm))
        {
            return ActDecision::Propose(format!("{} is not in the allow list", request.vm));
        }
        if active >= self.targets_max {
            let most = self.targets_max;
            return ActDecision::Refuse(format!("{most} actions last already, the maximum"));
        }
        ActDecision::Apply
    }

    /// The limit, not below the floors.
    pub fn raised(&self, limit: Limit) -> Limit {
        Limit {
            iops: limit.iops.map(|iops| iops.max(self.iops_floor)),
            bytes: limit.bytes.map(|bytes| bytes.max(BYTES_FLOOR)),
            weight: limit.weight.map(|weight| weight.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(vm: &str) -> ActRequest {
        ActRequest {
            instance: format!("noisy{{vm={vm:?}}}"),
            vm: vm.to_owned(),
            disk: None,
            limit: Limit {
                iops: Some(10),
                ..Limit::default()
            },
            hold_ns: 1,
            cooldown_ns: 5,
        }
    }

    #[test]
    fn only_vms_of_the_allow_list_are_limited_and_only_so_many() {
        let policy = ActPolicy {
            mode: ActMode::Apply,
            allow: vec!["batch-*".to_owned(), "mail".to_owned()],
            targets_max: 1,
            ..ActPolicy::default()
        };
        let decide = |vm: &str, active| policy.decide(&request(vm), active, None, 0);
        assert_eq!(decide("batch-7", 0), ActDecision::Apply);
        assert_eq!(decide("mail", 0), ActDecision::Apply);
        assert!(matches!(decide("mail2", 0), ActDecision::Propose(_)));
        assert!(matches!(decide("mail", 1), ActDecision::Refuse(_)));
        let cooling = policy.decide(&request("mail"), 0, Some(5), 4);
        assert!(matches!(cooling, ActDecision::Refuse(_)));
        assert_eq!(
            policy.decide(&request("mail"), 0, Some(5), 5),
            ActDecision::Apply
        );
        let usual = ActPolicy::default().decide(&request("mail"), 0, None, 0);
        assert!(matches!(usual, ActDecision::Propose(_)));
    }

    #[test]
    fn a_limit_is_raised_to_the_floor() {
        let raised = ActPolicy::default().raised(request("mail").limit);
        assert_eq!(raised.iops, Some(IOPS_FLOOR));
    }
}
