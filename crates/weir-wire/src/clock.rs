//! The monitor's time on the agent's host: the offset of the agent's clock, its error bound, and
//! the conversion.
//!
//! A ping and its reply give RFC 5905's four timestamps (section 8): the true offset lies within
//! half the round-trip delay of ((t2 - t1) + (t3 - t4)) / 2, however asymmetric the paths are. Each
//! exchange gives such an interval; the estimate is their intersection, which widens with time by
//! as much as the clock rates may differ. The rate difference is itself an interval, from two
//! offsets far apart.
//!
//! The conversion is a chain of line segments from agent time to monitor time. A new measurement
//! starts a new segment at the end of the last one, and approaches the measured time at a bounded
//! rate. So converted times never go backwards, and an old time is converted as before.
//!
//! On one host the clocks are the same unless the intervals exclude it: then times are not changed,
//! and the rows of a window are those that the agent alone would find in it.
//!
//! [`Discipline`] is arithmetic and reads no clock; [`Clock`] is shared by threads.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use weir_model::{NANOS_PER_SECOND, Nanos};

/// The largest rate difference of two clocks before it is measured: the limit of clock steering in
/// Linux (`MAXFREQ`, `include/linux/timex.h`), in parts per billion.
const RATE_PPB_MAX: f64 = 500_000.0;
/// How much a measured rate difference may change: RFC 5905's frequency tolerance.
const WANDER_PPB: f64 = 15_000.0;
/// The resolution of clock readings: both may be coarse to a microsecond.
const READING_NS: i64 = 1_000;
/// The smallest time between two offsets from which a rate is computed.
const RATE_SPAN_NS: i64 = 8 * NANOS_PER_SECOND;
/// The rate at which an error is corrected.
const SLEW_PPB: f64 = 1_000_000.0;
/// A larger error is stepped over: forward at once, backward by nearly stopping.
pub const STEP_NS: i64 = 50_000_000;
/// The rate of converted time during a backward step.
const HOLD_RATE: f64 = 1.0 / 16.0;
/// A backward step ends when the remaining error is this small.
const HELD_NS: i64 = 1_000_000;
/// The number of segments retained for past times.
const LINES_MAX: usize = 64;
/// A longer round trip is rejected.
const DELAY_NS_MAX: i64 = 10 * NANOS_PER_SECOND;
/// A reply that is older than a previous one by this much means that the agent's clock was set
/// back.
const SET_BACK_NS: i64 = NANOS_PER_SECOND;
/// How far in the future a converted time may be.
const CONVERTED_AHEAD_MAX: i64 = NANOS_PER_SECOND;
const PPB: f64 = 1e9;

/// The four timestamps of an exchange, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// t1: when the agent sent the ping, by its clock.
    pub left: Nanos,
    /// t2: when the monitor received it, by its clock.
    pub came: Nanos,
    /// t3: when the monitor sent the reply, by its clock.
    pub answered: Nanos,
    /// t4: when the agent received the reply, by its clock.
    pub back: Nanos,
}

/// The effect of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeOutcome {
    /// It updated the estimate.
    Used,
    /// Its timestamps are impossible or too far apart.
    Rejected,
    /// A clock was set: this error in nanoseconds exceeded [`STEP_NS`] and is stepped over.
    /// Negative: the converted time is ahead and nearly stops until the monitor's time has caught
    /// up.
    Stepped(i64),
}

/// The interval that contains the true offset (monitor time minus agent time).
#[derive(Clone, Copy, Debug)]
struct Interval {
    low: i64,
    high: i64,
    /// The agent time of the measurement.
    at: Nanos,
}

impl Interval {
    fn of(exchange: Exchange) -> Option<Interval> {
        let Exchange {
            left,
            came,
            answered,
            back,
        } = exchange;
        let delay = back
            .checked_sub(left)?
            .checked_sub(answered.checked_sub(came)?)?;
        if back < left || answered < came || !(-READING_NS..=DELAY_NS_MAX).contains(&delay) {
            return None;
        }
        // Causality: received after sent, on both paths. Meanwhile the clocks may have drifted
        // apart.
        let margin = READING_NS + ((back - left) as f64 * RATE_PPB_MAX / PPB) as i64 + 1;
        Some(Interval {
            low: answered.checked_sub(back)? - margin,
            high: came.checked_sub(left)? + margin,
            at: back,
        })
    }

    /// The interval at another time, given the rate difference, in ppb.
    fn aged(self, at: Nanos, rate: Rate) -> Interval {
        let span = (at - self.at) as f64;
        let (slow, fast) = match span < 0.0 {
            true => (rate.high, rate.low),
            false => (rate.low, rate.high),
        };
        Interval {
            low: self.low.saturating_add((span * slow / PPB).floor() as i64),
            high: self.high.saturating_add((span * fast / PPB).ceil() as i64),
            at,
        }
    }

    fn middle(self) -> i64 {
        self.low + (self.high - self.low) / 2
    }

    fn half_width(self) -> i64 {
        (self.high - self.low) / 2 + 1
    }
}

/// The interval of the true rate difference, in parts per billion.
#[derive(Clone, Copy, Debug)]
struct Rate {
    low: f64,
    high: f64,
}

impl Rate {
    const UNKNOWN: Rate = Rate {
        low: -RATE_PPB_MAX,
        high: RATE_PPB_MAX,
    };

    fn between(early: Interval, late: Interval) -> Rate {
        let span = (late.at - early.at) as f64;
        let rate = |from: i64, to: i64| (to - from) as f64 * PPB / span;
        Rate {
            low: (rate(early.high, late.low) - WANDER_PPB).max(-RATE_PPB_MAX),
            high: (rate(early.low, late.high) + WANDER_PPB).min(RATE_PPB_MAX),
        }
    }

    fn middle(self) -> f64 {
        (self.low + self.high) / 2.0
    }
}

/// A segment: from agent time `from`, monitor time starts at `to` and runs at `1 + excess` of the
/// agent's rate.
#[derive(Clone, Copy, Debug)]
struct Line {
    from: Nanos,
    to: Nanos,
    excess: f64,
}

impl Line {
    fn at(&self, agent: Nanos) -> Nanos {
        let span = agent.saturating_sub(self.from);
        let excess = (span as f64 * self.excess).floor() as i64;
        self.to.saturating_add(span).saturating_add(excess)
    }
}

/// The estimate of the monitor's time; arithmetic only.
#[derive(Debug, Default)]
pub struct Discipline {
    offset: Option<Interval>,
    rate: Option<Rate>,
    /// An old offset, to compute the rate.
    reference: Option<Interval>,
    /// The next reference.
    next_reference: Option<Interval>,
    /// Ordered by start; the last two may lie in the future.
    lines: VecDeque<Line>,
    /// The latest time converted: the conversion up to it must not change.
    converted: Option<Nanos>,
    /// A backward step is in progress.
    holding: bool,
    steps: u64,
    /// Agent and monitor are on one host.
    is_same_host: bool,
}

impl Discipline {
    /// Without measurements.
    pub fn new() -> Discipline {
        Discipline::default()
    }

    /// States whether agent and monitor are on one host; by default they are not.
    pub fn set_same_host(&mut self, is_same_host: bool) {
        self.is_same_host = is_same_host;
    }

    /// Whether an exchange was used.
    pub fn is_synchronised(&self) -> bool {
        !self.lines.is_empty()
    }

    /// The number of steps of a clock.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Updates the estimate with an exchange.
    pub fn update(&mut self, exchange: Exchange) -> ExchangeOutcome {
        let Some(new) = Interval::of(exchange) else {
            return ExchangeOutcome::Rejected;
        };
        if let Some(known) = self.offset.filter(|known| new.at < known.at) {
            return match known.at - new.at < SET_BACK_NS {
                // A reply that was reordered after a later one.
                true => ExchangeOutcome::Rejected,
                false => self.restart(new),
            };
        }
        let known = self.offset.map(|known| known.aged(new.at, self.rate()));
        let both = known.map_or(new, |known| Interval {
            low: known.low.max(new.low),
            high: known.high.min(new.high),
            at: new.at,
        });
        let agree = both.low <= both.high;
        if agree {
            self.offset = Some(both);
            self.update_rate(both);
        } else {
            // The intervals are disjoint: a clock was set or changed its rate. Only the new one
            // counts.
            self.offset = Some(new);
            (self.rate, self.reference, self.next_reference) = (None, Some(new), None);
        }
        let error = self.steer();
        if agree || error.abs() <= STEP_NS {
            return ExchangeOutcome::Used;
        }
        self.steps += 1;
        ExchangeOutcome::Stepped(error)
    }

    /// Restarts after the agent's clock was set back. Its own timestamps go backwards, so converted
    /// ones jump too.
    fn restart(&mut self, new: Interval) -> ExchangeOutcome {
        let before = self.line_at(new.at).at(new.at);
        *self = Discipline {
            offset: Some(new),
            reference: Some(new),
            steps: self.steps + 1,
            is_same_host: self.is_same_host,
            ..Discipline::new()
        };
        self.steer();
        ExchangeOutcome::Stepped(self.line_at(new.at).at(new.at) - before)
    }

    fn rate(&self) -> Rate {
        self.rate.unwrap_or(Rate::UNKNOWN)
    }

    fn update_rate(&mut self, now: Interval) {
        let Some(reference) = self.reference else {
            self.reference = Some(now);
            return;
        };
        let span = now.at - reference.at;
        if span < RATE_SPAN_NS {
            // A more precise offset soon after the start makes a better reference.
            if now.half_width() < reference.half_width() && span < RATE_SPAN_NS / 4 {
                self.reference = Some(now);
            }
            return;
        }
        let rate = Rate::between(reference, now);
        self.rate = (rate.low <= rate.high).then_some(rate);
        let next = *self.next_reference.get_or_insert(now);
        // The reference is 8 to 16 rate spans old: an older rate may have changed.
        if now.at - next.at >= 8 * RATE_SPAN_NS {
            (self.reference, self.next_reference) = (Some(next), Some(now));
        }
    }

    /// The offset within an interval.
    fn estimate(&self, known: Interval) -> i64 {
        match self.is_same_host && (known.low..=known.high).contains(&0) {
            true => 0,
            false => known.middle(),
        }
    }

    /// The rate difference, in parts per billion.
    fn rate_estimate(&self) -> f64 {
        let rate = self.rate();
        match self.is_same_host && (rate.low..=rate.high).contains(&0.0) {
            true => 0.0,
            false => rate.middle(),
        }
    }

    /// Starts a new segment towards the estimate and returns the error of the last one.
    fn steer(&mut self) -> i64 {
        let known = self.offset.expect("an exchange was used");
        let rate = self.rate_estimate();
        // A converted future time is not the time of a row and does not block correction.
        let ahead = known.at.saturating_add(CONVERTED_AHEAD_MAX);
        let converted = self.converted.map_or(known.at, |c| c.min(ahead));
        let from = known.at.max(converted);
        let goal = from.saturating_add(self.estimate(known.aged(from, self.rate())));
        if self.converted.is_none() {
            // No time has been converted yet: none can go backwards.
            self.lines.clear();
        }
        if self.lines.is_empty() {
            self.push(from, goal, rate / PPB);
            return 0;
        }
        let to = self.line_at(from).at(from);
        let error = goal - to;
        self.lines.retain(|line| line.from < from);
        if error > STEP_NS {
            self.push(from, goal, rate / PPB);
        } else if error != 0 {
            // At the allowed rate first, then at the measured rate.
            self.holding = error < -STEP_NS || self.holding && error < -HELD_NS;
            let slew = match self.holding {
                true => HOLD_RATE - 1.0,
                false => (rate + SLEW_PPB.copysign(error as f64)) / PPB,
            };
            let span = (error as f64 / (slew - rate / PPB)).ceil() as i64;
            self.push(from, to, slew);
            let end = from.saturating_add(span);
            let reached = self.line_at(end).at(end);
            self.push(end, reached, rate / PPB);
        } else {
            self.push(from, to, rate / PPB);
        }
        error
    }

    fn push(&mut self, from: Nanos, to: Nanos, excess: f64) {
        self.lines.push_back(Line { from, to, excess });
        if self.lines.len() > LINES_MAX {
            self.lines.pop_front();
        }
    }

    fn line_at(&self, agent: Nanos) -> Line {
        let mut later = self.lines.iter().rev();
        let line = later.find(|line| line.from <= agent);
        *line.or(self.lines.front()).expect("synchronised")
    }

    /// The monitor's time for a time of the agent; the agent's own before the first measurement.
    /// Never decreases with `agent`, whatever is measured between two calls; times more than some
    /// minutes ago are converted by the oldest segment.
    pub fn to_monitor(&mut self, agent: Nanos) -> Nanos {
        if self.lines.is_empty() {
            return agent;
        }
        self.converted = self.converted.max(Some(agent));
        self.line_at(agent).at(agent)
    }

    /// The offset to add to the agent's time at `agent`, as estimated.
    pub fn offset_ns(&self, agent: Nanos) -> i64 {
        self.interval_at(agent)
            .map_or(0, |known| self.estimate(known))
    }

    /// The error bound of [`Discipline::to_monitor`] at `agent`, for a time near the present. The
    /// maximum before the first exchange.
    pub fn error_ns(&self, agent: Nanos) -> i64 {
        let Some(known) = self.interval_at(agent) else {
            return i64::MAX;
        };
        let offset = self.line_at(agent).at(agent) - agent;
        (known.high - offset).max(offset - known.low).max(0)
    }

    /// How much faster the monitor's clock is, in parts per billion, once measured.
    pub fn drift_ppb(&self) -> Option<f64> {
        self.rate.map(|_| self.rate_estimate())
    }

    fn interval_at(&self, agent: Nanos) -> Option<Interval> {
        self.offset.map(|known| known.aged(agent, self.rate()))
    }
}

/// The monitor's time, shared by all threads of an agent.
#[derive(Debug, Default)]
pub struct Clock(Mutex<Discipline>);

impl Clock {
    /// Without measurements.
    pub fn new() -> Clock {
        Clock::default()
    }

    /// See [`Discipline::update`].
    pub fn update(&self, exchange: Exchange) -> ExchangeOutcome {
        self.lock().update(exchange)
    }

    /// See [`Discipline::to_monitor`].
    pub fn to_monitor(&self, agent: Nanos) -> Nanos {
        self.lock().to_monitor(agent)
    }

    /// See [`Discipline::offset_ns`].
    pub fn offset_ns(&self, agent: Nanos) -> i64 {
        self.lock().offset_ns(agent)
    }

    /// See [`Discipline::error_ns`].
    pub fn error_ns(&self, agent: Nanos) -> i64 {
        self.lock().error_ns(agent)
    }

    /// See [`Discipline::is_synchronised`].
    pub fn is_synchronised(&self) -> bool {
        self.lock().is_synchronised()
    }

    /// See [`Discipline::set_same_host`].
    pub fn set_same_host(&self, is_same_host: bool) {
        self.lock().set_same_host(is_same_host);
    }

    /// Discards the estimate, for another monitor. Converted times may jump.
    pub fn reset(&self) {
        *self.lock() = Discipline::new();
    }

    fn lock(&self) -> MutexGuard<'_, Discipline> {
        self.0.lock().expect("no panic while held")
    }
}
