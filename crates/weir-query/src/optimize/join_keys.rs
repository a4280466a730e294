//! Equalities between the two sides of a join become its keys, so that partners are found without
//! testing every pair.

use std::sync::Arc;

use crate::expr::{BinaryOp, Expr};
use crate::plan::{JoinKind, Node, Plan};

use super::sides;

/// Applies the rule everywhere.
pub fn apply(plan: &Arc<Plan>) -> Arc<Plan> {
    super::bottom_up(plan, &|plan| {
        let Node::Join(join) = &plan.node else {
            return plan;
        };
        let Some(residual) = &join.residual else {
            return plan;
        };
        // The condition of NOT IN is its key only.
        if join.kind == JoinKind::NotIn {
            return plan;
        }
        let middle = join.left.schema.len();
        let (mut on, mut rest) = (join.on.clone(), Vec::new());
        for condition in residual.clone().conjuncts() {
            match key_pair(&condition, middle) {
                Some(pair) if on.contains(&pair) => {}
                Some(pair) => on.push(pair),
                None => rest.push(condition),
            }
        }
        let residual = Expr::balanced(BinaryOp::And, rest);
        join.with_conditions(on, residual)
    })
}

/// The two sides of an equality, the left input's first.
fn key_pair(condition: &Expr, middle: usize) -> Option<(Expr, Expr)> {
    let (left, right) = condition.equality()?;
    let shifted = |expr: &Expr| expr.map_columns(&|i| i - middle);
    match (sides(left, middle), sides(right, middle)) {
        ((true, false), (false, true)) => Some((left.clone(), shifted(right))),
        ((false, true), (true, false)) => Some((right.clone(), shifted(left))),
        _ => None,
    }
}
