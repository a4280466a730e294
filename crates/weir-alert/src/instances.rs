//! [`RuleRun`]: an alert over the changes of its relation: its rows by instance, and the states of
//! the instances up to the watermark.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_model::{Batch, Shape, Value};
use weir_query::alert::AlertRule;
use weir_runtime::run_loop::OWN_STREAM;
use weir_sink::Watermark;

use crate::event::{AlertEvent, AlertKey, instance, label};
use crate::machine::{
    AlertLevel, AlertState, HoldTimes, Machine, MissingData, SavedMachine, Transition,
};

/// Maximum number of changes of the relation that wait for the watermark; beyond, the alert fails.
const CHANGES_MAX: usize = 4_000_000;

/// See the module's documentation.
pub struct RuleRun {
    rule: AlertRule,
    /// Missed requests make its rows wrong: not those of weir's own counters.
    reads_events: bool,
    /// How long a request has an effect on its rows; 0 where its windows have no bound.
    memory: i64,
    machine: Machine<AlertKey>,
    /// The rows of each instance, with their copies.
    rows: BTreeMap<AlertKey, BTreeMap<Vec<Value>, i64>>,
    /// The last row of instances that have none and are not clear.
    last_rows: BTreeMap<AlertKey, Vec<Value>>,
    /// Changes after the watermark, in timestamp order.
    changes: VecDeque<RowChange>,
    /// All instants up to this one were applied.
    watermark: i64,
    /// Requests missed up to the watermark.
    missed: i64,
    /// The last instant whose rows depend on missed requests.
    missing_until: i64,
    /// The hosts whose agents are silent, with the last instant whose rows depend on that; the end
    /// of time while they are.
    silent: BTreeMap<String, i64>,
    /// The position of the label `host`.
    host_label: Option<usize>,
    /// The last instant that was applied.
    applied: i64,
    /// It continues from a stored state, and its windows are not full yet.
    is_restored: bool,
    /// How long data are missing at least after that.
    grace: i64,
    failure: Option<String>,
}

struct RowChange {
    at: i64,
    row: Vec<Value>,
    weight: i64,
}

impl RuleRun {
    /// The run of a rule, from a stored state if there is one.
    pub fn new(rule: AlertRule, saved: Option<SavedMachine<AlertKey>>) -> RuleRun {
        let timing = HoldTimes {
            hold_ns: rule.hold_ns,
            hold_clear_ns: rule.hold_clear_ns,
        };
        let is_restored = saved.is_some();
        let machine = match saved {
            Some(saved) => Machine::restored(timing, saved),
            None => Machine::new(timing),
        };
        let mut labels = rule.labels.iter();
        let host_label = labels.position(|(name, _)| name.eq_ignore_ascii_case("host"));
        let sources = rule.plan.sources();
        let mut streams = sources.iter().filter(|s| s.shape == Shape::Stream);
        RuleRun {
            reads_events: streams.any(|s| !s.name.eq_ignore_ascii_case(OWN_STREAM)),
            memory: rule.plan.memory().unwrap_or(0),
            rule,
            machine,
            rows: BTreeMap::new(),
            last_rows: BTreeMap::new(),
            changes: VecDeque::new(),
            watermark: i64::MIN,
            missed: 0,
            missing_until: i64::MIN,
            silent: BTreeMap::new(),
            host_label,
            applied: i64::MIN,
            is_restored,
            grace: 0,
            failure: None,
        }
    }

    /// With data that are missing for at least so long if it continues from a stored state: sources
    /// connect again only then.
    #[must_use]
    pub fn with_grace(self, grace_ns: i64) -> RuleRun {
        RuleRun {
            grace: grace_ns,
            ..self
        }
    }

    /// The rule.
    pub fn rule(&self) -> &AlertRule {
        &self.rule
    }

    /// Why it ended, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The state to be stored.
    pub fn saved(&self) -> SavedMachine<AlertKey> {
        self.machine.saved()
    }

    /// The alert with the labels of an instance: `slow_disk{vdisk="vda"}`.
    pub fn instance(&self, key: &AlertKey) -> String {
        let names = self.rule.labels.iter().map(|(name, _)| name.clone());
        let labels: Vec<_> = names.zip(key.iter().cloned()).collect();
        instance(&self.rule.name, &labels)
    }

    /// The instances that are not clear.
    pub fn states(&self) -> impl Iterator<Item = (&AlertKey, AlertState)> {
        self.machine.states()
    }

    /// The state of an instance.
    pub fn state(&self, key: &AlertKey) -> AlertState {
        self.machine.state(key)
    }

    /// How often an instance was refused for their number.
    pub fn refused(&self) -> u64 {
        self.machine.refused()
    }

    /// Adds changes of the relation, after the watermark and in timestamp order.
    pub fn write(&mut self, batch: &Batch) {
        if self.failure.is_some() {
            return;
        }
        if self.changes.len() + batch.len() > CHANGES_MAX {
            let reason = format!("more than {CHANGES_MAX} changes of its rows at one instant");
            return self.fail(reason);
        }
        let change = |row| RowChange {
            at: batch.ts[row],
            weight: batch.weight(row),
            row: batch.row(row),
        };
        self.changes.extend((0..batch.len()).map(change));
    }

    /// Ends it: its data are missing from now on.
    pub fn fail(&mut self, reason: String) {
        self.failure.get_or_insert(reason);
        self.changes.clear();
        self.rows.clear();
        self.missing_until = i64::MAX;
    }

    /// The alert is removed at `at`: every instance clears.
    pub fn end(&mut self, at: i64, emit: &mut impl FnMut(AlertEvent)) {
        let at = at.max(self.watermark);
        self.transitions(emit, |machine, out| {
            machine.end(at, &mut |transition| out.push(transition));
        });
    }

    /// The hosts of a fleet whose agents are silent from now on: their instances are unknown, or
    /// all of them if no label is the host. An agent that returns delivers complete data when the
    /// windows of the query have passed its silence.
    pub fn set_silent(&mut self, hosts: &BTreeSet<String>) {
        if !self.reads_events {
            return;
        }
        let complete_after = self.watermark.saturating_add(self.memory);
        for (host, until) in &mut self.silent {
            match hosts.contains(host) {
                true => *until = i64::MAX,
                false if *until == i64::MAX => *until = complete_after,
                false => {}
            }
        }
        for host in hosts {
            self.silent.entry(host.clone()).or_insert(i64::MAX);
        }
    }

    /// Whether the witness condition of the action holds for an instance; `None` without a row.
    pub fn witness(&self, key: &AlertKey) -> Option<bool> {
        let (column, _) = self.rule.act.as_ref()?.witness?;
        let row = self.row(key).filter(|_| self.rows.contains_key(key))?;
        Some(row[column] == Value::Bool(true))
    }

    /// Applies everything up to a watermark.
    pub fn advance(&mut self, watermark: &Watermark, emit: &mut impl FnMut(AlertEvent)) {
        if watermark.at <= self.watermark {
            return;
        }
        let begin = match self.watermark {
            // An input may begin after the instant that all of them have passed.
            i64::MIN => watermark.begin.min(self.first_change()).min(watermark.at),
            before => before + 1,
        };
        if std::mem::take(&mut self.is_restored) {
            self.machine.set_back(begin);
            self.missing_until = begin.saturating_add(self.memory.max(self.grace));
        }
        if watermark.missed > self.missed && self.reads_events {
            self.missed = watermark.missed;
            let until = watermark.at.saturating_add(self.memory);
            self.missing_until = self.missing_until.max(until);
        }
        self.step(begin, Vec::new(), emit);
        while self.first_change() <= watermark.at {
            let at = self.first_change();
            let mut now = Vec::new();
            while self.first_change() == at {
                now.extend(self.changes.pop_front());
            }
            self.step(at, now, emit);
        }
        self.complete_before(watermark.at.saturating_add(1), emit);
        self.transitions(emit, |machine, out| {
            machine.advance(watermark.at, &mut |transition| out.push(transition));
        });
        self.watermark = watermark.at;
        self.silent.retain(|_, until| *until > watermark.at);
    }

    fn first_change(&self) -> i64 {
        self.changes.front().map_or(i64::MAX, |change| change.at)
    }

    /// Applies the instants before `at` at which data become complete.
    fn complete_before(&mut self, at: i64, emit: &mut impl FnMut(AlertEvent)) {
        loop {
            let untils = self.silent.values().chain([&self.missing_until]);
            let untils = untils.filter(|until| **until != i64::MIN && **until < i64::MAX);
            let next = untils.map(|until| until + 1);
            let next = next
                .filter(|next| (self.applied + 1..at).contains(next))
                .min();
            let Some(next) = next else {
                return;
            };
            self.apply(next, self.missing_at(next), Vec::new(), emit);
        }
    }

    /// What is missing at an instant.
    fn missing_at(&self, at: i64) -> MissingData {
        let silent = self.silent.iter().filter(|(_, until)| at <= **until);
        let silent: BTreeSet<String> = silent.map(|(host, _)| host.clone()).collect();
        match (at <= self.missing_until, silent.is_empty()) {
            (false, true) => MissingData::None,
            (false, false) if self.host_label.is_some() => MissingData::Of(silent),
            _ => MissingData::All,
        }
    }

    /// Applies an instant.
    fn step(&mut self, at: i64, changes: Vec<RowChange>, emit: &mut impl FnMut(AlertEvent)) {
        self.complete_before(at, emit);
        self.apply(at, self.missing_at(at), changes, emit);
    }

    fn apply(
        &mut self,
        at: i64,
        missing: MissingData,
        changes: Vec<RowChange>,
        emit: &mut impl FnMut(AlertEvent),
    ) {
        self.applied = at;
        let host_label = self.host_label;
        self.transitions(emit, |machine, out| {
            machine.before(at, &mut |transition| out.push(transition));
        });
        let touched = self.change(changes);
        let levels: Vec<(AlertKey, AlertLevel)> = touched
            .iter()
            .map(|key| (key.clone(), self.level(key)))
            .collect();
        self.transitions(emit, |machine, out| {
            let is_of = |key: &AlertKey, hosts: &BTreeSet<String>| {
                let host = host_label.and_then(|at| key[at].as_ref());
                host.is_none_or(|host| hosts.contains(host))
            };
            machine.step_of(at, missing, is_of, levels, &mut |transition| {
                out.push(transition);
            });
        });
        for key in touched {
            if self.machine.state(&key) == AlertState::Clear {
                self.last_rows.remove(&key);
            }
        }
    }

    /// Applies changes to the rows; returns their instances.
    fn change(&mut self, changes: Vec<RowChange>) -> BTreeSet<AlertKey> {
        let mut touched = BTreeSet::new();
        for RowChange { row, weight, .. } in changes {
            let key = self.key(&row);
            let rows = self.rows.entry(key.clone()).or_default();
            let copies = rows.entry(row.clone()).or_insert(0);
            *copies += weight;
            if *copies == 0 {
                rows.remove(&row);
            }
            if rows.is_empty() {
                self.rows.remove(&key);
                self.last_rows.insert(key.clone(), row);
            }
            touched.insert(key);
        }
        touched
    }

    /// The instance that a row belongs to.
    fn key(&self, row: &[Value]) -> AlertKey {
        let fields = &self.rule.plan.schema.fields;
        let labels = self.rule.labels.iter();
        let text = |(_, column): &(String, usize)| label(fields[*column].ty, &row[*column]);
        labels.map(text).collect()
    }

    /// The conditions of an instance. It fires if one of its rows does, and clears if all do.
    fn level(&self, key: &AlertKey) -> AlertLevel {
        let Some(rows) = self.rows.get(key) else {
            return AlertLevel::ABSENT;
        };
        let fires = rows.keys().any(|row| self.fires(row));
        let holds = |column: usize| rows.keys().all(|row| row[column] == Value::Bool(true));
        AlertLevel {
            fires,
            clears: self.rule.until.map_or(!fires, holds),
        }
    }

    fn fires(&self, row: &[Value]) -> bool {
        let when = self.rule.when;
        when.is_none_or(|column| row[column] == Value::Bool(true))
    }

    /// The row that is reported of an instance: one that fires, or one that is present, or the last
    /// one.
    fn row(&self, key: &AlertKey) -> Option<&[Value]> {
        let rows = self.rows.get(key);
        let firing = rows.and_then(|rows| rows.keys().find(|row| self.fires(row)));
        let present = firing.or_else(|| rows?.keys().next());
        let row = present.or_else(|| self.last_rows.get(key));
        row.map(Vec::as_slice)
    }

    fn transitions(
        &mut self,
        emit: &mut impl FnMut(AlertEvent),
        run: impl FnOnce(&mut Machine<AlertKey>, &mut Vec<Transition<AlertKey>>),
    ) {
        let mut out = Vec::new();
        run(&mut self.machine, &mut out);
        for transition in out {
            let key = transition.key.clone();
            let is_clear = transition.to == AlertState::Clear;
            emit(AlertEvent::new(&self.rule, transition, self.row(&key)));
            if is_clear {
                self.last_rows.remove(&key);
            }
        }
    }
}
