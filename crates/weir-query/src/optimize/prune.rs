//! Columns that nobody reads are dropped before windows and joins, which would keep them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::expr::Expr;
use crate::function::AggregateCall;
use crate::plan::{JoinKind, Node, OrderBy, Plan, SetOp, Window};

/// Columns in use, by position.
type Columns = BTreeSet<usize>;

/// A plan that lacks columns, and where each column of the old one is now. All that were asked for
/// are there.
struct Pruned {
    plan: Arc<Plan>,
    places: Vec<Option<usize>>,
}

/// Applies the rule to a whole plan. All columns of its result stay, in their places.
pub fn apply(plan: &Arc<Plan>) -> Arc<Plan> {
    exactly(plan, &whole(plan))
}

fn whole(plan: &Plan) -> Columns {
    (0..plan.schema.len()).collect()
}

impl Pruned {
    /// Nothing dropped.
    fn all(plan: Arc<Plan>) -> Pruned {
        let places = (0..plan.schema.len()).map(Some).collect();
        Pruned { plan, places }
    }

    fn moved(&self, expr: &Expr) -> Expr {
        expr.map_columns(&|i| self.place(i))
    }

    fn place(&self, old: usize) -> usize {
        self.places[old].expect("what is read was asked for")
    }
}

/// A plan with the columns `wanted` in their order and no others.
fn exactly(plan: &Arc<Plan>, wanted: &Columns) -> Arc<Plan> {
    let pruned = prune(plan, wanted);
    let places: Vec<usize> = wanted.iter().map(|i| pruned.place(*i)).collect();
    if places.iter().copied().eq(0..pruned.plan.schema.len()) {
        return pruned.plan;
    }
    let columns = pruned.plan.columns();
    let exprs = places.iter().map(|i| columns[*i].clone()).collect();
    let fields = places
        .iter()
        .map(|i| pruned.plan.schema[*i].clone())
        .collect();
    Plan::project(pruned.plan, exprs, fields)
}

/// `exactly`, with the places.
fn narrow(plan: &Arc<Plan>, wanted: &Columns) -> Pruned {
    let mut places = vec![None; plan.schema.len()];
    for (new, old) in wanted.iter().enumerate() {
        places[*old] = Some(new);
    }
    Pruned {
        plan: exactly(plan, wanted),
        places,
    }
}

/// `columns` and those that `exprs` read.
fn with<'a>(mut columns: Columns, exprs: impl IntoIterator<Item = &'a Expr>) -> Columns {
    for expr in exprs {
        expr.visit_columns(&mut |i| {
            columns.insert(i);
        });
    }
    columns
}

/// A plan with at least the columns `wanted`.
fn prune(plan: &Arc<Plan>, wanted: &Columns) -> Pruned {
    match &plan.node {
        Node::Source(_) => Pruned::all(plan.clone()),
        Node::Select { input, predicate } => {
            let below = prune(input, &with(wanted.clone(), [predicate]));
            let predicate = below.moved(predicate);
            Pruned {
                plan: Plan::select(below.plan, predicate),
                ..below
            }
        }
        Node::Window { input, window } => {
            let keys = match window {
                Window::Partition { keys, .. } => keys.as_slice(),
                Window::Since { origin, .. } => std::slice::from_ref(origin),
                _ => &[],
            };
            let below = narrow(input, &with(wanted.clone(), keys));
            let window = match window {
                Window::Partition { keys, rows } => {
                    let keys = keys.iter().map(|key| below.moved(key)).collect();
                    Window::Partition { keys, rows: *rows }
                }
                Window::Since {
                    origin,
                    size,
                    slide,
                } => Window::Since {
                    origin: below.moved(origin),
                    size: *size,
                    slide: *slide,
                },
                other => other.clone(),
            };
            Pruned {
                plan: Plan::window(below.plan, window),
                ..below
            }
        }
        Node::Project { input, exprs } => project(plan, input, exprs, wanted),
        Node::Join { .. } => join(plan, wanted),
        Node::Aggregate { .. } => aggregate(plan, wanted),
        Node::Partial {
            input,
            slide,
            keys,
            calls,
        } => partial(plan, input, *slide, keys, calls),
        Node::SetOp {
            left,
            right,
            op: SetOp::Union,
            all: true,
        } => {
            let (left, right) = (narrow(left, wanted), narrow(right, wanted));
            Pruned {
                plan: Plan::set_op(left.plan, right.plan, SetOp::Union, true),
                ..left
            }
        }
        Node::Order {
            input,
            by,
            limit: None,
            offset: 0,
        } => {
            let keys = by.iter().map(|key| &key.expr);
            let below = prune(input, &with(wanted.clone(), keys));
            let moved = |key: &OrderBy| OrderBy {
                expr: below.moved(&key.expr),
                ..key.clone()
            };
            let by = by.iter().map(moved).collect();
            Pruned {
                plan: Plan::order(below.plan, by, None, 0),
                ..below
            }
        }
        // Whole rows are compared, or decide between rows that are equal in the order.
        Node::Merge { .. }
        | Node::Distinct { .. }
        | Node::SetOp { .. }
        | Node::Order { .. }
        | Node::ToStream { .. } => {
            let inputs = plan
                .inputs()
                .into_iter()
                .map(|input| exactly(input, &whole(input)));
            Pruned::all(plan.with_inputs(inputs.collect()))
        }
    }
}

fn project(plan: &Plan, input: &Arc<Plan>, exprs: &[Expr], wanted: &Columns) -> Pruned {
    let kept: Vec<&Expr> = wanted.iter().map(|i| &exprs[*i]).collect();
    let below = prune(input, &with(Columns::new(), kept.iter().copied()));
    let exprs = kept.iter().map(|expr| below.moved(expr)).collect();
    let fields = wanted.iter().map(|i| plan.schema[*i].clone()).collect();
    let mut places = vec![None; plan.schema.len()];
    for (new, old) in wanted.iter().enumerate() {
        places[*old] = Some(new);
    }
    Pruned {
        plan: Plan::project(below.plan, exprs, fields),
        places,
    }
}

fn join(plan: &Plan, wanted: &Columns) -> Pruned {
    let Node::Join {
        left,
        right,
        kind,
        on,
        residual,
    } = &plan.node
    else {
        unreachable!("only joins come here");
    };
    let middle = left.schema.len();
    let read = with(wanted.clone(), residual);
    let of_left = read.iter().copied().filter(|i| *i < middle).collect();
    let of_right = read
        .iter()
        .filter(|i| **i >= middle)
        .map(|i| i - middle)
        .collect();
    let left = narrow(left, &with(of_left, on.iter().map(|(l, _)| l)));
    let right = narrow(right, &with(of_right, on.iter().map(|(_, r)| r)));
    let on = on
        .iter()
        .map(|(l, r)| (left.moved(l), right.moved(r)))
        .collect();
    let columns = left.plan.schema.len();
    let right_places = right.places.iter().map(|place| place.map(|i| i + columns));
    let both: Vec<_> = left.places.iter().copied().chain(right_places).collect();
    let place = |i: usize| both[i].expect("what is read was asked for");
    let residual = residual.as_ref().map(|r| r.map_columns(&place));
    let semi = matches!(kind, JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn);
    let places = if semi { left.places.clone() } else { both };
    Pruned {
        plan: Plan::join(left.plan, right.plan, *kind, on, residual),
        places,
    }
}

/// Keys stay, since they make the groups; of the calls only those that are read.
fn aggregate(plan: &Plan, wanted: &Columns) -> Pruned {
    let Node::Aggregate {
        input,
        keys,
        calls,
        global,
    } = &plan.node
    else {
        unreachable!("only groups come here");
    };
    let mut kept: Vec<usize> = (0..calls.len())
        .filter(|i| wanted.contains(&(keys.len() + i)))
        .collect();
    // A group needs something to show.
    if keys.is_empty() && kept.is_empty() {
        kept.extend(0..calls.len().min(1));
    }
    let args = kept.iter().flat_map(|i| &calls[*i].args);
    let below = prune(input, &with(Columns::new(), keys.iter().chain(args)));
    let mut places: Vec<Option<usize>> = (0..keys.len()).map(Some).collect();
    places.resize(plan.schema.len(), None);
    for (new, old) in kept.iter().enumerate() {
        places[keys.len() + old] = Some(keys.len() + new);
    }
    let fields = (0..keys.len()).chain(kept.iter().map(|i| keys.len() + i));
    let fields = fields.map(|i| plan.schema[i].clone()).collect();
    let calls = kept.iter().map(|i| moved_call(&below, &calls[*i]));
    let calls = calls.collect();
    let keys = keys.iter().map(|key| below.moved(key)).collect();
    Pruned {
        plan: Plan::aggregate(below.plan, keys, calls, *global, fields),
        places,
    }
}

/// Whoever merges wants all of it; what the keys and calls do not read goes.
fn partial(
    plan: &Plan,
    input: &Arc<Plan>,
    slide: i64,
    keys: &[Expr],
    calls: &[AggregateCall],
) -> Pruned {
    let args = calls.iter().flat_map(|call| &call.args);
    let below = prune(input, &with(Columns::new(), keys.iter().chain(args)));
    let named = plan.schema.fields[..keys.len()].to_vec();
    let calls = calls.iter().map(|call| moved_call(&below, call)).collect();
    let keys = keys.iter().map(|key| below.moved(key)).collect();
    Pruned::all(Plan::partial(below.plan, slide, keys, calls, named))
}

fn moved_call(below: &Pruned, call: &AggregateCall) -> AggregateCall {
    AggregateCall {
        args: call.args.iter().map(|arg| below.moved(arg)).collect(),
        ..call.clone()
    }
}
