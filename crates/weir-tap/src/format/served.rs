//! [`Served`]: produces the rows and columns of one demand, from requests and responses that are
//! available as events.

use weir_model::capabilities::RequestRows;
use weir_model::event::{io_schema, iostream_schema};
use weir_model::{Batch, Demand, EventKind, IoBatch, IoEvent};

use super::wanted::passes;

/// A demand and the builder of its rows.
pub struct Served {
    demand: Demand,
    /// The events that are its rows; `None` if the source does not have the stream.
    rows: Option<RequestRows>,
    /// The number of columns of the stream: the first of those of a finished request.
    width: usize,
    batch: IoBatch,
}

impl Served {
    /// The builder for `demand`.
    pub fn new(demand: &Demand) -> Served {
        let rows = RequestRows::of(&demand.stream);
        Served {
            rows,
            width: match rows {
                Some(RequestRows::Events) => iostream_schema().len(),
                _ => io_schema().len(),
            },
            batch: IoBatch::new(Some(&demand.columns)),
            demand: demand.clone(),
        }
    }

    /// The rows of this demand among `rows`, if any.
    pub fn batch(&self, rows: &[IoEvent], responses_assumed: bool) -> Option<Batch> {
        let of_stream = self.rows?;
        let is_row = |row: &&IoEvent| {
            let is_request = row.event.kind == EventKind::Request;
            match of_stream {
                RequestRows::Finished => !is_request,
                RequestRows::Events => is_request || !responses_assumed,
                RequestRows::All => true,
            }
        };
        let wanted = |row: &&IoEvent| passes(&self.demand.predicate, row);
        let picked = rows.iter().filter(is_row).filter(wanted).copied();
        let picked: Vec<IoEvent> = picked.collect();
        if picked.is_empty() {
            return None;
        }
        let mut batch = self.batch.build(&picked);
        batch.columns.truncate(self.width);
        Some(batch)
    }
}
