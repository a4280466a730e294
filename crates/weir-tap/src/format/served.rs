//! [`Served`]: produces the rows and columns of one demand, from requests and responses that are
//! available as events.

use weir_model::{Batch, Demand, EventBatch, EventKind, IoBatch, IoEvent};

use super::wanted::passes;
use crate::RECORDING;

/// A demand and the builder of its rows.
pub struct Served {
    demand: Demand,
    batch: Rows,
}

enum Rows {
    /// Completed requests only.
    Io(IoBatch),
    /// Every event.
    IoStream(EventBatch),
    /// Both, with the columns of `IO`.
    Recording(IoBatch),
    /// The source does not have the stream.
    Nothing,
}

impl Served {
    /// The builder for `demand`.
    pub fn new(demand: &Demand) -> Served {
        let columns = Some(&demand.columns[..]);
        let is = |name: &str| demand.stream.eq_ignore_ascii_case(name);
        let batch = if is("IO") {
            Rows::Io(IoBatch::new(columns))
        } else if is("IOstream") {
            Rows::IoStream(EventBatch::new(columns))
        } else if is(RECORDING) {
            Rows::Recording(IoBatch::new(columns))
        } else {
            Rows::Nothing
        };
        Served {
            demand: demand.clone(),
            batch,
        }
    }

    /// The rows of this demand among `rows`, if any. Assumed responses are not events of
    /// `IOstream`.
    pub fn batch(&self, rows: &[IoEvent], responses_assumed: bool) -> Option<Batch> {
        let asked = |row: &&IoEvent| row.event.kind == EventKind::Request;
        let wanted = |row: &&IoEvent| passes(&self.demand.predicate, row);
        let picked: Vec<IoEvent> = match &self.batch {
            Rows::Nothing => return None,
            Rows::Io(_) => rows
                .iter()
                .filter(|r| !asked(r))
                .filter(wanted)
                .copied()
                .collect(),
            Rows::IoStream(_) if responses_assumed => {
                rows.iter().filter(asked).filter(wanted).copied().collect()
            }
            _ => rows.iter().filter(wanted).copied().collect(),
        };
        if picked.is_empty() {
            return None;
        }
        Some(match &self.batch {
            Rows::IoStream(batch) => {
                let events: Vec<_> = picked.iter().map(|r| r.event).collect();
                batch.build(&events)
            }
            Rows::Io(batch) | Rows::Recording(batch) => batch.build(&picked),
            Rows::Nothing => return None,
        })
    }
}
