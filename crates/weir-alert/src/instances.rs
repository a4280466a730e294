//! [`RuleRun`]: an alert over the changes of its relation: its rows by instance, and the states of
//! the instances up to the watermark.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_model::{Batch, Shape, Value};
use weir_query::alert::AlertRule;
use weir_runtime::run_loop::OWN_STREAM;
use weir_sink::Watermark;

use crate::event::{AlertEvent, AlertKey, label};
use crate::machine::{AlertLevel, AlertState, HoldTimes, Machine, SavedMachine, Transition};

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
    /// Data were missing at the last instant that was applied.
    is_missing: bool,
    /// It continues from a stored state, and its windows are not full yet.
    is_restored: bool,
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
            is_missing: false,
            is_restored,
            failure: None,
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

    /// The instances that are not clear.
    pub fn states(&self) -> impl Iterator<Item = (&AlertKey, AlertState)> {
        self.machine.states()
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
            self.missing_until = begin.saturating_add(self.memory);
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
    }

    fn first_change(&self) -> i64 {
        self.changes.front().map_or(i64::MAX, |change| change.at)
    }

    /// Data are complete again after [`RuleRun::missing_until`], if that is before `at`.
    fn complete_before(&mut self, at: i64, emit: &mut impl FnMut(AlertEvent)) {
        let until = self.missing_until;
        if self.is_missing && until != i64::MIN && until + 1 < at {
            self.apply(until + 1, false, Vec::new(), emit);
        }
    }

    /// Applies an instant.
    fn step(&mut self, at: i64, changes: Vec<RowChange>, emit: &mut impl FnMut(AlertEvent)) {
        self.complete_before(at, emit);
        self.apply(at, at <= self.missing_until, changes, emit);
    }

    fn apply(
        &mut self,
        at: i64,
        missing: bool,
        changes: Vec<RowChange>,
        emit: &mut impl FnMut(AlertEvent),
    ) {
        self.is_missing = missing;
        self.transitions(emit, |machine, out| {
            machine.before(at, &mut |transition| out.push(transition));
        });
        let touched = self.change(changes);
        let levels: Vec<(AlertKey, AlertLevel)> = touched
            .iter()
            .map(|key| (key.clone(), self.level(key)))
            .collect();
        self.transitions(emit, |machine, out| {
            machine.step(at, missing, levels, &mut |transition| out.push(transition));
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
