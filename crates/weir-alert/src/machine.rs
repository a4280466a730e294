//! [`Machine`]: the states of the instances of one alert, from the levels of their conditions.
//!
//! ```text
//!            fires              held for `hold_ns`
//!   clear ──────────▶ pending ─────────────────────▶ firing ──▶ clear
//!     ▲                  │                                clears, held for `hold_clear_ns`
//!     └──────────────────┘ no longer fires
//!
//!   pending, firing ──▶ unknown while data are missing ──▶ pending, firing
//! ```
//!
//! Time is that of the events, in nanoseconds, and exact: a condition that holds at every instant
//! from `t` to `t + hold_ns`, both included, fires at `t + hold_ns`. Missing data are no recovery:
//! an instance that fired remains unknown, and clears only by data that are complete. The machine
//! does no I/O and reads no clock; equal inputs give equal transitions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

/// How far back the firings of an instance are counted.
pub const FLAPS_OVER_NS: i64 = 3_600_000_000_000;

/// Maximum number of firings of an instance that are kept; later ones replace the first.
pub const FIRINGS_MAX: usize = 256;

/// Maximum number of instances of an alert.
pub const INSTANCES_MAX: usize = 10_000;

/// The state of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertState {
    /// The condition to fire does not hold, or the one to clear has held long enough.
    Clear,
    /// The condition to fire holds, not yet long enough.
    Pending,
    /// It has held long enough.
    Firing,
    /// Data are missing.
    Unknown,
}

impl AlertState {
    /// All states, in the order of [`weir_query::alert::STATES`].
    pub const ALL: [AlertState; 4] = [
        AlertState::Clear,
        AlertState::Pending,
        AlertState::Firing,
        AlertState::Unknown,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let at = AlertState::ALL.iter().position(|state| *state == self);
        weir_query::alert::STATES[at.expect("a state of the list")]
    }
}

/// How long conditions must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldTimes {
    /// The condition to fire.
    pub hold_ns: i64,
    /// The condition to clear.
    pub hold_clear_ns: i64,
}

/// The conditions of an instance at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlertLevel {
    /// The condition to fire holds.
    pub fires: bool,
    /// The condition to clear holds. It has no effect where the one to fire holds too.
    pub clears: bool,
}

impl AlertLevel {
    /// That of an instance without a row.
    pub const ABSENT: AlertLevel = AlertLevel {
        fires: false,
        clears: true,
    };
}

/// A change of the state of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition<K> {
    /// When.
    pub at: i64,
    /// The instance.
    pub key: K,
    /// The state before.
    pub from: AlertState,
    /// The state now.
    pub to: AlertState,
    /// When it fired last, if it did; this identifies the alert over restarts.
    pub fired_at: Option<i64>,
    /// How often it fired again in the last hour.
    pub flaps: usize,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Machine<K> {
    timing: HoldTimes,
    instances: BTreeMap<K, Instance>,
    /// When an instance changes by itself, and which.
    timers: BTreeSet<(i64, K)>,
    now: i64,
    missing: MissingData,
    refused: u64,
}

/// Whose data are missing at an instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MissingData {
    /// All data are complete.
    #[default]
    None,
    /// Those of every instance.
    All,
    /// Those of these hosts.
    Of(BTreeSet<String>),
}

/// What a machine knows of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Instance {
    phase: Phase,
    #[serde(skip, default = "absent")]
    level: AlertLevel,
    /// The state that was reported last.
    reported: AlertState,
    /// When it fired, in the last hour.
    fired: VecDeque<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    Clear,
    Pending {
        since: i64,
    },
    Firing {
        /// Since when the condition to clear holds.
        clearing: Option<i64>,
    },
    /// Data are missing; it fired before that.
    UnknownFired,
    /// Data are missing; it did not fire before that.
    UnknownPending,
}

/// The state of a machine, to be stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedMachine<K> {
    now: i64,
    instances: Vec<(K, Instance)>,
}

fn absent() -> AlertLevel {
    AlertLevel::ABSENT
}

impl Instance {
    fn new() -> Instance {
        Instance {
            phase: Phase::Clear,
            level: AlertLevel::ABSENT,
            reported: AlertState::Clear,
            fired: VecDeque::new(),
        }
    }

    fn state(&self) -> AlertState {
        match self.phase {
            Phase::Clear => AlertState::Clear,
            Phase::Pending { .. } => AlertState::Pending,
            Phase::Firing { .. } => AlertState::Firing,
            Phase::UnknownFired | Phase::UnknownPending => AlertState::Unknown,
        }
    }

    fn clears(&self) -> bool {
        self.level.clears && !self.level.fires
    }

    /// When it changes without a change of its level.
    fn deadline(&self, timing: HoldTimes) -> Option<i64> {
        match self.phase {
            Phase::Pending { since } => Some(since.saturating_add(timing.hold_ns)),
            Phase::Firing { clearing } => {
                clearing.map(|at| at.saturating_add(timing.hold_clear_ns))
            }
            Phase::Clear => self.fired.back().map(|at| at.saturating_add(FLAPS_OVER_NS)),
            Phase::UnknownFired | Phase::UnknownPending => None,
        }
    }

    /// Applies its level at an instant.
    fn settle(&mut self, at: i64, missing: bool) {
        self.phase = match self.phase {
            Phase::Clear if self.level.fires && missing => Phase::UnknownPending,
            Phase::Clear if self.level.fires => Phase::Pending { since: at },
            Phase::Pending { .. } | Phase::UnknownPending if !self.level.fires => Phase::Clear,
            Phase::Firing { clearing } => Phase::Firing {
                clearing: self.clears().then_some(clearing.unwrap_or(at)),
            },
            other => other,
        };
    }

    /// Data are missing from now on, or complete again.
    fn set_missing(&mut self, at: i64, missing: bool) {
        self.phase = match (self.phase, missing) {
            (Phase::Pending { .. }, true) => Phase::UnknownPending,
            (Phase::Firing { .. }, true) => Phase::UnknownFired,
            (Phase::UnknownPending, false) => Phase::Pending { since: at },
            (Phase::UnknownFired, false) => Phase::Firing { clearing: None },
            (other, _) => other,
        };
    }

    /// What its deadline changes; false where it is to be forgotten.
    fn expire(&mut self, at: i64) -> bool {
        match self.phase {
            Phase::Pending { .. } => {
                if self.fired.len() == FIRINGS_MAX {
                    self.fired.pop_front();
                }
                self.fired.push_back(at);
                self.phase = Phase::Firing { clearing: None };
                true
            }
            Phase::Firing { .. } => {
                self.phase = Phase::Clear;
                true
            }
            _ => false,
        }
    }

    /// How often it fired in the hour up to an instant, after the first time.
    fn flaps(&self, at: i64) -> usize {
        let recent = self
            .fired
            .iter()
            .filter(|fired| at - **fired < FLAPS_OVER_NS);
        recent.count().saturating_sub(1)
    }
}

impl<K: Ord + Clone> Machine<K> {
    /// A machine without instances, with complete data.
    pub fn new(timing: HoldTimes) -> Machine<K> {
        Machine {
            timing,
            instances: BTreeMap::new(),
            timers: BTreeSet::new(),
            now: i64::MIN,
            missing: MissingData::None,
            refused: 0,
        }
    }

    /// A machine as it was when it was saved. Conditions are not saved: no instance has a row, and
    /// data are missing until a step that states otherwise.
    pub fn restored(timing: HoldTimes, saved: SavedMachine<K>) -> Machine<K> {
        let mut machine = Machine::new(timing);
        machine.now = saved.now;
        machine.missing = MissingData::All;
        for (key, mut instance) in saved.instances.into_iter().take(INSTANCES_MAX) {
            instance.set_missing(saved.now, true);
            instance.settle(saved.now, true);
            machine.put(key, instance);
        }
        machine
    }

    /// Continues at an instant before the last one, after the clock was set back: what happened
    /// later happened at that instant.
    pub fn set_back(&mut self, at: i64) {
        if self.now <= at {
            return;
        }
        self.now = at;
        let keys: Vec<K> = self.instances.keys().cloned().collect();
        for key in keys {
            self.change(key, |instance| {
                instance
                    .fired
                    .iter_mut()
                    .for_each(|fired| *fired = (*fired).min(at));
                instance.phase = match instance.phase {
                    Phase::Pending { since } => Phase::Pending {
                        since: since.min(at),
                    },
                    Phase::Firing { clearing } => Phase::Firing {
                        clearing: clearing.map(|since| since.min(at)),
                    },
                    other => other,
                };
            });
        }
    }

    /// The state to be stored.
    pub fn saved(&self) -> SavedMachine<K> {
        let instances = self.instances.iter();
        SavedMachine {
            now: self.now,
            instances: instances.map(|(k, i)| (k.clone(), i.clone())).collect(),
        }
    }

    /// Applies everything that happens before `at` without a change of a level.
    pub fn before(&mut self, at: i64, emit: &mut impl FnMut(Transition<K>)) {
        self.expire(at.saturating_sub(1), emit);
    }

    /// Applies an instant: whether data are missing at it, and the levels that changed. Instants
    /// never decrease; one may be applied in several steps.
    pub fn step(
        &mut self,
        at: i64,
        missing: bool,
        changes: impl IntoIterator<Item = (K, AlertLevel)>,
        emit: &mut impl FnMut(Transition<K>),
    ) {
        let missing = match missing {
            true => MissingData::All,
            false => MissingData::None,
        };
        self.step_of(at, missing, |_, _| true, changes, emit);
    }

    /// As [`Machine::step`], where the data of some hosts may be missing: `is_of` states whether an
    /// instance is of one of them.
    pub fn step_of(
        &mut self,
        at: i64,
        missing: MissingData,
        is_of: impl Fn(&K, &BTreeSet<String>) -> bool,
        changes: impl IntoIterator<Item = (K, AlertLevel)>,
        emit: &mut impl FnMut(Transition<K>),
    ) {
        let is_missing = |key: &K| match &missing {
            MissingData::None => false,
            MissingData::All => true,
            MissingData::Of(hosts) => is_of(key, hosts),
        };
        assert!(at >= self.now, "instants never decrease");
        self.before(at, emit);
        self.now = at;
        let mut touched = BTreeSet::new();
        let turned = missing != self.missing;
        for (key, level) in changes {
            let is_new = !self.instances.contains_key(&key);
            if is_new && !level.fires {
                continue;
            }
            if is_new && self.instances.len() >= INSTANCES_MAX {
                self.refused += 1;
                continue;
            }
            self.change(key.clone(), |instance| instance.level = level);
            touched.insert(key);
        }
        let all = self.instances.iter();
        let unreported = all.filter(|(_, i)| turned || i.state() != i.reported);
        touched.extend(unreported.map(|(key, _)| key.clone()));
        for key in &touched {
            let missing = is_missing(key);
            self.change(key.clone(), |instance| {
                if turned {
                    instance.set_missing(at, missing);
                }
                instance.settle(at, missing);
            });
        }
        while let Some((deadline, key)) = self.timers.first().cloned()
            && deadline <= at
        {
            self.expire_one(&key, at);
            touched.insert(key);
        }
        for key in touched {
            self.report(&key, at, emit);
        }
        self.missing = missing;
    }

    /// Applies everything that happens up to `to`: all changes of levels until then were applied.
    pub fn advance(&mut self, to: i64, emit: &mut impl FnMut(Transition<K>)) {
        self.expire(to, emit);
        self.now = self.now.max(to);
    }

    /// The alert is removed at `at`: every instance clears.
    pub fn end(&mut self, at: i64, emit: &mut impl FnMut(Transition<K>)) {
        let at = at.max(self.now);
        let keys: Vec<K> = self.instances.keys().cloned().collect();
        for key in keys {
            self.change(key.clone(), |instance| instance.phase = Phase::Clear);
            self.report(&key, at, emit);
        }
        self.instances.clear();
        self.timers.clear();
        self.now = at;
    }

    /// The states other than clear.
    pub fn states(&self) -> impl Iterator<Item = (&K, AlertState)> {
        let states = self.instances.iter().map(|(key, i)| (key, i.state()));
        states.filter(|(_, state)| *state != AlertState::Clear)
    }

    /// The state of an instance.
    pub fn state(&self, key: &K) -> AlertState {
        let instance = self.instances.get(key);
        instance.map_or(AlertState::Clear, Instance::state)
    }

    /// How often an instance was refused because there are [`INSTANCES_MAX`].
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn expire(&mut self, upto: i64, emit: &mut impl FnMut(Transition<K>)) {
        while let Some((deadline, key)) = self.timers.first().cloned()
            && deadline <= upto
        {
            self.expire_one(&key, deadline);
            self.report(&key, deadline, emit);
        }
    }

    fn expire_one(&mut self, key: &K, at: i64) {
        let mut kept = true;
        self.change(key.clone(), |instance| kept = instance.expire(at));
        if !kept {
            self.take(key);
        }
    }

    fn change(&mut self, key: K, with: impl FnOnce(&mut Instance)) {
        let mut instance = self.take(&key).unwrap_or_else(Instance::new);
        with(&mut instance);
        self.put(key, instance);
    }

    fn take(&mut self, key: &K) -> Option<Instance> {
        let instance = self.instances.remove(key)?;
        if let Some(deadline) = instance.deadline(self.timing) {
            self.timers.remove(&(deadline, key.clone()));
        }
        Some(instance)
    }

    fn put(&mut self, key: K, instance: Instance) {
        if let Some(deadline) = instance.deadline(self.timing) {
            self.timers.insert((deadline, key.clone()));
        }
        self.instances.insert(key, instance);
    }

    /// Emits the change of an instance's state, and drops an instance without a history.
    fn report(&mut self, key: &K, at: i64, emit: &mut impl FnMut(Transition<K>)) {
        let Some(instance) = self.instances.get_mut(key) else {
            return;
        };
        let (from, to) = (instance.reported, instance.state());
        if from != to {
            instance.reported = to;
            emit(Transition {
                at,
                key: key.clone(),
                from,
                to,
                fired_at: instance.fired.back().copied(),
                flaps: instance.flaps(at),
            });
        }
        if to == AlertState::Clear && instance.fired.is_empty() {
            self.take(key);
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
