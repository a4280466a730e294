//! WHERE and its subqueries: `EXISTS` and `IN` become joins.
//!
//! The WHERE of a plain block below EXISTS or IN may refer to the outer query; such conditions
//! become conditions of the join. `x NOT IN (..)` is true only when every comparison is false,
//! NULLs included. A correlated NOT IN is therefore an anti join on "equal, or one of both is
//! NULL".

use std::sync::Arc;

use super::Checker;
use super::call::{has_aggregate, has_window_function};
use super::coerce::{self, Operand};
use super::expr::{Names, OUTER};
use super::scope::Scope;
use super::value::has_subquery;
use crate::diagnostic::{Span, codes};
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::plan::{JoinKind, Plan};
use crate::syntax::ast::{self, BodyKind, ExprKind, Item};

/// One condition of a WHERE.
enum Part<'a> {
    /// Over the columns of FROM.
    Condition(&'a ast::SpannedExpr),
    /// A subquery that becomes a join.
    Subquery {
        place: Span,
        item: Option<&'a ast::SpannedExpr>,
        query: &'a ast::Query,
        negated: bool,
    },
}

/// A subquery while it becomes the right side of a join.
pub(super) struct Right {
    pub plan: Arc<Plan>,
    /// Conditions over its columns, and over those of the outer query from [`OUTER`] on.
    pub conditions: Vec<Expr>,
    /// The column that IN compares, over its columns.
    pub item: Option<Operand>,
}

impl Checker<'_> {
    /// FROM with WHERE.
    pub(super) fn filter(
        &mut self,
        plan: Option<Arc<Plan>>,
        scope: &Scope,
        select: &ast::SelectBlock,
    ) -> Option<Arc<Plan>> {
        let Some(filter) = &select.filter else {
            return plan;
        };
        let mut parts = Vec::new();
        split(filter, false, &mut parts);
        let aliases = aliases(select);
        let (conditions, subqueries) = self.with_subqueries(|checker| {
            let mut conditions = Vec::new();
            for part in &parts {
                if let Part::Condition(expr) = part {
                    let names = &mut Names::plain(scope, "WHERE");
                    conditions.push(checker.where_condition(expr, names, &aliases));
                }
            }
            conditions.into_iter().collect::<Option<Vec<_>>>()
        });
        let selected = plan.zip(conditions).and_then(|(plan, conditions)| {
            let (joined, own) = conditions.into_iter().partition(has_subquery);
            let plan = Plan::select_all(plan, own);
            let plan = self.join_subqueries(plan, &subqueries, |expr| Ok(expr.clone()))?;
            let joined: Vec<Expr> = joined;
            let joined = joined.iter().map(|expr| plan.over(expr)).collect();
            Some(Plan::select_all(plan.plan, joined))
        });
        self.semi_joins(selected, scope, parts)
    }

    /// A condition of WHERE; an alias of SELECT in it gets its own diagnostic.
    fn where_condition(
        &mut self,
        expr: &ast::SpannedExpr,
        names: &mut Names,
        aliases: &[&ast::Ident],
    ) -> Option<Expr> {
        let reported = self.diagnostics.len();
        let checked = self.condition_in(expr, names);
        for diagnostic in &mut self.diagnostics[reported..] {
            let name = |a: &&&ast::Ident| {
                diagnostic.message == format!("unknown column `{}`", a.value)
                    || diagnostic
                        .message
                        .eq_ignore_ascii_case(&format!("unknown column `{}`", a.value))
            };
            if diagnostic.code == codes::UNKNOWN_COLUMN.code && aliases.iter().any(|a| name(&a)) {
                let message = diagnostic
                    .message
                    .replace("unknown column", "WHERE cannot use the alias");
                *diagnostic = codes::ALIAS_IN_WHERE
                    .at(diagnostic.span, message)
                    .help("write the expression again, or select from a subquery");
            }
        }
        checked
    }

    /// The joins of all subqueries among `parts`.
    fn semi_joins(
        &mut self,
        mut plan: Option<Arc<Plan>>,
        scope: &Scope,
        parts: Vec<Part<'_>>,
    ) -> Option<Arc<Plan>> {
        for part in parts {
            if let Part::Subquery {
                place,
                item,
                query,
                negated,
            } = part
            {
                plan = self.semi_join(plan, scope, place, item, query, negated);
            }
        }
        plan
    }

    fn semi_join(
        &mut self,
        left: Option<Arc<Plan>>,
        scope: &Scope,
        place: Span,
        item: Option<&ast::SpannedExpr>,
        query: &ast::Query,
        negated: bool,
    ) -> Option<Arc<Plan>> {
        let key = item.map(|item| self.operand(item, &mut Names::plain(scope, "WHERE")));
        self.outer_scopes.push(scope.clone());
        let right = self.right(query, scope, item.is_some());
        self.outer_scopes.pop();
        let (left, right) = (left?, right?);
        let columns = left.schema.len();
        let concat =
            |expr: &Expr| expr.map_columns(&|i| if i >= OUTER { i - OUTER } else { i + columns });
        let mut conditions: Vec<Expr> = right.conditions.iter().map(concat).collect();
        let correlated = !conditions.is_empty();
        let mut kind = if negated {
            JoinKind::Anti
        } else {
            JoinKind::Semi
        };
        let mut on = Vec::new();
        if let Some(key) = key {
            let value = right.item.expect("IN has a column to compare");
            let pair = coerce::pair(
                BinaryOp::Equal,
                key?,
                Operand {
                    span: place,
                    ..value
                },
            );
            let (key, value) = match pair {
                Ok(pair) => pair,
                Err(diagnostic) => {
                    self.diagnostics.push(diagnostic);
                    return None;
                }
            };
            if negated && !correlated {
                kind = JoinKind::NotIn;
                on.push((key, value));
            } else {
                let value = concat(&value);
                conditions.push(match negated {
                    true => equal_or_null(key, value),
                    false => Expr::boolean(BinaryOp::Equal, key, value),
                });
            }
        }
        let residual = Expr::balanced(BinaryOp::And, conditions);
        Some(Plan::join(left, right.plan, kind, on, residual))
    }

    /// The right side of a join for a subquery.
    pub(super) fn right(
        &mut self,
        query: &ast::Query,
        outer: &Scope,
        compares: bool,
    ) -> Option<Right> {
        self.without_subqueries(|checker| checker.right_side(query, outer, compares))
    }

    fn right_side(&mut self, query: &ast::Query, outer: &Scope, compares: bool) -> Option<Right> {
        let select = match &query.body.value {
            BodyKind::Select(select) if is_plain(query, select) => select,
            _ => return self.closed(query, compares),
        };
        let from = self.from(&select.from);
        let right = self.conditions(select, from.plan, &from.scope, outer);
        let item = self.item(select, &from.scope, query.body.span, compares);
        let (right, item) = (right?, item?);
        Some(Right { item, ..right })
    }

    /// The rows of a plain subquery, and the conditions that refer to the outer query.
    pub(super) fn conditions(
        &mut self,
        select: &ast::SelectBlock,
        plan: Option<Arc<Plan>>,
        scope: &Scope,
        outer: &Scope,
    ) -> Option<Right> {
        let mut parts = Vec::new();
        if let Some(filter) = &select.filter {
            split(filter, false, &mut parts);
        }
        let aliases = aliases(select);
        let (mut own, mut conditions) = (Vec::new(), Vec::new());
        let mut sound = true;
        for part in &parts {
            if let Part::Condition(expr) = part {
                let mut names = Names::plain(scope, "WHERE");
                names.outer = Some(outer);
                match self.where_condition(expr, &mut names, &aliases) {
                    Some(condition) if refers_outside(&condition) => conditions.push(condition),
                    Some(condition) => own.push(condition),
                    None => sound = false,
                }
            }
        }
        let plan = plan.map(|plan| Plan::select_all(plan, own));
        let plan = self.semi_joins(plan, scope, parts)?;
        sound.then_some(Right {
            plan,
            conditions,
            item: None,
        })
    }

    /// The SELECT of a plain subquery: one column for IN, anything for EXISTS.
    fn item(
        &mut self,
        select: &ast::SelectBlock,
        scope: &Scope,
        place: Span,
        compares: bool,
    ) -> Option<Option<Operand>> {
        let mut found = Vec::new();
        let mut sound = true;
        for item in &select.items {
            match &item.value {
                Item::Error => sound = false,
                Item::Star | Item::TableStar(_) => {
                    let of = |name: &str| scope.table(name).map_or(Vec::new(), |t| t.star());
                    let stars = match &item.value {
                        Item::TableStar(table) => of(&table.value),
                        _ => scope.tables.iter().flat_map(|t| t.star()).collect(),
                    };
                    let span = item.span;
                    found.extend(stars.into_iter().map(|f| Operand {
                        expr: f.expr(),
                        span,
                    }));
                }
                Item::Expr { expr, .. } => {
                    let operand =
                        self.operand(expr, &mut Names::plain(scope, "a subquery of IN or EXISTS"));
                    sound &= operand.is_some();
                    found.extend(operand);
                }
            }
        }
        if !sound || !scope.is_known() {
            return None;
        }
        if !compares {
            return Some(None);
        }
        if found.len() != 1 {
            let message = format!(
                "IN takes a subquery with one column, this has {}",
                found.len()
            );
            self.diagnostics
                .push(codes::COLUMN_COUNT.at(place, message));
            return None;
        }
        Some(found.pop())
    }

    /// An uncorrelated subquery.
    fn closed(&mut self, query: &ast::Query, compares: bool) -> Option<Right> {
        let plan = self.query(query)?;
        if !super::is_relation(&plan) {
            let message = "the subquery is a stream";
            self.diagnostics
                .push(codes::STREAM_EXPECTED.at(query.body.span, message));
            return None;
        }
        if compares && plan.schema.len() != 1 {
            let message = format!(
                "IN takes a subquery with one column, this has {}",
                plan.schema.len()
            );
            self.diagnostics
                .push(codes::COLUMN_COUNT.at(query.body.span, message));
            return None;
        }
        let item = compares.then(|| Operand {
            expr: plan.columns().remove(0),
            span: query.body.span,
        });
        Some(Right {
            plan,
            conditions: Vec::new(),
            item,
        })
    }
}

/// Whether a block's WHERE may refer to the outer query: it has nothing after WHERE, and no
/// aggregates.
fn is_plain(query: &ast::Query, select: &ast::SelectBlock) -> bool {
    let aggregates = select.items.iter().any(|item| match &item.value {
        Item::Expr { expr, .. } => has_aggregate(expr) || has_window_function(expr),
        _ => false,
    });
    let simple = query.views.is_empty() && query.limit.is_none() && query.offset.is_none();
    let is_grouped = !select.group_by.is_empty() || select.grouping != ast::Grouping::All;
    simple && !nests(select) && !is_grouped && select.having.is_none() && !aggregates
}

/// Whether WHERE has a subquery inside an expression, which becomes a join of the whole block.
pub(super) fn nests(select: &ast::SelectBlock) -> bool {
    fn contains(expr: &ast::SpannedExpr) -> bool {
        let mut found = matches!(
            expr.kind,
            ExprKind::Scalar { .. } | ExprKind::Exists { .. } | ExprKind::InQuery { .. }
        );
        expr.kind
            .visit(&mut |child| found = found || contains(child));
        found
    }
    let mut parts = Vec::new();
    if let Some(filter) = &select.filter {
        split(filter, false, &mut parts);
    }
    let inside = |part: &Part| match part {
        Part::Condition(expr) => contains(expr),
        Part::Subquery { item, .. } => item.is_some_and(contains),
    };
    parts.iter().any(inside)
}

/// The aliases of SELECT.
fn aliases(select: &ast::SelectBlock) -> Vec<&ast::Ident> {
    let alias =
        |item: &'_ ast::Spanned<Item>| matches!(&item.value, Item::Expr { alias: Some(_), .. });
    let named = select.items.iter().filter(|i| alias(i));
    named
        .filter_map(|item| match &item.value {
            Item::Expr { alias, .. } => alias.as_ref(),
            _ => None,
        })
        .collect()
}

/// Splits a condition at AND, and moves NOT into a subquery condition.
fn split<'a>(expr: &'a ast::SpannedExpr, negate: bool, parts: &mut Vec<Part<'a>>) {
    match &expr.kind {
        ExprKind::Binary {
            op: BinaryOp::And,
            left,
            right,
        } if !negate => {
            split(left, false, parts);
            split(right, false, parts);
        }
        ExprKind::Exists { query } => {
            parts.push(Part::Subquery {
                place: expr.span,
                item: None,
                query,
                negated: negate,
            });
        }
        ExprKind::InQuery {
            expr: item,
            query,
            negated,
        } => parts.push(Part::Subquery {
            place: expr.span,
            item: Some(item),
            query,
            negated: *negated != negate,
        }),
        ExprKind::Unary {
            op: UnaryOp::Not,
            expr: inner,
        } if leads_to_subquery(inner) => {
            split(inner, !negate, parts);
        }
        _ => parts.push(Part::Condition(expr)),
    }
}

/// Whether it is a subquery, possibly below NOTs.
fn leads_to_subquery(expr: &ast::SpannedExpr) -> bool {
    match &expr.kind {
        ExprKind::Exists { .. } | ExprKind::InQuery { .. } => true,
        ExprKind::Unary {
            op: UnaryOp::Not,
            expr,
        } => leads_to_subquery(expr),
        _ => false,
    }
}

pub(super) fn refers_outside(expr: &Expr) -> bool {
    let mut outside = false;
    expr.visit_columns(&mut |i| outside |= i >= OUTER);
    outside
}

/// True unless `x = y` is false.
fn equal_or_null(x: Expr, y: Expr) -> Expr {
    let is_null = |e: &Expr| Expr::IsNull {
        expr: Box::new(e.clone()),
        negated: false,
    };
    let parts = vec![
        is_null(&x),
        is_null(&y),
        Expr::boolean(BinaryOp::Equal, x, y),
    ];
    Expr::balanced(BinaryOp::Or, parts).expect("three parts")
}
