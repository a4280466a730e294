//! [`Paced`]: a recording as if it happened now.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use arrow_array::{Array, Int64Array};
use weir_model::{Batch, Column, Nanos};
use weir_tap::{Count, Said, Tap, TapError};

use super::clock::AgentClock;

/// Rows of so much time are told at once.
const STEP: Duration = Duration::from_millis(10);

/// When recorded events happen again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Replay {
    /// The first one when it is read, the others so many times as fast as they did.
    Pace(f64),
    /// All of them so much later. Agents that replay parts of one recording agree in time then.
    Shift(Nanos),
}

/// A tap whose events are moved to the present, and told when their time has come.
pub struct Paced {
    tap: Box<dyn Tap>,
    replay: Replay,
    clock: AgentClock,
    /// The first heartbeat has been said.
    begun: bool,
    /// When the last one was said.
    beat: Nanos,
    /// The first instant of the recording, and when it happened anew.
    origin: Option<(Nanos, Nanos)>,
    /// What the recording tells up to its next heartbeat, of each demand in order of time.
    rows: VecDeque<(usize, Batch)>,
    /// And what follows then.
    then: Option<Said>,
}

impl Paced {
    /// The events of `tap` again, by the steady time of `clock`.
    pub fn new(tap: Box<dyn Tap>, replay: Replay, clock: AgentClock) -> Paced {
        Paced {
            tap,
            replay,
            clock,
            begun: false,
            beat: Nanos::MIN,
            origin: None,
            rows: VecDeque::new(),
            then: None,
        }
    }

    /// When a recorded instant happens anew.
    fn moved(&self, at: Nanos) -> Nanos {
        let Some((first, began)) = self.origin else {
            return at;
        };
        let since = at.saturating_sub(first);
        let since = match self.replay {
            Replay::Shift(_) | Replay::Pace(1.0) => since,
            Replay::Pace(pace) => (since as f64 / pace) as Nanos,
        };
        began.saturating_add(since)
    }

    /// Up to when all has been told once that is so of the recorded instant `at`. The next recorded
    /// one may happen anew in the same instant.
    fn told_up_to(&self, at: Nanos) -> Nanos {
        match at {
            Nanos::MAX => Nanos::MAX,
            at => self.moved(at + 1).saturating_sub(1),
        }
    }

    /// Reads on to the next heartbeat.
    fn read(&mut self, patience: Duration) -> Result<(), TapError> {
        while self.then.is_none() {
            match self.tap.next(patience)? {
                Said::Rows { demand, batch } => self.rows.push_back((demand, batch)),
                said => self.then = Some(said),
            }
        }
        if self.origin.is_none() {
            let firsts = self.rows.iter().filter_map(|(_, batch)| batch.ts.first());
            self.origin = firsts.min().map(|first| match self.replay {
                Replay::Pace(_) => (*first, self.clock.steady()),
                Replay::Shift(by) => (*first, first.saturating_add(by)),
            });
        }
        Ok(())
    }

    /// What is to be told by `now`.
    fn due(&mut self, now: Nanos) -> Option<Said> {
        for at in 0..self.rows.len() {
            let (demand, batch) = &self.rows[at];
            let (demand, due) = (
                *demand,
                batch.ts.partition_point(|ts| self.moved(*ts) <= now),
            );
            if due == 0 {
                continue;
            }
            let told = self.shifted(&batch.slice(0, due));
            let rest = batch.slice(due, batch.len() - due);
            match rest.is_empty() {
                true => drop(self.rows.remove(at)),
                false => self.rows[at].1 = rest,
            }
            let batch = told;
            return Some(Said::Rows { demand, batch });
        }
        match self.then {
            _ if !self.rows.is_empty() => None,
            Some(Said::Heartbeat(at)) if self.told_up_to(at) > now => None,
            Some(Said::Heartbeat(at)) => {
                self.then = None;
                Some(Said::Heartbeat(self.told_up_to(at)))
            }
            _ => self.then.take(),
        }
    }

    /// Rows at their new times. The column `ts` holds the rows' times.
    fn shifted(&self, batch: &Batch) -> Batch {
        let ts: Vec<i64> = batch.ts.iter().map(|ts| self.moved(*ts)).collect();
        let is_time =
            |values: &Int64Array| values.null_count() == 0 && values.values() == &batch.ts;
        let column = |column: &Column| match column {
            Column::Int(values) if is_time(values) => Column::ints(ts.clone()),
            other => other.clone(),
        };
        Batch {
            columns: batch.columns.iter().map(column).collect(),
            weights: batch.weights.clone(),
            ts: ts.into(),
        }
    }
}

impl Tap for Paced {
    fn next(&mut self, patience: Duration) -> Result<Said, TapError> {
        let until = Instant::now() + patience;
        loop {
            self.read(patience)?;
            let now = self.clock.steady();
            // Whoever waits for the recording begins now, before its first event.
            if !std::mem::replace(&mut self.begun, true)
                && let Some((_, began)) = self.origin
            {
                return Ok(Said::Heartbeat(now.min(began.saturating_sub(1))));
            }
            if let Some(said) = self.due(now) {
                return Ok(said);
            }
            // What is left is later than now.
            let rested = now.saturating_sub(self.beat) >= STEP.as_nanos() as Nanos;
            if rested || Instant::now() >= until {
                self.beat = now;
                return Ok(Said::Heartbeat(now));
            }
            thread::sleep(STEP);
        }
    }

    fn counts(&mut self) -> Vec<Count> {
        self.tap.counts()
    }

    fn progress(&self) -> Option<f64> {
        self.tap.progress()
    }

    fn describe(&self) -> Vec<String> {
        self.tap.describe()
    }

    fn messages(&self) -> Vec<String> {
        self.tap.messages()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::clock::Drill;

    /// Two streams of the same events, told one after the other.
    struct Told(VecDeque<Said>);

    impl Tap for Told {
        fn next(&mut self, _: Duration) -> Result<Said, TapError> {
            Ok(self.0.pop_front().unwrap_or(Said::End))
        }

        fn counts(&mut self) -> Vec<Count> {
            Vec::new()
        }

        fn describe(&self) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn a_recording_happens_again_in_order_and_whole() {
        let rows = |demand, ts: &[i64]| {
            let ts: Vec<i64> = ts.iter().map(|ms| 5_000_000 + ms * 1_000_000).collect();
            let batch = Batch::stream(ts.clone(), vec![Column::ints(ts)]);
            Said::Rows { demand, batch }
        };
        let said = [
            rows(0, &[0, 10, 40]),
            rows(1, &[5, 40]),
            Said::Heartbeat(5_000_000 + 39_999_999),
            rows(0, &[40, 90]),
            rows(1, &[91]),
            Said::Heartbeat(5_000_000 + 90_999_999),
        ];
        let clock = AgentClock::start(Drill::default());
        let began = clock.steady();
        let mut tap = Paced::new(Box::new(Told(said.into())), Replay::Pace(2.0), clock);
        let (mut over, mut told) = (i64::MIN, [Vec::new(), Vec::new()]);
        loop {
            match tap.next(Duration::from_millis(15)).unwrap() {
                Said::Rows { demand, batch } => {
                    let now = clock.steady();
                    assert!(batch.ts.iter().all(|ts| *ts > over && *ts <= now));
                    assert!(over >= began - 1, "a heartbeat comes first");
                    let Column::Int(column) = &batch.columns[0] else {
                        panic!("times stay numbers");
                    };
                    assert_eq!(column.values(), &batch.ts);
                    told[demand].extend(batch.ts.iter().copied());
                }
                Said::Heartbeat(at) => over = over.max(at),
                Said::End => break,
                other => panic!("{other:?}"),
            }
        }
        let origin = told[0][0];
        assert!(origin >= began);
        let since = |told: &[i64]| {
            told.iter()
                .map(|ts| (ts - origin) / 100_000)
                .collect::<Vec<_>>()
        };
        assert_eq!(since(&told[0]), [0, 50, 200, 200, 450]);
        assert_eq!(since(&told[1]), [25, 200, 455]);
    }
}
