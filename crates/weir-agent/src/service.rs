//! [`Service`]: what serves the fragments of an agent that read the same streams: one tap, and
//! beside it for a while the one that takes over.

use std::time::{Duration, Instant};

use weir_model::{Batch, Demand, Folded, Nanos};
use weir_tap::{Count, FOLDED};

use super::demands::covers;
use super::handover::{Cut, Handover, Side};
use super::outlet::Outlet;
use super::tap::{Ground, OpenTap};
use weir_runtime::run_loop::{MISSED, Message};

/// Words heard from one tap before the others have their turn.
const TURN: usize = 16;

/// A tap that tells more than is asked for is exchanged when nothing has changed for so long.
const REST: Duration = Duration::from_secs(2);

/// A live tap that is silent for so long holds nobody up; what it then tells of this time is late.
const IDLE_NS: Nanos = 1_000_000_000;

/// Numbers of requests that one tap may use after the next one is opened.
const NUMBERS_APART: i64 = 1 << 24;

/// A tap, and what is to take its place.
pub struct Service {
    tap: OpenTap,
    /// Before it was known to be there it told events up to here, of which nobody heard.
    unheard: Nanos,
    next: Option<(OpenTap, Handover)>,
    changed: Instant,
    /// What earlier taps counted.
    counted: Vec<Count>,
    /// Requests in the groups that came.
    folded: i64,
    /// Handovers made, and of them those with too short a pause, and those that did not wait for
    /// all requests in flight.
    pub handovers: [i64; 3],
}

/// What a service has to say.
pub enum Told {
    /// Rows of demand number `demand` of the tap that serves.
    Rows { demand: usize, batch: Batch },
    /// Groups of it.
    Folded { demand: usize, folded: Folded },
    /// The tap that serves is there now. What is after `at`, in the agent's own time, will be told.
    Opened { at: Nanos },
    /// The tap that serves is another now. Up to `at`, in the agent's own time, all has been told.
    Switched { at: Nanos },
    /// The tap that was to take over could not be opened; the old one goes on.
    NotOpened(String),
    /// It could not be opened, or says no more; why, unless a recording has come to its end.
    Over(Option<String>),
}

impl Service {
    /// Begins with a tap for these demands. That of groups, which is alone, comes from the source
    /// `name`.
    pub fn begin(ground: &Ground, name: &str, demands: Vec<Demand>) -> Service {
        let source = |demand: &Demand| match demand.fold {
            Some(_) => name.to_owned(),
            None => demand.stream.clone(),
        };
        let sources = demands.iter().map(source).collect();
        Service::of(OpenTap::open(ground, demands, sources))
    }

    /// With a tap that has told nothing yet.
    fn of(tap: OpenTap) -> Service {
        Service {
            tap,
            unheard: Nanos::MIN,
            next: None,
            changed: Instant::now(),
            counted: Vec::new(),
            folded: 0,
            handovers: [0; 3],
        }
    }

    /// Sees to it that what is wanted will be served.
    pub fn serve(&mut self, ground: &Ground, wanted: &[Demand]) {
        if self.next.is_some() || self.tap.ended {
            return;
        }
        let served = covers(&self.tap.demands, wanted);
        let dear = !covers(wanted, &self.tap.demands) && self.changed.elapsed() > REST;
        if self.tap.reached.is_some() && (!served || dear) {
            let sources = wanted.iter().map(|d| d.stream.clone()).collect();
            let mut next = OpenTap::open(ground, wanted.to_vec(), sources);
            for outlet in &mut next.outlets {
                let last = self.tap.outlets.iter().map(|o| o.last_number()).max();
                outlet.first_number = last.unwrap_or(0) + NUMBERS_APART;
            }
            self.next = Some((next, Handover::default()));
        }
    }

    /// True if a fragment with these demands can start.
    pub fn gives(&self, demands: &[Demand]) -> bool {
        self.tap.gives(demands)
    }

    /// What the taps have counted, those that are open no more included.
    pub fn counts(&self) -> Vec<Count> {
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

    /// Requests that were added up and of which no group has come yet, as far as the tap has counted
    /// them.
    pub fn folding(&self) -> u64 {
        let counts = self.tap.account.counts.iter();
        let folded = counts
            .filter(|c| c.counter == FOLDED)
            .map(|c| c.total)
            .sum::<i64>();
        u64::try_from(folded - self.folded).unwrap_or(0)
    }

    /// What is wanted has just changed.
    pub fn touch(&mut self) {
        self.changed = Instant::now();
    }

    /// Up to when everything has been told, by the agent's steady time, where it is `now`. A live
    /// tap that is not there yet, or silent for long, holds nobody up.
    pub fn reached(&self, now: Nanos) -> Nanos {
        let told = match &self.next {
            Some((_, handover)) => handover.over().or(self.tap.reached),
            None => self.tap.reached,
        };
        match (self.tap.live, told) {
            _ if self.tap.ended => now,
            (true, None) => now,
            (true, Some(told)) => told.max(now - IDLE_NS).min(now),
            // What is recorded comes, and waits for nobody.
            (false, told) => told.unwrap_or(self.tap.begun).min(now),
        }
    }

    /// The demands that it serves, and where their rows leave.
    pub fn outlets(&mut self) -> &mut [Outlet] {
        &mut self.tap.outlets
    }

    /// What the engine calls the sources that it serves.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.tap.sources.iter().map(String::as_str)
    }

    /// How long the intervals are of which it tells groups, if it does.
    pub fn interval(&self) -> Option<Nanos> {
        self.tap.interval()
    }

    /// True if it replays a recording.
    pub fn is_recorded(&self) -> bool {
        !self.tap.live
    }

    /// Hears what the taps say. False if that was nothing.
    pub fn listen(&mut self, now: Nanos, tell: &mut impl FnMut(&mut OpenTap, Told)) -> bool {
        let mut heard = false;
        for _ in 0..TURN {
            let Some(word) = self.tap.next() else { break };
            heard = true;
            let unopened = self.tap.reached.is_none();
            self.take(word, now, tell);
            if unopened && self.tap.reached.is_some() {
                let at = self.unheard;
                tell(&mut self.tap, Told::Opened { at });
                break;
            }
        }
        for _ in 0..TURN {
            let Some((next, _)) = &mut self.next else {
                break;
            };
            let Some(word) = next.next() else { break };
            heard = true;
            self.take_next(word, tell);
        }
        if let Some(cut) = self.next.as_mut().and_then(|(_, handover)| handover.cut()) {
            self.switch(cut, tell);
        }
        heard
    }

    fn take(&mut self, word: Message, now: Nanos, tell: &mut impl FnMut(&mut OpenTap, Told)) {
        let handover = self.next.as_mut().map(|(_, handover)| handover);
        match word {
            // Of a stream; what a relation holds may be asked for later.
            Message::Rows { batch, .. }
                if self.tap.reached.is_none() && batch.weights.is_none() =>
            {
                let last = batch.ts.last().copied();
                self.unheard = self.unheard.max(last.unwrap_or(Nanos::MIN));
            }
            Message::Rows { demand, batch } => {
                let batch = match handover {
                    Some(handover) => handover.rows(Side::Old, demand, batch),
                    None => Some(batch),
                };
                if let Some(batch) = batch.and_then(|batch| self.heard(batch)) {
                    tell(&mut self.tap, Told::Rows { demand, batch });
                }
            }
            Message::Folded { demand, folded } => {
                self.folded += i64::try_from(folded.requests()).unwrap_or(i64::MAX);
                tell(&mut self.tap, Told::Folded { demand, folded });
            }
            Message::Reached(at) => {
                if self.tap.reached.is_none() {
                    self.unheard = self.unheard.max(at);
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
            Message::Failed(error) => self.end(Some(error.to_string()), tell),
            Message::End => {
                let why = self.tap.failure().map(str::to_owned);
                self.end(why, tell);
            }
        }
    }

    /// Of what the tap told after it was known to be there, what happened later than anything of
    /// which nobody heard: a tap of several disks tells of one after the other.
    fn heard(&self, batch: Batch) -> Option<Batch> {
        if batch.weights.is_some() {
            return Some(batch);
        }
        match batch.ts.partition_point(|ts| *ts <= self.unheard) {
            0 => Some(batch),
            all if all == batch.len() => None,
            first => Some(batch.slice(first, batch.len() - first)),
        }
    }

    fn end(&mut self, why: Option<String>, tell: &mut impl FnMut(&mut OpenTap, Told)) {
        self.tap.ended = true;
        self.next = None;
        tell(&mut self.tap, Told::Over(why));
    }

    fn take_next(&mut self, word: Message, tell: &mut impl FnMut(&mut OpenTap, Told)) {
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
        tell(&mut self.tap, Told::NotOpened(why));
    }

    fn switch(&mut self, cut: Cut, tell: &mut impl FnMut(&mut OpenTap, Told)) {
        for (demand, batch) in cut.old {
            tell(&mut self.tap, Told::Rows { demand, batch });
        }
        let Some((next, _)) = self.next.take() else {
            return;
        };
        let old = std::mem::replace(&mut self.tap, next);
        for outlet in &mut self.tap.outlets {
            for before in &old.outlets {
                outlet.follow(before);
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
        tell(&mut self.tap, Told::Switched { at: cut.at });
        for (demand, batch) in cut.new {
            tell(&mut self.tap, Told::Rows { demand, batch });
        }
    }
}

/// Adds counts to counts of the same things.
fn add(sums: &mut Vec<Count>, counts: &[Count]) {
    for count in counts {
        let same = |c: &&mut Count| {
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
    use weir_model::{Column, Kept};
    use weir_runtime::run_loop::Account;

    fn rows(ts: &[Nanos]) -> Message {
        let batch = Batch::stream(ts.to_vec(), vec![Column::ints(ts.to_vec())]);
        Message::Rows { demand: 0, batch }
    }

    #[test]
    fn what_comes_after_the_opening_is_told_whole_and_nothing_before_it() {
        let (words, arrivals) = sync_channel(8);
        let mut service = Service::of(OpenTap::saying(arrivals));
        let said = [
            // Of one disk up to 50, of another one only up to 40.
            rows(&[20, 50]),
            Message::Reached(30),
            rows(&[40]),
            rows(&[45, 50, 51, 60]),
            rows(&[70]),
        ];
        said.into_iter().for_each(|word| words.send(word).unwrap());
        let (mut opened, mut told) = (Vec::new(), Vec::new());
        while service.listen(100, &mut |_, what| match what {
            Told::Opened { at } => opened.push((at, told.len())),
            Told::Rows { batch, .. } => told.extend_from_slice(&batch.ts),
            _ => panic!("nothing else is told"),
        }) {}
        assert_eq!(opened, [(50, 0)]);
        assert_eq!(told, [51, 60, 70]);
    }

    #[test]
    fn what_a_tap_loses_and_what_it_holds_is_known_by_its_counts() {
        let (words, arrivals) = sync_channel(8);
        let mut service = Service::of(OpenTap::saying(arrivals));
        let count = |counter, cause, total| Count {
            counter,
            cause,
            device: None,
            total,
        };
        let counts = vec![
            count("events_in", None, 1_000),
            count("unseen", None, 3),
            count("events_lost", Some("ring_full"), 5),
            count("events_lost", Some("ring_full"), 2),
            count("events_lost", Some("slow_consumer"), 0),
            count(FOLDED, None, 10),
        ];
        let account = Account {
            counts,
            ..Account::default()
        };
        let folded = Folded {
            end: 10,
            keys: Vec::new(),
            kept: vec![vec![Kept::Moments {
                count: 4,
                sum: 0,
                min: 0,
                max: 0,
            }]],
        };
        let said = [
            Message::Reached(5),
            Message::Counted(account),
            Message::Folded { demand: 0, folded },
        ];
        said.into_iter().for_each(|word| words.send(word).unwrap());
        while service.listen(100, &mut |_, _| {}) {}
        assert_eq!(service.missed(), [("unseen", 3), ("ring_full", 7)]);
        assert_eq!(service.folding(), 6);
    }
}
