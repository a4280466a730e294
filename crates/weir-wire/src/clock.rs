//! The monitor's time on the agent's host: how far the agent's clock is off, how sure that is, and
//! the conversion.
//!
//! A ping and its answer give RFC 5905's four timestamps (section 8): the true offset lies within
//! half the round trip's delay of ((t2 - t1) + (t3 - t4)) / 2, however unequal the two ways are. Each
//! exchange is such an interval; what is known is their intersection, which widens with time by as
//! much as the clocks' rates may differ. The rates' difference is itself an interval, from two
//! offsets far apart.
//!
//! The conversion is a chain of straight lines through agent's and monitor's time. A new measurement
//! begins a new line where the last one had got to, and approaches the measured time at a bounded
//! rate. So converted times never go backwards, and an old time is converted as it was before.
//!
//! [`Discipline`] is arithmetic and reads no clock; [`Clock`] is one that threads share.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use weir_model::{NANOS_PER_SECOND, Nanos};

/// By how much the rates of two clocks may differ before that was measured: what Linux lets a clock
/// be steered by (`MAXFREQ`, `include/linux/timex.h`), in parts per billion.
const RATE_PPB_MAX: f64 = 500_000.0;
/// By how much a measured difference of rates may change again: RFC 5905's frequency tolerance.
const WANDER_PPB: f64 = 15_000.0;
/// How exactly a clock can be read: both may be coarse to a microsecond.
const READING_NS: i64 = 1_000;
/// The least time between two offsets that tell a rate.
const RATE_SPAN_NS: i64 = 8 * NANOS_PER_SECOND;
/// How fast an error is worked off.
const SLEW_PPB: f64 = 1_000_000.0;
/// An error beyond this is stepped over: forward at once, backward by nearly stopping.
pub const STEP_NS: i64 = 50_000_000;
/// How much of the agent's time passes as the monitor's while a backward step is waited out.
const HOLD_RATE: f64 = 1.0 / 16.0;
/// A backward step is waited out until so little of it is left.
const HELD_NS: i64 = 1_000_000;
/// How many lines are kept for times gone by.
const LINES_MAX: usize = 64;
/// A round trip longer than this says nothing.
const DELAY_NS_MAX: i64 = 10 * NANOS_PER_SECOND;
/// An answer that is older than an earlier one by so much says that the agent's clock was set back.
const SET_BACK_NS: i64 = NANOS_PER_SECOND;
/// How far beyond the present a time may lie that is converted.
const CONVERTED_AHEAD_MAX: i64 = NANOS_PER_SECOND;
const PPB: f64 = 1e9;

/// The four timestamps of an exchange, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// t1: when the ping left, by the agent's clock.
    pub left: Nanos,
    /// t2: when it came, by the monitor's.
    pub came: Nanos,
    /// t3: when the answer left, by the monitor's.
    pub answered: Nanos,
    /// t4: when that came, by the agent's.
    pub back: Nanos,
}

/// What became of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeOutcome {
    /// It was used.
    Used,
    /// Its timestamps are impossible or too far apart.
    Rejected,
    /// A clock was set: the error of so many nanoseconds was beyond [`STEP_NS`] and is stepped over.
    /// Negative: our time is ahead and nearly stands still until the monitor's has come up.
    Stepped(i64),
}

/// Where the true offset (monitor's time less agent's) lies.
#[derive(Clone, Copy, Debug)]
struct Interval {
    low: i64,
    high: i64,
    /// At which time of the agent's.
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
        // It came after it left and was back after it was answered. While it was under way the
        // clocks drifted apart.
        let margin = READING_NS + ((back - left) as f64 * RATE_PPB_MAX / PPB) as i64 + 1;
        Some(Interval {
            low: answered.checked_sub(back)? - margin,
            high: came.checked_sub(left)? + margin,
            at: back,
        })
    }

    /// The same at another time, with the rates' difference between the two of `rate`, in ppb.
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

/// Where the true difference of the rates lies, in parts per billion.
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

/// From `from` on, `to` passes with `1 + excess` of the agent's rate.
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

/// What is known of the monitor's time; arithmetic only.
#[derive(Debug, Default)]
pub struct Discipline {
    offset: Option<Interval>,
    rate: Option<Rate>,
    /// An offset from long ago, to tell the rate by.
    reference: Option<Interval>,
    /// The one that will follow it.
    next_reference: Option<Interval>,
    /// By when they begin; the last two may lie in the future.
    lines: VecDeque<Line>,
    /// The latest time that was converted: nothing before may change any more.
    converted: Option<Nanos>,
    /// A backward step is being waited out.
    holding: bool,
    steps: u64,
}

impl Discipline {
    /// Nothing is known yet.
    pub fn new() -> Discipline {
        Discipline::default()
    }

    /// True once an exchange was used.
    pub fn is_synchronised(&self) -> bool {
        !self.lines.is_empty()
    }

    /// How often a clock was set while we looked.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Learns from an exchange.
    pub fn update(&mut self, exchange: Exchange) -> ExchangeOutcome {
        let Some(new) = Interval::of(exchange) else {
            return ExchangeOutcome::Rejected;
        };
        if let Some(known) = self.offset.filter(|known| new.at < known.at) {
            return match known.at - new.at < SET_BACK_NS {
                // An answer that was overtaken by a later one.
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
            // They contradict each other: a clock was set, or changed its rate. Only the new one counts.
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

    /// The agent's clock was set back: what was known of it is void. Its own times go back, so
    /// nothing can keep converted ones from jumping.
    fn restart(&mut self, new: Interval) -> ExchangeOutcome {
        let before = self.line_at(new.at).at(new.at);
        *self = Discipline {
            offset: Some(new),
            reference: Some(new),
            steps: self.steps + 1,
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
            // A better offset soon after the start makes a better reference.
            if now.half_width() < reference.half_width() && span < RATE_SPAN_NS / 4 {
                self.reference = Some(now);
            }
            return;
        }
        let rate = Rate::between(reference, now);
        self.rate = (rate.low <= rate.high).then_some(rate);
        let next = *self.next_reference.get_or_insert(now);
        // The reference is one to two spans of 8 long: a rate of long ago may have changed.
        if now.at - next.at >= 8 * RATE_SPAN_NS {
            (self.reference, self.next_reference) = (Some(next), Some(now));
        }
    }

    /// Begins a new line towards what is known now, and says by how much the last one was off.
    fn steer(&mut self) -> i64 {
        let known = self.offset.expect("an exchange was used");
        let rate = self.rate().middle();
        // What was converted from the future is no time of a row, and holds nothing up.
        let ahead = known.at.saturating_add(CONVERTED_AHEAD_MAX);
        let converted = self.converted.map_or(known.at, |c| c.min(ahead));
        let from = known.at.max(converted);
        let goal = from.saturating_add(known.aged(from, self.rate()).middle());
        if self.converted.is_none() {
            // Nobody has seen a time yet: none can go back.
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
            // As fast as is allowed, then on at the measured rate.
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

    /// The monitor's time at a time of the agent's; the agent's own before anything is known. Never
    /// decreases with `agent`, whatever is learned between two calls; times of more than some
    /// minutes ago are converted by the oldest line that is kept.
    pub fn to_monitor(&mut self, agent: Nanos) -> Nanos {
        if self.lines.is_empty() {
            return agent;
        }
        self.converted = self.converted.max(Some(agent));
        self.line_at(agent).at(agent)
    }

    /// What is to be added to the agent's time at `agent` to have the monitor's, as well as is known.
    pub fn offset_ns(&self, agent: Nanos) -> i64 {
        self.interval_at(agent).map_or(0, Interval::middle)
    }

    /// How far [`Discipline::to_monitor`] may be off at `agent`, for a time near the present: the
    /// true time is not further away. Without an exchange, as far as can be said.
    pub fn error_ns(&self, agent: Nanos) -> i64 {
        let Some(known) = self.interval_at(agent) else {
            return i64::MAX;
        };
        let told = self.line_at(agent).at(agent) - agent;
        (known.high - told).max(told - known.low).max(0)
    }

    /// By how much the monitor's clock is faster, in parts per billion, once that was measured.
    pub fn drift_ppb(&self) -> Option<f64> {
        self.rate.map(Rate::middle)
    }

    fn interval_at(&self, agent: Nanos) -> Option<Interval> {
        self.offset.map(|known| known.aged(agent, self.rate()))
    }
}

/// The monitor's time, for all threads of an agent.
#[derive(Debug, Default)]
pub struct Clock(Mutex<Discipline>);

impl Clock {
    /// Nothing is known yet.
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

    /// See [`Discipline::steps`].
    pub fn steps(&self) -> u64 {
        self.lock().steps()
    }

    /// Another monitor is another time: nothing is known of it. Converted times may jump.
    pub fn reset(&self) {
        *self.lock() = Discipline::new();
    }

    fn lock(&self) -> MutexGuard<'_, Discipline> {
        self.0.lock().expect("no panic while held")
    }
}
