//! [`renamed`]: replaces the texts with which a plan compares certain columns.
//!
//! An object may have several names, of which a source uses one. A selection by another name is
//! rewritten before the plan is placed, so that the source and the engine test the same.

use std::sync::Arc;

use weir_model::{Declaration, Symbol, Value};

use super::row_match::MatchResult;
use super::{JoinKind, JoinNode, Node, Plan};
use crate::expr::{BinaryOp, Expr};

/// `plan` with `rename` applied to each text that is compared with a column of a source for which
/// `chosen` is true, by `=`, `<>` or `IN`.
pub fn renamed(
    plan: &Arc<Plan>,
    chosen: &dyn Fn(&Declaration, usize) -> bool,
    rename: &dyn Fn(Symbol) -> Symbol,
) -> Arc<Plan> {
    Renaming { chosen, rename }.plan(plan).0
}

struct Renaming<'a> {
    chosen: &'a dyn Fn(&Declaration, usize) -> bool,
    rename: &'a dyn Fn(Symbol) -> Symbol,
}

impl Renaming<'_> {
    /// The plan, and which of its columns are chosen columns of a source.
    fn plan(&self, plan: &Arc<Plan>) -> (Arc<Plan>, Vec<bool>) {
        let inputs = plan.inputs().into_iter().map(|input| self.plan(input));
        let (inputs, columns): (Vec<Arc<Plan>>, Vec<Vec<bool>>) = inputs.unzip();
        let all = columns.concat();
        let mut rebuilt = (*plan.with_inputs(inputs)).clone();
        let again = |expr: &mut Expr| *expr = self.expr(expr, &all);
        match &mut rebuilt.node {
            Node::Select { predicate, .. } => again(predicate),
            Node::Project { exprs, .. } => exprs.iter_mut().for_each(again),
            Node::Join(JoinNode { on, residual, .. }) => {
                for (left, right) in on {
                    *left = self.expr(left, &columns[0]);
                    *right = self.expr(right, &columns[1]);
                }
                residual.iter_mut().for_each(again);
            }
            Node::Aggregate { keys, calls, .. } | Node::Partial { keys, calls, .. } => {
                let args = calls.iter_mut().flat_map(|call| &mut call.args);
                keys.iter_mut().chain(args).for_each(again);
            }
            Node::Over { by, calls, .. } => {
                let args = calls.iter_mut().flat_map(|call| call.function.exprs_mut());
                by.exprs_mut().chain(args).for_each(again);
            }
            Node::Match { by, .. } => {
                // Conditions read values of other rows as further columns.
                let previous = by.previous.iter().map(|previous| &previous.value);
                let navigations = by.navigations.iter().map(|navigation| &navigation.value);
                let read = previous
                    .chain(navigations)
                    .map(|value| is_chosen(value, &all));
                let all = [all.clone(), read.collect()].concat();
                by.exprs_mut()
                    .for_each(|expr| *expr = self.expr(expr, &all));
            }
            Node::Order { by, .. } => by.iter_mut().for_each(|key| again(&mut key.expr)),
            Node::Window { window, .. } => {
                *window = window.map_exprs(|expr| self.expr(expr, &all));
            }
            // The arguments of a merge's calls are columns of another plan.
            Node::Source(_)
            | Node::Merge { .. }
            | Node::Correlate { .. }
            | Node::Distinct { .. }
            | Node::SetOp { .. }
            | Node::ToStream { .. } => {}
        }
        let columns = self.columns(&rebuilt, columns);
        (Arc::new(rebuilt), columns)
    }

    /// Which columns of `plan` are chosen columns of a source; `below` has the same for its inputs.
    fn columns(&self, plan: &Plan, mut below: Vec<Vec<bool>>) -> Vec<bool> {
        let of = |expr: &Expr, below: &[Vec<bool>]| is_chosen(expr, &below[0]);
        let mut columns: Vec<bool> = match &plan.node {
            Node::Source(source) => (0..plan.schema.len())
                .map(|i| (self.chosen)(source, i))
                .collect(),
            Node::Project { exprs: keys, .. }
            | Node::Aggregate { keys, .. }
            | Node::Partial { keys, .. } => keys.iter().map(|key| of(key, &below)).collect(),
            Node::Match { by, .. } => {
                let keys = by.keys.iter().map(|key| of(key, &below));
                let results = by.results.iter().map(|result| match result {
                    MatchResult::Navigation(navigation) => of(&navigation.value, &below),
                    _ => false,
                });
                keys.chain(results).collect()
            }
            Node::Correlate { .. } => {
                let mut columns = vec![false; plan.schema.len()];
                for (at, column) in ["host", "vm", "vdisk", "pdisk"].into_iter().enumerate() {
                    for side in ["leader", "follower"] {
                        columns[plan.schema.index(&format!("{side}_{column}"))] = below[0][at];
                    }
                }
                columns
            }
            Node::Merge { keys, .. } => below[0][..*keys].to_vec(),
            Node::Join(join) => match join.kind {
                JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn => below.swap_remove(0),
                JoinKind::Inner | JoinKind::Left | JoinKind::Right | JoinKind::Full => {
                    below.concat()
                }
            },
            Node::SetOp { .. } => {
                let pairs = below[0].iter().zip(&below[1]);
                pairs.map(|(left, right)| *left && *right).collect()
            }
            Node::Select { .. }
            | Node::Window { .. }
            | Node::Over { .. }
            | Node::Distinct { .. }
            | Node::Order { .. }
            | Node::ToStream { .. } => below.swap_remove(0),
        };
        columns.resize(plan.schema.len(), false);
        columns
    }

    fn expr(&self, expr: &Expr, columns: &[bool]) -> Expr {
        let is_chosen = |e: &Expr| is_chosen(e, columns);
        let text = |value: &mut Value| {
            if let Value::Text(text) = value {
                *text = (self.rename)(*text);
            }
        };
        expr.map(&|mut e| {
            match &mut e {
                Expr::Binary {
                    op: BinaryOp::Equal | BinaryOp::NotEqual,
                    left,
                    right,
                    ..
                } => match (&mut **left, &mut **right) {
                    (column, Expr::Literal { value, .. })
                    | (Expr::Literal { value, .. }, column)
                        if is_chosen(column) =>
                    {
                        text(value);
                    }
                    _ => {}
                },
                Expr::InList { expr, list, .. } if is_chosen(expr) => {
                    list.iter_mut().for_each(text);
                    list.sort();
                    list.dedup();
                }
                _ => {}
            }
            e
        })
    }
}

/// Whether an expression is one of the columns that are true in `columns`.
fn is_chosen(expr: &Expr, columns: &[bool]) -> bool {
    matches!(expr, Expr::Column { index, .. } if columns[*index])
}

#[cfg(test)]
mod tests {
    use weir_model::Catalog;

    use super::*;
    use crate::{CheckOptions, compile_unoptimized};

    fn plan(text: &str) -> Arc<Plan> {
        let checked = compile_unoptimized(text, &Catalog::builtin(), &CheckOptions::live());
        checked.expect("the query is sound").plan
    }

    /// A query with tests of `pdisk` and of `comm` for a, b and c, with the names of the sources.
    fn with_names(text: &str) -> Arc<Plan> {
        let pdisk = |source: &Declaration, i: usize| source.schema[i].name == "pdisk";
        let name = |text: Symbol| match text.as_str() {
            "a" | "alias" => Symbol::new("dm-0"),
            _ => text,
        };
        renamed(&plan(text), &pdisk, &name)
    }

    #[test]
    fn texts_are_replaced_in_all_comparisons_of_the_column() {
        for (asked, meant) in [
            (
                "select op from IO where pdisk = 'a'",
                "select op from IO where pdisk = 'dm-0'",
            ),
            (
                "select op from IO where 'a' <> pdisk and comm = 'a'",
                "select op from IO where 'dm-0' <> pdisk and comm = 'a'",
            ),
            (
                "select op from IO where pdisk not in ('a', 'alias', 'c')",
                "select op from IO where pdisk not in ('dm-0', 'c')",
            ),
            (
                "select x.d from (select pdisk as d, comm from IO) as x where x.d = 'a'",
                "select x.d from (select pdisk as d, comm from IO) as x where x.d = 'dm-0'",
            ),
            (
                "select pdisk, count(*) from IO [range 1 s slide 1 s] group by pdisk having pdisk = 'a'",
                "select pdisk, count(*) from IO [range 1 s slide 1 s] group by pdisk having pdisk = 'dm-0'",
            ),
            (
                "select case pdisk when 'a' then comm else 'a' end as x from IO",
                "select case pdisk when 'dm-0' then comm else 'a' end as x from IO",
            ),
            (
                "select i.op from IO [range 1 s] as i, vms where i.vm = vms.vm and (i.pdisk = 'a' or vms.vm = 'a')",
                "select i.op from IO [range 1 s] as i, vms where i.vm = vms.vm and (i.pdisk = 'dm-0' or vms.vm = 'a')",
            ),
        ] {
            let (asked_plan, meant_plan) = (with_names(asked), plan(meant));
            assert_eq!(asked_plan, meant_plan, "{asked}");
            assert_eq!(with_names(meant), meant_plan, "{meant}");
        }
    }
}
