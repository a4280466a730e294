//! [`PacedReplay`]: a replay of a recording as if its events occurred now.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use weir_model::{Batch, Catalog, Column, Demand, Nanos, Type};
use weir_tap::{Tap, TapError, TapEvent, Timing};

use super::clock::AgentClock;

/// Rows of this interval are delivered together.
const STEP: Duration = Duration::from_millis(10);

/// The mapping of recorded times to the present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReplayClock {
    /// The first event occurs when it is read, the others at this multiple of the recorded speed.
    Pace(f64),
    /// All events are shifted by this interval. Agents that replay parts of one recording then
    /// agree in time.
    Shift(Nanos),
}

/// Moves the events of a tap to the present and delivers them at their new times.
pub struct PacedReplay {
    replay: ReplayClock,
    clock: AgentClock,
    /// The columns of each demand that contain instants.
    instants: Vec<Vec<usize>>,
    /// The first heartbeat has been sent.
    started_at: bool,
    /// The time of the last heartbeat.
    beat: Nanos,
    /// The first instant of the recording, and the time at which it was replayed.
    origin: Option<(Nanos, Nanos)>,
    /// The rows up to the next heartbeat of the recording, those of each demand in timestamp order.
    rows: VecDeque<(usize, Batch)>,
    /// The message after these rows.
    then: Option<TapEvent>,
}

impl PacedReplay {
    /// Replays the events of a tap that was opened for `demands` on streams of `catalog`, by
    /// `clock`.
    pub fn new(
        demands: &[Demand],
        catalog: &Catalog,
        replay: ReplayClock,
        clock: AgentClock,
    ) -> PacedReplay {
        PacedReplay {
            replay,
            clock,
            instants: demands.iter().map(|d| instants(d, catalog)).collect(),
            started_at: false,
            beat: Nanos::MIN,
            origin: None,
            rows: VecDeque::new(),
            then: None,
        }
    }

    /// The replay time of a recorded instant.
    fn moved(&self, at: Nanos) -> Nanos {
        let Some((first, began)) = self.origin else {
            return at;
        };
        let since = at.saturating_sub(first);
        let since = match self.replay {
            ReplayClock::Shift(_) | ReplayClock::Pace(1.0) => since,
            ReplayClock::Pace(pace) => (since as f64 / pace) as Nanos,
        };
        began.saturating_add(since)
    }

    /// The replayed watermark for the recorded watermark `at`. The next recorded instant may be
    /// replayed at the same instant.
    fn reported_up_to(&self, at: Nanos) -> Nanos {
        match at {
            Nanos::MAX => Nanos::MAX,
            at => self.moved(at + 1).saturating_sub(1),
        }
    }

    /// Reads up to the next heartbeat.
    fn read(&mut self, tap: &mut dyn Tap, timeout: Duration) -> Result<(), TapError> {
        while self.then.is_none() {
            match tap.next(timeout)? {
                TapEvent::Rows { demand, batch } => self.rows.push_back((demand, batch)),
                event => self.then = Some(event),
            }
        }
        if self.origin.is_none() {
            let firsts = self.rows.iter().filter_map(|(_, batch)| batch.ts.first());
            self.origin = firsts.min().map(|first| match self.replay {
                ReplayClock::Pace(_) => (*first, self.clock.now()),
                ReplayClock::Shift(by) => (*first, first.saturating_add(by)),
            });
        }
        Ok(())
    }

    /// The message that is due at `now`, if any.
    fn due(&mut self, now: Nanos) -> Option<TapEvent> {
        for at in 0..self.rows.len() {
            let (demand, batch) = &self.rows[at];
            let (demand, due) = (
                *demand,
                batch.ts.partition_point(|ts| self.moved(*ts) <= now),
            );
            if due == 0 {
                continue;
            }
            let shifted = self.shifted(demand, &batch.slice(0, due));
            let rest = batch.slice(due, batch.len() - due);
            match rest.is_empty() {
                true => drop(self.rows.remove(at)),
                false => self.rows[at].1 = rest,
            }
            let batch = shifted;
            return Some(TapEvent::Rows { demand, batch });
        }
        match self.then {
            _ if !self.rows.is_empty() => None,
            Some(TapEvent::Heartbeat(at)) if self.reported_up_to(at) > now => None,
            Some(TapEvent::Heartbeat(at)) => {
                self.then = None;
                Some(TapEvent::Heartbeat(self.reported_up_to(at)))
            }
            _ => self.then.take(),
        }
    }

    /// Rows at their new times, with all instants in them moved: `ts`, and the time of issue.
    fn shifted(&self, demand: usize, batch: &Batch) -> Batch {
        let mut columns = batch.columns.clone();
        for &at in &self.instants[demand] {
            if let Column::Int(values) = &columns[at] {
                columns[at] = Column::Int(values.unary(|at| self.moved(at)));
            }
        }
        Batch {
            columns,
            weights: batch.weights.clone(),
            ts: batch.ts.iter().map(|ts| self.moved(*ts)).collect(),
        }
    }
}

/// The columns of a demand's stream that contain instants.
fn instants(demand: &Demand, catalog: &Catalog) -> Vec<usize> {
    let declaration = catalog.find(&demand.stream);
    let schema = &declaration
        .expect("fragments name streams of the catalog")
        .schema;
    let wanted = demand.columns.iter().copied();
    wanted.filter(|at| schema[*at].ty == Type::Time).collect()
}

impl Timing for PacedReplay {
    fn next(&mut self, tap: &mut dyn Tap, timeout: Duration) -> Result<TapEvent, TapError> {
        let until = Instant::now() + timeout;
        loop {
            self.read(tap, timeout)?;
            let now = self.clock.now();
            // A consumer that waits for the recording starts now, before the first event.
            if !std::mem::replace(&mut self.started_at, true)
                && let Some((_, began)) = self.origin
            {
                return Ok(TapEvent::Heartbeat(now.min(began.saturating_sub(1))));
            }
            if let Some(event) = self.due(now) {
                return Ok(event);
            }
            // The remaining rows are later than now.
            let rested = now.saturating_sub(self.beat) >= STEP.as_nanos() as Nanos;
            if rested || Instant::now() >= until {
                self.beat = now;
                return Ok(TapEvent::Heartbeat(now));
            }
            thread::sleep(STEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_model::{Predicate, Value};
    use weir_tap::{EventCount, Retimed};

    use super::*;

    /// Two streams of the same events, delivered one after the other.
    struct QueuedEvents(VecDeque<TapEvent>);

    impl Tap for QueuedEvents {
        fn next(&mut self, _: Duration) -> Result<TapEvent, TapError> {
            Ok(self.0.pop_front().unwrap_or(TapEvent::End))
        }

        fn counts(&mut self) -> Vec<EventCount> {
            Vec::new()
        }

        fn describe(&self) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn a_recording_happens_again_in_order_and_whole() {
        let io = weir_model::event::io_schema();
        let demand = Demand {
            stream: "IO".into(),
            columns: vec![io.index("ts"), io.index("issue_ts")],
            predicate: Predicate::all(),
            fold: None,
        };
        let rows = |demand, ts: &[i64]| {
            let ts: Vec<i64> = ts.iter().map(|ms| 5_000_000 + ms * 1_000_000).collect();
            // Issued 2 ms before; one issue time is unknown.
            let issued = ts.iter().enumerate();
            let issued = issued.map(|(i, ts)| match i {
                1 => Value::Null,
                _ => Value::Int(ts - 2_000_000),
            });
            let issued = Column::from_values(Type::Time, issued);
            let mut columns = vec![Column::Nulls(ts.len()); io.len()];
            columns[io.index("ts")] = Column::ints(ts.clone());
            columns[io.index("issue_ts")] = issued;
            let batch = Batch::stream(ts, columns);
            TapEvent::Rows { demand, batch }
        };
        let events = [
            rows(0, &[0, 10, 40]),
            rows(1, &[5, 40]),
            TapEvent::Heartbeat(5_000_000 + 39_999_999),
            rows(0, &[40, 90]),
            rows(1, &[91]),
            TapEvent::Heartbeat(5_000_000 + 90_999_999),
        ];
        let clock = AgentClock::start();
        let began = clock.now();
        let timing = PacedReplay::new(
            &[demand.clone(), demand],
            &Catalog::builtin(),
            ReplayClock::Pace(2.0),
            clock,
        );
        let mut tap = Retimed::new(Box::new(QueuedEvents(events.into())), timing);
        let (mut over, mut emitted) = (i64::MIN, [Vec::new(), Vec::new()]);
        let mut issued = Vec::new();
        loop {
            match tap.next(Duration::from_millis(15)).unwrap() {
                TapEvent::Rows { demand, batch } => {
                    let now = clock.now();
                    assert!(batch.ts.iter().all(|ts| *ts > over && *ts <= now));
                    assert!(over >= began - 1, "a heartbeat comes first");
                    for (row, ts) in batch.ts.iter().enumerate() {
                        assert_eq!(batch.columns[io.index("ts")].value(row), Value::Int(*ts));
                        issued.push(match batch.columns[io.index("issue_ts")].value(row) {
                            Value::Int(at) => Some(ts - at),
                            _ => None,
                        });
                    }
                    emitted[demand].extend(batch.ts.iter().copied());
                }
                TapEvent::Heartbeat(at) => over = over.max(at),
                TapEvent::End => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(issued.iter().filter(|before| before.is_none()).count(), 3);
        assert!(
            issued.iter().flatten().all(|before| *before == 1_000_000),
            "{issued:?}"
        );
        let origin = emitted[0][0];
        assert!(origin >= began);
        let since = |instants: &[i64]| {
            instants
                .iter()
                .map(|ts| (ts - origin) / 100_000)
                .collect::<Vec<_>>()
        };
        assert_eq!(since(&emitted[0]), [0, 50, 200, 200, 450]);
        assert_eq!(since(&emitted[1]), [25, 200, 455]);
    }
}
