//! The parts around query blocks: WITH, set operations, Istream, Dstream and Rstream, ORDER BY and
//! LIMIT.

use std::sync::Arc;

use weir_model::{Field, Shape};

use super::coerce::{self, Operand};
use super::expr::Names;
use super::scope::Scope;
use super::{Checker, is_relation};
use crate::diagnostic::{Span, codes, counted};
use crate::expr::Expr;
use crate::plan::{Node, OrderBy, Plan, SetOp, ToStream, Window, greatest_common_divisor};
use crate::syntax::ast::{self, BodyKind, ExprKind, Literal, Number, QueryBody, Spanned, StreamOp};

impl Checker<'_> {
    /// The plan of a query.
    pub(super) fn query(&mut self, query: &ast::Query) -> Option<Arc<Plan>> {
        let outside = self.views.len();
        for view in &query.views {
            let same = |v: &super::NamedQuery| v.name.eq_ignore_ascii_case(&view.name.value);
            if self.views[outside..].iter().any(same) {
                let message = format!("WITH defines `{}` twice", view.name.value);
                self.diagnostics
                    .push(codes::DUPLICATE_SOURCE.at(view.name.span, message));
            }
            let named = self.named(view);
            self.views.push(named);
        }
        let plan = match &query.body.value {
            BodyKind::Select(select) => self.select(select, query),
            _ => {
                let plan = self.body(&query.body);
                plan.and_then(|plan| self.order_over(plan, query))
            }
        };
        self.views.truncate(outside);
        plan
    }

    /// A body without an ORDER BY of its own.
    fn body(&mut self, body: &QueryBody) -> Option<Arc<Plan>> {
        match &body.value {
            BodyKind::Error => None,
            BodyKind::Nested(query) => self.query(query),
            BodyKind::Select(select) => self.select(select, &bare(body.clone())),
            BodyKind::Named(named) => {
                let item = Spanned::new(ast::Item::Star, body.span);
                let table = Spanned::new(ast::TableSource::Named((**named).clone()), body.span);
                let select = ast::SelectBlock {
                    distinct: false,
                    items: vec![item],
                    from: vec![ast::FromItem {
                        table,
                        joins: Vec::new(),
                    }],
                    filter: None,
                    group_by: Vec::new(),
                    grouping: ast::Grouping::All,
                    having: None,
                    windows: Vec::new(),
                };
                self.select(&select, &bare(body.clone()))
            }
            BodyKind::SetOp {
                op,
                all,
                left,
                right,
            } => self.set_op(*op, *all, left, right),
            BodyKind::ToStream { kind, query, every } => {
                self.changes(*kind, query, every.as_ref(), body.span)
            }
        }
    }

    fn set_op(
        &mut self,
        op: SetOp,
        all: bool,
        left: &QueryBody,
        right: &QueryBody,
    ) -> Option<Arc<Plan>> {
        // Between names it is STREAM's operator, which is of bags.
        let named = |body: &QueryBody| matches!(body.value, BodyKind::Named(_));
        let all = all || named(left) && named(right);
        let (l, r) = (self.body(left), self.body(right));
        for (plan, body) in [(&l, left), (&r, right)] {
            if plan.as_ref().is_some_and(|p| !is_relation(p)) {
                let message = "a set operation needs relations, this is a stream";
                let found = codes::STREAM_EXPECTED.at(body.span, message);
                self.diagnostics.push(
                    found.help("remove Istream(..) here, or apply it to the whole set operation"),
                );
            }
        }
        let (l, r) = (l.filter(|p| is_relation(p))?, r.filter(|p| is_relation(p))?);
        let span = left.span.to(right.span);
        if l.schema.len() != r.schema.len() {
            let sides = [&l, &r].map(|side| counted(side.schema.len(), "column"));
            let message = format!("{} on the left, {} on the right", sides[0], sides[1]);
            self.diagnostics.push(codes::COLUMN_COUNT.at(span, message));
            return None;
        }
        let (mut left_exprs, mut right_exprs) = (Vec::new(), Vec::new());
        let mut failed = false;
        for (i, (x, y)) in l.columns().into_iter().zip(r.columns()).enumerate() {
            let operands = vec![
                Operand {
                    expr: visible(&l, i, x),
                    span: left.span,
                },
                Operand {
                    expr: visible(&r, i, y),
                    span: right.span,
                },
            ];
            match coerce::common(operands) {
                Ok((mut pair, ..)) => {
                    right_exprs.extend(pair.pop());
                    left_exprs.extend(pair.pop());
                }
                Err(diagnostic) => {
                    let name = &l.schema[i].name;
                    let message = format!("column {} (`{name}`): {}", i + 1, diagnostic.message);
                    self.diagnostics
                        .push(codes::TYPE_MISMATCH.at(span, message));
                    failed = true;
                }
            }
        }
        (!failed)
            .then(|| Plan::set_op(converted(l, left_exprs), converted(r, right_exprs), op, all))
    }

    fn changes(
        &mut self,
        kind: StreamOp,
        query: &ast::Query,
        every: Option<&Spanned<ast::Duration>>,
        span: Span,
    ) -> Option<Arc<Plan>> {
        let input = self.query(query);
        let pace = every.map(|every| self.instants(every));
        if let (Some(every), StreamOp::Istream | StreamOp::Dstream) = (every, kind) {
            let found = codes::BAD_EVERY.at(every.span, "EVERY is only allowed with Rstream");
            self.diagnostics.push(found);
            return None;
        }
        let input = input?;
        if !is_relation(&input) {
            let message = "this is a stream already";
            self.diagnostics
                .push(codes::STREAM_EXPECTED.at(query.body.span, message));
            return None;
        }
        let kind = match kind {
            StreamOp::Istream => ToStream::Istream,
            StreamOp::Dstream => ToStream::Dstream,
            StreamOp::Rstream => {
                let every = match pace {
                    Some(pace) => Some(pace?),
                    None => slide_of(&input),
                };
                if every.is_none() && self.options.live && !has_now(&input) {
                    let message = "a live Rstream needs EVERY, or a Slide in every window";
                    let help = "add `EVERY 1 s` after it, or a Slide to its window";
                    self.diagnostics
                        .push(codes::RSTREAM_PACE.at(span, message).help(help));
                    return None;
                }
                ToStream::Rstream { every }
            }
        };
        Some(Plan::to_stream(input, kind))
    }

    /// ORDER BY and LIMIT over the columns of a result.
    fn order_over(&mut self, plan: Arc<Plan>, query: &ast::Query) -> Option<Arc<Plan>> {
        if !self.may_be_ordered(&plan, query) {
            return None;
        }
        let scope = Scope::of("", plan.schema.clone(), None);
        let mut by = Vec::new();
        for item in &query.order_by {
            let expr = match ordinal(&item.expr) {
                Some(n) => self.nth_column(&plan, n, item.expr.span),
                None => self.expr(&item.expr, &mut Names::plain(&scope, "ORDER BY here")),
            };
            by.push(expr.map(|expr| order_by(expr, item)));
        }
        let by = by.into_iter().collect::<Option<Vec<_>>>()?;
        Some(limited(plan, by, query))
    }

    /// Reports ORDER BY and LIMIT on a stream.
    pub(super) fn may_be_ordered(&mut self, plan: &Plan, query: &ast::Query) -> bool {
        let place = (query.order_by.first().map(|o| o.expr.span))
            .or(query.limit.as_ref().map(|l| l.span))
            .or(query.offset.as_ref().map(|o| o.span));
        match place {
            Some(span) if plan.shape == Shape::Stream => {
                let message = "a stream is ordered by time only";
                let found = codes::ORDER_ON_STREAM.at(span, message);
                self.diagnostics
                    .push(found.help("put ORDER BY and LIMIT inside the parentheses"));
                false
            }
            _ => true,
        }
    }

    /// Column `n`, counted from 1.
    pub(super) fn nth_column(&mut self, plan: &Plan, n: i64, span: Span) -> Option<Expr> {
        let index = usize::try_from(n).ok().and_then(|n| n.checked_sub(1));
        let column = index.and_then(|i| plan.columns().into_iter().nth(i));
        if column.is_none() {
            let message = no_column_at(n, plan.schema.len());
            self.diagnostics.push(codes::BAD_ORDINAL.at(span, message));
        }
        column
    }
}

/// The message about a position without a column.
pub(super) fn no_column_at(n: i64, columns: usize) -> String {
    format!(
        "there is no column {n} among {}",
        counted(columns, "column")
    )
}

/// A query of a body alone.
fn bare(body: QueryBody) -> ast::Query {
    ast::Query {
        views: Vec::new(),
        body,
        order_by: Vec::new(),
        limit: None,
        offset: None,
    }
}

/// A position, `ORDER BY 2`.
pub(super) fn ordinal(expr: &ast::SpannedExpr) -> Option<i64> {
    match &expr.kind {
        ExprKind::Literal(Literal::Number(Number::Int(n))) => Some(*n),
        _ => None,
    }
}

/// A key of ORDER BY. NULLs are greater than all values, as in PostgreSQL, unless specified
/// otherwise.
pub(super) fn order_by(expr: Expr, item: &ast::OrderItem) -> OrderBy {
    let nulls_first = item.nulls_first.unwrap_or(item.descending);
    OrderBy {
        expr,
        descending: item.descending,
        nulls_first,
    }
}

/// `plan` with ORDER BY and LIMIT, where the query has them.
pub(super) fn limited(plan: Arc<Plan>, by: Vec<OrderBy>, query: &ast::Query) -> Arc<Plan> {
    let limit = query.limit.as_ref().map(|l| l.value);
    let offset = query.offset.as_ref().map_or(0, |o| o.value);
    match by.is_empty() && limit.is_none() && offset == 0 {
        true => plan,
        false => Plan::order(plan, by, limit, offset),
    }
}

/// Column `i` of a side of a set operation; a literal is treated as one, so that `SELECT NULL`
/// matches every type.
fn visible(plan: &Plan, i: usize, column: Expr) -> Expr {
    match &plan.node {
        Node::Project { exprs, .. } => match &exprs[i] {
            literal @ Expr::Literal { .. } => literal.clone(),
            _ => column,
        },
        _ => column,
    }
}

/// `plan` with its columns replaced by `exprs`, where that changes anything.
fn converted(plan: Arc<Plan>, exprs: Vec<Expr>) -> Arc<Plan> {
    if exprs == plan.columns() {
        return plan;
    }
    let fields = plan
        .schema
        .fields
        .iter()
        .zip(&exprs)
        .map(|(field, expr)| Field {
            ty: expr.ty(),
            unit: expr.unit(),
            ..field.clone()
        });
    let fields = fields.collect();
    Plan::project(plan, exprs, fields)
}

/// The greatest common divisor of the windows' slides, if every window has one.
pub(super) fn slide_of(plan: &Plan) -> Option<i64> {
    if let Node::Window { window, .. } = &plan.node {
        return window.kind().slide();
    }
    let slides = plan.inputs().into_iter().map(|input| slide_of(input));
    slides
        .collect::<Option<Vec<_>>>()?
        .into_iter()
        .reduce(greatest_common_divisor)
}

/// Whether the relation contains `[Now]` windows only in a part of it, so that it has instants of
/// its own.
fn has_now(plan: &Plan) -> bool {
    matches!(
        &plan.node,
        Node::Window {
            window: Window::Now(_),
            ..
        }
    ) || plan.inputs().into_iter().any(|input| has_now(input))
}
