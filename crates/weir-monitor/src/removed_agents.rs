//! [`RemovedAgent`]: the retained state of an agent that the monitor has forgotten, so that no
//! request is counted twice if the agent returns.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use weir_model::Nanos;

use super::account::Account;

/// Maximum number of forgotten agents that are retained. If an agent returns after it was dropped
/// here, the requests of its earlier processes are counted as lost again.
const FORGOTTEN_MAX: usize = 1_000;

/// An agent that was forgotten.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemovedAgent {
    /// Its host.
    pub host: String,
    /// Its last process.
    pub instance: u64,
    /// The number of the last message of that process that was processed.
    pub seen: u64,
    /// The number up to which its messages were acknowledged.
    pub safe: u64,
    /// The outcome of all its requests.
    pub account: Account,
    /// Requests of channels that had ended.
    pub requests_stray: u64,
    /// The channels that ran in that process, and when they started.
    pub started: Vec<(u64, Nanos)>,
    /// Its processes, the last one included, and the outcome of their requests by channel.
    pub past: Vec<(u64, Vec<(u64, Account)>)>,
}

/// The agents that were forgotten last, oldest first.
#[derive(Default)]
pub struct RemovedAgents {
    agents: VecDeque<RemovedAgent>,
}

impl RemovedAgents {
    /// Adds an agent; above the limit, the oldest is dropped.
    pub fn push(&mut self, agent: RemovedAgent) {
        self.agents.retain(|other| other.host != agent.host);
        if self.agents.len() >= FORGOTTEN_MAX {
            self.agents.pop_front();
        }
        self.agents.push_back(agent);
    }

    /// Removes the agent of a host that returns.
    pub fn take(&mut self, host: &str) -> Option<RemovedAgent> {
        let at = self.agents.iter().position(|agent| agent.host == host)?;
        self.agents.remove(at)
    }

    /// Whether agents may have been dropped.
    pub fn is_full(&self) -> bool {
        self.agents.len() >= FORGOTTEN_MAX
    }

    /// All of them, for a checkpoint.
    pub fn to_vec(&self) -> Vec<RemovedAgent> {
        self.agents.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(host: usize) -> RemovedAgent {
        RemovedAgent {
            host: host.to_string(),
            instance: 1,
            seen: 0,
            safe: 0,
            account: Account::default(),
            requests_stray: 0,
            started: Vec::new(),
            past: Vec::new(),
        }
    }

    #[test]
    fn the_oldest_is_dropped_when_there_are_too_many() {
        let mut forgotten = RemovedAgents::default();
        for host in 0..=FORGOTTEN_MAX {
            forgotten.push(agent(host));
        }
        assert_eq!(forgotten.to_vec().len(), FORGOTTEN_MAX);
        assert_eq!(forgotten.take("0"), None);
        assert_eq!(forgotten.take("1"), Some(agent(1)));
        assert_eq!(forgotten.take("1"), None);
    }
}
