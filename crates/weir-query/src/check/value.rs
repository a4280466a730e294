//! Subqueries in expressions: `(SELECT ..)` as a value, EXISTS and IN anywhere.
//!
//! Each becomes a left join of the block with the subquery's relation. A correlated one is grouped
//! by its side of the equalities with columns of the outer query, and joined on them. A group
//! without rows has no partner: its counts are 0 and its other aggregates NULL.

use std::sync::Arc;

use super::call::has_aggregate;
use super::coerce::{self, Operand};
use super::expr::{Names, OUTER};
use super::scope::Scope;
use super::select::{Block, aggregated, over_groups};
use super::subquery::{Right, refers_outside};
use super::{Checker, Dialect, is_relation};
use crate::diagnostic::{Span, codes};
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::{AggregateCall, ScalarCall, aggregate, scalar};
use crate::plan::{JoinKind, Node, Plan};
use crate::syntax::ast::{self, BodyKind, Item};
use weir_model::{Type, Unit};

/// Columns of subqueries are numbered from here on, until the joins exist.
pub(super) const SUBQUERIES: usize = 1 << 44;

/// The distance between the numbers of two subqueries' first columns.
const COLUMNS_MAX: usize = 1 << 16;

/// The subqueries of some expressions of a block.
#[derive(Default)]
pub(super) struct Subqueries {
    joins: Vec<SubqueryJoin>,
    /// The value of each subquery, by its position.
    values: Vec<(Span, Expr)>,
}

/// The relation of a subquery, and the condition on which it is joined.
pub(super) struct SubqueryJoin {
    place: Span,
    plan: Arc<Plan>,
    /// Over the block's columns, and over those of the relation.
    on: Vec<(Expr, Expr)>,
}

/// A block's plan with the joins of its subqueries.
pub(super) struct WithSubqueries {
    pub plan: Arc<Plan>,
    /// The first column of each subquery.
    first: Vec<usize>,
}

impl WithSubqueries {
    /// The expression over the columns of the plan.
    pub fn over(&self, expr: &Expr) -> Expr {
        over(expr, &self.first)
    }
}

fn over(expr: &Expr, first: &[usize]) -> Expr {
    expr.map_columns(&|i| match i.checked_sub(SUBQUERIES) {
        Some(i) => first[i / COLUMNS_MAX] + i % COLUMNS_MAX,
        None => i,
    })
}

/// Whether an expression contains the value of a subquery.
pub(super) fn has_subquery(expr: &Expr) -> bool {
    let mut found = false;
    expr.visit_columns(&mut |i| found |= i >= SUBQUERIES);
    found
}

impl Checker<'_> {
    /// The result of a check that allows subqueries in expressions, and those.
    pub(super) fn with_subqueries<T>(
        &mut self,
        check: impl FnOnce(&mut Self) -> T,
    ) -> (T, Subqueries) {
        let outside = self.subqueries.replace(Subqueries::default());
        let checked = check(self);
        let found = std::mem::replace(&mut self.subqueries, outside);
        (checked, found.unwrap_or_default())
    }

    /// The result of a check that allows neither them nor window functions.
    pub(super) fn without_subqueries<T>(&mut self, check: impl FnOnce(&mut Self) -> T) -> T {
        let outside = (
            self.subqueries.take(),
            self.window_calls.take(),
            self.group_keys.take(),
            self.baselines.take(),
        );
        let checked = check(self);
        (
            self.subqueries,
            self.window_calls,
            self.group_keys,
            self.baselines,
        ) = outside;
        checked
    }

    /// `plan` joined with the relations of `subqueries`. `below` makes an expression over the
    /// columns of the block one over those of `plan`; its error is a column that is not there.
    pub(super) fn join_subqueries(
        &mut self,
        mut plan: Arc<Plan>,
        subqueries: &Subqueries,
        below: impl Fn(&Expr) -> Result<Expr, usize>,
    ) -> Option<WithSubqueries> {
        let mut first = Vec::new();
        for join in &subqueries.joins {
            let mut on = Vec::new();
            for (outer, inner) in &join.on {
                match below(outer) {
                    Ok(outer) => on.push((over(&outer, &first), inner.clone())),
                    Err(_) => {
                        let message = "the subquery refers to a column that is not in GROUP BY";
                        self.diagnostics
                            .push(codes::NOT_GROUPED.at(join.place, message));
                        return None;
                    }
                }
            }
            first.push(plan.schema.len());
            plan = Plan::join(plan, join.plan.clone(), JoinKind::Left, on, None);
        }
        Some(WithSubqueries { plan, first })
    }

    /// A subquery as a value.
    pub(super) fn scalar_subquery(
        &mut self,
        query: &ast::Query,
        place: Span,
        names: &Names,
    ) -> Option<Expr> {
        self.subquery_value(place, names.scope, |checker, outer| {
            let grouped = checker.grouped_subquery(query, outer);
            let (plan, on, value) = match grouped {
                Some(found) => found?,
                None => checker.single_row(query, place)?,
            };
            let first = checker.add_join(place, plan, on);
            Some(value.map_columns(&|i| i + first))
        })
    }

    /// EXISTS as a value.
    pub(super) fn exists_value(
        &mut self,
        query: &ast::Query,
        place: Span,
        names: &Names,
    ) -> Option<Expr> {
        self.subquery_value(place, names.scope, |checker, outer| {
            let right = checker.right(query, outer, false)?;
            let on = checker.equalities(&right, place)?;
            let [rows] = checker.counts(&right.plan, place, on, &[], [None]);
            Some(Expr::boolean(BinaryOp::Greater, rows, Expr::int(0)))
        })
    }

    /// IN as a value: true for an equal row, otherwise NULL if there are rows and one side of the
    /// comparison with one of them is NULL.
    pub(super) fn in_value(
        &mut self,
        x: Operand,
        query: &ast::Query,
        negated: bool,
        place: Span,
        names: &Names,
    ) -> Option<Expr> {
        self.repeatable(&x, 2)?;
        let value = self.subquery_value(place, names.scope, |checker, outer| {
            let right = checker.right(query, outer, true)?;
            let on = checker.equalities(&right, place)?;
            let item = right.item.clone().expect("IN has a column to compare");
            let item = Operand {
                span: place,
                ..item
            };
            let pair = coerce::pair(BinaryOp::Equal, x, item);
            let (x, item) = checker.or_report(pair)?;
            let own = (x.clone(), item.clone());
            let known = Some(item);
            let [equal] = checker.counts(&right.plan, place, on.clone(), &[own], [None]);
            let [rows, known] = checker.counts(&right.plan, place, on, &[], [None, known]);
            let is_null = Expr::IsNull {
                expr: Box::new(x),
                negated: false,
            };
            let or = |x, y| Expr::boolean(BinaryOp::Or, x, y);
            let and = |x, y| Expr::boolean(BinaryOp::And, x, y);
            let greater = |x, y| Expr::boolean(BinaryOp::Greater, x, y);
            let unknown = or(is_null, greater(rows.clone(), known));
            let unknown = and(greater(rows, Expr::int(0)), unknown);
            let null = coerce::null(Type::Bool, Unit::None);
            Some(or(greater(equal, Expr::int(0)), and(unknown, null)))
        })?;
        Some(match negated {
            true => Expr::Unary {
                op: UnaryOp::Not,
                expr: Box::new(value),
            },
            false => value,
        })
    }

    /// The value of the subquery at `place`, which `find` finds the first time.
    fn subquery_value(
        &mut self,
        place: Span,
        outer: &Scope,
        find: impl FnOnce(&mut Self, &Scope) -> Option<Expr>,
    ) -> Option<Expr> {
        let Some(found) = &self.subqueries else {
            let message = "a subquery is not supported here";
            let help = "use it in WHERE, HAVING, SELECT or ORDER BY, outside of aggregates";
            self.diagnostics
                .push(codes::SUBQUERY_UNSUPPORTED.at(place, message).help(help));
            return None;
        };
        if let Some((_, value)) = found.values.iter().find(|(at, _)| *at == place) {
            return Some(value.clone());
        }
        self.outer_scopes.push(outer.clone());
        let value = find(self, outer);
        self.outer_scopes.pop();
        let found = self.subqueries.as_mut()?;
        found.values.push((place, value.clone()?));
        value
    }

    /// Adds a join, and returns the number of its first column.
    fn add_join(&mut self, place: Span, plan: Arc<Plan>, on: Vec<(Expr, Expr)>) -> usize {
        let found = self.subqueries.as_mut().expect("subqueries are allowed");
        let number = found.joins.len();
        found.joins.push(SubqueryJoin { place, plan, on });
        SUBQUERIES + number * COLUMNS_MAX
    }

    /// An uncorrelated subquery of one row and one column.
    fn single_row(&mut self, query: &ast::Query, place: Span) -> Option<Value> {
        let plan = self.without_subqueries(|checker| checker.query(query))?;
        if !is_relation(&plan) {
            let message = "the subquery is a stream";
            self.diagnostics
                .push(codes::STREAM_EXPECTED.at(place, message));
            return None;
        }
        if plan.schema.len() != 1 {
            let columns = plan.schema.len();
            let message = format!("a value is one column, the subquery has {columns}");
            self.diagnostics
                .push(codes::COLUMN_COUNT.at(place, message));
            return None;
        }
        if !has_one_row(&plan) {
            let message = "a value is one row, the subquery may have several";
            let help = "aggregate it, with max(..) for instance, or add LIMIT 1";
            self.diagnostics
                .push(codes::SUBQUERY_UNSUPPORTED.at(place, message).help(help));
            return None;
        }
        let value = plan.columns().remove(0);
        Some((plan, Vec::new(), value))
    }

    /// A subquery of one aggregate whose WHERE may refer to the outer query; `None` for others.
    fn grouped_subquery(&mut self, query: &ast::Query, outer: &Scope) -> Option<Option<Value>> {
        let BodyKind::Select(select) = &query.body.value else {
            return None;
        };
        let [item] = &select.items[..] else {
            return None;
        };
        let Item::Expr { expr, .. } = &item.value else {
            return None;
        };
        let bare = query.views.is_empty()
            && query.order_by.is_empty()
            && query.limit.is_none()
            && query.offset.is_none()
            && select.group_by.is_empty()
            && select.grouping == ast::Grouping::All
            && select.having.is_none();
        (bare && has_aggregate(expr) && !super::subquery::nests(select))
            .then(|| self.without_subqueries(|c| c.grouped(select, expr, query.body.span, outer)))
    }

    fn grouped(
        &mut self,
        select: &ast::SelectBlock,
        expr: &ast::SpannedExpr,
        place: Span,
        outer: &Scope,
    ) -> Option<Value> {
        let from = self.from(&select.from);
        let right = self.conditions(select, from.plan, &from.scope, outer);
        let mut block = Block::over(&from.scope);
        let value = self.block_value(expr, &mut block);
        let right = right?;
        let on = self.equalities(&right, place)?;
        let (outer, keys): (Vec<Expr>, Vec<Expr>) = on.into_iter().unzip();
        block.keys = keys;
        let value = over_groups(&value?, &block);
        let Ok(value) = value else {
            let message = "the subquery's value has a column outside of aggregates";
            self.diagnostics
                .push(codes::NOT_GROUPED.at(expr.span, message));
            return None;
        };
        let plan = aggregated(right.plan, &block, self.options.dialect);
        let keys = block.keys.len();
        let is_count = |i: usize| {
            let call = i.checked_sub(keys).and_then(|i| block.calls.get(i));
            call.is_some_and(|call| call.function.doc().name == "count")
        };
        let value = match keys {
            0 => value,
            _ => value.map(&|expr| match &expr {
                Expr::Column { index, .. } if is_count(*index) => or_zero(expr),
                _ => expr,
            }),
        };
        let keys = plan.columns().into_iter().take(keys);
        Some((plan.clone(), outer.into_iter().zip(keys).collect(), value))
    }

    /// The conditions on columns of the outer query, as pairs of expressions that must be equal.
    fn equalities(&mut self, right: &Right, place: Span) -> Option<Vec<(Expr, Expr)>> {
        let pair = |condition: &Expr| {
            let (x, y) = condition.equality()?;
            let (outer, inner) = match refers_outside(x) {
                true => (x, y),
                false => (y, x),
            };
            let mut all_outside = true;
            outer.visit_columns(&mut |i| all_outside &= i >= OUTER);
            // A side may have columns of both queries: `b + outer.a = c` is no such pair.
            (all_outside && !refers_outside(inner))
                .then(|| (outer.map_columns(&|i| i - OUTER), inner.clone()))
        };
        let pairs: Option<Vec<_>> = right.conditions.iter().map(pair).collect();
        if pairs.is_none() {
            let message = "the subquery refers to the outer query in more than equalities";
            let help =
                "compare a column of each with `=`, or move the subquery to FROM and join it";
            self.diagnostics
                .push(codes::SUBQUERY_UNSUPPORTED.at(place, message).help(help));
        }
        pairs
    }

    /// The numbers of rows of `plan` that equal the outer query's in all of `on` and `more`, for
    /// each of `counted` those where it is not NULL.
    fn counts<const N: usize>(
        &mut self,
        plan: &Arc<Plan>,
        place: Span,
        mut on: Vec<(Expr, Expr)>,
        more: &[(Expr, Expr)],
        counted: [Option<Expr>; N],
    ) -> [Expr; N] {
        on.extend_from_slice(more);
        let (outer, keys): (Vec<Expr>, Vec<Expr>) = on.into_iter().unzip();
        let function = aggregate::find("count").expect("there is count");
        let call = |arg: &Option<Expr>| AggregateCall {
            function,
            args: arg.iter().cloned().collect(),
            distinct: false,
            ty: Type::Int,
            unit: Unit::None,
        };
        let scope = Scope::unknown("");
        let mut block = Block::over(&scope);
        block.keys = keys;
        block.calls = counted.iter().map(call).collect();
        let plan = aggregated(plan.clone(), &block, Dialect::Cql);
        let columns = plan.columns();
        let on = outer.into_iter().zip(columns).collect();
        let calls = plan.columns().split_off(block.keys.len());
        let first = self.add_join(place, plan, on);
        let mut calls = calls.into_iter();
        [(); N].map(|()| {
            let count = calls.next().expect("a column for each");
            or_zero(count.map_columns(&|i| i + first))
        })
    }
}

/// A subquery's relation, the condition of its join, and its value over the relation's columns.
type Value = (Arc<Plan>, Vec<(Expr, Expr)>, Expr);

/// `coalesce(count, 0)`
fn or_zero(count: Expr) -> Expr {
    let (ty, unit) = (count.ty(), count.unit());
    Expr::Call(ScalarCall {
        function: scalar::find("coalesce").expect("there is coalesce"),
        args: vec![count, Expr::int(0)],
        ty,
        unit,
    })
}

/// Whether a relation never has more than one row.
fn has_one_row(plan: &Plan) -> bool {
    match &plan.node {
        Node::Aggregate { keys, .. } if keys.is_empty() => true,
        Node::Order {
            limit: Some(0 | 1), ..
        } => true,
        Node::Project { input, .. }
        | Node::Select { input, .. }
        | Node::Distinct { input }
        | Node::Order { input, .. } => has_one_row(input),
        _ => false,
    }
}
