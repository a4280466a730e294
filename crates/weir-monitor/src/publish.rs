//! [`Publisher`]: sends the results of one query to its clients and files.
//!
//! For a relation it stores the current rows: a new client, or one that was too slow, receives the
//! current state.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use weir_model::{Batch, NANOS_PER_SECOND, Nanos, Shape, Type};
use weir_query::engine::in_time_order;
use weir_sink::{Answer, Relation, arrow, relation};
use weir_wire::ResultUpdate;

use super::completeness::Completeness;
use super::files::FileSink;
use super::state::Position;
use super::watcher::Watcher;

/// The interval at which clients receive the watermark when there are no results.
const TELL_EVERY: Nanos = NANOS_PER_SECOND;

/// The minimum interval between flushes of files.
const FLUSH_EVERY: Nanos = NANOS_PER_SECOND / 10;

/// The limits of one query's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of clients.
    pub watchers_max: usize,
    /// Maximum bytes that wait for one client.
    pub waiting_bytes_max: usize,
    /// Maximum bytes of the stored relation.
    pub held_bytes_max: usize,
    /// Maximum rows per second.
    pub rows_per_second_max: usize,
}

/// The publisher of one query.
pub struct Publisher {
    answer: Answer,
    schema: SchemaRef,
    bounds: Bounds,
    /// The current rows of a relation.
    held: Option<Relation>,
    files: Vec<FileSink>,
    flushed_at: Nanos,
    watchers: Vec<Watcher>,
    /// Results since the last complete instant.
    fresh: Vec<Batch>,
    said: Option<Completeness>,
    told_at: Nanos,
    rows: u64,
    pace: Pace,
}

/// The rate of rows.
#[derive(Default)]
struct Pace {
    since: Nanos,
    rows: u64,
    too_fast: bool,
}

impl Publisher {
    /// Publishes `answer` to `files` and to the clients.
    pub fn new(answer: Answer, bounds: Bounds, files: Vec<FileSink>) -> Publisher {
        Publisher {
            schema: Arc::new(arrow::schema(&answer)),
            held: (answer.shape == Shape::Relation).then(|| Relation::new(bounds.held_bytes_max)),
            answer,
            bounds,
            files,
            flushed_at: Nanos::MIN,
            watchers: Vec::new(),
            fresh: Vec::new(),
            said: None,
            told_at: Nanos::MIN,
            rows: 0,
            pace: Pace::default(),
        }
    }

    /// The columns of the results, as an Arrow schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Replaces the limits.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// The sizes of its files with the results emitted so far, flushed to the operating system.
    pub fn positions(&mut self) -> Vec<Position> {
        self.files
            .iter_mut()
            .filter_map(FileSink::position)
            .collect()
    }

    /// The files.
    pub fn files(&self) -> &[FileSink] {
        &self.files
    }

    /// The number of clients.
    pub fn watchers(&self) -> usize {
        self.watchers.iter().filter(|w| !w.is_gone()).count()
    }

    /// Rows that were emitted.
    pub fn rows_given(&self) -> u64 {
        self.rows
    }

    /// The completeness of the last results.
    pub fn completeness(&self) -> Option<&Completeness> {
        self.said.as_ref()
    }

    /// True if the rate of rows exceeds its limit.
    pub fn is_too_fast(&self) -> bool {
        self.pace.too_fast
    }

    /// Adds a client, unless there are too many.
    pub fn watch(&mut self) -> Option<mpsc::Receiver<ResultUpdate>> {
        self.watchers.retain(|watcher| !watcher.is_gone());
        if self.watchers.len() >= self.bounds.watchers_max {
            return None;
        }
        let (mut watcher, results) = Watcher::new(self.bounds.waiting_bytes_max);
        let (shown, bytes) = self.standing(&watcher);
        watcher.show(shown, bytes, 0);
        self.watchers.push(watcher);
        Some(results)
    }

    /// Publishes rows of a stream or changes of a relation, in timestamp order. The first `shown`
    /// of them were emitted before a restart.
    pub fn rows(&mut self, batch: &Batch, shown: usize) {
        if let Some(held) = &mut self.held {
            held.apply(batch);
        }
        let rest = batch.slice(shown, batch.len() - shown);
        if !rest.is_empty() {
            self.files.iter_mut().for_each(|file| file.write(&rest));
        }
        // Clients of a relation have received its earlier rows.
        let fresh = match self.held {
            Some(_) => batch.clone(),
            None => rest,
        };
        if !fresh.is_empty() {
            self.fresh.push(fresh);
        }
    }

    /// Marks all results up to an instant as emitted; no instant is partial.
    pub fn whole(&mut self, completeness: &Completeness) {
        let at = completeness.at;
        if at.saturating_sub(self.flushed_at) >= FLUSH_EVERY {
            self.flushed_at = at;
            self.files.iter_mut().for_each(FileSink::flush);
        }
        let fresh = std::mem::take(&mut self.fresh);
        let rows: u64 = fresh.iter().map(|batch| batch.len() as u64).sum();
        self.pace.count(rows, at, self.bounds.rows_per_second_max);
        self.rows += rows;
        let same = self.said.as_ref().is_some_and(|s| s.is_like(completeness));
        self.said = Some(completeness.clone());
        self.watchers.retain(|watcher| !watcher.is_gone());
        let due = rows > 0 || !same || at.saturating_sub(self.told_at) >= TELL_EVERY;
        if !due {
            return;
        }
        self.told_at = at;
        if self.watchers.is_empty() {
            return;
        }
        let batch = self.record(&fresh);
        let bytes = batch.get_array_memory_size();
        let shown = ResultUpdate {
            batch,
            note: self.noted(completeness, self.rows - rows),
        };
        let mut watchers = std::mem::take(&mut self.watchers);
        for watcher in &mut watchers {
            self.show(watcher, &shown, bytes, rows);
        }
        self.watchers = watchers;
    }

    /// Ends the results with the reason `why`.
    pub fn end(&mut self, why: &str) {
        self.files.iter_mut().for_each(FileSink::finish);
        let said = self.said.as_ref();
        let mut note = said.map_or(json!({}), |said| self.noted(said, self.rows));
        note["ended"] = json!(why);
        for watcher in self.watchers.drain(..) {
            note["skipped"] = json!(watcher.skipped());
            watcher.end(ResultUpdate {
                batch: RecordBatch::new_empty(self.schema.clone()),
                note: note.clone(),
            });
        }
    }

    fn show(&self, watcher: &mut Watcher, shown: &ResultUpdate, bytes: usize, rows: u64) {
        if rows == 0 && !watcher.is_behind() {
            // The next rows carry the completeness as well.
            watcher.try_show(shown.clone(), bytes);
        } else if !watcher.is_behind() {
            watcher.show(shown.clone(), bytes, rows);
        } else if !watcher.is_idle() {
            watcher.skip(rows);
        } else if self.held.is_some() {
            let (standing, bytes) = self.standing(watcher);
            watcher.show(standing, bytes, rows);
        } else {
            let mut shown = shown.clone();
            shown.note["skipped"] = json!(watcher.skipped());
            watcher.show(shown, bytes, rows);
        }
    }

    /// The current state, for a client that is new or was too slow.
    fn standing(&self, watcher: &Watcher) -> (ResultUpdate, usize) {
        let mut note = match &self.said {
            Some(said) => self.noted(said, self.rows),
            None => json!({ "whole": true, "rows_before": self.rows }),
        };
        if watcher.skipped() > 0 {
            note["skipped"] = json!(watcher.skipped());
        }
        let batch = match &self.held {
            None => RecordBatch::new_empty(self.schema.clone()),
            Some(held) => {
                let types: Vec<Type> = self.answer.schema.fields.iter().map(|f| f.ty).collect();
                let at = held.instant();
                let batch = relation::deltas(&types, at, held.rows());
                note["reset"] = json!(batch.len());
                if held.left_out() != 0 {
                    note["left_out"] = json!(held.left_out());
                }
                self.record(&[batch])
            }
        };
        let bytes = batch.get_array_memory_size();
        (ResultUpdate { batch, note }, bytes)
    }

    /// The note for rows after which no instant is partial. From the number of rows that the query
    /// emitted before them a client computes the number that it missed, also while it was
    /// disconnected.
    fn noted(&self, completeness: &Completeness, rows_before: u64) -> Json {
        let mut note = completeness.json();
        note["whole"] = json!(true);
        note["rows_before"] = json!(rows_before);
        note
    }

    /// Rows as the clients receive them.
    fn record(&self, fresh: &[Batch]) -> RecordBatch {
        let pieces: Vec<Batch> = match self.answer.shape {
            Shape::Relation => fresh.to_vec(),
            Shape::Stream => fresh
                .iter()
                .flat_map(|batch| arrow::each_once(&self.answer, batch))
                .collect(),
        };
        match pieces.is_empty() {
            true => RecordBatch::new_empty(self.schema.clone()),
            false => arrow::record_batch(&self.answer, &self.schema, &in_time_order(&pieces)),
        }
    }
}

impl Pace {
    /// Adds rows up to `at` to the rate.
    fn count(&mut self, rows: u64, at: Nanos, rows_per_second_max: usize) {
        self.rows += rows;
        let passed = at.saturating_sub(self.since);
        if passed < NANOS_PER_SECOND {
            return;
        }
        let seconds = (passed / NANOS_PER_SECOND) as u64;
        let most = (rows_per_second_max as u64).saturating_mul(seconds);
        self.too_fast = self.since > 0 && self.rows > most;
        (self.since, self.rows) = (at, 0);
    }
}
