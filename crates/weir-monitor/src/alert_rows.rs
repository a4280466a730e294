//! [`AlertRows`]: stream `alerts` and relation `alert_states` of the fleet, from the alerts that
//! run at the monitor.

use std::collections::HashMap;

use weir_model::alert::{AlertChange, AlertInstance, reported};
use weir_model::inventory::changes;
use weir_model::{Batch, Nanos, Symbol};

/// Maximum number of changes that wait for the watermark; more are counted as lost.
const WAITING_MAX: usize = 100_000;

/// See the module's documentation.
#[derive(Default)]
pub struct AlertRows {
    waiting: Vec<AlertChange>,
    /// The instances that are not clear, by name.
    states: HashMap<Symbol, AlertInstance>,
    /// Those of them that are rows of the relation.
    published: HashMap<Symbol, AlertInstance>,
    is_changed: bool,
}

impl AlertRows {
    /// Adds a change, which is emitted at the next watermark; false if too many wait.
    pub fn report(&mut self, change: AlertChange) -> bool {
        self.set(change.instance.clone());
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push(change);
        }
        has_room
    }

    /// Sets the state of an instance without a change, as after a restart.
    pub fn set(&mut self, instance: AlertInstance) {
        let Some(key) = instance.instance else {
            return;
        };
        self.is_changed = true;
        match instance.state.is_none_or(|state| state.as_str() == "clear") {
            true => drop(self.states.remove(&key)),
            false => drop(self.states.insert(key, instance)),
        }
    }

    /// Removes all instances.
    pub fn clear(&mut self) {
        self.is_changed |= !self.states.is_empty();
        self.states.clear();
    }

    /// The rows of the stream and the changes of the relation since the last call, at `watermark`.
    pub fn release(&mut self, watermark: Nanos) -> Option<(Batch, Batch)> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        type States = HashMap<Symbol, AlertInstance>;
        let others = |rows: &States, than: &States| -> Vec<AlertInstance> {
            let differs = |(key, row): &(&Symbol, &AlertInstance)| than.get(*key) != Some(row);
            rows.iter()
                .filter(differs)
                .map(|(_, row)| row.clone())
                .collect()
        };
        let gone = others(&self.published, &self.states);
        let come = others(&self.states, &self.published);
        self.published = self.states.clone();
        let rows = reported(watermark, None, &std::mem::take(&mut self.waiting));
        Some((rows, changes(watermark, None, &gone, &come)))
    }
}
