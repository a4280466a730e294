//! Pushes selections down: a row that is dropped early need not be stored, joined or counted.
//!
//! Conditions joined by AND are pushed separately. They pass projections, time-based windows (in
//! which the presence of a row does not depend on other rows), the side of a join that they read,
//! the keys of groups and of partitioned windows, and set operations. They stop at row-based
//! windows, at LIMIT, at window functions and at Rstream, which emits when its input changes.

use std::sync::Arc;

use weir_model::Value;
use weir_workload::correlation::CorrelatedMetric;

use crate::expr::{BinaryOp, Expr};
use crate::plan::{Correlation, JoinKind, Node, Plan, ToStream};

use super::{sides, substitute};

/// Applies the rule everywhere.
pub fn apply(plan: &Arc<Plan>) -> Arc<Plan> {
    super::bottom_up(plan, &|plan| match &plan.node {
        Node::Select { input, predicate } => push(input, predicate.clone().conjuncts()),
        Node::Join(_) => join(&plan, Vec::new()),
        _ => plan,
    })
}

/// The rows of `input` that pass all of `conditions`, which are pushed down as far as possible.
fn push(input: &Arc<Plan>, conditions: Vec<Expr>) -> Arc<Plan> {
    match &input.node {
        Node::Select { input, predicate } => {
            push(input, [predicate.clone().conjuncts(), conditions].concat())
        }
        Node::Project {
            input: below,
            exprs,
        } => {
            let (mut down, mut here) = (Vec::new(), Vec::new());
            for condition in conditions {
                match substitute(&condition, exprs) {
                    Some(substituted) => down.extend(substituted.conjuncts()),
                    None => here.push(condition),
                }
            }
            Plan::select_all(through(input, &[below], down), here)
        }
        Node::Window {
            input: below,
            window,
        } => {
            let passes = |condition: &Expr| window.kind().commutes_with(condition);
            let (down, here) = conditions.into_iter().partition(passes);
            Plan::select_all(through(input, &[below], down), here)
        }
        Node::Join(_) => join(input, conditions),
        Node::Aggregate {
            input: below, keys, ..
        } if !keys.is_empty() => on_keys(input, below, keys, conditions),
        Node::Match { input: below, by } if !by.keys.is_empty() => {
            on_keys(input, below, &by.keys, conditions)
        }
        Node::Correlate { input: below, by } => {
            let by = compared(by, input, &conditions);
            Plan::select_all(Plan::correlate(below.clone(), by), conditions)
        }
        Node::Distinct { input: below }
        | Node::Order {
            input: below,
            limit: None,
            offset: 0,
            ..
        }
        | Node::ToStream {
            input: below,
            kind: ToStream::Istream | ToStream::Dstream,
        } => through(input, &[below], conditions),
        Node::SetOp { left, right, .. } => through(input, &[left, right], conditions),
        Node::Source(_)
        | Node::Aggregate { .. }
        | Node::Partial { .. }
        | Node::Merge { .. }
        | Node::Over { .. }
        | Node::Match { .. }
        | Node::Order { .. }
        | Node::ToStream { .. } => Plan::select_all(input.clone(), conditions),
    }
}

/// `by` without the metrics whose pairs pass no condition on the columns of `pairs`.
fn compared(by: &Correlation, pairs: &Plan, conditions: &[Expr]) -> Correlation {
    let named = pairs.schema.index("metric");
    let is_read = |metric: &CorrelatedMetric| {
        let mut columns = pairs.columns();
        columns[named] = Expr::Literal {
            value: Value::text(metric.as_str()),
            ty: pairs.schema[named].ty,
            unit: pairs.schema[named].unit,
        };
        conditions.iter().all(|condition| {
            let known = substitute(condition, &columns);
            let is_true = Value::Bool(true);
            !matches!(known, Some(Expr::Literal { value, .. }) if value != is_true)
        })
    };
    Correlation {
        metrics: by.metrics.iter().copied().filter(is_read).collect(),
        ..by.clone()
    }
}

/// `plan`, whose first columns are `keys` over the columns of `below`, with those of `conditions`
/// that read only keys tested below it.
fn on_keys(plan: &Arc<Plan>, below: &Arc<Plan>, keys: &[Expr], conditions: Vec<Expr>) -> Arc<Plan> {
    let reads_keys = |condition: &Expr| {
        let mut only = true;
        condition.visit_columns(&mut |i| only &= i < keys.len());
        only
    };
    let (on_keys, mut here): (Vec<_>, Vec<_>) = conditions.into_iter().partition(reads_keys);
    let mut down = Vec::new();
    for condition in on_keys {
        match substitute(&condition, keys) {
            Some(substituted) => down.push(substituted),
            None => here.push(condition),
        }
    }
    Plan::select_all(through(plan, &[below], down), here)
}

/// `plan` with `conditions` tested below it, on each of its inputs `below`.
fn through(plan: &Arc<Plan>, below: &[&Arc<Plan>], conditions: Vec<Expr>) -> Arc<Plan> {
    if conditions.is_empty() {
        return plan.clone();
    }
    plan.with_inputs(
        below
            .iter()
            .map(|input| push(input, conditions.clone()))
            .collect(),
    )
}

/// A join below `conditions`; its own conditions are pushed down as well.
fn join(plan: &Arc<Plan>, conditions: Vec<Expr>) -> Arc<Plan> {
    let join = plan.as_join().expect("only joins come here");
    let kind = join.kind;
    let middle = join.left.schema.len();
    let (mut to_left, mut to_right) = (Vec::new(), Vec::new());
    let (mut here, mut above) = (Vec::new(), Vec::new());
    // A condition on the result can be tested on the side that it reads, unless that side may be
    // padded.
    let semi = matches!(kind, JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn);
    let (keeps_left, keeps_right) = match kind {
        JoinKind::Inner => (true, true),
        JoinKind::Right => (false, true),
        JoinKind::Full => (false, false),
        _ => (true, false),
    };
    for condition in conditions {
        match sides(&condition, middle) {
            (true, false) if keeps_left || semi => to_left.push(condition),
            (false, true) if keeps_right => to_right.push(condition),
            (true, true) if kind == JoinKind::Inner => here.push(condition),
            _ => above.push(condition),
        }
    }
    // A condition on pairs can be tested on a side whose rows without partner are dropped.
    let (drops_left, drops_right) = match kind {
        JoinKind::Inner | JoinKind::Semi => (true, true),
        JoinKind::Left | JoinKind::Anti => (false, true),
        JoinKind::Right => (true, false),
        JoinKind::Full | JoinKind::NotIn => (false, false),
    };
    for condition in join.residual.clone().map_or(Vec::new(), Expr::conjuncts) {
        match sides(&condition, middle) {
            (true, false) if drops_left => to_left.push(condition),
            (false, true) if drops_right => to_right.push(condition),
            _ => here.push(condition),
        }
    }
    let to_right: Vec<Expr> = to_right
        .iter()
        .map(|c| c.map_columns(&|i| i - middle))
        .collect();
    let side = |input: &Arc<Plan>, conditions: Vec<Expr>| match conditions.is_empty() {
        true => input.clone(),
        false => push(input, conditions),
    };
    let (left, right) = (side(&join.left, to_left), side(&join.right, to_right));
    let residual = Expr::balanced(BinaryOp::And, here);
    Plan::select_all(
        Plan::join(left, right, kind, join.on.to_vec(), residual),
        above,
    )
}
