//! Actions of alerts that should last on the hosts of the fleet.

use std::collections::HashMap;

use tracing::warn;
use weir_model::{Nanos, Symbol};
use weir_wire::message::ACTIONS_MAX;
use weir_wire::{AlertAction, AlertActions, MonitorMessage};

use super::Monitor;

/// The actions of each host that has some.
pub(super) type HostActions = HashMap<Symbol, Vec<AlertAction>>;

impl Monitor {
    /// Replaces the actions that should last on a host. Its agent receives all of them now and
    /// after every welcome; it carries out what its own policy permits. Those beyond the bounds of
    /// the protocol are left out.
    pub fn set_actions(&mut self, host: Symbol, mut actions: Vec<AlertAction>, now: Nanos) {
        actions.retain(|action| match action.check() {
            Ok(()) => true,
            Err(error) => {
                warn!(%host, instance = action.instance, %error, "an action is left out");
                false
            }
        });
        if actions.len() > ACTIONS_MAX {
            warn!(%host, "more than {ACTIONS_MAX} actions on one host, the last are left out");
            actions.truncate(ACTIONS_MAX);
        }
        match actions.is_empty() {
            true => drop(self.actions.remove(&host)),
            false => drop(self.actions.insert(host, actions.clone())),
        }
        let Some(id) = self.hosts.get(&host).copied() else {
            return;
        };
        let agent = self.agents.get_mut(&id).expect("the host's agent is known");
        if agent.order_actions(AlertActions { actions }) {
            self.send_orders(id, now);
        }
    }

    /// The actions that should last on a host.
    pub(super) fn actions_of(&self, host: Symbol) -> AlertActions {
        let actions = self.actions.get(&host).cloned().unwrap_or_default();
        AlertActions { actions }
    }
}

impl super::AgentState {
    /// Queues the actions of its host; false if its version does not know them.
    pub(super) fn order_actions(&mut self, actions: AlertActions) -> bool {
        let knows = self.session.as_ref().is_some_and(|s| s.knows_actions);
        if !knows && self.session.is_some() && !actions.actions.is_empty() {
            let host = self.host;
            warn!(%host, version = %self.version, "the agent is too old for actions of alerts");
        }
        if knows {
            self.order(MonitorMessage::Actions(actions));
        }
        knows
    }
}
