//! [`Replay`]: a trace file as a tap. It delivers rows as a live tap does, as fast as they are
//! requested.

use std::time::{Duration, Instant};

use weir_model::{Demand, Nanos};

use super::Faults;
use super::fault::LATE;
use super::order::{ReorderBuffer, SLACK_RECORDS};
use super::pairing::Pairing;
use super::record::{Reader, TraceRecord};
use super::row_batches::RowBatches;
use crate::{EventCount, Tap, TapError, TapEvent};

/// When this many rows are ready, they are delivered.
const ROWS_READY: usize = 2048;

/// Time after which no earlier record is expected of a trace that is written while it is read:
/// blktrace reads the buffers of each processor at least every 0.5 s.
const STREAM_LAG: Duration = Duration::from_secs(1);

/// A trace file as a tap.
pub struct Replay {
    format: &'static str,
    reader: Box<dyn Reader>,
    faults: Faults,
    order: ReorderBuffer,
    /// Of a streamed trace: a time, and the latest record at that time.
    mark: Option<(Instant, Nanos)>,
    pairing: Pairing,
    rows: RowBatches,
    ended: bool,
    rows_total: i64,
}

impl Replay {
    /// A tap that reads `reader` and serves `demands`.
    pub fn new(
        format: &'static str,
        reader: Box<dyn Reader>,
        faults: Faults,
        demands: &[Demand],
    ) -> Replay {
        Replay {
            format,
            rows: RowBatches::new(demands, !reader.knows_responses()),
            reader,
            faults,
            order: ReorderBuffer::new(SLACK_RECORDS),
            mark: None,
            pairing: Pairing::default(),
            ended: false,
            rows_total: 0,
        }
    }

    /// Reads until there are rows for a batch, or the trace has ended.
    fn advance(&mut self) -> Result<(), TapError> {
        while self.rows.added() < ROWS_READY && !self.ended {
            let mut final_until = None;
            while !self.order.is_full() && !self.ended && final_until.is_none() {
                self.ended = !self.reader.read(self.order.input(), &mut self.faults)?;
                final_until = self.final_until();
            }
            let (rows, faults) = (&mut self.rows, &mut self.faults);
            let pairing = &mut self.pairing;
            let take = |record: &TraceRecord| pairing.take(record, &mut *rows, &mut *faults);
            let late = match final_until.filter(|_| !self.ended) {
                Some(ts) => self.order.give_until(ts, take),
                None => self.order.give(self.ended, take),
            };
            faults.count("events_lost", LATE, late as i64);
            if self.ended {
                pairing.finish(rows);
            }
            if final_until.is_some() && self.rows.added() > 0 {
                break;
            }
        }
        Ok(())
    }

    /// Of a streamed trace, the time until which all records have arrived; once in [`STREAM_LAG`].
    fn final_until(&mut self) -> Option<Nanos> {
        if !self.reader.is_streamed() {
            return None;
        }
        match self.mark {
            Some((at, _)) if at.elapsed() < STREAM_LAG => None,
            mark => {
                let latest = self.order.latest();
                self.mark = latest.map(|latest| (Instant::now(), latest));
                mark.map(|(_, until)| until)
            }
        }
    }

    fn emit(&mut self) {
        self.rows_total += self.rows.emit() as i64;
        if self.ended {
            self.rows.queued().push_back(TapEvent::End);
        }
    }
}

/// The instant before `ts`.
pub(super) fn before(ts: Nanos) -> Nanos {
    ts.saturating_sub(1)
}

impl Tap for Replay {
    fn next(&mut self, _timeout: Duration) -> Result<TapEvent, TapError> {
        if self.rows.queued().is_empty() && !self.ended {
            self.advance()?;
            self.emit();
        }
        let next = self.rows.queued().pop_front();
        Ok(next.unwrap_or(TapEvent::End))
    }

    fn counts(&mut self) -> Vec<EventCount> {
        let rows = EventCount::of("events_in", None, self.rows_total);
        [vec![rows], self.faults.counts()].concat()
    }

    fn progress(&self) -> Option<f64> {
        Some(self.reader.progress())
    }

    fn describe(&self) -> Vec<String> {
        vec![format!(
            "reads {} records and applies the selections that a tap supports",
            self.format
        )]
    }

    fn messages(&self) -> Vec<String> {
        self.faults.messages().to_vec()
    }

    fn responses_assumed(&self) -> bool {
        !self.reader.knows_responses()
    }
}
