//! The oracle: the result of a query, computed by brute force from the definitions and without
//! regard to cost.
//!
//! At each instant at which the result can change, every operator of the plan is recomputed from
//! all rows so far. Nothing is incremental, nothing is shared with the engine: windows are filters
//! over the whole past, joins are nested loops, aggregates read all rows of their group,
//! expressions are evaluated row by row. Streams are computed from relations by comparing each
//! instant with the previous one.

mod aggregate;
mod calendar;
mod expr;
mod instants;
mod over;
mod relation;
mod row_match;
mod scalar;
mod text;
mod window;

use std::cell::RefCell;

use weir_model::Shape;
use weir_query::plan::{GlobalGroup, JoinNode, Node, Plan, ToStream};

use super::Row;
use super::changes::Changes;
use super::history::History;

/// The result of a query.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The changes, up to the failure if there is one.
    pub changes: Changes,
    /// The instant of its failure and the message.
    pub failure: Option<(i64, String)>,
}

/// The rows at each instant: a relation's content, or the rows of a stream.
///
/// The order of rows is that of arrival where rows come from a stream through a window; else it is
/// undefined.
type Contents = Vec<Vec<Row>>;

/// The result of `plan` on `history`, from scratch.
pub fn evaluate(plan: &Plan, history: &History) -> Outcome {
    let oracle = Oracle {
        history,
        instants: instants::of(plan, history),
        failure: RefCell::new(None),
    };
    let contents = oracle.contents(plan);
    let failure = oracle.failure.into_inner();
    let mut changes = Changes::default();
    let mut before: &[Row] = &[];
    for (i, ts) in oracle.instants.iter().enumerate() {
        if failure.as_ref().is_some_and(|f| f.instant <= i) {
            break;
        }
        let now = &contents[i];
        now.iter().for_each(|row| changes.add(*ts, row.clone(), 1));
        if plan.shape == Shape::Relation {
            before
                .iter()
                .for_each(|row| changes.add(*ts, row.clone(), -1));
            before = now;
        }
    }
    Outcome {
        changes,
        failure: failure.map(|f| (oracle.instants[f.instant], f.message)),
    }
}

struct Oracle<'a> {
    history: &'a History,
    /// All relevant instants, ascending.
    instants: Vec<i64>,
    failure: RefCell<Option<Failure>>,
}

/// An expression that cannot be evaluated, at the earliest instant known.
struct Failure {
    instant: usize,
    message: String,
}

impl Oracle<'_> {
    fn contents(&self, plan: &Plan) -> Contents {
        match &plan.node {
            Node::Source(source) => self.source(&source.name, source.shape),
            Node::Window { input, window } if input.shape == Shape::Stream => {
                let rows = self.contents(input);
                self.each_instant(|i| window::content(window, &self.instants[..=i], &rows[..=i]))
            }
            // On a relation only the unbounded window is possible, and it is the relation.
            Node::Window { input, .. } => self.contents(input),
            Node::Select { input, predicate } => {
                let rows = self.contents(input);
                self.each_instant(|i| relation::select(&rows[i], predicate))
            }
            Node::Project { input, exprs } => {
                let rows = self.contents(input);
                self.each_instant(|i| relation::project(&rows[i], exprs))
            }
            Node::Join(JoinNode {
                left,
                right,
                kind,
                on,
                residual,
            }) => {
                let (left_rows, right_rows) = (self.contents(left), self.contents(right));
                let columns = [left.schema.len(), right.schema.len()];
                let join = relation::Join {
                    kind: *kind,
                    on,
                    residual: residual.as_ref(),
                    columns,
                };
                self.each_instant(|i| join.content(&left_rows[i], &right_rows[i]))
            }
            Node::Aggregate {
                input,
                keys,
                calls,
                global,
            } => {
                let rows = self.contents(input);
                let begin = match global {
                    GlobalGroup::FromStart => self.history.begin.unwrap_or(i64::MAX),
                    GlobalGroup::FromFirstRow => i64::MAX,
                };
                self.each_instant(|i| {
                    let had_rows = rows[..=i].iter().any(|content| !content.is_empty());
                    let started = had_rows || self.instants[i] >= begin;
                    aggregate::content(&rows[i], keys, calls, started)
                })
            }
            Node::Partial { .. } | Node::Merge { .. } => {
                unreachable!("a query as written has no partials")
            }
            Node::Over { input, by, calls } => {
                let rows = self.contents(input);
                self.each_instant(|i| over::content(&rows[i], by, calls))
            }
            Node::Match { input, by } => {
                let rows = self.contents(input);
                let matches = row_match::Matches::new(by);
                self.each_instant(|i| {
                    matches.at(self.instants[i], &self.instants[..=i], &rows[..=i])
                })
            }
            Node::Correlate { .. } => {
                unreachable!("the tests of `weir correlate` recompute correlations")
            }
            Node::Distinct { input } => {
                let rows = self.contents(input);
                self.each_instant(|i| Ok(relation::distinct(&rows[i])))
            }
            Node::SetOp {
                left,
                right,
                op,
                all,
            } => {
                let (left, right) = (self.contents(left), self.contents(right));
                self.each_instant(|i| Ok(relation::combine(*op, *all, &left[i], &right[i])))
            }
            Node::Order {
                input,
                by,
                limit,
                offset,
            } => {
                let rows = self.contents(input);
                self.each_instant(|i| relation::first(&rows[i], by, *limit, *offset))
            }
            Node::ToStream { input, kind } => {
                let rows = self.contents(input);
                let ticks = instants::arrivals(input, self.history);
                self.each_instant(|i| {
                    let before: &[Row] = if i == 0 { &[] } else { &rows[i - 1] };
                    let came = relation::except_all(&rows[i], before);
                    let went = relation::except_all(before, &rows[i]);
                    let ts = self.instants[i];
                    Ok(match kind {
                        ToStream::Istream => came,
                        ToStream::Dstream => went,
                        ToStream::Rstream { every: Some(every) } if ts.rem_euclid(*every) == 0 => {
                            rows[i].clone()
                        }
                        ToStream::Rstream { every: Some(_) } => vec![],
                        ToStream::Rstream { every: None } => {
                            let changed = !came.is_empty() || !went.is_empty();
                            if changed || ticks.contains(&ts) {
                                rows[i].clone()
                            } else {
                                vec![]
                            }
                        }
                    })
                })
            }
        }
    }

    /// A stream's rows at each instant, or all rows in a relation then.
    fn source(&self, name: &str, shape: Shape) -> Contents {
        let elements = self.history.source(name);
        let at = |ts: i64| -> Vec<Row> {
            match shape {
                Shape::Stream => {
                    let now = elements.iter().filter(|e| e.ts == ts);
                    now.map(|e| e.row.clone()).collect()
                }
                Shape::Relation => {
                    let mut content: Vec<Row> = Vec::new();
                    for e in elements.iter().filter(|e| e.ts <= ts) {
                        for _ in 0..e.weight.abs() {
                            if e.weight > 0 {
                                content.push(e.row.clone());
                            } else if let Some(i) = content.iter().position(|r| *r == e.row) {
                                content.remove(i);
                            }
                        }
                    }
                    content
                }
            }
        };
        self.instants.iter().map(|ts| at(*ts)).collect()
    }

    /// `content` at each instant before the earliest failure, which may happen here.
    fn each_instant(&self, content: impl Fn(usize) -> Result<Vec<Row>, String>) -> Contents {
        let mut contents = Contents::new();
        for i in 0..self.instants.len() {
            if self
                .failure
                .borrow()
                .as_ref()
                .is_some_and(|f| f.instant <= i)
            {
                break;
            }
            match content(i) {
                Ok(rows) => contents.push(rows),
                Err(message) => {
                    *self.failure.borrow_mut() = Some(Failure {
                        instant: i,
                        message,
                    })
                }
            }
        }
        contents
    }
}
