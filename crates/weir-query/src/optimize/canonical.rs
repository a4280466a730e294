//! Rewrites equivalent forms to one, so that equivalent queries share operators: nested selections
//! become one, conditions are put into a fixed order, cheap ones first, and the constant of a
//! comparison is on the right.

use std::sync::Arc;

use crate::expr::{BinaryOp, Expr, fold_expr};
use crate::plan::{Node, Plan};

/// Applies the rule everywhere.
pub fn apply(plan: &Arc<Plan>) -> Arc<Plan> {
    super::bottom_up(plan, &|plan| match &plan.node {
        Node::Select { input, predicate } => {
            let mut conditions = predicate.clone().conjuncts();
            let mut below = input;
            while let Node::Select { input, predicate } = &below.node {
                conditions.extend(predicate.clone().conjuncts());
                below = input;
            }
            match ordered(conditions) {
                Some(all) => Plan::select(below.clone(), all),
                None => below.clone(),
            }
        }
        Node::Join(join) => {
            let mut on = join.on.clone();
            on.sort_by_cached_key(|(l, r)| (key(l), key(r)));
            on.dedup();
            let residual = join.residual.clone().and_then(|r| ordered(r.conjuncts()));
            join.with_conditions(on, residual)
        }
        Node::Project { input, exprs } => {
            let exprs = exprs.iter().map(|e| e.map(&constant_on_right)).collect();
            Plan::project(input.clone(), exprs, plan.schema.fields.clone())
        }
        _ => plan,
    })
}

/// Conditions joined by AND, each once and in order.
fn ordered(conditions: Vec<Expr>) -> Option<Expr> {
    let mut conditions: Vec<Expr> = conditions
        .iter()
        .map(|c| c.map(&constant_on_right))
        .collect();
    conditions.sort_by_cached_key(key);
    conditions.dedup();
    let all = Expr::balanced(BinaryOp::And, conditions)?;
    Some(all.map(&fold_expr))
}

/// The sort key of expressions: their estimated cost by size, then their text.
fn key(expr: &Expr) -> (usize, String) {
    (expr.size(), format!("{expr:?}"))
}

/// `x > 5` for `5 < x`.
fn constant_on_right(expr: Expr) -> Expr {
    use BinaryOp::*;
    let Expr::Binary {
        op,
        left,
        right,
        unit,
    } = expr
    else {
        return expr;
    };
    let constant = |e: &Expr| matches!(e, Expr::Literal { .. });
    let constant_on_right = match op {
        _ if !constant(&left) || constant(&right) => None,
        Equal | NotEqual => Some(op),
        Less => Some(Greater),
        LessEqual => Some(GreaterEqual),
        Greater => Some(Less),
        GreaterEqual => Some(LessEqual),
        _ => None,
    };
    match constant_on_right {
        Some(op) => Expr::Binary {
            op,
            left: right,
            right: left,
            unit,
        },
        None => Expr::Binary {
            op,
            left,
            right,
            unit,
        },
    }
}
