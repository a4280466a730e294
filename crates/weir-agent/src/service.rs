//! [`Service`]: serves the fragments of an agent that read the same streams: one tap and, during a
//! handover, its replacement.

use std::time::{Duration, Instant};

use weir_model::{Batch, Demand, Folded, Nanos};
use weir_tap::{EventCount, FOLDED};

use super::demands::covers;
use super::handover::{Cut, Handover, Side};
use super::row_conversion::RowConversion;
use super::tap::{OpenTap, SourceConfig};
use weir_runtime::run_loop::{MISSED, Message};

/// Maximum messages received from one tap before the other taps are served.
const TURN: usize = 16;

/// A tap that delivers more than is demanded is replaced when the demands have not changed for this
/// time.
const REST: Duration = Duration::from_secs(2);

/// A live tap that is silent for this time does not delay others; rows of this interval are then
/// late.
const IDLE_NS: Nanos = 1_000_000_000;

/// Request numbers that one tap may use after the next one is opened.
const NUMBERS_APART: i64 = 1 << 24;

/// A tap, and its replacement.
pub struct Service {
    tap: OpenTap,
    /// Events up to here were delivered before the tap was known to be open, and were dropped.
    dropped_until: Nanos,
    next: Option<(OpenTap, Handover)>,
    changed: Instant,
    /// The counters of earlier taps.
    counted: Vec<EventCount>,
    /// Requests in the groups that have arrived.
    folded: i64,
    /// Handovers made, and of them those with too short a pause, and those that did not wait for
    /// all requests in flight.
    pub handovers: [i64; 3],
}

/// A message of a service.
pub enum TapMessage {
    /// Rows of the demand number `demand` of the serving tap.
    Rows { demand: usize, batch: Batch },
    /// Groups of such a demand.
    Folded { demand: usize, folded: Folded },
    /// The serving tap is open. Events after `at`, in the agent's time, will be delivered.
    Opened { at: Nanos },
    /// The serving tap was replaced. Up to `at`, in the agent's time, all rows have been delivered.
    Switched { at: Nanos },
    /// The replacement could not be opened; the old tap continues to serve.
    NotOpened(String),
    /// The tap could not be opened, or has ended; with the reason, unless a recording has ended.
    Over(Option<String>),
}

impl Service {
    /// Opens a tap for these demands. A demand for groups is a single one; its source is `name`.
    pub fn begin(source_config: &SourceConfig, name: &str, demands: Vec<Demand>) -> Service {
        let source = |demand: &Demand| match demand.fold {
            Some(_) => name.to_owned(),
            None => demand.stream.clone(),
        };
        let sources = demands.iter().map(source).collect();
        Service::of(OpenTap::open(source_config, demands, sources))
    }

    /// A service with a tap that has delivered nothing yet.
    fn of(tap: OpenTap) -> Service {
        Service {
            tap,
            dropped_until: Nanos::MIN,
            next: None,
            changed: Instant::now(),
            counted: Vec::new(),
            folded: 0,
            handovers: [0; 3],
        }
    }

    /// Changes the tap as needed to serve the demands `wanted`.
    pub fn serve(&mut self, source_config: &SourceConfig, wanted: &[Demand]) {
        if self.next.is_some() || self.tap.ended {
            return;
        }
        let served = covers(&self.tap.demands, wanted);
        let serves_unused = !covers(wanted, &self.tap.demands) && self.changed.elapsed() > REST;
        if self.tap.reached.is_some() && (!served || serves_unused) {
            let sources = wanted.iter().map(|d| d.stream.clone()).collect();
            let mut next = OpenTap::open(source_config, wanted.to_vec(), sources);
            for conversion in &mut next.conversions {
                let last = self.tap.conversions.iter().map(|o| o.last_number()).max();
                conversion.first_number = last.unwrap_or(0) + NUMBERS_APART;
            }
            self.next = Some((next, Handover::default()));
        }
    }

    /// True if a fragment with these demands can start.
    pub fn gives(&self, demands: &[Demand]) -> bool {
        self.tap.gives(demands)
    }

    /// The counters of the taps, including those of closed taps.
    pub fn counts(&self) -> Vec<EventCount> {
        let mut counts = self.counted.clone();
        add(&mut counts, &self.tap.account.counts);
        counts
    }

    /// Requests that the taps lost, by cause.
    pub fn missed(&self) -> Vec<(&'static str, i64)> {
        let mut missed: Vec<(&'static str, i64)> = Vec::new();
        let counts = self.counted.iter().chain(&self.tap.account.counts);
        for count in counts.filter(|c| MISSED.contains(&c.counter) && c.total > 0) {
            let cause = count.cause.unwrap_or(count.counter);
            match missed.iter_mut().find(|(known, _)| *known == cause) {
                Some((_, total)) => *total += count.total,
                None => missed.push((cause, count.total)),
            }
        }
        missed
    }

    /// Requests that were aggregated and whose groups have not arrived, as far as the tap has
    /// counted them.
    pub fn folding(&self) -> u64 {
        let counts = self.tap.account.counts.iter();
        let folded = counts
            .filter(|c| c.counter == FOLDED)
            .map(|c| c.total)
            .sum::<i64>();
        u64::try_from(folded - self.folded).unwrap_or(0)
    }

    /// Notes that the demands have just changed.
    pub fn touch(&mut self) {
        self.changed = Instant::now();
    }

    /// The watermark of the service, in the agent's time, at the time `now`. A live tap that
    /// is not open yet or that is silent for long does not delay others.
    pub fn reached(&self, now: Nanos) -> Nanos {
        let reached = match &self.next {
            Some((_, handover)) => handover.over().or(self.tap.reached),
            None => self.tap.reached,
        };
        match (self.tap.live, reached) {
            _ if self.tap.ended => now,
            (true, None) => now,
            (true, Some(reached)) => reached.max(now - IDLE_NS).min(now),
            // The rows of a recording will arrive; they are not late.
            (false, reached) => reached.unwrap_or(self.tap.started_at).min(now),
        }
    }

    /// The conversions of the demands that it serves.
    pub fn conversions(&mut self) -> &mut [RowConversion] {
        &mut self.tap.conversions
    }

    /// The engine's names of the sources that it serves.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.tap.sources.iter().map(String::as_str)
    }

    /// The interval of the groups that it delivers, if it delivers groups.
    pub fn interval(&self) -> Option<Nanos> {
        self.tap.interval()
    }

    /// True if it replays a recording.
    pub fn is_recorded(&self) -> bool {
        !self.tap.live
    }

    /// Receives messages of the taps. False if there was none.
    pub fn listen(&mut self, now: Nanos, emit: &mut impl FnMut(&mut OpenTap, TapMessage)) -> bool {
        let mut received = false;
        for _ in 0..TURN {
            let Some(word) = self.tap.next() else { break };
            received = true;
            let unopened = self.tap.reached.is_none();
            self.take(word, now, emit);
            if unopened && self.tap.reached.is_some() {
                let at = self.dropped_until;
                emit(&mut self.tap, TapMessage::Opened { at });
                break;
            }
        }
        for _ in 0..TURN {
            let Some((next, _)) = &mut self.next else {
                break;
            };
            let Some(word) = next.next() else { break };
            received = true;
            self.take_next(word, emit);
        }
        if let Some(cut) = self.next.as_mut().and_then(|(_, handover)| handover.cut()) {
            self.switch(cut, emit);
        }
        received
    }

    fn take(&mut self, word: Message, now: Nanos, emit: &mut impl FnMut(&mut OpenTap, TapMessage)) {
        let handover = self.next.as_mut().map(|(_, handover)| handover);
        match word {
            // Rows of a stream; the content of a relation may be needed later.
            Message::Rows { batch, .. }
                if self.tap.reached.is_none() && batch.weights.is_none() =>
            {
                let last = batch.ts.last().copied();
                self.dropped_until = self.dropped_until.max(last.unwrap_or(Nanos::MIN));
            }
            Message::Rows { demand, batch } => {
                let batch = match handover {
                    Some(handover) => handover.rows(Side::Old, demand, batch),
                    None => Some(batch),
                };
                if let Some(batch) = batch.and_then(|batch| self.received(batch)) {
                    emit(&mut self.tap, TapMessage::Rows { demand, batch });
                }
            }
            Message::Folded { demand, folded } => {
                self.folded += i64::try_from(folded.requests()).unwrap_or(i64::MAX);
                emit(&mut self.tap, TapMessage::Folded { demand, folded });
            }
            Message::Reached(at) => {
                if self.tap.reached.is_none() {
                    self.dropped_until = self.dropped_until.max(at);
                }
                self.tap.reached = self.tap.reached.max(Some(at));
                if let Some(handover) = handover {
                    handover.reached(Side::Old, at);
                }
            }
            Message::Counted(account) => {
                if let Some(handover) = handover {
                    handover.in_flight(account.in_flight_since, now);
                }
                self.tap.account = account;
            }
            Message::Failed(error) => self.end(Some(error.to_string()), emit),
            Message::End => {
                let why = self.tap.failure().map(str::to_owned);
                self.end(why, emit);
            }
        }
    }

    /// Of the rows that arrived after the tap was known to be open, those later than all dropped
    /// events: a tap of several disks delivers them one disk after the other.
    fn received(&self, batch: Batch) -> Option<Batch> {
        if batch.weights.is_some() {
            return Some(batch);
        }
        match batch.ts.partition_point(|ts| *ts <= self.dropped_until) {
            0 => Some(batch),
            all if all == batch.len() => None,
            first => Some(batch.slice(first, batch.len() - first)),
        }
    }

    fn end(&mut self, why: Option<String>, emit: &mut impl FnMut(&mut OpenTap, TapMessage)) {
        self.tap.ended = true;
        self.next = None;
        emit(&mut self.tap, TapMessage::Over(why));
    }

    fn take_next(&mut self, word: Message, emit: &mut impl FnMut(&mut OpenTap, TapMessage)) {
        let Some((next, handover)) = &mut self.next else {
            return;
        };
        let why = match word {
            Message::Rows { demand, batch } => {
                handover.rows(Side::New, demand, batch);
                return;
            }
            Message::Folded { .. } => unreachable!("only a tap of rows is exchanged"),
            Message::Reached(at) => {
                next.reached = next.reached.max(Some(at));
                return handover.reached(Side::New, at);
            }
            Message::Counted(account) => return next.account = account,
            Message::Failed(error) => error.to_string(),
            Message::End => next.failure().unwrap_or("it has ended").to_owned(),
        };
        self.next = None;
        self.changed = Instant::now();
        emit(&mut self.tap, TapMessage::NotOpened(why));
    }

    fn switch(&mut self, cut: Cut, emit: &mut impl FnMut(&mut OpenTap, TapMessage)) {
        for (demand, batch) in cut.old {
            emit(&mut self.tap, TapMessage::Rows { demand, batch });
        }
        let Some((next, _)) = self.next.take() else {
            return;
        };
        let old = std::mem::replace(&mut self.tap, next);
        for conversion in &mut self.tap.conversions {
            for before in &old.conversions {
                conversion.follow(before);
            }
        }
        add(&mut self.counted, &old.account.counts);
        drop(old);
        self.tap.reached = Some(cut.reached);
        self.changed = Instant::now();
        let counted = [true, cut.narrow, cut.impatient];
        for (count, happened) in self.handovers.iter_mut().zip(counted) {
            *count += i64::from(happened);
        }
        emit(&mut self.tap, TapMessage::Switched { at: cut.at });
        for (demand, batch) in cut.new {
            emit(&mut self.tap, TapMessage::Rows { demand, batch });
        }
    }
}

/// Adds counts to the counts of the same names.
fn add(sums: &mut Vec<EventCount>, counts: &[EventCount]) {
    for count in counts {
        let same = |c: &&mut EventCount| {
            (c.counter, c.cause, c.device) == (count.counter, count.cause, count.device)
        };
        match sums.iter_mut().find(same) {
            Some(sum) => sum.total += count.total,
            None => sums.push(*count),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;
    use weir_model::{Column, PartialState};
    use weir_runtime::run_loop::TapCounts;

    fn rows(ts: &[Nanos]) -> Message {
        let batch = Batch::stream(ts.to_vec(), vec![Column::ints(ts.to_vec())]);
        Message::Rows { demand: 0, batch }
    }

    #[test]
    fn all_events_after_the_opening_are_delivered_and_none_before() {
        let (words, arrivals) = sync_channel(8);
        let mut service = Service::of(OpenTap::message_rows(arrivals));
        let messages = [
            // Up to 50 of one disk, up to only 40 of another.
            rows(&[20, 50]),
            Message::Reached(30),
            rows(&[40]),
            rows(&[45, 50, 51, 60]),
            rows(&[70]),
        ];
        messages
            .into_iter()
            .for_each(|word| words.send(word).unwrap());
        let (mut opened, mut emitted) = (Vec::new(), Vec::new());
        while service.listen(100, &mut |_, what| match what {
            TapMessage::Opened { at } => opened.push((at, emitted.len())),
            TapMessage::Rows { batch, .. } => emitted.extend_from_slice(&batch.ts),
            _ => panic!("no other message is expected"),
        }) {}
        assert_eq!(opened, [(50, 0)]);
        assert_eq!(emitted, [51, 60, 70]);
    }

    #[test]
    fn what_a_tap_loses_and_what_it_holds_is_known_by_its_counts() {
        let (words, arrivals) = sync_channel(8);
        let mut service = Service::of(OpenTap::message_rows(arrivals));
        let count = EventCount::of;
        let counts = vec![
            count("events_in", None, 1_000),
            count("unseen", None, 3),
            count("events_lost", Some("ring_full"), 5),
            count("events_lost", Some("ring_full"), 2),
            count("events_lost", Some("slow_consumer"), 0),
            count(FOLDED, None, 10),
        ];
        let account = TapCounts {
            counts,
            ..TapCounts::default()
        };
        let folded = Folded {
            end: 10,
            keys: Vec::new(),
            kept: vec![vec![PartialState::Moments {
                count: 4,
                sum: 0,
                min: 0,
                max: 0,
            }]],
        };
        let messages = [
            Message::Reached(5),
            Message::Counted(account),
            Message::Folded { demand: 0, folded },
        ];
        messages
            .into_iter()
            .for_each(|word| words.send(word).unwrap());
        while service.listen(100, &mut |_, _| {}) {}
        assert_eq!(service.missed(), [("unseen", 3), ("ring_full", 7)]);
        assert_eq!(service.folding(), 6);
    }
}
