//! Constants are computed once, before the query runs; AND and OR with one constant side are
//! simplified.

use std::sync::Arc;

use weir_model::Value;

use crate::expr::{Expr, fold_expr};
use crate::plan::{Node, Plan};

/// Folds every expression of a plan, and drops selections that are always true.
pub fn apply(plan: &Arc<Plan>) -> Arc<Plan> {
    super::bottom_up(plan, &|plan| {
        let fold = |expr: &Expr| expr.map(&fold_expr);
        match &plan.node {
            Node::Select { input, predicate } => match fold(predicate) {
                Expr::Literal {
                    value: Value::Bool(true),
                    ..
                } => input.clone(),
                predicate => Plan::select(input.clone(), predicate),
            },
            Node::Project { input, exprs } => {
                let exprs = exprs.iter().map(fold).collect();
                Plan::project(input.clone(), exprs, plan.schema.fields.clone())
            }
            Node::Join(join) => {
                let on = join.on.iter().map(|(l, r)| (fold(l), fold(r))).collect();
                let residual = join.residual.as_ref().map(fold);
                let residual = residual.filter(|r| *r != Expr::bool(true));
                join.with_conditions(on, residual)
            }
            _ => plan,
        }
    })
}
