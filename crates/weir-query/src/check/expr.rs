//! Expressions: resolves names to columns and calls to functions, and converts operands to one type
//! and unit.

use weir_model::{Dimension, Field, Symbol, Type, Unit, Value};

use super::Checker;
use super::call::Written;
use super::coerce::{self, Operand, describe_type};
use super::scope::Scope;
use super::timestamp;
use crate::diagnostic::{Diagnostic, Span, codes};
use crate::expr::fold_expr;
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::AggregateCall;
use crate::syntax::ast::{self, ExprKind, Ident, Literal, Number};

/// Columns of the outer query are numbered from here on, so that a condition can refer to both
/// sides.
pub(super) const OUTER: usize = 1 << 32;

/// Results of aggregates are numbered from here on, until the node that computes them exists.
pub(super) const AGGREGATES: usize = 1 << 40;

/// Maximum length of a text literal in bytes.
const LITERAL_BYTES_MAX: usize = 64 << 10;

/// Whether aggregates are allowed in an expression.
pub(super) enum Aggregates<'x> {
    /// They are not allowed in this clause: WHERE, for instance.
    Forbidden(&'static str),
    /// They are collected.
    Collect(&'x mut Vec<AggregateCall>),
}

/// The resolution of names in an expression.
pub(super) struct Names<'x> {
    /// The sources.
    pub scope: &'x Scope,
    /// Those of the outer query, whose columns are allowed as well.
    pub outer: Option<&'x Scope>,
    /// Aliases of SELECT, used where no column has the name.
    pub aliases: &'x [(&'x Ident, &'x ast::SpannedExpr)],
    /// Whether aggregates are allowed.
    pub aggregates: Aggregates<'x>,
    /// Where each column was used outside of aggregates, for a later diagnostic.
    pub used: Vec<(usize, Span)>,
}

impl<'x> Names<'x> {
    /// The columns of `scope` and no aggregates in `clause`.
    pub fn plain(scope: &'x Scope, clause: &'static str) -> Names<'x> {
        let aggregates = Aggregates::Forbidden(clause);
        Names {
            scope,
            outer: None,
            aliases: &[],
            aggregates,
            used: Vec::new(),
        }
    }

    /// The column of a source at an index.
    pub fn field(&self, index: usize) -> Option<&'x Field> {
        match index.checked_sub(OUTER) {
            None => self.scope.field(index),
            Some(outer) => self.outer?.field(outer),
        }
    }
}

impl Checker<'_> {
    /// An expression over the columns of `scope`.
    pub(super) fn plain_expr(
        &mut self,
        expr: &ast::SpannedExpr,
        scope: &Scope,
        clause: &'static str,
    ) -> Option<Expr> {
        self.expr(expr, &mut Names::plain(scope, clause))
    }

    /// A condition over the columns of `scope`.
    pub(super) fn condition(
        &mut self,
        expr: &ast::SpannedExpr,
        scope: &Scope,
        clause: &'static str,
    ) -> Option<Expr> {
        self.condition_in(expr, &mut Names::plain(scope, clause))
    }

    /// A condition.
    pub(super) fn condition_in(
        &mut self,
        expr: &ast::SpannedExpr,
        names: &mut Names,
    ) -> Option<Expr> {
        let operand = self.operand(expr, names)?;
        self.or_report(coerce::boolean(operand))
    }

    pub(super) fn or_report<T>(&mut self, result: Result<T, Diagnostic>) -> Option<T> {
        match result {
            Ok(x) => Some(x),
            Err(diagnostic) => {
                self.diagnostics.push(diagnostic);
                None
            }
        }
    }

    pub(super) fn operand(
        &mut self,
        expr: &ast::SpannedExpr,
        names: &mut Names,
    ) -> Option<Operand> {
        let checked = self.expr(expr, names)?;
        Some(Operand {
            expr: checked,
            span: expr.span,
        })
    }

    /// All of `exprs`; every one is checked, whether or not others have errors.
    pub(super) fn operands<'e>(
        &mut self,
        exprs: impl IntoIterator<Item = &'e ast::SpannedExpr>,
        names: &mut Names,
    ) -> Option<Vec<Operand>> {
        let all: Vec<_> = exprs.into_iter().map(|e| self.operand(e, names)).collect();
        all.into_iter().collect()
    }

    /// An expression; `None` when it has an error, which is then reported.
    pub(super) fn expr(&mut self, expr: &ast::SpannedExpr, names: &mut Names) -> Option<Expr> {
        let checked = match &expr.kind {
            ExprKind::Error => None,
            ExprKind::Rows(variable) => {
                let message = format!("`{variable}.*` is not a value");
                let found = codes::BAD_STAR.at(expr.span, message);
                self.diagnostics.push(found.help("write `count(*)`"));
                None
            }
            ExprKind::Column { table, name } => self.column(table.as_ref(), name, names),
            ExprKind::Literal(literal) => self.literal(literal, expr.span),
            ExprKind::Unary { op, expr: inner } => self.unary(*op, inner, names),
            ExprKind::Binary { op, left, right } => {
                let sides = (left, right);
                let (left, right) = (self.operand(left, names), self.operand(right, names));
                if let (Some(left), Some(right)) = (&left, &right) {
                    self.warn_of_trap(*op, sides.0, sides.1, (left, right));
                }
                let (left, right) = match op {
                    BinaryOp::Equal | BinaryOp::NotEqual => {
                        let right = self.in_set(left.as_ref(), right?, names);
                        (self.in_set(Some(&right), left?, names), right)
                    }
                    _ => (left?, right?),
                };
                self.or_report(coerce::binary(*op, left, right))
            }
            ExprKind::IsNull {
                expr: inner,
                negated,
            } => {
                let expr = Box::new(self.expr(inner, names)?);
                Some(Expr::IsNull {
                    expr,
                    negated: *negated,
                })
            }
            ExprKind::Between {
                expr: x,
                low,
                high,
                negated,
            } => self.between(x, low, high, *negated, names),
            ExprKind::InList {
                expr: x,
                list,
                negated,
            } => self.in_list(x, list, *negated, names),
            ExprKind::Like {
                expr: x,
                pattern,
                ignore_case,
                negated,
            } => self.like(x, pattern, *ignore_case, *negated, names),
            ExprKind::Case {
                operand,
                branches,
                otherwise,
            } => self.case(operand.as_deref(), branches, otherwise.as_deref(), names),
            ExprKind::Cast { expr: x, ty } => self.cast(x, ty.value, expr.span, names),
            ExprKind::Call {
                name,
                distinct,
                args,
                star,
                filter,
            } => {
                let (span, distinct, star) = (expr.span, *distinct, *star);
                let filter = filter.as_deref();
                self.call(
                    Written {
                        span,
                        name,
                        distinct,
                        args,
                        star,
                        filter,
                    },
                    names,
                )
            }
            ExprKind::Over(clause) => self.over(clause, expr.span, names),
            ExprKind::InQuery {
                expr: x,
                query,
                negated,
            } => {
                let x = self.operand(x, names)?;
                self.in_value(x, query, *negated, expr.span, names)
            }
            ExprKind::Exists { query } => self.exists_value(query, expr.span, names),
            ExprKind::Scalar { query } => self.scalar_subquery(query, expr.span, names),
        };
        checked.map(fold_expr)
    }

    fn literal(&mut self, literal: &Literal, span: Span) -> Option<Expr> {
        let (value, ty, unit) = match literal {
            Literal::Null => (Value::Null, Type::Int, Unit::None),
            Literal::Bool(x) => (Value::Bool(*x), Type::Bool, Unit::None),
            Literal::Number(Number::Int(x)) => (Value::Int(*x), Type::Int, Unit::None),
            Literal::Number(Number::Float(x)) => (Value::Float(*x), Type::Float, Unit::None),
            Literal::Text(text) => {
                let symbol = (text.len() <= LITERAL_BYTES_MAX).then(|| Symbol::try_new(text).ok());
                let Some(Some(symbol)) = symbol else {
                    let message = format!("a text of {} bytes is too long", text.len());
                    self.diagnostics.push(codes::TOO_LONG.at(span, message));
                    return None;
                };
                (Value::Text(symbol), Type::Text, Unit::None)
            }
            Literal::Quantity(number, measure) => {
                let unit = match measure.dimension {
                    Dimension::Time => Unit::Nanoseconds,
                    _ => Unit::Bytes,
                };
                let (value, ty) = quantity(*number, measure.scale);
                let Some(value) = value else {
                    let message = "the number does not fit in 64 bits";
                    self.diagnostics.push(codes::BAD_NUMBER.at(span, message));
                    return None;
                };
                (value, ty, unit)
            }
        };
        Some(Expr::Literal { value, ty, unit })
    }

    fn unary(&mut self, op: UnaryOp, inner: &ast::SpannedExpr, names: &mut Names) -> Option<Expr> {
        let operand = self.operand(inner, names)?;
        let expr = match op {
            UnaryOp::Not => self.or_report(coerce::boolean(operand))?,
            UnaryOp::Negate => {
                let null = matches!(
                    &operand.expr,
                    Expr::Literal {
                        value: Value::Null,
                        ..
                    }
                );
                if !operand.expr.ty().is_numeric() && !null {
                    let message = format!(
                        "`-` takes a number, not {}",
                        coerce::describe(&operand.expr)
                    );
                    self.diagnostics
                        .push(codes::TYPE_MISMATCH.at(operand.span, message));
                    return None;
                }
                operand.expr
            }
        };
        Some(Expr::Unary {
            op,
            expr: Box::new(expr),
        })
    }

    fn cast(
        &mut self,
        x: &ast::SpannedExpr,
        ty: Type,
        span: Span,
        names: &mut Names,
    ) -> Option<Expr> {
        let x = self.expr(x, names)?;
        let (from, unit) = (x.ty(), x.unit());
        if matches!(
            &x,
            Expr::Literal {
                value: Value::Null,
                ..
            }
        ) {
            return Some(coerce::null(ty, Unit::None));
        }
        let (x, unit) = match (from, ty) {
            (from, to) if from == to => return Some(x),
            (Type::Time, Type::Int | Type::Float) => (x, Unit::Nanoseconds),
            (Type::Time, Type::Text) => return Some(coerce::timestamp_text(x)),
            (Type::Int | Type::Float, Type::Time) if unit.dimension() != Dimension::Data => {
                (coerce::to_unit(x, Unit::Nanoseconds), Unit::Nanoseconds)
            }
            (Type::Int | Type::Float, Type::Int | Type::Float) => (x, unit),
            (_, Type::Text) | (Type::Text, Type::Int | Type::Float | Type::Bool) => (x, Unit::None),
            // A literal is converted at once; other texts, and malformed ones, by the engine.
            (Type::Text, Type::Time) => {
                let operand = Operand { expr: x, span };
                match timestamp::read(&operand) {
                    Ok(literal) => return Some(literal),
                    Err(_) => (operand.expr, Unit::Nanoseconds),
                }
            }
            (Type::Bool, Type::Int) | (Type::Int, Type::Bool) => (x, Unit::None),
            _ => {
                let message = format!("{} cannot be cast to {ty}", describe_type(from, unit));
                self.diagnostics
                    .push(codes::TYPE_MISMATCH.at(span, message));
                return None;
            }
        };
        Some(coerce::cast(x, ty, unit))
    }
}

/// A number in some unit, converted to the smallest one; an integer where it is whole.
fn quantity(number: Number, scale: i64) -> (Option<Value>, Type) {
    match number {
        Number::Int(x) => (x.checked_mul(scale).map(Value::Int), Type::Int),
        Number::Float(x) => {
            let smallest = x * scale as f64;
            let whole = smallest.round();
            // 0.1 has no exact float, but 0.1 ms are 100,000 ns.
            let near = (smallest - whole).abs() <= whole.abs() * 1e-12;
            match near && whole.abs() < (1_u64 << 53) as f64 {
                true => (Some(Value::Int(whole as i64)), Type::Int),
                false => (
                    Some(Value::Float(smallest)).filter(|_| smallest.is_finite()),
                    Type::Float,
                ),
            }
        }
    }
}
