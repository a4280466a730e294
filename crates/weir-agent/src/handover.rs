//! [`Handover`]: replaces a tap by another one that has wider or narrower demands on the same
//! events, without losing or duplicating a row.
//!
//! 1. The new tap runs in parallel with the old one. It has no start event of requests that were in
//!    flight when it was opened, so the old one runs until those are complete.
//! 2. From then on the rows of both are held for a short time. The taps read the clock one after
//!    the other for each event, so the cut is made in the longest pause, in which neither tap has
//!    an event.
//! 3. Up to the cut the old tap's rows are used, after it the new one's.

use weir_model::{Batch, Nanos};

/// How long the rows of both taps are held to find a pause.
const HELD_NS: Nanos = 100_000_000;

/// The maximum wait for requests that were in flight at the opening; the new tap reports those
/// still in flight without their start.
const HANDOVER_TIMEOUT_NS: Nanos = 5_000_000_000;

/// A shorter pause might lie between the two clock readings of one event; such a handover is
/// counted.
const PAUSE_MIN_NS: Nanos = 10_000;

/// One of the two taps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The tap that has served until now.
    Old,
    /// The tap that replaces it.
    New,
}

/// A change from one tap to another, in the agent's time.
#[derive(Debug, Default)]
pub struct Handover {
    /// An upper bound of the time of the new tap's first event.
    opened: Option<Nanos>,
    /// From this time on both taps have the start events of all requests in flight.
    settled: Option<Nanos>,
    old: SentState,
    new: SentState,
    /// Reports of requests in flight that were received since the new tap was opened.
    accounts: u32,
    /// Whether the handover continued without waiting for all requests.
    impatient: bool,
}

/// The held rows of a tap.
#[derive(Debug, Default)]
struct SentState {
    reached: Option<Nanos>,
    rows: Vec<(usize, Batch)>,
}

/// The result of a handover.
#[derive(Debug)]
pub struct Cut {
    /// The old tap's rows are used up to this time.
    pub at: Nanos,
    /// The old tap's rows up to `at`, by demand, in the order of arrival.
    pub old: Vec<(usize, Batch)>,
    /// The new tap's rows after `at`.
    pub new: Vec<(usize, Batch)>,
    /// The watermark of the new tap.
    pub reached: Nanos,
    /// Whether the pause was so short that an event may be duplicated.
    pub narrow: bool,
    /// Whether requests from before the opening were still in flight.
    pub impatient: bool,
}

impl Handover {
    /// Accepts rows; returns those that are not held: the rows of the old tap before both taps had
    /// the start events of all requests in flight.
    pub fn rows(&mut self, side: Side, demand: usize, batch: Batch) -> Option<Batch> {
        let from = match (side, self.settled) {
            (Side::Old, None) => return Some(batch),
            // Such rows may still belong to the previous tap.
            (Side::New, None) => Nanos::MIN,
            (_, Some(settled)) => settled,
        };
        let first = batch.ts.partition_point(|ts| *ts <= from);
        let held = batch.slice(first, batch.len() - first);
        if !held.is_empty() {
            let state = match side {
                Side::Old => &mut self.old,
                Side::New => &mut self.new,
            };
            state.rows.push((demand, held));
        }
        let now = batch.slice(0, first);
        (side == Side::Old && !now.is_empty()).then_some(now)
    }

    /// Sets the watermark of a tap.
    pub fn reached(&mut self, side: Side, at: Nanos) {
        match side {
            Side::Old => self.old.reached = self.old.reached.max(Some(at)),
            Side::New => {
                self.opened = self.opened.or(Some(at));
                self.new.reached = self.new.reached.max(Some(at));
                self.forget_early();
            }
        }
    }

    /// Receives from the old tap the issue time of the oldest request in flight.
    pub fn in_flight(&mut self, since: Option<Nanos>, now: Nanos) {
        let Some(opened) = self.opened.filter(|_| self.settled.is_none()) else {
            return;
        };
        // The first report may have been sent before the new tap was opened.
        self.accounts += 1;
        let over = since.is_none_or(|since| since > opened);
        self.impatient = !over && now > opened.saturating_add(HANDOVER_TIMEOUT_NS);
        if self.accounts > 1 && (over || self.impatient) {
            // Earlier rows have been passed on already.
            let reached = self.old.reached.max(self.new.reached);
            self.settled = Some(reached.unwrap_or(now).max(now));
            self.forget_early();
        }
    }

    /// The common watermark of both taps for rows that are not held.
    pub fn over(&self) -> Option<Nanos> {
        match self.settled {
            Some(settled) => self.old.reached.map(|at| at.min(settled)),
            None => self.old.reached,
        }
    }

    /// The cut, when enough rows are available to choose it.
    pub fn cut(&mut self) -> Option<Cut> {
        let from = self.settled?;
        let upto = from + HELD_NS;
        let reached = self.new.reached.filter(|at| *at >= upto)?;
        self.old.reached.filter(|at| *at >= upto)?;
        let (at, pause_ns) = self.widest_pause(from, upto);
        let kept = |rows: Vec<(usize, Batch)>, old: bool| -> Vec<(usize, Batch)> {
            let part = |(demand, batch): (usize, Batch)| {
                let middle = batch.ts.partition_point(|ts| *ts <= at);
                let part = match old {
                    true => batch.slice(0, middle),
                    false => batch.slice(middle, batch.len() - middle),
                };
                (!part.is_empty()).then_some((demand, part))
            };
            rows.into_iter().filter_map(part).collect()
        };
        Some(Cut {
            at,
            old: kept(std::mem::take(&mut self.old.rows), true),
            new: kept(std::mem::take(&mut self.new.rows), false),
            reached,
            narrow: pause_ns < PAUSE_MIN_NS,
            impatient: self.impatient,
        })
    }

    /// The midpoint and the length of the longest interval without an event of either tap.
    fn widest_pause(&self, from: Nanos, upto: Nanos) -> (Nanos, Nanos) {
        let batches = self.old.rows.iter().chain(&self.new.rows);
        let seen = batches.flat_map(|(_, batch)| batch.ts.iter().copied());
        let mut instants: Vec<Nanos> = seen.filter(|ts| (from..=upto).contains(ts)).collect();
        instants.extend([from, upto]);
        instants.sort_unstable();
        let pauses = instants.windows(2).map(|pair| (pair[1] - pair[0], pair[0]));
        let (pause_ns, begin) = pauses.max().expect("there are two instants at least");
        (begin + pause_ns / 2, pause_ns)
    }

    /// Discards early rows of the new tap; they are not used.
    fn forget_early(&mut self) {
        let from = match (self.settled, self.new.reached) {
            (Some(settled), _) => settled,
            (None, Some(reached)) => reached,
            (None, None) => return,
        };
        self.new.rows.retain_mut(|(_, batch)| {
            let first = batch.ts.partition_point(|ts| *ts <= from);
            *batch = batch.slice(first, batch.len() - first);
            !batch.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Column;

    const MS: Nanos = 1_000_000;

    fn rows(ts: &[Nanos]) -> Batch {
        Batch::stream(ts.to_vec(), vec![Column::ints(ts.to_vec())])
    }

    fn instants(rows: &[(usize, Batch)]) -> Vec<Nanos> {
        rows.iter()
            .flat_map(|(_, b)| b.ts.iter().copied())
            .collect()
    }

    /// Runs a handover over events; both taps report each event, the new one with a small delay.
    fn run(events: &[Nanos], lag: impl Fn(usize) -> Nanos, step: Nanos) -> (Vec<Nanos>, Cut) {
        let mut handover = Handover::default();
        let mut given = Vec::new();
        let mut now = 0;
        let cut = loop {
            let during = |ts: &Nanos| (now + 1..=now + step).contains(ts);
            let old: Vec<Nanos> = events.iter().copied().filter(during).collect();
            let new = events.iter().enumerate().map(|(i, ts)| ts + lag(i));
            let new: Vec<Nanos> = new.filter(during).collect();
            now += step;
            let out = handover.rows(Side::Old, 0, rows(&old));
            given.extend(out.iter().flat_map(|b| b.ts.iter().copied()));
            handover.reached(Side::Old, now);
            if now > 30 * MS {
                handover.rows(Side::New, 0, rows(&new));
                handover.reached(Side::New, now);
            }
            // A request from before the opening is in flight for some time.
            handover.in_flight((now < 90 * MS).then_some(25 * MS), now);
            if let Some(cut) = handover.cut() {
                break cut;
            }
            assert!(now < 1_000 * MS, "a handover ends");
        };
        (given, cut)
    }

    #[test]
    fn each_event_is_delivered_once_with_separate_clock_readings() {
        for step in [3 * MS, 20 * MS, 47 * MS] {
            let events: Vec<Nanos> = (1..5_000).map(|i| i * 53_000 + i * i % 40_000).collect();
            let (mut passed, cut) = run(&events, |i| 200 + (i as Nanos % 7) * 300, step);
            assert!(!cut.narrow && !cut.impatient);
            assert!(cut.at > 90 * MS);
            passed.extend(instants(&cut.old));
            let until = events.iter().filter(|ts| **ts <= cut.at);
            assert_eq!(passed, until.copied().collect::<Vec<_>>());
            let after = events
                .iter()
                .enumerate()
                .map(|(i, ts)| ts + 200 + (i as Nanos % 7) * 300);
            let after: Vec<Nanos> = after
                .filter(|ts| (cut.at..=cut.reached).contains(ts))
                .collect();
            assert_eq!(instants(&cut.new), after);
            let total = passed.len() + after.len();
            let seen = events.iter().filter(|ts| **ts <= cut.reached).count();
            assert!(
                seen.abs_diff(total) <= 1,
                "one may lie between the clocks at the end"
            );
        }
    }

    #[test]
    fn waiting_for_an_endless_request_is_bounded() {
        let mut handover = Handover::default();
        handover.reached(Side::New, 10);
        for at in 1..=600 {
            let now = at * 10 * MS;
            handover.reached(Side::Old, now);
            handover.reached(Side::New, now);
            handover.in_flight(Some(5), now);
            assert_eq!(
                handover.settled.is_some(),
                now > 10 + HANDOVER_TIMEOUT_NS,
                "{now}"
            );
        }
        assert!(handover.cut().expect("time has gone on").impatient);
    }

    #[test]
    fn a_handover_without_a_pause_is_counted() {
        let events: Vec<Nanos> = (0..400_000).map(|i| i * 1_000).collect();
        let (_, cut) = run(&events, |_| 100, 20 * MS);
        assert!(cut.narrow);
    }
}
