//! BETWEEN, IN, LIKE and CASE: comparisons of one expression with several others.

use weir_model::{Type, Unit, Value};

use super::Checker;
use super::coerce::{self, Operand};
use super::expr::Names;
use weir_model::suggest::nearest;

use crate::diagnostic::codes;
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::syntax::ast;

/// Maximum number of nodes that one expression compared with several others may become.
const REPEATED_NODES_MAX: usize = 10_000;

impl Checker<'_> {
    /// Rejects an expression that would be repeated so often that the query exceeds all bounds: it
    /// is doubled at every level of nesting.
    pub(super) fn repeatable(&mut self, x: &Operand, times: usize) -> Option<()> {
        if x.expr.size() == 1 || x.expr.size().saturating_mul(times) <= REPEATED_NODES_MAX {
            return Some(());
        }
        let message = "the expression is too large to be repeated in this comparison";
        let found = codes::TOO_DEEP.at(x.span, message);
        self.diagnostics
            .push(found.help("compute it in a subquery in FROM"));
        None
    }

    pub(super) fn between(
        &mut self,
        x: &ast::SpannedExpr,
        low: &ast::SpannedExpr,
        high: &ast::SpannedExpr,
        negated: bool,
        names: &mut Names,
    ) -> Option<Expr> {
        let bounds = [low, high];
        let (x, low, high) = (
            self.operand(x, names),
            self.operand(low, names),
            self.operand(high, names),
        );
        let x = x?;
        for bound in bounds {
            self.warn_of_bare_number(&x, bound);
        }
        self.repeatable(&x, 2)?;
        let from = self.or_report(coerce::binary(BinaryOp::GreaterEqual, x.clone(), low?));
        let to = self.or_report(coerce::binary(BinaryOp::LessEqual, x, high?));
        Some(negate_if(negated, Expr::boolean(BinaryOp::And, from?, to?)))
    }

    pub(super) fn in_list(
        &mut self,
        x: &ast::SpannedExpr,
        list: &[ast::SpannedExpr],
        negated: bool,
        names: &mut Names,
    ) -> Option<Expr> {
        let x = self.operand(x, names);
        let items = self.operands(list, names);
        let (x, items) = (x?, items?);
        self.repeatable(&x, items.len())?;
        let items = items
            .into_iter()
            .map(|item| self.in_set(Some(&x), item, names));
        let items: Vec<Operand> = items.collect();
        let mut values = Vec::new();
        let mut has_null = false;
        let mut others = Vec::new();
        for item in items {
            let (left, right) = self.or_report(coerce::pair(BinaryOp::Equal, x.clone(), item))?;
            match right {
                Expr::Literal {
                    value: Value::Null, ..
                } => has_null = true,
                Expr::Literal { value, .. } if left == x.expr => values.push(value),
                right => others.push(Expr::boolean(BinaryOp::Equal, left, right)),
            }
        }
        values.sort();
        values.dedup();
        if others.is_empty() {
            let expr = Box::new(x.expr);
            return Some(Expr::InList {
                expr,
                list: values,
                has_null,
                negated,
            });
        }
        // Items that are not constants, or not in x's own unit, are compared one by one.
        if !values.is_empty() || has_null {
            let expr = Box::new(x.expr);
            others.push(Expr::InList {
                expr,
                list: values,
                has_null,
                negated: false,
            });
        }
        Expr::balanced(BinaryOp::Or, others).map(|any| negate_if(negated, any))
    }

    /// The stored value of a literal that is compared with `x`, if the column has a closed set of
    /// values, which have long names too. A literal that is not among them is a warning.
    pub(super) fn in_set(
        &mut self,
        x: Option<&Operand>,
        literal: Operand,
        names: &Names,
    ) -> Operand {
        let column = match x.map(|x| &x.expr) {
            Some(Expr::Column { index, .. }) => names.field(*index),
            _ => None,
        };
        let (Some(field), Expr::Literal { value, .. }) = (column, &literal.expr) else {
            return literal;
        };
        let (Some(set), Value::Text(text)) = (field.values, value) else {
            return literal;
        };
        if let Some(value) = set.find(text.as_str()) {
            return Operand {
                expr: Expr::Literal {
                    value: Value::text(value),
                    ty: Type::Text,
                    unit: Unit::None,
                },
                ..literal
            };
        }
        let values = set.values();
        let message = format!("`{}` is never '{text}'", field.name);
        let found = codes::NO_SUCH_VALUE.at(literal.span, message);
        let all = values.iter().flat_map(|(value, name)| [*name, *value]);
        let help = match nearest(text.as_str(), all) {
            Some(near) => format!("did you mean '{near}'?"),
            None => {
                let listed = values.iter().map(|(value, name)| match value == name {
                    true => format!("'{value}'"),
                    false => format!("'{value}' ({name})"),
                });
                format!("its values are {}", listed.collect::<Vec<_>>().join(", "))
            }
        };
        self.diagnostics.push(found.help(help));
        literal
    }

    pub(super) fn like(
        &mut self,
        x: &ast::SpannedExpr,
        pattern: &ast::SpannedExpr,
        ignore_case: bool,
        negated: bool,
        names: &mut Names,
    ) -> Option<Expr> {
        let (x, pattern) = (self.operand(x, names), self.operand(pattern, names));
        let (x, pattern) = (x?, pattern?);
        let Expr::Literal {
            value: Value::Text(text),
            ..
        } = pattern.expr
        else {
            let message = "the pattern is not a text literal";
            self.diagnostics
                .push(codes::BAD_PATTERN.at(pattern.span, message));
            return None;
        };
        if x.expr.ty() != Type::Text {
            let message = format!("LIKE requires a text, not {}", coerce::describe(&x.expr));
            let found = codes::TYPE_MISMATCH.at(x.span, message);
            self.diagnostics
                .push(found.help("CAST(x AS text) converts a value to a text"));
            return None;
        }
        let (expr, pattern) = (Box::new(x.expr), text.as_str().to_owned());
        Some(Expr::Like {
            expr,
            pattern,
            ignore_case,
            negated,
        })
    }

    pub(super) fn case(
        &mut self,
        operand: Option<&ast::SpannedExpr>,
        branches: &[(ast::SpannedExpr, ast::SpannedExpr)],
        otherwise: Option<&ast::SpannedExpr>,
        names: &mut Names,
    ) -> Option<Expr> {
        let operand = operand.map(|x| {
            let x = self.operand(x, names)?;
            self.repeatable(&x, branches.len()).map(|()| x)
        });
        let mut conditions = Vec::new();
        for (when, _) in branches {
            conditions.push(match &operand {
                None => self.condition_in(when, names),
                Some(x) => {
                    let when = self.operand(when, names);
                    let when = when.map(|when| self.in_set(x.as_ref(), when, names));
                    let pair = x.clone().zip(when);
                    pair.and_then(|(x, when)| {
                        self.or_report(coerce::binary(BinaryOp::Equal, x, when))
                    })
                }
            });
        }
        let results = branches.iter().map(|(_, then)| then).chain(otherwise);
        let results = self.operands(results, names);
        let conditions = conditions.into_iter().collect::<Option<Vec<_>>>();
        let (mut results, ty, unit) = self.or_report(coerce::common(results?))?;
        let otherwise = otherwise.and_then(|_| results.pop()).map(Box::new);
        let branches = conditions?.into_iter().zip(results).collect();
        Some(Expr::Case {
            branches,
            otherwise,
            ty,
            unit,
        })
    }
}

/// `NOT x`, or x.
fn negate_if(negated: bool, expr: Expr) -> Expr {
    match negated {
        true => Expr::Unary {
            op: UnaryOp::Not,
            expr: Box::new(expr),
        },
        false => expr,
    }
}
