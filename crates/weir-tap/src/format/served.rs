//! [`Served`]: produces the rows and columns of one demand, from requests and responses that are
//! available as events.

use weir_model::capabilities::RequestRows;
use weir_model::event::{IoRows, io_schema, iostream_schema};
use weir_model::{Batch, Demand, EventKind, IoEvent, Nanos};

use super::wanted::passes;

/// A demand and the builder of its rows.
pub struct Served {
    demand: Demand,
    selects_all: bool,
    /// The events that are its rows; `None` if the source does not have the stream.
    of_stream: Option<RequestRows>,
    /// The number of columns of the stream: the first of those of a finished request.
    width: usize,
    rows: IoRows,
}

impl Served {
    /// The builder for `demand`.
    pub fn new(demand: &Demand) -> Served {
        let of_stream = RequestRows::of(&demand.stream);
        Served {
            of_stream,
            width: match of_stream {
                Some(RequestRows::Events) => iostream_schema().len(),
                _ => io_schema().len(),
            },
            rows: IoRows::new(Some(&demand.columns)),
            selects_all: demand.predicate.is_all(),
            demand: demand.clone(),
        }
    }

    /// Whether events of this kind are rows of this demand's stream.
    pub fn has(&self, kind: EventKind, responses_assumed: bool) -> bool {
        let is_request = kind == EventKind::Request;
        match self.of_stream {
            None => false,
            Some(RequestRows::Finished) => !is_request,
            Some(RequestRows::Events) => is_request || !responses_assumed,
            Some(RequestRows::All) => true,
        }
    }

    /// Adds an event of a kind that the stream has, if the demand selects it. `event` makes it if
    /// more than its time is needed.
    pub fn push(&mut self, ts: Nanos, event: impl FnOnce() -> IoEvent) {
        if self.selects_all {
            self.rows.push(ts, event);
            return;
        }
        let event = event();
        if passes(&self.demand.predicate, &event) {
            self.rows.push(ts, || event);
        }
    }

    /// The rows since the last batch, if any.
    pub fn take(&mut self) -> Option<Batch> {
        if self.rows.is_empty() {
            return None;
        }
        let mut batch = self.rows.finish();
        batch.columns.truncate(self.width);
        Some(batch)
    }

    /// The rows of this demand among `rows`, if any.
    pub fn batch(&mut self, rows: &[IoEvent], responses_assumed: bool) -> Option<Batch> {
        for row in rows {
            if self.has(row.event.kind, responses_assumed) {
                self.push(row.event.ts, || *row);
            }
        }
        self.take()
    }
}
