//! One block: SELECT .. FROM .. WHERE .. GROUP BY .. HAVING, with its ORDER BY, which can refer to
//! columns of the block.

use std::sync::Arc;

use weir_model::Field;

use super::baseline::over_past;
use super::call::has_aggregate;
use super::expr::{AGGREGATES, Aggregates, Names};
use super::grouping::{GROUPINGS, grouped_by_sets};
use super::over::WINDOW_RESULTS;
use super::query::{limited, no_column_at, order_by, ordinal};
use super::scope::{ResolvedColumn, Scope};
use super::value::SUBQUERIES;
use super::{Checker, Dialect};
use crate::diagnostic::{Span, codes};
use crate::expr::Expr;
use crate::function::AggregateCall;
use crate::plan::{GlobalGroup, Plan};
use crate::syntax::ast::{self, ExprKind, Item};

/// A column of the result.
struct Output {
    expr: Expr,
    field: Field,
}

/// A block during its check: the plan below SELECT and the names that its expressions may use.
pub(super) struct Block<'s> {
    scope: &'s Scope,
    aliases: Vec<(&'s ast::Ident, &'s ast::SpannedExpr)>,
    /// Keys of GROUP BY, over the columns of `scope`.
    pub keys: Vec<Expr>,
    pub calls: Vec<AggregateCall>,
    grouped: bool,
    /// The keys of each set of ROLLUP, CUBE or GROUPING SETS.
    pub sets: Option<Vec<Vec<usize>>>,
    /// False when a key has an error: then it is unknown what is grouped.
    keys_known: bool,
}

impl<'s> Block<'s> {
    /// One group of the rows of `scope`.
    pub fn over(scope: &'s Scope) -> Block<'s> {
        Block {
            scope,
            aliases: Vec::new(),
            keys: Vec::new(),
            calls: Vec::new(),
            grouped: true,
            sets: None,
            keys_known: true,
        }
    }

    /// How many columns of its groups are keys, or the marks of those that a row is not grouped by.
    pub fn key_columns(&self) -> usize {
        match self.sets {
            None => self.keys.len(),
            Some(_) => 2 * self.keys.len(),
        }
    }

    /// The sources.
    pub fn scope(&self) -> &'s Scope {
        self.scope
    }
}

impl Checker<'_> {
    /// The plan of a block of `query`.
    pub(super) fn select(
        &mut self,
        select: &ast::SelectBlock,
        query: &ast::Query,
    ) -> Option<Arc<Plan>> {
        let from = self.from(&select.from);
        let input = self.filter(from.plan, &from.scope, select);
        let mut block = self.block(select, query, &from.scope);
        block.keys_known = self.keys(select, &mut block);
        let (mut hidden, mut windows) = (Vec::new(), Vec::new());
        let keys = (block.keys.clone(), block.sets.is_some());
        let outside = self.group_keys.replace(keys);
        let windows_outside = self.begin_windows(&select.windows);
        let (checked, baselines) = self.with_baselines(|checker| {
            checker.with_subqueries(|checker| {
                let outputs = checker
                    .with_window_calls(&mut windows, |checker| checker.outputs(select, &mut block));
                let having = select.having.as_ref().map(|having| {
                    let condition = checker.block_condition(having, &mut block);
                    checker.below_select(condition?, &block)
                });
                let by = checker.with_window_calls(&mut windows, |checker| {
                    checker.order_keys(query, &mut block, outputs.as_deref(), &mut hidden)
                });
                (outputs, having, by)
            })
        });
        let ((outputs, having, by), subqueries) = checked;
        self.group_keys = outside;
        self.windows = windows_outside;
        let (mut plan, mut outputs, by) = (input?, outputs?, by?);
        if !block.keys_known {
            return None;
        }
        let mut past = Vec::new();
        if block.grouped {
            let (dialect, input) = (self.options.dialect, plan.clone());
            plan = match &block.sets {
                None => aggregated(plan, &block, dialect),
                Some(sets) => grouped_by_sets(&plan, &block, sets, dialect)?,
            };
            (plan, past) = self.join_baselines(plan, &input, &block, &baselines)?;
        }
        let below = |expr: &Expr| match block.grouped {
            true => over_groups(expr, &block).map(|expr| over_past(&expr, &past)),
            false => Ok(expr.clone()),
        };
        let joined = self.join_subqueries(plan, &subqueries, below)?;
        plan = joined.plan.clone();
        if let Some(having) = having {
            plan = Plan::select(plan, joined.over(&over_past(&having?, &past)));
        }
        let shown = outputs.len();
        outputs.extend(hidden);
        let mut exprs: Vec<&mut Expr> = outputs.iter_mut().map(|o| &mut o.expr).collect();
        let joined_past = |expr: &Expr| joined.over(&over_past(expr, &past));
        exprs.iter_mut().for_each(|expr| **expr = joined_past(expr));
        let joined_over = |expr: &Expr| below(expr).map(|expr| joined.over(&expr));
        plan = self.with_window_results(plan, windows, &mut exprs, joined_over)?;
        let nullable = |expr: &Expr| {
            let schema = plan.schema.clone();
            expr.is_nullable(&|i| schema[i].nullable)
        };
        let (exprs, fields): (Vec<_>, Vec<_>) = outputs
            .into_iter()
            .map(|o| {
                let nullable = nullable(&o.expr);
                (
                    o.expr,
                    Field {
                        nullable,
                        ..o.field
                    },
                )
            })
            .unzip();
        let hidden = fields.len() - shown;
        plan = Plan::project(plan, exprs, fields);
        if select.distinct {
            plan = Plan::distinct(plan);
        }
        plan = limited(plan, by, query);
        if hidden > 0 {
            let columns = plan.columns()[..shown].to_vec();
            let fields = plan.schema.fields[..shown].to_vec();
            plan = Plan::project(plan, columns, fields);
        }
        Some(plan)
    }

    fn block<'s>(
        &mut self,
        select: &'s ast::SelectBlock,
        query: &'s ast::Query,
        scope: &'s Scope,
    ) -> Block<'s> {
        let items = select.items.iter().filter_map(|item| match &item.value {
            Item::Expr { expr, alias } => Some((expr, alias.as_ref())),
            _ => None,
        });
        let aliases = items
            .clone()
            .filter_map(|(expr, alias)| Some((alias?, expr)))
            .collect();
        let exprs = items.map(|(expr, _)| expr);
        let exprs = exprs
            .chain(&select.having)
            .chain(query.order_by.iter().map(|o| &o.expr))
            .chain(select.windows.iter().flat_map(|w| w.window.exprs()));
        // HAVING alone makes one group of all rows, as in SQL.
        let has_sets = select.grouping != ast::Grouping::All;
        let grouped = has_sets || !select.group_by.is_empty() || select.having.is_some() || {
            let mut exprs = exprs;
            exprs.any(has_aggregate)
        };
        Block {
            scope,
            aliases,
            keys: Vec::new(),
            calls: Vec::new(),
            grouped,
            sets: None,
            keys_known: true,
        }
    }

    /// An expression of SELECT, HAVING or ORDER BY, over the columns of FROM and the results of
    /// aggregates.
    fn block_expr(
        &mut self,
        expr: &ast::SpannedExpr,
        block: &mut Block,
        aliases: bool,
    ) -> Option<Expr> {
        let mut names = Names {
            scope: block.scope,
            outer: None,
            aliases: if aliases { &block.aliases } else { &[] },
            aggregates: Aggregates::Collect(&mut block.calls),
            used: Vec::new(),
        };
        let checked = self.expr(expr, &mut names);
        let used = names.used;
        self.check_grouped(&checked?, expr.span, &used, block)
    }

    /// An expression over columns and aggregates whose groups are not known yet.
    pub(super) fn block_value(
        &mut self,
        expr: &ast::SpannedExpr,
        block: &mut Block,
    ) -> Option<Expr> {
        let mut names = Names {
            scope: block.scope,
            outer: None,
            aliases: &[],
            aggregates: Aggregates::Collect(&mut block.calls),
            used: Vec::new(),
        };
        self.expr(expr, &mut names)
    }

    fn block_condition(&mut self, expr: &ast::SpannedExpr, block: &mut Block) -> Option<Expr> {
        let mut names = Names {
            scope: block.scope,
            outer: None,
            aliases: &block.aliases,
            aggregates: Aggregates::Collect(&mut block.calls),
            used: Vec::new(),
        };
        let checked = self.condition_in(expr, &mut names);
        let used = names.used;
        self.check_grouped(&checked?, expr.span, &used, block)
    }

    /// In a grouped block, reports columns that are neither keys nor inside aggregates.
    fn check_grouped(
        &mut self,
        expr: &Expr,
        span: Span,
        used: &[(usize, Span)],
        block: &Block,
    ) -> Option<Expr> {
        if !block.grouped {
            return Some(expr.clone());
        }
        match over_groups(expr, block) {
            Ok(_) => Some(expr.clone()),
            Err(_) if !block.keys_known => None,
            Err(column) => {
                let place = used.iter().find(|(index, _)| *index == column);
                let place = place.map_or(span, |(_, span)| *span);
                let name = column_name(block.scope, column);
                let message = format!("`{name}` is neither in GROUP BY nor inside an aggregate");
                let found = codes::NOT_GROUPED.at(place, message);
                let help = format!("add it to GROUP BY, or write max({name})");
                self.diagnostics.push(found.help(help));
                None
            }
        }
    }

    /// An expression over the plan below SELECT: in a grouped block over its keys and aggregates.
    fn below_select(&mut self, expr: Expr, block: &Block) -> Option<Expr> {
        match block.grouped {
            true => over_groups(&expr, block).ok(),
            false => Some(expr),
        }
    }

    /// GROUP BY. False after an error.
    fn keys(&mut self, select: &ast::SelectBlock, block: &mut Block) -> bool {
        let mut sound = true;
        let mut positions = Vec::new();
        for key in &select.group_by {
            let target = match ordinal(key) {
                Some(n) => self.nth_item(select, n, key.span),
                None => Some(key),
            };
            let aliases = block.aliases.clone();
            let checked = target.and_then(|target| {
                let mut names = Names::plain(block.scope, "GROUP BY");
                names.aliases = &aliases;
                self.expr(target, &mut names)
            });
            match checked {
                Some(key) => {
                    let known = block.keys.iter().position(|known| *known == key);
                    positions.push(known.unwrap_or(block.keys.len()));
                    if known.is_none() {
                        block.keys.push(key);
                    }
                }
                None => sound = false,
            }
        }
        if sound {
            block.sets = self.grouping_sets(select, &positions);
        }
        sound
    }

    /// The expression of SELECT at position `n`, counted from 1.
    fn nth_item<'s>(
        &mut self,
        select: &'s ast::SelectBlock,
        n: i64,
        span: Span,
    ) -> Option<&'s ast::SpannedExpr> {
        let index = usize::try_from(n).ok().and_then(|n| n.checked_sub(1));
        let before = index.and_then(|i| select.items.get(..=i));
        let items = before.map(|items| items.iter().map(|item| &item.value).collect::<Vec<_>>());
        match items.as_deref() {
            Some([rest @ .., Item::Expr { expr, .. }])
                if rest.iter().all(|item| matches!(item, Item::Expr { .. })) =>
            {
                Some(expr)
            }
            Some(items) if items.iter().any(|item| matches!(item, Item::Error)) => None,
            Some(_) => {
                let message = "`*` does not name one column";
                self.diagnostics
                    .push(codes::BAD_ORDINAL.at(span, message).help("write its name"));
                None
            }
            None => {
                let message = no_column_at(n, select.items.len());
                self.diagnostics.push(codes::BAD_ORDINAL.at(span, message));
                None
            }
        }
    }

    /// SELECT, over the plan below it.
    fn outputs(&mut self, select: &ast::SelectBlock, block: &mut Block) -> Option<Vec<Output>> {
        let mut outputs: Vec<Option<Output>> = Vec::new();
        for item in &select.items {
            match &item.value {
                Item::Error => outputs.push(None),
                Item::Star => {
                    let all: Vec<ResolvedColumn> =
                        block.scope.tables.iter().flat_map(|t| t.star()).collect();
                    if !block.scope.is_known() {
                        outputs.push(None);
                    }
                    outputs.extend(self.star(all, item.span, block));
                }
                Item::TableStar(table) => match block.scope.table(&table.value) {
                    Some(t) if t.known => outputs.extend(self.star(t.star(), item.span, block)),
                    Some(_) => outputs.push(None),
                    None => {
                        let meaning = super::scope::Resolution::UnknownTable;
                        if block.scope.is_known() {
                            let star = ast::Ident::new("*".into(), item.span);
                            self.no_column(&meaning, block.scope, Some(table), &star);
                        }
                        outputs.push(None);
                    }
                },
                Item::Expr { expr, alias } => {
                    outputs.push(self.output(expr, alias.as_ref(), block))
                }
            }
        }
        outputs.into_iter().collect()
    }

    fn output(
        &mut self,
        expr: &ast::SpannedExpr,
        alias: Option<&ast::Ident>,
        block: &mut Block,
    ) -> Option<Output> {
        let checked = self.block_expr(expr, block, false)?;
        let checked = self.below_select(checked, block)?;
        let mut field = Field::new(expr.to_string(), checked.ty()).unit(checked.unit());
        if let ExprKind::Column { table, name } = &expr.kind {
            let table = table.as_ref().map(|t| t.value.as_str());
            if let super::scope::Resolution::Column(found) = block.scope.find(table, &name.value) {
                field = found.field();
            }
        }
        if let Some(alias) = alias {
            let aliases = Vec::new();
            field = Field {
                name: alias.value.clone(),
                aliases,
                ..field
            };
        }
        Some(Output {
            expr: checked,
            field,
        })
    }

    fn star(
        &mut self,
        columns: Vec<ResolvedColumn>,
        span: Span,
        block: &Block,
    ) -> Vec<Option<Output>> {
        let mut complained = false;
        let outputs = columns.into_iter().map(|found| {
            let expr = found.expr();
            let below_select = match block.grouped {
                true => over_groups(&expr, block),
                false => Ok(expr),
            };
            match below_select {
                Ok(expr) => Some(Output {
                    expr,
                    field: found.field(),
                }),
                Err(_) => {
                    if !complained && block.keys_known {
                        let message = format!(
                            "`*` contains `{}`, which is neither in GROUP BY nor inside an aggregate",
                            found.name
                        );
                        let found = codes::NOT_GROUPED.at(span, message);
                        self.diagnostics
                            .push(found.help("select the keys and aggregates by name"));
                    }
                    complained = true;
                    None
                }
            }
        });
        outputs.collect()
    }

    /// ORDER BY: over the result's columns, and over further ones that are appended to `hidden`.
    fn order_keys(
        &mut self,
        query: &ast::Query,
        block: &mut Block,
        outputs: Option<&[Output]>,
        hidden: &mut Vec<Output>,
    ) -> Option<Vec<crate::plan::OrderBy>> {
        let distinct = matches!(&query.body.value, ast::BodyKind::Select(s) if s.distinct);
        let limited = query.limit.is_some() || query.offset.is_some();
        let mut by = Vec::new();
        for item in &query.order_by {
            let key = match (ordinal(&item.expr), outputs) {
                (Some(n), Some(outputs)) => {
                    let index = usize::try_from(n).ok().and_then(|n| n.checked_sub(1));
                    let found = index.filter(|i| *i < outputs.len());
                    if found.is_none() {
                        let message = no_column_at(n, outputs.len());
                        self.diagnostics
                            .push(codes::BAD_ORDINAL.at(item.expr.span, message));
                    }
                    found.map(|i| column_of(outputs, i))
                }
                (Some(_), None) => None,
                (None, _) => self.order_key(item, block, outputs, hidden, distinct, limited),
            };
            by.push(key.map(|key| order_by(key, item)));
        }
        by.into_iter().collect()
    }

    fn order_key(
        &mut self,
        item: &ast::OrderItem,
        block: &mut Block,
        outputs: Option<&[Output]>,
        hidden: &mut Vec<Output>,
        distinct: bool,
        limited: bool,
    ) -> Option<Expr> {
        // A name of the result takes precedence over a name of the input, as in SQL.
        if let (ExprKind::Column { table: None, name }, Some(outputs)) = (&item.expr.kind, outputs)
        {
            let same = |o: &Output| o.field.name.eq_ignore_ascii_case(&name.value);
            if let Some(i) = outputs.iter().position(same) {
                return Some(column_of(outputs, i));
            }
        }
        let expr = self.block_expr(&item.expr, block, true)?;
        let expr = self.below_select(expr, block)?;
        let outputs = outputs?;
        if let Some(i) = outputs.iter().position(|o| o.expr == expr) {
            return Some(column_of(outputs, i));
        }
        let span = item.expr.span;
        if distinct {
            let message = "with DISTINCT, ORDER BY can only use columns of the select list";
            self.diagnostics
                .push(codes::DISTINCT_ORDER.at(span, message));
            return None;
        }
        if !limited {
            let message = "the result is ordered by a column that it does not contain";
            self.diagnostics
                .push(codes::ORDER_UNSEEN.at(span, message).help("select it too"));
        }
        let index = outputs.len() + hidden.len();
        let field = Field::new(item.expr.to_string(), expr.ty()).unit(expr.unit());
        let key = Expr::column(index, expr.ty(), expr.unit());
        hidden.push(Output { expr, field });
        Some(key)
    }
}

fn column_of(outputs: &[Output], i: usize) -> Expr {
    Expr::column(i, outputs[i].expr.ty(), outputs[i].expr.unit())
}

/// The name of column `index` of a scope.
fn column_name(scope: &Scope, index: usize) -> String {
    scope.field(index).map_or(String::new(), |f| f.name.clone())
}

/// The node that groups.
pub(super) fn aggregated(input: Arc<Plan>, block: &Block, dialect: Dialect) -> Arc<Plan> {
    let key_fields = block.keys.iter().enumerate().map(|(i, key)| {
        let nullable = key.is_nullable(&|i| input.schema[i].nullable);
        let name = match key {
            Expr::Column { index, .. } => input.schema[*index].name.clone(),
            _ => format!("key{}", i + 1),
        };
        let field = Field::new(name, key.ty()).unit(key.unit());
        Field { nullable, ..field }
    });
    let call_fields = block.calls.iter().enumerate().map(|(i, call)| {
        let name = format!("{}{}", call.function.doc().name, i + 1);
        let field = Field::new(name, call.ty).unit(call.unit);
        // A count is never NULL.
        if call.function.doc().name == "count" {
            field
        } else {
            field.nullable()
        }
    });
    let fields = key_fields.chain(call_fields).collect();
    Plan::aggregate(
        input.clone(),
        block.keys.clone(),
        block.calls.clone(),
        match dialect {
            Dialect::Cql => GlobalGroup::FromStart,
            Dialect::Stream => GlobalGroup::FromFirstRow,
        },
        fields,
    )
}

/// An expression over the input and the results of aggregates as one over the columns of the
/// grouping node. The error is a column of the input that is neither a key nor in an aggregate.
pub(super) fn over_groups(expr: &Expr, block: &Block) -> Result<Expr, usize> {
    if let Some(i) = block.keys.iter().position(|key| key == expr) {
        return Ok(Expr::column(i, expr.ty(), expr.unit()));
    }
    if let Expr::Column { index, ty, unit } = expr {
        let keys = block.keys.len();
        if (GROUPINGS..SUBQUERIES).contains(index) {
            return Ok(Expr::column(keys + index - GROUPINGS, *ty, *unit));
        }
        if *index >= WINDOW_RESULTS {
            return Ok(expr.clone());
        }
        let first_call = if block.sets.is_some() { 2 * keys } else { keys };
        return match index.checked_sub(AGGREGATES) {
            Some(call) => Ok(Expr::column(first_call + call, *ty, *unit)),
            None => Err(*index),
        };
    }
    let mut lost = None;
    let rebuilt = expr.map_children(&mut |child| match over_groups(child, block) {
        Ok(child) => child,
        Err(column) => {
            lost.get_or_insert(column);
            child.clone()
        }
    });
    lost.map_or(Ok(rebuilt), Err)
}
