//! Properties of a plan's result for its display: whether it is append-only, and its order.

use weir_model::Shape;

use super::{JoinKind, Node, OrderBy, Plan, SetOp, Window};
use crate::expr::Expr;

impl Plan {
    /// Whether rows are only ever inserted, regarded as a relation.
    pub fn is_append_only(&self) -> bool {
        match &self.node {
            Node::Source(declaration) => declaration.shape == Shape::Stream,
            Node::ToStream { .. }
            | Node::Partial { .. }
            | Node::Match { .. }
            | Node::Correlate { .. } => true,
            Node::Window { input, window } => {
                matches!(window, Window::Unbounded(_)) && input.is_append_only()
            }
            Node::Select { input, .. } | Node::Project { input, .. } | Node::Distinct { input } => {
                input.is_append_only()
            }
            Node::Join(join) => {
                matches!(join.kind, JoinKind::Inner | JoinKind::Semi)
                    && join.left.is_append_only()
                    && join.right.is_append_only()
            }
            Node::SetOp {
                left, right, op, ..
            } => *op != SetOp::Except && left.is_append_only() && right.is_append_only(),
            Node::Order {
                input,
                limit: None,
                offset: 0,
                ..
            } => input.is_append_only(),
            Node::Order { .. }
            | Node::Over { .. }
            | Node::Aggregate { .. }
            | Node::Merge { .. } => false,
        }
    }

    /// The order of ORDER BY, most significant first: columns of the result, as far as the sort
    /// keys are columns of the result.
    pub fn display_order(&self) -> Vec<(usize, &OrderBy)> {
        match &self.node {
            Node::Order { by, .. } => {
                let key = |by| column(by).map(|column| (column, by));
                by.iter().map_while(key).collect()
            }
            Node::Project { input, exprs } => {
                let shown = |(below, by)| {
                    let is_it =
                        |e: &Expr| matches!(e, Expr::Column { index, .. } if *index == below);
                    let column = exprs.iter().position(is_it)?;
                    Some((column, by))
                };
                input.display_order().into_iter().map_while(shown).collect()
            }
            Node::Select { input, .. } => input.display_order(),
            _ => Vec::new(),
        }
    }
}

fn column(by: &OrderBy) -> Option<usize> {
    match by.expr {
        Expr::Column { index, .. } => Some(index),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::{CheckOptions, Checked, compile};
    use weir_model::Catalog;

    fn checked(text: &str) -> Checked {
        compile(text, &Catalog::builtin(), &CheckOptions::live()).unwrap()
    }

    #[test]
    fn a_plan_is_append_only_without_expiry_and_recomputation() {
        let append_only = |text: &str| checked(text).plan.is_append_only();
        assert!(append_only("select op from IO where latency > 1 ms"));
        assert!(append_only("select distinct op from IO"));
        assert!(append_only(
            "istream(select op, count(*) from IO group by op)"
        ));
        assert!(!append_only("select op from IO [rows 3]"));
        assert!(!append_only("select count(*) from IO"));
        assert!(!append_only(
            "select op, bytes from IO order by bytes limit 1"
        ));
    }

    #[test]
    fn the_display_order_is_by_result_columns() {
        let order = |text: &str| {
            let plan = checked(text).plan;
            let keys = plan.display_order().into_iter();
            keys.map(|(column, by)| (column, by.descending))
                .collect::<Vec<_>>()
        };
        let query = "select op, count(*) as n from IO group by op order by n desc, op";
        assert_eq!(order(query), [(1, true), (0, false)]);
        assert_eq!(order("select op, count(*) from IO group by op"), []);
    }
}
