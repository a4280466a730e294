//! `Plan` → `Plan`, by an ordered list of pure rules. Each returns a plan with the same result at
//! every instant, columns included.

mod append;
mod canonical;
mod fold;
mod join_keys;
mod projections;
mod prune;
mod selections;
mod slides;

use std::sync::Arc;

use weir_model::Schema;

use crate::expr::{Expr, fold_expr};
use crate::plan::{Node, Plan, SetOp};

/// A rewriting of plans.
#[derive(Debug)]
pub struct Rule {
    /// Its name in tests and in `weir explain`.
    pub name: &'static str,
    /// The rewriting.
    pub apply: fn(&Arc<Plan>) -> Arc<Plan>,
}

/// Every rule, in the order in which they are applied.
pub static RULES: &[Rule] = &[
    Rule {
        name: "fold constants",
        apply: fold::apply,
    },
    Rule {
        name: "append-only streams",
        apply: append::apply,
    },
    Rule {
        name: "window slides",
        apply: slides::apply,
    },
    Rule {
        name: "push selections down",
        apply: selections::apply,
    },
    Rule {
        name: "join on keys",
        apply: join_keys::apply,
    },
    Rule {
        name: "merge projections",
        apply: projections::apply,
    },
    Rule {
        name: "prune columns",
        apply: prune::apply,
    },
    Rule {
        name: "canonical order",
        apply: canonical::apply,
    },
];

/// Maximum number of passes over the rules; one rule can enable another.
const PASSES_MAX: usize = 8;

/// Maximum size in nodes of an expression that a rule makes by substitution.
const NODES_MAX: usize = 200;

/// Applies the rules to a plan.
pub fn optimize(plan: &Arc<Plan>) -> Arc<Plan> {
    let mut best = plan.clone();
    for _ in 0..PASSES_MAX {
        let next = RULES
            .iter()
            .fold(best.clone(), |plan, rule| (rule.apply)(&plan));
        if next == best {
            break;
        }
        best = next;
    }
    with_schema(best, &plan.schema)
}

/// The plan without columns that are never read.
pub(crate) fn without_unread(plan: &Arc<Plan>) -> Arc<Plan> {
    with_schema(projections::apply(&prune::apply(plan)), &plan.schema)
}

/// The plan with each node rebuilt from the sources up.
fn bottom_up(plan: &Arc<Plan>, rewrite: &impl Fn(Arc<Plan>) -> Arc<Plan>) -> Arc<Plan> {
    let inputs: Vec<_> = plan
        .inputs()
        .into_iter()
        .map(|i| bottom_up(i, rewrite))
        .collect();
    let same = plan
        .inputs()
        .into_iter()
        .zip(&inputs)
        .all(|(old, new)| Arc::ptr_eq(old, new));
    rewrite(if same {
        plan.clone()
    } else {
        plan.with_inputs(inputs)
    })
}

/// The plan with the result's column descriptions restored: names matter only at the top.
fn with_schema(plan: Arc<Plan>, schema: &Arc<Schema>) -> Arc<Plan> {
    if plan.schema == *schema {
        return plan;
    }
    match &plan.node {
        Node::Project { input, exprs } => {
            Plan::project(input.clone(), exprs.clone(), schema.fields.clone())
        }
        Node::ToStream { input, .. } | Node::Order { input, .. } | Node::Distinct { input } => {
            plan.with_inputs(vec![with_schema(input.clone(), schema)])
        }
        Node::SetOp {
            left,
            right,
            op: SetOp::Union,
            ..
        } => plan.with_inputs(vec![with_schema(left.clone(), schema), right.clone()]),
        _ => {
            let exprs = plan.columns();
            Plan::project(plan, exprs, schema.fields.clone())
        }
    }
}

/// An expression over a projection's columns as one over its input's, unless it grows too large.
fn substitute(expr: &Expr, exprs: &[Expr]) -> Option<Expr> {
    let mut size = expr.size();
    expr.visit_columns(&mut |i| size += exprs[i].size());
    let substituted = || {
        expr.map(&|e| match e {
            Expr::Column { index, .. } => exprs[index].clone(),
            other => fold_expr(other),
        })
    };
    (size <= NODES_MAX).then(substituted)
}

/// Whether an expression reads columns below, at or above `middle`.
fn sides(expr: &Expr, middle: usize) -> (bool, bool) {
    let (mut left, mut right) = (false, false);
    expr.visit_columns(&mut |i| {
        if i < middle {
            left = true
        } else {
            right = true
        }
    });
    (left, right)
}
