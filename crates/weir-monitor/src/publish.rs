//! [`Publisher`]: sends the results of one query to its clients and files.
//!
//! For a relation it stores the current rows: a new client, or one that was too slow, receives the
//! current state.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use weir_model::{Batch, NANOS_PER_SECOND, Nanos, Shape};
use weir_query::engine::in_time_order;
use weir_sink::{RelationView, ResultSchema, SubscriberLimits, Subscribers, Update, arrow};
use weir_wire::ResultUpdate;

use super::completeness::FleetCompleteness;
use super::files::FileSink;
use super::observer::ResultObserver;
use super::state::Position;

/// The interval at which clients receive the watermark when there are no results.
const WATERMARK_EVERY: Nanos = NANOS_PER_SECOND;

/// The minimum interval between flushes of files.
const FLUSH_EVERY: Nanos = NANOS_PER_SECOND / 10;

/// Maximum number of updates that wait for a client.
const UPDATES_MAX: usize = 1024;

/// The limits of one query's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherLimits {
    /// Maximum number of clients.
    pub clients_max: usize,
    /// Maximum bytes that wait for one client.
    pub backlog_bytes_max: usize,
    /// Maximum bytes of the stored relation.
    pub snapshot_bytes_max: usize,
    /// Maximum rows per second.
    pub rows_per_second_max: usize,
}

impl PublisherLimits {
    fn subscriber_limits(&self) -> SubscriberLimits {
        SubscriberLimits {
            readers_max: self.clients_max,
            updates_max: UPDATES_MAX,
            bytes_max: self.backlog_bytes_max,
        }
    }
}

/// The publisher of one query.
pub struct Publisher {
    state: PublishedState,
    limits: PublisherLimits,
    clients: Subscribers<ResultUpdate>,
    files: Vec<FileSink>,
    /// A consumer in this process.
    observer: Option<Box<dyn ResultObserver>>,
    flushed_at: Nanos,
    /// Results since the last complete instant.
    unpublished: Vec<Batch>,
    published_at: Nanos,
    rate: RowRate,
}

/// The state that a client receives when it is new or was too slow.
struct PublishedState {
    answer: ResultSchema,
    schema: SchemaRef,
    /// The current rows of a relation.
    view: Option<RelationView>,
    completeness: Option<FleetCompleteness>,
    /// Rows that were emitted.
    rows: u64,
}

/// The rate of rows.
#[derive(Default)]
struct RowRate {
    since: Nanos,
    rows: u64,
    too_fast: bool,
}

impl Publisher {
    /// Publishes `answer` to `files` and to the clients.
    pub fn new(answer: ResultSchema, limits: PublisherLimits, files: Vec<FileSink>) -> Publisher {
        let is_relation = answer.shape == Shape::Relation;
        Publisher {
            state: PublishedState {
                schema: Arc::new(arrow::schema(&answer)),
                view: is_relation.then(|| RelationView::new(limits.snapshot_bytes_max)),
                answer,
                completeness: None,
                rows: 0,
            },
            limits,
            clients: Subscribers::new(limits.subscriber_limits()),
            files,
            observer: None,
            flushed_at: Nanos::MIN,
            unpublished: Vec::new(),
            published_at: Nanos::MIN,
            rate: RowRate::default(),
        }
    }

    /// With a consumer in this process, which receives everything.
    #[must_use]
    pub fn observed_by(self, observer: Box<dyn ResultObserver>) -> Publisher {
        Publisher {
            observer: Some(observer),
            ..self
        }
    }

    /// Continues after a restart, before which this number of rows of a stream was emitted: clients
    /// that connect again compute from it what they missed.
    #[must_use]
    pub fn after_rows(mut self, rows: u64) -> Publisher {
        if self.state.answer.shape == Shape::Stream {
            self.state.rows = rows;
        }
        self
    }

    /// The columns of the results, as an Arrow schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.state.schema
    }

    /// Replaces the limits.
    pub fn set_limits(&mut self, limits: PublisherLimits) {
        self.limits = limits;
        self.clients.set_limits(limits.subscriber_limits());
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
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Rows that were emitted.
    pub fn rows_emitted(&self) -> u64 {
        self.state.rows
    }

    /// The completeness of the last results.
    pub fn completeness(&self) -> Option<&FleetCompleteness> {
        self.state.completeness.as_ref()
    }

    /// True if the rate of rows exceeds its limit.
    pub fn is_too_fast(&self) -> bool {
        self.rate.too_fast
    }

    /// Adds a client, unless there are too many.
    pub fn watch(&mut self) -> Option<mpsc::Receiver<ResultUpdate>> {
        self.clients.subscribe(|| Some(self.state.current(0)))
    }

    /// The current rows of a relation, as insertions.
    pub fn content(&self) -> Option<Batch> {
        self.state.content()
    }

    /// Publishes rows of a stream or changes of a relation, in timestamp order. The first `emitted`
    /// of them were emitted before a restart.
    pub fn write(&mut self, batch: &Batch, emitted: usize) {
        if let Some(observer) = &mut self.observer {
            observer.write(batch);
        }
        let shape = self.state.answer.shape;
        let files = self.files.iter_mut();
        files.for_each(|file| file.write(batch, emitted, shape));
        let rest = batch.slice(emitted, batch.len() - emitted);
        let unpublished = match &mut self.state.view {
            // Clients of a relation need its earlier rows, too.
            Some(view) => {
                view.apply(batch);
                batch.clone()
            }
            None => rest,
        };
        if !unpublished.is_empty() {
            self.unpublished.push(unpublished);
        }
    }

    /// Marks all results up to an instant as emitted; no instant is partial. The rows of the hosts
    /// `silent` are missing.
    pub fn complete_instant(
        &mut self,
        completeness: &FleetCompleteness,
        silent: &BTreeSet<String>,
    ) {
        let at = completeness.at;
        if let Some(observer) = &mut self.observer {
            observer.complete(completeness, silent);
        }
        if at.saturating_sub(self.flushed_at) >= FLUSH_EVERY {
            self.flushed_at = at;
            self.files.iter_mut().for_each(FileSink::flush);
        }
        let batches = std::mem::take(&mut self.unpublished);
        let rows: u64 = batches.iter().map(|batch| batch.len() as u64).sum();
        self.rate.count(rows, at, self.limits.rows_per_second_max);
        let state = &mut self.state;
        let rows_before = state.rows;
        state.rows += rows;
        let previous = state.completeness.replace(completeness.clone());
        let same = previous.is_some_and(|previous| previous.is_like(completeness));
        let due = rows > 0 || !same || at.saturating_sub(self.published_at) >= WATERMARK_EVERY;
        if !due {
            return;
        }
        self.published_at = at;
        if self.clients.is_empty() {
            return;
        }
        let state = &self.state;
        let update = update(state.record(&batches), state.note(rows_before), rows);
        self.clients.publish(&update, |skipped| match &state.view {
            Some(_) => state.current(skipped),
            None => {
                let mut update = update.clone();
                update.body.note["skipped"] = json!(skipped);
                update
            }
        });
    }

    /// Ends the results with the reason `why`.
    pub fn end(&mut self, why: &str) {
        self.files.iter_mut().for_each(FileSink::finish);
        if let Some(observer) = &mut self.observer {
            observer.end(why);
        }
        let mut note = match self.state.completeness {
            Some(_) => self.state.note(self.state.rows),
            None => json!({}),
        };
        note["ended"] = json!(why);
        let batch = RecordBatch::new_empty(self.state.schema.clone());
        self.clients.end(|skipped| {
            note["skipped"] = json!(skipped);
            let (batch, note) = (batch.clone(), note.clone());
            Some(ResultUpdate { batch, note })
        });
    }
}

impl PublishedState {
    /// The current state for a client that has skipped a number of rows.
    fn current(&self, skipped: u64) -> Update<ResultUpdate> {
        let mut note = self.note(self.rows);
        if skipped > 0 {
            note["skipped"] = json!(skipped);
        }
        let batch = match self.content() {
            None => RecordBatch::new_empty(self.schema.clone()),
            Some(batch) => {
                note["reset"] = json!(batch.len());
                self.record(&[batch])
            }
        };
        let omitted = self.view.as_ref().map_or(0, RelationView::omitted);
        if omitted != 0 {
            note["omitted"] = json!(omitted);
        }
        update(batch, note, 0)
    }

    /// The current rows of a relation.
    fn content(&self) -> Option<Batch> {
        let view = self.view.as_ref()?;
        Some(view.snapshot(&self.answer.schema, view.instant()))
    }

    /// The note for rows after which no instant is partial. It contains the number of rows that the
    /// query emitted before them, from which a client computes how many it missed, also while it
    /// was disconnected.
    fn note(&self, rows_before: u64) -> Json {
        let completeness = self.completeness.as_ref();
        let mut note = completeness.map_or(json!({}), FleetCompleteness::json);
        note["whole"] = json!(true);
        note["rows_before"] = json!(rows_before);
        note
    }

    /// Rows as the clients receive them.
    fn record(&self, batches: &[Batch]) -> RecordBatch {
        let pieces: Vec<Batch> = match self.answer.shape {
            Shape::Relation => batches.to_vec(),
            Shape::Stream => batches
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

fn update(batch: RecordBatch, note: Json, rows: u64) -> Update<ResultUpdate> {
    Update {
        bytes: batch.get_array_memory_size(),
        rows,
        body: ResultUpdate { batch, note },
    }
}

impl RowRate {
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
