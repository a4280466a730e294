//! Runs an engine over a feed and collects its output, and checks the invariants of every query.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_model::{Batch, Column, Declaration, Shape};
use weir_query::Plan;
use weir_query::engine::{Engine, EngineOutput, QueryId};

use super::Row;
use super::changes::Changes;
use super::feed::Action;
use super::history::Element;

/// An engine under test and its output.
pub struct Run {
    /// The engine itself.
    pub engine: Engine,
    sources: Vec<Declaration>,
    queries: Vec<RunningQuery>,
}

/// A query and its output.
pub struct RunningQuery {
    id: QueryId,
    shape: Shape,
    /// Its output so far.
    pub changes: Changes,
    /// Its output row by row, in order.
    pub emitted: Vec<Element>,
    /// The message of its failure.
    pub failure: Option<String>,
    /// The last instant in the output of earlier steps.
    last_output: i64,
    content: BTreeMap<Row, i64>,
}

impl Run {
    /// An engine that reads these sources.
    pub fn new(engine: Engine, sources: Vec<Declaration>) -> Run {
        Run {
            engine,
            sources,
            queries: vec![],
        }
    }

    /// The sources that it reads.
    pub fn sources(&self) -> &[Declaration] {
        &self.sources
    }

    /// Sets the first instant, before anything else happens.
    pub fn begin(&mut self, at: Option<i64>) {
        if let Some(at) = at {
            self.engine.begin(at);
        }
    }

    /// Adds a query, and gives its position.
    pub fn add(&mut self, plan: &Arc<Plan>) -> usize {
        let id = self.engine.add(plan);
        self.collect_from(id, plan)
    }

    /// Adds a query of which only the final content is wanted, and gives its position.
    pub fn add_final(&mut self, plan: &Arc<Plan>) -> usize {
        let id = self.engine.add_final(plan);
        self.collect_from(id, plan)
    }

    fn collect_from(&mut self, id: QueryId, plan: &Plan) -> usize {
        self.queries.push(RunningQuery {
            id,
            shape: plan.shape,
            changes: Changes::default(),
            emitted: Vec::new(),
            failure: None,
            last_output: i64::MIN,
            content: BTreeMap::new(),
        });
        self.queries.len() - 1
    }

    /// Removes a query; its output stays.
    pub fn remove(&mut self, query: usize) {
        self.engine.remove(self.queries[query].id);
    }

    /// A query and its output.
    pub fn query(&self, query: usize) -> &RunningQuery {
        &self.queries[query]
    }

    /// Executes `actions`.
    pub fn act(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Push(source, rows) => {
                    let source = &self.sources[*source];
                    self.engine.push(&source.name, batch(source, rows));
                }
                Action::Heartbeat(source, ts) => {
                    self.engine.heartbeat(&self.sources[*source].name, *ts);
                }
                Action::Step => {
                    let mut outputs = Vec::new();
                    self.engine.step(&mut |output| outputs.push(output));
                    self.collect(outputs);
                }
            }
        }
    }

    /// Ends all sources.
    pub fn finish(&mut self) {
        let mut outputs = Vec::new();
        self.engine.finish(&mut |output| outputs.push(output));
        self.collect(outputs);
    }

    /// Collects the outputs of one step.
    fn collect(&mut self, outputs: Vec<EngineOutput>) {
        let now = self.engine.now();
        let last_output: Vec<i64> = self.queries.iter().map(|q| q.last_output).collect();
        for output in outputs {
            let of = |id: QueryId| {
                let found = self.queries.iter().position(|q| q.id == id);
                found.expect("output comes from queries that were added")
            };
            match output {
                EngineOutput::Rows { query, batch } => {
                    let query = of(query);
                    self.queries[query].take(&batch, last_output[query], now);
                }
                EngineOutput::Failed { query, error } => {
                    let query = of(query);
                    assert_eq!(self.queries[query].failure, None, "a query fails once");
                    self.queries[query].failure = Some(error.to_string());
                }
            }
        }
        self.queries.iter().for_each(RunningQuery::check_content);
    }
}

impl RunningQuery {
    fn take(&mut self, batch: &Batch, last_output: i64, now: i64) {
        assert_eq!(self.failure, None, "nothing comes out of a failed query");
        for i in 0..batch.len() {
            let (ts, weight, row) = (batch.ts[i], batch.weight(i), batch.row(i));
            assert_ne!(weight, 0, "a delta changes something");
            assert!(
                ts > last_output,
                "results for {ts} come out once, all together"
            );
            assert!(ts >= self.last_output, "results come out in time order");
            assert!(ts <= now, "nothing comes out of the future");
            self.last_output = ts;
            if self.shape == Shape::Stream {
                assert!(weight > 0, "nothing goes from a stream");
            } else {
                let opposite = self
                    .changes
                    .instants
                    .get(&ts)
                    .and_then(|rows| rows.get(&row));
                let cancels = opposite.is_some_and(|w| w.signum() != weight.signum());
                assert!(!cancels, "what cancels at {ts} is not printed: {row:?}");
                *self.content.entry(row.clone()).or_default() += weight;
            }
            self.emitted.push(Element {
                ts,
                weight,
                row: row.clone(),
            });
            self.changes.add(ts, row, weight);
        }
    }

    /// No row of a relation has a negative multiplicity.
    fn check_content(&self) {
        for (row, count) in &self.content {
            assert!(*count >= 0, "{row:?} went more often than it came");
        }
    }
}

/// Rows of a source as a batch.
pub fn batch(source: &Declaration, rows: &[Element]) -> Batch {
    let column = |i: usize| {
        let values = rows.iter().map(|e| e.row[i].clone());
        Column::from_values(source.schema[i].ty, values)
    };
    let columns = (0..source.schema.len()).map(column).collect();
    let ts: Vec<i64> = rows.iter().map(|e| e.ts).collect();
    match source.shape {
        Shape::Stream => Batch::stream(ts, columns),
        Shape::Relation => {
            let weights: Vec<i64> = rows.iter().map(|e| e.weight).collect();
            Batch::deltas(ts, weights, columns)
        }
    }
}
