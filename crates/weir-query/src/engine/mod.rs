//! The engine: plans as operators; batches go in, deltas come out.
//!
//! The life of a step:
//!
//! 1. Rows wait in their source ([`source`]) until their instant is complete: until a later row or
//!    a heartbeat has come.
//! 2. [`Engine::step`] looks how far all sources in use have come, and goes there from `now` in
//!    spans of bounded work.
//! 3. In each span every operator ([`operator`]), inputs first, takes the deltas of its inputs at
//!    all of the span's instants at once and gives its own. Windows ([`window`]) add what leaves by
//!    time alone.
//! 4. Where a query ends, what cancels within an instant is taken out ([`consolidate`]), and the
//!    rest is handed to the caller.
//! 5. What failed, or holds more than it may, is taken out with the queries that need it. The
//!    others do not notice.
//!
//! Invariants: operators see complete instants only, in time order, and each instant once. Within
//! an instant, a row that goes has come before. No operator looks at a clock, and none depends on
//! how the instants are cut into spans or the rows into batches.

mod aggregate;
mod bag;
mod by_time;
mod consolidate;
mod describe;
mod eval;
mod fifo;
mod gather;
mod graph;
mod join;
mod keys;
mod lane;
mod operator;
mod order;
mod project;
mod select;
mod set_op;
mod source;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod to_stream;
mod window;

use std::sync::Arc;

use weir_model::{Batch, Declaration, Folded};

use self::consolidate::Consolidate;
pub use self::gather::{batch_bytes, in_time_order, take_batch};
use self::graph::{Birth, Edge, Graph, Node, Sources};
use self::operator::Span;
use self::source::Source;
use crate::function::EvalError;
use crate::physical::physical;
use crate::plan::Plan;

/// What an engine may use.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Most bytes of state that one query may hold, shared state included.
    pub query_bytes_max: usize,
    /// About how many rows the operators take at once, at least 1. Bounds what lies between them;
    /// results do not depend on it.
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

/// What a step gives.
#[derive(Clone, Debug)]
pub enum Output {
    /// Results, in time order: for a relation the net deltas of each instant, for a stream its
    /// rows, without weights.
    Rows {
        /// Of which query.
        query: QueryId,
        /// The rows.
        batch: Batch,
    },
    /// The query came to an end by its own fault; nothing more comes of it.
    Failed {
        /// Which query.
        query: QueryId,
        /// Why.
        error: EvalError,
    },
}

/// What an engine has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By source, in order of first mention.
    pub sources: Vec<SourceCounts>,
    /// By running query, in the order in which they were added.
    pub queries: Vec<QueryCounts>,
}

/// What came from a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceCounts {
    /// Its name.
    pub source: String,
    /// Rows pushed.
    pub rows_in: u64,
    /// Those of them dropped, because their instant was complete already.
    pub rows_late: u64,
    /// Of a relation: how often a row was to go that was not there; that was ignored.
    pub rows_unmatched: u64,
    /// Rows that wait for their instant to be complete.
    pub rows_waiting: u64,
    /// The instants of the first row and of the last, of those that came as rows.
    pub span: Option<(i64, i64)>,
}

/// What a query gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryCounts {
    /// Which query.
    pub query: QueryId,
    /// Rows and deltas given.
    pub rows_out: u64,
    /// About how many bytes it holds, shared state included.
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
    /// The first instant of all, once it is known.
    begin: Option<i64>,
    /// Time goes on to here when all sources have ended.
    end: Option<i64>,
    queries_ever: u32,
    epoch: u64,
    epoch_used: bool,
}

struct Query {
    id: QueryId,
    edge: Edge,
    /// Takes out what cancels, where the plan does not see to that itself.
    consolidate: Option<Consolidate>,
    /// The nodes it needs, by position.
    below: Vec<usize>,
    rows_out: u64,
    bytes: usize,
}

impl Engine {
    /// An engine without queries, before all time.
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

    /// Starts a query. It sees what its sources give from here on, and what its relations hold by
    /// now; what else runs makes no difference.
    pub fn add(&mut self, plan: &Plan) -> QueryId {
        let id = QueryId(self.queries_ever);
        self.queries_ever += 1;
        self.epoch_used = true;
        let birth = Birth {
            now: self.now,
            epoch: self.epoch,
        };
        let physical = physical(&Arc::new(plan.clone()));
        let mut sources = InUse {
            sources: &mut self.sources,
            now: self.now,
        };
        let edge = self.graph.connect(&physical, birth, &mut sources);
        let consolidate = (!physical.is_net).then(|| Consolidate::new(&plan.schema));
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
        id
    }

    /// Ends a query and drops what only it needed. Unknown or ended queries are no error.
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

    /// Makes a source known before a query names it, so that the content of a relation is kept from
    /// its first row on.
    pub fn declare(&mut self, declaration: &Declaration) {
        self.source(&declaration.name).declare(declaration);
    }

    /// Takes rows of a source in, in time order. Late ones, at or before an instant that is
    /// complete, are dropped and counted.
    pub fn push(&mut self, source: &str, batch: Batch) {
        self.moved();
        self.source(source).push(batch);
    }

    /// Takes groups in that a source folded. They stand for rows of the interval at whose end they
    /// are, and belong to its last instant; late ones are dropped and counted as the rows that they
    /// stand for.
    pub fn push_folded(&mut self, source: &str, folded: Folded) {
        self.moved();
        self.source(source).push_folded(folded);
    }

    /// No more rows at or before `tau` will come from a source, or those that come are too late.
    pub fn heartbeat(&mut self, source: &str, tau: i64) {
        self.moved();
        self.source(source).heartbeat(tau);
    }

    /// No more rows at or before `tau` will come from any source.
    pub fn heartbeat_all(&mut self, tau: i64) {
        self.moved();
        for source in &mut self.sources {
            source.heartbeat(tau);
        }
    }

    /// Forgets a source that no query reads, with what it counted; one that is read stays. For who
    /// makes sources as queries come and go.
    pub fn forget(&mut self, source: &str) {
        let named = |s: &&mut Source| s.name.eq_ignore_ascii_case(source) && !s.used;
        if let Some(source) = self.sources.iter_mut().find(named) {
            // Operators know sources by their positions, so the place stays, for the next new one.
            *source = Source::new("");
            source.closed = true;
        }
    }

    /// A source has ended; it no longer holds time back.
    pub fn close(&mut self, source: &str) {
        self.moved();
        self.source(source).closed = true;
    }

    /// Sets the first instant of all, which nothing but the sources' owner can know: an aggregate
    /// over no rows has its row from there on. Only the first call has an effect. Without any, that
    /// row exists from the first row of the input on.
    pub fn begin(&mut self, at: i64) {
        self.begin.get_or_insert(at);
    }

    /// Goes on as far as all sources in use allow, and gives what comes of it.
    pub fn step(&mut self, emit: &mut dyn FnMut(Output)) {
        let Some(target) = self.target() else { return };
        while self.now < target {
            self.moved();
            let span = self.next_span(target);
            let mut sources = InUse {
                sources: &mut self.sources,
                now: self.now,
            };
            for position in 0..self.graph.nodes.len() {
                self.graph.step(position, span, &mut sources);
                for &query in &self.readers[position] {
                    self.queries[query].give(&self.graph.nodes[position], emit);
                }
                self.graph.forget(position);
            }
            self.now = span.upto;
            for query in self.ended(span, emit) {
                self.remove(query);
            }
        }
    }

    /// Ends all sources and completes the last instant too. Time does not go on after the last row.
    pub fn finish(&mut self, emit: &mut dyn FnMut(Output)) {
        self.step(emit);
        for source in &mut self.sources {
            source.closed = true;
        }
        self.step(emit);
    }

    /// The same, and then time goes on to `end`, as if no row came until then: what waits for the
    /// end of a slide is shown.
    pub fn finish_at(&mut self, end: i64, emit: &mut dyn FnMut(Output)) {
        self.finish(emit);
        self.end = Some(end);
        self.step(emit);
    }

    /// The last complete instant; `i64::MIN` before all time.
    pub fn now(&self) -> i64 {
        self.now
    }

    /// The instant up to which rows are too old for a query of this plan that was added just now.
    pub fn seen_from(&self, plan: &Plan) -> i64 {
        let named = |d: &Declaration| {
            let mut sources = self.sources.iter();
            sources.find(|s| s.name.eq_ignore_ascii_case(&d.name))
        };
        let sources = plan.sources().into_iter().filter_map(named);
        let from = sources.map(|source| source.seen_from(self.now));
        from.max().unwrap_or(self.now)
    }

    /// Requests of a source that wait for their instant, or their interval, to be over.
    pub fn waiting(&self, source: &str) -> u64 {
        let mut sources = self.sources.iter();
        let source = sources.find(|s| s.name.eq_ignore_ascii_case(source));
        source.map_or(0, Source::waiting)
    }

    /// Requests that a query has taken in and that are in none of its results yet, because the
    /// interval of their groups is under way.
    pub fn open_requests(&self, query: QueryId) -> u64 {
        let query = self.queries.iter().find(|q| q.id == query);
        let nodes = query.into_iter().flat_map(|q| &q.below);
        let open = nodes.map(|&n| self.graph.nodes[n].open_requests());
        open.sum()
    }

    /// What has been done so far.
    pub fn counts(&self) -> Counts {
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
        Counts {
            sources: self
                .sources
                .iter()
                .filter(|s| !s.name.is_empty())
                .map(source)
                .collect(),
            queries: self.queries.iter().map(query).collect(),
        }
    }

    fn source(&mut self, name: &str) -> &mut Source {
        let at = position(&mut self.sources, name);
        &mut self.sources[at]
    }

    /// Queries added from here on are younger than those before.
    fn moved(&mut self) {
        if std::mem::take(&mut self.epoch_used) {
            self.epoch += 1;
        }
    }

    /// How far time may go: to where all sources in use have come. When all have ended, to the last
    /// row, or to the beginning or the end that was set.
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

    /// The next instants to be done at once, up to `target` at most.
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
        };
        let rows_max = self.options.span_rows_max;
        for source in self.sources.iter().filter(|s| s.used) {
            if let (Some(at), Some(first)) = (source.queue.ts(rows_max), source.queue.ts(0)) {
                // An instant is never cut, however many rows it has.
                span.upto = span.upto.min((at - 1).max(first));
            }
        }
        span.upto = self
            .graph
            .reach(span, rows_max, self.queries.iter().map(|q| &q.edge));
        span
    }

    /// Which queries have come to their end in a span, by failing or by holding too much.
    fn ended(&mut self, span: Span, emit: &mut dyn FnMut(Output)) -> Vec<QueryId> {
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
                emit(Output::Failed {
                    query: query.id,
                    error,
                });
                ended.push(query.id);
            }
        }
        ended
    }

    /// Notes which queries read which operator, and what they need.
    fn find_readers(&mut self) {
        self.readers = vec![Vec::new(); self.graph.nodes.len()];
        for (at, query) in self.queries.iter_mut().enumerate() {
            self.readers[query.edge.node].push(at);
            query.below = self.graph.below(query.edge.node);
        }
    }
}

impl Query {
    /// Hands out what has come of a span.
    fn give(&mut self, node: &Node, emit: &mut dyn FnMut(Output)) {
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
            emit(Output::Rows {
                query: self.id,
                batch: batch.clone(),
            });
        }
    }
}

/// The position of the source called `name`, which is made known if it is not.
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
        (at, source.seen_from(self.now))
    }

    fn take(&mut self, source: usize, upto: i64) -> Vec<Batch> {
        self.sources[source].take(upto)
    }

    fn take_folded(&mut self, source: usize, upto: i64) -> Vec<Folded> {
        self.sources[source].take_folded(upto)
    }

    fn content(&self, source: usize, ts: i64) -> Option<Batch> {
        let content = self.sources[source].content.as_ref()?;
        Some(Batch::deltas(
            vec![ts; content.len()],
            vec![1; content.len()],
            content.rows(),
        ))
    }

    fn abandon(&mut self, source: usize) {
        self.sources[source].abandon();
    }
}
