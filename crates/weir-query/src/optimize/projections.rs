//! Nested projections become one, and those without effect are removed.

use std::sync::Arc;

use crate::expr::Expr;
use crate::plan::{Node, Plan};

use super::substitute;

/// Applies the rule everywhere.
pub fn apply(plan: &Arc<Plan>) -> Arc<Plan> {
    super::bottom_up(plan, &|plan| {
        let Node::Project { input, exprs } = &plan.node else {
            return plan;
        };
        if *exprs == input.columns() {
            return input.clone();
        }
        let Node::Project {
            input: below,
            exprs: inner,
        } = &input.node
        else {
            return plan;
        };
        // An expression that is used several times is computed once.
        let simple = |e: &Expr| matches!(e, Expr::Column { .. } | Expr::Literal { .. });
        let mut uses = vec![0; inner.len()];
        for expr in exprs {
            expr.visit_columns(&mut |i| uses[i] += 1);
        }
        let once = inner
            .iter()
            .zip(uses)
            .all(|(expr, uses)| uses <= 1 || simple(expr));
        let merged = exprs
            .iter()
            .map(|expr| substitute(expr, inner))
            .collect::<Option<Vec<_>>>();
        match merged {
            Some(merged) if once => {
                Plan::project(below.clone(), merged, plan.schema.fields.clone())
            }
            _ => plan,
        }
    })
}
