//! What an agent may run so that the answer does not depend on the life of its process.
//!
//! Agents are ended, killed and started again, and time goes on at the monitor. So what is sent of
//! streams is always a stream: rows of one instant, made of rows that the agent has at hand, from
//! which the monitor makes the windows. A group of several instants would be counted anew by the
//! next process, and nothing would remove it when the host is gone. A join of a request's events,
//! which come from one process, is sent as the stream of its pairs, each with the earliest of its
//! rows' times, by which it leaves the window that the monitor makes again.

use std::sync::Arc;

use weir_model::{Field, Schema, Shape, Type, Unit};

use super::local;
use super::lower::is_seen_through_windows;
use crate::expr::{BinaryOp, Expr};
use crate::plan::{JoinKind, Node, Plan, SetOp, ToStream, Window};

/// How long what a plan gives at an instant is there, when no more rows come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasting {
    /// It is a stream, each row of which is made of rows of that instant.
    Passing,
    /// At that instant only: it is made of the instant's rows and of relations.
    Instant,
    /// From the last to so long after the earliest row that it is made of, both rounded up to a
    /// multiple of the slide; without `size` for ever.
    Since {
        size: Option<i64>,
        slide: Option<i64>,
    },
    /// As long as the query runs: rows of a stream, each by itself.
    Growing,
    /// Rows of a stream, each by itself, under windows of other kinds.
    Windows,
    /// Until relations change: it is made of nothing else.
    Relation,
}

/// The stream's column with the time of each row.
const TIME: &str = "ts";

/// Why an operator is not run where a process has only what came since it began.
const REMEMBERS: &str =
    "it looks at rows of several instants, which another process of the agent would not have";

/// Why a join of a request's events is not run there: [`Window::Since`] goes by one time.
const DIFFER: &str =
    "its windows differ, and the earlier of two times does not tell when a pair leaves both";

/// How long what a local plan gives lasts.
///
/// # Errors
/// Why it may not run on the agents: a clause without full stop.
pub(super) fn lasting(plan: &Plan) -> Result<Lasting, String> {
    use Lasting::{Growing, Instant, Passing, Relation, Since, Windows};
    let below = plan.inputs().into_iter().map(|input| lasting(input));
    let below = below.collect::<Result<Vec<Lasting>, String>>()?;
    let lasts = match (&plan.node, &below[..]) {
        (Node::Source(declaration), _) => match declaration.shape {
            Shape::Stream => Passing,
            Shape::Relation => Relation,
        },
        (Node::Select { .. } | Node::Project { .. }, [input]) => *input,
        // On a relation it changes nothing.
        (Node::Window { .. }, [Relation]) => Relation,
        (Node::Window { window, .. }, [Passing]) => match window {
            Window::Now => Instant,
            Window::Range { size, slide } => Since {
                size: Some(*size),
                slide: *slide,
            },
            Window::Unbounded { slide: None } => Growing,
            Window::Unbounded { slide } => Since {
                size: None,
                slide: *slide,
            },
            _ => Windows,
        },
        // Groups of an interval are merged at the monitor, whichever process they come from.
        (Node::Partial { .. }, [Passing]) => Passing,
        (Node::Aggregate { .. } | Node::Distinct { .. }, [Instant]) => Instant,
        (Node::Aggregate { .. } | Node::Distinct { .. }, [Relation]) => Relation,
        (Node::Join { kind, .. }, [left, right]) => {
            return join(plan, *kind, *left, *right);
        }
        (Node::SetOp { .. }, [Instant, Instant]) => Instant,
        (Node::SetOp { .. }, [Relation, Relation]) => Relation,
        (
            Node::SetOp {
                op: SetOp::Union,
                all: true,
                ..
            },
            [left, right],
        ) if is_seen_through_windows(plan) => match left == right {
            true => *left,
            false => Windows,
        },
        (
            Node::ToStream {
                kind: ToStream::Istream,
                ..
            },
            [Growing],
        ) => Passing,
        (
            Node::ToStream {
                kind: ToStream::Rstream { .. },
                ..
            },
            [Instant],
        ) => Passing,
        _ => return Err(REMEMBERS.into()),
    };
    Ok(lasts)
}

fn join(plan: &Plan, kind: JoinKind, left: Lasting, right: Lasting) -> Result<Lasting, String> {
    use JoinKind::{Anti, Inner, Left, NotIn, Right, Semi};
    use Lasting::{Instant, Relation};
    match (left, right, kind) {
        (Instant, Instant, _) => Ok(Instant),
        (Relation, Relation, _) => Ok(Relation),
        (Instant, Relation, Inner | Left | Semi | Anti | NotIn) => Ok(Instant),
        (Relation, Instant, Inner | Right | Semi) => Ok(Instant),
        (_, _, Inner) => match (left.since(), right.since()) {
            (Some(one), Some(other)) if local::joins_by_request(plan) => {
                if one != other {
                    return Err(DIFFER.into());
                }
                let mut inputs = plan.inputs().into_iter();
                match inputs.all(|input| dated(input).is_some()) {
                    true => Ok(one),
                    false => Err(format!("its rows do not have their time (`{TIME}`)")),
                }
            }
            _ => Err(REMEMBERS.into()),
        },
        _ => Err(REMEMBERS.into()),
    }
}

impl Lasting {
    /// The same as [`Lasting::Since`], if it is that.
    fn since(self) -> Option<Lasting> {
        match self {
            Lasting::Since { .. } => Some(self),
            Lasting::Growing => Some(Lasting::Since {
                size: None,
                slide: None,
            }),
            _ => None,
        }
    }
}

/// What is sent of a local plan that is not seen through windows alone, and the window under which
/// the monitor has the same relation again. The stream may have one more column, the last, which is
/// then the window's.
pub(super) fn as_stream(plan: &Arc<Plan>) -> Option<(Arc<Plan>, Window)> {
    match lasting(plan) {
        Ok(Lasting::Instant) => {
            let rows = Plan::to_stream(plan.clone(), ToStream::Rstream { every: None });
            Some((rows, Window::Now))
        }
        Ok(Lasting::Since { size, slide }) => {
            let dated = dated(plan)?;
            let origin = last_column(&dated);
            let window = Window::Since {
                origin,
                size,
                slide,
            };
            Some((Plan::to_stream(dated, ToStream::Istream), window))
        }
        _ => None,
    }
}

/// The same plan with one more column: the earliest time of the rows that each of its rows is made
/// of. `None` where a stream has no such column. Its windows do not slide: a pair is sent when it is
/// made, with the time at which it was, and the monitor makes the slide.
fn dated(plan: &Arc<Plan>) -> Option<Arc<Plan>> {
    match &plan.node {
        Node::Source(declaration) => {
            let fields = &declaration.schema.fields;
            let is_time = |f: &Field| f.name.eq_ignore_ascii_case(TIME) && f.ty == Type::Time;
            let at = fields.iter().position(is_time)?;
            let mut exprs = plan.columns();
            exprs.push(exprs[at].clone());
            Some(with_origin(plan.clone(), exprs, &plan.schema))
        }
        Node::Window { input, window } => {
            let window = match window {
                Window::Range { size, .. } => Window::Range {
                    size: *size,
                    slide: None,
                },
                Window::Unbounded { .. } => Window::Unbounded { slide: None },
                _ => return None,
            };
            Some(Plan::window(dated(input)?, window))
        }
        Node::Select { input, .. } => Some(plan.with_inputs(vec![dated(input)?])),
        Node::Project { input, exprs } => {
            let input = dated(input)?;
            let mut exprs = exprs.clone();
            exprs.push(last_column(&input));
            Some(with_origin(input, exprs, &plan.schema))
        }
        Node::Join {
            left,
            right,
            kind,
            on,
            residual,
        } => {
            let (before, after) = (left.schema.len(), right.schema.len());
            let (left, right) = (dated(left)?, dated(right)?);
            let behind = |at: usize| at + usize::from(at >= before);
            let residual = residual.as_ref().map(|all| all.map_columns(&behind));
            let joined = Plan::join(left, right, *kind, on.clone(), residual);
            let columns = joined.columns();
            let (left, right) = (columns[before].clone(), columns[before + 1 + after].clone());
            let mut exprs: Vec<Expr> = (0..before + after)
                .map(|at| columns[behind(at)].clone())
                .collect();
            exprs.push(earlier(left, right));
            Some(with_origin(joined, exprs, &plan.schema))
        }
        _ => None,
    }
}

/// A projection to the columns of `schema` and a time.
fn with_origin(input: Arc<Plan>, exprs: Vec<Expr>, schema: &Schema) -> Arc<Plan> {
    let mut fields = schema.fields.clone();
    fields.push(Field::new("origin", Type::Time).unit(Unit::Nanoseconds));
    Plan::project(input, exprs, fields)
}

fn last_column(plan: &Plan) -> Expr {
    let at = plan.schema.len() - 1;
    Expr::column(at, plan.schema[at].ty, plan.schema[at].unit)
}

/// The lesser of two times.
fn earlier(a: Expr, b: Expr) -> Expr {
    let is_less = Expr::Binary {
        op: BinaryOp::Less,
        left: Box::new(a.clone()),
        right: Box::new(b.clone()),
        unit: Unit::None,
    };
    Expr::Case {
        ty: a.ty(),
        unit: a.unit(),
        branches: vec![(is_less, a)],
        otherwise: Some(Box::new(b)),
    }
}
