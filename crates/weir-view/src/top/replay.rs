//! [`TopReplay`]: the timing of a recording at the speed at which it was made, or as fast as it can
//! be read; its last interval is completed.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use weir_model::{Batch, Nanos};
use weir_tap::{Tap, TapError, TapEvent, Timing};

/// How long the end waits until the last interval is displayed.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// A recording that is replayed.
pub struct TopReplay {
    /// The speed factor; without, unlimited.
    speed: Option<f64>,
    interval_ns: Nanos,
    /// The instant of the last complete tick, updated by the display.
    shown: Arc<AtomicI64>,
    /// Rows that are not due yet.
    waiting: Option<(usize, Batch)>,
    /// The start, here and in the recording.
    began: Option<(Instant, Nanos)>,
    /// The last row's instant.
    last: Option<Nanos>,
    /// The time at which the end was reported.
    ended: Option<Instant>,
}

impl TopReplay {
    /// A replay for tables of `interval_ns`.
    pub fn new(speed: Option<f64>, interval_ns: Nanos, shown: Arc<AtomicI64>) -> TopReplay {
        TopReplay {
            speed,
            interval_ns,
            shown,
            waiting: None,
            began: None,
            last: None,
            ended: None,
        }
    }

    /// The current instant of the recording.
    fn now(&self) -> Nanos {
        match (self.speed, self.began) {
            (Some(speed), Some((at, first))) => {
                let elapsed = at.elapsed().as_nanos() as f64 * speed;
                first.saturating_add(elapsed as Nanos)
            }
            _ => Nanos::MAX,
        }
    }

    /// The rows that are due.
    fn due(&mut self, timeout: Duration) -> Option<TapEvent> {
        let (demand, batch) = self.waiting.take()?;
        let first = batch.ts.first().copied()?;
        self.began = self.began.or(Some((Instant::now(), first)));
        let now = self.now();
        let due = batch.ts.partition_point(|&ts| ts <= now);
        if due < batch.len() {
            self.waiting = Some((demand, batch.slice(due, batch.len() - due)));
        }
        if due == 0 {
            let ahead = (first - now) as f64 / self.speed.unwrap_or(1.0);
            std::thread::sleep(timeout.min(Duration::from_nanos(ahead as u64)));
            return Some(TapEvent::Heartbeat(self.now().min(first - 1)));
        }
        let batch = batch.slice(0, due);
        self.last = batch.ts.last().copied();
        Some(TapEvent::Rows { demand, batch })
    }

    /// Advances to the end of the last interval, and waits until it is displayed.
    fn end(&mut self, timeout: Duration) -> TapEvent {
        let Some(last) = self.last else {
            return TapEvent::End;
        };
        let end = match last.rem_euclid(self.interval_ns) {
            0 => last,
            rest => last.saturating_add(self.interval_ns - rest),
        };
        match self.ended {
            None => {
                self.ended = Some(Instant::now());
                TapEvent::Heartbeat(end)
            }
            Some(at) => {
                let seen = self.shown.load(Ordering::Acquire) >= end;
                if seen || at.elapsed() > LAST_TIMEOUT {
                    return TapEvent::End;
                }
                std::thread::sleep(timeout.min(Duration::from_millis(5)));
                TapEvent::Quiet
            }
        }
    }
}

impl Timing for TopReplay {
    fn next(&mut self, tap: &mut dyn Tap, timeout: Duration) -> Result<TapEvent, TapError> {
        if let Some(event) = self.due(timeout) {
            return Ok(event);
        }
        if self.ended.is_some() {
            return Ok(self.end(timeout));
        }
        Ok(match tap.next(timeout)? {
            TapEvent::Rows { demand, batch } => {
                self.waiting = Some((demand, batch));
                self.due(timeout).unwrap_or(TapEvent::Quiet)
            }
            // The reader's watermark may be ahead of the replay.
            TapEvent::Heartbeat(at) => TapEvent::Heartbeat(at.min(self.now())),
            event @ (TapEvent::Quiet | TapEvent::Folded { .. }) => event,
            TapEvent::End => self.end(timeout),
        })
    }
}
