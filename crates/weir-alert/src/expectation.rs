//! EXPECT: what a file states about the run of its alerts over a recording, and whether it is so.

use std::collections::BTreeMap;

use weir_query::alert::{AlertExpectation, AlertRule, STATES};

use crate::event::AlertEvent;
use crate::machine::AlertState;

/// The states of the instances of all rules over a run.
pub struct StateHistory<'a> {
    /// The first instant.
    pub begin: i64,
    /// The last instant.
    pub end: i64,
    /// All events, in timestamp order.
    pub events: &'a [AlertEvent],
}

/// Whether an expectation is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectationResult {
    /// It is.
    Met,
    /// It is not, for this reason.
    NotMet(String),
}

/// A state of an instance, from an instant until before another one.
struct Period<'a> {
    state: AlertState,
    from: i64,
    until: i64,
    instance: &'a AlertEvent,
}

impl StateHistory<'_> {
    /// Judges an expectation of `rules`. An instance is in a state at an instant if that is its
    /// state after all changes at it. `clear` holds at an instant where every instance that is
    /// meant is clear.
    pub fn judge(&self, expectation: &AlertExpectation, rules: &[AlertRule]) -> ExpectationResult {
        let (from, to) = match expectation.interval_ns {
            Some((from, to)) => (
                self.begin.saturating_add(from),
                self.begin.saturating_add(to),
            ),
            None => (self.begin, self.end),
        };
        if to > self.end {
            let length = seconds(self.end - self.begin);
            return ExpectationResult::NotMet(format!("the recording ends after {length}"));
        }
        let state = AlertState::ALL[expectation.state];
        let name = &rules[expectation.rule].name;
        let mut periods = self.periods(name, &expectation.labels);
        periods.retain(|period| period.from <= to && period.until > from);
        let found = match state {
            AlertState::Clear => self.is_clear_somewhere(&periods, from, to),
            state => {
                let first = periods.iter().find(|period| period.state == state);
                first.map(|period| (period.from.max(from), Some(period.instance)))
            }
        };
        match (found, expectation.negated) {
            (Some(_), false) | (None, true) => ExpectationResult::Met,
            (Some((at, instance)), true) => {
                let who = instance.map_or_else(|| name.clone(), AlertEvent::instance);
                let state = STATES[expectation.state];
                ExpectationResult::NotMet(format!("{who} was {state} at {}", self.offset(at)))
            }
            (None, false) => ExpectationResult::NotMet(self.alternative(&periods, name)),
        }
    }

    /// The states other than clear of the instances with these labels.
    fn periods(&self, name: &str, labels: &[(String, String)]) -> Vec<Period<'_>> {
        let is_meant = |event: &&AlertEvent| {
            let has = |(label, value): &(String, String)| {
                let mut of_event = event.labels.iter();
                of_event.any(|(l, v)| l.eq_ignore_ascii_case(label) && v.as_ref() == Some(value))
            };
            event.alert == name && labels.iter().all(has)
        };
        let mut open: BTreeMap<String, Period> = BTreeMap::new();
        let mut periods = Vec::new();
        for event in self.events.iter().filter(is_meant) {
            if let Some(mut before) = open.remove(&event.instance()) {
                before.until = event.at;
                periods.push(before);
            }
            if event.to != AlertState::Clear {
                let period = Period {
                    state: event.to,
                    from: event.at,
                    until: i64::MAX,
                    instance: event,
                };
                open.insert(event.instance(), period);
            }
        }
        periods.extend(open.into_values());
        periods.sort_by_key(|period| period.from);
        // A state that was left at the instant at which it began held at no instant.
        periods.retain(|period| period.until > period.from);
        periods
    }

    /// The first instant of an interval at which no period is open.
    fn is_clear_somewhere<'e>(
        &self,
        periods: &[Period<'e>],
        from: i64,
        to: i64,
    ) -> Option<(i64, Option<&'e AlertEvent>)> {
        let mut at = from;
        for period in periods {
            if period.from > at {
                break;
            }
            at = at.max(period.until);
        }
        (at <= to).then_some((at, None))
    }

    /// What was, instead of what was expected.
    fn alternative(&self, periods: &[Period], name: &str) -> String {
        let described = |period: &Period| {
            let from = self.offset(period.from);
            let until = match period.until {
                i64::MAX => "to the end".to_owned(),
                until => format!("until {}", self.offset(until)),
            };
            let instance = period.instance.instance();
            format!("{instance} was {} from {from} {until}", period.state.name())
        };
        match periods.first() {
            None => format!("all instances of {name} were clear"),
            Some(first) => described(first),
        }
    }

    fn offset(&self, at: i64) -> String {
        seconds(at - self.begin)
    }
}

/// Nanoseconds as seconds with three digits.
pub fn seconds(ns: i64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}
