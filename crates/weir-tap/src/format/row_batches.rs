//! [`RowBatches`]: collects the rows of a trace in batches for each demand.

use std::collections::VecDeque;

use weir_model::{Demand, EventKind, IoEvent, Nanos};

use super::served::Served;
use crate::TapEvent;

/// Maximum number of rows of a batch, before selection.
const ROWS_MAX: usize = 4096;

/// Batches of the rows of a trace for its demands.
pub struct RowBatches {
    served: Vec<Served>,
    responses_assumed: bool,
    /// The number of rows of the open batch, also of those that no demand has.
    rows: usize,
    /// The timestamp of the last one.
    last: Nanos,
    /// The number of rows since [`RowBatches::emit`].
    added: usize,
    queued: VecDeque<TapEvent>,
}

impl RowBatches {
    /// Without rows. `responses_assumed` is that of [`crate::Tap::responses_assumed`].
    pub fn new(demands: &[Demand], responses_assumed: bool) -> RowBatches {
        RowBatches {
            served: demands.iter().map(Served::new).collect(),
            responses_assumed,
            rows: 0,
            last: Nanos::MIN,
            added: 0,
            queued: VecDeque::new(),
        }
    }

    /// Adds a row; `event` makes it for the demands that have it.
    pub fn push(&mut self, ts: Nanos, kind: EventKind, event: impl Fn() -> IoEvent) {
        if self.rows == ROWS_MAX {
            self.close();
        }
        self.rows += 1;
        self.added += 1;
        self.last = ts;
        for served in &mut self.served {
            if served.has(kind, self.responses_assumed) {
                served.push(ts, &event);
            }
        }
    }

    /// The number of rows since [`RowBatches::emit`].
    pub fn added(&self) -> usize {
        self.added
    }

    /// Queues the rows, and returns how many were added since the previous call.
    pub fn emit(&mut self) -> usize {
        self.close();
        std::mem::take(&mut self.added)
    }

    /// The queue of batches, each followed by the watermark.
    pub fn queued(&mut self) -> &mut VecDeque<TapEvent> {
        &mut self.queued
    }

    fn close(&mut self) {
        if self.rows == 0 {
            return;
        }
        self.rows = 0;
        for (demand, served) in self.served.iter_mut().enumerate() {
            if let Some(batch) = served.take() {
                self.queued.push_back(TapEvent::Rows { demand, batch });
            }
        }
        // More rows of the last instant may follow.
        let watermark = super::replay::before(self.last);
        self.queued.push_back(TapEvent::Heartbeat(watermark));
    }
}
