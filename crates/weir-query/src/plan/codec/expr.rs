//! Decodes expressions; types are derived again from the operands.

use weir_model::{Schema, Symbol, Type, Value};

use super::read::{Read, ensure, invalid, same_representation};
use super::tags::{self, ExprTag, ValueTag, get};
use super::{COLUMNS_MAX, CodecError, EXPR_HEIGHT_MAX};
use crate::expr::{BinaryOp, Expr, UnaryOp};
use crate::function::{
    AggregateCall, Argument, ArgumentError, Returns, ScalarCall, aggregate, scalar,
};

impl Read<'_> {
    /// An expression over the columns of `schema`.
    pub(super) fn expr(&mut self, schema: &Schema) -> Result<Expr, CodecError> {
        self.expr_over(Some(schema), EXPR_HEIGHT_MAX)
    }

    /// As [`Read::expr`], or a single column of partial aggregates.
    pub(super) fn expr_or_partial(&mut self, schema: &Schema) -> Result<Expr, CodecError> {
        let mut ahead = self.bytes;
        if get(&mut ahead, tags::EXPRS)? == ExprTag::Column {
            self.bytes = ahead;
            return self.column(Some(schema));
        }
        self.expr(schema)
    }

    /// A boolean expression.
    pub(super) fn condition(&mut self, schema: &Schema) -> Result<Expr, CodecError> {
        let expr = self.expr(schema)?;
        ensure(expr.ty() == Type::Bool, "a condition is not a boolean")?;
        Ok(expr)
    }

    /// A call of an aggregate over the columns of `schema`; without a schema, over columns of
    /// another plan, which are not read.
    pub(super) fn call(&mut self, schema: Option<&Schema>) -> Result<AggregateCall, CodecError> {
        let name = self.text()?;
        let function = aggregate::find(name);
        let function = function.ok_or_else(|| CodecError::UnknownFunction(name.to_owned()))?;
        let distinct = self.flag()?;
        let (ty, unit) = (self.ty()?, self.unit()?);
        let args = self.list(|r| r.expr_over(schema, EXPR_HEIGHT_MAX))?;
        ensure(
            !distinct || !args.is_empty(),
            "DISTINCT is missing its argument",
        )?;
        let check = |args: &[_]| function.check(args);
        ensure(
            retyped(&args, ty, check),
            "an aggregate has invalid arguments",
        )?;
        Ok(AggregateCall {
            function,
            args,
            distinct,
            ty,
            unit,
        })
    }

    /// An expression of at most `height` levels.
    fn expr_over(&mut self, schema: Option<&Schema>, height: usize) -> Result<Expr, CodecError> {
        let below = height.checked_sub(1);
        let below = below.ok_or_else(|| invalid("an expression is nested too deep"))?;
        let tag = get(&mut self.bytes, tags::EXPRS)?;
        let expr = match tag {
            ExprTag::Column => {
                let column = self.column(schema)?;
                let whole = column.ty() != Type::Partial;
                ensure(whole, "partial aggregates can only be merged")?;
                column
            }
            ExprTag::Literal => Expr::Literal {
                value: self.value()?,
                ty: self.ty()?,
                unit: self.unit()?,
            },
            ExprTag::Case => self.case(schema, below)?,
            ExprTag::Call => self.scalar(schema, below)?,
            tag => self.operator(tag, schema, below)?,
        };
        typed(&expr)?;
        Ok(expr)
    }

    fn column(&mut self, schema: Option<&Schema>) -> Result<Expr, CodecError> {
        let index = self.number()?;
        let (ty, unit) = (self.ty()?, self.unit()?);
        let there = match schema {
            Some(schema) => schema.fields.get(index).is_some_and(|f| f.ty == ty),
            None => index < COLUMNS_MAX,
        };
        ensure(there, "a column does not exist, or has another type")?;
        Ok(Expr::column(index, ty, unit))
    }

    fn operator(
        &mut self,
        tag: ExprTag,
        schema: Option<&Schema>,
        below: usize,
    ) -> Result<Expr, CodecError> {
        let child = |r: &mut Self| r.expr_over(schema, below).map(Box::new);
        Ok(match tag {
            ExprTag::Unary => Expr::Unary {
                op: get(&mut self.bytes, tags::UNARY)?,
                expr: child(self)?,
            },
            ExprTag::Binary => {
                let op = get(&mut self.bytes, tags::BINARY)?;
                let unit = self.unit()?;
                Expr::Binary {
                    op,
                    left: child(self)?,
                    right: child(self)?,
                    unit,
                }
            }
            ExprTag::IsNull => {
                let negated = self.flag()?;
                Expr::IsNull {
                    expr: child(self)?,
                    negated,
                }
            }
            ExprTag::InList => {
                let list = self.list(Read::value)?;
                let (has_null, negated) = (self.flag()?, self.flag()?);
                Expr::InList {
                    expr: child(self)?,
                    list,
                    has_null,
                    negated,
                }
            }
            ExprTag::Like => {
                let pattern = self.text()?.to_owned();
                let (ignore_case, negated) = (self.flag()?, self.flag()?);
                Expr::Like {
                    expr: child(self)?,
                    pattern,
                    ignore_case,
                    negated,
                }
            }
            _ => {
                let (ty, unit) = (self.ty()?, self.unit()?);
                Expr::Cast {
                    expr: child(self)?,
                    ty,
                    unit,
                }
            }
        })
    }

    fn case(&mut self, schema: Option<&Schema>, below: usize) -> Result<Expr, CodecError> {
        let count = self.bytes.length(2)?;
        let has_otherwise = self.flag()?;
        let (ty, unit) = (self.ty()?, self.unit()?);
        let mut branches = Vec::new();
        for _ in 0..count {
            let condition = self.expr_over(schema, below)?;
            branches.push((condition, self.expr_over(schema, below)?));
        }
        let otherwise = match has_otherwise {
            true => Some(Box::new(self.expr_over(schema, below)?)),
            false => None,
        };
        Ok(Expr::Case {
            branches,
            otherwise,
            ty,
            unit,
        })
    }

    fn scalar(&mut self, schema: Option<&Schema>, below: usize) -> Result<Expr, CodecError> {
        let name = self.text()?;
        let function = scalar::find(name);
        let function = function.ok_or_else(|| CodecError::UnknownFunction(name.to_owned()))?;
        let (ty, unit) = (self.ty()?, self.unit()?);
        let args = self.list(|r| r.expr_over(schema, below))?;
        let check = |args: &[_]| function.check(args);
        ensure(
            retyped(&args, ty, check),
            "a function has invalid arguments",
        )?;
        Ok(Expr::Call(ScalarCall {
            function,
            args,
            ty,
            unit,
        }))
    }

    fn value(&mut self) -> Result<Value, CodecError> {
        Ok(match get(&mut self.bytes, tags::VALUES)? {
            ValueTag::Null => Value::Null,
            ValueTag::False => Value::Bool(false),
            ValueTag::True => Value::Bool(true),
            ValueTag::Int => Value::Int(self.bytes.i64()?),
            ValueTag::Float => Value::Float(self.bytes.f64()?),
            ValueTag::Text => {
                let text = Symbol::try_new(self.text()?);
                Value::Text(text.map_err(|full| invalid(full.to_string()))?)
            }
        })
    }
}

/// Whether a function with this check returns a `ty` for these arguments.
///
/// The checker saw the original call. The optimizer may have replaced a column by a NULL; the type
/// of that NULL then counts as the column's did.
fn retyped(
    args: &[Expr],
    ty: Type,
    check: impl Fn(&[Argument]) -> Result<Returns, ArgumentError>,
) -> bool {
    let written: Vec<Argument> = args.iter().map(Argument::of).collect();
    let gives = |args: &[Argument]| check(args).is_ok_and(|returns| returns.ty == ty);
    let as_columns = || {
        let mut args = written.clone();
        for arg in &mut args {
            arg.constant.take_if(|constant| constant.is_null());
        }
        gives(&args)
    };
    gives(&written) || as_columns()
}

/// Checks an expression over its operands, which were checked before.
fn typed(expr: &Expr) -> Result<(), CodecError> {
    let right = match expr {
        Expr::Column { .. } | Expr::Call(_) => true,
        Expr::Literal { value, ty, .. } => has_type(value, *ty),
        Expr::Unary { op, expr } => match op {
            UnaryOp::Negate => is_number(expr),
            UnaryOp::Not => expr.ty() == Type::Bool,
        },
        Expr::Binary {
            op, left, right, ..
        } => match op {
            BinaryOp::And | BinaryOp::Or => left.ty() == Type::Bool && right.ty() == Type::Bool,
            BinaryOp::Concat => left.ty() == Type::Text && right.ty() == Type::Text,
            op if op.is_comparison() => same_representation(left.ty(), right.ty()),
            _ => is_number(left) && same_representation(left.ty(), right.ty()),
        },
        Expr::IsNull { .. } => true,
        Expr::InList { expr, list, .. } => {
            let fits = |value: &Value| !value.is_null() && has_type(value, expr.ty());
            list.iter().all(fits)
        }
        Expr::Like { expr, .. } => expr.ty() == Type::Text,
        Expr::Case {
            branches,
            otherwise,
            ty,
            ..
        } => {
            let results = branches.iter().map(|(_, result)| result);
            let mut results = results.chain(otherwise.as_deref());
            let conditions = branches.iter().all(|(c, _)| c.ty() == Type::Bool);
            conditions
                && *ty != Type::Partial
                && results.all(|r| is_null(r) || same_representation(r.ty(), *ty))
        }
        Expr::Cast { expr, ty, .. } => can_cast(expr.ty(), *ty),
    };
    ensure(right, "an expression has operands of invalid types")
}

/// Whether it is a number or a timestamp.
fn is_number(expr: &Expr) -> bool {
    matches!(expr.ty(), Type::Int | Type::Float | Type::Time)
}

fn is_null(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Literal {
            value: Value::Null,
            ..
        }
    )
}

fn has_type(value: &Value, ty: Type) -> bool {
    match value {
        Value::Null => ty != Type::Partial,
        Value::Bool(_) => ty == Type::Bool,
        Value::Int(_) => matches!(ty, Type::Int | Type::Time),
        Value::Float(_) => ty == Type::Float,
        Value::Text(_) => ty == Type::Text,
        Value::Tally(_) => ty == Type::Tally,
        Value::Bytes(_) => ty == Type::Partial,
    }
}

/// A tally can be cast to a text only, and nothing can be cast to a tally.
fn can_cast(from: Type, to: Type) -> bool {
    match (from, to) {
        (_, Type::Partial) => false,
        (Type::Tally, to) => matches!(to, Type::Tally | Type::Text),
        (_, to) => to != Type::Tally,
    }
}
