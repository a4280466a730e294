//! The plans that an agent may run such that the answer does not depend on the lifetime of its
//! process.
//!
//! Agents are ended, killed and restarted, while time advances at the monitor. So data of
//! streams is always sent as a stream: rows of one instant, computed from rows that the agent has,
//! from which the monitor computes the windows. A group of several instants would be counted again
//! by the next process, and would not be removed when the host has left. A join of a request's
//! events, which are observed by one process, is sent as the stream of its pairs, each with the
//! earliest of its rows' times, which determines when it leaves the window that the monitor
//! computes.

use std::sync::Arc;

use weir_model::{Field, Schema, Shape, Type, Unit};

use super::local;
use super::lower::is_seen_through_windows;
use crate::expr::{BinaryOp, Expr};
use crate::plan::{JoinKind, Node, Plan, SetOp, ToStream, Window};
use crate::window::{self, Unbounded};

/// How long the output of a plan at an instant remains, without further rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// It is a stream, each row of which depends on rows of that instant.
    Passing,
    /// At that instant only: it depends on the instant's rows and on relations.
    Instant,
    /// From the latest to `size` after the earliest of its input rows, both rounded up to a
    /// multiple of the slide; without `size` for ever.
    Since {
        size: Option<i64>,
        slide: Option<i64>,
    },
    /// As long as the query runs: rows of a stream, each independent of the others.
    Growing,
    /// Rows of a stream, each independent of the others, under windows of other kinds.
    Windows,
    /// Until relations change: it depends on nothing else.
    Relation,
}

/// The stream's column with the time of each row.
const TIME: &str = "ts";

/// Why an operator does not run where a process has only the rows since its start.
const REMEMBERS: &str = "it needs rows of several instants, which are lost when the agent restarts";

/// Why a join of a request's events does not run there: [`window::Since`] uses one time.
const DIFFER: &str = "its windows differ, so the time at which a pair expires is unknown";

/// How long the output of a local plan remains.
///
/// # Errors
/// Why it may not run on the agents: a clause without full stop.
pub(super) fn lifetime(plan: &Plan) -> Result<Lifetime, String> {
    use Lifetime::{Growing, Instant, Passing, Relation, Since, Windows};
    let below = plan.inputs().into_iter().map(|input| lifetime(input));
    let below = below.collect::<Result<Vec<Lifetime>, String>>()?;
    let lasts = match (&plan.node, &below[..]) {
        (Node::Source(declaration), _) => match declaration.shape {
            Shape::Stream => Passing,
            Shape::Relation => Relation,
        },
        (Node::Select { .. } | Node::Project { .. }, [input]) => *input,
        // On a relation it has no effect.
        (Node::Window { .. }, [Relation]) => Relation,
        (Node::Window { window, .. }, [Passing]) => match window {
            Window::Now(_) => Instant,
            Window::Range(window::Range { size, slide }) => Since {
                size: Some(*size),
                slide: *slide,
            },
            Window::Unbounded(Unbounded { slide: None }) => Growing,
            Window::Unbounded(Unbounded { slide }) => Since {
                size: None,
                slide: *slide,
            },
            _ => Windows,
        },
        // Groups of an interval are merged at the monitor, independent of the process.
        (Node::Partial { .. }, [Passing]) => Passing,
        (Node::Aggregate { .. } | Node::Over { .. } | Node::Distinct { .. }, [Instant]) => Instant,
        (Node::Aggregate { .. } | Node::Over { .. } | Node::Distinct { .. }, [Relation]) => {
            Relation
        }
        (Node::Join(node), [left, right]) => {
            return join(plan, node.kind, *left, *right);
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

fn join(plan: &Plan, kind: JoinKind, left: Lifetime, right: Lifetime) -> Result<Lifetime, String> {
    use JoinKind::{Anti, Inner, Left, NotIn, Right, Semi};
    use Lifetime::{Instant, Relation};
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
                    false => Err(format!(
                        "its rows do not contain their timestamp (`{TIME}`)"
                    )),
                }
            }
            _ => Err(REMEMBERS.into()),
        },
        _ => Err(REMEMBERS.into()),
    }
}

impl Lifetime {
    /// Itself, if it is [`Lifetime::Since`].
    fn since(self) -> Option<Lifetime> {
        match self {
            Lifetime::Since { .. } => Some(self),
            Lifetime::Growing => Some(Lifetime::Since {
                size: None,
                slide: None,
            }),
            _ => None,
        }
    }
}

/// The stream that is sent for a local plan that is not only read through windows, and the window
/// by which the monitor computes the same relation. The stream may have one more column, the last,
/// which that window uses.
pub(super) fn as_stream(plan: &Arc<Plan>) -> Option<(Arc<Plan>, Window)> {
    match lifetime(plan) {
        Ok(Lifetime::Instant) => {
            let rows = Plan::to_stream(plan.clone(), ToStream::Rstream { every: None });
            Some((rows, window::Now.into()))
        }
        Ok(Lifetime::Since { size, slide }) => {
            let dated = dated(plan)?;
            let origin = last_column(&dated);
            let window = window::Since {
                origin,
                size,
                slide,
            };
            Some((Plan::to_stream(dated, ToStream::Istream), window.into()))
        }
        _ => None,
    }
}

/// The plan with one more column: the earliest time of the input rows of each of its rows. `None`
/// if a stream has no such column. Its windows do not slide: a pair is sent when it is complete,
/// with that time, and the monitor computes the slide.
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
                Window::Range(range) => Window::range(range.size, None),
                Window::Unbounded(_) => Window::unbounded(None),
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
        Node::Join(join) => {
            let (before, after) = (join.left.schema.len(), join.right.schema.len());
            let (left, right) = (dated(&join.left)?, dated(&join.right)?);
            let behind = |at: usize| at + usize::from(at >= before);
            let residual = join.residual.as_ref().map(|all| all.map_columns(&behind));
            let joined = Plan::join(left, right, join.kind, join.on.clone(), residual);
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

/// The earlier of two times.
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
