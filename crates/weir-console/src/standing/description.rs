//! [`QueryDescription`]: a query in the list of those that run, and its cost.

use std::time::SystemTime;

use serde::Serialize;
use weir_model::Shape;

use super::{Runner, StandingQuery, lock};
use crate::process_cost::ProcessCost;
use crate::program::ResultSource;

/// A query in the list of `GET /api/v1/queries`.
#[derive(Clone, Debug, Serialize)]
pub struct QueryDescription {
    /// Its number, to end it.
    pub id: u64,
    /// The name that it was given.
    pub name: Option<String>,
    /// The query.
    pub q: String,
    /// `own`, `recent` or the recording.
    pub source: String,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// The number of subscriptions.
    pub subscribers: usize,
    /// Whether it runs without subscribers.
    pub is_standing: bool,
    /// `shared`, `process`, or `none` if it has ended.
    pub runs_in: &'static str,
    /// The process, if it is its own.
    pub pid: Option<u32>,
    /// Processor time of its own process, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Memory of its own process, in bytes.
    pub memory_bytes: Option<u64>,
    /// The rows of the relation, or of the stream so far.
    pub rows: u64,
    /// The number of changes of the result.
    pub changes: u64,
    /// The size of the result that was read, in bytes.
    pub bytes: u64,
    /// How it ended.
    pub end: Option<String>,
}

impl StandingQuery {
    /// The query and its cost.
    pub(super) fn describe(&self, is_standing: bool) -> QueryDescription {
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH);
        let mut state = lock(&self.state);
        state.subscribers.retain(|s| s.strong_count() > 0);
        let (runs_in, pid) = match &state.runner {
            Some(Runner::Process(pid)) => ("process", Some(*pid)),
            Some(Runner::Shared(_)) => ("shared", None),
            None => ("none", None),
        };
        let cost = pid.and_then(ProcessCost::of);
        let rows = match state.answer.as_ref().map(|answer| answer.shape) {
            Some(Shape::Relation) => u64::try_from(state.view.len()).unwrap_or(0),
            _ => state.next_row,
        };
        QueryDescription {
            id: self.id,
            name: self.name.clone(),
            q: self.text.clone(),
            source: match &self.source {
                ResultSource::Own => "own".to_owned(),
                ResultSource::Recent => "recent".to_owned(),
                ResultSource::Recording(path) => {
                    let name = path.file_name().unwrap_or_default();
                    name.to_string_lossy().into_owned()
                }
            },
            started_ms: started.map_or(0, |since| since.as_millis() as u64),
            subscribers: state.subscribers.len(),
            is_standing,
            runs_in,
            pid,
            cpu_ms: cost.map(|cost| cost.cpu_ms),
            memory_bytes: cost.map(|cost| cost.memory_bytes),
            rows,
            changes: state.version,
            bytes: state.bytes,
            end: state.end.as_ref().map(|end| match &*end.message {
                "" => end.reason.to_owned(),
                message => message.to_owned(),
            }),
        }
    }
}
