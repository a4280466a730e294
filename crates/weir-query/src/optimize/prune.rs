//! Drops unread columns before windows and joins, which would store them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::expr::Expr;
use crate::function::AggregateCall;
use crate::plan::{JoinKind, Node, OrderBy, Plan, SetOp};

/// Columns in use, by position.
type Columns = BTreeSet<usize>;

/// A plan without the unneeded columns, and the new position of each old column. All needed columns
/// are present.
struct Pruned {
    plan: Arc<Plan>,
    positions: Vec<Option<usize>>,
}

/// Applies the rule to a whole plan. All columns of its result keep their positions.
pub fn apply(plan: &Arc<Plan>) -> Arc<Plan> {
    exactly(plan, &all_columns(plan))
}

fn all_columns(plan: &Plan) -> Columns {
    (0..plan.schema.len()).collect()
}

impl Pruned {
    /// Nothing dropped.
    fn all(plan: Arc<Plan>) -> Pruned {
        let positions = (0..plan.schema.len()).map(Some).collect();
        Pruned { plan, positions }
    }

    fn remapped(&self, expr: &Expr) -> Expr {
        expr.map_columns(&|i| self.place(i))
    }

    fn place(&self, old: usize) -> usize {
        self.positions[old].expect("what is read was asked for")
    }
}

/// A plan with the columns `needed` in their order and no others.
fn exactly(plan: &Arc<Plan>, needed: &Columns) -> Arc<Plan> {
    let pruned = prune(plan, needed);
    let positions: Vec<usize> = needed.iter().map(|i| pruned.place(*i)).collect();
    if positions.iter().copied().eq(0..pruned.plan.schema.len()) {
        return pruned.plan;
    }
    let columns = pruned.plan.columns();
    let exprs = positions.iter().map(|i| columns[*i].clone()).collect();
    let fields = positions
        .iter()
        .map(|i| pruned.plan.schema[*i].clone())
        .collect();
    Plan::project(pruned.plan, exprs, fields)
}

/// As [`exactly`], with the new positions.
fn narrow(plan: &Arc<Plan>, needed: &Columns) -> Pruned {
    let mut positions = vec![None; plan.schema.len()];
    for (new, old) in needed.iter().enumerate() {
        positions[*old] = Some(new);
    }
    Pruned {
        plan: exactly(plan, needed),
        positions,
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

/// A plan with at least the columns `needed`.
fn prune(plan: &Arc<Plan>, needed: &Columns) -> Pruned {
    match &plan.node {
        Node::Source(_) => Pruned::all(plan.clone()),
        Node::Select { input, predicate } => {
            let below = prune(input, &with(needed.clone(), [predicate]));
            let predicate = below.remapped(predicate);
            Pruned {
                plan: Plan::select(below.plan, predicate),
                ..below
            }
        }
        Node::Window { input, window } => {
            let below = narrow(input, &with(needed.clone(), window.kind().exprs()));
            let window = window.map_exprs(|expr| below.remapped(expr));
            Pruned {
                plan: Plan::window(below.plan, window),
                ..below
            }
        }
        Node::Project { input, exprs } => project(plan, input, exprs, needed),
        Node::Join(_) => join(plan, needed),
        Node::Aggregate { .. } => aggregate(plan, needed),
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
            let (left, right) = (narrow(left, needed), narrow(right, needed));
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
            let below = prune(input, &with(needed.clone(), keys));
            let remapped = |key: &OrderBy| OrderBy {
                expr: below.remapped(&key.expr),
                ..key.clone()
            };
            let by = by.iter().map(remapped).collect();
            Pruned {
                plan: Plan::order(below.plan, by, None, 0),
                ..below
            }
        }
        // Whole rows are compared, or order rows with equal sort keys.
        Node::Merge { .. }
        | Node::Over { .. }
        | Node::Match { .. }
        | Node::Correlate { .. }
        | Node::Distinct { .. }
        | Node::SetOp { .. }
        | Node::Order { .. }
        | Node::ToStream { .. } => {
            let inputs = plan
                .inputs()
                .into_iter()
                .map(|input| exactly(input, &all_columns(input)));
            Pruned::all(plan.with_inputs(inputs.collect()))
        }
    }
}

fn project(plan: &Plan, input: &Arc<Plan>, exprs: &[Expr], needed: &Columns) -> Pruned {
    let kept: Vec<&Expr> = needed.iter().map(|i| &exprs[*i]).collect();
    let below = prune(input, &with(Columns::new(), kept.iter().copied()));
    let exprs = kept.iter().map(|expr| below.remapped(expr)).collect();
    let fields = needed.iter().map(|i| plan.schema[*i].clone()).collect();
    let mut positions = vec![None; plan.schema.len()];
    for (new, old) in needed.iter().enumerate() {
        positions[*old] = Some(new);
    }
    Pruned {
        plan: Plan::project(below.plan, exprs, fields),
        positions,
    }
}

fn join(plan: &Plan, needed: &Columns) -> Pruned {
    let join = plan.as_join().expect("only joins come here");
    let (on, kind) = (&join.on, join.kind);
    let middle = join.left.schema.len();
    let read = with(needed.clone(), &join.residual);
    let of_left = read.iter().copied().filter(|i| *i < middle).collect();
    let of_right = read
        .iter()
        .filter(|i| **i >= middle)
        .map(|i| i - middle)
        .collect();
    let left = narrow(&join.left, &with(of_left, on.iter().map(|(l, _)| l)));
    let right = narrow(&join.right, &with(of_right, on.iter().map(|(_, r)| r)));
    let on = on
        .iter()
        .map(|(l, r)| (left.remapped(l), right.remapped(r)))
        .collect();
    let columns = left.plan.schema.len();
    let right_places = right
        .positions
        .iter()
        .map(|place| place.map(|i| i + columns));
    let both: Vec<_> = left.positions.iter().copied().chain(right_places).collect();
    let place = |i: usize| both[i].expect("what is read was asked for");
    let residual = join.residual.as_ref().map(|r| r.map_columns(&place));
    let semi = matches!(kind, JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn);
    let positions = if semi { left.positions.clone() } else { both };
    Pruned {
        plan: Plan::join(left.plan, right.plan, kind, on, residual),
        positions,
    }
}

/// Keys stay, since they make the groups; of the calls only those that are read.
fn aggregate(plan: &Plan, needed: &Columns) -> Pruned {
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
        .filter(|i| needed.contains(&(keys.len() + i)))
        .collect();
    // A group needs at least one column.
    if keys.is_empty() && kept.is_empty() {
        kept.extend(0..calls.len().min(1));
    }
    let args = kept.iter().flat_map(|i| &calls[*i].args);
    let below = prune(input, &with(Columns::new(), keys.iter().chain(args)));
    let mut positions: Vec<Option<usize>> = (0..keys.len()).map(Some).collect();
    positions.resize(plan.schema.len(), None);
    for (new, old) in kept.iter().enumerate() {
        positions[keys.len() + old] = Some(keys.len() + new);
    }
    let fields = (0..keys.len()).chain(kept.iter().map(|i| keys.len() + i));
    let fields = fields.map(|i| plan.schema[i].clone()).collect();
    let calls = kept.iter().map(|i| remapped_call(&below, &calls[*i]));
    let calls = calls.collect();
    let keys = keys.iter().map(|key| below.remapped(key)).collect();
    Pruned {
        plan: Plan::aggregate(below.plan, keys, calls, *global, fields),
        positions,
    }
}

/// A merge reads all columns; what the keys and calls do not read is dropped.
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
    let calls = calls
        .iter()
        .map(|call| remapped_call(&below, call))
        .collect();
    let keys = keys.iter().map(|key| below.remapped(key)).collect();
    Pruned::all(Plan::partial(below.plan, slide, keys, calls, named))
}

fn remapped_call(below: &Pruned, call: &AggregateCall) -> AggregateCall {
    AggregateCall {
        args: call.args.iter().map(|arg| below.remapped(arg)).collect(),
        ..call.clone()
    }
}
