//! The engine runs plans as operators: batches are its input, deltas its output.
//!
//! The life of a step:
//!
//! 1. Rows wait in their source ([`source`]) until their instant is complete: until a later row or
//!    a heartbeat arrives.
//! 2. [`Engine::step`] takes the minimum watermark of all sources in use, and advances from `now`
//!    to it in spans of bounded work.
//! 3. In each span every operator ([`crate::operator`]), inputs first, reads the deltas of its
//!    inputs at all of the span's instants at once and emits its own. Windows ([`crate::window`])
//!    add the rows that expire.
//! 4. At the output of a query, deltas that cancel within an instant are removed ([`consolidate`]),
//!    and the rest is passed to the caller.
//! 5. An operator that fails, or exceeds its memory limit, is removed with the queries that need
//!    it. Other queries are not affected.
//!
//! Invariants: operators process complete instants only, in time order, and each instant once.
//! Within an instant, a row is inserted before it is retracted. No operator reads a clock, and no
//! result depends on how the instants are cut into spans or the rows into batches.

mod aggregate;
mod bag;
mod build;
mod consolidate;
mod correlate;
mod describe;
mod graph;
mod join;
mod order;
mod over;
mod project;
mod row_match;
mod select;
mod set_op;
mod sort_key;
mod source;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod to_stream;
#[cfg(test)]
mod window_tests;

use std::sync::Arc;

use weir_model::{Batch, Declaration, Folded};

pub use self::aggregate::PartialCombiner;
use self::consolidate::Consolidate;
use self::graph::{Edge, Graph, Node, Sources, Start};
use self::source::Source;
use crate::function::EvalError;
use crate::operator::Span;
use crate::physical::{Physical, final_content, physical};
use crate::plan::Plan;
pub use crate::synopsis::gather::{batch_bytes, in_time_order, take_batch};

/// The limits of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Most bytes of state that one query may hold, shared state included.
    pub query_bytes_max: usize,
    /// About how many rows an operator processes at once, at least 1. Bounds the rows between
    /// operators; results do not depend on it.
    pub span_rows_max: usize,
}

impl Default for EngineOptions {
    /// One GiB for each query, 65,536 rows at once.
    fn default() -> EngineOptions {
        EngineOptions {
            query_bytes_max: 1 << 30,
            span_rows_max: 1 << 16,
        }
    }
}

/// A running query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueryId(u32);

/// An output of a step.
#[derive(Clone, Debug)]
pub enum EngineOutput {
    /// Results, in time order: for a relation the net deltas of each instant, for a stream its
    /// rows, without weights.
    Rows {
        /// The query.
        query: QueryId,
        /// The rows.
        batch: Batch,
    },
    /// The query failed; it emits nothing more.
    Failed {
        /// The query.
        query: QueryId,
        /// The cause.
        error: EvalError,
    },
}

/// What an engine has processed so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// By source, in the order of first use.
    pub sources: Vec<SourceCounts>,
    /// By running query, in the order in which they were added.
    pub queries: Vec<QueryCounts>,
}

/// Counts of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceCounts {
    /// Its name.
    pub source: String,
    /// Rows pushed.
    pub rows_in: u64,
    /// Rows of those that were dropped, because their instant was already complete.
    pub rows_late: u64,
    /// Of a relation: retractions of absent rows, which were ignored.
    pub rows_unmatched: u64,
    /// Rows that wait for their instant to be complete.
    pub rows_waiting: u64,
    /// The timestamps of the first and of the last single row; groups are not counted.
    pub span: Option<(i64, i64)>,
}

/// Counts of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryCounts {
    /// The query.
    pub query: QueryId,
    /// Rows and deltas emitted.
    pub rows_out: u64,
    /// Approximate size of its state in bytes, shared state included.
    pub bytes: u64,
}

/// Runs queries over streams and relations. See the module's documentation.
pub struct Engine {
    options: EngineOptions,
    sources: Vec<Source>,
    graph: Graph,
    queries: Vec<Query>,
    /// The positions of the queries that read each operator of the graph.
    readers: Vec<Vec<usize>>,
    now: i64,
    /// The first instant, once it is known.
    begin: Option<i64>,
    /// Time advances to here when all sources have ended.
    end: Option<i64>,
    queries_ever: u32,
    epoch: u64,
    epoch_used: bool,
}

struct Query {
    id: QueryId,
    edge: Edge,
    /// Removes deltas that cancel, where the plan may emit any.
    consolidate: Option<Consolidate>,
    /// The positions of the nodes it needs.
    below: Vec<usize>,
    rows_out: u64,
    bytes: usize,
}

impl Engine {
    /// An engine without queries, before the first instant.
    pub fn new(options: EngineOptions) -> Engine {
        assert!(options.span_rows_max > 0, "a span has room for a row");
        Engine {
            options,
            sources: Vec::new(),
            graph: Graph::default(),
            queries: Vec::new(),
            readers: Vec::new(),
            now: i64::MIN,
            begin: None,
            end: None,
            queries_ever: 0,
            epoch: 0,
            epoch_used: false,
        }
    }

    /// Starts a query. It receives what its sources deliver from here on, and the current content
    /// of its relations; other queries make no difference.
    pub fn add(&mut self, plan: &Plan) -> QueryId {
        let id = self.reserve();
        self.start(id, plan);
        id
    }

    /// The identifier of a query that is started later, with [`Engine::start`].
    pub fn reserve(&mut self) -> QueryId {
        let id = QueryId(self.queries_ever);
        self.queries_ever += 1;
        id
    }

    /// As [`Engine::add`], with an identifier from [`Engine::reserve`].
    pub fn start(&mut self, id: QueryId, plan: &Plan) {
        let physical = physical(&Arc::new(plan.clone()));
        self.connect(id, &physical);
    }

    /// Starts a query of whose relation only the final content is wanted, that after
    /// [`Engine::finish`]. The changes that are emitted add up to it, but not to the content at
    /// every instant: groups of append-only input are emitted once, with the instant of the last
    /// row.
    pub fn add_final(&mut self, plan: &Plan) -> QueryId {
        let physical = final_content(&physical(&Arc::new(plan.clone())));
        // No operator is shared with a query that wants every change.
        self.epoch_used = true;
        self.next_epoch();
        let id = self.reserve();
        self.connect(id, &physical);
        self.next_epoch();
        id
    }

    fn connect(&mut self, id: QueryId, physical: &Arc<Physical>) {
        self.epoch_used = true;
        let start = Start {
            now: self.now,
            epoch: self.epoch,
        };
        let mut sources = InUse {
            sources: &mut self.sources,
            now: self.now,
        };
        let edge = self.graph.connect(physical, start, &mut sources);
        let consolidate = (!physical.is_net).then(|| Consolidate::new(&physical.logical.schema));
        let below = self.graph.below(edge.node);
        self.readers.resize(self.graph.nodes.len(), Vec::new());
        self.readers[edge.node].push(self.queries.len());
        self.queries.push(Query {
            id,
            edge,
            consolidate,
            below,
            rows_out: 0,
            bytes: 0,
        });
    }

    /// Ends a query and drops what only it needed. An unknown or ended query is not an error.
    pub fn remove(&mut self, query: QueryId) {
        let Some(at) = self.queries.iter().position(|q| q.id == query) else {
            return;
        };
        let query = self.queries.remove(at);
        let kept = self.queries.iter_mut().map(|q| &mut q.edge).collect();
        let mut sources = InUse {
            sources: &mut self.sources,
            now: self.now,
        };
        self.graph.release(query.edge, kept, &mut sources);
        self.find_readers();
    }

    /// Declares a source before a query reads it, so that the content of a relation is kept from
    /// its first row on.
    pub fn declare(&mut self, declaration: &Declaration) {
        self.source(&declaration.name).declare(declaration);
    }

    /// The current content of a declared relation, its rows at the instant `ts`.
    pub fn content(&self, relation: &str, ts: i64) -> Option<Batch> {
        self.known(relation)?.content(ts)
    }

    /// Pushes rows of a source, in timestamp order. Late ones, at or before a complete instant, are
    /// dropped and counted.
    pub fn push(&mut self, source: &str, batch: Batch) {
        self.next_epoch();
        self.source(source).push(batch);
    }

    /// Pushes groups that a source pre-aggregated. They stand for rows of the interval that ends
    /// with them, and belong to its last instant; late ones are dropped and counted as the rows
    /// that they stand for, and false is returned.
    pub fn push_folded(&mut self, source: &str, folded: Folded) -> bool {
        self.next_epoch();
        self.source(source).push_folded(folded)
    }

    /// Sets the watermark of a source: it delivers no more rows at or before `tau`, or those that
    /// it does deliver are late.
    pub fn heartbeat(&mut self, source: &str, tau: i64) {
        self.next_epoch();
        self.source(source).heartbeat(tau);
    }

    /// Sets the watermark of every source.
    pub fn heartbeat_all(&mut self, tau: i64) {
        self.next_epoch();
        for source in &mut self.sources {
            source.heartbeat(tau);
        }
    }

    /// Removes a source that no query reads, with its counts; one that is read stays. For callers
    /// that create sources as queries start and end.
    pub fn remove_source(&mut self, source: &str) {
        let named = |s: &&mut Source| s.name.eq_ignore_ascii_case(source) && !s.used;
        if let Some(source) = self.sources.iter_mut().find(named) {
            // Operators refer to sources by position, so the entry stays and is reused for the next
            // new source.
            *source = Source::new("");
            source.closed = true;
        }
    }

    /// Closes a source; it no longer holds time back.
    pub fn close(&mut self, source: &str) {
        self.next_epoch();
        self.source(source).closed = true;
    }

    /// Sets the first instant, which only the owner of the sources can determine: from it on, an
    /// aggregate over no rows has its row. Only the first call has an effect. Without a call, that
    /// row exists from the first row of the input on.
    pub fn begin(&mut self, at: i64) {
        self.begin.get_or_insert(at);
    }

    /// Advances as far as all sources in use allow, and emits the results.
    pub fn step(&mut self, emit: &mut dyn FnMut(EngineOutput)) {
        let Some(target) = self.target() else { return };
        while self.now < target {
            self.next_epoch();
            let span = self.next_span(target);
            let mut sources = InUse {
                sources: &mut self.sources,
                now: self.now,
            };
            for position in 0..self.graph.nodes.len() {
                self.graph.step(position, span, &mut sources);
                for &query in &self.readers[position] {
                    self.queries[query].emit_results(&self.graph.nodes[position], emit);
                }
                self.graph.discard_output(position);
            }
            self.now = span.upto;
            for query in self.ended(span, emit) {
                self.remove(query);
            }
        }
    }

    /// Closes all sources and completes the last instant too. Time does not advance past the last
    /// row.
    pub fn finish(&mut self, emit: &mut dyn FnMut(EngineOutput)) {
        self.step(emit);
        for source in &mut self.sources {
            source.closed = true;
        }
        self.step(emit);
        self.emit_final(emit);
    }

    /// Emits the rows that operators emit after the last instant only.
    fn emit_final(&mut self, emit: &mut dyn FnMut(EngineOutput)) {
        let span = Span {
            after: self.now,
            upto: self.now,
            begin: self.begin,
            bytes_max: self.options.query_bytes_max,
            is_past_input: self.end.is_some(),
        };
        for position in 0..self.graph.nodes.len() {
            self.graph.finish(position, span);
            for &query in &self.readers[position] {
                self.queries[query].emit_results(&self.graph.nodes[position], emit);
            }
            self.graph.discard_output(position);
        }
        for query in self.ended(span, emit) {
            self.remove(query);
        }
    }

    /// As [`Engine::finish`], then advances time to `end`, as if no row arrived until then: results
    /// that wait for the end of a slide are emitted.
    pub fn finish_at(&mut self, end: i64, emit: &mut dyn FnMut(EngineOutput)) {
        self.finish(emit);
        self.end = Some(end);
        self.step(emit);
    }

    /// The last complete instant; `i64::MIN` before the first one.
    pub fn now(&self) -> i64 {
        self.now
    }

    /// The instant up to which rows are too old for a query of this plan that is added now.
    pub fn visible_after(&self, plan: &Plan) -> i64 {
        let sources = plan.sources().into_iter();
        let sources = sources.filter_map(|declaration| self.known(&declaration.name));
        let from = sources.map(|source| source.visible_after(self.now));
        from.max().unwrap_or(self.now)
    }

    /// Requests of a source that wait for the end of their instant or interval.
    pub fn waiting(&self, source: &str) -> u64 {
        self.known(source).map_or(0, Source::waiting)
    }

    /// Requests that a query has read and that are in none of its results yet, because the interval
    /// of their groups has not ended.
    pub fn open_requests(&self, query: QueryId) -> u64 {
        let query = self.queries.iter().find(|q| q.id == query);
        let nodes = query.into_iter().flat_map(|q| &q.below);
        let open = nodes.map(|&n| self.graph.nodes[n].open_requests());
        open.sum()
    }

    /// Counts of what has been processed so far.
    pub fn counts(&self) -> EngineCounts {
        let source = |s: &Source| SourceCounts {
            source: s.name.clone(),
            rows_in: s.rows_in,
            rows_late: s.rows_late,
            rows_unmatched: s.rows_unmatched,
            span: s.first_ts.zip(s.last_ts),
            rows_waiting: s.queue.len() as u64,
        };
        let query = |q: &Query| QueryCounts {
            query: q.id,
            rows_out: q.rows_out,
            bytes: q.bytes as u64,
        };
        EngineCounts {
            sources: self
                .sources
                .iter()
                .filter(|s| !s.name.is_empty())
                .map(source)
                .collect(),
            queries: self.queries.iter().map(query).collect(),
        }
    }

    /// The source called `name`, if it was named before.
    fn known(&self, name: &str) -> Option<&Source> {
        let mut sources = self.sources.iter();
        sources.find(|source| source.name.eq_ignore_ascii_case(name))
    }

    fn source(&mut self, name: &str) -> &mut Source {
        let at = position(&mut self.sources, name);
        &mut self.sources[at]
    }

    /// Starts a new epoch: queries added from here on start later than those before.
    fn next_epoch(&mut self) {
        if std::mem::take(&mut self.epoch_used) {
            self.epoch += 1;
        }
    }

    /// How far time may advance: the minimum watermark of all sources in use. When all are closed,
    /// the last row, or the beginning or the end that was set.
    fn target(&self) -> Option<i64> {
        let any_used = self.sources.iter().any(|s| s.used);
        let concerned = || self.sources.iter().filter(|s| s.used || !any_used);
        match concerned().filter(|s| !s.closed).map(|s| s.complete).min() {
            Some(complete) => Some(complete),
            None => {
                let last = concerned().filter_map(|s| s.last_ts).max();
                last.max(self.begin).max(self.end)
            }
        }
    }

    /// The next instants to process at once, up to `target` at most.
    fn next_span(&mut self, target: i64) -> Span {
        let sources = InUse {
            sources: &mut self.sources,
            now: self.now,
        };
        self.graph.open_gates(
            self.now,
            self.queries.iter_mut().map(|q| &mut q.edge),
            &sources,
        );
        let mut span = Span {
            after: self.now,
            upto: target,
            begin: self.begin,
            bytes_max: self.options.query_bytes_max,
            is_past_input: self.end.is_some(),
        };
        let rows_max = self.options.span_rows_max;
        for source in self.sources.iter().filter(|s| s.used) {
            if let (Some(at), Some(first)) = (source.queue.ts(rows_max), source.queue.ts(0)) {
                // An instant is never split, however many rows it has.
                span.upto = span.upto.min((at - 1).max(first));
            }
        }
        span.upto = self
            .graph
            .bound_span(span, rows_max, self.queries.iter().map(|q| &q.edge));
        span
    }

    /// The queries that failed or exceeded a limit in a span.
    fn ended(&mut self, span: Span, emit: &mut dyn FnMut(EngineOutput)) -> Vec<QueryId> {
        let mut ended = Vec::new();
        for query in &mut self.queries {
            let nodes = query.below.iter().map(|&n| &self.graph.nodes[n]);
            let bytes: usize = nodes.clone().map(|n| n.bytes).sum();
            query.bytes = bytes + query.consolidate.as_ref().map_or(0, Consolidate::bytes);
            let failed = self.graph.nodes[query.edge.node].error.clone();
            let error = failed.or_else(|| {
                let largest = nodes.max_by_key(|n| n.bytes)?;
                let too_big = query.bytes > span.bytes_max;
                too_big.then(|| describe::too_big(&largest.plan, largest.bytes, span.bytes_max))
            });
            if let Some(error) = error {
                emit(EngineOutput::Failed {
                    query: query.id,
                    error,
                });
                ended.push(query.id);
            }
        }
        ended
    }

    /// Records which queries read each operator, and which operators they need.
    fn find_readers(&mut self) {
        self.readers = vec![Vec::new(); self.graph.nodes.len()];
        for (at, query) in self.queries.iter_mut().enumerate() {
            self.readers[query.edge.node].push(at);
            query.below = self.graph.below(query.edge.node);
        }
    }
}

impl Query {
    /// Emits the results of a span.
    fn emit_results(&mut self, node: &Node, emit: &mut dyn FnMut(EngineOutput)) {
        if node.error.is_some() {
            return;
        }
        let seen = self.edge.hide(&node.out);
        let rows = seen.as_deref().unwrap_or(&node.out);
        let net = self
            .consolidate
            .as_mut()
            .map(|consolidate| consolidate.net(rows));
        let rows = net.as_deref().unwrap_or(rows);
        for batch in rows.iter().filter(|b| !b.is_empty()) {
            self.rows_out += batch.len() as u64;
            emit(EngineOutput::Rows {
                query: self.id,
                batch: batch.clone(),
            });
        }
    }
}

/// The position of the source called `name`, which is added if it is unknown.
fn position(sources: &mut Vec<Source>, name: &str) -> usize {
    let known = |s: &Source| s.name.eq_ignore_ascii_case(name);
    if let Some(at) = sources.iter().position(known) {
        return at;
    }
    match sources.iter().position(|s| s.name.is_empty()) {
        Some(forgotten) => {
            sources[forgotten] = Source::new(name);
            forgotten
        }
        None => {
            sources.push(Source::new(name));
            sources.len() - 1
        }
    }
}

/// The engine's sources as the graph sees them.
struct InUse<'a> {
    sources: &'a mut Vec<Source>,
    now: i64,
}

impl Sources for InUse<'_> {
    fn read(&mut self, declaration: &Declaration) -> (usize, i64) {
        let at = position(self.sources, &declaration.name);
        let source = &mut self.sources[at];
        source.declare(declaration);
        if !source.used {
            source.heartbeat(self.now);
            source.used = true;
        }
        (at, source.visible_after(self.now))
    }

    fn take(&mut self, source: usize, upto: i64) -> Vec<Batch> {
        self.sources[source].take(upto)
    }

    fn take_folded(&mut self, source: usize, upto: i64) -> Vec<Folded> {
        self.sources[source].take_folded(upto)
    }

    fn content(&self, source: usize, ts: i64) -> Option<Batch> {
        self.sources[source].content(ts)
    }

    fn mark_unused(&mut self, source: usize) {
        self.sources[source].mark_unused();
    }
}
