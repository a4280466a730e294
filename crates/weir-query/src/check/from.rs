//! FROM: sources, views and subqueries, each with its window, joined or as a cross product.

use std::sync::Arc;

use super::scope::{Resolution, Scope};
use super::{Checker, Source, coerce, correlations, source_plan};
use crate::diagnostic::codes;
use crate::expr::{BinaryOp, Expr};
use crate::plan::{JoinKind, Plan};
use crate::syntax::ast::{self, Condition, JoinOp, Named, TableSource};

/// A FROM: its plan, unless it has an error, and its names.
pub(super) struct FromPlan {
    pub plan: Option<Arc<Plan>>,
    pub scope: Scope,
}

impl Checker<'_> {
    pub(super) fn from(&mut self, items: &[ast::FromItem]) -> FromPlan {
        let mut all: Option<FromPlan> = None;
        for item in items {
            let mut from = self.table(&item.table);
            for join in &item.joins {
                from = self.join(from, join);
            }
            all = Some(match all {
                None => from,
                Some(left) => self.cross(left, from, JoinKind::Inner),
            });
        }
        let mut from = all.unwrap_or_else(|| FromPlan {
            plan: None,
            scope: Scope::unknown(""),
        });
        self.duplicates(items, &mut from);
        from
    }

    fn cross(&mut self, left: FromPlan, right: FromPlan, kind: JoinKind) -> FromPlan {
        let plan = left.plan.zip(right.plan);
        FromPlan {
            plan: plan.map(|(l, r)| Plan::join(l, r, kind, Vec::new(), None)),
            scope: left.scope.concat(right.scope),
        }
    }

    pub(super) fn table(&mut self, table: &ast::TableRef) -> FromPlan {
        match &table.value {
            TableSource::Error => FromPlan {
                plan: None,
                scope: Scope::unknown(""),
            },
            TableSource::Named(named) => self.named_table(named),
            TableSource::Match(matches) => self.match_table(matches),
            TableSource::Derived {
                query,
                window,
                alias,
            } => {
                let name = alias.as_ref().map_or("", |a| &a.value);
                let Some(plan) = self.query(query) else {
                    return FromPlan {
                        plan: None,
                        scope: Scope::unknown(name),
                    };
                };
                let shown = if name.is_empty() {
                    "the subquery"
                } else {
                    name
                };
                let schema = plan.schema.clone();
                let plan = self.windowed(plan, window.as_ref(), false, &[shown]);
                FromPlan {
                    plan,
                    scope: Scope::of(name, schema, None),
                }
            }
        }
    }

    fn named_table(&mut self, named: &Named) -> FromPlan {
        let alias = named.alias.as_ref().unwrap_or(&named.name);
        let (plan, star, as_stream) = match self.source(&named.name) {
            None => {
                return FromPlan {
                    plan: None,
                    scope: Scope::unknown(&alias.value),
                };
            }
            Some(Source::Declared(d)) if correlations::is_computed(d) => {
                return self.correlations(named);
            }
            Some(Source::Declared(d)) => (source_plan(d), d.star.clone(), false),
            Some(Source::Query(view)) => match view.plan {
                None => {
                    return FromPlan {
                        plan: None,
                        scope: Scope::unknown(&alias.value),
                    };
                }
                Some(plan) => (plan, None, view.as_stream),
            },
        };
        let scope = Scope::of(&alias.value, plan.schema.clone(), star);
        let names = [alias.value.as_str(), named.name.value.as_str()];
        let plan = self.windowed(plan, named.window.as_ref(), as_stream, &names);
        FromPlan { plan, scope }
    }

    fn join(&mut self, left: FromPlan, join: &ast::Join) -> FromPlan {
        let right = self.table(&join.table);
        let kind = match join.kind.value {
            JoinOp::Inner | JoinOp::Cross => JoinKind::Inner,
            JoinOp::Left => JoinKind::Left,
            JoinOp::Right => JoinKind::Right,
            JoinOp::Full => JoinKind::Full,
        };
        let cross = join.kind.value == JoinOp::Cross;
        let bare = matches!(join.condition, Condition::None);
        let known = left.scope.is_known() && right.scope.is_known();
        if cross != bare && known {
            let message = match cross {
                true => "CROSS JOIN has no condition",
                false => "the join has no condition",
            };
            let help = match cross {
                true => "write JOIN",
                false => "add ON or USING, or write CROSS JOIN",
            };
            self.diagnostics
                .push(codes::BAD_JOIN.at(join.kind.span, message).help(help));
        }
        let columns = left.scope.len();
        let merged = match &join.condition {
            Condition::Using(names) => self.using(&left.scope, &right.scope, names, join),
            _ => Vec::new(),
        };
        let plans = left.plan.zip(right.plan);
        let mut scope = left.scope.concat(right.scope);
        let residual = match &join.condition {
            Condition::None => Some(None),
            Condition::On(expr) => self.condition(expr, &scope, "ON").map(Some),
            Condition::Using(names) if merged.len() < names.len() => None,
            Condition::Using(_) => {
                let equal = |(l, r): &(Expr, Expr)| {
                    Expr::boolean(BinaryOp::Equal, l.clone(), r.map_columns(&|i| i + columns))
                };
                let all = merged.iter().map(|(_, _, pair)| equal(pair)).collect();
                Some(Expr::balanced(BinaryOp::And, all))
            }
        };
        for (l, r, _) in &merged {
            // The side that is never padded keeps the unqualified name.
            let hidden = if kind == JoinKind::Right {
                *l
            } else {
                *r + columns
            };
            let of = |t: &&mut super::scope::ScopeTable| {
                (t.first..t.first + t.schema.len()).contains(&hidden)
            };
            if let Some(table) = scope.tables.iter_mut().find(of) {
                table.merged.push(hidden);
            }
        }
        let plan = plans
            .zip(residual)
            .map(|((l, r), residual)| Plan::join(l, r, kind, Vec::new(), residual));
        FromPlan { plan, scope }
    }

    /// For each name in USING the positions of the columns on the left and on the right, and both
    /// as expressions of one type.
    fn using(
        &mut self,
        left: &Scope,
        right: &Scope,
        names: &[ast::Ident],
        join: &ast::Join,
    ) -> Vec<(usize, usize, (Expr, Expr))> {
        if join.kind.value == JoinOp::Full {
            let message = "FULL JOIN does not support USING";
            let found = codes::BAD_JOIN.at(join.kind.span, message);
            self.diagnostics.push(
                found.help("either side may be NULL: use ON, and select the column of one side"),
            );
            return Vec::new();
        }
        let mut merged = Vec::new();
        for name in names {
            let (l, r) = (
                self.using_column(left, name),
                self.using_column(right, name),
            );
            if let Some((l, r)) = l.zip(r) {
                let operand = |expr: Expr| coerce::Operand {
                    expr,
                    span: name.span,
                };
                match coerce::pair(BinaryOp::Equal, operand(l.1), operand(r.1)) {
                    Ok(pair) => merged.push((l.0, r.0, pair)),
                    Err(diagnostic) => self.diagnostics.push(diagnostic),
                }
            }
        }
        merged
    }

    fn using_column(&mut self, scope: &Scope, name: &ast::Ident) -> Option<(usize, Expr)> {
        match scope.find(None, &name.value) {
            Resolution::Column(found) => Some((found.index, found.expr())),
            Resolution::Indeterminate => None,
            meaning => {
                self.no_column(&meaning, scope, None, name);
                None
            }
        }
    }

    /// Reports two sources with one name.
    fn duplicates(&mut self, items: &[ast::FromItem], from: &mut FromPlan) {
        let tables = items.iter().flat_map(|item| {
            std::iter::once(&item.table).chain(item.joins.iter().map(|j| &j.table))
        });
        for (i, named) in tables.enumerate() {
            let (before, rest) = from.scope.tables.split_at_mut(i);
            let table = &mut rest[0];
            if !table.name.is_empty() && before.iter().any(|t| t.has_name(&table.name)) {
                let message = format!("the source name `{}` is used twice", table.name);
                let found = codes::DUPLICATE_SOURCE.at(named.span, message);
                self.diagnostics
                    .push(found.help("give it another name with AS"));
                // Its columns would be ambiguous everywhere.
                table
                    .merged
                    .extend(table.first..table.first + table.schema.len());
                from.plan = None;
            }
        }
    }
}
